"""Spark's ``matches`` and ``deliveries`` against the same log folded in one process: one job for many random logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest
from broker_rig import NODE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_traffic import prompt_log, undecided
from pyspark.sql import DataFrame, SparkSession
from random_logs import random_log

from whimbrel.hold.retention import Retention
from whimbrel.log.columns import to_arrow
from whimbrel.model.device import DeviceState
from whimbrel.model.facts import Fact, Outcome, Reported
from whimbrel.model.rows import row_of
from whimbrel.pipeline.files.schemas import SCHEMAS
from whimbrel.pipeline.fold.components import Components
from whimbrel.pipeline.single import Delivery, Match, SingleProcess
from whimbrel.pipeline.tables.deliveries import LogTables, deliveries
from whimbrel.pipeline.tables.matches import listed_matches, matches

LOGS, FACTS = 20, 100
RETENTION = Retention(ttl_us=30, max_held=3)
NAMES = ("publications", "interests", "presence", "sessions", "receipts", "reports", "wills", "policies", "decisions")


def _tables(spark: SparkSession, facts: Iterable[Fact]) -> LogTables:
    rows: dict[str, list[dict[str, object]]] = {name: [] for name in NAMES}
    for fact in facts:
        table, row = row_of(fact)
        rows[table].append(row)
    return LogTables(*(spark.createDataFrame(to_arrow(name, rows[name]), SCHEMAS[name]) for name in NAMES))


def _logs(seed: int, *, has_receipts: bool) -> list[Fact]:
    random = Random(seed)
    facts: list[Fact] = []
    for log in range(LOGS):
        node = f"node{log}"
        facts += random_log(random, node, facts=FACTS, has_receipts=has_receipts)
        if log % 2:  # time passes with the last fact of a log, whatever it is
            facts.append(Reported(node=node, seq=FACTS + 1, state=DeviceState(device="d1", reported_at=1_000_500)))
    return facts


def _matches(table: DataFrame) -> list[Match]:
    return [
        Match(
            row.notification_node, row.notification_seq, row.session, (row.subject_filter, row.name), row.interest_seq
        )
        for row in table.collect()
    ]


def _deliveries(table: DataFrame) -> list[Delivery]:
    times = {"published": "published_at", "deadline": "deadline_at", "decided": "decided_at", "lapses": "lapses_at"}
    columns = table.selectExpr("*", *(f"unix_micros({column}) AS {name}" for name, column in times.items()))
    return [
        Delivery(
            row.notification_node,
            row.notification_seq,
            row.published,
            row.subject,
            row.deadline,
            row.session,
            row.device,
            frozenset((each.subject_filter, each.name) for each in row.subscriptions),
            Outcome(row.outcome),
            None if row.body_hash is None else bytes(row.body_hash),
            row.decided,
            row.lapses,
            row.via,
            row.difference,
        )
        for row in columns.collect()
    ]


@given(seed=st.integers(0, 2**32))
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_matches_are_those_of_one_process(spark: SparkSession, seed: int) -> None:
    """Interests that change mid-log, sessions deleted, keys, subjects, shares, content: each pair once, all there."""
    facts = _logs(seed, has_receipts=False)
    wanted = SingleProcess(retention=RETENTION).run(facts).matches
    log = _tables(spark, facts)
    found = _matches(matches(log.publications, log.interests, log.sessions))
    assert len(found) == len(set(found))
    assert set(found) == set(wanted)
    listed = listed_matches(log.publications, log.interests, log.sessions).collect()
    pairs = {(row.notification_node, row.notification_seq, seq) for row in listed for seq in row.interests}
    assert pairs == {(each.node, each.seq, each.interest_seq) for each in wanted}


@pytest.mark.parametrize("has_receipts", [False, True])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_deliveries_are_those_of_one_process(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int, *, has_receipts: bool
) -> None:
    """Ties in time, take and keep, sessions sharing devices and work, MQTT's qualities, ttl and max at their ends.

    Policies decide, are suspended, and withhold copies that the next member of a share gets; the log of a broker, whose
    decisions are checked, or are made again, is among the others.
    """
    facts = _logs(seed, has_receipts=has_receipts)
    live = prompt_log(tmp_path_factory.mktemp("live"), seed)
    facts += live if has_receipts else undecided(live)
    wanted = SingleProcess(retention=RETENTION, assume_receipts=not has_receipts).run(facts).deliveries
    found = _deliveries(
        deliveries(_tables(spark, facts), retention=RETENTION, assume_receipts=not has_receipts, groups=5)
    )
    assert Counter(found) == Counter(wanted)
    decided = [each for each in found if each.via != "retained"]
    assert len(decided) == len(set(decided))
    assert {each.outcome for each in wanted} > {Outcome.DELIVERED, Outcome.EXPIRED, Outcome.DISPLACED, Outcome.DROPPED}
    assert any(each.outcome is Outcome.WITHHELD for each in wanted)
    by_live = SingleProcess(retention=RETENTION, assume_receipts=False).run(live).deliveries
    of_broker = [each for each in found if each.node == NODE]
    assert Counter(map(_handed, of_broker)) == Counter(map(_handed, by_live))
    assert not any(each.difference for each in of_broker)
    assert has_receipts or not any(each.difference for each in found)


def test_made_up_decisions_are_found_out() -> None:
    """A checker that never finds anything would agree with every other one."""
    assert any(each.difference for seed in range(5) for each in _checked(seed))


def _checked(seed: int) -> list[Delivery]:
    facts = _logs(seed, has_receipts=True)
    return SingleProcess(retention=RETENTION, assume_receipts=False).run(facts).deliveries


def _handed(each: Delivery) -> tuple[object, ...]:
    """Return what a broker decides, without the time that it took."""
    return each.seq, each.session, each.device, each.outcome, each.body_hash


def test_sessions_with_the_same_share_are_folded_together() -> None:
    """Which of them is given a notification depends on who of them is present."""
    components = Components([], [("$share/g/a", "s"), ("$share/g/a", "t"), ("$share/h/a", "u")], groups=1_000)
    assert components.group("s") == components.group("t")
    assert components.group("s") != components.group("u")


def test_an_empty_log_has_empty_tables(spark: SparkSession) -> None:
    """Nobody published, nobody is there."""
    log = _tables(spark, [])
    assert matches(log.publications, log.interests, log.sessions).isEmpty()
    assert deliveries(log, assume_receipts=True).isEmpty()
