"""Grants of copies: what is lost on the air is asked for again, and copies that nobody acknowledges come back."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.campus_rig import NOON, Campus, S, a_participant

from whimbrel.carry.hello import Acknowledgement, Answer, Hello, Refusal, Request, Sample
from whimbrel.carry.neighbours.grants import MAX_GRANTS
from whimbrel.carry.node import Drop, Loss, Send, StoreSample
from whimbrel.carry.outputs import Output, TakeBack
from whimbrel.carry.participant import Participant
from whimbrel.carry.wire import LINK, RADIO, AnswerChunk, Part, Profile, decode
from whimbrel.sim.campus.air import MemoryTransport


def losing(campus: Campus, is_lost: Callable[[Part], bool]) -> None:
    """Lose the frames on the air of *campus* that *is_lost* chooses."""
    for daemon in campus.daemons.values():
        assert isinstance(daemon.transport, MemoryTransport)
        transport: Any = daemon.transport
        put = transport.put

        def put_or_lose(data: bytes, *, came_to_all: bool, host: str, put: Any = put) -> None:
            if not is_lost(decode(data)[1]):
                put(data, came_to_all=came_to_all, host=host)

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


def ask(node: Participant, address: int, request: Request, *, host: str, own: int = NOON) -> list[Output]:
    """Return what *address* on *host* gets from *node*, of which it is a neighbour."""
    node.receive(address, Hello(()), own=own, host=host)
    return node.receive(address, request, own=own, host=host)


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
    node.receive(2, Acknowledgement(sample.topic, sample.id, 4), own=NOON + 3)
    assert node.receive(2, request, own=NOON + 4) == [Send(2, Answer(sample, 2))], "on this machine it may ask anew"


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
        node.receive(2, Acknowledgement(sample.topic, sample.id, 4), own=NOON + 11 * S)
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


# -- copies that are not kept ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", [LINK, RADIO])
def test_copies_above_the_cap_of_the_receiver_go_back(profile: Profile) -> None:
    """The giver follows a plan with 40 copies, the receiver knows none and keeps half of its eight; 16 were lost."""
    campus = Campus()
    for address, copies in ((1, 40), (2, 8)):
        campus.add(a_participant(address, copies=copies))
        campus.daemons[address].transport = MemoryTransport(address, campus.air, profile=profile)
    campus.air.meet(1, 2)
    campus.publish(1, "lunch", b"pasta")
    losing(campus, the_first(Acknowledgement))
    campus.run(8)
    assert copies_in(campus) == [36, 4]
    assert campus.daemons[1].participant.grants == 0


def test_an_acknowledgement_of_more_than_was_granted_changes_nothing() -> None:
    """The number is what a stranger says."""
    node, sample, request = a_giver()
    ask(node, 2, request, host="two")
    assert node.receive(2, Acknowledgement(sample.topic, sample.id, 65_535), own=NOON) == []
    assert [copy.copies for copy in node.carrier.stored] == [4]


def test_a_late_acknowledgement_takes_away_only_what_is_kept() -> None:
    """All four had come back; the receiver keeps one of them."""
    node, sample, request = a_giver()
    ask(node, 2, request, host="two")
    node.timer(own=NOON + 10 * S)
    node.receive(2, Acknowledgement(sample.topic, sample.id, 1), own=NOON + 11 * S)
    assert [copy.copies for copy in node.carrier.stored] == [7]


# -- many addresses on one host -------------------------------------------------------------------------------------


def test_a_hundred_invented_addresses_on_one_host_get_one_share() -> None:
    """Each acknowledges what it is given; without a limit three of them leave the giver with one copy of eight."""
    node, sample, request = a_giver()
    for address in range(1_000, 1_100):
        ask(node, address, request, host="fe80::66")
        node.receive(address, Acknowledgement(sample.topic, sample.id, 4), own=NOON, host="fe80::66")
    assert [copy.copies for copy in node.carrier.stored] == [4]
    assert node.counts["grants held back"] == 99
    assert ask(node, 2, request, host="fe80::2") == [Send(2, Answer(sample, 2))], "others get theirs"


def test_an_address_that_asks_again_and_again_gets_one_share() -> None:
    """It needs no invented addresses: it says that it has lost what it acknowledged."""
    node, sample, request = a_giver()
    for _ in range(5):
        ask(node, 66, request, host="fe80::66")
        node.receive(66, Acknowledgement(sample.topic, sample.id, 4), own=NOON, host="fe80::66")
    assert [copy.copies for copy in node.carrier.stored] == [4]


def test_a_host_that_had_its_share_still_gets_the_sample_as_a_subscriber() -> None:
    """Two phones behind one host both get what they subscribe to; only copies are limited."""
    node, sample, request = a_giver()
    ask(node, 66, request, host="fe80::66")
    subscribing = replace(request, is_subscriber=True)
    assert ask(node, 67, subscribing, host="fe80::66") == [Send(67, Answer(sample, 0))]


def test_late_acknowledgements_of_one_host_take_one_share() -> None:
    """Its addresses take copies one after another, let them go back, and acknowledge all in the end."""
    node, sample, request = a_giver()
    for number in range(4):
        ask(node, 66 + number, request, host="fe80::66", own=NOON + number * 10 * S)
        node.timer(own=NOON + (number + 1) * 10 * S)
    assert [copy.copies for copy in node.carrier.stored] == [8]
    for number in range(4):
        node.receive(66 + number, Acknowledgement(sample.topic, sample.id, 4), own=NOON + 41 * S, host="fe80::66")
    assert [copy.copies for copy in node.carrier.stored] == [4]


@pytest.mark.parametrize("is_refused", [True, False])
def test_copies_that_came_back_may_be_given_to_their_host_again(*, is_refused: bool) -> None:
    """The contact ended before the answer; at the next one the same phone is as welcome as any other."""
    node, sample, request = a_giver()
    ask(node, 2, request, host="two")
    if is_refused:
        node.receive(2, Refusal(sample.topic, sample.id), own=NOON, host="two")
    node.timer(own=NOON + 10 * S)
    assert ask(node, 2, request, host="two", own=NOON + 10 * S) == [Send(2, Answer(sample, 4))]


def test_hosts_are_remembered_only_while_their_sample_is_stored() -> None:
    """A node that runs for years must not remember all whom it met."""
    node, sample, request = a_giver()
    ask(node, 66, request, host="fe80::66")
    node.receive(66, Acknowledgement(sample.topic, sample.id, 4), own=NOON, host="fe80::66")
    node.timer(own=NOON + S)
    assert node.shares == 1
    node.carrier.restore([], [])
    node.timer(own=NOON + 2 * S)
    assert node.shares == 0


class Hoarder(Participant):
    """A node that takes and acknowledges copies as all do, and lists none of them."""

    def hello(self, *, own: int) -> Hello:
        """Return an empty Hello, by which its neighbours know it."""
        super().hello(own=own)
        return Hello(())


def test_honest_nodes_carry_beside_thirty_addresses_of_one_host() -> None:
    """The invented addresses ask first and list nothing: without a limit, seven of eight copies are theirs."""
    honest, invented = range(1, 7), range(66, 96)
    campus = Campus(*(a_participant(each, kind=Hoarder) for each in invented), *map(a_participant, honest))
    for low in (*honest, *invented):
        for high in honest:
            if low != high:
                campus.air.meet(low, high)
    for each in invented:
        transport = campus.daemons[each].transport
        assert isinstance(transport, MemoryTransport)
        transport.host = "fe80::66"
    campus.publish(1, "lunch", b"pasta")
    campus.run(30)
    by_node = dict(zip(sorted(campus.daemons), copies_in(campus), strict=True))
    assert sum(by_node.values()) == 8
    kept = [by_node[each] for each in honest]
    assert sum(kept) >= 3, "the host has half, and half of what each carrier has; the last copy never goes"
    assert sum(map(bool, kept)) >= 3
