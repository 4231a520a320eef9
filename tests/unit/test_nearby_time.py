"""Deadlines: what is promised, what is delivered first, and what is never delivered late."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.nearby_rig import MS, SECOND, Street, at

from whimbrel.errors import InvalidValueError
from whimbrel.model.place import Area
from whimbrel.nearby.cells import cover
from whimbrel.nearby.datagrams import travel_us
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.dispatcher import Dispatcher
from whimbrel.nearby.frames.values import Event
from whimbrel.nearby.group.numbers import REMEMBERED, SeenNumbers
from whimbrel.nearby.group.outputs import Deliver, NoteKind
from whimbrel.nearby.group.subscriptions import NearbySubscription
from whimbrel.nearby.node import Node
from whimbrel.nearby.prediction import DeadlineTooShortError, DurationHistogram, LatencyBounds
from whimbrel.nearby.vocabulary import Vocabulary

A = NearbySubscription(subject="A")


def _group() -> tuple[Street, Node]:
    street = Street()
    street.add("P", at(0))
    street.announce("P", "A", deadline_us=SECOND)
    street.add("C", at(10)).subscribe(A)
    street.run(2.5)
    return street, street.nodes["C"]


def _give(street: Street, value: int, deadline_us: int) -> Event:
    event, _ = street.nodes["P"].publish("A", {"value": value}, deadline_us=deadline_us, now=street.now)
    street.do("C", street.nodes["C"].receive(event, now=street.now))
    return event


def test_the_earliest_deadline_is_delivered_first() -> None:
    """An application that is busy gets the urgent one before the older ones (T28)."""
    street, car = _group()
    for value, deadline_us in ((1, 900 * MS), (2, 100 * MS), (3, 500 * MS)):
        _give(street, value, deadline_us)
    taken = [car.take(now=street.now)[0] for _ in range(4)]
    assert [each and each.event.attributes["value"] for each in taken] == [2, 3, 1, None]


def test_a_late_event_is_expired_and_reported_to_both_sides() -> None:
    """Never delivered late; the producer hears of it with the next join."""
    street, car = _group()
    event = _give(street, 1, 100 * MS)
    kept = _give(street, 2, 900 * MS)
    found, notes = car.take(now=street.now + 100 * MS)
    assert isinstance(found, Deliver)
    assert found.event.id == kept.id
    assert [(note.kind, note.number) for note in notes] == [(NoteKind.EXPIRED, event.number)]  # type: ignore[union-attr] # notes
    street.run(1.5)
    reported = [note for who, note in street.notes if note.kind is NoteKind.MEMBER_EXPIRED]
    assert [(note.member, note.count) for note in reported] == [("C", 1)]


def test_an_event_that_arrives_too_late_is_expired_at_once() -> None:
    """The remaining time travels; the time of a transmission is taken off."""
    street, car = _group()
    event, _ = street.nodes["P"].publish("A", {"value": 1}, deadline_us=50 * MS, now=street.now)
    late = replace(event, remaining_us=2 * MS)
    street.do("C", car.receive(late, now=street.now))
    assert street.kinds("C") == [NoteKind.JOINED, NoteKind.EXPIRED]
    assert car.take(now=street.now) == (None, [])


def test_the_remaining_time_shrinks_on_the_way() -> None:
    """By what each node held it and by all datagrams of each transmission, with no common clock."""
    order = ["P", "r", "C"]
    street = Street(hears=lambda one, other: abs(order.index(one) - order.index(other)) == 1)
    for number, name in enumerate(order):
        street.add(name, at(10 * number)).subscribe(A)
    street.announce("P", "A", hops=2)
    street.run(2.5)
    street.publish("P", "A", value=1)
    street.run(0.1)
    first, repeated = (frame for _, frame in street.sent[-3:-1])
    assert isinstance(first, Event)
    assert isinstance(repeated, Event)
    assert first.remaining_us == 500 * MS
    assert repeated.sender == "r"
    airtime_us = travel_us(first, deployment=Deployment())
    assert airtime_us >= 2 * Deployment().airtime_us  # two datagrams for each cell, since it may be repeated
    assert 0 <= first.remaining_us - repeated.remaining_us - airtime_us <= Deployment().longest_delay_us


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(0, 60))
def test_the_dispatcher_is_a_sort_by_deadline(deadlines: list[int], now: int) -> None:
    """Whatever waits comes out by deadline, ties by arrival; the dead are reported, none is lost."""
    event = _event()
    line = Dispatcher(max_waiting=20)
    dropped = [line.add(event, subscriptions=("",), attributes={}, dies_at=each, now=0) for each in deadlines]
    lost = sorted(each.dies_at for each in dropped if each is not None)
    delivered, expired = [], []
    while True:
        waiting, dead = line.take(now=now)
        expired += [each.dies_at for each in dead]
        if waiting is None:
            break
        delivered.append(waiting.dies_at)
    assert delivered == sorted(delivered)
    assert all(each > now for each in delivered)
    assert all(each <= now for each in expired)
    assert sorted(delivered + expired + lost) == sorted(deadlines)
    assert len(delivered) + len(expired) <= 20


def _event() -> Event:
    return Event(
        origin="P",
        seq=1,
        sender="P",
        hops=0,
        max_hops=0,
        subject="A",
        area=Area(at(0), 100),
        place=at(0),
        epoch=0,
        number=1,
        deadline_us=1,
        remaining_us=1,
        attributes={},
    )


@given(st.lists(st.integers(0, 400), max_size=60))
def test_seen_numbers_are_a_set_with_a_floor(numbers: list[int]) -> None:
    """As a set would say, except that what lies far below the highest counts as seen."""
    seen, model = SeenNumbers(), set[int]()
    for number in numbers:
        is_old = bool(model) and number <= max(model) - REMEMBERED
        assert (number in seen) == (number in model or is_old)
        assert seen.add(number) == (number not in model and not is_old)
        if not is_old:
            model.add(number)


@given(st.lists(st.integers(0, 400), max_size=20), st.integers(-1, 400), st.integers(0, 400))
def test_numbers_up_to_one_can_be_taken_for_seen(numbers: list[int], last: int, asked: int) -> None:
    """Those above it are as they were."""
    seen, filled = SeenNumbers(), SeenNumbers()
    for number in numbers:
        seen.add(number)
        filled.add(number)
    filled.fill(last)
    assert (asked in filled) == (asked <= last or asked in seen)


def test_a_number_far_below_the_highest_costs_nothing() -> None:
    """A stranger's beacon may name any two numbers: the distance between them is no memory."""
    seen = SeenNumbers()
    seen.add(2**62)
    seen.fill(1)
    assert 2**62 in seen
    assert 2**62 - 1 not in seen
    assert 1 in seen


