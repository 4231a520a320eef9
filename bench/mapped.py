"""Maps over the events of a log, written by the workers that read them: what the pipeline's own maps are measured by.

*listed* is one row an event with the list of subscriptions that want it: what matching costs, without the rows of
``matches``, which are eight an event in the workload that is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from whimbrel.log.layout import parts
from whimbrel.model.tables import TIME_TYPE
from whimbrel.pipeline.files.part_rows import part_batches
from whimbrel.pipeline.files.snapshots import snapshot
from whimbrel.pipeline.spark.log_frames import LogFrame

__all__ = ["frames", "listed", "rows_in", "scanned", "unchanged", "write"]

Work = Callable[[Iterable[Any]], Iterator[Any]]
_LISTED = pa.schema(
    [
        pa.field("notification_node", pa.string(), nullable=False),
        pa.field("notification_seq", pa.int64(), nullable=False),
        pa.field("published_at", TIME_TYPE, nullable=False),
        pa.field("interests", pa.list_(pa.int64()), nullable=False),
    ]
)
_TASKS = 8


def frames(spark: SparkSession, log: Path) -> tuple[LogFrame, LogFrame, LogFrame]:
    """Return publications, interests and sessions, as ``pipeline run`` reads them."""
    at = snapshot(log)
    made = [LogFrame.at(spark, log, name, at, now=0) for name in ("publications", "interests", "sessions")]
    return made[0], made[1], made[2]


def scanned(spark: SparkSession, log: Path, columns: Sequence[str], work: Work, folder: Path) -> None:
    """Let workers read some columns of the publications and write what *work* makes of them."""
    portions = []
    for part in parts(log, "publications"):
        with pq.ParquetFile(part.path) as file:
            portions += [(part.path, group) for group in range(file.metadata.num_row_groups)]
    reading = partial(_read, portions, tuple(columns))
    numbers = spark.range(0, len(portions), 1, min(_TASKS, len(portions)))
    write(numbers, partial(_after, work, reading), folder)


def write(rows: Any, work: Work, folder: Path) -> None:  # a DataFrame or a LogFrame
    """Let workers write what *work* makes of *rows*."""
    folder.mkdir(parents=True, exist_ok=True)
    rows.mapInArrow(partial(_written, folder, work), "rows long").collect()


def rows_in(folder: Path) -> Any:  # a pyarrow.Table
    """Return what was written."""
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])


def unchanged(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches as they are."""
    yield from batches


def listed(batch: Any, found: Any, rows: Any, handles: Any) -> Iterator[Any]:
    """Yield one row an event that a subscription wants."""
    counts = np.bincount(rows, minlength=batch.num_rows)
    wanted = np.flatnonzero(counts)
    offsets = np.concatenate([[0], np.cumsum(counts[wanted])]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(found.begun[handles]))
    some = pa.array(wanted)
    columns = [batch.column(name).take(some) for name in ("node", "seq", "published_at")]
    columns = [c.cast(f.type) for c, f in zip([*columns, lists], _LISTED, strict=True)]
    yield pa.RecordBatch.from_arrays(columns, schema=_LISTED)


# -- in a worker -------------------------------------------------------------------------------------------------------


def _after(work: Work, reading: Work, batches: Iterable[Any]) -> Iterator[Any]:
    return work(reading(batches))


def _read(portions: Sequence[tuple[Path, int]], columns: tuple[str, ...], batches: Iterable[Any]) -> Iterator[Any]:
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        path, group = portions[number]
        yield from part_batches("publications", path, range(group, group + 1), columns)


def _written(folder: Path, work: Work, batches: Iterable[Any]) -> Iterator[Any]:
    writer, count = None, 0
    for batch in work(batches):
        if writer is None:
            writer = pq.ParquetWriter(folder / f"part-{uuid4().hex}.parquet", batch.schema, compression="zstd")
        writer.write_batch(batch)
        count += batch.num_rows
    if writer is not None:
        writer.close()
    yield pa.RecordBatch.from_arrays([pa.array([count])], names=["rows"])
