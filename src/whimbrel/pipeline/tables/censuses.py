"""Censuses: find the last census of a campus (nodes, memory, subscribers) in a log, for the plan of ``replicas``.

Rule: ``popularity`` shows whether the log has a census, and in which window; a log without one is not read again.
Rule: a publication under the census's subject that is not a valid census is skipped, and an earlier census counts.
Rule: the last census is the one with the latest time; of several at that time, the one with the greatest node and seq.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows
from pyspark.sql.pandas.types import from_arrow_schema

from whimbrel.errors import InvalidInputError
from whimbrel.model.census import CENSUS_SUBJECT, CensusTotals, read_census_totals
from whimbrel.pipeline.files.snapshots import Missing
from whimbrel.pipeline.files.spans import SpanReader
from whimbrel.pipeline.spark.log_frames import LogFrame

__all__ = ["LoggedCensus", "census_of_span", "last_census"]

_COLUMNS = ("published_at", "node", "seq", "subject", "body")
_SCHEMA = pa.schema([("at", pa.int64()), ("node", pa.string()), ("seq", pa.int64()), ("body", pa.binary())])


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
        rows = piece.table("publications", ("published_at", "seq", "subject", "body"))
        rows = rows.filter(pc.equal(rows.column("subject"), CENSUS_SUBJECT))
        times = pc.cast(rows.column("published_at"), pa.int64()).to_pylist()
        for at, seq, body in zip(times, rows.column("seq").to_pylist(), rows.column("body").to_pylist(), strict=True):
            with suppress(InvalidInputError):
                each = LoggedCensus(at, reader.node, seq, read_census_totals(bytes(body)))
                found = each if found is None else max(found, each, key=lambda census: census[:3])
    return found


def last_census(publications: LogFrame, popularity: DataFrame, *, window_us: int) -> CensusTotals | None:
    """Return the last census of a campus among *publications*, or None.

    *popularity*, in windows of *window_us*, shows its date, so that only publications of that date are read.
    """
    seen = popularity.where(F.col("subject") == CENSUS_SUBJECT).agg(F.unix_micros(F.max("window_end"))).first()
    if seen is None or seen[0] is None:
        return None
    first, last = (datetime.fromtimestamp(at / 1e6, UTC).date() for at in (seen[0] - window_us, seen[0]))
    found = publications.of_days(first, last).select(*_COLUMNS).mapInArrow(_censuses, from_arrow_schema(_SCHEMA))
    for row in sorted(found.collect(), key=lambda each: (each["at"], each["node"], each["seq"]), reverse=True):
        try:
            return read_census_totals(bytes(row["body"]))
        except InvalidInputError:
            continue
    return None


def _censuses(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        rows = batch.filter(pc.equal(batch.column("subject"), CENSUS_SUBJECT))
        if rows.num_rows:
            at = pc.cast(rows.column("published_at"), pa.int64())
            columns = [at, rows.column("node"), rows.column("seq"), pc.cast(rows.column("body"), pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
