"""The pipeline through a real server of Spark Connect: batch jobs work, and make what one process makes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from random_logs import random_log
from single_process import SingleProcess
from tests.e2e.test_cluster import SPARK_HOME, _environment

from whimbrel.log.writer import LogWriter
from whimbrel.pipeline.files.delta import read

pytest.importorskip("grpc", reason="Spark Connect needs the extra connect")
pytestmark = pytest.mark.slow

PATIENCE_S = 120


def _free_port() -> int:
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        port: int = link.getsockname()[1]
        return port


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a server with two cores."""
    port = _free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g"]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=_environment(tmp_path), stdout=log, stderr=log)
    try:
        _await_port(process, port, tmp_path / "server.log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as link:
            if link.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    pytest.fail(f"no server of Spark Connect: {log.read_text(errors='replace')[-2_000:]}")


def _whimbrel(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "whimbrel", "pipeline", *arguments]
    return subprocess.run(
        command, env=_environment(folder), capture_output=True, text=True, timeout=PATIENCE_S * 2, check=False
    )


def test_batch_jobs_work_and_streams_are_refused(server: str, tmp_path: Path) -> None:
    """Our package and the matcher's file are sent; what a server cannot do is said, with the reason."""
    facts = random_log(Random(4), "n", facts=300, has_receipts=False)
    with LogWriter(tmp_path / "log", "n") as log:
        for fact in facts:
            log.append(fact)
    where = ("--log", str(tmp_path / "log"), "--out", str(tmp_path / "out"), "--master", server)
    done = _whimbrel(tmp_path, "run", *where, "--tables", "matches", "--json")
    assert done.returncode == 0, done.stderr[-4_000:]
    assert set(json.loads(done.stdout)["tables"]) == {"matches"}
    rows = read(tmp_path / "out", "matches").to_pylist()
    found = [(row["notification_seq"], row["session"], row["interest_seq"]) for row in rows]
    wanted = [(match.seq, match.session, match.interest_seq) for match in SingleProcess().run(facts).matches]
    assert sorted(found) == sorted(wanted)
    assert len(found) > 100

    refused = _whimbrel(tmp_path, "run", *where, "--continuous")
    assert refused.returncode != 0
    assert "does not work through Spark Connect" in refused.stderr
