"""The stream: the tables of the pipeline, kept up to date from a log that goes on.

Spark's query is the clock: at each tick of it we look which numbers of each node are new. A batch reads of each table
what it needs, and makes what the batch job would have made of it, with the same transforms; what must be remembered
from one batch to the next is ``state`` (of a node) and ``windows`` (of time).

| what | where | when |
|---|---|---|
| which numbers a batch has | ``intents`` | before anything is made of them |
| the rows of the batch | a commit of each table (``delta``), whole or not at all | then |
| what is remembered of time, and so that all rows are there | the store of ``windows`` | then |
| what is remembered of each node | a store for each | at last |

Rule: a batch that is done again after a crash, wherever that was, has the numbers it had, finds what it made already,
and leaves it. What was taken is not taken again: each node's store knows its last number.
Rule: nothing that counts is in Spark's own checkpoint, which is made anew with each start: it is not synced to the
disk, and a source of ours, whose offsets it would keep, takes Spark longer to ask than a small batch takes to make.
Rule: much at once is cut into batches of bounded size.
Rule: a stream needs a classic session of Spark: its state is where the query is driven.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from whimbrel.errors import InvalidInputError, InvalidValueError
from whimbrel.hold.store.interface import NOTHING_APPLIED, CorruptStoreError
from whimbrel.hold.store.sqlite import SqliteStore
from whimbrel.log.files import lock_folder, put
from whimbrel.log.layout import check_format, nodes
from whimbrel.log.reader import Frontier
from whimbrel.model.replicas import TooManySubjectsError
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.files.dead_letters import missing_letters
from whimbrel.pipeline.files.delta import LARGEST_BYTES, WHOLE, DeltaOutput
from whimbrel.pipeline.files.snapshots import Missing, first_number, missing_numbers, snapshot, undisturbed
from whimbrel.pipeline.files.spans import PIECE_BYTES, PIECE_FACTS, SpanReader
from whimbrel.pipeline.plans import StreamPlan, settled_plan
from whimbrel.pipeline.spark.spark_session import NotThroughConnectError, is_connect
from whimbrel.pipeline.stream.matchers import Matchers
from whimbrel.pipeline.stream.node_state import Held, NodeState
from whimbrel.pipeline.stream.unit import TakenPiece, take
from whimbrel.pipeline.stream.windows import Late, Windows, merged, watermark
from whimbrel.pipeline.tables.replicas import planned

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Spans: TypeAlias = Mapping[str, tuple[int, int]]
"""By node, the first and the last number."""

__all__ = ["LostLogError", "LostStateError", "Stream", "StreamPlan", "Taken"]

_POLL_S = 0.05
_PATIENCE_S, _GLANCE_S = 10.0, 0.25
"""How long a tick waits for something new at most, and how soon it notices that it need not."""
_COMPACT_EVERY = 8
_SMALLEST_BYTES = 1 << 20
_PARTS_KEPT = 8
"""Rows that are removed by their age go with those of an eighth of the time that they were kept."""


class LostStateError(InvalidInputError):
    """What a stream remembers does not fit its tables. Reaction: start it anew, in another folder."""

    def __init__(self, what: str, found: object, wanted: object) -> None:
        super().__init__(what, found, wanted)
        self.what, self.found, self.wanted = what, found, wanted

    def __str__(self) -> str:
        return (
            f"state of {self.what}: found {self.found}, needed is {self.wanted}; "
            "start the stream anew, in another folder: the log has everything that it needs"
        )


class LostLogError(InvalidInputError):
    """The log was cut before the stream had read it. Reaction: start anew, and keep more of the log."""

    def __init__(self, node: str, wanted: int) -> None:
        super().__init__(node, wanted)
        self.node, self.wanted = node, wanted

    def __str__(self) -> str:
        return (
            f"log of {self.node}: number {self.wanted} is not there any more, and was not read yet; "
            "start the stream anew, in another folder, and keep more of the log"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a batch was."""

    batch: int
    facts: int
    rows: dict[str, int]
    """By table, how many rows were written."""
    applied: dict[str, int]
    """By node, the last number that is in the tables."""
    newest_at: int
    """The time of the newest fact in them, in microseconds."""
    state: int
    """How many things are remembered."""
    state_bytes: int
    """What these take on disk."""
    took_s: float
    notes: tuple[str, ...] = ()
    """What whoever watches should know."""


