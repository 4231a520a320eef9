"""Rows of publications that need no queue, made with arrays, against those that the hold makes one by one."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from whimbrel.hold.commands import Identity
from whimbrel.hold.retention import Retention
from whimbrel.hold.store.memory import MemoryStore
from whimbrel.model.facts import (
    Fact,
    InterestChanged,
    Mode,
    PolicyChange,
    PolicyChanged,
    PresenceChange,
    PresenceChanged,
    SessionChange,
    SessionChanged,
)
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.pipeline.fold import live_rows as module
from whimbrel.pipeline.fold.folds import EVENT, FACT, PUBLISHED
from whimbrel.pipeline.unit import node_share
from whimbrel.pipeline.unit.node_share import NodeShare

NODE, PIECES = "n", 12
SESSIONS, DEVICES, FILTERS = ("s", "t", "u", "$mqtt/d1"), ("d1", "d2", "d3", "d4"), ("a", "a/#", "$share/g/a")
RETENTION = Retention(ttl_us=3_000, max_held=2)


class _World:
    """A log that is drawn piece by piece, and given to a fold with live rows and to one without."""

    def __init__(self, seed: int) -> None:
        self._random = random = Random(seed)
        self._seq, self._now = 0, 1_000
        self._subscribed: dict[tuple[str, Identity], int] = {}
        self._stores = MemoryStore(), MemoryStore()
        self._shares = [
            NodeShare(NODE, store, retention=RETENTION, assume_receipts=True, has_live_rows=is_first)
            for is_first, store in zip((True, False), self._stores, strict=True)
        ]
        self._is_plain = random.random() < 0.8
        """Whether nothing of MQTT's occurs: no private session, share or QoS."""
        self._calm = random.choice((0.05, 0.3))
        """Share of the facts that are no publications."""
        self._changes_policy = random.random() < 0.1
        self._steps = (0, 1, 40) if random.random() < 0.9 else (-1, 0, 1, 40)

    def piece(self) -> None:
        """Draw a piece, fold it twice, and compare the rows."""
        random = self._random
        rows: list[dict[str, object]] = []
        facts: dict[int, Fact] = {}
        ended: list[int] = []
        for _ in range(random.randint(1, 60)):
            self._seq += 1
            self._now = max(0, self._now + random.choice(self._steps))
            if random.random() >= self._calm:
                rows += self._publication()
                continue
            fact = self._fact(ended)
            facts[self._seq] = fact
            rows.append({"seq": self._seq, "kind": FACT})
        events = pa.Table.from_pylist(rows, EVENT)
        found = []
        for share in self._shares:
            share.in_force.whose.update({seq: key for key, seq in self._subscribed.items()})
            share.in_force.whose.update(self._added)
            made = [row for batch in share.fold(events, facts, self._now) for row in _plain_rows(batch)]
            found.append(Counter(made))
            for seq in ended:
                share.in_force.whose.pop(seq, None)
            share.commit(self._seq)
        assert found[0] == found[1]
        assert dict(self._stores[0].rows()) == dict(self._stores[1].rows())

    _added: dict[int, tuple[str, Identity]] = {}  # noqa: RUF012  # replaced per piece

    def _publication(self) -> list[dict[str, object]]:
        random = self._random
        interests = [seq for seq in self._subscribed.values() if random.random() < 0.6]
        if not interests:
            return []
        expires_at = random.choice((None, None, None, self._now, self._now + 100))
        return [
            {
                "seq": self._seq,
                "kind": PUBLISHED,
                "at": self._now,
                "expires_at": expires_at,
                "deadline_at": random.choice((None, self._now + 5)),
                "subject": random.choice(("a", "a/b", None)),
                "interests": random.sample(interests, len(interests)),
                "body_hash": bytes([self._seq % 7] * 32),
                "device": random.choice((None, *DEVICES)),
                "qos": random.choice((None, 0, 1)),
            }
        ]

    def _fact(self, ended: list[int]) -> Fact:
        random = self._random
        kind = random.random()
        head: dict[str, Any] = {"node": NODE, "seq": self._seq, "changed_at": self._now}
        if kind < 0.7:
            change = random.choice((PresenceChange.JOINED,) * 4 + (PresenceChange.LEFT, PresenceChange.DISCONNECTED))
            is_joined = change is PresenceChange.JOINED
            session = None if change is PresenceChange.DISCONNECTED else self._session()
            receipt = random.choice((Mode.TAKE, Mode.TAKE, Mode.KEEP)) if is_joined else None
            return PresenceChanged(
                **head, device=random.choice(DEVICES), session=session, change=change, receipt=receipt
            )
        if kind > 0.97:
            session = random.choice(SESSIONS)
            ended += [self._subscribed.pop(key) for key in list(self._subscribed) if key[0] == session]
            return SessionChanged(**head, session=session, change=SessionChange.DELETED)
        if kind > 0.95 and self._changes_policy:
            return PolicyChanged(**head, change=PolicyChange.PUT, name="p", owner="o", text="return NULL;")
        return self._interest(head, ended)

    def _interest(self, head: dict[str, Any], ended: list[int]) -> InterestChanged:
        random = self._random
        is_removed = random.random() < 0.2
        subscription = Subscription(
            session=self._session(),
            subject_filter=random.choice(FILTERS[:2] if self._is_plain else FILTERS),
            name=random.choice(("", "x")),
            ttl_us=random.choice((None, None, 0, 500, 2**63 - 1)),
            max_held=random.choice((None, None, 0, 1)),
            qos=None if self._is_plain else random.choice((None, 0, 1)),
            seq=self._seq,
            changed_at=self._now,
        )
        key = (subscription.session, (subscription.subject_filter, subscription.name))
        if key in self._subscribed:
            ended.append(self._subscribed.pop(key))
        if not is_removed:
            self._subscribed[key] = self._seq
            self._added = {**self._added, self._seq: key}
        change = InterestChange.REMOVED if is_removed else InterestChange.ADDED
        return InterestChanged(**head, change=change, subscription=subscription)

    def _session(self) -> str:
        return self._random.choice(SESSIONS[:3] if self._is_plain else SESSIONS)


def _plain_rows(batch: Any) -> list[str]:  # a pyarrow.RecordBatch
    """Return rows as texts; times as numbers, because Python has no datetime for the latest ones."""
    is_time = [pa.types.is_timestamp(field.type) for field in batch.schema]
    columns = [c.cast(pa.int64()) if is_one else c for c, is_one in zip(batch.columns, is_time, strict=True)]
    return [repr(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]


@pytest.mark.parametrize("seeds", [range(12), range(12, 24)])
def test_live_rows_are_those_of_the_hold(monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    """Absent devices, modes, ttl and max at their ends, shares, MQTT's QoS, policies, a clock that goes back."""
    monkeypatch.setattr(node_share, "_MIN_LIVE_EVENTS", 1)
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 20)
    made: Counter[str] = Counter()
    rows = module._rows

    def counted(*args: Any) -> Any:
        for batch in rows(*args):
            made.update(batch.column("outcome").to_pylist())
            yield batch

    monkeypatch.setattr(module, "_rows", counted)
    for seed in seeds:
        world = _World(seed)
        for _ in range(PIECES):
            world.piece()
    assert made["delivered"] > 200
    assert made["taken elsewhere"] > 20
