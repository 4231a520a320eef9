"""Spark for one command: a session, its progress, and failures as one sentence.

Progress is a live line on a terminal. Elsewhere (cron, a service, a log file) it is a line for each kind of work, and
one every ten seconds.

Rule: the session ends with the command, unless it was active before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from whimbrel.errors import MissingDependencyError

if TYPE_CHECKING:  # pyspark takes a second to load, and its Java ten to start
    from pyspark.sql import SparkSession

    from whimbrel.pipeline.spark.progress import Stages

__all__ = ["session", "watched"]

_EVERY_S = 10.0
"""Least time between two lines about the same work, in seconds."""


@contextmanager
def session(master: str | None, *, is_light: bool = False) -> Iterator[SparkSession]:
    """Start Spark for one command, as a light session for a stream (*is_light*); report failures as one sentence."""
    console = Console(stderr=True)
    with console.status("Starting Spark …") if console.is_terminal else _nothing():
        try:
            from whimbrel.pipeline.spark.spark_session import clear_errors, local_session
        except ModuleNotFoundError as error:
            remedy = "run: pip install 'whimbrel[spark]'"
            raise MissingDependencyError("the pipeline", error.name or "pyspark", remedy) from None
        from pyspark.sql import SparkSession

        is_ours = SparkSession.getActiveSession() is None
        spark = local_session(master=master, is_light=is_light)
    try:
        with clear_errors():
            yield spark
    finally:
        if is_ours:  # a program that calls the command keeps its own session
            spark.stop()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def watched(spark: SparkSession, title: str) -> Iterator[Callable[..., None]]:
    """Show one live line on a terminal: the current work, the tasks of Spark's stages, rows per second.

    Yield a function to call with the name of the current work. Without a terminal, print what it is called with.
    """
    from whimbrel.pipeline.spark.progress import StageWatch

    console = Console(stderr=True)
    line = _Line(title)
    if not console.is_terminal:
        yield _Lines(console).doing
        return
    with Live(line, console=console, transient=True, refresh_per_second=4), StageWatch(spark, line.seen):
        yield line.doing


class _Lines:
    """Progress where there is no terminal: a line when the work changes, and otherwise one every ``_EVERY_S``."""

    def __init__(self, console: Console) -> None:
        self._console, self._begun_s = console, time.monotonic()
        self._work, self._told_s = "", self._begun_s

    def doing(self, title: str, *_: object) -> None:
        """Print the name of the current work, if it is new or the last line is long ago."""
        now_s, work = time.monotonic(), title.rstrip("0123456789 %")
        if work != self._work or now_s - self._told_s >= _EVERY_S:
            self._work, self._told_s = work, now_s
            self._console.print(
                f"{now_s - self._begun_s:.0f} s: {title}", markup=False, highlight=False, soft_wrap=True
            )


class _Line:
    """The live line; another thread redraws it several times per second."""

    def __init__(self, title: str) -> None:
        self._title, self._begun = title, time.perf_counter()
        self._stages: Stages | None = None
        self._stage_begun = self._begun

    def doing(self, title: str, *_: object) -> None:
        """Set the name of the current work."""
        self._title = title

    def seen(self, stages: Stages) -> None:
        """Update the line with the progress of Spark's stages."""
        if self._stages is None or self._stages.names != stages.names:
            self._stage_begun = time.perf_counter()
        self._stages = stages

    def __rich__(self) -> Text:
        """Return the current text of the line."""
        elapsed_s = time.perf_counter() - self._begun
        stages = self._stages
        if stages is None:
            return Text(f"{self._title} … {elapsed_s:.0f} s")
        stage = stages.names[0].partition(" at ")[0]
        stage_s = max(time.perf_counter() - self._stage_begun, 0.001)
        rows = f", {stages.rows:,} rows, {stages.rows / stage_s:,.0f} a second" if stages.rows else ""
        tasks = f"{stages.done}/{stages.tasks} tasks of stage {stages.last} ({stage})"
        return Text(f"{self._title} … {tasks}{rows}; {elapsed_s:.0f} s")
