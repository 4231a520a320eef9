"""Flights that a caller begins and ends itself: the hold is then in the state that its rules would have led to."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from whimbrel.hold.commands import HandOver
from whimbrel.hold.private import private_session
from whimbrel.hold.sessions import Hold
from whimbrel.model.facts import InterestChanged, Mode, Outcome, PresenceChange, PresenceChanged
from whimbrel.model.subscription import InterestChange, Subscription

NODE = "n"
DEVICES = ("a", "b", "c")
IDENTITY = ("t", "")
STEPS = 120


@dataclass(frozen=True)
class _Kept:
    seq: int
    published_at: int
    qos: int = 1
    expires_at: int | None = None
    publisher: str | None = None


class _Twins:
    """Two holds that are told the same: one by its rules alone, the other with flights begun and ended from outside."""

    def __init__(self, seed: int) -> None:
        self.rng, self.seq, self.now = Random(seed), 0, 1_000
        self.plain, self.direct = Hold[_Kept](NODE), Hold[_Kept](NODE)
        self.away: set[str] = set()
        self.sent: dict[str, list[int]] = {device: [] for device in DEVICES}
        for device in DEVICES:
            self.join(device)
            self.subscribe(device, 3)
        for hold in (self.plain, self.direct):
            hold.changes()

    def _next(self) -> dict[str, object]:
        self.seq += 1
        self.now += self.rng.choice((0, 0, 1, 40))
        return {"node": NODE, "seq": self.seq, "changed_at": self.now}

    def _apply(self, fact: InterestChanged | PresenceChanged) -> None:
        assert self.plain.apply(fact) == self.direct.apply(fact)

    def join(self, device: str) -> None:
        """Let a device come back; it is handed what is held."""
        self.away.discard(device)
        fact = PresenceChanged(
            **self._next(),  # type: ignore[arg-type]  # the members that all facts have
            device=device,
            session=private_session(device),
            change=PresenceChange.JOINED,
            receipt=Mode.TAKE,
        )
        commands = self.plain.apply(fact)
        assert commands == self.direct.apply(fact)
        self.sent[device] = [each.seq for each in commands if isinstance(each, HandOver)]

    def leave(self, device: str) -> None:
        """Break a connection."""
        self.away.add(device)
        self.sent[device] = []
        change = PresenceChange.DISCONNECTED
        self._apply(PresenceChanged(**self._next(), device=device, change=change))  # type: ignore[arg-type]  # as above

    def subscribe(self, device: str, most: int) -> None:
        """Subscribe, or change how much is held."""
        subscription = Subscription(
            session=private_session(device), subject_filter="t", name="", ttl_us=50, max_held=most, qos=1
        )
        change = InterestChange.ADDED
        self._apply(
            InterestChanged(**self._next(), device=device, subscription=subscription, change=change)  # type: ignore[arg-type]  # as above
        )

    def publish(self) -> None:
        """Publish a run to all: one hold decides everything, the other what is left to it."""
        self._next()
        run = [_Kept(self.seq + more, self.now) for more in range(self.rng.randint(1, 3))]
        self.seq = run[-1].seq
        matches = [(private_session(device), (IDENTITY,)) for device in DEVICES]
        for kept in run:
            self.plain.published(kept, matches)
        targets = [self.direct.find_target(*match) for match in matches]
        left = [matches[at] for at in self.direct.begin_flights(run, targets)]
        for kept in run if left else ():
            self.direct.published(kept, left)
        for device in set(DEVICES) - self.away:
            self.sent[device] += [kept.seq for kept in run]

    def confirm(self, device: str) -> None:
        """Confirm some of what a device was sent."""
        some = self.rng.sample(self.sent[device], self.rng.randint(0, len(self.sent[device])))
        self.sent[device] = [seq for seq in self.sent[device] if seq not in some]
        self._next()
        session = private_session(device)
        self.plain.tick(self.now)
        for seq in some:
            self.plain.confirmed(self.now, session, device, seq, Outcome.DELIVERED)
        self.direct.confirm_all(self.now, session, device, some)

    def step(self) -> None:
        """Do something."""
        device, kind = self.rng.choice(DEVICES), self.rng.random()
        if kind < 0.5:
            self.publish()
        elif kind < 0.8:
            self.confirm(device)
        elif kind < 0.9:
            (self.join if device in self.away else self.leave)(device)
        else:
            self.subscribe(device, self.rng.randint(1, 4))


@pytest.mark.parametrize("seed", range(15))
def test_flights_from_outside_are_those_of_the_rules(seed: int) -> None:
    """Who joins later is handed the same, and a restart finds the same, whoever put a notification in flight."""
    twins = _Twins(seed)
    for number in range(STEPS):
        twins.step()
        assert twins.plain.counts() == twins.direct.counts(), number
        if twins.rng.random() < 0.1:
            assert _rows(twins.plain) == _rows(twins.direct), number


def _rows(hold: Hold[_Kept]) -> object:
    hold.touch_all()
    return hold.changes()
