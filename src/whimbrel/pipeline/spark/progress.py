"""Progress: poll Spark's running stages from a thread, for progress bars.

Rule: polling never disturbs a job: a stage that Spark does not know, or no longer knows, is skipped. With Spark Connect
there is no progress, because the server does not report stages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it ships no types
from pyspark import SparkContext
from pyspark.sql import SparkSession

from whimbrel.pipeline.spark.spark_session import is_connect

__all__ = ["StageWatch", "Stages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Totals over the stages that run now."""

    names: tuple[str, ...]
    last: int
    """Number of the newest stage; Spark counts stages from the start of the session."""
    tasks: int
    done: int
    rows: int
    """Rows that finished tasks of these stages have read."""


class StageWatch:
    """Context manager that calls *seen* with the running stages every *every_s* seconds."""

    def __init__(self, spark: SparkSession, seen: Callable[[Stages], None], *, every_s: float = 0.5) -> None:
        self._context = None if is_connect(spark) else spark.sparkContext
        self._seen, self._every_s = seen, every_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="whimbrel-progress", daemon=True)

    def __enter__(self) -> Self:
        if self._context is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _watch(self) -> None:
        assert self._context is not None
        while not self._is_over.wait(self._every_s):
            try:
                found = _stages(self._context)
            except (Py4JError, OSError):  # Spark is about to stop, or has
                return
            if found.names:
                self._seen(found)


def _stages(context: SparkContext) -> Stages:
    tracker = context.statusTracker()
    infos = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    known = [info for info in infos if info is not None]
    return Stages(
        names=tuple(info.name for info in known),
        last=max((info.stageId for info in known), default=0),
        tasks=sum(info.numTasks for info in known),
        done=sum(info.numCompletedTasks for info in known),
        rows=sum(_rows(context, info.stageId) for info in known),
    )


def _rows(context: SparkContext, stage: int) -> int:
    """Return the rows that a stage has read, from Spark's status store, which has no Python interface."""
    store: Any = context._jsc.sc().statusStore()  # noqa: SLF001 # pyspark has no public access
    try:
        data = store.lastStageAttempt(stage)
        return int(data.inputRecords()) + int(data.shuffleReadRecords())
    except Py4JError:  # Spark has dropped the stage meanwhile
        return 0
