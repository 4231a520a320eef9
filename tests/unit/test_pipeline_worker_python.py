"""The Python that Spark's workers run on this machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from whimbrel.pipeline.spark.worker_python import workers_without_zip

ASK = "import os, sys; print(sys.argv[1], os.environ['PYTHONPATH'])"


def test_workers_import_pyspark_from_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Spark's ZIP, Python compiles all of it again in each process: a core second each time."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    with workers_without_zip():
        python = os.environ["PYSPARK_PYTHON"]
        path = "/spark/python/lib/pyspark.zip:/spark/python/lib/py4j-src.zip:/mine"
        found = subprocess.run(
            [python, "-c", ASK, "a b"],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
    assert found.stdout == "a b /spark/python/lib/py4j-src.zip:/mine\n"
    assert "PYSPARK_PYTHON" not in os.environ


def test_the_users_own_python_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who names another Python for the workers gets that one."""
    monkeypatch.setenv("PYSPARK_PYTHON", f"{sys.executable}-other")
    with workers_without_zip():
        assert os.environ["PYSPARK_PYTHON"] == f"{sys.executable}-other"
