"""The source of a stream: decides which seqs of each node's log are in a batch.

A row is a span of one node; the worker that folds the node reads the log itself (``node_fold``). An offset is the last
seq per node, stored in Spark's checkpoint.
Rule: a batch has at most ``facts_per_batch`` facts of all nodes together, and each node with new facts gets a share.
Rule: the two offsets of a batch determine its seqs, so that a repeated batch is the same batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import TypeAlias

from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from whimbrel.hold.store.interface import NOTHING_APPLIED
from whimbrel.pipeline.files.log_watch import LogWatch
from whimbrel.pipeline.files.snapshots import read_undisturbed, snapshot
from whimbrel.pipeline.fold.start_state import first_taken, left_out

__all__ = ["SpanReader", "SpanSource", "next_ends", "spans"]

SCHEMA = "node string, first long, last long, nodes long, now long, missing string"
Row: TypeAlias = tuple[str, int, int, int, int, str]
"""Columns of ``SCHEMA``: node, first and last seq, number of nodes, the driver's time in microseconds, missing seqs.

Only a node that is new to the stream has missing seqs: those that its log lacks as the driver sees it, as JSON."""


class SpanSource(DataSource):
    """Data source ``whimbrel-spans``; options: ``path``, ``facts_per_batch`` and ``until`` (last seq per node)."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "whimbrel-spans"

    def schema(self) -> str:
        """Return the schema of the rows."""
        return SCHEMA

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802 # Spark's name
        """Return the reader, which runs in the driver."""
        del schema
        until = self.options.get("until")
        return SpanReader(
            Path(self.options["path"]),
            most=int(self.options["facts_per_batch"]),
            until=None if until is None else json.loads(until),
        )


class SpanReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader that finds the last seq of each node, and divides new seqs into batches."""

    def __init__(
        self,
        log: Path,
        *,
        most: int,
        until: Mapping[str, int] | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._log, self._most, self._until, self._clock_ns = log, most, until, clock_ns
        self._watch = LogWatch(log)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 # Spark's name
        """Return the offset before the first batch: no node was read."""
        return {}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 # Spark's name
        """Limit the query to the seqs that the log has now."""
        self._until = self._ends()

    def read(self, start: dict[str, int]) -> tuple[Iterator[Row], dict[str, int]]:
        """Return rows with the seqs of the batch after *start*, one per node, and the offset at the batch's end."""
        end = next_ends(start, self._ends(), self._most, partial(first_taken, self._log))
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(  # noqa: N802 # Spark's name
        self, start: dict[str, int], end: dict[str, int]
    ) -> Iterator[Row]:
        """Return rows with the seqs between two offsets, one per node."""
        now = self._clock_ns() // 1_000
        rows = [(*span, now, self._missing(span)) for span in spans(start, end)]
        return iter(rows)  # PySpark copies the iterator, and a generator cannot be copied

    def _missing(self, span: tuple[str, int, int, int]) -> str:
        node, first, _, _ = span
        found = left_out(self._log, node) if first == NOTHING_APPLIED + 1 else []
        return json.dumps([astuple(each) for each in found])

    def _ends(self) -> dict[str, int]:
        last = read_undisturbed(partial(snapshot, self._log, self._watch)).last
        if self._until is None:
            return last
        return {node: min(seq, self._until.get(node, NOTHING_APPLIED)) for node, seq in last.items()}


def spans(start: Mapping[str, int], end: Mapping[str, int]) -> list[tuple[str, int, int, int]]:
    """Return (node, first new seq, last new seq, number of nodes in *end*), for each node with new seqs."""
    return [
        (node, start.get(node, NOTHING_APPLIED) + 1, last, len(end))
        for node, last in sorted(end.items())
        if last > start.get(node, NOTHING_APPLIED)
    ]


def next_ends(
    start: Mapping[str, int], last: Mapping[str, int], most: int, first_of: Callable[[str], int] | None = None
) -> dict[str, int]:
    """Return the end offset of the batch after *start*: at most *most* facts of all nodes, shared fairly.

    *last* has the last seq of each node. *first_of* is called for a node that is new to the stream, and returns the
    first seq of it that the tables cover: seqs that were cut before are not counted. A node without any later seq gets
    no share.
    """
    begin: dict[str, int] = {}
    for node, seq in last.items():
        applied = start.get(node, NOTHING_APPLIED)
        if applied < seq:
            first = first_of(node) if first_of is not None and applied == NOTHING_APPLIED else applied + 1
            if first <= seq + 1:
                begin[node] = first
    new = {node: max(1, last[node] - first + 1) for node, first in begin.items()}
    end = {node: start.get(node, NOTHING_APPLIED) for node in {**start, **last}}
    left = most
    # Nodes with the fewest new facts come first: the rest of their shares goes to the nodes with more.
    for place, node in enumerate(sorted(new, key=lambda each: (new[each], each))):
        share = max(1, -(-left // (len(new) - place)))
        taken = min(new[node], share)
        if left <= 0:
            break
        end[node] = min(last[node], begin[node] + taken - 1)
        left -= taken
    return end
