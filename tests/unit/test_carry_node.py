"""A carrier's memory and manners, one rule of the paper at a time."""

from __future__ import annotations

from typing import TypeGuard

import pytest

from whimbrel.carry.hello import Answer, Entry, Hello, Refusal, Request, Sample, SampleId
from whimbrel.carry.node import MAX_REQUESTS, Carrier, Deliver, Drop, Loss, Send, Step, StoreSample


def a_sample(topic: int = 1, at: int = 100, publisher: int = 9) -> Sample:
    """Return a sample that is told apart by its time."""
    return Sample(topic=topic, published_at=at, publisher=publisher, body=b"%d" % at)


def meet(teller: Carrier, hearer: Carrier) -> list[Step]:
    """Let *hearer* hear the Hello of *teller*; return what its memory and its application got."""
    done: list[Step] = []
    for request in hearer.receive(teller.address, teller.hello()):
        assert isinstance(request, Send)
        for answer in teller.receive(hearer.address, request.message):
            assert isinstance(answer, Send)
            done += hearer.receive(teller.address, answer.message)
    return done


def copies(carrier: Carrier) -> dict[int, int]:
    """Return the copies of each sample in memory, by its time."""
    return {copy.sample.published_at: copy.copies for copy in carrier.stored}


def test_one_retrieval_takes_the_three_messages_of_figure_1b() -> None:
    """The paper's own example: Hello with {0x00F1, 45353}, a request for the pair, the data."""
    sample = a_sample(0x00F1, 45353)
    left, right = Carrier(1), Carrier(2, places=1, subscriptions=[0x00F1])
    left.publish(sample, copies=1)
    hello = left.hello()
    assert hello == Hello((Entry(0x00F1, SampleId(45353, 9), has_copies=False),))
    [send] = right.receive(1, hello)
    request = Request(topic=0x00F1, id=sample.id, is_subscriber=True, wants_copies=False)
    assert send == Send(1, request)
    [answer] = left.receive(2, request)
    assert answer == Send(2, Answer(sample, 0))
    assert right.receive(1, Answer(sample, 0)) == [Deliver(sample)]
    assert not right.stored  # the application's, no replica


@pytest.mark.parametrize(("has", "keeps", "gives"), [(2, 1, 1), (3, 2, 1), (8, 4, 4), (9, 5, 4)])
def test_half_of_the_copies_go_and_the_larger_half_stays(has: int, keeps: int, gives: int) -> None:
    """Binary spray (section 3.3)."""
    source, other = Carrier(1), Carrier(2)
    source.publish(a_sample(), copies=has)
    assert meet(source, other) == [StoreSample(a_sample(), gives)]
    assert (copies(source), copies(other)) == ({100: keeps}, {100: gives})


def test_a_carrier_with_one_copy_waits() -> None:
    """That is the wait of spray and wait: only subscribers get it now."""
    source, other = Carrier(1), Carrier(2)
    source.publish(a_sample(), copies=1)
    assert meet(source, other) == []
    assert not other.stored


def test_two_who_ask_never_get_the_same_half() -> None:
    """Both heard the same Hello; the answer says what there is."""
    source, first, second = Carrier(1), Carrier(2), Carrier(3)
    source.publish(a_sample(), copies=2)
    hello = source.hello()
    [one], [two] = first.receive(1, hello), second.receive(1, hello)
    assert isinstance(one, Send)
    assert isinstance(two, Send)
    assert source.receive(2, one.message) == [Send(2, Answer(a_sample(), 1))]
    assert source.receive(3, two.message) == [Send(3, Refusal(1, a_sample().id))]


def test_a_carrier_asks_only_for_as_many_as_it_has_places() -> None:
    """A share that finds no place would be lost; the newest is asked for first."""
    source, other = Carrier(1), Carrier(2, places=1)
    for topic in (1, 2, 3):
        source.publish(a_sample(topic, 100 + topic), copies=4)
    requests = other.receive(1, source.hello())
    expected = Request(topic=3, id=SampleId(103, 9), is_subscriber=False, wants_copies=True)
    assert requests == [Send(1, expected)]


def test_the_sight_of_a_newer_sample_makes_the_old_one_removable() -> None:
    """No transfer is needed for it (section 3.2.2)."""
    old, new = Carrier(1), Carrier(2)
    old.publish(a_sample(at=100), copies=4)
    new.publish(a_sample(at=200), copies=1)
    assert meet(new, old) == []
    [copy] = old.stored
    assert copy.is_removable
    assert old.hello().entries[0].has_copies is False


def test_a_removable_sample_is_given_to_subscribers_and_not_to_carriers() -> None:
    """Late is better than never; but no place should be spent on it."""
    old, new = Carrier(1), Carrier(2)
    subscriber, carrier = Carrier(3, subscriptions=[1]), Carrier(4)
    old.publish(a_sample(at=100), copies=4)
    new.publish(a_sample(at=200), copies=1)
    meet(new, old)
    assert meet(old, subscriber) == [Deliver(a_sample(at=100))]
    assert meet(old, carrier) == []


