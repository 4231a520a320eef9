"""``matches``: the subscriptions that match each publication, found by a packed matcher.

A matcher is packed per node, as a file. The workers of a machine memory-map the file, so they share one copy. A worker
matches a whole Arrow batch at a time; no row is handled in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.model.tables import TABLES
from whimbrel.pipeline.subscriptions.moves import Moves
from whimbrel.pipeline.subscriptions.versions import LayerBase, PackedVersions, pack_versions, versions

__all__ = ["Shipped", "match_rows", "pack"]


@dataclass(frozen=True, slots=True)
class Shipped:
    """Matchers of some nodes, as files."""

    files: dict[str, str]
    """File of the matcher, per node."""

    @classmethod
    def together(cls, parts: Sequence[Shipped]) -> Shipped:
        """Combine the matchers of several nodes."""
        return cls({node: file for part in parts for node, file in part.files.items()})


def pack(
    ranges: Iterable[tuple[str, int, int]],
    changed: Any,
    deleted: Any,
    folder: Path,
    *,
    over: LayerBase | None = None,
    moved: tuple[Any, Any] | None = None,
) -> Shipped:
    """Pack a matcher into *folder* for each of *ranges* (node, first and last seq).

    *changed* and *deleted* are Arrow tables of ``interests`` and ``sessions``, the columns ``CHANGED`` and ``DELETED``.
    *moved* are tables of ``reports`` and ``presence``, the columns ``SEEN`` and ``MEMBERS``. A matcher of one node may
    lie *over* a larger matcher, which it updates, and which the workers find at the same path.
    """
    files: dict[str, str] = {}
    for node, first, last in ranges:
        deletions = _of_node(deleted, node)
        table = versions(_of_node(changed, node), deletions, first=first, last=last)
        moves = None
        if moved is not None:
            moves = Moves()
            moves.numbers(table.column("session").to_pylist())  # must come first: tracks have a row per session
            moves.take(_of_node(moved[0], node), _of_node(moved[1], node), deletions)
        path = folder / f"{uuid4().hex}.matcher"
        pack_versions(path, table, over=over, moves=moves)
        files[node] = str(path)
    return Shipped(files)


def _of_node(table: Any, node: str) -> Any:
    return table.filter(pc.equal(table.column("node"), node))


_MOST = 200_000
"""Most rows of an Arrow batch of matches: one batch of publications may have very many matches."""


def match_rows(batch: Any, found: PackedVersions, rows: Any, handles: Any) -> Iterator[Any]:
    """Yield the matches in a batch of publications as rows of ``matches``."""
    schema = TABLES["matches"].schema
    for begin in range(0, rows.size, _MOST):
        some_rows, some_handles = pa.array(rows[begin : begin + _MOST]), pa.array(handles[begin : begin + _MOST])
        subscriptions = found.table.take(some_handles).combine_chunks()
        columns = [batch.column(name).take(some_rows) for name in ("node", "seq", "published_at")]
        columns += [_whole(subscriptions.column(name)) for name in ("session", "subject_filter", "name")]
        columns.append(_whole(subscriptions.column("interest_seq")))
        yield pa.RecordBatch.from_arrays([c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _whole(column: Any) -> Any:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
