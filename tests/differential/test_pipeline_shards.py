"""Shards through the unit, in any number, against the same log folded in one process; no Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from broker_rig import NODE
from log_rows import deliveries_in, matches_in, write_facts
from policy_traffic import prompt_log, undecided
from random_logs import placed_log, random_log
from single_process import Delivery, SingleProcess

from whimbrel.hold.private import is_private
from whimbrel.hold.retention import Retention
from whimbrel.model.device import DeviceState
from whimbrel.model.facts import Decided, Fact, InterestChanged, Outcome, PolicyChanged, Reported
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.batch import match_slices
from whimbrel.pipeline.batch.job import BatchJob, CutLogError, NodeSpan
from whimbrel.pipeline.batch.stages import divide, make_files
from whimbrel.pipeline.batch.tasks import Here
from whimbrel.pipeline.columnar.columnar_hold import ColumnarHold
from whimbrel.pipeline.fold.components import Components
from whimbrel.pipeline.plans import Plan

LOGS, FACTS = 8, 100
TABLES_OF = ("matches", "deliveries", "link_quality", "dead_letters")
RETENTION = Retention(ttl_us=30, max_held=3)


def logs_of(seed: int, *, has_receipts: bool) -> list[Fact]:
    """Return the facts of many nodes."""
    random = Random(seed)
    facts: list[Fact] = []
    for log in range(LOGS):
        node = f"node{log}"
        facts += random_log(random, node, facts=FACTS, has_receipts=has_receipts)
        if log % 2:  # time passes with the last fact of a log, whatever it is
            facts.append(Reported(node=node, seq=FACTS + 1, state=DeviceState(device="d1", reported_at=1_000_500)))
    return facts


def plain_log(random: Random, node: str, *, has_clients: bool) -> list[Fact]:
    """Return the log of a node with plain sessions; with clients, also of MQTT clients that are in none of these."""
    found: list[Fact] = []
    for fact in random_log(random, node, facts=3 * FACTS, has_receipts=False):
        given = fact
        if isinstance(given, InterestChanged):
            session = given.subscription.session
            if not is_private(session):
                given = replace(given, subscription=replace(given.subscription, qos=None, policy=None))
        else:
            session = getattr(given, "session", None) or ""
        if isinstance(given, PolicyChanged | Decided) or (is_private(session) and not has_clients):
            continue
        if session in {"$mqtt/d1", "$mqtt/d2"}:  # of devices that are in other sessions, too
            continue
        found.append(replace(given, seq=len(found) + 1))
    return found


def folded(
    folder: Path, facts: Iterable[Fact], random: Random, *, assume_receipts: bool, is_columnar: bool = True
) -> dict[str, pa.Table]:
    """Return the tables that shards of each node make together, from slices and pieces of any size."""
    spans = [NodeSpan(node, *span) for node, span in write_facts(folder / "log", facts).items()]
    (folder / "scratch").mkdir()
    job = BatchJob(
        log=str(folder / "log"),
        out=str(folder / "out"),
        folder="",
        scratch=str(folder / "scratch"),
        tables=TABLES_OF,
        plan=Plan(retention=RETENTION, assume_receipts=assume_receipts),
        now=0,
        is_columnar=is_columnar,
        piece_facts=random.randint(FACTS // 4, 2 * FACTS),
        file_bytes=random.choice([1, 1 << 20]),
    )
    shards = {span.node: random.randint(1, 4) for span in spans}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(match_slices, "_FACTS_A_SLICE", random.randint(10, 2 * FACTS))
        patch.setattr(match_slices, "_SLICES_A_CORE", LOGS * FACTS)
        made = make_files(Here(), job, spans, shards=shards)
    return {
        table: pa.concat_tables(
            [TABLES[table].schema.empty_table(), *map(pq.read_table, own)], promote_options="permissive"
        )
        for table, own in made.files.items()
    }


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("has_receipts", [False, True])
def test_shards_make_the_rows_of_one_process(tmp_path: Path, seed: int, *, has_receipts: bool) -> None:
    """Ties in time, take and keep, sessions sharing devices and work, MQTT's qualities, ttl and max at their ends.

    Policies decide, are suspended, and withhold copies that the next member of a share gets; the log of a broker, whose
    decisions are checked, or are made again, is among the others.
    """
    facts = logs_of(seed, has_receipts=has_receipts)
    live = prompt_log(tmp_path / "live", seed)
    facts += live if has_receipts else undecided(live)
    single = SingleProcess(retention=RETENTION, assume_receipts=not has_receipts).run(facts)
    tables = folded(tmp_path, facts, Random(seed), assume_receipts=not has_receipts)
    matched, found, wanted = matches_in(tables["matches"]), deliveries_in(tables["deliveries"]), single.deliveries
    assert Counter(matched) == Counter(single.matches)
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


@pytest.mark.parametrize("seed", range(3))
def test_plain_sessions_have_the_same_rows_in_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Of nodes where all sessions are plain, and of nodes where some are not, with the switch on and off."""
    taken: list[int] = []
    take = ColumnarHold.take

    def counted(hold: ColumnarHold, *given: Any) -> Iterator[Any]:
        for batch in take(hold, *given):
            taken.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(ColumnarHold, "take", counted)
    random = Random(seed)
    facts = [fact for log in range(LOGS) for fact in plain_log(random, f"n{log}", has_clients=log % 2 == 1)]
    single = SingleProcess(retention=RETENTION).run(facts)
    found, slow = (
        folded(tmp_path / str(on), facts, Random(seed), assume_receipts=True, is_columnar=on)["deliveries"]
        for on in (True, False)
    )
    assert Counter(deliveries_in(found)) == Counter(deliveries_in(slow)) == Counter(single.deliveries)
    assert found.num_rows > sum(taken) > found.num_rows // 2


