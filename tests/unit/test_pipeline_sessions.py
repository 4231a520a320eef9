"""Spark sessions, as far as they can be judged without starting one."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from whimbrel.pipeline.sessions import SparkJobError, clear_errors, is_local

FAILURE = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "replicas.py", line 1, in planned
whimbrel.pipeline.replicas.TooManySubjectsError: subjects: found 9, allowed is at most 8

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
