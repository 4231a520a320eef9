"""Grants of copies: what is lost on the air is asked for again, and copies that nobody acknowledges come back."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.campus_rig import NOON, Campus, S, a_participant

from whimbrel.carry.hello import Acknowledgement, Answer, Hello, Refusal, Request, Sample
from whimbrel.carry.neighbours.grants import MAX_GRANTS
from whimbrel.carry.node import Drop, Loss, Send, StoreSample
from whimbrel.carry.outputs import TakeBack
from whimbrel.carry.participant import Participant
from whimbrel.carry.wire import RADIO, AnswerChunk, Part, decode
from whimbrel.sim.campus.air import MemoryTransport


def losing(campus: Campus, is_lost: Callable[[Part], bool]) -> None:
    """Lose the frames on the air of *campus* that *is_lost* chooses."""
    for daemon in campus.daemons.values():
        assert isinstance(daemon.transport, MemoryTransport)
        transport: Any = daemon.transport
        put = transport.put

        def put_or_lose(data: bytes, *, came_to_all: bool, put: Any = put) -> None:
            if not is_lost(decode(data)[1]):
                put(data, came_to_all=came_to_all)

        transport.put = put_or_lose


def the_first(kind: type) -> Callable[[Part], bool]:
    """Return a choice of the first frame of this kind, and of no other."""
    found: list[Part] = []

    def is_lost(part: Part) -> bool:
        if isinstance(part, kind):
            found.append(part)
        return isinstance(part, kind) and len(found) == 1

    return is_lost


def copies_in(campus: Campus) -> list[int]:
    """Return the copies that each node has, of all samples."""
    return [
        sum(copy.copies for copy in daemon.participant.carrier.stored) for _, daemon in sorted(campus.daemons.items())
    ]


def two_nodes() -> Campus:
    """Return two nodes in reach of each other, of which the first has eight copies of a sample."""
    campus = Campus(a_participant(1), a_participant(2))
    campus.air.meet(1, 2)
    campus.publish(1, "lunch", b"pasta")
    return campus


def a_giver() -> tuple[Participant, Sample, Request]:
    """Return a node with eight copies of a sample, and the request of a carrier for a share."""
    node = a_participant(1, frames=(100_000, 100_000), answers=(100_000, 100_000))
    [stored] = node.publish("lunch", b"pasta", own=NOON)
    assert isinstance(stored, StoreSample)
    sample = stored.sample
    return node, sample, Request(topic=sample.topic, id=sample.id, is_subscriber=False, wants_copies=True)


@pytest.mark.parametrize("kind", [Request, AnswerChunk, Acknowledgement])
def test_one_lost_frame_of_a_retrieval_loses_no_copies(kind: type) -> None:
    """The answer was one datagram, and four copies of eight went with it."""
    campus = two_nodes()
    losing(campus, the_first(kind))
    campus.run(8)
    assert copies_in(campus) == [4, 4]
    assert campus.daemons[1].participant.grants == 0


def test_an_answer_of_several_frames_is_repeated_as_a_whole() -> None:
    """On 802.15.4 a sample of 100 bytes takes three."""
    campus = Campus()
    for address in (1, 2):
        campus.add(a_participant(address))
        campus.daemons[address].transport = MemoryTransport(address, campus.air, profile=RADIO)
    campus.air.meet(1, 2)
    campus.publish(1, "lunch", b"x" * 100)
    losing(campus, the_first(AnswerChunk))
    campus.run(8)
    assert copies_in(campus) == [4, 4]


@pytest.mark.parametrize("seed", range(4))
def test_where_a_third_of_all_frames_is_lost_no_copies_are(seed: int) -> None:
    """Six nodes in one room: the samples of three of them exist as often as they should in the end."""
    rng = random.Random(seed)
    campus = Campus(*(a_participant(each) for each in range(1, 7)))
    for low in range(1, 7):
        for high in range(low + 1, 7):
            campus.air.meet(low, high)
    for each in (1, 2, 3):
        campus.publish(each, f"t{each}", b"x")
    losing(campus, lambda _: rng.random() < 0.3)
    campus.run(100)
    assert sum(copies_in(campus)) == 24
    assert max(copies_in(campus)) < 8, "and they were spread"


def test_who_asks_again_gets_the_same_share() -> None:
    """A repeated request takes no more, and counts as no other."""
    node, sample, request = a_giver()
    node.receive(2, Hello(()), own=NOON)
    answers = [node.receive(2, request, own=NOON + each) for each in range(3)]
    assert answers == [[Send(2, Answer(sample, 4))]] * 3
    assert [copy.copies for copy in node.carrier.stored] == [4]
    node.receive(2, Acknowledgement(sample.topic, sample.id), own=NOON + 3)
    assert node.receive(2, request, own=NOON + 4) == [Send(2, Answer(sample, 2))], "it has lost them, and asks anew"


def test_a_carrier_that_asked_another_node_meanwhile_refuses_the_first_grant() -> None:
    """Its copies are from the second; those of the first go back at once, and are in no Hello twice."""
    campus = Campus(a_participant(1), a_participant(2), a_participant(3))
    campus.publish(1, "lunch", b"pasta")
    campus.air.meet(1, 3)
    campus.run(2)
    campus.air.part(1, 3)
    campus.air.meet(1, 2)
    frames = [0]

    def is_lost(part: Part) -> bool:
        frames[0] += isinstance(part, AnswerChunk)
        return isinstance(part, AnswerChunk) and frames[0] <= 4

    losing(campus, is_lost)
    campus.run(3)
    assert copies_in(campus) == [2, 0, 4], "half of four are on their way to the second"
    campus.air.meet(2, 3)
    campus.run(5)
    assert sum(copies_in(campus)) == 8
    assert min(copies_in(campus)) >= 1
    assert campus.daemons[1].participant.counts["grants taken back"] == 1


def test_copies_that_are_never_acknowledged_come_back() -> None:
    """Addresses that were invented to take copies have said one Hello and one request."""
    node, sample, request = a_giver()
    for address in (66, 67, 68):
        node.receive(address, Hello(()), own=NOON)
        node.receive(address, request, own=NOON)
    assert [copy.copies for copy in node.carrier.stored] == [1]
    node.timer(own=NOON + 9 * S)
    back = node.timer(own=NOON + 10 * S)
    assert back == [TakeBack(sample, 4), TakeBack(sample, 2), TakeBack(sample, 1)]
    assert [copy.copies for copy in node.carrier.stored] == [8]
    assert node.counts["grants taken back"] == 3


def test_a_late_acknowledgement_takes_the_copies_away_again() -> None:
    """A machine that is busy for ten seconds must not make copies of nothing; nor does the same one come twice."""
    node, sample, request = a_giver()
    node.receive(2, Hello(()), own=NOON)
    node.receive(2, request, own=NOON)
    node.timer(own=NOON + 10 * S)
    assert [copy.copies for copy in node.carrier.stored] == [8]
    for _ in range(2):
        node.receive(2, Acknowledgement(sample.topic, sample.id), own=NOON + 11 * S)
        assert [copy.copies for copy in node.carrier.stored] == [4]


def test_copies_of_a_sample_that_is_gone_do_not_come_back() -> None:
    """It has expired meanwhile; the account says that its copies are lost."""
    node, _, _ = a_giver()
    [stored] = node.publish("news", b"x", own=NOON, ttl_us=2 * S)
    assert isinstance(stored, StoreSample)
    sample = stored.sample
    node.receive(2, Hello(()), own=NOON)
    node.receive(2, Request(topic=sample.topic, id=sample.id, is_subscriber=False, wants_copies=True), own=NOON)
    node.timer(own=NOON + 2 * S)
    assert node.timer(own=NOON + 10 * S) == [Drop(sample, 4, Loss.UNACKNOWLEDGED)]


def test_so_many_grants_wait_and_then_samples_are_given_without_copies() -> None:
    """Ten thousand addresses cannot make a node remember more than its bound."""
    node = a_participant(1, copies=60_000, frames=(100_000, 100_000), answers=(100_000, 100_000))
    [stored] = node.publish("lunch", b"pasta", own=NOON)
    assert isinstance(stored, StoreSample)
    name = stored.sample.topic, stored.sample.id
    said = []
    for address in range(1_000, 1_000 + MAX_GRANTS):
        node.receive(address, Hello(()), own=NOON)
        node.carrier.stored[0].copies = 2  # so many halves would use them up
        node.receive(address, Request(topic=name[0], id=name[1], is_subscriber=False, wants_copies=True), own=NOON)
    node.carrier.stored[0].copies = 2
    for is_subscriber in (True, False):
        request = Request(topic=name[0], id=name[1], is_subscriber=is_subscriber, wants_copies=True)
        node.receive(9, Hello(()), own=NOON)
        said += node.receive(9, request, own=NOON)
    assert said == [Send(9, Answer(stored.sample, 0)), Send(9, Refusal(*name))]
    assert node.grants == MAX_GRANTS
    assert node.counts["grants held back"] == 2
