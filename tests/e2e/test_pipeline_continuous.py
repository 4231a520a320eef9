"""``whimbrel pipeline run --continuous`` from end to end: tables that follow a log, told of, measured and stopped."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import IO, Any
from urllib.request import urlopen

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from whimbrel.cli.main import app
from whimbrel.pipeline.outputs import read

pytestmark = pytest.mark.slow

PATIENCE_S = 120  # a machine that does much else at the same time
HEAD = [
    {"table": "interests", "changed_at": 1, "change": "added", "session": "s", "filter_text": "v >= 0"},
    {"table": "presence", "changed_at": 2, "change": "joined", "session": "s", "device": "d", "receipt": "take"},
]


class Process:
    """The command, and the lines that it prints as they come."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "whimbrel", "pipeline", "run", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.out, self.err = self._lines(self.process.stdout), self._lines(self.process.stderr)

    @staticmethod
    def _lines(stream: IO[str] | None) -> queue.Queue[str]:
        assert stream is not None
        lines: queue.Queue[str] = queue.Queue()

        def read_all() -> None:
            for line in stream:
                lines.put(line)
            lines.put("")

        Thread(target=read_all, daemon=True).start()
        return lines

    def until(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first batch that is told of for which *is_so* holds."""
        while True:
            told: dict[str, Any] = json.loads(self.out.get(timeout=PATIENCE_S))
            if is_so(told):
                return told

    def end(self) -> str:
        """Wait for its end, and return the last line of its standard error."""
        assert self.process.wait(PATIENCE_S) == 0
        last = ""
        while line := self.err.get(timeout=PATIENCE_S):
            last = line
        return last


@pytest.fixture
def started() -> Iterator[Callable[..., Process]]:
    """Yield what starts the command; whatever still runs at the end is killed."""
    running: list[Process] = []

    def start(*arguments: str) -> Process:
        running.append(Process(*arguments))
        return running[-1]

    yield start
    for each in running:
        each.process.kill()
        each.process.wait()
        for stream in (each.process.stdout, each.process.stderr):
            assert stream is not None
            stream.close()


def _append(log: Path, lines: list[dict[str, Any]]) -> None:
    path = log.with_suffix(".jsonl")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = CliRunner().invoke(app, ["log", "import", str(log), str(path), "--node", "n"])
    assert done.exit_code == 0, done.output


def _published(first: int, count: int) -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [{"table": "publications", "published_at": n, "subject": "t", "attributes": {"v": n}} for n in numbers]


def _scraped(address: str) -> str:
    with urlopen(address, timeout=PATIENCE_S) as answer:  # noqa: S310 # our own
        text: str = answer.read().decode()
        return text


def test_tables_follow_a_log_until_they_are_told_to_stop(started: Callable[..., Process], tmp_path: Path) -> None:
    """Who operates it sees what it does, and may stop it at any moment without losing or repeating a row."""
    log, out = tmp_path / "log", tmp_path / "out"
    _append(log, HEAD + _published(3, 20))
    options = ("--every", "1s", "--assume-receipts", "--metrics-port", "0", "--nice", "1", "--json")
    run = started("--log", str(log), "--out", str(out), "--continuous", *options, "--master", "local[2]")
    first = run.until(lambda told: told["applied"]["n"] == 22)
    assert (first["rows"]["matches"], first["lag"], first["lag_s"]) == (20, {"n": 0}, 0.0)
    assert os.getpriority(os.PRIO_PROCESS, run.process.pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + 1, 19)

    _append(log, _published(23, 30))
    second = run.until(lambda told: told["applied"]["n"] == 52)
    assert second["batch"] > first["batch"]
    assert second["rows_per_s"] > 0
    assert second["state"] > 0 < second["state_bytes"]

    address = re.search(r"http://\S+", run.err.get(timeout=PATIENCE_S))
    assert address is not None
    batches = f"whimbrel_pipeline_batch_seconds_count {second['batch'] - first['batch'] + 1}.0"
    deadline = time.monotonic() + PATIENCE_S
    while batches not in (metrics := _scraped(address[0])):  # a batch is told a moment before it is counted
        assert time.monotonic() < deadline, metrics
        time.sleep(0.1)
    assert f"whimbrel_pipeline_batch {second['batch']}.0" in metrics
    assert 'whimbrel_pipeline_rows_total{table="matches"} 50.0' in metrics
    assert 'whimbrel_pipeline_lag_facts{node="n"} 0.0' in metrics

    run.process.send_signal(signal.SIGTERM)
    run.end()
    assert [row["notification_seq"] for row in read(out, "matches").sort_by("notification_seq").to_pylist()] == list(
        range(3, 53)
    )
    assert {row["outcome"] for row in read(out, "deliveries").to_pylist()} == {"delivered"}
    assert read(out, "deliveries").num_rows == 50
    _check_health(log, out, behind=0)


def test_one_pass_goes_on_where_the_last_one_ended(spark: SparkSession, tmp_path: Path) -> None:
    """Whoever has no process to spare lets cron run it, and state that was lost is said, by both who look."""
    del spark  # it is the session that the commands find
    log, out = tmp_path / "log", tmp_path / "out"
    command = ["pipeline", "run", "--log", str(log), "--out", str(out), "--available-now", "--assume-receipts"]
    _append(log, HEAD + _published(3, 20))
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, done.stdout.partition(" became")[0]) == (0, "stopped: 22 facts"), done.output
    _append(log, _published(23, 7))
    _check_health(log, out, behind=7)
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, done.stdout.partition(" became")[0]) == (0, "stopped: 7 facts"), done.output
    assert read(out, "matches").num_rows == 27

    for path in (out / "_stream" / "state").glob("n.sqlite*"):
        path.unlink()
    _append(log, _published(30, 1))
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: Spark could not finish: state of node n: found number -1, needed is number ")
    done = CliRunner().invoke(app, ["pipeline", "doctor", "--out", str(out), "--no-spark"])
    assert done.exit_code == 1
    assert "FAILED  state of n: " in done.stdout


def _check_health(log: Path, out: Path, *, behind: int) -> None:
    done = CliRunner().invoke(app, ["pipeline", "doctor", "--log", str(log), "--out", str(out), "--no-spark", "--json"])
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    wrong = [check for check in checks.values() if check["verdict"] != "ok"]
    assert [check for check in wrong if not check["name"].startswith("disk")] == []  # how full it is is not ours
    assert checks["lag of n"]["found"] == f"{behind} numbers behind the log"
