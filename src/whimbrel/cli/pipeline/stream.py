"""``whimbrel pipeline run --continuous``: the shell of the stream: signals, the live line, metrics, the end.

Rule: after one signal to stop, the current batch is finished; a second signal interrupts it. Either way nothing is
lost: an unfinished batch is repeated by the next run.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from whimbrel.cli.process.niceness import give_way
from whimbrel.cli.process.spark import session
from whimbrel.errors import InvalidValueError

if TYPE_CHECKING:  # pyspark takes a second to load, and its Java ten to start
    from prometheus_client import CollectorRegistry
    from pyspark.sql import SparkSession

    from whimbrel.pipeline.stream.stream import Stream
    from whimbrel.pipeline.stream.watching import Told

__all__ = ["Shell", "run_stream"]

_LOOK_EVERY_S = 2.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """Settings for running a stream that do not affect its tables."""

    every_us: int | None
    """Time between the starts of batches; None: read to the log's end, then stop."""
    nice: int
    metrics: tuple[str, int] | None
    """Address and port for metrics."""
    master: str | None
    checkpoint: str | None
    """Folder of the state; None: beside the tables."""
    as_json: bool


def run_stream(log: Path, out: Path, plan: Mapping[str, Any], shell: Shell) -> None:
    """Run a stream until a signal stops it, or it has read everything; *plan* has the fields of a ``StreamPlan``."""
    if not _has_session():  # a user's program that has a session decides about priority itself
        give_way(shell.nice)  # child processes inherit the niceness: Java, and its workers
    # py4j logs pages for each failure; we print one sentence instead.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with _Signals() as signals, session(shell.master, is_light=True) as spark:
        signals.listen()  # again, because Spark installs a handler for Ctrl-C itself
        _run(spark, log, out, plan, shell, signals)


def _run(  # noqa: PLR0917 # one argument per option, and the signals
    spark: SparkSession, log: Path, out: Path, plan: Mapping[str, Any], shell: Shell, signals: _Signals
) -> None:
    from whimbrel.pipeline.spark.spark_session import SparkJobError, clear_errors
    from whimbrel.pipeline.stream.stream import Stream, StreamPlan
    from whimbrel.pipeline.stream.watching import StreamWatch

    stream = Stream(spark, log=log, out=out, plan=StreamPlan(**plan), checkpoint=shell.checkpoint)
    totals = _Totals()
    with ExitStack() as closing:
        closing.callback(stream.close)
        console = Console(stderr=True)
        page = _Page(is_terminal=console.is_terminal, as_json=shell.as_json)
        seen: list[Callable[[Told], None]] = [totals.take, page.take]
        seen.append(_registering(log, out))

        def tell(told: Told) -> None:
            for each in seen:
                each(told)

        watch = StreamWatch(stream, log, tell)
        if shell.metrics is not None:
            from whimbrel.pipeline.stream.meters import Meters

            meters = Meters(watch.look)
            seen.append(meters.take)
            closing.enter_context(_served(meters.registry, *shell.metrics))
        closing.enter_context(watch)
        page.look = watch.look
        if page.is_live:
            closing.enter_context(Live(page, console=console, transient=True, refresh_per_second=2))
        try:
            with clear_errors():
                stream.start(every_s=None if shell.every_us is None else shell.every_us / 1e6)
                is_whole = _follow(stream, signals)
        except SparkJobError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from None
        # Progress events arrive a moment after their batch.
        _await(lambda: stream.last is None or totals.batch == stream.last.batch, 2.0)
    if not shell.as_json:
        typer.echo(totals.line(out, is_whole=is_whole), err=shell.every_us is not None)


def _registering(log: Path, out: Path) -> Callable[[Told], None]:
    """Return a function that registers the stream's progress, so that the broker keeps unread parts of its log."""
    from whimbrel.log.keeping.readers import Registration, name_for
    from whimbrel.model.clock import SystemClock

    registration, clock = Registration(log, name_for("stream", out)), SystemClock()

    def take(told: Told) -> None:
        if told.taken is not None:
            registration.renew(told.taken.done_with, clock.now())

    return take


def _follow(stream: Stream, signals: _Signals) -> bool:
    """Wait until the query ends, or a signal stops it; return whether every batch was finished."""
    while not signals.count:
        if stream.wait(1):
            return True
    stream.end(lambda: signals.count > 1)
    is_whole = signals.count < 2
    stream.stop()
    return is_whole


def _await(is_so: Callable[[], bool], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not is_so() and time.monotonic() < end:
        time.sleep(_POLL_S)


def _has_session() -> bool:
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


class _Signals:
    """Counts the signals to stop that the process gets during a ``with`` block."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self) -> None:
        """Install handlers for Ctrl-C and SIGTERM."""
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._on_signal)
            self._before.setdefault(number, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.count += 1


class _Totals:
    """Totals over all batches."""

    def __init__(self) -> None:
        self.batch: int | None = None
        self._batches = self._facts = self._rows = self._late = 0
        self._applied: Mapping[str, int] = {}

    def take(self, told: Told) -> None:
        taken = told.taken
        if told.is_new and taken is not None:
            self.batch = taken.batch
            self._batches += 1
            self._facts += taken.facts
            self._rows += sum(taken.rows.values())
            self._late += sum(taken.late.values())
            self._applied = taken.applied

    def line(self, out: Path, *, is_whole: bool) -> str:
        cut = "" if is_whole else "; a batch was cut short, and will be made again"
        if not self._batches:
            return f"nothing new{cut}; the tables in {out} are as they were"
        ends = ", ".join(f"{node}:{seq}" for node, seq in sorted(self._applied.items()))
        batches = "1 batch" if self._batches == 1 else f"{self._batches:,} batches"
        made = f"{self._facts:,} facts became {self._rows:,} rows in {batches}"
        if self._late:
            made += f", {self._late:,} came too late and are not counted in their windows"
        return f"stopped: {made}{cut}; the tables in {out} are those of {ends}"


class _Page:
    """The progress display: a live line on a terminal, else a line per batch; with --json an object per batch."""

    def __init__(self, *, is_terminal: bool, as_json: bool) -> None:
        self.is_live, self._as_json = is_terminal, as_json
        self.look: Callable[[], Told] | None = None
        self._looked_at, self._text = 0.0, "starting the stream …"

    def take(self, told: Told) -> None:
        """Update the display with the latest batch."""
        if told.taken is not None:
            self._text = told.line()
        if told.is_new and self._as_json:
            typer.echo(json.dumps(told.as_json()))
        elif told.is_new and not self.is_live:
            typer.echo(told.line(), err=True)

    def __rich__(self) -> Text:
        """Return the current line; Rich redraws it in a thread of its own."""
        now = time.monotonic()
        if self.look is not None and now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            told = self.look()
            if told.taken is not None:
                self._text = told.line()
        return Text(self._text, no_wrap=True, overflow="ellipsis")


@contextmanager
def _served(registry: CollectorRegistry, host: str, port: int) -> Iterator[None]:
    """Serve metrics to Prometheus during the block."""
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        sentence = f"--metrics-port: cannot listen on {host}:{port}: {error.strerror}"
        raise InvalidValueError("--metrics-port", port, "a port that is free", sentence) from None
    typer.echo(f"metrics: http://{host}:{server.server_port}/metrics", err=True)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
