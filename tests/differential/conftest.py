"""The one Spark session of a test run, small and quiet."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow whatever needs Spark: its start alone takes seconds, and `make check` asks for no Java."""
    for item in items:
        if isinstance(item, pytest.Function) and "spark" in item.fixturenames:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield a session on two threads that leaves nothing behind."""
    scratch = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else workers run the first python3 of the PATH
    builder = SparkSession.builder.appName("whimbrel tests").master("local[2]")
    settings = {
        # A run of a minute: Java's second compiler would cost more than it saves.
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dderby.system.home={scratch}",
        # No network beyond this machine, no page, no progress bar, no chatter.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Everything Spark writes.
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        # Rows are few: one partition, one task.
        "spark.sql.leafNodeDefaultParallelism": "1",
        "spark.sql.shuffle.partitions": "1",
        # The same day everywhere.
        "spark.sql.session.timeZone": "UTC",
        # Recording where in Python each column was made takes longer than making it.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Rows of a literal table would be computed while planning, without the code that real tables run through.
        "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Let Spark interpret its plans: where batches have some hundred rows, to compile them takes longer than the rest.

    For tests of what we do between two jobs; what Spark makes of our expressions, others test as it compiles them.
    """
    settings = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield
    for key in settings:
        spark.conf.unset(key)
