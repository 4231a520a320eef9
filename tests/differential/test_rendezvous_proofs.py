"""Proofs of membership in any order and at any time, against the text of the thesis (Huang, 4.1.3).

Devices are honest, lie, or are silent; each answer takes a random time, and answers to older questions come again. The
oracle below is the text: keys as in Table 4.1 and their verification group by group, attributes whatever the case of
their letters, a list of matches, and what is done with one, with several subscriptions and with several publications.
It knows neither time nor questions: what a crowd says, and when, must never change who meets whom. (Of two triggers
that wait for proofs, the first that has them is decided first; here a newcomer comes when the one before is decided.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from random import Random

import pytest
from tests.unit.rendezvous_rig import Member, Rig, address, notes, sent

from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller import NoteKind, Parameters
from whimbrel.rendezvous.controller.commands import Disconnect
from whimbrel.rendezvous.controller.proofs import members as members_module
from whimbrel.rendezvous.events import Address, GroupKey, Subscription
from whimbrel.rendezvous.tokens import DeviceKeys, GroupOwner

RUNS = 2_000
SECOND = 1_000_000
OWNERS = [GroupOwner(bytes([number]) * 32) for number in (1, 2, 3)]
GROUPS = [owner.public for owner in OWNERS]
PARAMETERS = Parameters(messages_per_s=1_000)
LONGEST_US = 2_400_000
"""So long all answers of one pair take at most, one group after the other; a pair has 2.56 s."""


@dataclass(frozen=True)
class Party:
    """A device with one event, and the truth about it."""

    address: Address
    manner: str
    groups: frozenset[GroupKey]
    """The groups of which it is a member."""
    keys: tuple[GroupKey, ...]
    """The groups that its event names."""
    name: str | None
    device_class: int | None

    def can_prove(self, group: GroupKey) -> bool:
        """Return whether it proves *group* when it is asked."""
        return self.manner == "honest" and group in self.groups


# -- the oracle ------------------------------------------------------------------------------------------------------


def shared(publisher: Party, subscriber: Party) -> list[GroupKey | None]:
    """Return the common elements of both lists of keys, once NULL is appended to the subscription's (Table 4.2)."""
    return [key for key in (publisher.keys or (None,)) if key in (*subscriber.keys, None)]


def agree(publisher: Party, subscriber: Party) -> bool:
    """Return whether attributes are the same, or NULL on the subscription's side, whatever the case of letters."""
    names = (publisher.name or "").casefold(), (subscriber.name or "").casefold()
    return (subscriber.name is None or names[0] == names[1]) and subscriber.device_class in {
        None,
        publisher.device_class,
    }


def is_match(publisher: Party, subscriber: Party) -> bool:
    """Return whether the keys are consistent, some common group is verified for both, and the attributes agree."""
    common = shared(publisher, subscriber)
    is_verified = None in common or any(
        publisher.can_prove(key) and subscriber.can_prove(key) for key in common if key is not None
    )
    return is_verified and agree(publisher, subscriber)


def expected(trigger: Party, older: Sequence[Party], newer: Sequence[Party], *, is_publication: bool) -> list[object]:
    """Return what may become of *trigger*: the device that it is matched with, a list, ``None``, or ``"gone"``.

    A trigger whose own device is silent is dropped, unless every device that it was asked beside failed at once.
    """

    def pair(other: Party) -> tuple[Party, Party]:
        return (trigger, other) if is_publication else (other, trigger)

    matches = [each.address for each in older if is_match(*pair(each))]
    later = [each.address for each in newer if is_match(*pair(each))]
    normal = matches if len(matches) > 1 and not is_publication else next(iter([*matches, *later]), None)
    if trigger.manner != "silent":
        return [normal]
    may_be_dropped = False
    for each in older if matches else (*older, *newer):
        common = shared(*pair(each))
        if not agree(*pair(each)) or not common:
            continue
        if None in common:
            if is_publication or each in newer:
                break
        elif each.manner == "silent" or any(each.can_prove(key) for key in common if key is not None):
            return ["gone"]
        else:
            may_be_dropped = True
    return [normal, "gone"] if may_be_dropped else [normal]


# -- the controller, played ------------------------------------------------------------------------------------------


@cache
def member_of(who: Address, groups: frozenset[GroupKey]) -> Member:
    """Return a device with the tokens of its groups."""
    return Member(who, *(owner for owner in OWNERS if owner.public in groups))


