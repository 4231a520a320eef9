"""The stream: a Structured Streaming query that keeps the pipeline's tables up to date while the log grows.

    spans of each node  →  a fold per node  →  a fold of the windows  →  a commit of each table
    (``span_source``)      (``node_fold``)     (``window_fold``)         (``commits``)

| data | stored in |
|---|---|
| the seqs of each batch | offsets in Spark's checkpoint, written before the batch is processed |
| the state of each node, and of the windows | the state of the two operators, in Spark's checkpoint |
| the rows | files that workers write, and a commit of each table with (stream, batch) as its transaction |
| the last batch in the tables, and its query | ``_stream/batch.json`` (``batch_record``) |

Rule: a repeated batch has the same seqs and starts from the same state, wherever it was interrupted. It does not change
tables that have the batch already.
Rule: the driver decides nothing about rows, and keeps no state that must survive it.
Rule: a stream needs a classic Spark session, not Spark Connect: the process that runs the query makes the commits.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows

from whimbrel.errors import InvalidValueError
from whimbrel.log.files import lock_folder, sync_file
from whimbrel.log.layout import assumes_receipts, check_format, nodes
from whimbrel.pipeline.plans import StreamPlan, settled_plan
from whimbrel.pipeline.spark.paths import local_path, spark_path
from whimbrel.pipeline.spark.restarts import Restarts
from whimbrel.pipeline.spark.spark_session import (
    NotThroughConnectError,
    clear_errors,
    is_connect,
    parallelism,
    session_settings,
)
from whimbrel.pipeline.stream.batch_record import LostLogError, LostStateError, OtherLogError
from whimbrel.pipeline.stream.blob_store import BlobStore, Head, MemoryBlobs, SparkBlobs
from whimbrel.pipeline.stream.commits import BatchCommits, BatchSummary
from whimbrel.pipeline.stream.identity import StreamIdentity
from whimbrel.pipeline.stream.node_fold import Job
from whimbrel.pipeline.stream.operators import NodeFold, WindowFold
from whimbrel.pipeline.stream.span_source import SpanSource
from whimbrel.pipeline.stream.window_fold import WINDOWS
from whimbrel.pipeline.unit.made import MADE, WorkerOutput
from whimbrel.pipeline.unit.node_share import Held, NodeShare

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["BatchSummary", "LostLogError", "LostStateError", "OtherLogError", "Stream", "StreamPlan"]

_POLL_S, _GLANCE_S, _CHECK_S = 0.05, 1.0, 10.0
_CLOCK_NS = 1_000_000_000
"""Largest lag of a file's modification time behind the clock, in nanoseconds."""
_NODES_OPERATOR = 1
"""Spark's id of the operator that folds nodes: Spark counts operators from the end of the query."""
_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A batch writes only its changes, not the whole state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # A repeated batch needs only the last version of the state; older ones are for time travel.
    "spark.sql.streaming.minBatchesToRetain": "10",
    # No batches without new facts.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
}