def test_a_removable_sample_stays_until_its_place_is_needed() -> None:
    """The oldest id goes first, whatever its topic."""
    node, newer, source = Carrier(1, places=2), Carrier(2), Carrier(3)
    node.publish(a_sample(2, 110), copies=1)
    node.publish(a_sample(1, 120), copies=1)
    newer.publish(a_sample(1, 200), copies=1)
    newer.publish(a_sample(2, 201), copies=1)
    meet(newer, node)
    assert copies(node) == {110: 1, 120: 1}
    source.publish(a_sample(7, 130), copies=2)
    assert meet(source, node) == [Drop(a_sample(2, 110), 1, Loss.REPLACED), StoreSample(a_sample(7, 130), 1)]
    assert copies(node) == {120: 1, 130: 1}


def test_a_full_memory_takes_nothing_from_neighbours() -> None:
    """What is not removable is somebody's newest sample."""
    node, source = Carrier(1, places=1), Carrier(2)
    node.publish(a_sample(1, 100), copies=1)
    source.publish(a_sample(2, 200), copies=8)
    assert meet(source, node) == []
    assert copies(node) == {100: 1}


def test_a_source_stores_what_it_publishes_and_the_oldest_gives_way() -> None:
    """Its copy is one of the L and takes a place, even of a full memory."""
    node = Carrier(1, places=2)
    node.publish(a_sample(1, 100), copies=3)
    node.publish(a_sample(2, 110), copies=1)
    steps = node.publish(a_sample(3, 120), copies=5)
    assert steps == [Drop(a_sample(1, 100), 3, Loss.DISPLACED), StoreSample(a_sample(3, 120), 5)]


def test_a_sample_published_again_later_replaces_the_source_s_own_first() -> None:
    """A source sees its own newer sample, too."""
    node = Carrier(1, places=2)
    node.publish(a_sample(2, 90), copies=1)
    node.publish(a_sample(1, 100), copies=4)
    assert node.publish(a_sample(1, 200), copies=4)[0] == Drop(a_sample(1, 100), 4, Loss.REPLACED)


def test_equal_times_are_ordered_by_publisher() -> None:
    """Two publishers of one topic at one instant: the higher address is the newer."""
    low, high = Carrier(1), Carrier(2)
    low.publish(a_sample(publisher=1), copies=4)
    high.publish(a_sample(publisher=2), copies=4)
    meet(high, low)
    meet(low, high)
    assert [copy.is_removable for copy in low.stored] == [True, False]
    assert [copy.sample.publisher for copy in high.stored] == [2]


def _published(node: Carrier, at: int) -> int:
    """Publish with a clock that says *at*; return the time in the id of what is stored."""
    (step,) = (each for each in node.publish(a_sample(1, at, publisher=node.address), copies=1) if _is_stored(each))
    return step.sample.published_at


def _is_stored(step: object) -> TypeGuard[StoreSample]:
    return isinstance(step, StoreSample)


def test_a_node_whose_clock_is_behind_publishes_with_the_next_id() -> None:
    """Clocks are loosely synchronised (3.2.2): id = max(clock, newest + 1), for what it holds and what it retrieved."""
    node = Carrier(9)
    assert [_published(node, at) for at in (200, 100, 300)] == [200, 201, 300]
    source, reader, other = Carrier(1), Carrier(2, subscriptions=[1]), Carrier(3, subscriptions=[1])
    _published(source, 200)
    meet(source, reader)
    assert _published(reader, 150) == 201
    meet(source, other)
    meet(reader, other)
    retrieved = other.retrieved(1)
    assert retrieved is not None
    assert retrieved.id == SampleId(201, 2)


def test_of_two_publishers_of_one_instant_the_higher_address_needs_no_new_id() -> None:
    """Its id is the newer one already."""
    for publisher, at in ((9, 200), (3, 201)):
        node, source = Carrier(publisher, subscriptions=[1]), Carrier(5)
        _published(source, 200)
        meet(source, node)
        assert _published(node, 200) == at


def test_a_subscriber_shows_what_it_retrieved_only_if_told_so() -> None:
    """Otherwise the copies of subscribers would drown the L that are planned."""
    for is_shown in (False, True):
        source, reader, other = Carrier(1), Carrier(2, subscriptions=[1], shows_retrieved=is_shown), Carrier(3)
        other.subscriptions = frozenset([1])
        source.publish(a_sample(), copies=1)
        assert meet(source, reader) == [Deliver(a_sample())]
        assert meet(reader, other) == ([Deliver(a_sample())] if is_shown else [])
        assert not reader.stored


