"""Our tables as DataFrames: Spark's own Parquet scan of exactly the files of one version of a Delta table.

Spark prunes columns, pushes filters down to row groups and pages, and reads vectors, as for any Parquet; neither Java
nor Python of ours sees a row. A table of the log is read the same way, with the tail that is not exported yet.
Rule: a DataFrame has the rows of one version, whatever is committed while it is used.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from whimbrel.errors import InvalidValueError
from whimbrel.log.layout import FORMAT_FILE
from whimbrel.pipeline import TABLES_MADE
from whimbrel.pipeline.files.delta import check_folder
from whimbrel.pipeline.files.schemas import SCHEMAS, TIMES
from whimbrel.pipeline.spark.paths import spark_path
from whimbrel.pipeline.spark.reading import read_table

__all__ = ["table"]

_OF_HADOOP = {"s3": "s3a", "gs": "gs", "az": "abfs", "abfs": "abfs", "abfss": "abfss"}
"""Scheme of a URL in Hadoop's spelling, by the scheme in that of ``deltalake``."""


def table(spark: SparkSession, uri: str | Path, name: str, *, version: int | None = None) -> DataFrame:
    """Return the table *name* as a DataFrame.

    *uri* is the folder with the pipeline's tables, or the directory of a log. URLs of object stores are not tried yet.
    *version* is the version of the Delta table to read; None reads the newest.
    """
    if name in TIMES:
        return read_table(spark, _log_directory(uri), name)
    if name not in TABLES_MADE:
        raise InvalidValueError("table", name, ", ".join((*TABLES_MADE, *TIMES)))
    where = _table_uri(uri, name)
    try:
        found = DeltaTable(where, version=version)
    except TableNotFoundError:
        raise InvalidValueError(f"table in {uri}", name, "a table that `whimbrel pipeline run` made there") from None
    paths = [_hadoop_path(each) for each in found.file_uris()]
    schema = _with_partitions(SCHEMAS[name], found)
    reader = spark.read.schema(schema).option("__globPaths__", "false").option("basePath", _hadoop_path(where))
    return reader.parquet(*paths) if paths else spark.createDataFrame([], schema)


def _with_partitions(schema: StructType, found: DeltaTable) -> StructType:
    """Return *schema* with the columns that only the names of folders have."""
    there = {*schema.names}
    added = [name for name in found.metadata().partition_columns if name not in there]
    return StructType([*schema, *(field for field in _spark_schema(found) if field.name in added)]) if added else schema


def _spark_schema(found: DeltaTable) -> StructType:
    return StructType.fromJson(found.schema().to_json())  # type: ignore[arg-type]


def _table_uri(uri: str | Path, name: str) -> str:
    """Return the path or URL of the folder of a table, for ``deltalake``."""
    text = str(uri)
    if urlsplit(text).scheme in _OF_HADOOP:
        return f"{text.rstrip('/')}/{name}"
    folder = _local(text)
    check_folder(folder, name)
    return str(folder / name)


def _log_directory(uri: str | Path) -> Path:
    folder = _local(str(uri))
    return (
        folder / "log" if not (folder / FORMAT_FILE).is_file() and (folder / "log" / FORMAT_FILE).is_file() else folder
    )


def _local(text: str) -> Path:
    found = urlsplit(text)
    if found.scheme not in {"", "file"} and len(found.scheme) > 1:
        allowed = f"a folder, or a URL that begins with {', '.join(f'{each}://' for each in _OF_HADOOP)}"
        raise InvalidValueError("place of the tables", text, allowed)
    return Path(text.removeprefix("file://").removeprefix("file:")).absolute()


def _hadoop_path(uri: str) -> str:
    """Convert a URL of ``deltalake`` to one of Hadoop, which has other schemes and no percent-encoding."""
    scheme = urlsplit(uri).scheme
    if scheme in _OF_HADOOP:
        return f"{_OF_HADOOP[scheme]}{unquote(uri.removeprefix(scheme))}"
    return spark_path(Path(unquote(uri.removeprefix("file://")) if scheme == "file" else uri))
