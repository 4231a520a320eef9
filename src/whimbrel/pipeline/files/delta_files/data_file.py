"""Data files: the Parquet files of a Delta table, written so that readers skip what they do not need."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from whimbrel.model.tables import TABLES
from whimbrel.pipeline.files.delta_files.clustering import as_clustered
from whimbrel.pipeline.files.delta_files.file_statistics import file_statistics

__all__ = ["COMPRESSION", "add_action", "delta_schema", "written_file"]

COMPRESSION: Literal["ZSTD"] = "ZSTD"
_ROWS_A_GROUP = 1 << 17
"""Rows of a row group: the part of a file that DuckDB skips. Spark skips pages, of 20,000 rows."""


def delta_schema(table: str) -> Any:  # a pyarrow.Schema
    """Return the Arrow schema of a Delta table: all columns nullable, descriptions as comments."""
    return pa.schema([field.with_nullable(True) for field in TABLES[table].schema])


def written_file(out: Path, table: str, rows: Any, *, is_new: bool = True, folder: str = "") -> AddAction:
    """Write *rows*, a ``pyarrow.Table``, to a new data file, fsync it, and return the Delta action that adds it.

    The file is in the folder of *table*, or in the subfolder *folder*.
    """
    path = out / table / folder / f"part-{uuid4().hex}.parquet"
    with path.open("wb") as stream:
        pq.write_table(
            as_clustered(rows.cast(delta_schema(table)), table),
            stream,
            compression=COMPRESSION,
            row_group_size=_ROWS_A_GROUP,
            write_page_index=True,
        )
        stream.flush()
        os.fsync(stream.fileno())
    return add_action(out, table, path, is_new=is_new)


def add_action(out: Path, table: str, path: Path, *, is_new: bool = True) -> AddAction:
    """Return the Delta action that adds a file to *table*: with its size, number of rows, and ranges of columns."""
    size, now_ms = path.stat().st_size, int(time.time() * 1_000)
    return AddAction(str(path.relative_to(out / table)), size, {}, now_ms, is_new, file_statistics(path, table))
