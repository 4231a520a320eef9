"""The source of a stream: which numbers of each node's log a batch has. Its offsets are numbers, in Spark's checkpoint.

A row is a span of one node; the log itself is read where it is worked on (``node_fold``).
Rule: a batch has at most so many facts of all nodes together, and each node that has something new gets its share.
Rule: what a batch has follows from its two offsets alone, so that a batch that is made again is the same batch.
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
from whimbrel.pipeline.files.snapshots import snapshot, undisturbed
from whimbrel.pipeline.fold.start_state import first_taken, left_out

__all__ = ["SpanReader", "SpanSource", "next_ends", "spans"]

SCHEMA = "node string, first long, last long, nodes long, now long, missing string"
Row: TypeAlias = tuple[str, int, int, int, int, str]
"""The columns of ``SCHEMA``: a span, how many nodes there are, the driver's time in microseconds and, as JSON, which
numbers of a node that is new are not there as the driver sees it."""


class SpanSource(DataSource):
    """The format ``whimbrel-spans``; options: path, facts_per_batch and, by node, the last number (``until``)."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` calls it."""
        return "whimbrel-spans"

    def schema(self) -> str:
        """Return the columns."""
        return SCHEMA

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802 # Spark's name
        """Return the reader, which is asked in the driver."""
        del schema
        until = self.options.get("until")
        return SpanReader(
            Path(self.options["path"]),
            most=int(self.options["facts_per_batch"]),
            until=None if until is None else json.loads(until),
        )


class SpanReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Looks how far the log goes."""

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
        """Begin with nothing of any node."""
        return {}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 # Spark's name
        """Go as far as the log goes now."""
        self._until = self._ends()

    def read(self, start: dict[str, int]) -> tuple[Iterator[Row], dict[str, int]]:
        """Return the next batch after *start*, and where it ends."""
        end = next_ends(start, self._ends(), self._most, partial(first_taken, self._log))
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(  # noqa: N802 # Spark's name
        self, start: dict[str, int], end: dict[str, int]
    ) -> Iterator[Row]:
        """Return a batch that was begun."""
        now = self._clock_ns() // 1_000
        rows = [(*span, now, self._missing(span)) for span in spans(start, end)]
        return iter(rows)  # PySpark copies it, and no generator can be

    def _missing(self, span: tuple[str, int, int, int]) -> str:
        node, first, _, _ = span
        found = left_out(self._log, node) if first == NOTHING_APPLIED + 1 else []
        return json.dumps([astuple(each) for each in found])

    def _ends(self) -> dict[str, int]:
        last = undisturbed(partial(snapshot, self._log, self._watch)).last
        if self._until is None:
            return last
        return {node: min(seq, self._until.get(node, NOTHING_APPLIED)) for node, seq in last.items()}


def spans(start: Mapping[str, int], end: Mapping[str, int]) -> list[tuple[str, int, int, int]]:
    """Return, of each node with something between two offsets, its first and last number and how many nodes are."""
    return [
        (node, start.get(node, NOTHING_APPLIED) + 1, last, len(end))
        for node, last in sorted(end.items())
        if last > start.get(node, NOTHING_APPLIED)
    ]


def next_ends(
    start: Mapping[str, int], last: Mapping[str, int], most: int, first_of: Callable[[str], int] | None = None
) -> dict[str, int]:
    """Return where a batch ends that follows *start*: at most *most* facts of all nodes, shared as fairly as can be.

    *last* has the last number of each node that there is. *first_of* returns the first one of a node that is new here:
    what was cut from the beginning of a log does not count, and a node of which nothing after it is there has to wait.
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
    # The nodes with least go first: what they leave is shared among those that have more.
    for place, node in enumerate(sorted(new, key=lambda each: (new[each], each))):
        share = max(1, -(-left // (len(new) - place)))
        taken = min(new[node], share)
        if left <= 0:
            break
        end[node] = min(last[node], begin[node] + taken - 1)
        left -= taken
    return end
