"""A stream that folds busy nodes in groups of sessions, against one that folds each node whole: the same rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from policy_traffic import prompt_log, undecided
from random_logs import placed_log
from stream_rig import StreamRig, forget

from whimbrel.hold.private import private_session
from whimbrel.hold.retention import Retention
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import (
    Fact,
    InterestChanged,
    Mode,
    PresenceChange,
    PresenceChanged,
    SessionChange,
    SessionChanged,
)
from whimbrel.model.notification import Notification
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.pipeline import TABLES_MADE
from whimbrel.pipeline.files.delta import read
from whimbrel.pipeline.plans import StreamPlan
from whimbrel.pipeline.stream.groups.directory import Directory

pytestmark = pytest.mark.usefixtures("interpreted")

NODES, FACTS, BATCHES = ("node0", "node1"), 200, 7
PLAN = StreamPlan(
    retention=Retention(ttl_us=30, max_held=3),
    window_us=16,
    nodes=7,
    slots_per_node=3,
    lateness_us=1 << 60,  # nobody is late: the nodes' clocks are far apart
)
WHOLE = 1 << 40


def _logs(folder: Path, seed: int, *, has_receipts: bool) -> dict[str, list[Fact]]:
    random = Random(seed)
    facts = {node: placed_log(random, node, facts=FACTS, has_receipts=has_receipts) for node in NODES}
    live = prompt_log(folder, seed)
    own = live if has_receipts else [replace(fact, seq=seq) for seq, fact in enumerate(undecided(live), 1)]
    return facts | {own[0].node: [*own]}


def _write(log: Path, logs: dict[str, list[Fact]]) -> None:
    for node, facts in logs.items():
        with LogWriter(log, node) as writer:
            for fact in facts:
                writer.append(fact)


def _ends(random: Random, logs: dict[str, list[Fact]]) -> Iterator[dict[str, int]]:
    """Yield where batches end; some nodes have many facts in a batch, and some have few or none."""
    ends = {node: facts[-1].seq for node, facts in logs.items()}
    at = dict.fromkeys(logs, 0)
    for _ in range(BATCHES):
        at = {
            node: min(end, at[node] + random.choice([0, 3, random.randrange(end // 3)])) for node, end in ends.items()
        }
        yield at
    yield ends


def _rows(out: Path, table: str) -> Counter[str]:
    return Counter(repr(row | {"found_at": None}) for row in read(out, table).to_pylist())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("has_receipts", [False, True])
def test_groups_make_the_rows_of_the_whole_node(tmp_path: Path, seed: int, *, has_receipts: bool) -> None:
    """Sessions share devices and work, policies decide, places matter; nodes become busy, and cores come and go."""
    logs = _logs(tmp_path / "live", seed, has_receipts=has_receipts)
    _write(tmp_path / "log", logs)
    plan = replace(PLAN, assume_receipts=not has_receipts)
    random = Random(seed)
    whole = StreamRig(log=tmp_path / "log", out=tmp_path / "whole", plan=plan, group_facts=WHOLE)
    grouped = StreamRig(log=tmp_path / "log", out=tmp_path / "grouped", plan=plan, piece_facts=random.randint(10, 99))
    counts = set()
    for end in _ends(random, logs):
        grouped.job = replace(grouped.job, group_facts=random.choice([1, 20, 60, WHOLE]))
        grouped.workers.cores = random.choice([2, 3, 3, 8])
        whole.take(end)
        grouped.take(end)
        if random.random() < 0.4:
            forget()
        record = grouped.commits.record
        counts |= {len(each.groups) for each in record.nodes.values()} if record is not None else set()
        held = [{*stream.find_held()} for stream in (whole, grouped)]
        assert held[0] == held[1]
    for table in TABLES_MADE:
        assert _rows(tmp_path / "grouped", table) == _rows(tmp_path / "whole", table), table
    assert len(counts) > 1


AT = 1_767_225_600_000_000


def _write_facts(log: Path, *facts: tuple[type[Fact], dict[str, Any]]) -> None:
    with LogWriter(log, "n") as writer:
        for seq, (kind, values) in enumerate(facts, 1):
            writer.append(kind(node="n", seq=seq, **values))


def _joined(device: str, session: str, *, at: int = AT) -> tuple[type[Fact], dict[str, Any]]:
    told = {"changed_at": at, "device": device, "session": session, "change": PresenceChange.JOINED}
    return PresenceChanged, {**told, "receipt": Mode.TAKE}


def _subscribed(session: str) -> tuple[type[Fact], dict[str, Any]]:
    wanted = Subscription(session=session, subject_filter="a", name="")
    return InterestChanged, {"changed_at": AT, "change": InterestChange.ADDED, "subscription": wanted}


def test_a_device_that_left_with_something_in_flight_stays_with_its_session(tmp_path: Path) -> None:
    """It disconnects once the node is in groups; this gives back what it has not confirmed, to the next device."""
    names = [(f"s{number}", f"d{number}", f"e{number}") for number in range(8)]
    moved = {"changed_at": AT, "sent_seq": 17}
    facts = [fact for session, device, _ in names for fact in (_subscribed(session), _joined(device, session))]
    facts.append((Notification, {"published_at": AT, "subject": "a", "expires_at": AT + 5}))
    left = {"change": PresenceChange.LEFT, **moved}
    facts += [(PresenceChanged, {"device": device, "session": session, **left}) for session, device, _ in names]
    gone = {"change": PresenceChange.DISCONNECTED, **moved}
    facts += [(PresenceChanged, {"device": device, **gone}) for _, device, _ in names]
    facts += [_joined(other, session, at=AT + 100) for session, _, other in names]
    _write_facts(tmp_path / "log", *facts)
    rows = {}
    for name, least in (("whole", WHOLE), ("grouped", 1)):
        rig = StreamRig(log=tmp_path / "log", out=tmp_path / name, plan=StreamPlan(assume_receipts=False))
        rig.workers.cores = 3
        for end in (25, 33, 41):
            rig.take({"n": end})
            rig.job = replace(rig.job, group_facts=least)
        rows[name] = _rows(tmp_path / name, "deliveries")
    assert sum(rows["whole"].values()) == len(names)
    assert rows["grouped"] == rows["whole"]


def test_clients_that_come_and_go_leave_nothing(tmp_path: Path) -> None:
    """A client has a random name and a session of its own, which goes with it: the directory does not grow."""
    facts = []
    for number in range(60):
        session = private_session(f"c{number}")
        facts += [_subscribed(session), _joined(f"c{number}", session)]
        facts.append((SessionChanged, {"changed_at": AT, "session": session, "change": SessionChange.DELETED}))
    _write_facts(tmp_path / "log", *facts)
    rig = StreamRig(log=tmp_path / "log", out=tmp_path / "out", plan=StreamPlan(assume_receipts=False), group_facts=1)
    rig.workers.cores = 3
    for end in (60, 120, 180):
        rig.take({"n": end})
    record = rig.commits.record
    assert record is not None
    directory = Directory("n", Path(rig.job.state), record.nodes["n"].state)
    assert not any(directory.groups.values())
    assert not directory.links()
    assert not sum(each.size for each in record.nodes["n"].groups)
