"""Workers of Spark: run the tasks of a batch as one job, and return their output to the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Event
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import SparkSession

from whimbrel.pipeline.spark.restarts import Restarts
from whimbrel.pipeline.spark.spark_session import parallelism
from whimbrel.pipeline.stream.job import Job
from whimbrel.pipeline.unit.made import WorkerOutput

__all__ = ["SparkWorkers"]


class SparkWorkers:
    """The workers of the session *spark*; *is_ending* is set when nobody waits for the tasks any more."""

    def __init__(self, spark: SparkSession, group: str, is_ending: Event) -> None:
        self._spark, self._group, self._is_ending = spark, group, is_ending
        self._restarts = Restarts()

    @property
    def cores(self) -> int:
        """Number of tasks that can run at once."""
        return parallelism(self._spark)

    def run(
        self, work: Callable[[Job, Any], Iterator[WorkerOutput]], job: Job, tasks: Sequence[Any]
    ) -> list[WorkerOutput]:
        """Call ``work(job, task)`` for each of *tasks*, the first ones first; return everything that they yield."""
        context = self._spark.sparkContext
        context.setJobGroup(self._group, "a batch of the stream")
        while True:
            try:
                made: list[WorkerOutput] = context.parallelize(tasks, len(tasks)).flatMap(partial(work, job)).collect()
            except Py4JError as error:
                if self._is_ending.is_set() or not self._restarts.may_restart(str(error)):
                    raise
                # The slow processes are still starting; wait, so that their number does not grow.
                self._is_ending.wait(self._restarts.pause_s)
            else:
                self._restarts.note_batch()
                return made

    def cancel(self) -> None:
        """Cancel the tasks that run."""
        self._spark.sparkContext.cancelJobGroup(self._group)
