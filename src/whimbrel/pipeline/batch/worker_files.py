"""Files of a table that workers write; only their names return to the driver.

If a table is mapped from the log (``LogFrame``), the worker that read the rows also writes the result. So no row passes
through Java, which would convert it to a Java row before it writes Parquet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from whimbrel.pipeline.unit.made import TableFiles, WorkerOutput

__all__ = ["Mapped", "Work", "file_paths", "made_frame", "write_files"]

Work = Callable[[Iterable[Any]], Iterator[Any]]
"""A function from Arrow batches to Arrow batches."""
_MADE = pa.schema(
    [
        ("kind", pa.string()),
        ("node", pa.string()),
        ("table", pa.string()),
        ("rows", pa.int64()),
        ("told", pa.binary()),
    ]
)
_NODE = ""
"""Name of the node in ``WorkerOutput``: empty, because the rows of a table are from several nodes."""


class Mapped(Protocol):
    """Rows that can be mapped: a Spark DataFrame, or a ``LogFrame``."""

    def mapInArrow(self, func: Any, schema: Any) -> DataFrame:  # noqa: N802 # as a DataFrame calls it
        """Return the rows that *func* makes in the workers; it gets these rows as Arrow batches."""


def write_files(rows: Mapped, out: Path, table: str, folder: str, *, work: Work = iter) -> list[Path]:
    """Apply *work* to *rows* in the workers, which write the result as data files of a table; return their paths."""
    (out / table / folder).mkdir(parents=True, exist_ok=True)
    return file_paths(out, made_frame(rows, partial(_write_files, out, table, folder, work))).get(table, [])


def made_frame(rows: Mapped, make: Callable[[Iterable[Any]], Iterator[WorkerOutput]]) -> Any:  # a pyarrow.Table
    """Apply *make* to *rows* in the workers; collect the outputs (``WorkerOutput``) as an Arrow table."""
    return rows.mapInArrow(partial(_as_batches, make), from_arrow_schema(_MADE)).toArrow()


def file_paths(out: Path, made: Any) -> dict[str, list[Path]]:  # of a pyarrow.Table
    """Return the paths of the files in *made* (rows of ``WorkerOutput``), per table."""
    found: dict[str, list[Path]] = {}
    for table, told in zip(made.column("table").to_pylist(), made.column("told").to_pylist(), strict=True):
        found.setdefault(table, []).append(out / table / json.loads(told)["path"])
    return found


# -- in a worker -------------------------------------------------------------------------------------------------------


def _as_batches(make: Callable[[Iterable[Any]], Iterator[WorkerOutput]], batches: Iterable[Any]) -> Iterator[Any]:
    for made in make(batches):
        yield pa.RecordBatch.from_pylist([made._asdict()], _MADE)


def _write_files(out: Path, table: str, folder: str, work: Work, batches: Iterable[Any]) -> Iterator[WorkerOutput]:
    files = TableFiles(out, _NODE, (table,), folder=folder)
    for batch in work(batches):
        yield from files.add(table, [batch])
    yield from files.end()
