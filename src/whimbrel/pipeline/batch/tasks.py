"""Run the tasks of a batch run's stages: on Spark, or in this process for tests.

Only the names of files and small reports return to the driver; no row passes through Java, in either direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from whimbrel.pipeline.spark.spark_session import parallelism, runs_here
from whimbrel.pipeline.unit.made import WorkerOutput

__all__ = ["Here", "OnSpark", "Tasks"]

T = TypeVar("T")
_MADE = pa.schema(
    [
        ("task", pa.int64()),
        ("kind", pa.string()),
        ("node", pa.string()),
        ("table", pa.string()),
        ("rows", pa.int64()),
        ("told", pa.binary()),
    ]
)
_TASKS_A_CORE = 16


class Tasks(Protocol):
    """A runner of tasks, ``cores`` of them at once."""

    @property
    def cores(self) -> int:
        """How many tasks run at once."""

    @property
    def are_here(self) -> bool:
        """Whether all tasks run on this machine, so that they find kernels that this process compiles."""

    def run(self, work: Callable[[T], Iterator[WorkerOutput]], tasks: Sequence[T]) -> list[WorkerOutput]:
        """Apply *work* to each of *tasks*; return all output, in the order of the tasks."""


class Here:
    """Runs tasks in this process, one after the other."""

    cores = 1
    are_here = True

    def run(self, work: Callable[[T], Iterator[WorkerOutput]], tasks: Sequence[T]) -> list[WorkerOutput]:
        """Apply *work* to each of *tasks*; return all output, in the order of the tasks."""
        return [made for task in tasks for made in work(task)]


class OnSpark:
    """Runs tasks on the workers of a Spark session; many small tasks share a task of Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.cores = parallelism(spark)
        self.are_here = runs_here(spark)

    def run(self, work: Callable[[T], Iterator[WorkerOutput]], tasks: Sequence[T]) -> list[WorkerOutput]:
        """Apply *work* to each of *tasks*; return all output, in the order of the tasks."""
        if not tasks:
            return []
        count = min(len(tasks), _TASKS_A_CORE * self.cores)
        groups = [range(number, len(tasks), count) for number in range(count)]
        numbers = self._spark.range(0, count, 1, count)
        made = numbers.mapInArrow(partial(_run, work, tasks, groups), from_arrow_schema(_MADE)).toArrow()
        columns = [column.to_pylist() for column in made.sort_by("task").columns[1:]]
        return [WorkerOutput(*row) for row in zip(*columns, strict=True)]


def _run(
    work: Callable[[Any], Iterator[WorkerOutput]],
    tasks: Sequence[Any],
    groups: Sequence[range],
    batches: Iterable[Any],
) -> Iterator[Any]:
    for group in (number for batch in batches for number in batch.column(0).to_pylist()):
        for number in groups[group]:
            for made in work(tasks[number]):
                yield pa.RecordBatch.from_pylist([{"task": number, **made._asdict()}], _MADE)
