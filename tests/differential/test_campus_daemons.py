"""The daemons and the simulator on one made-up schedule: the same deliveries, and the same samples in memory."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator

import pytest

from whimbrel.carry.control.clock import CampusClock
from whimbrel.carry.control.topics import TopicNames
from whimbrel.carry.daemon.daemon import CampusDaemon
from whimbrel.carry.hello import NONCE_BYTES, Answer, SampleId
from whimbrel.carry.node import Deliver, Step
from whimbrel.carry.participant import Participant
from whimbrel.carry.rules import Rules
from whimbrel.sim.campus.air import MemoryAir, MemoryTransport
from whimbrel.sim.campus.reference import CampusSimulator
from whimbrel.sim.campus.scenario import Campus, Publication, World
from whimbrel.sim.contacts.table import Contacts

NODES, SECONDS, HELLO_S = 12, 1_000.0, 1.0
US = 1_000_000


def schedule(seed: int) -> Contacts:
    """Return made-up contacts, each of more than two Hello periods, none of one pair at once."""
    rng = random.Random(seed)
    rows = []
    for low in range(NODES):
        for high in range(low + 1, NODES):
            now = rng.expovariate(1 / 300)
            while (end := now + rng.uniform(3, 40)) < SECONDS:
                rows.append((now, end, low, high))
                now = end + rng.expovariate(1 / 300)
    return Contacts.of(rows, nodes=NODES, seconds=SECONDS)


class Deliveries:
    """A report of the simulator: which node got which sample."""

    def __init__(self) -> None:
        self.found: set[tuple[int, int, SampleId]] = set()

    def published(self, publication: Publication, copies: int, *, now: float) -> None:
        """Nothing is told of publications."""

    def done(self, node: int, step: Step, *, now: float) -> None:
        """Note a delivery."""
        del now
        if isinstance(step, Deliver):
            self.found.add((node, step.sample.topic, step.sample.id))

    def sent(self, message: str, *, now: float) -> None:
        """Nothing is told of messages."""

    def lost(self, answer: Answer, *, now: float) -> None:
        """Nothing is lost where answers take no time."""


def events_of(contacts: Contacts, world: World) -> Iterator[tuple[float, int, int, int]]:
    """Yield begins of contacts (0), publications (1), ends (2) and Hellos (3), as the simulator orders them."""
    found = [(start, 0, low, high) for start, _, low, high in contacts.rows()]
    found += [(end, 2, low, high) for _, end, low, high in contacts.rows()]
    found += [(each.time_s, 1, number, 0) for number, each in enumerate(world.publications)]
    hellos = int(SECONDS / HELLO_S) * NODES
    found += [(number * (HELLO_S / NODES), 3, number % NODES, number) for number in range(hellos)]
    heapq.heapify(found)
    while found:
        yield heapq.heappop(found)


class Daemons:
    """A daemon for each node, driven by hand along the schedule."""

    def __init__(self, campus: Campus, world: World) -> None:
        self.now_us = 0
        self.air = MemoryAir()
        self.daemons: list[CampusDaemon] = []
        self.delivered: set[tuple[int, int, SampleId]] = set()
        names = {f"t{topic}": topic + 1 for topic in range(campus.topics)}
        for node in range(NODES):
            participant = Participant(
                node,
                Rules(places=campus.memory, hello_us=int(HELLO_S * US)),
                topics=TopicNames(names),
                clock=CampusClock(),
                nonce=lambda: bytes(NONCE_BYTES),
            )
            for topic, subscribers in enumerate(world.subscribers):
                if node in subscribers:
                    participant.subscribe(f"t{topic}")
            self.daemons.append(
                CampusDaemon(
                    participant,
                    MemoryTransport(node, self.air),
                    own=lambda: self.now_us,
                    deliver=lambda sample, node=node: self.delivered.add((node, sample.topic - 1, sample.id)),  # type: ignore[misc] # the node of this turn
                )
            )

    def settle(self) -> None:
        """Let everybody read until nothing is on the air."""
        for _ in range(6):
            for each in self.daemons:
                each.read()

    def run(self, contacts: Contacts, world: World, copies: list[int]) -> None:
        """Perform the schedule."""
        for time_s, kind, one, other in events_of(contacts, world):
            self.now_us = round(time_s * US)
            if kind == 0:
                self.air.meet(one, other)
            elif kind == 2:
                self.air.part(one, other)
            elif kind == 1:
                each = world.publications[one]
                daemon = self.daemons[each.publisher]
                sample = each.sample
                outputs = daemon.participant.adopt(
                    type(sample)(topic=sample.topic + 1, published_at=sample.published_at, publisher=sample.publisher),
                    copies=copies[each.topic],
                    own=self.now_us,
                )
                daemon.perform(outputs)
            else:
                self.daemons[one].turn()
                self.settle()


@pytest.mark.parametrize(("seed", "memory"), [(1, 10), (2, 10), (3, 4)])
def test_daemons_carry_what_the_simulator_says(seed: int, memory: int) -> None:
    """Frames, names, clocks, requests and time-outs between the same cores change nothing."""
    campus = Campus(topics=8, memory=memory, workload=0.5, subscribers=4, interval_s=400, hello_s=HELLO_S, warmup_s=0)
    contacts = schedule(seed)
    world = campus.world(nodes=NODES, seconds=SECONDS, seed=seed)
    deliveries = Deliveries()
    simulator = CampusSimulator(contacts, campus, world, [deliveries])
    simulator.run()
    daemons = Daemons(campus, world)
    daemons.run(contacts, world, world.copies)
    assert len(deliveries.found) > 30
    assert daemons.delivered == deliveries.found
    for carrier, daemon in zip(simulator.carriers, daemons.daemons, strict=True):
        assert {(each.sample.topic + 1, each.sample.id, each.copies) for each in carrier.stored} == {
            (each.sample.topic, each.sample.id, each.copies) for each in daemon.participant.carrier.stored
        }
