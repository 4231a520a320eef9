"""Publications that end as they come, against the rules that hold, hand over, confirm and end them."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from kept import without_kept

from whimbrel.hold.commands import Identity
from whimbrel.hold.folding import Folding, Grouped, one_by_one
from whimbrel.hold.retention import Retention
from whimbrel.hold.rules.assumed import AssumedReceipts
from whimbrel.hold.shared_subscriptions import sorted_matches
from whimbrel.hold.touched_rows import Key
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import InterestChanged, Mode, PresenceChange, PresenceChanged, SessionChange, SessionChanged
from whimbrel.model.notification import Notification
from whimbrel.model.subscription import InterestChange, Subscription

NODE, FACTS = "n", 120
SESSIONS, DEVICES, FILTERS = ("s", "t", "$mqtt/d1"), ("d1", "d2", "d3"), ("a", "a/#", "$share/g/a")
RETENTION = Retention(ttl_us=30, max_held=2)
Matches = list[tuple[str, tuple[Identity, ...]]]


class _World:
    """A log that is drawn as it goes on, given to two folds."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.seq, self.now = 0, 1_000
        self.fast, self.slow = Folding(NODE, retention=RETENTION), Folding(NODE, retention=RETENTION)
        self._rows: tuple[dict[Key, bytes], dict[Key, bytes]] = ({}, {})
        self.is_plain = self._random.random() < 0.7
        """Whether it has what every session has, and nothing of MQTT's."""

    def step(self) -> None:
        """Let something happen."""
        self.seq += 1
        self.now += self._random.choice((0, 0, 1, 5, 40))
        kind = self._random.random()
        if kind < 0.5:
            self._publish()
            return
        if kind < 0.75:
            fact: object = self._presence()
        elif kind < 0.98:
            fact = self._interest()
        else:
            session = self._random.choice(SESSIONS)
            change = SessionChange.DELETED
            fact = SessionChanged(node=NODE, seq=self.seq, changed_at=self.now, session=session, change=change)
        self._compare(self.fast.apply(fact), self.slow.apply(fact))  # type: ignore[arg-type]  # each is a fact

    def _publish(self) -> None:
        hold, random = self.slow.hold, self._random
        matches: Matches = []
        for session in hold.sessions():
            own = [(each.subject_filter, each.name) for each in hold.subscriptions(session)]
            wanted = tuple(random.sample(own, random.randint(0, len(own))))
            if wanted:
                matches.append((session, wanted))
        expires_at = random.choice((None, None, self.now, self.now + 20))
        qos, publisher = random.choice((0, 1, 2)), random.choice((None, *DEVICES))
        kept = Notification(
            node=NODE, seq=self.seq, published_at=self.now, expires_at=expires_at, qos=qos, publisher=publisher
        )
        self._compare(
            self.fast.published(kept, sorted_matches(matches), is_decided=False), self.slow.published(kept, matches)
        )

    def _presence(self) -> PresenceChanged:
        random = self._random
        change = random.choice((PresenceChange.JOINED,) * 4 + (PresenceChange.LEFT, PresenceChange.DISCONNECTED))
        is_joined = change is PresenceChange.JOINED
        return PresenceChanged(
            node=NODE,
            seq=self.seq,
            changed_at=self.now,
            device=random.choice(DEVICES),
            session=None if change is PresenceChange.DISCONNECTED else self._session(),
            change=change,
            receipt=random.choice((Mode.TAKE, Mode.KEEP)) if is_joined else None,
        )

    def _interest(self) -> InterestChanged:
        random = self._random
        subscription = Subscription(
            session=self._session(),
            subject_filter=random.choice(FILTERS[:2] if self.is_plain else FILTERS),
            name=random.choice(("", "x")),
            ttl_us=random.choice((None, None, 0, 10, INT64_MAX)),
            max_held=random.choice((None, None, 0, 1)),
            qos=None if self.is_plain else random.choice((None, 0, 1)),
        )
        change = random.choice((InterestChange.ADDED, InterestChange.ADDED, InterestChange.REMOVED))
        return InterestChanged(node=NODE, seq=self.seq, changed_at=self.now, change=change, subscription=subscription)

    def _session(self) -> str:
        return self._random.choice(SESSIONS[:2] if self.is_plain else SESSIONS)

    @staticmethod
    def _compare(fast: Grouped, slow: Grouped) -> None:
        assert Counter(without_kept(one_by_one(fast))) == Counter(without_kept(one_by_one(slow)))

    def same(self) -> None:
        """Compare the rows that a store has, which gets only what changed since the last time."""
        for folding, rows in zip((self.fast, self.slow), self._rows, strict=True):
            put, drop = folding.hold.changes()
            rows.update(put)
            for key in drop:
                rows.pop(key, None)
        assert self._rows[0] == self._rows[1]


@pytest.mark.parametrize("seeds", [range(100), range(100, 200)])
def test_what_ends_at_once_is_what_the_rules_end(monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    """Devices that are away, that keep, ttl and max at their ends, shares, MQTT's qualities: the rules decide those."""
    ended: Counter[bool] = Counter()
    by_rules = AssumedReceipts._results

    def counted(self: AssumedReceipts, *args: object) -> object:
        found = by_rules(self, *args)  # type: ignore[arg-type]  # as they came
        ended[found is not None] += bool(args[1])
        return found

    monkeypatch.setattr(AssumedReceipts, "_results", counted)
    for seed in seeds:
        world = _World(seed)
        for number in range(FACTS):
            world.step()
            if number % 10 == 0:
                world.same()
        world.same()
    assert min(ended[True], ended[False]) > 100
