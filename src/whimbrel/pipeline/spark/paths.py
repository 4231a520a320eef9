"""Paths: convert paths of local files to Spark's form, and back.

Rule: a path for Spark has a scheme; without one it could be on another file system (``fs.defaultFS``), such as HDFS.
Rule: characters are not percent-encoded: for Hadoop ``%20`` is part of a name, not a space.
Rule: a path names one file, even if it has characters of a glob pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # code that only reads a stream's folder does not need pyspark
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["local_path", "read_parquet", "spark_path"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def spark_path(path: str | Path) -> str:
    """Return a path in Spark's form: a local path gets the scheme ``file:``, a URL stays as it is."""
    text = str(path)
    return text if _SCHEME.match(text) and not isinstance(path, Path) else f"file://{Path(text).absolute()}"


def local_path(text: str) -> Path | None:
    """Return the local path of a path in Spark's form; None if it is not on this machine."""
    return Path(text.removeprefix("file:").replace("//", "/", 1)) if text.startswith("file:") else None


def read_parquet(spark: SparkSession, schema: StructType, paths: Iterable[Path]) -> DataFrame:
    """Return the rows of the Parquet files *paths*; an empty DataFrame if there are no files."""
    found = [spark_path(path) for path in paths]
    reader = spark.read.schema(schema).option("__globPaths__", "false")
    return reader.parquet(*found) if found else spark.createDataFrame([], schema)
