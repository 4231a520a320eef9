"""Core time of ``popularity`` and ``latency`` in a batch run of all tables, beside hand-written SQL in DuckDB.

    python bench/window_cost.py LOG TABLES [--runs N]

LOG is a log in Parquet without segments, TABLES the folder with the tables that ``pipeline run`` made of it. Within a
run, publications are read and matched and deliveries are folded for other tables anyway. So our cost is that of the
sums, which the tasks make of rows that they have, and of the last stage, which makes tables of the sums. It includes
the files. DuckDB reads the Parquet files that a user has: the log's for ``popularity``, ``deliveries`` for ``latency``.
The rows of both must be equal; percentiles, which we round up to a bucket, may be 2 % greater.
Rule: core time is what the system counts of this process; the least of the runs counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from whimbrel.log import layout
from whimbrel.pipeline.batch.event_files import SUMS, EventWriter
from whimbrel.pipeline.batch.job import BatchJob, NodeSpan
from whimbrel.pipeline.batch.node_subscriptions import NodeSubscriptions, pack_node
from whimbrel.pipeline.batch.window_tables import make_windows
from whimbrel.pipeline.files.delta import data_files
from whimbrel.pipeline.files.snapshots import snapshot
from whimbrel.pipeline.plans import Plan
from whimbrel.pipeline.tables.latency import sum_tallies, tally_deliveries
from whimbrel.pipeline.tables.popularity import counts_of, sum_counts

__all__ = ["main"]

_HOUR_US = 3_600_000_000
_PIECE = 20_000
_DELIVERY = ["subject", "published_at", "deadline_at", "outcome", "decided_at", "via"]

POPULARITY = """
COPY (
  WITH counts AS (
    SELECT time_bucket(INTERVAL 1 HOUR, published_at) AS begun, subject, count(*) AS publications
    FROM read_parquet({publications}) WHERE subject IS NOT NULL GROUP BY ALL
  ), changes AS (
    SELECT seq, session, subject_filter, name, change, changed_at FROM read_parquet({interests})
    UNION ALL
    SELECT d.seq, d.session, i.subject_filter, i.name, 'removed', d.changed_at
    FROM read_parquet({sessions}) d
    JOIN (SELECT DISTINCT session, subject_filter, name FROM read_parquet({interests})) i USING (session)
    WHERE d.change = 'deleted'
  ), intervals AS (
    SELECT session, subject_filter, change, changed_at AS began,
      lead(changed_at) OVER (PARTITION BY session, subject_filter, name ORDER BY seq) AS ended
    FROM changes
  ), wanted AS (
    SELECT f.subject_filter, s.subject
    FROM (SELECT DISTINCT subject_filter FROM intervals) f, (SELECT DISTINCT subject FROM counts) s
    WHERE f.subject_filter IS NULL OR regexp_full_match(
      s.subject, replace(replace(replace(f.subject_filter, '/#', '(/.*)?'), '#', '.*'), '+', '[^/]*'))
  )
  SELECT c.begun, c.subject, any_value(c.publications) AS publications, count(DISTINCT i.session) AS subscribers
  FROM counts c LEFT JOIN wanted w USING (subject)
  LEFT JOIN intervals i ON i.subject_filter IS NOT DISTINCT FROM w.subject_filter AND i.change <> 'removed'
    AND i.began < c.begun + INTERVAL 1 HOUR AND (i.ended IS NULL OR i.ended >= c.begun + INTERVAL 1 HOUR)
  GROUP BY c.begun, c.subject
) TO '{out}' (FORMAT parquet, COMPRESSION zstd)
"""
LATENCY = """
COPY (
  WITH told AS (
    SELECT time_bucket(INTERVAL 1 HOUR, published_at) AS begun, subject, outcome, via, deadline_at, decided_at,
      CASE WHEN outcome = 'delivered' AND via IS NOT NULL
        THEN greatest(0, epoch_us(decided_at) - epoch_us(published_at)) END AS took
    FROM read_parquet({deliveries})
    WHERE subject IS NOT NULL AND via IS DISTINCT FROM 'retained'
      AND (outcome IN ('delivered', 'expired'))
  )
  SELECT begun, subject, count(*) FILTER (outcome = 'delivered') AS delivered,
    quantile_disc(took, 0.5) AS p50, quantile_disc(took, 0.9) AS p90, quantile_disc(took, 0.99) AS p99,
    count(*) FILTER (outcome = 'expired') AS expired,
    count(*) FILTER ((outcome = 'expired' OR via IS NOT NULL) AND decided_at >= deadline_at) AS missed
  FROM told GROUP BY begun, subject
) TO '{out}' (FORMAT parquet, COMPRESSION zstd)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("log", type=Path)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        report = _costs(options.log, options.tables, Path(name), options.runs)
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0 if report["equal"] else 1


