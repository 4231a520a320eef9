"""Make an archive of the classes that Spark loads, with which every Java of a test run starts a third faster.

``conftest.py`` starts this beside the first tests, which need no Java; a Java that starts before it is done, or of
another version, does without.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["OPTIONS", "main"]

OPTIONS = '-XX:SharedArchiveFile="{}" -Xlog:cds=off -Xlog:cds+dynamic=off'


def main(archive: Path) -> None:
    """Use what the pipeline uses of Spark, a little of each, and have Java write down what it loaded."""
    import pyarrow as pa
    from pyspark.sql import functions as F  # noqa: N812 # as everybody calls it

    from whimbrel.pipeline.spark.spark_session import local_session

    archive.parent.mkdir(parents=True, exist_ok=True)
    making = archive.with_name(f"{archive.name}-{os.getpid()}")
    quick = os.environ.get("SPARK_DAEMON_JAVA_OPTS", "")  # it lives for less than a minute, too
    archiving = f'-XX:ArchiveClassesAtExit="{making}" -Xlog:cds=off -Xlog:cds+dynamic=off'
    os.environ["SPARK_SUBMIT_OPTS"] = f"{quick} {archiving}"
    spark = local_session(master="local[1]", memory="1g", partitions=1, is_light=True)
    rows = spark.createDataFrame(pa.table({"a": [1, 2, 3], "b": ["x", "y", None]}))
    with tempfile.TemporaryDirectory() as folder:
        rows.write.parquet(f"{folder}/rows")
        read = spark.read.parquet(f"{folder}/rows").where(F.col("a") > 1)
        read.mapInArrow(_unchanged, rows.schema).groupBy("b").agg(F.max("a").alias("a")).join(rows, "b").toArrow()
    gateway = spark.sparkContext._gateway  # its Java writes the archive when it ends
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    making.rename(archive)


def _unchanged(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


if __name__ == "__main__":
    main(Path(sys.argv[1]))
