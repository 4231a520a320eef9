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

from whimbrel.log import layout
from whimbrel.log.layout import parts
from whimbrel.model.tables import TIME_TYPE
from whimbrel.pipeline.batch.job import BatchJob, NodeSpan
from whimbrel.pipeline.batch.node_subscriptions import NodeSubscriptions, pack_node
from whimbrel.pipeline.files.dead_letters import validate_rows
from whimbrel.pipeline.files.part_rows import PIECE_FACTS
from whimbrel.pipeline.files.snapshots import snapshot
from whimbrel.pipeline.plans import Plan
from whimbrel.pipeline.subscriptions.versions import PackedVersions

__all__ = ["MATCHED", "Judged", "Matching", "events_in", "listed", "rows_in", "scanned", "unchanged"]

Work = Callable[[Iterable[Any]], Iterator[Any]]
Shape = Callable[[Any, PackedVersions, Any, Any], Iterable[Any]]
_LISTED = pa.schema(
    [
        pa.field("notification_node", pa.string(), nullable=False),
        pa.field("notification_seq", pa.int64(), nullable=False),
        pa.field("published_at", TIME_TYPE, nullable=False),
        pa.field("interests", pa.list_(pa.int64()), nullable=False),
    ]
)
_TASKS = 8
MATCHED = ("node", "seq", "published_at", "subject", "attributes", "deliver_insecure")
"""Columns of publications that matching needs in the workloads that are measured."""


class Matching:
    """Function for workers that matches batches of publications, and makes rows of the matches with *shape*."""

    def __init__(
        self, log: Path, shape: Callable[[Any, PackedVersions, Any, Any], Iterable[Any]], folder: Path
    ) -> None:
        (node,) = layout.nodes(log)
        job = BatchJob(log=str(log), out="", folder="", scratch=str(folder), tables=("matches",), plan=Plan(), now=0)
        last = snapshot(log).last[node]
        (made,) = pack_node(job, NodeSpan(node, 0, last), of=1, matches=(0, last))
        self._file, self._node, self._shape = str(NodeSubscriptions.from_told(made.told).matcher), node, shape

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Match each batch, and yield the rows of the matches."""
        found = PackedVersions.map(self._file, self._node)
        for batch in batches:
            rows, handles = found.match(batch)
            if rows.size:
                yield from self._shape(batch, found, rows, handles)


class Judged:
    """Function for workers that validates batches of publications, as a batch run does, before *work* gets them."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Validate each batch, and yield what the work makes of the valid rows."""
        return self._work(validate_rows("publications", batch, node=None, now=0).good for batch in batches)


def scanned(spark: SparkSession, log: Path, columns: Sequence[str] | None, work: Work, folder: Path) -> None:
    """Let workers read some columns (None: all) of the publications and write what *work* makes of them."""
    portions = []
    for part in parts(log, "publications"):
        with pq.ParquetFile(part.path) as file:
            portions += [(part.path, group) for group in range(file.metadata.num_row_groups)]
    reading = partial(_read, portions, columns)
    numbers = spark.range(0, len(portions), 1, min(_TASKS, len(portions)))
    write(numbers, partial(_after, work, reading), folder)


def write(rows: Any, work: Work, folder: Path) -> None:  # a DataFrame
    """Let workers write what *work* makes of *rows*."""
    folder.mkdir(parents=True, exist_ok=True)
    rows.mapInArrow(partial(_written, folder, work), "rows long").collect()


def events_in(log: Path) -> int:
    """Return the number of publications in the Parquet files of a log."""
    return sum(pq.read_metadata(part.path).num_rows for part in parts(log, "publications"))


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


def _read(portions: Sequence[tuple[Path, int]], columns: Sequence[str] | None, batches: Iterable[Any]) -> Iterator[Any]:
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        path, group = portions[number]
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(
                batch_size=PIECE_FACTS, row_groups=[group], columns=columns and list(columns), use_threads=False
            )


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