class Stream:
    """The tables of *log* below *out*; what it needs to go on after a restart is in ``_stream`` there."""

    def __init__(self, spark: SparkSession, *, log: Path, out: Path, plan: StreamPlan | None = None) -> None:
        if is_connect(spark):
            raise NotThroughConnectError("a stream, whose state is where the query is driven,")
        self._spark, self._log, self.out = spark, log.absolute(), out.absolute()
        check_format(self._log)
        if self._log == self.out or self._log in self.out.parents:
            raise InvalidValueError("directory for the tables", str(out), f"one outside the log {log}")
        self.folder = self.out / "_stream"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._states: dict[str, NodeState] = {}
        self._windows: Windows | None = None
        self._intents = _Intents(self.folder / "intents")
        self._readers: dict[str, SpanReader] = {}
        self._nodes = nodes(self._log)
        """Those that there were when the last batch began: to list them takes a look at every folder of the log."""
        self._matchers = Matchers(self.folder / "matchers")
        self._taking = threading.RLock()
        """Whoever looks at what is remembered waits for the batch under way."""
        self._frontiers: dict[str, Frontier] = {}
        self._query: StreamingQuery | None = None
        self._every_s: float | None = None
        self._until: Mapping[str, int] = {}
        """By node, how far a stream is to go that does not go on for ever."""
        self._is_ending = threading.Event()
        self._is_busy = False
        """Whether a batch is under way."""
        self.last: Taken | None = None
        """The last batch."""
        self.listeners: list[Callable[[Taken], None]] = []
        """Who is told of each batch, in the thread that made it."""
        self._lock: int | None = lock_folder(self.folder, "keeping these tables")
        try:
            self.plan = settled_plan(self.folder / "plan.json", plan or StreamPlan())
            self._outputs = {table: DeltaOutput(self.out, table) for table in self.plan.tables}
            shutil.rmtree(self.folder / "matchers", ignore_errors=True)
            for name in ("state", "matchers", "intents"):
                (self.folder / name).mkdir(exist_ok=True)
            with _told_as_lost():
                self._check_tables()
        except BaseException:
            self.close()
            raise
        for output in self._outputs.values():  # now that they are sound: one that is lost may be put back
            output.create()

    # -- the query ---------------------------------------------------------------------------------------------------

    def start(self, *, every_s: float | None = None) -> StreamingQuery:
        """Begin, or go on: look for what is new *every_s*, or, if not said, go to where the log ends now."""
        checkpoint = self.folder / "spark"
        shutil.rmtree(checkpoint, ignore_errors=True)
        self._is_ending.clear()
        self._query, self._every_s = None, every_s
        self._until = self._ends() if every_s is None else {}
        ticks = self._spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1).load()
        writer = ticks.writeStream.queryName("whimbrel").option("checkpointLocation", str(checkpoint))
        writer = writer.foreachBatch(self._on_tick)
        if every_s is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{round(every_s * 1_000)} milliseconds")
        self._query = writer.start()
        return self._query

    def end(self, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Begin no other batch, and wait for the one under way, until it is over or *is_enough*.

        Then the query may be stopped. A batch that is cut short is made again; nothing is lost, but time.
        """
        self._is_ending.set()
        while self._is_busy and not is_enough() and self._query is not None and self._query.isActive:
            time.sleep(_POLL_S)

    def _on_tick(self, _frame: DataFrame, _number: int) -> None:
        if self._every_s is None:
            self.take(self._until)
            return
        # A tick is work for Spark, so one that finds nothing waits a while before it lets the next one come.
        last_look = time.monotonic() + _PATIENCE_S - self._every_s
        while not (new := self._new()):
            if time.monotonic() > last_look or self._is_over_after(self._every_s):
                return
        self.take(new)

    def _ends(self) -> Mapping[str, int]:
        """Return, by node, the last number of the log."""
        return undisturbed(partial(snapshot, self._log, self._frontiers)).last

    def _new(self) -> Mapping[str, int]:
        """Return where the log ends, of nodes that have something new."""
        with self._taking, _told_as_lost():
            return {node: last for node, last in self._ends().items() if self._state_of(node).applied < last}

    def _is_over_after(self, wait_s: float) -> bool:
        """Wait; return, at once if so, whether the stream is to end, as it was told or as its query was."""
        end = time.monotonic() + wait_s
        while (left_s := end - time.monotonic()) > 0:
            if self._is_ending.wait(min(left_s, _GLANCE_S)) or (self._query is not None and not self._query.isActive):
                return True
        return False

    # -- a batch -----------------------------------------------------------------------------------------------------

    def take(self, ends: Mapping[str, int]) -> None:
        """Make everything that is new up to the numbers *ends*, by node, in one batch or several."""
        self._is_busy = True  # before it is looked whether to end: who says so looks at this afterwards
        with self._taking:
            try:
                with _told_as_lost():
                    self._nodes = nodes(self._log)
                    self._check_tables()
                    self._finish()
                    while not self._is_ending.is_set() and self._take(ends):
                        pass
            except BaseException:
                self._forget()  # what is in memory may be half a batch ahead of what is kept
                raise
            finally:
                self._is_busy = False

    def _finish(self) -> None:
        """Bring nodes to the end of the last batch whose state was not committed when it was interrupted."""
        begun = self._intents.of(self._of_time.applied)
        missing = {node: span for node, span in begun.items() if self._state_of(node).applied < span[1]}
        for node, last in self._of_time.reached.items():
            if node not in missing and self._state_of(node).applied != last:
                raise LostStateError(f"node {node}", f"number {self._state_of(node).applied}", f"number {last}")
        if missing:
            self._check_follows(missing)
            self._make(missing, is_known=True)
            self._commit(missing)

    def _begun(self) -> Spans:
        """Return what a batch has that was interrupted before its rows were all there."""
        return self._intents.of(self._of_time.applied + 1)

    def _next(self, ends: Mapping[str, int]) -> Spans:
        """Return what the next batch may have: the first of what is new."""
        found: dict[str, tuple[int, int]] = {}
        for node, last in ends.items():
            applied = self._state_of(node).applied
            if applied < last:
                # A stream may begin with a log that was cut: what is not there any more does not count.
                begin = first_number(self._log, node) if applied == NOTHING_APPLIED else applied + 1
                found[node] = (applied + 1, min(last, begin + self.plan.facts_per_batch - 1))
        return found

    def _check_follows(self, spans: Spans) -> None:
        """Raise unless a batch follows what is remembered, and its log is there from its beginning."""
        for node, (first, last) in spans.items():
            applied = self._state_of(node).applied
            if applied != first - 1:
                raise LostStateError(f"node {node}", f"number {applied}", f"number {first - 1}")
            if applied != NOTHING_APPLIED:
                self._check_nothing_missing(node, first, last)

    def _check_nothing_missing(self, node: str, first: int, last: int) -> None:
        """Raise if a node's log has lost any of these numbers: a stream cannot go on over a gap."""
        for each in missing_numbers(self._log, node, first_number(self._log, node)):
            if each.first <= last and each.last >= first:
                raise LostLogError(node, max(each.first, first))

    def _missing(self, spans: Spans) -> list[Missing]:
        """Return what a stream that begins with these numbers can never read, and so has in no table."""
        new = [node for node in spans if self._state_of(node).applied == NOTHING_APPLIED]
        return [each for node in new for each in missing_numbers(self._log, node)]

    def _take(self, ends: Mapping[str, int]) -> bool:
        """Make the next batch: one that was interrupted, or the first of what is new; tell whether there is one."""
        started, batch = time.monotonic(), self._of_time.applied + 1
        begun = self._begun()
        spans = begun or self._next(ends)
        if not spans:
            return False
        self._check_follows(spans)
        missing = self._missing(spans)
        self._intents.put(batch, spans)
        made = self._make(spans, is_known=False)
        made.notes += map(str, missing)
        made.add("dead_letters", missing_letters(missing, _now()))
        self._write(made, batch)
        written = {table: output.last_batch() for table, output in self._outputs.items()}
        self._of_time.reach({node: last for node, (_, last) in spans.items()}, written)
        self._of_time.advance(self._watermark(), min(each.oldest_at for each in self._all_states()))
        self._of_time.commit(batch)
        self._commit(spans)
        self._tidy(batch)
        self.last = self._told(made, spans, batch, time.monotonic() - started)
        for listener in list(self.listeners):
            listener(self.last)
        return True

    def _commit(self, spans: Spans) -> None:
        for node, (_, last) in spans.items():
            self._state_of(node).commit(last)

    def _make(self, spans: Spans, *, is_known: bool) -> _Made:
        """Make the rows of all tables, and advance each node's state; the windows' too, unless they are *known*."""
        made, pieces = _Made(), []
        for node, (first, last) in spans.items():
            for piece in take(
                self._reader(node), first, last, self._state_of(node), self._matchers,
                window_us=self.plan.window_us, now=_now(),
            ):  # fmt: skip
                for table, batches in piece.rows.items():
                    for rows in batches:
                        made.add(table, rows)
                pieces.append(replace(piece, rows={}))
            if self._state_of(node).applied != NOTHING_APPLIED:
                self._check_nothing_missing(node, first, last)  # after it was read: it may have been cut meanwhile
        if not is_known:
            self._make_windows(made, pieces)
        return made

    def _reader(self, node: str) -> SpanReader:
        if node not in self._readers:
            self._readers[node] = SpanReader(self._log, node, most_facts=PIECE_FACTS, most_bytes=PIECE_BYTES)
        return self._readers[node]

    def _make_windows(self, made: _Made, pieces: Iterable[TakenPiece]) -> None:
        windows = self._of_time
        late: list[Late] = []
        has_changed = False
        for piece in pieces:
            late += windows.count(zip(*(column.to_pylist() for column in piece.counts.columns), strict=True))
            late += windows.tally(piece.tally)
            windows.end(piece.intervals)
            has_changed |= bool(piece.intervals.num_rows)
        made.add("dead_letters", _late_letters(late))
        made.windows["popularity"] = windows.popularity(self._in_force, has_changed=has_changed)
        made.windows["latency"] = windows.latency()
        windows.forget()
        subscribers = windows.subscribers
        if subscribers is not None and "replicas" in self._outputs:
            plan = self.plan
            try:
                rows = planned(
                    subscribers, nodes=plan.nodes, slots_per_node=plan.slots_per_node, sample_bytes=plan.sample_bytes
                )
                made.windows["replicas"] = {WHOLE: pa.Table.from_batches([rows])}
            except TooManySubjectsError as error:  # the plan before stays; the other tables are as good as ever
                made.notes.append(f"replicas: {error}")

    def _in_force(self) -> Any:  # a pyarrow.Table
        """Return the intervals of all subscriptions that go on."""
        return pa.concat_tables([each.open_intervals() for each in self._all_states()])

    def _write(self, made: _Made, batch: int) -> None:
        for table, output in self._outputs.items():
            if table == "replicas":
                output.replace(batch, made.windows.get(table, {}))
            elif table in made.windows:
                found = made.windows[table].items()
                output.replace(batch, {window: merged(output.window(window), rows) for window, rows in found})
            else:
                output.add(batch, made.table(table))

    # -- what is remembered ------------------------------------------------------------------------------------------

    def _state_of(self, node: str) -> NodeState:
        if node not in self._states:
            self._states[node] = NodeState(
                node,
                self._store(node),
                retention=self.plan.retention,
                assume_receipts=self.plan.assume_receipts,
            )
        return self._states[node]

    def _all_states(self) -> list[NodeState]:
        return [self._state_of(node) for node in self._nodes]

    @property
    def _of_time(self) -> Windows:
        if self._windows is None:
            store = self._store("$windows")  # no node is called so
            self._windows = Windows(store, window_us=self.plan.window_us, horizon_us=self.plan.horizon_us)
        return self._windows

    def _check_tables(self) -> None:
        """Raise if tables are ahead of what is remembered (that was lost, or is an old copy), or behind it (they are).

        They may be one batch ahead, of one that was interrupted and is made again.
        """
        windows = self._of_time
        known = windows.applied + (1 if self._begun() else 0)
        for table, output in self._outputs.items():
            found, least = output.last_batch(), windows.written.get(table, -1)
            if found < 0 and least < 0 and not output.is_of_a_stream():
                allowed = "a folder without tables of a batch run, or one that a stream made"
                raise InvalidValueError("directory for the tables", str(self.out / table), allowed)
            if found > known:
                raise LostStateError(f"table {table}", f"batch {known}", f"batch {found}")
            if found < least:
                raise LostStateError(f"table {table}", f"a table up to batch {found}", f"one up to batch {least}")

    def _store(self, name: str) -> SqliteStore:
        return SqliteStore(self.folder / "state" / f"{name}.sqlite", is_synced=True)

    def _watermark(self) -> int:
        times = {each.node: each.last_at for each in self._all_states()}
        return watermark(times, lateness_us=self.plan.lateness_us)

    def held(self) -> list[Held]:
        """Return everything that was wanted and has no outcome yet."""
        with self._taking:
            return [each for state in self._all_states() for each in state.held()]

    def away(self) -> dict[str, int]:
        """Return, for each device that is away, how many notifications wait for it."""
        found: dict[str, int] = {}
        with self._taking:
            for state in self._all_states():
                for device, count in state.away().items():
                    found[device] = found.get(device, 0) + count
        return found

    def _told(self, made: _Made, spans: Spans, batch: int, took_s: float) -> Taken:
        states = self._all_states()
        return Taken(
            batch=batch,
            facts=sum(last - max(first, 1) + 1 for first, last in spans.values()),  # numbers begin with 1
            rows={table: made.count(table) for table in self.plan.tables},
            applied={each.node: each.applied for each in states},
            newest_at=max((each.last_at for each in states if each.last_at is not None), default=0),
            state=sum(each.size for each in states) + self._of_time.size,
            state_bytes=sum(_size(path) for path in (self.folder / "state").iterdir()),
            took_s=took_s,
            notes=tuple(made.notes),
        )

    # -- tidying up --------------------------------------------------------------------------------------------------

    def _tidy(self, batch: int) -> None:
        """Put small files together, and remove files that no reader needs any more and rows that are too old.

        Small ones often and large ones rarely, each eight times the size in an eighth of the turns, so that a row is
        written anew a few times and not with every turn.
        """
        number = batch + 1
        if number % _COMPACT_EVERY:
            return
        target = _SMALLEST_BYTES
        while number % (_COMPACT_EVERY * _COMPACT_EVERY) == 0 and target < LARGEST_BYTES:
            number, target = number // _COMPACT_EVERY, target * 8
        for table, output in self._outputs.items():
            before = self._of_time.first_open if table in {"popularity", "latency"} else None
            keep_us = self.plan.keep_us
            if keep_us is not None:
                # A node whose clock is ahead must not make anybody's rows old. What has gone by a little is left for
                # the next time: to remove rows is to write the others of their file anew.
                step, horizon = max(1, keep_us // _PARTS_KEPT), min(self._watermark(), _now()) - keep_us
                output.expire(horizon - horizon % step, before=before)
            output.compact(target_bytes=min(target, LARGEST_BYTES), before=before)
            if target >= LARGEST_BYTES or batch < _COMPACT_EVERY:
                output.sweep()

    def close(self) -> None:
        """Let go of the tables; what was committed is kept."""
        with self._taking:
            self._forget()
            self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _forget(self) -> None:
        for state in self._states.values():
            state.close()
        self._states.clear()
        if self._windows is not None:
            self._windows.close()
            self._windows = None
        self._matchers.forget()
        self._readers.clear()


class _Intents:
    """Which numbers a batch has, written down before anything is made of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, batch: int) -> Spans:
        """Return what a batch has; nothing, if it was never begun."""
        path = self._folder / f"{batch}.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        return {node: (first, last) for node, (first, last) in found.items()}

    def put(self, batch: int, spans: Spans) -> None:
        """Write down what a batch has, and forget those that nobody can ask for any more."""
        put(self._folder / f"{batch}.json", json.dumps(spans).encode())
        for old in self._folder.iterdir():
            if old.stem.isdigit() and int(old.stem) < batch - 1:
                old.unlink(missing_ok=True)


class _Made:
    """The rows of a batch."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Any]] = {}
        """By table, Arrow batches to add."""
        self.windows: dict[str, dict[int, Any]] = {}
        """By table and window, rows to replace."""
        self.notes: list[str] = []

    def add(self, table: str, rows: Any) -> None:  # a pyarrow.RecordBatch or Table
        if rows.num_rows:
            batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
            self.rows.setdefault(table, []).extend(batches)

    def table(self, table: str) -> Any:  # a pyarrow.Table
        schema = TABLES[table].schema
        return pa.Table.from_batches([rows.cast(schema) for rows in self.rows.get(table, [])], schema=schema)

    def count(self, table: str) -> int:
        written = [*self.windows.get(table, {}).values(), *self.rows.get(table, ())]
        return sum(int(rows.num_rows) for rows in written)


@contextmanager
def _told_as_lost() -> Iterator[None]:
    """Let a store that is broken not say that it can be made again: alone, it cannot here."""
    try:
        yield
    except CorruptStoreError as error:
        raise LostStateError(error.path, error.reason, "what the stream wrote") from error


def _late_letters(late: Iterable[Late]) -> Any:  # a pyarrow.Table
    now = _now()
    rows = [
        {"found_at": now, "source": "stream", "position": None, "reason": str(each), "content": each.subject.encode()}
        for each in late
    ]
    return pa.Table.from_pylist(rows, schema=TABLES["dead_letters"].schema)


def _now() -> int:
    return int(time.time() * 1_000_000)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # SQLite has files that come and go
        return 0