def _costs(log: Path, tables: Path, folder: Path, runs: int) -> dict[str, Any]:
    paths = {table: [str(part.path) for part in layout.parts(log, table)] for table in ("publications", "interests")}
    paths["sessions"] = [str(part.path) for part in layout.parts(log, "sessions")]
    paths["deliveries"] = [str(path) for path in data_files(tables, "deliveries")]
    pieces = [
        piece
        for path in paths["publications"]
        for piece in pq.ParquetFile(path).iter_batches(batch_size=_PIECE, columns=["published_at", "subject"])
    ]
    works: dict[str, Callable[[], float]] = {
        "popularity": lambda: _popularity(log, folder, pieces),
        "popularity, DuckDB": lambda: _duck(POPULARITY, paths, folder / "popularity.parquet"),
        "latency": lambda: _latency(log, folder, paths["deliveries"]),
        "latency, DuckDB": lambda: _duck(LATENCY, paths, folder / "latency.parquet"),
    }
    took: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(runs):
        for name, work in works.items():
            took[name].append(round(work(), 2))
    least = {name: min(each) for name, each in took.items()}
    return {
        "core_s": took,
        "ratios": {name: round(least[name] / least[f"{name}, DuckDB"], 2) for name in ("popularity", "latency")},
        "equal": _are_equal(folder),
    }


def _duck(sql: str, paths: dict[str, list[str]], out: Path) -> float:
    connection = duckdb.connect()
    connection.execute("SET threads = 2; SET TimeZone = 'UTC'")
    begun_s = time.process_time()
    connection.execute(sql.format(**paths, out=out))
    return time.process_time() - begun_s


def _job(log: Path, folder: Path, table: str) -> BatchJob:
    for name in ("scratch", table):
        (folder / name).mkdir(exist_ok=True)
    for path in (folder / table).glob("*.parquet"):
        path.unlink()
    plan = Plan(assume_receipts=layout.assumes_receipts(log))
    scratch = str(folder / "scratch")
    return BatchJob(log=str(log), out=str(folder), folder="", scratch=scratch, tables=(table,), plan=plan, now=0)


def _popularity(log: Path, folder: Path, pieces: list[Any]) -> float:
    job = _job(log, folder, "popularity")
    begun_s = time.process_time()
    (node,) = layout.nodes(log)
    (told,) = pack_node(job, NodeSpan(node, 0, snapshot(log).last[node]), of=1, matches=None)
    with EventWriter(Path(job.scratch)) as events:
        events.add(SUMS, {"counts": sum_counts(counts_of(piece, _HOUR_US) for piece in pieces)})
    list(make_windows(job, [NodeSubscriptions.from_told(told.told).path], [str(events.path)], []))
    return time.process_time() - begun_s


def _latency(log: Path, folder: Path, deliveries: list[str]) -> float:
    job, took_s, tallies = _job(log, folder, "latency"), 0.0, []
    for path in deliveries:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=10 * _PIECE, columns=_DELIVERY):
            rows = pa.Table.from_batches([batch])
            begun_s = time.process_time()
            tallies.append(tally_deliveries(rows, window_us=_HOUR_US))
            took_s += time.process_time() - begun_s
    begun_s = time.process_time()
    with EventWriter(Path(job.scratch)) as events:
        events.add(SUMS, {"tallies": sum_tallies(tallies)})
    list(make_windows(job, [], [], [str(events.path)]))
    return took_s + time.process_time() - begun_s


def _are_equal(folder: Path) -> bool:
    """Return whether the rows of both engines are equal, and say on stderr which are not."""
    connection = duckdb.connect()
    differ = {
        "popularity": """
            a.publications IS DISTINCT FROM b.publications OR a.subscribers IS DISTINCT FROM b.subscribers""",
        "latency": """
            a.delivered IS DISTINCT FROM b.delivered OR a.expired_unseen IS DISTINCT FROM b.expired
            OR a.deadlines_missed IS DISTINCT FROM b.missed
            OR NOT coalesce(a.p50_us BETWEEN b.p50 AND 1.02 * b.p50, true)
            OR NOT coalesce(a.p99_us BETWEEN b.p99 AND 1.02 * b.p99, true)""",
    }
    wrong = {}
    for table, differs in differ.items():
        (count,) = connection.execute(
            f"""SELECT count(*) FROM read_parquet('{folder}/{table}/*.parquet') a
            FULL JOIN read_parquet('{folder}/{table}.parquet') b ON a.window_start = b.begun AND a.subject = b.subject
            WHERE a.subject IS NULL OR b.subject IS NULL OR {differs}"""  # noqa: S608 # our own words
        ).fetchall()[0]
        wrong[table] = count
    sys.stderr.write(f"rows that differ: {wrong}\n")
    return not any(wrong.values())


if __name__ == "__main__":
    sys.exit(main())
