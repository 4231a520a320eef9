"""Censuses: find the last census of a campus (nodes, memory, subscribers) in a log, for the plan of ``replicas``.

Rule: a publication under the census's subject that is not a valid census is skipped, and an earlier census counts.
Rule: the last census is the one with the latest time; of several at that time, the one with the greatest node and seq.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.errors import InvalidInputError
from whimbrel.model.census import CENSUS_SUBJECT, CensusTotals, read_census_totals
from whimbrel.pipeline.files.snapshots import Missing
from whimbrel.pipeline.files.spans import SpanReader

__all__ = ["LoggedCensus", "census_of_span", "census_rows", "last_census"]

_COLUMNS = ("published_at", "node", "seq", "subject", "body")


class LoggedCensus(NamedTuple):
    """A census of a campus in a log, with the time, node and seq that order censuses."""

    at: int
    node: str
    seq: int
    totals: CensusTotals


def census_of_span(reader: SpanReader, first: int, last: int, *, missing: Sequence[Missing]) -> LoggedCensus | None:
    """Return the last census of a campus in a node's log, from seq *first* to *last*; None if there is none."""
    found: LoggedCensus | None = None
    for piece in reader.only(["publications"]).pieces(first, last, now=0, missing=missing):
        rows = census_rows(piece.table("publications"))
        times = pc.cast(rows.column("published_at"), pa.int64()).to_pylist()
        for at, seq, body in zip(times, rows.column("seq").to_pylist(), rows.column("body").to_pylist(), strict=True):
            with suppress(InvalidInputError):
                each = LoggedCensus(at, reader.node, seq, read_census_totals(bytes(body)))
                found = each if found is None else max(found, each, key=lambda census: census[:3])
    return found


def census_rows(publications: Any) -> Any:  # pyarrow.Tables
    """Return the *publications* under the census's subject, with the columns for ``last_census``."""
    rows = publications.select(list(_COLUMNS))
    return rows.filter(pc.equal(rows.column("subject"), CENSUS_SUBJECT))


def last_census(tables: Iterable[Any]) -> CensusTotals | None:  # of pyarrow.Tables
    """Return the last valid census among *tables* of publications (``census_rows``), or None."""
    found: list[tuple[int, str, int, bytes]] = []
    for rows in tables:
        times = pc.cast(rows.column("published_at"), pa.int64()).to_pylist()
        others = (rows.column(name).to_pylist() for name in ("node", "seq", "body"))
        found += zip(times, *others, strict=True)
    for *_, body in sorted(found, reverse=True):
        with suppress(InvalidInputError):
            return read_census_totals(bytes(body))
    return None