class Stream:
    """The stream that makes the tables of *log* in the folder *out*.

    Spark stores its offsets and state in *checkpoint*, by default in ``_stream`` below *out*. *checkpoint* is a URL of
    a file system of Spark's, or a local path.
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
        self._query: StreamingQuery | None = None
        self._is_ending = threading.Event()
        self._is_busy = False
        """Whether a batch is under way."""
        self._asked: tuple[float | None, Mapping[str, int] | None] = (None, None)
        """The arguments with which ``start`` was called."""
        self._restarts = Restarts()
        self._checked_s = 0.0
        """Monotonic time of the last check that the log is still the same."""
        self._synced_ns = 0
        """Time before which all of Spark's writes to the checkpoint are fsynced, in nanoseconds."""
        self._failure: BaseException | None = None
        """The error that a batch raised in the driver."""
        self.last: BatchSummary | None = None
        """The last committed batch."""
        self.listeners: list[Callable[[BatchSummary], None]] = []
        """Functions that are called with each committed batch, in the thread that committed it."""
        self._lock: int | None = lock_folder(self.folder, "keeping these tables")
        try:
            self.plan = settled_plan(
                self.folder / "plan.json", plan or StreamPlan(), assumed=assumes_receipts(self._log)
            )
            self._commits = BatchCommits(self.out, self.plan)
            name, self.checkpoint, self._partitions = self._identity(checkpoint)
            self.job = Job(stream=name, log=str(self._log), out=str(self.out), plan=self.plan, tells_away=tells_away)
        except BaseException:
            self.close()
            raise

    def _identity(self, checkpoint: str | None) -> tuple[str, str, int]:
        """Return the stream's name, checkpoint and number of tasks, which are fixed when it is created."""
        asked = None if checkpoint is None else spark_path(checkpoint)
        found = StreamIdentity.read(self.folder)
        if found is None:
            # A node is folded in one task, so more tasks than nodes would be idle.
            partitions = max(1, min(parallelism(self._spark), len(nodes(self._log))))
            found = StreamIdentity.begun(self.folder, name=uuid4().hex, checkpoint=asked, partitions=partitions)
        elif asked not in {None, found.checkpoint}:
            raise InvalidValueError("--checkpoint", asked, f"{found.checkpoint}, where the stream began")
        return found.name, found.checkpoint, found.partitions

    # -- the query ---------------------------------------------------------------------------------------------------

    def start(self, *, every_s: float | None = None, until: Mapping[str, int] | None = None) -> StreamingQuery:
        """Start the query: process new facts *every_s* seconds or, if None, up to the current end of the log.

        *until* has the last seq to process, per node.
        """
        self._commits.check_log(self._log)
        self._checked_s = time.monotonic()
        self._asked = (every_s, until)
        self._is_ending.clear()
        self._query, self._failure = None, None
        self._spark.dataSource.register(SpanSource)
        source = self._spark.readStream.format(SpanSource.name()).option("path", str(self._log))
        source = source.option("facts_per_batch", self.plan.facts_per_batch)
        if until is not None:
            source = source.option("until", json.dumps(dict(until)))
        with session_settings(self._spark, {**_SETTINGS, "spark.sql.shuffle.partitions": str(self._partitions)}):
            by_node = source.load().groupBy("node")
            folded = by_node.transformWithState(NodeFold(self.job), MADE, "Append", "None")
            together = folded.withColumn("key", F.lit(WINDOWS)).groupBy("key")
            made = together.transformWithState(WindowFold(self.job), MADE, "Append", "None")
            writer = made.writeStream.queryName("whimbrel").option("checkpointLocation", self.checkpoint)
            writer = writer.foreachBatch(self._on_batch)
            if every_s is None:
                writer = writer.trigger(availableNow=True)
            else:
                writer = writer.trigger(processingTime=f"{round(every_s * 1_000)} milliseconds")
            self._query = writer.start()
        return self._query

    def take(self, ends: Mapping[str, int]) -> None:
        """Process all new facts up to the seqs *ends*, per node, in one batch or several, and wait for the end."""
        self.start(until=ends)
        with clear_errors():
            try:
                while not self.wait(_GLANCE_S):
                    pass
            except Exception:
                if self._failure is not None:
                    raise self._failure from None
                raise

    def wait(self, timeout_s: float) -> bool:
        """Wait up to *timeout_s*; return whether the query has ended, or raise its error (see ``restarts``)."""
        assert self._query is not None
        self._check_log()
        try:
            return bool(self._query.awaitTermination(timeout_s))  # type: ignore[arg-type]  # fractions work, too
        except StreamingQueryException as error:
            if not self._restarts.may_restart(str(error)):
                raise
            # The slow processes are still starting; wait, so that their number does not grow.
            self._is_ending.wait(self._restarts.pause_s)
            every_s, until = self._asked
            self.start(every_s=every_s, until=until)
            return False

    def _check_log(self) -> None:
        """Stop, and raise ``OtherLogError``, if the log was replaced: its seqs may stay below those that were read."""
        if time.monotonic() - self._checked_s < _CHECK_S:
            return
        self._checked_s = time.monotonic()
        try:
            with suppress(OSError):  # a file system that fails now may answer at the next check
                self._commits.check_log(self._log)
        except OtherLogError:
            if self._query is not None:
                self._query.stop()
            raise

    def end(self, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Start no further batch, and wait until the batch under way is done or *is_enough* returns True.

        Then the query may be stopped. An interrupted batch is repeated at the next start; only time is lost.
        """
        self._is_ending.set()
        while self._is_busy and not is_enough() and self._query is not None and self._query.isActive:
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop the query; if it has failed before, raise its error."""
        if self._query is None:
            return
        failure = self._query.exception()  # read before the stop, which may look like a failure
        if failure is not None:
            raise failure
        self._query.stop()

    def _on_batch(self, frame: DataFrame, batch: int) -> None:
        while self._query is None:  # a batch may begin before ``start`` returns
            time.sleep(_POLL_S)
        self._is_busy = not self._is_ending.is_set()
        while self._is_ending.is_set() and self._query.isActive:  # being stopped; this batch will be repeated
            time.sleep(_POLL_S)
        try:
            began_s = time.monotonic()
            rows = frame.collect()
            self._sync_checkpoint()
            made = [WorkerOutput(kind, node, table, count, bytes(told)) for kind, node, table, count, told in rows]
            self.last = self._commits.commit(str(self._query.id), batch, made, began_s=began_s)
            self._restarts.note_batch()
            for listener in list(self.listeners):
                listener(self.last)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._is_busy = False

    def _sync_checkpoint(self) -> None:
        """Fsync the files that Spark wrote for this batch, before any table gets its rows: Spark does not fsync."""
        place = local_path(self.checkpoint)
        if place is None:
            return
        now_ns = time.time_ns()
        folders: set[Path] = set()
        for path in place.rglob("*"):
            with suppress(FileNotFoundError):  # Spark removes old versions meanwhile
                if path.stat().st_mtime_ns >= self._synced_ns and path.is_file():
                    sync_file(path)
                    folders.add(path.parent)
        for folder in folders:
            with suppress(FileNotFoundError):
                sync_file(folder)
        self._synced_ns = now_ns - _CLOCK_NS

    # -- the state ---------------------------------------------------------------------------------------------------

    def find_held(self) -> list[Held]:
        """Return all notifications that matched and have no outcome yet, as of the last batch."""
        return [held for state in self._states() for held in state.find_held()]

    def away(self) -> dict[str, int]:
        """Return the number of notifications held for each absent device; empty unless *tells_away* was set."""
        found: dict[str, int] = {}
        for own in list(self._commits.away.values()):
            for device, count in own.items():
                found[device] = found.get(device, 0) + count
        return found

    def _states(self) -> Iterator[NodeShare]:
        """Yield the state of each node, read from Spark's checkpoint."""
        if not self._commits.applied:
            return
        reader = self._spark.read.format("statestore").option("path", self.checkpoint)
        reader = reader.option("operatorId", _NODES_OPERATOR)
        heads = reader.option("stateVarName", SparkBlobs.HEAD).load().select("key.*", "value.*").collect()
        lists = reader.option("stateVarName", SparkBlobs.LIST).load().select("key.*", "list_element.*").collect()
        for node, *head in heads:
            blobs = MemoryBlobs((bytes(blob) for own, blob in lists if own == node), Head(*head))
            store = BlobStore(blobs)
            yield NodeShare(node, store, retention=self.plan.retention, assume_receipts=bool(self.plan.assume_receipts))

    def close(self) -> None:
        """Release the lock of the tables; committed rows stay."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
