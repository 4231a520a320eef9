"""Spark sessions, as far as they can be judged without starting one."""

from __future__ import annotations

import socket

import pytest
from pyspark.errors import PySparkException

from whimbrel.errors import MissingDependencyError
from whimbrel.pipeline.spark import spark_session
from whimbrel.pipeline.spark.spark_session import (
    SparkJobError,
    clear_errors,
    is_connect,
    is_local,
    parallelism,
)

_PARTITIONS = "spark.sql.shuffle.partitions"
FAILURE = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "replicas.py", line 1, in planned
whimbrel.errors.InvalidValueError: subjects: found 9, allowed is at most 8

\tat org.apache.spark.api.python.BasePythonRunner.run(PythonRunner.scala:1)
"""


def test_what_a_worker_raised_is_the_sentence_that_is_told() -> None:
    """Pages of two languages' stacks help nobody who mistyped a number."""
    with pytest.raises(SparkJobError) as caught, clear_errors():
        raise PySparkException(message=FAILURE)
    assert str(caught.value) == "Spark could not finish: subjects: found 9, allowed is at most 8"


def test_a_failure_of_spark_itself_is_told_by_its_first_line() -> None:
    """The rest is for those who read Java."""
    with pytest.raises(SparkJobError, match=r"^Spark could not finish: No space left$"), clear_errors():
        raise PySparkException(message="No space left\n\tat java.io.File")


@pytest.mark.parametrize(
    ("master", "is_here"),
    [("local", True), ("local[*]", True), ("local-cluster[2,1,1]", False), ("spark://h:7077", False)],
)
def test_only_this_process_is_local(master: str, *, is_here: bool) -> None:
    """Whoever is not must be sent our package."""
    assert is_local(master) is is_here


BATCH_FAILURE = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in a function. Reason: Traceback (most
  File "stream.py", line 1, in take
{raised}

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
py4j.Py4JException: An exception was raised by the Python Proxy.
java.lang.RuntimeException: no
"""


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ("whimbrel.pipeline.stream.stream.LostStateError: state of a: found 3", "state of a: found 3"),
        ("OSError: [Errno 28] No space left on device", "OSError: [Errno 28] No space left on device"),
        ("sqlite3.OperationalError: disk I/O error", "sqlite3.OperationalError: disk I/O error"),
    ],
)
def test_what_a_batch_of_a_stream_raised_is_the_sentence_that_is_told(raised: str, told: str) -> None:
    """Our own first; else Python's last line, for what Java says about it helps nobody."""
    with pytest.raises(SparkJobError) as caught, clear_errors():
        raise PySparkException(message=BATCH_FAILURE.format(raised=raised))
    assert caught.value.reason == told


def test_a_server_that_does_not_answer_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark itself would try for many minutes."""
    monkeypatch.setattr(spark_session, "find_spec", lambda _: object())
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(SparkJobError, match=f"sc://127.0.0.1:{port}: no server answers"):
            spark_session._connect(f"sc://127.0.0.1:{port}", partitions=None)


def test_what_spark_connect_needs_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it pyspark ends the process, and with success."""
    monkeypatch.setattr(spark_session, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"whimbrel\[connect\]"):
        spark_session._connect("sc://127.0.0.1", partitions=None)


def test_a_session_of_a_server_is_known_by_its_kind() -> None:
    """It has no sparkContext to ask, and asking raises."""
    line = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "conf": {_PARTITIONS: "7"}})()
    assert (is_connect(line), parallelism(line)) == (True, 7)
    assert not is_connect(type("SparkSession", (), {"__module__": "pyspark.sql.session"})())
