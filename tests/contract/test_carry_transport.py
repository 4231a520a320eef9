"""Transports of carriers: one suite for the simulator's memory and for UDP, here over loopback."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from whimbrel.carry.hello import Answer, Entry, Hello, Refusal, Request, Sample, SampleId
from whimbrel.carry.neighbours.assembly import AnswerAssembly
from whimbrel.carry.neighbours.shares import OWN_HOST
from whimbrel.carry.node import Carrier, Deliver, Send, Step
from whimbrel.carry.transport.interface import MAX_NEIGHBOURS, Transport
from whimbrel.carry.transport.udp import GROUP, UdpTransport
from whimbrel.carry.wire import LINK, RADIO, AnswerChunk, Profile, encode
from whimbrel.multicast.loopback import LoopbackLink
from whimbrel.multicast.reach import Reach
from whimbrel.sim.campus.air import MemoryAir, MemoryTransport

SAMPLE = Sample(topic=0x00F1, published_at=45353, publisher=1, body=b"lecture moved to room 2")
HELLO = Hello((Entry(0x00F1, SAMPLE.id, has_copies=False),))


class Rig(Protocol):
    """Nodes 1, 2 and 3 in a line: the ends are out of reach of each other."""

    def node(self, address: int, profile: Profile = LINK) -> Transport:
        """Return the transport of a node."""

    def inject(self, address: int, data: bytes, *, to_all: bool) -> None:
        """Let a stranger send *data* to a node, or to all."""

    def host_of(self, address: int) -> str:
        """Return the machine of a node, as the others know it."""

    def close(self) -> None:
        """Close what is open."""


class MemoryRig:
    """The simulator's."""

    def __init__(self, _folder: Path) -> None:
        self._air = MemoryAir()
        self._air.meet(1, 2)
        self._air.meet(2, 3)
        self._made: dict[int, MemoryTransport] = {}

    def node(self, address: int, profile: Profile = LINK) -> Transport:
        """Return the transport of a node."""
        self._made[address] = MemoryTransport(address, self._air, profile=profile)
        return self._made[address]

    def inject(self, address: int, data: bytes, *, to_all: bool) -> None:
        """Let a stranger send *data*."""
        self._made[address].put(data, came_to_all=to_all)

    def host_of(self, address: int) -> str:
        """Return the machine of a node: each has its own."""
        return self._made[address].host

    def close(self) -> None:
        """Nothing is open."""


class UdpRig:
    """Sockets on ::1, with injected reach."""

    def __init__(self, folder: Path) -> None:
        self._reach = folder / "reach.json"
        line = {1: [2], 2: [1, 3], 3: [2]}
        names = {f"{own:016x}": [f"{each:016x}" for each in others] for own, others in line.items()}
        self._reach.write_text(json.dumps(names), encoding="utf-8")
        self._everybody: list[LoopbackLink] = []
        self._made: dict[int, UdpTransport] = {}
        self._stranger = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)

    def node(self, address: int, profile: Profile = LINK) -> Transport:
        """Return the transport of a node."""
        reach = Reach(f"{address:016x}", path=self._reach)
        self._made[address] = UdpTransport(address, LoopbackLink(self._everybody), profile=profile, reach=reach)
        return self._made[address]

    def inject(self, address: int, data: bytes, *, to_all: bool) -> None:
        """Let a stranger send *data*."""
        if to_all:
            self._everybody[0].send(data, [GROUP])
        else:
            self._stranger.sendto(data, self._made[address].direct_name)

    def host_of(self, _address: int) -> str:
        """Return the machine of a node: all are on this one."""
        return OWN_HOST

    def close(self) -> None:
        """Close all sockets."""
        self._stranger.close()
        for each in self._made.values():
            each.close()


