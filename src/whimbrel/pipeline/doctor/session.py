"""Checks of Spark: whether it starts, its workers run our versions, and Arrow data comes back from them unchanged.

Rule: a Spark session that is already active is used as it is, and left running.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

import whimbrel
from whimbrel.errors import WhimbrelError
from whimbrel.pipeline.doctor.check import Check, failure, ok

__all__ = ["check_workers", "examine_spark"]

_TASKS_PER_CORE = 2


def check_workers(here: tuple[str, ...], found: set[tuple[str, ...]]) -> Check:
    """Compare the workers' versions of Whimbrel, Python (major and minor) and pyarrow with those of this process."""
    wanted = _versions_text(here)
    if found == {here}:
        return ok("workers", wanted, wanted)
    remedy = "install the same on every machine, and let PYSPARK_PYTHON name that Python"
    return failure("workers", "; ".join(map(_versions_text, sorted(found))) or "none answered", wanted, remedy)


def examine_spark(master: str | None) -> list[Check]:
    """Start Spark on *master*, and run two small jobs in its workers."""
    begun = time.monotonic()
    try:
        from pyspark.sql import SparkSession  # if pyspark is missing, a check fails

        from whimbrel.pipeline.spark.spark_session import clear_errors, local_session
    except (ImportError, WhimbrelError) as error:
        return [failure("Spark", str(error), "a session", "run: pip install 'whimbrel[spark]'")]
    is_ours = SparkSession.getActiveSession() is None
    remedy = "see the checks above; --master names where Spark runs, this machine by default"
    try:
        with clear_errors():
            spark = local_session(master=master)
    except WhimbrelError as error:
        return [failure("Spark", str(error), "a session", remedy)]
    checks = [ok("Spark", f"{spark.version}, started in {time.monotonic() - begun:.1f} s", "a session")]
    try:
        for look in (_workers, _arrow):
            try:
                with clear_errors():
                    checks.append(look(spark))
            except WhimbrelError as error:
                wanted = "an answer of the workers"
                remedy = "install whimbrel[spark] on every machine, and let PYSPARK_PYTHON name that Python"
                checks.append(failure(look.__name__.strip("_"), str(error), wanted, remedy))
    finally:
        if is_ours:
            spark.stop()
    return checks


def _workers(spark: Any) -> Check:
    from whimbrel.pipeline.spark.spark_session import parallelism

    def versions(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            told = {"whimbrel": whimbrel.__version__, "python": _python(), "pyarrow": pa.__version__}
            yield pa.RecordBatch.from_pylist([told])

    tasks = _TASKS_PER_CORE * parallelism(spark)
    frame = spark.range(0, tasks, 1, tasks).mapInArrow(versions, "whimbrel string, python string, pyarrow string")
    found = {tuple(row) for row in frame.distinct().collect()}
    return check_workers((whimbrel.__version__, _python(), pa.__version__), found)


def _python() -> str:
    return ".".join(platform.python_version_tuple()[:2])


def _arrow(spark: Any) -> Check:
    """Send values of the types in our tables to the workers and back, and compare them."""
    kinds = {
        "number": pa.array([1, None], pa.int64()),
        "text": pa.array(["ü", None], pa.string()),
        "bytes": pa.array([b"\x00\xff", None], pa.binary()),
        "at": pa.array([1_700_000_000_000_001, None], pa.timestamp("us", "UTC")),
        "map": pa.array([[("a", 1.5)], None], pa.map_(pa.string(), pa.float64())),
    }
    sent = pa.table(kinds)
    frame = spark.createDataFrame(sent)

    def same(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    back = frame.mapInArrow(same, frame.schema).toArrow()
    wanted = "what was sent comes back"
    if sorted(map(str, back.to_pylist())) == sorted(map(str, sent.to_pylist())):
        return ok("arrow", f"{len(kinds)} types there and back", wanted)
    remedy = "install the versions of pyspark, pandas and pyarrow that whimbrel[spark] names"
    return failure("arrow", f"{back.to_pylist()} for {sent.to_pylist()}", wanted, remedy)


def _versions_text(versions: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(("whimbrel", "Python", "pyarrow"), versions, strict=True))