def test_a_subscriber_that_has_a_newer_one_does_not_carry_the_older() -> None:
    """What its application knows counts, although it takes no place in memory (C6)."""
    newer, older = Carrier(1), Carrier(2)
    reader = Carrier(3, subscriptions=[1])
    newer.publish(a_sample(1, 200), copies=1)
    older.publish(a_sample(1, 100), copies=4)
    assert meet(newer, reader) == [Deliver(a_sample(1, 200))]
    assert meet(older, reader) == []


def test_a_share_that_arrives_after_a_newer_one_was_requested_is_outdated() -> None:
    """The place is kept for the newer one, which is on its way."""
    node = Carrier(1)
    for at in (100, 200):
        [_] = node.receive(2, Hello((Entry(1, SampleId(at, 9), has_copies=True),)))
    assert node.receive(2, Answer(a_sample(1, 100), 4)) == [Drop(a_sample(1, 100), 4, Loss.OUTDATED)]
    assert node.receive(2, Answer(a_sample(1, 200), 4)) == [StoreSample(a_sample(1, 200), 4)]


def test_a_newer_share_makes_one_s_own_sample_removable_that_was_published_meanwhile() -> None:
    """Two live samples of one topic would share its copies (C6)."""
    node = Carrier(1)
    node.receive(2, Hello((Entry(1, SampleId(200, 9), has_copies=True),)))
    node.publish(a_sample(1, 150, publisher=1), copies=4)
    node.receive(2, Answer(a_sample(1, 200), 2))
    assert [(copy.sample.published_at, copy.is_removable) for copy in node.stored] == [(150, True), (200, False)]


def test_what_a_subscriber_shows_is_given_to_subscribers_only() -> None:
    """It is no replica: a node that asks in order to carry gets nothing of it."""
    source, reader = Carrier(1), Carrier(2, subscriptions=[1], places=1, shows_retrieved=True)
    reader.publish(a_sample(5, 50, publisher=2), copies=1)
    source.publish(a_sample(), copies=1)
    assert meet(source, reader) == [Deliver(a_sample())]
    wanted = Request(topic=1, id=a_sample().id, is_subscriber=False, wants_copies=True)
    assert reader.receive(3, wanted) == [Send(3, Refusal(1, a_sample().id))]


def test_a_subscriber_that_has_it_may_still_carry_it() -> None:
    """What its application has is no replica, so its memory may become one."""
    waiting, spraying, reader = Carrier(1), Carrier(2), Carrier(3, subscriptions=[1])
    waiting.publish(a_sample(), copies=1)
    spraying.publish(a_sample(), copies=4)
    assert meet(waiting, reader) == [Deliver(a_sample())]
    assert meet(spraying, reader) == [StoreSample(a_sample(), 2)]


def test_an_answer_that_was_lost_can_be_asked_for_again() -> None:
    """The contact ended; the reserved place is free again."""
    source, other = Carrier(1), Carrier(2, places=1)
    source.publish(a_sample(), copies=4)
    assert len(other.receive(1, source.hello())) == 1
    assert other.receive(1, source.hello()) == []  # it waits for the answer
    other.forget(1, a_sample().id)
    assert len(other.receive(1, source.hello())) == 1


def test_nothing_can_be_pushed() -> None:
    """What a neighbour sends without having been asked is neither stored nor given to the application (3.2.2)."""
    node = Carrier(1, subscriptions=[1])
    assert node.receive(2, Answer(a_sample(), 4)) == []
    assert (node.stored, node.retrieved(1)) == ([], None)
    node.receive(2, Hello((Entry(1, a_sample().id, has_copies=True),)))
    node.forget(1, a_sample().id)  # the contact ended before the answer came
    assert node.receive(2, Answer(a_sample(), 4)) == []


def test_what_comes_too_late_is_counted_as_lost() -> None:
    """A place may go to one's own sample, and a newer one may come, while a share is on its way."""
    node = Carrier(1, places=1)
    node.receive(2, Hello((Entry(1, SampleId(100, 9), has_copies=True),)))
    node.publish(a_sample(5, 300), copies=1)
    assert node.receive(2, Answer(a_sample(1, 100), 4)) == [Drop(a_sample(1, 100), 4, Loss.NO_PLACE)]
    other = Carrier(1)
    other.receive(2, Hello((Entry(1, SampleId(100, 9), has_copies=True),)))
    other.publish(a_sample(1, 300, publisher=1), copies=1)
    assert other.receive(2, Answer(a_sample(1, 100), 4)) == [Drop(a_sample(1, 100), 4, Loss.OUTDATED)]


def test_ten_thousand_invented_ids_leave_a_bounded_number_of_requests() -> None:
    """A stranger invents addresses and ids for nothing; what was asked for last is still awaited."""
    node = Carrier(1, subscriptions=[1])
    for number in range(10_000):
        [_] = node.receive(number + 2, Hello((Entry(1, SampleId(number, 9), has_copies=False),)))
    assert node.requests == MAX_REQUESTS
    last = a_sample(1, 9_999)
    assert node.receive(10_001, Answer(last, 0)) == [Deliver(last)]