@pytest.fixture(params=[MemoryRig, UdpRig], ids=["memory", "udp"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """Return a line of nodes over each transport."""
    made = request.param(tmp_path)
    yield made
    made.close()


def test_a_hello_reaches_all_in_reach_and_nobody_else(rig: Rig) -> None:
    """The ends of the line do not hear each other, and nobody hears itself."""
    nodes = {address: rig.node(address) for address in (1, 2, 3)}
    nodes[1].say(HELLO)
    nodes[2].say(Hello(()))
    one, two = rig.host_of(1), rig.host_of(2)
    assert [nodes[2].receive(), nodes[2].receive()] == [(1, HELLO, one), None]
    assert [nodes[1].receive(), nodes[1].receive()] == [(2, Hello(()), two), None]
    assert [nodes[3].receive(), nodes[3].receive()] == [(2, Hello(()), two), None]


def test_the_retrieval_of_figure_1b_message_for_message(rig: Rig) -> None:
    """Hello with {0x00F1, 45353}, a request for the pair, the data; nothing else is on the air."""
    left, right = rig.node(1), rig.node(2)
    holder, reader = Carrier(1), Carrier(2, subscriptions=[0x00F1])
    holder.publish(SAMPLE, copies=1)
    left.say(holder.hello())
    right.say(reader.hello())  # by which the other learns where it is
    heard = right.receive()
    assert heard == (1, HELLO, rig.host_of(1))
    [ask] = reader.receive(1, HELLO)
    assert isinstance(ask, Send)
    assert right.send(ask.address, ask.message)
    assert left.receive() == (2, Hello(()), rig.host_of(2))
    asked = left.receive()
    request = Request(topic=0x00F1, id=SampleId(45353, 1), is_subscriber=True, wants_copies=False)
    assert asked == (2, request, rig.host_of(2))
    [give] = holder.receive(2, request)
    assert isinstance(give, Send)
    assert left.send(give.address, give.message)
    given = right.receive()
    assert given is not None
    assert isinstance(given.part, AnswerChunk)
    answer = AnswerAssembly().add(given.sender, given.part)
    assert answer == Answer(SAMPLE, 0)
    steps: list[Step] = reader.receive(1, answer)
    assert steps == [Deliver(SAMPLE)]
    assert (left.receive(), right.receive()) == (None, None)
    assert (left.counts["sent"], right.counts["sent"]) == (2, 2)


def test_a_long_sample_crosses_a_radio_in_chunks(rig: Rig) -> None:
    """Frames of 88 bytes carry 1,024."""
    left, right = rig.node(1, RADIO), rig.node(2)
    right.say(Hello(()))
    left.receive()
    answer = Answer(Sample(topic=1, published_at=5, publisher=1, body=bytes(1_024)), 3)
    assert left.send(2, answer)
    assembly, found = AnswerAssembly(), []
    while (heard := right.receive()) is not None:
        assert isinstance(heard.part, AnswerChunk)
        found.append(assembly.add(heard.sender, heard.part))
    assert found == [None] * 19 + [answer]
    assert left.counts["bytes sent"] == 20 * (88 - 52) + 1_025


def test_a_node_that_was_never_heard_cannot_be_sent_to(rig: Rig) -> None:
    """A Hello tells where its sender is; without one there is nowhere to send to."""
    left = rig.node(1)
    assert not left.send(2, Refusal(1, SampleId(1, 1)))
    assert left.counts["sent"] == 0


def test_garbage_and_frames_that_came_the_wrong_way_are_counted(rig: Rig) -> None:
    """One request to all would make all answer; a Hello to one would tell it a false address in private."""
    node = rig.node(2)
    [to_all] = encode(1, Refusal(1, SampleId(1, 1)))
    [to_one] = encode(1, HELLO)
    [own] = encode(2, Refusal(1, SampleId(1, 1)))
    for data, goes_to_all in ((b"", True), (b"\xff" * 2_000, False), (to_all, True), (to_one, False), (own, False)):
        rig.inject(2, data, to_all=goes_to_all)
    assert node.receive() is None
    dropped = {name: node.counts[name] for name in ("malformed", "wrong way", "own", "received")}
    assert dropped == {"malformed": 2, "wrong way": 2, "own": 1, "received": 0}


def test_the_neighbours_that_udp_knows_have_a_bound() -> None:
    """A stranger invents addresses for nothing."""
    everybody: list[LoopbackLink] = []
    node = UdpTransport(9, LoopbackLink(everybody))
    for address in range(100, 100 + MAX_NEIGHBOURS + 200):
        everybody[0].send(encode(address, HELLO)[0], [GROUP])
        assert node.receive() == (address, HELLO, OWN_HOST)
    assert node.neighbours == MAX_NEIGHBOURS
    node.close()


def test_in_the_simulator_also_a_bounded_number_of_neighbours_is_known() -> None:
    """Else figures of a flood would count the memory of the simulator."""
    node = MemoryTransport(9, MemoryAir())
    for address in range(100, 100 + MAX_NEIGHBOURS + 200):
        node.put(encode(address, HELLO)[0], came_to_all=True)
        assert node.receive() == (address, HELLO, "stranger")
    assert node.neighbours == MAX_NEIGHBOURS
    assert not node.send(100, Hello(())), "the one whose Hello is oldest was forgotten"
