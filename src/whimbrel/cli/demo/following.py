"""The demo's pipeline in its own process: the stream on the broker's log, and the numbers to show from its tables.

Rule: the process has a session of its own, so that Ctrl-C in the terminal reaches only the demo; it ends with the demo.
Rule: the final tables are read after the broker has stopped and its whole log was processed.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as pads

from whimbrel.cli.demo.tallies import Latency, percentiles
from whimbrel.cli.demo.view import Bar, PipelineView
from whimbrel.pipeline.accounts import ArrowTable, HeldEntry

if TYPE_CHECKING:  # the demo's own process need not load pyspark, which takes a second
    from pyspark.sql import SparkSession

    from whimbrel.log.reader import DurableEnd
    from whimbrel.pipeline.stream.stream import Stream

__all__ = ["FINISH", "FIRST", "FOLLOW", "Ended", "Ledger", "follow", "portable"]

FOLLOW, FINISH = "follow", "finish"
"""Messages to the process: ``FOLLOW`` once the log exists, ``FINISH`` once the log is complete."""
FIRST = "first"
"""Message from the process: the first batch is in the tables. It also sends ``PipelineView``, at last ``Ended``."""
_MASTER, _MEMORY, _PARTITIONS = "local[2,4]", "1g", 2
_EVERY_S = 2.0
_WINDOW_US = 10_000_000
_NODES, _SLOTS = 40, 4
_LOOK_S = 0.5
_BARS = 8
_COUNTED = ("matches", "deliveries")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Final tables of the pipeline and the log, from which the outcome of every notification is computed."""

    matches: ArrowTable
    deliveries: ArrowTable
    held: tuple[HeldEntry, ...]
    publications: ArrowTable
    """Columns node, seq, qos and body_hash."""
    presence: ArrowTable
    sessions: ArrowTable


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of the process: its result, or its failure."""

    ledger: Ledger | None
    failure: BaseException | None


def follow(pipe: Connection, log: Path, node: str, out: Path) -> None:
    """Run as the process of the pipeline, from the log of *node* in *log* to tables in *out*, controlled by *pipe*."""
    os.setsid()
    with suppress(BrokenPipeError):  # the demo has ended
        _Following(pipe, log, node, out).run()


class _Following:
    def __init__(self, pipe: Connection, log: Path, node: str, out: Path) -> None:
        self._pipe, self._log, self._node, self._out = pipe, log, node, out
        self._view = PipelineView()
        self._telling = threading.Lock()
        self._following, self._ending = threading.Event(), threading.Event()

    def run(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        ledger, failure = None, None
        try:
            from whimbrel.pipeline.spark.spark_session import clear_errors, local_session

            with clear_errors():
                spark = local_session(
                    master=_MASTER, app="whimbrel demo", memory=_MEMORY, partitions=_PARTITIONS, is_light=True
                )
                try:
                    ledger = self._work(spark)
                finally:
                    spark.stop()
        except BrokenPipeError:
            raise
        except BaseException as error:  # noqa: BLE001 # raised where the result is requested
            failure = portable(error)
            self._say("failed")
        self._tell(Ended(ledger, failure))

    def _listen(self) -> None:
        events = {FOLLOW: self._following, FINISH: self._ending}
        with suppress(EOFError, OSError):
            while True:
                events[self._pipe.recv()].set()
        os._exit(1)  # the demo has ended, and nobody reads the pipe

    def _tell(self, what: object) -> None:
        with self._telling:  # Spark's thread reports batches
            self._pipe.send(what)

    def _show(self, view: PipelineView) -> None:
        self._view = view
        self._tell(view)

    def _say(self, doing: str) -> None:
        self._show(replace(self._view, doing=doing))

    def _work(self, spark: SparkSession) -> Ledger:
        from whimbrel.log.reader import DurableEnd
        from whimbrel.pipeline.stream.stream import Stream, StreamPlan

        self._following.wait()
        plan = StreamPlan(window_us=_WINDOW_US, nodes=_NODES, slots_per_node=_SLOTS)
        stream = Stream(spark, log=self._log, out=self._out, plan=plan, tells_away=True)
        stream.listeners.append(lambda taken: self._tell(FIRST) if taken.batch == 0 else None)
        self._say("the first batch …")
        stream.start(every_s=_EVERY_S)
        self._watch(stream, DurableEnd(self._log, self._node))
        self._say("taking the log to its end …")
        stream.end()
        stream.stop()
        stream.start()
        while not stream.wait(_LOOK_S):
            pass
        self._look(stream, DurableEnd(self._log, self._node))
        self._say("reading the tables …")
        held = tuple(stream.find_held())
        stream.close()
        ledger = self._read(spark, held)
        self._say("done")
        return ledger

    def _watch(self, stream: Stream, frontier: DurableEnd) -> None:
        while not self._ending.is_set():
            stream.wait(_LOOK_S)  # raises the stream's error if it failed
            self._look(stream, frontier)

    def _look(self, stream: Stream, frontier: DurableEnd) -> None:
        """Send the demo the pipeline's current progress: its lag, and results from its tables."""
        from whimbrel.pipeline.files.delta import read

        last = stream.last
        if last is None:
            return
        behind = max(0, frontier.seq() - last.applied.get(self._node, -1))
        behind_s = max(0.0, time.time() - last.newest_at / 1e6) if behind else 0.0
        view = replace(self._view, doing="", behind=behind, behind_s=behind_s)
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
                replicas=_plan_bars(read(self._out, "replicas")),
                away=_away(stream) or view.away,
            )
        self._show(view)

    def _read(self, spark: SparkSession, held: tuple[HeldEntry, ...]) -> Ledger:
        from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows

        from whimbrel.pipeline.files.delta import read
        from whimbrel.pipeline.files.snapshots import snapshot
        from whimbrel.pipeline.spark.reading import read_table

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


