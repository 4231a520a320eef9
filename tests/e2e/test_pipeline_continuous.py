"""``whimbrel pipeline run --continuous`` from end to end: tables that follow a log, told of, measured and stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from whimbrel.cli.main import app
from whimbrel.log.files import locked
from whimbrel.pipeline.files.delta import read

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_hdfs")]

PATIENCE_S = 120  # a machine that does much else at the same time
HEAD = [
    {"table": "interests", "changed_at": 1, "change": "added", "session": "s", "filter_text": "v >= 0"},
    {"table": "presence", "changed_at": 2, "change": "joined", "session": "s", "device": "d", "receipt": "take"},
]


class Operator(Thread):
    """Somebody who watches the command from outside: its metrics, its log, and SIGTERM in the end, whatever happens."""

    def __init__(self, port: int, work: Callable[[Operator], None]) -> None:
        super().__init__(daemon=True)
        self._address, self._work = f"http://127.0.0.1:{port}/metrics", work
        self.is_over = Event()
        """Set when the command has ended: who listens to signals then is pytest."""
        self.error: BaseException | None = None

    def run(self) -> None:
        """Do the work, then have the command stopped."""
        try:
            self._work(self)
        except BaseException as error:  # noqa: BLE001 # told where the test can fail
            self.error = error
        if not self.is_over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    def scraped(self, wanted: str) -> str:
        """Return the metrics, once *wanted* is among them."""
        deadline, found = time.monotonic() + PATIENCE_S, ""
        while wanted not in found:
            assert time.monotonic() < deadline, found
            assert not self.is_over.is_set(), found
            time.sleep(0.1)
            with suppress(OSError), urlopen(self._address, timeout=PATIENCE_S) as answer:  # noqa: S310 # our own
                found = answer.read().decode()
        return found


def _free_port() -> int:
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        port: int = link.getsockname()[1]
        return port


def _append(log: Path, lines: list[dict[str, Any]]) -> None:
    path = log.with_suffix(".jsonl")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = CliRunner().invoke(app, ["log", "import", str(log), str(path), "--node", "n"])
    assert done.exit_code == 0, done.output


def _published(first: int, count: int) -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [{"table": "publications", "published_at": n, "subject": "t", "attributes": {"v": n}} for n in numbers]


def test_tables_follow_a_log_until_they_are_told_to_stop(spark: SparkSession, tmp_path: Path) -> None:
    """Who operates it sees what it does, and may stop it at any moment without losing or repeating a row.

    The session is the one that the command finds; in a process of its own it runs in ``test_pipeline_kill``.
    """
    del spark
    log, out, port = tmp_path / "log", tmp_path / "out", _free_port()
    _append(log, HEAD + _published(3, 20))
    seen: list[str] = []

    def work(operator: Operator) -> None:
        operator.scraped('whimbrel_pipeline_rows_total{table="matches"} 20.0')
        _append(log, _published(23, 30))
        metrics = operator.scraped('whimbrel_pipeline_rows_total{table="matches"} 50.0')
        last = re.search(r"^whimbrel_pipeline_batch (\d+)", metrics, re.MULTILINE)
        assert last is not None
        # Its rows are counted a moment before the batch is.
        seen.append(operator.scraped(f"whimbrel_pipeline_batch_seconds_count {int(last[1]) + 1}.0"))

    operator = Operator(port, work)
    operator.start()
    options = ("--continuous", "--every", "1s", "--metrics-port", str(port), "--json")
    done = CliRunner().invoke(app, ["pipeline", "run", "--log", str(log), "--out", str(out), *options])
    operator.is_over.set()
    operator.join()
    if operator.error is not None:
        raise operator.error
    assert done.exit_code == 0, done.output
    assert f"metrics: http://127.0.0.1:{port}/metrics" in done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    first, second = (next(each for each in told if each["applied"]["n"] == last) for last in (22, 52))
    assert (first["rows"]["matches"], first["lag"], first["lag_s"]) == (20, {"n": 0}, 0.0)
    assert second["batch"] > first["batch"]
    assert second["rows_per_s"] > 0
    assert second["state"] > 0 < second["state_bytes"]
    assert f"whimbrel_pipeline_batch_seconds_count {told.index(second) + 1}.0" in seen[0]
    assert f"whimbrel_pipeline_batch {second['batch']}.0" in seen[0]
    assert 'whimbrel_pipeline_rows_total{table="matches"} 50.0' in seen[0]
    assert 'whimbrel_pipeline_lag_facts{node="n"} 0.0' in seen[0]

    assert [row["notification_seq"] for row in read(out, "matches").sort_by("notification_seq").to_pylist()] == list(
        range(3, 53)
    )
    assert {row["outcome"] for row in read(out, "deliveries").to_pylist()} == {"delivered"}
    assert read(out, "deliveries").num_rows == 50
    _check_health(log, out, behind=0)


def test_one_pass_goes_on_where_the_last_one_ended(spark: SparkSession, tmp_path: Path) -> None:
    """Whoever has no process to spare lets cron run it; state that was lost is said by the doctor."""
    del spark  # it is the session that the commands find
    log, out = tmp_path / "log", tmp_path / "5 % of [x]"
    command = ["pipeline", "run", "--log", str(log), "--out", str(out), "--available-now"]
    _append(log, HEAD + _published(3, 20))
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, done.stdout.partition(" became")[0]) == (0, "stopped: 22 facts"), done.output
    _append(log, _published(23, 7))
    with locked(out / "_stream", "keeping these tables"):  # as another stream of the same tables does
        done = CliRunner().invoke(app, command)
    assert done.exit_code != 0
    assert "keeping these tables" in str(done.exception or done.output)
    _check_health(log, out, behind=7)
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, done.stdout.partition(" became")[0]) == (0, "stopped: 7 facts"), done.output
    assert read(out, "matches").num_rows == 27
    assert read(out, "deliveries").num_rows == 27  # it was imported without receipts: handed over is received

    shutil.rmtree(out / "_stream" / "checkpoint")
    done = CliRunner().invoke(app, ["pipeline", "doctor", "--out", str(out), "--no-spark"])
    assert done.exit_code == 1
    assert "FAILED  checkpoint: batch" in done.stdout
    assert ": no object " in done.stdout


def _check_health(log: Path, out: Path, *, behind: int) -> None:
    done = CliRunner().invoke(app, ["pipeline", "doctor", "--log", str(log), "--out", str(out), "--no-spark", "--json"])
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    wrong = [check for check in checks.values() if check["verdict"] != "ok"]
    if behind:
        assert checks["stream"]["found"].startswith("not running")
        wrong.remove(checks["stream"])
    assert [check for check in wrong if not check["name"].startswith("disk")] == []  # how full it is is not ours
    assert checks["lag of n"]["found"] == (
        f"{behind} log record{'' if behind == 1 else 's'} behind" if behind else "up to date"
    )
