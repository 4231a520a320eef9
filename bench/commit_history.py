"""What the history of a table costs a stream: thousands of batches, and a table with hundreds of thousands of commits.

A real stream without Spark makes the batches, one after the other; each adds some publications, so that the tables of a
busy stream change in every batch. Printed are the core seconds of the driver's commits per batch, of the first and of
the last batches, the number of files in the logs, and what DuckDB takes to open a table.

    python bench/commit_history.py [FOLDER] [--batches N]
    python bench/commit_history.py [FOLDER] --written N    # of one table, N commits are written as files first
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_NODE, _START_US, _SESSIONS, _SUBJECTS, _FACTS = "n", 1_767_225_600_000_000, 5, 20, 20
_SECOND_US = 1_000_000


def main() -> None:
    """Measure, and print a line of JSON per stage."""
    parser = argparse.ArgumentParser(description="What the history of a table costs a stream.")
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--batches", type=int, default=5_000)
    parser.add_argument("--written", type=int, default=0)
    parser.add_argument(
        "--checkpoint", action="store_true", help="write a checkpoint beside the commits, as Delta does"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        folder = options.folder or Path(name)
        if options.written:
            _written(folder, options.written, has_checkpoint=options.checkpoint)
        else:
            _stream(folder, options.batches)


# -- a real stream -----------------------------------------------------------------------------------------------------


def _stream(folder: Path, batches: int) -> None:
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "tests" / "differential"), str(root / "tests" / "reference")]
    from tests.e2e.stream_kills import StreamRig

    from whimbrel.log.writer import LogWriter
    from whimbrel.pipeline.plans import StreamPlan

    rig = StreamRig(log=folder / "log", out=folder / "out", plan=StreamPlan(assume_receipts=True, lateness_us=0))
    rig.commits.tables.slow_s = 60.0  # as a stream that goes on for ever
    whole, commits, spent = [], [], [0.0]
    _count(rig.commits, "commit", spent)
    seq = 0
    for batch in range(batches):
        with LogWriter(folder / "log", _NODE) as writer:
            seq = _grow(writer, seq)
        spent[0], begun_s = 0.0, time.process_time()
        rig.take({_NODE: seq})
        whole.append(time.process_time() - begun_s)
        commits.append(spent[0])
        if batch + 1 in {200, batches}:
            print(json.dumps({"batches": batch + 1, **_told(folder / "out", whole, commits)}), flush=True)
    rig.commits.tables.commit_waiting(all_of_them=True)
    from whimbrel.pipeline.files.delta import read

    rows = {table: read(folder / "out", table).num_rows for table in ("matches", "deliveries")}
    published = batches * _FACTS
    print(
        json.dumps({"rows": rows, "expected": published * _SESSIONS, "duckdb_ms": _duckdb(folder / "out/deliveries")})
    )


def _told(out: Path, whole: list[float], commits: list[float]) -> dict[str, Any]:
    last = slice(-200, None)
    files = {path.parent.name: len(list(path.iterdir())) for path in out.glob("*/_delta_log")}
    return {
        "batch_core_ms": round(1e3 * statistics.mean(whole[last]), 1),
        "driver_core_ms": round(1e3 * statistics.mean(commits[last]), 1),
        "driver_core_ms_most": round(1e3 * max(commits[last]), 1),
        "log_files": files,
    }


def _count(owner: Any, name: str, spent: list[float]) -> None:
    """Add the core seconds of a method to *spent*."""
    real = getattr(owner, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        begun_s = time.process_time()
        try:
            return real(*arguments, **options)
        finally:
            spent[0] += time.process_time() - begun_s

    setattr(owner, name, counted)


def _grow(writer: Any, seq: int) -> int:
    from whimbrel.model.facts import InterestChanged, Mode, PresenceChange, PresenceChanged
    from whimbrel.model.notification import Notification
    from whimbrel.model.subscription import InterestChange, Subscription

    if not seq:
        for number in range(_SESSIONS):
            own: dict[str, Any] = {"node": _NODE, "changed_at": _START_US}
            wanted = Subscription(session=f"s{number}", subject_filter="ward/#", name="")
            writer.append(
                PresenceChanged(
                    **own,
                    seq=seq + 1,
                    device=f"d{number}",
                    session=f"s{number}",
                    change=PresenceChange.JOINED,
                    receipt=Mode.TAKE,
                )
            )
            writer.append(InterestChanged(**own, seq=seq + 2, change=InterestChange.ADDED, subscription=wanted))
            seq += 2
    for number in range(_FACTS):
        seq += 1
        at = _START_US + seq * _SECOND_US // 10
        subject = f"ward/{number % _SUBJECTS}"
        writer.append(Notification(node=_NODE, seq=seq, published_at=at, subject=subject, body=b"x"))
    writer.sync()
    return seq


# -- a table of many commits -------------------------------------------------------------------------------------------


def _written(folder: Path, commits: int, *, has_checkpoint: bool) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable

    from whimbrel.model.tables import TABLES
    from whimbrel.pipeline.files.delta import DeltaOutput

    given = {"notification_node": "n", "published_at": 1, "session": "s", "subject_filter": "a", "name": ""}

    def rows(batch: int) -> Any:
        made = [given | {"notification_seq": batch, "interest_seq": each} for each in range(3)]
        return pa.Table.from_pylist(made, schema=TABLES["matches"].schema)

    output, log = DeltaOutput(folder, "matches"), folder / "matches" / "_delta_log"
    output.add(0, rows(0))
    first = [json.loads(line) for line in (log / f"{1:020}.json").read_text(encoding="utf-8").splitlines()]
    added = next(line["add"] for line in first if "add" in line)
    source, before, now_s = folder / "matches" / added["path"], added["path"], time.time()
    for version in range(2, commits + 1):  # each replaces the only file, as a compaction does
        name, at_s = f"part-{version:08}.parquet", now_s - (commits - version) * 2.0
        gone = {"path": before, "deletionTimestamp": int(at_s * 1_000), "dataChange": False, "size": added["size"]}
        lines = [
            {"txn": {"appId": "whimbrel-stream", "version": version - 1}},
            {"remove": gone | {"extendedFileMetadata": True, "partitionValues": {}}},
            {"add": added | {"path": name, "dataChange": False}},
            {"commitInfo": {"timestamp": int(at_s * 1_000), "operation": "WRITE", "operationParameters": {}}},
        ]
        path = log / f"{version:020}.json"
        path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        os.utime(path, (at_s, at_s))
        before = name
    shutil.copy(source, folder / "matches" / before)
    if has_checkpoint:
        DeltaTable(str(folder / "matches")).create_checkpoint()
    begun_s = time.process_time()
    output = DeltaOutput(folder, "matches")
    batch = output.last_batch() + 1
    print(json.dumps({"commits": commits, "open_core_s": round(time.process_time() - begun_s, 2)}), flush=True)
    spent = []
    for number in range(batch, batch + 200):
        begun_s = time.process_time()
        output.add(number, rows(number))
        if number % 8 == 7:
            output.compact(target_bytes=1 << 20)
        spent.append(time.process_time() - begun_s)
    told = {"driver_core_ms": round(1e3 * statistics.mean(spent), 1), "most_ms": round(1e3 * max(spent), 1)}
    told |= {"log_files": len(list(log.iterdir())), "duckdb_ms": _duckdb(folder / "matches")}
    print(json.dumps(told))


def _duckdb(table: Path) -> float:
    """Return the core milliseconds in which DuckDB opens a table and counts its rows, the least of five."""
    import duckdb
    import duckdb_extension_delta  # type: ignore[import-untyped]  # it ships none

    connection = duckdb.connect()
    folder = Path(duckdb_extension_delta.__file__).parent / "extensions" / f"v{duckdb.__version__}"
    connection.execute("SET autoinstall_known_extensions = false")
    connection.execute(f"LOAD '{folder / 'delta.duckdb_extension'}'")
    best_s = float("inf")
    for _ in range(5):
        begun_s = time.process_time()
        connection.execute(f"SELECT count(*) FROM delta_scan('{table}')").fetchone()  # noqa: S608 # our own path
        best_s = min(best_s, time.process_time() - begun_s)
    return round(1e3 * best_s, 1)


if __name__ == "__main__":
    main()