@pytest.mark.parametrize("seed", range(2))
def test_shards_heed_places(tmp_path: Path, seed: int) -> None:
    """Where devices were is known in each shard, of its own sessions."""
    random = Random(seed)
    facts = [f for log in range(LOGS) for f in placed_log(random, f"node{log}", facts=FACTS, has_receipts=False)]
    single = SingleProcess(retention=RETENTION).run(facts)
    tables = folded(tmp_path, facts, random, assume_receipts=True)
    assert Counter(matches_in(tables["matches"])) == Counter(single.matches)
    assert Counter(deliveries_in(tables["deliveries"])) == Counter(single.deliveries)


def _handed(each: Delivery) -> tuple[object, ...]:
    """Return what a broker decides, without the time that it took."""
    return each.seq, each.session, each.device, each.outcome, each.body_hash


def test_made_up_decisions_are_found_out() -> None:
    """A checker that never finds anything would agree with every other one."""
    found = (
        SingleProcess(retention=RETENTION, assume_receipts=False).run(logs_of(seed, has_receipts=True)).deliveries
        for seed in range(5)
    )
    assert any(each.difference for own in found for each in own)


def test_sessions_with_the_same_share_are_folded_together() -> None:
    """Which of them is given a notification depends on who of them is present."""
    components = Components([], [("$share/g/a", "s"), ("$share/g/a", "t"), ("$share/h/a", "u")], groups=1_000)
    assert components.group("s") == components.group("t")
    assert components.group("s") != components.group("u")


def test_a_busy_node_has_more_shards() -> None:
    """One of nine tenths of the log, on four cores; each shard of a small one would cost more than it saves."""
    spans = [NodeSpan("busy", 0, 899_999), NodeSpan("calm", 0, 99_999), NodeSpan("new", 0, -1)]
    assert divide(spans, cores=4) == {"busy": 4, "calm": 1, "new": 1}
    assert divide([NodeSpan("small", 0, 99_999)], cores=8) == {"small": 2}


def test_a_log_that_is_cut_meanwhile_is_no_other_log(tmp_path: Path) -> None:
    """The driver has seen another beginning: shards of two beginnings would not fit each other."""
    ((node, (_, last)),) = write_facts(tmp_path, random_log(Random(1), "n", facts=20, has_receipts=True)).items()
    here, plan = str(tmp_path), Plan(assume_receipts=False)
    job = BatchJob(log=here, out=here, folder="", scratch=here, tables=TABLES_OF, plan=plan, now=0)
    with pytest.raises(CutLogError, match="run it again"):
        make_files(Here(), job, [NodeSpan(node, 7, last)])
