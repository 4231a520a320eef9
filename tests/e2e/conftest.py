"""Spark for what is tried from end to end: the session that the pipeline itself makes, unless a test run has one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from whimbrel.pipeline.spark.spark_session import local_session


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow whatever needs Spark, as the differential tests do."""
    for item in items:
        if isinstance(item, pytest.Function) and "spark" in item.fixturenames:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Yield our own session on two threads, or the one that the differential tests have left running."""
    is_ours = SparkSession.getActiveSession() is None
    session = local_session(master="local[2]", memory="1g", partitions=2, is_light=True)
    yield session
    if is_ours:
        session.stop()


@pytest.fixture(scope="module")
def on_hdfs(spark: SparkSession) -> Iterator[None]:
    """Let paths without a scheme be those of a cluster's file system, one that does not answer: ours have theirs."""
    spark.conf.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    yield
    spark.conf.unset("fs.defaultFS")
