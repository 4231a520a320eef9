"""Popularity, replicas, latency and replay, each against plain Python."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows

from whimbrel.language.filters import Filter
from whimbrel.match.topics import matches
from whimbrel.model.census import CensusTotals
from whimbrel.model.tables import TABLES, TIME_TYPE, attributes_to_column_value
from whimbrel.pipeline.replay import replay, subject_column
from whimbrel.pipeline.subscriptions.versions import validity_intervals
from whimbrel.pipeline.tables.latency import measure, sum_tallies, tally_deliveries
from whimbrel.pipeline.tables.popularity import Wishes, as_windows, counts_of, sum_counts
from whimbrel.pipeline.tables.replicas import replicas

HOUR_US = 3_600_000_000
SUBJECTS = ["a/b", "a/c", "a/b/c", "$sys/x", "b", "/b"]
FILTERS = ["a/b", "a/+", "a/#", "#", "+/+", "+", None, "a/b/c", "$sys/#", "not+valid", "x/y", "$share/g/a/+"]

DEFAULTS: dict[str, dict[str, Any]] = {
    "publications": {
        "node": "a",
        "seq": 1,
        "published_at": 0,
        "subject": "t",
        "attributes": [],
        "body": b"",
        "qos": 0,
        "retain": False,
        "keys": [],
        "deliver_insecure": True,
    },
    "interests": {
        "node": "a",
        "seq": 1,
        "changed_at": 0,
        "change": "added",
        "session": "s",
        "name": "",
        "keys": [],
        "accept_insecure": True,
    },
    "presence": {"node": "a", "seq": 1, "changed_at": 0, "device": "d", "change": "connected"},
    "sessions": {"node": "a", "seq": 1, "changed_at": 0, "session": "s", "change": "created"},
    "reports": {"node": "a", "seq": 1, "reported_at": 0, "device": "d"},
    "receipts": {
        "node": "a",
        "seq": 1,
        "handed_at": 0,
        "session": "s",
        "device": "d",
        "notification_node": "a",
        "notification_seq": 1,
        "subscriptions": [],
        "outcome": "delivered",
    },
    "wills": {
        "node": "a",
        "seq": 1,
        "changed_at": 0,
        "device": "d",
        "change": "left",
        "subject": "s",
        "keys": [],
        "deliver_insecure": True,
    },
}


def arrow(name: str, rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Return *rows*, completed, as the log's table *name*; nothing checks them, as in a file that others wrote."""
    full = [DEFAULTS[name] | row for row in rows]
    fields = [field.with_nullable(True) for field in TABLES[name].schema]
    arrays = [pa.array([row.get(field.name) for row in full], field.type) for field in fields]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def rows_of(found: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows of a table, its first two columns, times, as numbers."""
    times = [column.cast(pa.int64()).to_pylist() for column in found.columns[:2]]
    return list(zip(*times, *(column.to_pylist() for column in found.columns[2:]), strict=True))


# -- popularity ------------------------------------------------------------------------------------------------------


def a_history(rng: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return publications, interests and sessions of a few hours, facts of one order."""
    publications, interests, sessions = [], [], []
    for seq in range(1, 400):
        at = seq * HOUR_US // 100
        who = {"session": f"s{rng.randrange(6)}", "subject_filter": rng.choice(FILTERS), "name": rng.choice("xy")}
        if rng.random() < 0.3:
            change = rng.choice(["added", "modified", "removed"])
            interests.append({"seq": seq, "changed_at": at, "change": change} | who)
        elif rng.random() < 0.02:
            sessions.append({"seq": seq, "changed_at": at, "change": "deleted", "session": who["session"]})
        else:
            publications.append({"seq": seq, "published_at": at, "subject": rng.choice([*SUBJECTS, None])})
    return publications, interests, sessions


def subscribers_of(subject: str, end: int, interests: list[dict[str, Any]], sessions: list[dict[str, Any]]) -> int:
    """Count by replaying the facts before *end*: obviously right, and slow."""
    in_force: set[tuple[str, str | None, str]] = set()
    for fact in sorted((*interests, *sessions), key=lambda fact: int(fact["seq"])):
        if fact["changed_at"] >= end:
            break
        if fact["change"] == "deleted":
            in_force = {each for each in in_force if each[0] != fact["session"]}
        elif fact["change"] == "removed":
            in_force.discard((fact["session"], fact["subject_filter"], fact["name"]))
        else:
            in_force.add((fact["session"], fact["subject_filter"], fact["name"]))
    valid = {each for each in in_force if each[1] != "not+valid"}
    return len({session for session, wanted, _ in valid if wanted is None or matches(behind(wanted), subject)})


def behind(subject_filter: str) -> str:
    """Return what the sessions of a share want."""
    return subject_filter.removeprefix("$share/g/")


def test_popularity_is_what_replaying_the_log_counts() -> None:
    """Wildcards, names, modifications, removals and deleted sessions, at the end of every window."""
    publications, interests, sessions = a_history(random.Random(7))
    parts = [arrow("publications", publications[begin::3]) for begin in range(3)]  # however they are divided
    counts = sum_counts(counts_of(part, HOUR_US) for part in parts)
    in_force = validity_intervals(arrow("interests", interests), arrow("sessions", sessions))
    found = Wishes(in_force).popularity_rows(as_windows(counts, HOUR_US), HOUR_US)
    assert found.schema == TABLES["popularity"].schema
    rows = set(rows_of(found))
    want = set()
    for hour in range(4):
        begin, end = hour * HOUR_US, (hour + 1) * HOUR_US
        for subject in SUBJECTS:
            count = sum(begin <= p["published_at"] < end and p["subject"] == subject for p in publications)
            if count:
                wanted = subscribers_of(subject, end, interests, sessions)
                want.add((begin, end, subject, wanted, count, count / 3_600))
    assert rows == want


def test_replicas_are_planned_from_the_last_window(spark: SparkSession) -> None:
    """Yesterday's popularity is no reason for copies."""
    schema = TABLES["popularity"].schema
    rows = [(0, "a", 100), (0, "b", 1), (1, "a", 16), (1, "b", 4), (1, "c", 1)]
    columns = {
        "window_start": pa.array([hour * HOUR_US for hour, _, _ in rows]).cast(TIME_TYPE),
        "window_end": pa.array([(hour + 1) * HOUR_US for hour, _, _ in rows]).cast(TIME_TYPE),
        "subject": [subject for _, subject, _ in rows],
        "subscribers": [count for _, _, count in rows],
        "publications": [1] * len(rows),
        "rate_per_s": [1.0] * len(rows),
    }
    popular = spark.createDataFrame(pa.table(columns, schema=schema))
    made = replicas(popular, nodes=100, slots_per_node=1, sample_bytes=10)
    want = [("a", 16, 0.46, 46, 460), ("b", 4, 0.23, 23, 230), ("c", 1, 0.11, 11, 110)]
    assert [tuple(row) for row in made.orderBy("subject").collect()] == want
    crowded = replicas(popular, nodes=2, slots_per_node=1).orderBy("subject").collect()
    assert [(row.subject, row.replicas) for row in crowded] == [("a", 1), ("b", 1), ("c", 1)]
    census = CensusTotals(nodes=9, places=90, subscribers={"campus/quiet": 4, "c": 9})
    counted_by_census = replicas(popular, nodes=9, slots_per_node=10, census=census).orderBy("subject").collect()
    counts = [("a", 16), ("b", 4), ("c", 9), ("campus/quiet", 4)]
    assert [(row.subject, row.subscribers) for row in counted_by_census] == counts
    admitted = replicas(popular, nodes=9, slots_per_node=10, census=census, subject_filter="campus/#").collect()
    assert [(row.subject, row.subscribers, row.replicas) for row in admitted] == [("campus/quiet", 4, 9)]


# -- latency ---------------------------------------------------------------------------------------------------------


MINUTE_US = 60_000_000


def some_deliveries(rng: random.Random) -> list[dict[str, Any]]:
    """Return deliveries of a few minutes before and after the epoch, that took from a microsecond to a quarter hour."""
    rows: list[dict[str, Any]] = []
    for seq in range(600):
        published, took = rng.randrange(-2, 3) * MINUTE_US + seq, int(10 ** rng.uniform(0, 9))
        what = {"notification_node": "n", "notification_seq": seq, "subject": rng.choice(["a", "b", None])}
        deadline = rng.choice([None, published + took, published + took + 1])
        when = {"published_at": published, "decided_at": published + took, "deadline_at": deadline}
        outcome = rng.choice(["delivered", "delivered", "expired", "dropped"])
        via = "live" if outcome == "delivered" else None
        rows.append({**what, **when, "session": "s", "subscriptions": [], "outcome": outcome, "via": via})
    return rows


def test_latency_is_what_all_times_tell() -> None:
    """Percentiles of the nearest rank, from rows that several tasks have."""
    rows = some_deliveries(random.Random(3))
    parts = (pa.Table.from_pylist(rows[begin::3], TABLES["deliveries"].schema) for begin in range(3))
    tally = sum_tallies(tally_deliveries(part, window_us=MINUTE_US) for part in parts)
    measured = rows_of(measure(tally, window_us=MINUTE_US))
    told = [row for row in rows if row["subject"] is not None and row["outcome"] != "dropped"]
    windows = {(row["published_at"] // MINUTE_US * MINUTE_US, row["subject"]) for row in told}
    assert sorted((start, subject) for start, _, subject, *_ in measured) == sorted(windows)
    for start, end, subject, delivered, *percentiles, expired, missed in measured:
        own = [row for row in told if row["subject"] == subject and start <= row["published_at"] < end]
        took = sorted(row["decided_at"] - row["published_at"] for row in own if row["outcome"] == "delivered")
        assert (end, delivered, expired) == (start + MINUTE_US, len(took), len(own) - len(took))
        assert missed == sum(row["deadline_at"] == row["decided_at"] for row in own)
        for percent, about in zip((50, 90, 99), percentiles, strict=True):
            right = took[math.ceil(len(took) * percent / 100) - 1]
            assert 100 * right <= 100 * about <= 102 * right


# -- replay ----------------------------------------------------------------------------------------------------------


def test_replay_selects_what_the_filter_would_have(spark: SparkSession) -> None:
    """By content, time and subject; undefined is not selected."""
    rows = [
        {"seq": seq, "published_at": seq, "subject": f"bed/{seq % 3}", "attributes": attributes_to_column_value(event)}
        for seq, event in enumerate([{"a": seq % 7} if seq % 4 else {} for seq in range(60)])
    ]
    history = spark.createDataFrame(arrow("publications", rows))
    found = replay(history, filter_text="a > 3", since=10, until=50, subject="bed/+")
    wanted = Filter("a > 3")
    want = [seq for seq in range(10, 50) if wanted.verdict({"a": seq % 7} if seq % 4 else {})]
    assert sorted(row["seq"] for row in found.collect()) == want
    assert replay(history).count() == 60
    assert replay(history, subject="bed/1", until=9).count() == 3


def test_subjects_are_chosen_as_subscriptions_would(spark: SparkSession) -> None:
    """The same rules as the reference, corners included."""
    subjects = [*SUBJECTS, "a", "a/", "a//c", "/", "", "$sys", "a.b", "a/b\n", "ä/b", "a/$x"]
    filters = [
        "#",
        "+",
        "+/b",
        "a/#",
        "a/+",
        "a/+/c",
        "+/+",
        "/+",
        "/#",
        "$sys/+",
        "$sys/#",
        "a.b",
        "a/b",
        "ä/+",
        "+/#",
    ]
    frame = spark.createDataFrame([(subject,) for subject in subjects], "subject string")
    rows = frame.select("subject", *(subject_column(each, F.col("subject")) for each in filters)).collect()
    wrong = [
        (each, row[0])
        for row in rows
        for each, verdict in zip(filters, row[1:], strict=True)
        if verdict is not matches(each, row[0])
    ]
    assert wrong == []
