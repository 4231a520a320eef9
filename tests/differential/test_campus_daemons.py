"""The daemons and the simulator on one made-up schedule: the same deliveries, and the same samples in memory."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from campus_simulator import CampusSimulator

from whimbrel.carry.control.clock import CampusClock
from whimbrel.carry.control.topics import TopicNames
from whimbrel.carry.daemon.daemon import CampusDaemon
from whimbrel.carry.hello import NONCE_BYTES, Answer, SampleId
from whimbrel.carry.node import Deliver, Step
from whimbrel.carry.participant import Participant
from whimbrel.carry.rules import Rules
from whimbrel.sim.campus.air import MemoryAir, MemoryTransport
from whimbrel.sim.campus.scenario import Campus, Publication, World
from whimbrel.sim.contacts.table import Contacts
from whimbrel.sim.contacts.traces import read_trace

NODES, SECONDS, HELLO_S = 12, 1_000.0, 1.0
US = 1_000_000
SHARED = Path(__file__).parents[3] / "shared" / "data"


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


def events_of(contacts: Contacts, world: World, hello_s: float) -> Iterator[tuple[float, int, int, int]]:
    """Yield begins of contacts (0), publications (1), ends (2) and Hellos (3), as the simulator orders them."""
    found = [(start, 0, low, high) for start, _, low, high in contacts.rows()]
    found += [(end, 2, low, high) for _, end, low, high in contacts.rows()]
    found += [(each.time_s, 1, number, 0) for number, each in enumerate(world.publications)]
    nodes = contacts.nodes
    hellos = int(contacts.seconds / hello_s) * nodes
    found += [(number * (hello_s / nodes), 3, number % nodes, number) for number in range(hellos)]
    heapq.heapify(found)
    while found:
        yield heapq.heappop(found)


class Daemons:
    """A daemon for each node, driven by hand along the schedule."""

    def __init__(self, campus: Campus, world: World, *, nodes: int) -> None:
        assert campus.hello_s is not None
        self.now_us, self._hello_s = 0, campus.hello_s
        self.air = MemoryAir()
        self.daemons: list[CampusDaemon] = []
        self.delivered: set[tuple[int, int, SampleId]] = set()
        names = {f"t{topic}": topic + 1 for topic in range(campus.topics)}
        for node in range(nodes):
            participant = Participant(
                node,
                Rules(places=campus.memory, copies=max(world.copies), hello_us=int(self._hello_s * US)),
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

    def settle(self, speaker: int) -> None:
        """Let the *speaker* and who hears it read until nothing is on the air."""
        near = [self.daemons[speaker], *(self.daemons[each.address] for each in self.air.neighbours(speaker))]
        for _ in range(6):
            for each in near:
                each.read()

    def run(self, contacts: Contacts, world: World, copies: list[int]) -> None:
        """Perform the schedule."""
        for time_s, kind, one, other in events_of(contacts, world, self._hello_s):
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
                self.settle(one)


def check(contacts: Contacts, campus: Campus, *, seed: int) -> int:
    """Compare daemons with the simulator; return how many deliveries there were."""
    world = campus.world(nodes=contacts.nodes, seconds=contacts.seconds, seed=seed)
    deliveries = Deliveries()
    simulator = CampusSimulator(contacts, campus, world, [deliveries])
    simulator.run()
    daemons = Daemons(campus, world, nodes=contacts.nodes)
    daemons.run(contacts, world, world.copies)
    assert daemons.delivered == deliveries.found
    for carrier, daemon in zip(simulator.carriers, daemons.daemons, strict=True):
        assert {(each.sample.topic + 1, each.sample.id, each.copies) for each in carrier.stored} == {
            (each.sample.topic, each.sample.id, each.copies) for each in daemon.participant.carrier.stored
        }
    return len(deliveries.found)


@pytest.mark.parametrize(("seed", "memory"), [(1, 10), (2, 10), (3, 4)])
def test_daemons_carry_what_the_simulator_says(seed: int, memory: int) -> None:
    """Frames, names, clocks, requests and time-outs between the same cores change nothing."""
    campus = Campus(topics=8, memory=memory, workload=0.5, subscribers=4, interval_s=400, hello_s=HELLO_S, warmup_s=0)
    assert check(schedule(seed), campus, seed=seed) > 30


@pytest.mark.parametrize("name", ["Haggle3-Infocom5.csv", "haggle-one-cambridge-city-students.tsv"])
def test_daemons_carry_what_the_simulator_says_among_real_people(name: str) -> None:
    """The hour of a trace in which most contacts begin, those of more than two Hello periods."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"the trace {name} is not on this machine: its licence is unclear, so it is not in the repository")
    hello_s, hour_s = 30.0, 3_600.0
    rows = [row for row in read_trace(path).contacts.rows() if row[1] - row[0] > 2 * hello_s]
    hours = Counter(int(start // hour_s) for start, *_ in rows)
    begin = min(hours, key=lambda hour: (-hours[hour], hour)) * hour_s
    found = [
        (start - begin, min(end - begin, hour_s), low, high)
        for start, end, low, high in rows
        if begin <= start < begin + hour_s - 2 * hello_s
    ]
    contacts = Contacts.of(found, nodes=1 + max(high for *_, high in rows), seconds=hour_s)
    campus = Campus(topics=12, workload=0.3, subscribers=5, interval_s=600, hello_s=hello_s, warmup_s=0)
    assert check(contacts, campus, seed=1) > 30
