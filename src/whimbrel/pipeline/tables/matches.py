"""``matches``: the subscriptions that match each publication, found by a packed matcher.

A matcher is packed per node, as a file. The workers of a machine memory-map the file, so they share one copy. A worker
matches a whole Arrow batch at a time; no row is handled in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.model.tables import TABLES
from whimbrel.pipeline.subscriptions.matcher_files import MatcherFiles, MatcherInput
from whimbrel.pipeline.subscriptions.moves import Moves
from whimbrel.pipeline.subscriptions.versions import PackedVersions, track_arrays, versions

__all__ = ["match_rows", "pack"]


def pack(
    ranges: Iterable[tuple[str, int, int]],
    changed: Any,
    deleted: Any,
    folder: Path,
    files: MatcherFiles,
    *,
    moved: tuple[Any, Any] | None = None,
) -> dict[str, str]:
    """Leave a matcher in *folder* for each of *ranges* (node, first and last seq); return its file, per node.

    *changed* and *deleted* are Arrow tables of ``interests`` and ``sessions``, the columns ``CHANGED`` and ``DELETED``.
    *moved* are tables of ``reports`` and ``presence``, the columns ``SEEN`` and ``MEMBERS``. A matcher that
    *files* already have is mapped, not packed.
    """
    found: dict[str, str] = {}
    for node, first, last in ranges:
        deletions = _of_node(deleted, node)
        table = versions(_of_node(changed, node), deletions, first=first, last=last)
        tracks = None
        if moved is not None:
            moves = Moves()
            moves.numbers(table.column("session").to_pylist())  # must come first: tracks have a row per session
            moves.take(_of_node(moved[0], node), _of_node(moved[1], node), deletions)
            tracks = track_arrays(table, moves)
        path = folder / f"{uuid4().hex}.matcher"
        files.leave(node, MatcherInput(table, tracks=tracks), path)
        found[node] = str(path)
    return found


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
