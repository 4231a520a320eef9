"""Sight of a newer sample, provisionally: a neighbour that lies stops a copy for two Hellos, and removes none."""

from __future__ import annotations

from whimbrel.carry.hello import Answer, Entry, Hello, Refusal, Request, Sample, SampleId
from whimbrel.carry.node import Carrier, Drop, Loss, Send, StoreSample
from whimbrel.carry.sight import MAX_FAILURES, MAX_HELLOS, Believers, Sight

LIAR = 66
LIE = Entry(1, SampleId(900, LIAR), has_copies=False)
PROOF = Request(topic=1, id=LIE.id, is_subscriber=False, wants_copies=False, wants_proof=True)


def a_sample(topic: int, at: int, publisher: int = 9) -> Sample:
    """Return a sample that is told apart by its time."""
    return Sample(topic=topic, published_at=at, publisher=publisher)


def a_holder(*, places: int = 1) -> Carrier:
    """Return a carrier with eight copies of a sample of topic 1."""
    node = Carrier(1, places=places, sight=Sight.PROVISIONAL)
    node.publish(a_sample(1, 100), copies=8)
    return node


def is_spread(node: Carrier) -> bool:
    """Return whether the Hello of *node* offers copies of its oldest sample."""
    return node.hello().entries[0].has_copies


def test_a_copy_is_not_spread_while_a_newer_sample_is_only_named() -> None:
    """The paper's rule at once; and the neighbour is asked for what it names."""
    node = a_holder()
    assert node.receive(LIAR, Hello((LIE,))) == [Send(LIAR, PROOF)]
    assert not is_spread(node)


def test_a_copy_that_a_liar_outdates_keeps_its_place() -> None:
    """A place is made by the sample, not by its name; the paper's rule gives the place away."""
    offer = Entry(2, SampleId(500, 5), has_copies=True)
    for sight, is_asked in ((Sight.FINAL, True), (Sight.PROVISIONAL, False)):
        node = a_holder()
        node.sight = sight
        node.receive(LIAR, Hello((LIE,)))
        assert bool(node.receive(5, Hello((offer,)))) is is_asked


def test_a_mark_without_a_proof_is_undone_after_two_hellos() -> None:
    """One frame may be late; the third Hello finds the sample missing."""
    node = a_holder()
    hello = Hello((LIE,))
    node.receive(LIAR, hello)
    for _ in range(MAX_HELLOS - 1):
        assert node.receive(LIAR, hello) == []
        assert not is_spread(node)
    node.receive(LIAR, Hello(()))
    assert is_spread(node)


def test_the_later_parts_of_a_hello_are_not_another() -> None:
    """A Hello of ten samples takes three frames of 88 bytes."""
    node = a_holder()
    node.receive(LIAR, Hello((LIE,)))
    for _ in range(MAX_HELLOS):
        node.receive(LIAR, Hello((), is_first=False))
    assert not is_spread(node)


def test_a_neighbour_that_leaves_takes_its_mark_with_it() -> None:
    """An address that says one Hello and vanishes is the cheapest lie."""
    node = a_holder()
    node.receive(LIAR, Hello((LIE,)))
    node.leave(LIAR)
    assert is_spread(node)


def test_a_neighbour_that_never_gives_what_it_names_is_not_believed() -> None:
    """Otherwise it would name another sample with every Hello; for other topics it is believed still."""
    node = a_holder(places=2)
    node.publish(a_sample(2, 100), copies=8)
    for number in range(MAX_FAILURES):
        lie = Hello((Entry(1, SampleId(900 + number, LIAR), has_copies=False),))
        assert node.receive(LIAR, lie) != []
        assert node.receive(LIAR, Hello(())) == []
        node.receive(LIAR, Refusal(1, SampleId(900 + number, LIAR)))
    assert node.receive(LIAR, Hello((LIE,))) == []
    assert is_spread(node)
    assert len(node.receive(LIAR, Hello((Entry(2, SampleId(900, LIAR), has_copies=False),)))) == 1


def test_the_sample_itself_makes_the_place_free() -> None:
    """What was named is here, so the older one may go, as the paper has it."""
    node = a_holder()
    [send] = node.receive(5, Hello((Entry(1, SampleId(200, 9), has_copies=False),)))
    assert isinstance(send, Send)
    source = Carrier(5)
    source.publish(a_sample(1, 200), copies=1)
    assert source.receive(1, send.message) == [Send(1, Answer(a_sample(1, 200), 0))]
    assert node.receive(5, Answer(a_sample(1, 200), 0)) == []
    offer = Hello((Entry(2, SampleId(500, 6), has_copies=True),))
    assert len(node.receive(6, offer)) == 1
    steps = node.receive(6, Answer(a_sample(2, 500, 6), 2))
    assert steps == [Drop(a_sample(1, 100), 8, Loss.REPLACED), StoreSample(a_sample(2, 500, 6), 2)]


def test_an_answer_counts_only_from_the_node_that_was_asked() -> None:
    """A second liar must not be the proof of the first."""
    node = a_holder()
    node.receive(5, Hello((Entry(1, SampleId(200, 9), has_copies=False),)))
    node.receive(LIAR, Answer(a_sample(1, 200), 0))
    node.leave(5)
    assert is_spread(node)


def test_an_answer_forgives_the_failures_before_it() -> None:
    """Frames are lost on a radio: an honest neighbour fails now and then, and is believed."""
    believers = Believers()
    for _ in range(2):
        for _ in range(MAX_FAILURES - 1):
            believers.fail(5, 1)
        believers.answer(5, 1)
    assert believers.believes(5, 1)


def test_ten_thousand_invented_addresses_are_not_remembered() -> None:
    """A stranger makes addresses for nothing; memory has a bound, and the newest are known."""
    believers = Believers()
    for address in range(10_000):
        for _ in range(MAX_FAILURES):
            believers.fail(address, 1)
    assert len(believers) == 4_096
    assert not believers.believes(9_999, 1)


def test_what_makes_room_is_asked_for_first() -> None:
    """The place must be free when the other sample comes, although that one is the newer."""
    node, giver = a_holder(), Carrier(5)
    giver.publish(a_sample(1, 200), copies=1)
    giver.publish(a_sample(2, 300), copies=4)
    requests = [step.message for step in node.receive(5, giver.hello()) if isinstance(step, Send)]
    assert [(each.topic, each.wants_proof) for each in requests if isinstance(each, Request)] == [(1, True), (2, False)]
