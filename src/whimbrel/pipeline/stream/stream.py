"""The stream: keep the pipeline's tables up to date while the log grows, batch by batch.

    spans of each node  →  a fold per node  →  a fold of the windows  →  a commit of each table
    (``batch_spans``)      (``node_fold``)     (``window_fold``)         (``commits``)

| data | stored in |
|---|---|
| the state of each node, and of the windows | immutable objects (``state.objects``) |
| the rows | files that workers write, and a commit of each table with (stream, batch) as its transaction |
| the last batch: its seqs, objects and files | ``_stream/batch.json`` (``state.batch_record``) |

Rule: the driver decides nothing about rows, and keeps no state that must survive it.
Rule: Spark runs the tasks of a batch, and stores nothing. A batch is two jobs, which need no query of Spark's and no
process of Python's beside the workers.
Rule: a stream needs a classic Spark session, not Spark Connect: the process that plans the tasks makes the commits.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from whimbrel.errors import InvalidValueError
from whimbrel.log.files import lock_folder
from whimbrel.log.layout import assumes_receipts, check_format
from whimbrel.pipeline.plans import StreamPlan, settled_plan
from whimbrel.pipeline.spark.paths import local_path, spark_path
from whimbrel.pipeline.spark.spark_session import NotThroughConnectError, is_connect
from whimbrel.pipeline.stream.batches import Batches
from whimbrel.pipeline.stream.commits import BatchCommits, BatchSummary
from whimbrel.pipeline.stream.job import Job
from whimbrel.pipeline.stream.spark_workers import SparkWorkers
from whimbrel.pipeline.stream.state.batch_record import LostLogError, LostStateError, OtherLogError
from whimbrel.pipeline.stream.state.identity import StreamIdentity
from whimbrel.pipeline.stream.state.old_checkpoint import adopt_states, last_whole_batch, read_states, remove_checkpoint
from whimbrel.pipeline.unit.node_share import Held

__all__ = ["BatchSummary", "LostLogError", "LostStateError", "OtherLogError", "Stream", "StreamPlan"]

_POLL_S, _GLANCE_S, _CHECK_S = 0.05, 1.0, 10.0
_SLOW_S = 60.0
"""Time between two commits of rows of time windows, in a stream that goes on for ever, in seconds."""
_IDLE_S = 10.0
"""Time between two reports that there is nothing new, in seconds."""


class Stream:
    """The stream that makes the tables of *log* in the folder *out*.

    The state is in objects below *checkpoint*, a folder that all workers see; by default it is in ``_stream`` below
    *out*.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        log: Path,
        out: Path,
        plan: StreamPlan | None = None,
        checkpoint: str | None = None,
        tells_away: bool = False,
    ) -> None:
        if is_connect(spark):
            raise NotThroughConnectError("a stream, whose tables are committed where the query is driven,")
        self._spark, self._log, self.out = spark, log.absolute(), out.absolute()
        check_format(self._log)
        if self._log == self.out or self._log in self.out.parents:
            raise InvalidValueError("directory for the tables", str(out), f"one outside the log {log}")
        self.folder = self.out / "_stream"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._thread: threading.Thread | None = None
        self._is_ending = threading.Event()
        self._is_halting = False
        """Whether the batch under way is being cancelled."""
        self._is_busy = False
        """Whether a batch is under way."""
        self._checked_s = 0.0
        """Monotonic time of the last check that the log is still the same."""
        self._failure: BaseException | None = None
        """The error with which the loop ended."""
        self.last: BatchSummary | None = None
        """The last committed batch."""
        self.listeners: list[Callable[[BatchSummary], None]] = []
        """Functions that are called with each committed batch, in the thread that committed it."""
        self.idle_listeners: list[Callable[[], None]] = []
        """Functions that are called from time to time while there is nothing new, in the same thread."""
        self._lock: int | None = lock_folder(self.folder, "keeping these tables")
        try:
            self.plan = settled_plan(
                self.folder / "plan.json", plan or StreamPlan(), assumed=assumes_receipts(self._log)
            )
            self._commits = BatchCommits(self.out, self.plan)
            found = self._identity(checkpoint)
            self.checkpoint = found.checkpoint
            state = found.objects(self.folder)
            self._adopt(state)
            self.job = Job(
                stream=found.name,
                log=str(self._log),
                out=str(self.out),
                plan=self.plan,
                state=str(state),
                tells_away=tells_away,
            )
            self._workers = SparkWorkers(spark, f"whimbrel-{found.name}", self._is_ending)
            self.batches = Batches(self.job, self._commits, self._workers)
        except BaseException:
            self.close()
            raise

    def _identity(self, checkpoint: str | None) -> StreamIdentity:
        """Return the stream's name and checkpoint, which are fixed when it is created."""
        asked = None if checkpoint is None else spark_path(checkpoint)
        found = StreamIdentity.read(self.folder)
        if found is None:
            if asked is not None and local_path(asked) is None:
                allowed = "a folder, which all workers see as they see the tables: they write the state as files"
                raise InvalidValueError("--checkpoint", asked, allowed)
            return StreamIdentity.begun(self.folder, name=uuid4().hex, checkpoint=asked)
        if asked not in {None, found.checkpoint}:
            raise InvalidValueError("--checkpoint", asked, f"{found.checkpoint}, where the stream began")
        return found

    def _adopt(self, state: Path) -> None:
        """Move the state of an older Whimbrel's stream from Spark's checkpoint to objects."""
        record = self._commits.record
        if record is None or not record.is_of_spark:
            return
        batch = last_whole_batch(record)
        if batch >= 0:
            states = read_states(self._spark, self.checkpoint, batch)
            self._commits.adopt(adopt_states(record, states, state))
        remove_checkpoint(self.checkpoint)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def start(self, *, every_s: float | None = None, until: Mapping[str, int] | None = None) -> None:
        """Start the loop: process new facts *every_s* seconds or, if None, up to the current end of the log.

        *until* has the last seq to process, per node.
        """
        self._commits.check_log(self._log)
        self._checked_s = time.monotonic()
        self._is_ending.clear()
        self._is_halting, self._failure = False, None
        self._commits.tables.slow_s = 0.0 if every_s is None else _SLOW_S
        target = inheritable_thread_target(self._spark)(self._run)
        self._thread = threading.Thread(target=target, args=(every_s, until), name="whimbrel-stream", daemon=True)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        """Whether the loop runs."""
        return self._thread is not None and self._thread.is_alive()

    def take(self, ends: Mapping[str, int]) -> None:
        """Process all new facts up to the seqs *ends*, per node, in one batch or several, and wait for the end."""
        self.start(until=ends)
        while not self.wait(_GLANCE_S):
            pass

    def wait(self, timeout_s: float) -> bool:
        """Wait up to *timeout_s*; return whether the loop has ended, or raise its error."""
        assert self._thread is not None
        self._check_log()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def _check_log(self) -> None:
        """Stop, and raise ``OtherLogError``, if the log was replaced: its seqs may stay below those that were read."""
        if time.monotonic() - self._checked_s < _CHECK_S:
            return
        self._checked_s = time.monotonic()
        try:
            with suppress(OSError):  # a file system that fails now may answer at the next check
                self._commits.check_log(self._log)
        except OtherLogError:
            self._halt()
            raise

    def end(self, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Start no further batch, and wait until the batch under way is done or *is_enough* returns True.

        Then the stream may be stopped. A batch that was interrupted is finished or made again at the next start; only
        time is lost.
        """
        self._is_ending.set()
        while self._is_busy and not is_enough() and self.is_active:
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop the loop; if it has failed before, raise its error."""
        if self._thread is None:
            return
        if not self._thread.is_alive() and self._failure is not None:
            raise self._failure
        self._halt()

    def _halt(self) -> None:
        """End the loop, with the batch under way if there is one; a commit that has begun is finished."""
        self._is_halting = True
        self._is_ending.set()
        while self.is_active:
            self._workers.cancel()
            assert self._thread is not None
            self._thread.join(_GLANCE_S)

    def _run(self, every_s: float | None, until: Mapping[str, int] | None) -> None:
        try:
            self._loop(every_s, self.batches.ends() if every_s is None and until is None else until)
            self._commits.tables.commit_waiting(all_of_them=True)
        except BaseException as error:  # noqa: BLE001 # raised where somebody waits for it
            if not self._is_halting:
                self._failure = error

    def _loop(self, every_s: float | None, until: Mapping[str, int] | None) -> None:
        told_s = time.monotonic()
        while not self._is_ending.is_set():
            began_s = time.monotonic()
            self._is_busy = True
            try:
                found = self.batches.take(until)
            finally:
                self._is_busy = False
            if found is not None:
                self.last, told_s = found, time.monotonic()
                for listener in list(self.listeners):
                    listener(found)
            elif time.monotonic() - told_s >= _IDLE_S:
                self._commits.tables.commit_waiting()
                told_s = time.monotonic()
                for idle_listener in list(self.idle_listeners):
                    idle_listener()
            if every_s is None and found is None:
                return
            self._is_ending.wait(max(0.0, began_s + (every_s or 0.0) - time.monotonic()))

    # -- the state ---------------------------------------------------------------------------------------------------

    def find_held(self) -> list[Held]:
        """Return all notifications that matched and have no outcome yet, as of the last batch."""
        return [held for state in self.batches.states() for held in state.find_held()]

    def away(self) -> dict[str, int]:
        """Return the number of notifications held for each absent device; empty unless *tells_away* was set."""
        found: dict[str, int] = {}
        for groups in list(self._commits.away.values()):
            for own in groups.values():
                for device, count in own.items():
                    found[device] = found.get(device, 0) + count
        return found

    def close(self) -> None:
        """Release the lock of the tables; committed rows stay."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
