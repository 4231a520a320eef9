"""How fast the pipeline turns a log into matches and deliveries, Parquet to Parquet, beside what Spark does at least.

Each measurement is a process of its own with a Spark session of its own. Packing the matcher is timed
apart: it depends on the subscriptions, not on the events.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "reference"))  # the pipeline in one process

from made_logs import write_log
from measure import Check, Comparison, Figure, Grid, Report, Timing, in_fresh_process
from workloads import WORKLOAD_B3, WORKLOAD_U10, Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_SEED = 31
_MATCHED, _EXPLODED, _DELIVERED, _LINEAR = 150_000, 300_000, 60_000, 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    subscriptions: int
    events: int
    delivered: int
    """Events of the log that deliveries are made of."""
    linear: tuple[int, ...]
    plain: tuple[int, int]
    """Subscriptions and events of the cross join."""
    ward: int
    """Facts of the made-up ward that both engines fold."""
    repetitions: int
    masters: tuple[str, ...]


_FULL = _Sizes(
    subscriptions=100_000,
    events=2_000_000,
    delivered=200_000,
    linear=(1_000_000, 10_000_000),
    plain=(1_000, 2_000),
    ward=300_000,
    repetitions=1,
    masters=("local[1]", "local[2]"),
)
_QUICK = _Sizes(
    subscriptions=300,
    events=2_000,
    delivered=500,
    linear=(),
    plain=(50, 40),
    ward=3_000,
    repetitions=1,
    masters=("local[2]",),
)


def run(*, quick: bool) -> Report:
    """Measure everything; *quick* only proves that it runs and that the results are right."""
    sizes = _QUICK if quick else _FULL
    report = Report("pipeline", packages=("whimbrel", "pyspark", "pyarrow", "numba"))
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        folder = Path(name)
        rows: list[tuple[str | float | None, ...]] = []
        for workload in (WORKLOAD_U10, WORKLOAD_B3)[: 1 if quick else 2]:
            log = folder / workload.name
            _made(log, workload, sizes.subscriptions, sizes.events)
            masters = sizes.masters if workload is WORKLOAD_U10 else sizes.masters[-1:]
            explodes = workload is WORKLOAD_U10  # B would be a hundred million rows
            found = [
                _alone(_matching, str(log), master, sizes.repetitions, explodes=explodes, quick=quick)
                for master in masters
            ]
            rows += [_row(workload, each) for each in found]
            report.comparisons.append(_comparison(workload, found[-1]))
            report.checks += [check for each in found for check in each.checks]
            if workload is WORKLOAD_U10:
                report.figures += _aims(found)
            shutil.rmtree(log)
        report.grids.append(Grid("matches: Parquet to Parquet", _HEADINGS, tuple(rows)))
        _measure_deliveries(report, folder, sizes, quick=quick)
        if sizes.linear:
            _measure_linear(report, folder, sizes)
        _measure_plain(report, folder, sizes, quick=quick)
        _measure_same(report, folder, sizes, quick=quick)
    if quick:
        _session(sizes.masters[0]).stop()
    report.notes += [
        "U is U10, B is B3 of bench/workloads.py; two devices in each of a tenth as many sessions as subscriptions.",
        "identity: the same columns of the same rows, read and written by workers, unchanged and not judged.",
        "listed: one row per event with the list of subscriptions; exploded: one row per event and subscription.",
        "packing: reading the interests and packing the matcher, once per node and job.",
        "hand-overs/s of deliveries are from the log to Parquet, everything included.",
        "cross join: every event with every subscription, and a Python function that asks the compiled filter.",
    ]
    return report


def _alone(function: Callable[_P, _T], *args: _P.args, quick: bool, **kwargs: _P.kwargs) -> _T:  # type: ignore[valid-type]
    """Call *function* in a process of its own, whose Spark ends with it; to be quick, all of them share ours."""
    return function(*args, **kwargs) if quick else in_fresh_process(function, *args, **kwargs)


def _made(log: Path, workload: Workload, subscriptions: int, events: int) -> None:
    sessions = max(1, subscriptions // 10)
    write_log(log, workload, subscriptions=subscriptions, events=events, sessions=sessions, devices=2, seed=_SEED)


# -- matches -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    master: str
    events: int
    packing_s: float
    identity_s: tuple[float, ...]
    listed_s: tuple[float, ...]
    exploded_s: tuple[float, ...]
    matches: int
    checks: tuple[Check, ...]


_HEADINGS = (
    "workload, master", "events", "matches", "packing s", "identity events/s", "listed events/s",
    "listed ÷ identity time", "exploded rows/s",
)  # fmt: skip


def _row(workload: Workload, found: _Found) -> tuple[str | float | None, ...]:
    identity, listed = statistics.median(found.identity_s), statistics.median(found.listed_s)
    return (
        f"{workload.name}, {found.master}",
        float(found.events),
        float(found.matches),
        found.packing_s,
        found.events / identity,
        found.events / listed,
        listed / identity,
        found.matches / statistics.median(found.exploded_s) if found.exploded_s else None,
    )


def _comparison(workload: Workload, found: _Found) -> Comparison:
    timings = (
        Timing(engine="whimbrel, listed matches", items=found.events, seconds=found.listed_s),
        Timing(engine="identity", items=found.events, seconds=found.identity_s),
    )
    return Comparison(title=f"{workload.name}, {found.events:,} events, {found.master}", item="event", timings=timings)


def _aims(found: list[_Found]) -> Iterator[Figure]:
    one, last = found[0], found[-1]
    listed = statistics.median(last.listed_s)
    yield Figure(f"U, listed matches (aim {_MATCHED:,})", last.events / listed, "events/s")
    ratio = listed / statistics.median(last.identity_s)
    yield Figure("U, listed matches: time of the identity (aim ≤ 1.5)", ratio, "×")
    rate = last.matches / statistics.median(last.exploded_s)
    yield Figure(f"U, exploded matches (aim {_EXPLODED:,})", rate, "rows/s")
    if len(found) > 1:
        faster = statistics.median(one.listed_s) / listed
        yield Figure("U, listed matches: local[2] against local[1] (aim ≥ 1.3)", faster, "×")


def _matching(log: str, master: str, repetitions: int, *, explodes: bool) -> _Found:
    from mapped import MATCHED, Judged, Matching, events_in, listed, rows_in, scanned, unchanged
    from whimbrel.pipeline.tables.matches import match_rows

    spark, path = _session(master), Path(log)
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as scratch:
        out = Path(scratch)
        begun = time.perf_counter()
        listing = Judged(Matching(path, listed, out))
        packing_s = time.perf_counter() - begun
        works: dict[str, Callable[[Path], None]] = {
            "identity": lambda to: scanned(spark, path, MATCHED, unchanged, to),
            "listed": lambda to: scanned(spark, path, None, listing, to),
        }
        if explodes:
            exploding = Judged(Matching(path, match_rows, out))
            works["exploded"] = lambda to: scanned(spark, path, None, exploding, to)
        works["listed"](out / "warm")  # the workers load what numba compiled
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for number in range(repetitions):
            for name, work in works.items():
                seconds[name].append(_timed(lambda work=work, to=out / f"{name}-{number}": work(to)))  # type: ignore[misc]
        in_lists = len(rows_in(out / "listed-0").column("interests").combine_chunks().flatten())
        count = rows_in(out / "exploded-0").num_rows if explodes else in_lists
        events = rows_in(out / "identity-0").num_rows
        same = events == events_in(path)
    return _Found(
        master=master,
        events=events,
        packing_s=packing_s,
        identity_s=tuple(seconds["identity"]),
        listed_s=tuple(seconds["listed"]),
        exploded_s=tuple(seconds.get("exploded", ())),
        matches=count,
        checks=(
            Check(f"{log.rpartition('/')[2]}, {master}: lists hold as many matches as rows do", in_lists == count),
            Check(f"{log.rpartition('/')[2]}, {master}: the identity wrote every event", same),
        ),
    )


def _session(master: str) -> SparkSession:
    """Start Spark; its workers look for our functions beside this file."""
    from whimbrel.pipeline.spark.spark_session import local_session

    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return local_session(master=master)


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


# -- deliveries --------------------------------------------------------------------------------------------------------


def _measure_deliveries(report: Report, folder: Path, sizes: _Sizes, *, quick: bool) -> None:
    log = folder / "deliveries"
    _made(log, WORKLOAD_U10, sizes.subscriptions, sizes.delivered)
    rows, seconds, wanted = _alone(_delivering, str(log), quick=quick)
    report.figures.append(
        Figure(f"deliveries of {sizes.delivered:,} events (aim {_DELIVERED:,})", rows / seconds, "/s")
    )
    report.checks.append(Check(f"deliveries: {rows:,} hand-overs are two for each match", rows == wanted))
    shutil.rmtree(log)


def _delivering(log: str) -> tuple[int, float, int]:
    from whimbrel.pipeline.batch import jobs
    from whimbrel.pipeline.files.delta import data_files

    spark = _session("local[2]")
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        begun = time.perf_counter()
        made = jobs.run(spark, log=Path(log), out=Path(name), tables=["deliveries"])
        seconds = time.perf_counter() - begun
        matched = jobs.run(spark, log=Path(log), out=Path(name), tables=["matches"])
        files = [path.as_uri() for path in data_files(Path(name), "matches")]
        pairs = spark.read.parquet(*files).select("notification_seq", "session").distinct().count()
    del matched
    return int(str(made["deliveries"]["rows"])), seconds, 2 * pairs


# -- growth ------------------------------------------------------------------------------------------------------------


def _measure_linear(report: Report, folder: Path, sizes: _Sizes) -> None:
    per_event = []
    for events in sizes.linear:
        log = folder / f"linear-{events}"
        _made(log, WORKLOAD_U10, sizes.subscriptions, events)
        found = in_fresh_process(_matching_once, str(log))
        per_event.append(found / events)
        report.figures.append(Figure(f"listed matches of {events:,} events", events / found, "events/s"))
        shutil.rmtree(log)
    growth = per_event[-1] / per_event[0]
    report.figures.append(Figure(f"time per event, the larger against the smaller (aim ≤ {_LINEAR})", growth, "×"))


def _matching_once(log: str) -> float:
    from mapped import Judged, Matching, listed, scanned

    spark = _session("local[2]")
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        work = Judged(Matching(Path(log), listed, Path(name)))
        scanned(spark, Path(log), None, work, Path(name) / "warm")
        return _timed(lambda: scanned(spark, Path(log), None, work, Path(name) / "listed"))


# -- the plain way -----------------------------------------------------------------------------------------------------


def _measure_plain(report: Report, folder: Path, sizes: _Sizes, *, quick: bool) -> None:
    log = folder / "plain"
    subscriptions, events = sizes.plain
    _made(log, WORKLOAD_U10.dense() if quick else WORKLOAD_U10, subscriptions, events)
    plain_s, plain, ours_s, ours = _alone(_crossing, str(log), quick=quick)
    timings = (
        Timing(engine="whimbrel, matches", items=events, seconds=(ours_s,)),
        Timing(engine="cross join and filter", items=events, seconds=(plain_s,)),
    )
    title = f"U10, {subscriptions:,} subscriptions, {events:,} events"
    report.comparisons.append(Comparison(title=title, item="event", timings=timings))
    report.checks.append(Check(f"the cross join finds the same {plain:,} matches", plain == ours > 0))


@lru_cache(maxsize=100_000)
def _compiled(text: str) -> Callable[[Any], bool | None]:
    from whimbrel.language.backends.python import compile_filter
    from whimbrel.language.filters import parse

    return compile_filter(parse(text))


def _asked(attributes: Any, text: str) -> bool:  # what Spark gives
    from whimbrel.model.tables import attributes_from_column_value

    return (
        _compiled(text)(attributes_from_column_value({name: entry.asDict() for name, entry in attributes.items()}))
        is True
    )


def _crossing(log: str) -> tuple[float, int, float, int]:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import BooleanType

    from whimbrel.pipeline.batch import jobs
    from whimbrel.pipeline.spark.reading import read_table

    spark = _session("local[2]")
    publications, interests = (read_table(spark, Path(log), name) for name in ("publications", "interests"))

    def ours() -> int:
        with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
            made = jobs.run(spark, log=Path(log), out=Path(name), tables=["matches"])
        return int(str(made["matches"]["rows"]))

    asked = F.udf(lambda attributes, text: _asked(attributes, text), BooleanType())  # noqa: PLW0108  # hints confuse Spark
    pairs = publications.select("seq", "attributes").crossJoin(interests.select("filter_text"))
    counts: list[int] = []
    ours()
    plain_s = _timed(lambda: counts.append(pairs.where(asked("attributes", "filter_text")).count()))
    ours_s = _timed(lambda: counts.append(ours()))
    return plain_s, counts[0], ours_s, counts[1]


# -- one meaning -------------------------------------------------------------------------------------------------------


def _measure_same(report: Report, folder: Path, sizes: _Sizes, *, quick: bool) -> None:
    """Fold a made-up ward in one process and through Spark: the engines must agree on every row."""
    spark_s, single_s, rows, differences = _alone(_folding, str(folder / "ward"), sizes.ward, quick=quick)
    title = f"deliveries of a made-up ward, {sizes.ward:,} facts"
    timings = (
        Timing(engine="whimbrel on Spark, local[2]", items=sizes.ward, seconds=(spark_s,)),
        Timing(engine="the same folded in one process", items=sizes.ward, seconds=(single_s,)),
    )
    report.comparisons.append(Comparison(title=title, item="fact", timings=timings))
    report.checks.append(Check(f"{title}: {rows:,} rows, {differences} differ", rows > 0 and differences == 0))


def _folding(log: str, facts: int) -> tuple[float, float, int, int]:
    import pyarrow.parquet as pq
    from single_process import SingleProcess

    from whimbrel.log.columns import from_arrow
    from whimbrel.log.layout import parts
    from whimbrel.pipeline.batch import jobs
    from whimbrel.pipeline.files.delta import read as read_delta
    from whimbrel.pipeline.files.schemas import TIMES
    from whimbrel.sim.logs.generate import Recipe, generate

    spark = _session("local[2]")
    path = Path(log)
    generate(spark, Recipe(world="ward", events=facts, seed=_SEED, hours=72), path)
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as scratch:
        spark_s = _timed(lambda: jobs.run(spark, log=path, out=Path(scratch), tables=["deliveries"]))
        rows = read_delta(Path(scratch), "deliveries").to_pylist()
    begun = time.perf_counter()
    read = (
        fact
        for name in TIMES
        for part in parts(path, name)
        for fact in from_arrow(name, pq.ParquetFile(part.path).read())
    )
    single = SingleProcess().run(sorted(read, key=lambda fact: (fact.node, fact.seq)))
    single_s = time.perf_counter() - begun
    wanted = {
        (d.node, d.seq, d.session, d.device, d.subscriptions, d.outcome.value, d.body_hash) for d in single.deliveries
    }
    found = {
        (
            row["notification_node"],
            row["notification_seq"],
            row["session"],
            row["device"],
            frozenset((each["subject_filter"], each["name"]) for each in row["subscriptions"]),
            row["outcome"],
            row["body_hash"],
        )
        for row in rows
    }
    return spark_s, single_s, len(rows), len(found ^ wanted) + abs(len(rows) - len(single.deliveries))