class Play:
    """One run: a trigger, the events that were there before it, and those that come while proofs are under way."""

    def __init__(self, random: Random) -> None:
        self.random, self.is_publication = random, random.random() < 0.5
        numbers = count(100)
        self.older = [self.draw(next(numbers), is_center=False) for _ in range(random.randrange(8))]
        self.trigger = self.draw(next(numbers), is_center=True)
        self.newer = [self.draw(next(numbers), is_center=False) for _ in range(random.choice((0, 0, 0, 1, 2)))]
        self.parties = {each.address: each for each in (*self.older, self.trigger, *self.newer)}
        groups = [
            shared(*((self.trigger, each) if self.is_publication else (each, self.trigger)))
            for each in (*self.older, *self.newer)
        ]
        self.longest_us = LONGEST_US // max([1, *map(len, groups)])
        self.rig = Rig(PARAMETERS)
        self.said: list[tuple[Address, m.Proof]] = []
        self.under_way: list[tuple[int, Address, m.Proof]] = []
        self.heard: dict[Address, int] = {}

    def draw(self, number: int, *, is_center: bool) -> Party:
        """Return a device that may be anything."""
        random = self.random
        is_publisher = is_center == self.is_publication
        names = ("Straße", "STRASSE") if is_publisher else (None, None, None, "strasse", "Bob")
        classes = (1, 1, 1, 2) if is_publisher else (None, None, None, 1)
        return Party(
            address=address(number),
            manner=random.choice(("honest",) * 6 + ("lies", "silent")),
            groups=frozenset(group for group in GROUPS if random.random() < 0.7),
            keys=tuple(random.sample(GROUPS, random.choice((0, 1, 1, 1, 2, 2, 3)))),
            name=random.choice(names),
            device_class=random.choice(classes),
        )

    def bring(self, party: Party, *, is_publisher: bool) -> None:
        """Let a device come with its event."""
        if is_publisher:
            self.rig.publish(party.address, name=party.name or "", device_class=party.device_class, keys=party.keys)
        else:
            wanted = Subscription(name=party.name, device_class=party.device_class, keys=party.keys)
            self.rig.connect(party.address)
            self.rig.say(party.address, m.Subscribe(wanted))

    def run(self) -> None:
        """Play until nothing is left to be proven."""
        rig, random = self.rig, self.random
        for each in self.older:
            self.bring(each, is_publisher=not self.is_publication)
        self.bring(self.trigger, is_publisher=self.is_publication)
        arrivals = [(10 * number + random.randrange(6)) * SECOND for number in range(len(self.newer))]
        coming = list(zip(arrivals, self.newer, strict=True))
        while True:
            self.under_way += self.answers()
            due = [each[0] for each in self.under_way] + [each[0] for each in coming]
            if not due and not rig.core.sizes()["verifying"]:
                return
            later = rig.core.next_due
            at = min([*due, *([] if later is None else [later])])
            rig.wait(max(0, at - rig.now) / SECOND)
            for arrived in [each for each in coming if each[0] <= rig.now]:
                coming.remove(arrived)
                self.bring(arrived[1], is_publisher=not self.is_publication)
            for answered in sorted((each for each in self.under_way if each[0] <= rig.now), key=lambda each: each[:2]):
                self.under_way.remove(answered)
                self.said.append(answered[1:])
                if rig.core._state.piconet.get(answered[1]) is not None:
                    rig.say(answered[1], answered[2])

    def answers(self) -> Iterator[tuple[int, Address, m.Proof]]:
        """Yield what the devices say to what they have been asked since, each in its time; some say it twice."""
        for who, asks in self.rig.asked.items():
            party = self.parties[who]
            for asked, at in asks[self.heard.get(who, 0) :]:
                self.heard[who] = self.heard.get(who, 0) + 1
                if party.manner == "silent":
                    continue
                proof = member_of(who, party.groups).answer(asked)
                assert proof is not None
                if party.manner == "lies":
                    proof = replace(proof, answer=bytes(64))
                quick_us, slow_us = (10_000, 50_000), (self.longest_us // 2, self.longest_us)
                delay = self.random.randrange(*self.random.choice((quick_us, slow_us)))
                yield at + delay, who, proof
                if self.random.random() < 0.3:
                    yield at + delay + self.random.randrange(1, 3 * SECOND), who, proof

    def outcome(self) -> object:
        """Return what became of the trigger."""
        listed = [each for each in sent(self.rig.commands, self.trigger.address) if isinstance(each, m.Matches)]
        if listed:
            return [each.address for each in listed[0].publications]
        for note in notes(self.rig.commands, NoteKind.MATCHED):
            identifiers = (note.id, note.other_id) if self.is_publication else (note.other_id, note.id)
            if self.owners[identifiers[0]] == self.trigger.address:
                return self.owners[identifiers[1]]
        return "gone" if self.rig.core._state.piconet.get(self.trigger.address) is None else None

    @property
    def owners(self) -> dict[str | None, Address]:
        """Return whose each identifier is."""
        return {
            message.id: who
            for who in self.parties
            for message in sent(self.rig.commands, who)
            if isinstance(message, m.Accepted)
        }


def test_any_interleaving_of_proofs_ends_as_the_thesis_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,000 random runs none differs; and nobody is dropped but who was silent."""
    for name in ("check_group_token", "check_answer"):  # pure, and the runs repeat their arguments
        monkeypatch.setattr(members_module, name, cache(getattr(members_module, name)))
    monkeypatch.setattr(DeviceKeys, "answer", cache(DeviceKeys.answer))
    different, outcomes = [], Counter[str]()
    for seed in range(RUNS):
        play = Play(Random(f"proofs {seed}"))
        play.run()
        got = play.outcome()
        wanted = expected(play.trigger, play.older, play.newer, is_publication=play.is_publication)
        dropped = {each.address for each in play.rig.commands if isinstance(each, Disconnect)}
        if got not in wanted or any(play.parties[who].manner != "silent" for who in dropped):
            different.append((seed, got, wanted, dropped))
        outcomes[type(got).__name__ if got != "gone" else "gone"] += 1
    assert not different, f"{len(different)} of {RUNS} runs differ: {different[:5]}"
    assert set(outcomes) == {"NoneType", "str", "list", "gone"}
    assert min(outcomes.values()) > RUNS // 50, outcomes
