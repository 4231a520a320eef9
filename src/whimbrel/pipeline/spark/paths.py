"""Paths: how Spark is told of files of this machine, and which of its paths are such ones.

Rule: a path that Spark is told has a scheme; without one it may be anywhere (``fs.defaultFS``), say on HDFS.
Rule: nothing in it is quoted: to Hadoop ``%20`` is a name like any other, and not a space.
Rule: what we name is one file, whatever characters its name has: no pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # who only looks at a stream's folder need not load it
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["local_path", "read_parquet", "spark_path"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def spark_path(path: str | Path) -> str:
    """Return a path as Spark is told of it: one of this machine with its scheme, others as they are."""
    text = str(path)
    return text if _SCHEME.match(text) and not isinstance(path, Path) else f"file://{Path(text).absolute()}"


def local_path(text: str) -> Path | None:
    """Return where on this machine a path of Spark's is; None if it is elsewhere."""
    return Path(text.removeprefix("file:").replace("//", "/", 1)) if text.startswith("file:") else None


def read_parquet(spark: SparkSession, schema: StructType, paths: Iterable[Path]) -> DataFrame:
    """Return the rows of some files; without any, there are none."""
    found = [spark_path(path) for path in paths]
    reader = spark.read.schema(schema).option("__globPaths__", "false")
    return reader.parquet(*found) if found else spark.createDataFrame([], schema)
