"""The demo's pipeline: the stream on the broker's log, in a thread of the demo's, and what is shown of its tables.

Rule: the thread makes new values and puts them in place whole; whoever draws takes what is there.
Rule: the tables of the end are read when the broker has stopped and everything in its log was taken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as pads

from whimbrel.cli.ward.tallies import Latency, percentiles
from whimbrel.cli.ward.view import Bar, PipelineView
from whimbrel.pipeline.accounts import ArrowTable, HeldEntry

if TYPE_CHECKING:  # pyspark takes a second to load, in the thread
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from whimbrel.log.reader import Frontier
    from whimbrel.pipeline.stream import Stream

__all__ = ["Ledger", "WardPipeline"]

_MASTER, _MEMORY, _PARTITIONS = "local[2,4]", "1g", 2
_EVERY = "2 seconds"
_WINDOW_US = 10_000_000
_NODES, _SLOTS = 40, 4
_LOOK_S = 0.5
_BARS = 8
_COUNTED = ("matches", "deliveries")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What the pipeline has at the end."""

    matches: ArrowTable
    deliveries: ArrowTable
    held: tuple[HeldEntry, ...]
    publications: ArrowTable
    """node, seq, qos and body_hash."""
    presence: ArrowTable
    sessions: ArrowTable


class WardPipeline:
    """The stream from the log of *node* in *log* to tables in *out*.

    In its thread it calls *on_first* when the first batch is in the tables, and *on_end* at the end.
    """

    def __init__(
        self, log: Path, node: str, out: Path, *, on_first: Callable[[], None], on_end: Callable[[], None]
    ) -> None:
        self._log, self._node, self._out, self._on_first, self._on_end = log, node, out, on_first, on_end
        self.view = PipelineView()
        self._following, self._ending, self._stopped = threading.Event(), threading.Event(), threading.Event()
        self._ledger: Ledger | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="whimbrel pipeline", daemon=True)

    def start(self) -> None:
        """Start Spark, in a thread."""
        self._thread.start()

    def follow(self) -> None:
        """Let it follow the log, which is there by now."""
        self._following.set()

    def finish(self) -> None:
        """Let it take the log to its end, which has come, and read the tables."""
        self._ending.set()

    def break_off(self) -> None:
        """Let it end as soon as it can, without an account."""
        self._stopped.set()
        self._ending.set()
        self._following.set()

    def result(self) -> Ledger:
        """Wait until it has ended; return what it has."""
        self._thread.join()
        self.check()
        assert self._ledger is not None
        return self._ledger

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._failure is not None:
            raise self._failure

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            from whimbrel.pipeline.sessions import clear_errors, local_session

            with clear_errors():
                spark = local_session(
                    master=_MASTER, app="whimbrel demo", memory=_MEMORY, partitions=_PARTITIONS, is_light=True
                )
                try:
                    self._ledger = self._work(spark)
                finally:
                    spark.stop()
        except BaseException as error:  # noqa: BLE001 # it is raised where the result is asked for
            self._failure = error
            self._tell("failed")
        self._on_end()

    def _work(self, spark: SparkSession) -> Ledger | None:
        from whimbrel.log.reader import Frontier
        from whimbrel.pipeline.stream import Stream, StreamPlan

        self._following.wait()
        if self._stopped.is_set():
            return None
        plan = StreamPlan(window_us=_WINDOW_US, nodes=_NODES, slots_per_node=_SLOTS)
        stream = Stream(spark, log=self._log, out=self._out, plan=plan)
        stream.listeners.append(lambda taken: self._on_first() if taken.batch == 0 else None)
        self._tell("the first batch …")
        query = stream.start(every=_EVERY)
        try:
            self._watch(stream, query, Frontier(self._log, self._node))
            if self._stopped.is_set():
                return None
            self._tell("taking the log to its end …")
            query.processAllAvailable()  # what is stopped in the middle of a batch would do it again
        finally:
            query.stop()
        stream.start().awaitTermination()
        self._look(stream, Frontier(self._log, self._node))
        self._tell("reading the tables …")
        held = tuple(stream.held())
        stream.close()
        ledger = self._read(spark, held)
        self._tell("done")
        return ledger

    def _watch(self, stream: Stream, query: StreamingQuery, frontier: Frontier) -> None:
        while not self._ending.wait(_LOOK_S):
            error = query.exception()
            if error is not None:
                raise error
            self._look(stream, frontier)

    def _look(self, stream: Stream, frontier: Frontier) -> None:
        """Put a new view in place."""
        from whimbrel.pipeline.outputs import read

        last = stream.last
        if last is None:
            return
        behind = max(0, frontier.seq() - last.applied.get(self._node, -1))
        behind_s = max(0.0, time.time() - last.newest_at / 1e6) if behind else 0.0
        view = replace(self.view, doing="", behind=behind, behind_s=behind_s)
        if last.batch != view.batch:
            latency, expired = _latency(read(self._out, "latency"))
            view = replace(
                view,
                batch=last.batch,
                facts=last.facts,
                took_s=last.took_s,
                state=last.state,
                rows={table: _count(self._out, table) for table in _COUNTED},
                latency=latency,
                expired=expired,
                popularity=_popular(read(self._out, "popularity")),
                replicas=_planned(read(self._out, "replicas")),
                away=_away(stream) or view.away,
            )
        self.view = view

    def _tell(self, doing: str) -> None:
        self.view = replace(self.view, doing=doing)

    def _read(self, spark: SparkSession, held: tuple[HeldEntry, ...]) -> Ledger:
        from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows

        from whimbrel.pipeline.outputs import read
        from whimbrel.pipeline.source import read_table, snapshot

        at = snapshot(self._log)
        body_hash = F.unhex(F.sha2("body", 256)).alias("body_hash")
        publications = read_table(spark, self._log, "publications", at=at)
        return Ledger(
            matches=read(self._out, "matches"),
            deliveries=read(self._out, "deliveries"),
            held=held,
            publications=publications.select("node", "seq", "qos", body_hash).toArrow(),
            presence=read_table(spark, self._log, "presence", at=at).toArrow(),
            sessions=read_table(spark, self._log, "sessions", at=at).toArrow(),
        )