def test_the_prediction_is_a_sum_of_bounds() -> None:
    """Hop bound times the bound of a hop, and matching, and dispatching; with its percentile (T29).

    A hop counts every datagram of a frame: one for each cell, and as many for relays if it may be repeated.
    """
    bounds = LatencyBounds(Deployment(), enough=100)
    assumed = bounds.predict(3, cells=1, steps=500)
    assert assumed.worst_us == 4 * (7_500 + 2 * 4_000) + 2_500
    assert bounds.predict(0, cells=1, steps=500).worst_us == 7_500 + 4_000 + 2_500
    assert bounds.predict(3, cells=4, steps=500).worst_us == 4 * (7_500 + 8 * 4_000) + 2_500
    for number in range(1_000):
        bounds.add_hop(5_000 if number < 998 else 50_000, cells=1)
    measured = bounds.predict(3, cells=1, steps=1)
    assert (
        bounds.predict(3, cells=4, steps=1).hop_us == 7_500 + 8 * 4_000
    )  # what is measured of one cell says nothing of four
    assert measured.percentile == 99.9
    assert 50_000 <= measured.hop_us <= 54_600
    for wrong in (0, 100, -3):
        with pytest.raises(InvalidValueError):
            LatencyBounds(Deployment(), percentile=wrong)


def test_the_promise_counts_the_filters_that_its_consumers_may_have() -> None:
    """An allowed filter took 17.9 ms where 1 was promised: the bound is the type's, not what the producer measured."""
    words = {"costly": {"parameters": {"value": "int32"}, "max_filter_steps": 50_000}, "plain": {"value": "int32"}}
    producer = Node("P", vocabulary=Vocabulary.of(words))
    producer.move(at(0), now=0)
    costly, plain = (
        producer.announce(subject, radius_m=100, deadline_us=SECOND, now=0)[0] for subject in ("costly", "plain")
    )
    assert costly.matching_us == 1_000 + 50_000
    assert costly.worst_us - plain.worst_us == 30_000
    with pytest.raises(DeadlineTooShortError):
        producer.announce("costly", radius_m=100, deadline_us=50 * MS, now=0)


@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=50), st.floats(1, 100))
def test_a_percentile_is_never_too_low_and_little_too_high(durations: list[int], percentile: float) -> None:
    """A promise may be generous by a tenth, never too short."""
    found = DurationHistogram()
    for each in durations:
        found.add(each)
    exact = sorted(durations)[max(1, math.ceil(len(durations) * percentile / 100)) - 1]
    assert exact <= found.percentile(percentile) <= exact * 1.1 + 1


def test_a_hop_is_measured_without_a_common_clock() -> None:
    """From one's own transmission to hearing a neighbour repeat it."""
    street = Street()
    for number, name in enumerate(("P", "a", "b")):
        street.add(name, at(10 * number)).subscribe(A)
    street.announce("P", "A", hops=1)
    street.run(20)
    cells = len(cover(Area(at(0), 200), deployment=Deployment()))
    meter = street.nodes["P"].bounds.hops(cells)
    assert meter.total >= 40
    assert 2_000 <= meter.percentile(99.9) <= 1.1 * (7_500 + 2_000)
