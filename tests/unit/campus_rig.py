"""A campus in memory: daemons on made-up air, whose time is moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from whimbrel.carry.control.clock import CampusClock
from whimbrel.carry.control.segments import ControlData, TopicPlan
from whimbrel.carry.control.topics import TopicNames
from whimbrel.carry.daemon.daemon import CampusDaemon
from whimbrel.carry.hello import NONCE_BYTES, Sample
from whimbrel.carry.node import Deliver
from whimbrel.carry.outputs import Note, Output
from whimbrel.carry.participant import Participant
from whimbrel.carry.rules import Rules
from whimbrel.carry.signatures import SampleSigner
from whimbrel.sim.campus.air import MemoryAir, MemoryTransport

CAMPUS = SampleSigner(b"c" * 32)
NOON = 1_800_000_000_000_000
"""A time of day, in microseconds UTC."""
S = 1_000_000


def a_participant(
    address: int,
    *,
    subscriptions: Iterable[str] = (),
    keys: Iterable[bytes] = (),
    file: dict[str, int] | None = None,
    kind: Callable[..., Participant] = Participant,
    **rules: Any,
) -> Participant:
    """Return a participant; its nonces are 1, 2, 3 …."""
    numbers = count(1)
    made = kind(
        address,
        Rules(**rules),
        topics=TopicNames(file),
        clock=CampusClock(),
        nonce=lambda: next(numbers).to_bytes(NONCE_BYTES, "big"),
        keys=keys,
    )
    for each in subscriptions:
        made.subscribe(each)
    return made


def notes_of(outputs: Iterable[Output]) -> list[Note]:
    """Return the notes among *outputs*."""
    return [each for each in outputs if isinstance(each, Note)]


def delivered(outputs: Iterable[Output]) -> list[Sample]:
    """Return the samples that the application gets."""
    return [each.sample for each in outputs if isinstance(each, Deliver)]


def plan_of(*names: str, version: int = NOON, copies: int = 4, first: int = 1) -> ControlData:
    """Return control data with topics of these names, the first with the id *first*."""
    plans = [
        TopicPlan(topic=first + number, name=name, subscribers=3, copies=copies) for number, name in enumerate(names)
    ]
    return ControlData(version=version, users=9, places=90, topics=tuple(plans))


class Campus:
    """Daemons by address, the air between them, and the time."""

    def __init__(self, *participants: Participant) -> None:
        self.now = NOON
        self.air = MemoryAir()
        self.daemons: dict[int, CampusDaemon] = {}
        self.taken: dict[int, list[bytes]] = {}
        for each in participants:
            self.add(each)

    def add(self, participant: Participant, *, skew_us: int = 0) -> CampusDaemon:
        """Add a node whose clock is ahead by *skew_us*."""
        address = participant.address
        taken = self.taken[address] = []
        self.daemons[address] = CampusDaemon(
            participant,
            MemoryTransport(address, self.air),
            own=lambda: self.now + skew_us,
            deliver=lambda sample: taken.append(sample.body),
        )
        return self.daemons[address]

    def publish(self, address: int, topic: str, body: bytes, **options: Any) -> Sample:
        """Let a node publish."""
        daemon = self.daemons[address]
        outputs = daemon.participant.publish(topic, body, own=daemon.own, **options)
        daemon.perform(outputs)
        return next(each.sample for each in daemon.participant.carrier.stored if each.sample.body == body)

    def run(self, seconds: int) -> None:
        """Let so many seconds pass: every node says Hello once in each, the lowest address first."""
        for _ in range(seconds):
            self.now += S
            for daemon in self.daemons.values():
                daemon.turn()
                self.settle()

    def settle(self) -> None:
        """Let everybody read until nothing is on the air."""
        for _ in range(10):
            for daemon in self.daemons.values():
                daemon.read()