def portable(error: BaseException) -> BaseException:
    """Return *error* in a form that can be sent to another process."""
    try:
        return pickle.loads(pickle.dumps(error))  # type: ignore[no-any-return] # noqa: S301 # our own
    except Exception:  # noqa: BLE001 # an error of other software may do anything when pickled
        return RuntimeError(f"{type(error).__name__}: {error}")


# -- numbers from the tables -------------------------------------------------------------------------------------------


def _away(stream: Stream) -> dict[str, int] | None:
    """Return the number of held notifications per absent device; None if a batch changed it during the call."""
    try:
        return stream.away()
    except RuntimeError:
        return None


def _count(out: Path, table: str) -> int:
    """Return the number of rows of a table, from the metadata of its files; no row is read."""
    from whimbrel.pipeline.files.delta import data_files

    return int(pads.dataset([str(path) for path in data_files(out, table)], format="parquet").count_rows())


def _newest_window(table: ArrowTable) -> list[dict[str, Any]]:
    """Return the rows of the second newest time window, as the newest has only begun; or of the only window."""
    windows = sorted(set(table.column("window_start").to_pylist()))
    if not windows:
        return []
    chosen = windows[-2] if len(windows) > 1 else windows[-1]
    return [row for row in table.to_pylist() if row["window_start"] == chosen]


def _popular(table: ArrowTable) -> tuple[Bar, ...]:
    rows = sorted(_newest_window(table), key=lambda row: (-row["publications"], row["subject"]))
    return tuple(Bar(row["subject"], row["publications"], f"{row['subscribers']} want it") for row in rows[:_BARS])


def _plan_bars(table: ArrowTable) -> tuple[Bar, ...]:
    rows = sorted(table.to_pylist(), key=lambda row: (-row["replicas"], row["subject"]))
    return tuple(Bar(row["subject"], row["replicas"], f"{row['share']:.0%}") for row in rows)


def _latency(table: ArrowTable) -> tuple[Latency, int]:
    """Return the latencies of the newest complete window, and the number of notifications that expired unseen in all.

    Percentiles of several subjects cannot be combined exactly; weighting them by their deliveries comes close.
    """
    rows = [row for row in _newest_window(table) if row["delivered"]]
    weights = [row["delivered"] for row in rows]
    p50 = percentiles([row["p50_us"] for row in rows], weights).p50_us
    p99 = percentiles([row["p99_us"] for row in rows], weights).p99_us
    return Latency(p50, p99), sum(table.column("expired_unseen").to_pylist())
