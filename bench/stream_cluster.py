"""A stream on a standalone cluster of one-core workers, one and three: core time a fact, and who did the tasks.

    python bench/stream_cluster.py [--nodes N] [--facts N] [--facts-per-batch N] [--workers 1,3]

Master and workers are processes of this machine. Where the system allows it (Linux, root), each worker has a mount of
its own over the driver's temporary folder and working directory, so that it finds of the driver's disk what a machine
of its own would: the log and the tables, and nothing else.
Rule: core time is what the system says of the workers and all below them, from the third batch on.
Rule: the tables must be those of one process, row by row; else the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # stream and cluster are those of the tests

__all__ = ["main"]

_TICKS = os.sysconf("SC_CLK_TCK")
_WARM = 2
_SESSIONS, _START_US = 50, 1_767_225_600_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--facts", type=int, default=20_000, help="of each node")
    parser.add_argument("--facts-per-batch", type=int, default=12_000)
    parser.add_argument("--workers", default="1,3", help="how many, one after the other (default: 1,3)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        folder = Path(name)
        _write_log(folder / "log", options.nodes, options.facts)
        wanted, status = _alone(folder), 0
        for count in map(int, options.workers.split(",")):
            place = folder / f"workers-{count}"
            place.mkdir()
            found = _measured(folder / "log", place, count, options.facts_per_batch)
            found["rows"], found["tables that differ"] = _compared(place / "out" / "tables", wanted)
            status |= bool(found["tables that differ"])
            print(json.dumps(found), flush=True)
    return status


def _alone(folder: Path) -> Path:
    """Let one process fold the same log; return where its tables are."""
    from tests.e2e.stream_kills import StreamRig

    from whimbrel.pipeline.files.snapshots import snapshot
    from whimbrel.pipeline.plans import StreamPlan

    rig = StreamRig(log=folder / "log", out=folder / "alone", plan=StreamPlan(assume_receipts=False))
    rig.take(snapshot(folder / "log").last)
    return folder / "alone"


def _compared(tables: Path, wanted: Path) -> tuple[int, list[str]]:
    """Return how many rows tables have, and which of them differ."""
    from tests.e2e.stream_kills import rows

    from whimbrel.pipeline import TABLES_MADE

    found = {table: (Counter(rows(tables, table)), Counter(rows(wanted, table))) for table in TABLES_MADE}
    return sum(ours.total() for ours, _ in found.values()), [name for name, (one, two) in found.items() if one != two]


def _write_log(log: Path, nodes: int, facts: int) -> None:
    """Write a log of nodes that publish and deliver: half of their facts are publications and half receipts."""
    from whimbrel.log.writer import LogWriter
    from whimbrel.model.facts import InterestChanged, Mode, Outcome, PresenceChange, PresenceChanged, Receipt
    from whimbrel.model.notification import Notification, NotificationId
    from whimbrel.model.subscription import InterestChange, Subscription

    for node in (f"node{number}" for number in range(nodes)):
        with LogWriter(log, node) as writer:
            seq = 0
            for number in range(_SESSIONS):
                session, seq = f"s{number}", seq + 2
                told: dict[str, Any] = {"node": node, "changed_at": _START_US}
                joined: dict[str, Any] = {"device": f"d{number}", "session": session, "change": PresenceChange.JOINED}
                writer.append(PresenceChanged(**told, seq=seq - 1, **joined, receipt=Mode.TAKE))
                wanted = Subscription(session=session, subject_filter=f"ward/{number}", name="")
                writer.append(InterestChanged(**told, seq=seq, change=InterestChange.ADDED, subscription=wanted))
            while seq < facts:
                number, at, seq = seq // 2 % _SESSIONS, _START_US + 1_000 * seq, seq + 2
                told = {"node": node, "seq": seq - 1, "published_at": at}
                writer.append(Notification(**told, subject=f"ward/{number}", body=b"21.5"))
                told = {"node": node, "seq": seq, "handed_at": at, "session": f"s{number}", "device": f"d{number}"}
                given = NotificationId(node, seq - 1)
                writer.append(Receipt(**told, notification=given, subscriptions=(), outcome=Outcome.DELIVERED))


def _measured(log: Path, folder: Path, count: int, facts_per_batch: int) -> dict[str, Any]:
    from tests.e2e.stream_kills import StreamProcess

    looks: list[tuple[int, list[float]]] = []
    with _cluster(folder, count) as (address, workers):
        driver = folder / "driver"
        os.environ["TMPDIR"], before = str(driver), os.environ.get("TMPDIR", "")
        home = Path.cwd()
        os.chdir(driver)
        try:
            process = StreamProcess(
                log,
                folder / "out" / "tables",
                *("--available-now", "--facts-per-batch", str(facts_per_batch), "--master", address, "--nice", "0"),
                on_told=lambda told: looks.append((told["facts"], [_core_s([each]) for each in workers])),
            )
        finally:
            os.chdir(home)
            os.environ["TMPDIR"] = before or tempfile.gettempdir()
        try:
            status = process.wait()
            assert status == 0, process.errors.read_text()[-2_000:]
        finally:
            process.kill()
    counted = looks[_WARM:-1]
    facts = sum(each for each, _ in counted)
    took = [1e6 * (after - before) / facts for before, after in zip(looks[_WARM - 1][1], counted[-1][1], strict=True)]
    return {
        "workers": count,
        "driver's temporary folder hidden from them": _can_hide(),
        "batches": len(looks),
        "facts": facts,
        "core_us_a_fact": round(sum(took), 1),
        "core_us_a_fact of the busiest": round(max(took), 1),
        "tasks": [_tasks(folder / f"work-{number}") for number in range(count)],
    }


@contextmanager
def _cluster(folder: Path, count: int) -> Iterator[tuple[str, list[int]]]:
    """Yield the address of a master with *count* workers of one core, and the numbers of the workers' processes."""
    from tests.e2e.test_cluster import SPARK_HOME, _address, _environment, _start

    (folder / "driver").mkdir()
    (folder / "out").mkdir()
    processes = [_start(folder, "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")]
    try:
        address = _address(folder)
        for number in range(count):
            own = folder / f"work-{number}"
            own.mkdir()
            command = [str(SPARK_HOME / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker"]
            command += ["--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--webui-port", "0"]
            command += ["--work-dir", str(own), address]
            if _can_hide():
                hidden = f'mount -t tmpfs tmpfs "{folder / "driver"}" && exec "$@"'
                command = ["unshare", "--mount", "sh", "-c", hidden, "worker", *command]
            environment = _environment(folder) | {"SPARK_LOCAL_DIRS": str(own / "local"), "TMPDIR": str(own)}
            with (folder / f"worker-{number}.log").open("wb") as told:
                worker = subprocess.Popen(command, env=environment, stdout=told, stderr=told, cwd=own)  # noqa: S603 # ours
                processes.append(worker)
        yield address, [process.pid for process in processes[1:]]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _can_hide() -> bool:
    command = ["unshare", "--mount", "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603 # ours
    except OSError:
        return False


def _core_s(workers: list[int]) -> float:
    from tests.e2e.stream_kills import _status, below

    return sum(sum(map(int, status[11:15])) for pid in below(workers) if len(status := _status(pid)) > 14) / _TICKS


def _tasks(work: Path) -> int:
    """Return how many tasks executors say that they have finished."""
    return sum(path.read_text(errors="replace").count("Finished task") for path in work.glob("app-*/*/stderr"))


if __name__ == "__main__":
    sys.exit(main())
