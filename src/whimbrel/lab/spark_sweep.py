"""Sweeps on Spark: each point is measured once, in some task, and kept in a table of Parquet files.

Rule: a point is identified by its key; a key that is in the table is not measured again.
Rule: points run in batches, and each batch is kept when it is done. An interrupted or killed sweep thus continues where
it was; it also finds the rows of tasks that had finished in a killed batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.lab.own_processes import OwnPoint, Row

if TYPE_CHECKING:  # the caller has the Spark session
    from pyspark.sql import SparkSession

__all__ = ["Keyed", "Row", "sweep_own", "sweep_table"]

_TASKS = 24
"""Tasks per batch: a killed sweep loses at most the unfinished ones."""
_TYPES = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_()}
_OWN_SCHEMA = "key string, text string, row string, core_s double"
_OWN_PER_TASK = 20
"""Points per task, where one point takes a few hundredths of a second."""


class Keyed(Protocol):
    """A point: an object with a key that covers everything that decides its result."""

    @property
    def key(self) -> str:
        """Name of its result."""
        ...


P = TypeVar("P", bound=Keyed)


def sweep_table(
    spark: SparkSession,
    points: Sequence[P],
    table: Path,
    *,
    schema: str,
    measure: Callable[[P], Row],
    per_task: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Measure the missing *points* in *table*; return the rows of all, in their order."""
    known = _read_kept(table)
    keyed = {each.key: each for each in points}
    missing = [(key, point) for key, point in keyed.items() if key not in known]
    total = len(keyed)
    size, arrow = _TASKS * per_task, _arrow_schema(schema)
    for begin in range(0, len(missing), size):
        batch = missing[begin : begin + size]
        if on_progress is not None:
            on_progress(total - len(missing) + begin, total)
        tasks = spark.range(0, len(batch), 1, -(-len(batch) // per_task))
        rows = tasks.mapInArrow(partial(_measure_batches, batch, measure, arrow), schema)
        rows.write.mode("append").parquet(str(table.absolute()))
    known = _read_kept(table)
    return [known[point.key] for point in points]


def sweep_own(
    spark: SparkSession,
    points: Sequence[OwnPoint],
    table: Path,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Measure the missing points whose rows are JSON; return the rows of all, in the order of *points*."""
    rows = sweep_table(
        spark,
        points,
        table,
        schema=_OWN_SCHEMA,
        measure=_measure_own,
        per_task=_OWN_PER_TASK,
        on_progress=on_progress,
    )
    return [json.loads(row["row"]) for row in rows]


def _measure_own(point: OwnPoint) -> Row:
    row = point.measure()
    return {"text": point.text, "row": json.dumps(row), "core_s": row["core_s"]}


def _measure_batches(
    points: Sequence[tuple[str, P]], measure: Callable[[P], Row], schema: pa.Schema, batches: Iterable[Any]
) -> Iterator[Any]:
    """Measure the points whose indices are in *batches*, under the keys that the driver computed; runs in a worker."""
    for batch in batches:
        numbers = batch.column(0).to_pylist()
        rows = [measure(points[number][1]) | {"key": points[number][0]} for number in numbers]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _arrow_schema(schema: str) -> pa.Schema:
    return pa.schema([(name, _TYPES[kind]) for name, kind in (each.split() for each in schema.split(", "))])


def _read_kept(table: Path) -> dict[str, Row]:
    """Return the rows of the table and those of finished tasks of a killed sweep, which the next commit keeps."""
    known: dict[str, Row] = {}
    for file in sorted([*table.glob("*.parquet"), *table.glob("_temporary/*/task_*/*.parquet")]):
        try:
            found = ds.dataset(str(file), format="parquet").to_table()
        except (pa.ArrowInvalid, OSError):
            raise InvalidValueError(
                str(file), Phrase("a damaged Parquet file"), "a file that a sweep wrote: remove this one"
            ) from None
        known |= {row["key"]: row for row in found.to_pylist()}
    return known
