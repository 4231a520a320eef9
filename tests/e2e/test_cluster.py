"""The pipeline on a real cluster: a standalone master, a worker and two executors, each a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

pytestmark = pytest.mark.slow

SPARK_HOME = Path(pyspark.__file__).parent
SCRIPT = Path(__file__).parent / "cluster_job.py"


def _environment(folder: Path) -> dict[str, str]:
    settings = folder / "conf" / "spark-defaults.conf"
    if not settings.exists():  # executors too are there for less than a minute
        settings.parent.mkdir()
        java = os.environ.get("SPARK_DAEMON_JAVA_OPTS", "")  # a bench leaves it as it is
        options = f"spark.executor.extraJavaOptions {java}\n" if java else ""
        settings.write_text(f"{options}spark.executor.cores 1\n")
    environment = dict(os.environ, SPARK_HOME=str(SPARK_HOME), PYSPARK_PYTHON=sys.executable)
    return environment | {
        "SPARK_CONF_DIR": str(settings.parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOG_DIR": str(folder / "logs"),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }


def _start(folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    path = folder / f"{name}-{len(list(folder.glob('*.log')))}.log"
    with path.open("wb") as log:
        return subprocess.Popen(command, env=_environment(folder), stdout=log, stderr=log)


def _address(folder: Path) -> str:
    """Return where the master listens, once it says so."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in folder.glob("master.Master-*.log"):
            for line in path.read_text(errors="replace").splitlines():
                if "Starting Spark master at " in line:
                    return line.rpartition(" ")[2]
        time.sleep(0.2)
    raise TimeoutError("the master did not start")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a master with a worker that has room for two executors of one core each."""
    processes = [_start(tmp_path, "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")]
    try:
        address = _address(tmp_path)
        arguments = ("--cores", "2", "--memory", "2g", "--host", "127.0.0.1", "--webui-port", "0", address)
        processes.append(_start(tmp_path, "worker.Worker", *arguments))
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_matches_and_deliveries_on_a_cluster(cluster: str, tmp_path: Path) -> None:
    """Workers get our package and the matcher's file, and find what one process finds."""
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    done = subprocess.run(
        [sys.executable, str(SCRIPT), cluster, str(tmp_path / "tables")],
        cwd=outside,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["executors"] == 2
    assert result["matches"] == result["wanted_matches"] > 100
    assert result["deliveries"] == result["wanted_deliveries"] > 100
    assert result["differences"] == 0
