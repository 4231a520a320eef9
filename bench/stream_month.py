"""A stream over a month of log, batch after batch: what it remembers day by day, and whether its tables are right.

Rule: the log is there at the beginning and is read in thirds of its days, without waiting; days pass in minutes.
Rule: right is what the batch job makes of the same log, table by table, counted with Spark.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the rig of the stream is that of the tests

from measure import Check, Figure, Grid
from month import CUTS_PER_DAY, MonthSizes, Seen, visit_of, write_month
from whimbrel.sim.load.processes import resident_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Month", "month"]

_GROWTH = 1.3
_WAIT_DAYS = 7
"""From the horizon of ``replicas`` on, and longer than any session lives on, the state should not grow."""
_LONGEST_LIFE_DAYS = 3
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """The end of a day."""

    seen: Seen
    state: int
    state_bytes: int
    windows: int
    links: int
    python_bytes: int
    java_bytes: int

    def cells(self, number: int) -> tuple[str | float | None, ...]:
        """Return it as a row."""
        counts = (self.seen.facts, self.seen.devices, self.seen.subjects, self.state, self.windows, self.links)
        sizes = (self.state_bytes, self.python_bytes, self.java_bytes)
        return (f"{number}", *map(float, counts), *(size / _MIB for size in sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """How it went."""

    days: tuple[Day, ...]
    batches: int
    old_sessions: int
    """How many devices that came once, days ago, are still remembered."""
    rows: dict[str, tuple[int, int, int]]
    """By table: how many rows the batch job made, how many of these are missing, how many are too many."""
    took_s: float

    def grid(self) -> Grid:
        """Return some of the days."""
        headings = (
            "day", "facts so far", "devices so far", "subjects so far", "remembered", "of these windows",
            "of these links", "state MiB", "Python MiB", "Java MiB",
        )  # fmt: skip
        step = max(1, len(self.days) // 10)
        rows = tuple(day.cells(number + 1) for number, day in enumerate(self.days) if not (number + 1) % step)
        return Grid(f"A month of log in {self.batches} batches: what is remembered", headings, rows)

    def figures(self) -> Iterator[Figure]:
        """Yield how fast it was."""
        yield Figure("month: facts", float(self.days[-1].seen.facts), "")
        yield Figure("month: facts taken in", self.days[-1].seen.facts / self.took_s, "/s")

    def checks(self, *, is_full: bool) -> Iterator[Check]:
        """Claim that it is bounded (of a *full* month), that old sessions are gone, and that all tables are right."""
        if is_full:
            third = len(self.days) // 3
            middle, last = self.days[third : 2 * third], self.days[2 * third :]
            for name in ("state", "windows", "links", "state_bytes", "python_bytes"):
                before, after = (max(getattr(day, name) for day in part) for part in (middle, last))
                claim = f"month: {name}: most of the last third {after:,}, of the middle third {before:,}"
                yield Check(f"{claim}; aim ≤ {_GROWTH} ×", after <= _GROWTH * before)
            growth = last[-1].seen.devices / middle[-1].seen.devices
            yield Check(f"month: meanwhile devices ever seen grew {growth:.2f} ×", growth > _GROWTH)
        who = f"devices that came once, more than {_LONGEST_LIFE_DAYS} days ago"
        yield Check(f"month: of {who}, {self.old_sessions} still have a session", not self.old_sessions)
        for table, (count, missing, surplus) in self.rows.items():
            claim = f"month: {table}: {count:,} rows of the batch job, {missing} missing, {surplus} too many"
            yield Check(claim, not missing and not surplus)


def month(folder: Path, sizes: MonthSizes, *, seed: int) -> Month:
    """Write a month's log, let a stream take it in, and compare its tables with the batch job's."""
    from tests.e2e.stream_kills import StreamRig

    from whimbrel.pipeline.batch import jobs
    from whimbrel.pipeline.plans import StreamPlan
    from whimbrel.pipeline.spark.spark_session import local_session

    log, out = folder / "log", folder / "stream"
    cuts, seen = write_month(log, sizes, seed=seed)
    spark = local_session(memory="2g")
    try:
        stream = StreamRig(log=log, out=out, plan=StreamPlan())
        java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]  # noqa: SLF001 # Java's own number
        days: list[Day] = []
        begun = time.monotonic()
        for number, ends in enumerate(cuts):
            stream.take(ends)
            if number % CUTS_PER_DAY == CUTS_PER_DAY - 1:
                days.append(_day(stream, seen[number // CUTS_PER_DAY], java))
        took_s = time.monotonic() - begun
        old = sum(_is_old(device, sizes.days) for state in stream.states() for device in state.away())
        jobs.run(spark, log=log, out=folder / "batch")
        rows = {table: _compared(spark, folder, table) for table in stream.plan.tables}
        batches = len(cuts)
    finally:
        spark.stop()
    return Month(days=tuple(days), batches=batches, old_sessions=old, rows=rows, took_s=took_s)


def _day(stream: Any, seen: Seen, java: int) -> Day:
    taken = stream.last
    assert taken is not None
    return Day(
        seen=seen,
        state=taken.state,
        state_bytes=taken.state_bytes,
        windows=stream.windows().size,
        links=sum(len(each.links.state) for each in stream.states()),
        python_bytes=resident_bytes(os.getpid()),
        java_bytes=resident_bytes(java),
    )


def _is_old(device: str, days: int) -> bool:
    day = visit_of(device)
    return day is not None and day < days - 1 - _LONGEST_LIFE_DAYS


def _compared(spark: SparkSession, folder: Path, table: str) -> tuple[int, int, int]:
    ours, wanted = (_sorted(spark, folder / which, table) for which in ("stream", "batch"))
    return wanted.count(), wanted.exceptAll(ours).count(), ours.exceptAll(wanted).count()


def _sorted(spark: SparkSession, out: Path, table: str) -> DataFrame:
    """Return a table with lists in order, and without when a dead letter was found."""
    from pyspark.sql import functions as F  # noqa: N812 # as everybody calls it

    from whimbrel.pipeline.files.delta import data_files
    from whimbrel.pipeline.files.schemas import SCHEMAS

    schema, files = SCHEMAS[table], [path.as_uri() for path in data_files(out, table)]
    frame = spark.read.schema(schema).parquet(*files) if files else spark.createDataFrame([], schema)
    lists = [field.name for field in schema if field.dataType.typeName() == "array"]
    for name in lists:
        frame = frame.withColumn(name, F.sort_array(name))
    return frame.drop("found_at")
