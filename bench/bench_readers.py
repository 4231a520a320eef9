"""Readers of tables that a stream is writing, DuckDB, Arrow and Spark: every read must be of one version, whole.

The stream is the real one, over a log whose publications are delivered at once, so that after each batch every table
has a total that is known: rows, publications or deliveries up to the batch's end. A read whose total is none of these,
or whose rows are not distinct, is wrong.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from measure import Check, Figure, Report

__all__ = ["run"]

_NODE, _START_US, _SESSIONS, _SUBJECTS = "n", 1_767_225_600_000_000, 5, 20
_QUERIES = {
    "matches": ("count(*)", "notification_seq, session, interest_seq"),
    "deliveries": ("count(*)", "notification_seq, session, device"),
    "popularity": ("coalesce(sum(publications), 0)", "window_start, subject"),
    "latency": ("coalesce(sum(delivered), 0)", "window_start, subject"),
    "replicas": ("count(*)", "subject"),
    "link_quality": ("count(*)", "node, seq"),
    "dead_letters": ("count(*)", "source, position"),
}
"""By table, the total and what identifies a row."""
_READS = {"DuckDB": 1_000, "Arrow": 1_000, "Spark": 210}
"""By engine, how often tables are read; Spark takes a job for each."""


def run(*, quick: bool) -> Report:
    """Measure; *quick* only proves that it runs and that the results are right."""
    report = Report("readers", packages=("whimbrel", "deltalake", "duckdb", "pyarrow"))
    reads, least_batches = ({"DuckDB": 20, "Arrow": 20}, 4) if quick else (_READS, 100)
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        folder = Path(name)
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(len(reads), mp_context=spawn) as pool:
            first, totals, took_s = _write(folder, 0, 1, {})
            reading = {engine: pool.submit(read, folder / "out", engine, count) for engine, count in reads.items()}
            batch = 1
            while batch < least_batches or not all(each.done() for each in reading.values()):
                first, totals, took_s = _write(folder, first, batch + 1, totals)
                batch += 1
            found = {engine: each.result() for engine, each in reading.items()}
    for engine, (seen, seconds) in found.items():
        wrong = sum(count for (table, total, doubles), count in seen.items() if doubles or total not in totals[table])
        versions = len({(table, total) for table, total, _ in seen})
        report.figures.append(Figure(f"{engine}: reads of seven tables", sum(seen.values()), "reads"))
        report.figures.append(Figure(f"{engine}: a read", seconds / max(1, sum(seen.values())) * 1e3, "ms"))
        report.checks.append(
            Check(f"{engine}: {wrong} of {sum(seen.values()):,} reads are wrong; none failed", not wrong)
        )
        # A quick run reads twenty times, perhaps all of them between two batches of a busy machine.
        saw_change = versions > 7 or quick
        report.checks.append(Check(f"{engine}: saw {versions} totals of seven tables change", saw_change))
    report.figures.append(Figure("batches meanwhile", batch, "batches"))
    report.figures.append(Figure("the last batch", took_s, "s"))
    report.notes.append(
        "A read asks for a total and for rows that are there twice; the stream compacts every 8 batches."
    )
    return report


_STREAM: dict[str, Any] = {}


def _write(folder: Path, seq: int, batches: int, totals: dict[str, set[int]]) -> tuple[int, dict[str, set[int]], float]:
    """Let the log grow by a batch, and the stream take it; return the last number, and each table's allowed totals."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the rig is that of the tests
    from tests.e2e.stream_kills import StreamRig

    from whimbrel.log.writer import LogWriter
    from whimbrel.model.facts import InterestChanged, Mode, PresenceChange, PresenceChanged
    from whimbrel.model.notification import Notification
    from whimbrel.model.subscription import InterestChange, Subscription
    from whimbrel.pipeline.plans import StreamPlan

    with LogWriter(folder / "log", _NODE) as writer:
        if not seq:
            for number in range(_SESSIONS):
                joined = PresenceChanged(
                    node=_NODE,
                    seq=seq + 1,
                    changed_at=_START_US,
                    device=f"d{number}",
                    session=f"s{number}",
                    change=PresenceChange.JOINED,
                    receipt=Mode.TAKE,
                )
                wanted = Subscription(session=f"s{number}", subject_filter="ward/#", name="")
                added = InterestChanged(
                    node=_NODE, seq=seq + 2, changed_at=_START_US, change=InterestChange.ADDED, subscription=wanted
                )
                writer.append(joined)
                writer.append(added)
                seq += 2
        for number in range(50):
            seq += 1
            at = _START_US + seq * 10_000_000
            writer.append(
                Notification(node=_NODE, seq=seq, published_at=at, subject=f"ward/{number % _SUBJECTS}", body=b"x")
            )
        writer.sync()
    if not _STREAM:
        plan = StreamPlan(assume_receipts=True, lateness_us=0)
        _STREAM["stream"] = StreamRig(log=folder / "log", out=folder / "out", plan=plan)  # it needs no Spark
    stream = _STREAM["stream"]
    begun = time.perf_counter()
    stream.take({_NODE: seq})
    published = 50 * batches
    each = {"matches": published * _SESSIONS, "deliveries": published * _SESSIONS, "popularity": published}
    each |= {"latency": published * _SESSIONS, "replicas": _SUBJECTS, "link_quality": 0, "dead_letters": 0}
    found = {table: totals.get(table, {0}) | {total} for table, total in each.items()}
    return seq, found, time.perf_counter() - begun


def read(out: Path, engine: str, reads: int) -> tuple[Counter[tuple[str, int, int]], float]:
    """Read tables in turn; return how often each total, and number of rows there twice, was seen, and the core time."""
    import duckdb

    from whimbrel.pipeline.files.delta import read as read_table

    connection = duckdb.connect()
    if engine == "DuckDB":
        import duckdb_extension_delta  # type: ignore[import-untyped]  # it ships none

        version = f"v{duckdb.__version__}"
        folder = Path(duckdb_extension_delta.__file__).parent / "extensions" / version
        connection.execute("SET autoinstall_known_extensions = false")
        connection.execute(f"LOAD '{folder / 'delta.duckdb_extension'}'")
    rows_of: Callable[[Path, str], Any] = read_table
    if engine == "Spark":
        from whimbrel.pipeline.spark.source import register
        from whimbrel.pipeline.spark.spark_session import local_session

        spark = local_session(master="local[1]")
        register(spark)

        def rows_of(out: Path, table: str) -> Any:
            return spark.read.format("whimbrel").option("table", table).load(str(out)).toArrow()

    seen: Counter[tuple[str, int, int]] = Counter()
    begun = time.process_time()
    for number in range(reads):
        table = list(_QUERIES)[number % len(_QUERIES)]
        if engine == "DuckDB":
            source = f"delta_scan('{out / table}')"
        else:
            connection.register("found", rows_of(out, table))
            source = "found"
        (row,) = connection.execute(_query(source, *_QUERIES[table])).fetchall()
        seen[table, int(row[0]), int(row[1])] += 1
    return seen, time.process_time() - begun


def _query(source: str, total: str, key: str) -> str:
    """Return what asks for a total, and how many rows are there twice, in one scan: of one version."""
    twice = f"SELECT {key} FROM t GROUP BY {key} HAVING count(*) > 1"  # noqa: S608 # our own words
    scan = f"WITH t AS MATERIALIZED (SELECT * FROM {source})"  # noqa: S608 # so
    return f"{scan} SELECT {total}, (SELECT count(*) FROM ({twice})) FROM t"  # noqa: S608 # so