# -- what is shown of the tables ---------------------------------------------------------------------------------------


def _away(stream: Stream) -> dict[str, int] | None:
    """Return for whom how much waits; None if a batch changed it while we looked."""
    try:
        return stream.away()
    except RuntimeError:
        return None


def _count(out: Path, table: str) -> int:
    """Return how many rows a table has: what its files say of themselves, no row is read."""
    folder = (out / table).resolve()  # one version of it, whatever the stream does
    return int(pads.dataset(folder, format="parquet").count_rows()) if folder.is_dir() else 0


def _newest_window(table: ArrowTable) -> list[dict[str, Any]]:
    """Return the rows of the newest window that has an older one before it: the newest of all has only begun."""
    windows = sorted(set(table.column("window_start").to_pylist()))
    if not windows:
        return []
    chosen = windows[-2] if len(windows) > 1 else windows[-1]
    return [row for row in table.to_pylist() if row["window_start"] == chosen]


def _popular(table: ArrowTable) -> tuple[Bar, ...]:
    rows = sorted(_newest_window(table), key=lambda row: (-row["publications"], row["subject"]))
    return tuple(Bar(row["subject"], row["publications"], f"{row['subscribers']} want it") for row in rows[:_BARS])


def _planned(table: ArrowTable) -> tuple[Bar, ...]:
    rows = sorted(table.to_pylist(), key=lambda row: (-row["replicas"], row["subject"]))
    return tuple(Bar(row["subject"], row["replicas"], f"{row['share']:.0%}") for row in rows[:_BARS])


def _latency(table: ArrowTable) -> tuple[Latency, int]:
    """Return the latencies of the newest window, and how many expired unseen in all.

    Percentiles of subjects cannot be put together exactly; weighing them by their deliveries comes close.
    """
    rows = [row for row in _newest_window(table) if row["delivered"]]
    weights = [row["delivered"] for row in rows]
    p50 = percentiles([row["p50_us"] for row in rows], weights).p50_us
    p99 = percentiles([row["p99_us"] for row in rows], weights).p99_us
    return Latency(p50, p99), sum(table.column("expired_unseen").to_pylist())
