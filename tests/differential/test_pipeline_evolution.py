"""Older and newer: files that lack the newest columns, and logs of which the beginning is gone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from random_logs import random_log
from single_process import SingleProcess
from stream_rig import StreamRig, forget

from whimbrel.hold.retention import Retention
from whimbrel.log.export import export
from whimbrel.log.layout import all_parts
from whimbrel.log.retention import retain
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import Fact, InterestChanged, PresenceChange, PresenceChanged, Receipt
from whimbrel.model.notification import Notification
from whimbrel.pipeline.batch.jobs import run
from whimbrel.pipeline.files.delta import read
from whimbrel.pipeline.plans import Plan, StreamPlan
from whimbrel.pipeline.stream.state.batch_record import LostLogError

pytestmark = pytest.mark.usefixtures("interpreted")

NODE, FACTS, HALF = "n", 120, 60
RETENTION = Retention(ttl_us=30, max_held=3)
NEWEST = {
    "publications": {"properties", "packet_id", "deadline_at", "will_seq"},
    "interests": {"qos", "no_local", "retain_as_published", "identifier"},
    "presence": {"packet_id", "session_expiry_us", "sent_seq", "confirms", "owner"},
    "receipts": {"via", "published_at", "subject"},
}
"""Columns that came later than their tables."""


def without_the_newest(fact: Fact) -> Fact:
    """Return *fact* as an older Whimbrel would have written it."""
    match fact:
        case Notification():
            return replace(fact, properties=b"", packet_id=None, deadline_at=None)
        case InterestChanged():
            plain = replace(fact.subscription, qos=None, no_local=False, retain_as_published=False, identifier=None)
            return replace(fact, subscription=plain)
        case PresenceChanged():
            if fact.change is PresenceChange.RECEIPTS:  # there was no such change
                return replace(fact, change=PresenceChange.CONNECTED, session=None, confirms=None)
            return replace(fact, sent_seq=None, session_expiry_us=None, confirms=None)
        case Receipt():
            return replace(fact, via=None, published_at=None, subject=None)
        case _:
            return fact


def write(directory: Path, facts: list[Fact]) -> None:
    """Append to the log of the node."""
    with LogWriter(directory, NODE) as log:
        for fact in facts:
            log.append(fact)


def age(directory: Path) -> None:
    """Take the newest columns out of all parts."""
    for table, names in NEWEST.items():
        for part in all_parts(directory, table):
            rows = pq.read_table(part.path, partitioning=None)
            pq.write_table(rows.drop_columns(sorted(names & set(rows.column_names))), part.path)
            assert not names & set(pq.read_schema(part.path).names)


def outcomes(out: Path) -> Counter[tuple[Any, ...]]:
    """Return what became of what, for whom and when."""
    rows = read(out, "deliveries")
    columns = [rows.column(name) for name in ("notification_seq", "session", "device", "outcome", "subject")]
    columns += [rows.column(name).cast(pa.int64()) for name in ("decided_at", "deadline_at", "lapses_at")]
    return Counter(zip(*(column.to_pylist() for column in columns), strict=True))


def test_a_log_that_began_before_the_newest_columns_is_read_as_ever(spark: SparkSession, tmp_path: Path) -> None:
    """Older parts, newer ones and the tail of the segments: as batch and as stream what the facts themselves give."""
    facts = random_log(Random(7), NODE, facts=FACTS, has_receipts=True)
    facts[:HALF] = map(without_the_newest, facts[:HALF])
    log = tmp_path / "log"
    write(log, facts[:HALF])
    export(log, NODE, closed_only=False)
    age(log)
    write(log, facts[HALF:100])
    export(log, NODE, closed_only=False)
    write(log, facts[100:])
    made = SingleProcess(retention=RETENTION, assume_receipts=False).run(facts).deliveries
    wanted = Counter(
        (e.seq, e.session, e.device, e.outcome.value, e.subject, e.decided_at, e.deadline_at, e.lapses_at) for e in made
    )
    run(spark, log=log, out=tmp_path / "batch", tables=("deliveries",), plan=Plan(retention=RETENTION))
    assert outcomes(tmp_path / "batch") == wanted
    plan = StreamPlan(retention=RETENTION, tables=("deliveries",))
    stream = StreamRig(log=log, out=tmp_path / "stream", plan=plan)
    for end in (40, 90, FACTS):
        stream.take({NODE: end})
    assert outcomes(tmp_path / "stream") == wanted
    assert len(wanted) > HALF


# -- logs whose beginning is gone ------------------------------------------------------------------------------------

DAY_US = 86_400_000_000
START = 1_767_571_200_000_000  # 2026-01-05


def days(count: int) -> list[Fact]:
    """Return ten publications a day."""
    return [
        Notification(node=NODE, seq=seq, published_at=START + (seq - 1) * DAY_US // 10, subject="a")
        for seq in range(1, 10 * count + 1)
    ]


@pytest.mark.parametrize("is_one_part", [False, True], ids=["a part a day", "a segment of days"])
def test_a_log_that_was_cut_before_it_was_read_is_refused(tmp_path: Path, *, is_one_part: bool) -> None:
    """A table with a hole in it would look like one without."""
    facts = days(3)
    for first in range(0, 30, 30 if is_one_part else 10):
        write(tmp_path / "log", facts[first : first + (30 if is_one_part else 10)])
        export(tmp_path / "log", NODE, closed_only=False)
    plan = StreamPlan(tables=("popularity",))
    stream = StreamRig(log=tmp_path / "log", out=tmp_path / "out", plan=plan)
    stream.take({NODE: 5})
    retain(tmp_path / "log", before=date(2026, 1, 6), now=START + 3 * DAY_US)
    forget()  # a worker that has the files open would still read them
    with pytest.raises(LostLogError, match="log of n: number 6 is not there any more, and was not read yet"):
        stream.take({NODE: 30})
    assert sum(read(tmp_path / "out", "popularity").column("publications").to_pylist()) == 5


def test_a_log_that_was_cut_after_it_was_read_is_not(tmp_path: Path) -> None:
    """That is what retention is for."""
    write(tmp_path / "log", days(3))
    export(tmp_path / "log", NODE, closed_only=False)
    stream = StreamRig(log=tmp_path / "log", out=tmp_path / "out", plan=StreamPlan(tables=("popularity",)))
    stream.take({NODE: 10})
    retain(tmp_path / "log", before=date(2026, 1, 6), now=START + 3 * DAY_US)
    stream.take({NODE: 30})
    assert sum(read(tmp_path / "out", "popularity").column("publications").to_pylist()) == 30
