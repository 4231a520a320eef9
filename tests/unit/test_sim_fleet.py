"""The fleet is a plan: the same seed makes the same ward, and whatever is planned can be performed."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import islice, pairwise

import pytest

from whimbrel.hold.private import asked_for
from whimbrel.language.filters import Filter
from whimbrel.match.topics import matches
from whimbrel.sim.fleet import FLEET, Change, Device, Fleet, Wish, moves, readings

_NAMES = [device.name for device in FLEET.devices]


def test_the_fleet_has_forty_devices_of_different_names() -> None:
    """A name is a client identifier: two of one name would put each other out."""
    assert len(_NAMES) == len(set(_NAMES)) == 40


def test_everybody_joins_a_session_that_there_is() -> None:
    """A session without a person would have no subscriptions."""
    sessions = {person.session for person in FLEET.people}
    assert {device.session for device in FLEET.devices} - {None} == sessions


def test_every_session_is_shared_and_has_somebody_who_takes() -> None:
    """That is what sessions are for; and where all keep, nothing would ever be taken elsewhere."""
    for person in FLEET.people:
        theirs = [device.receipt for device in FLEET.devices if device.session == person.session]
        assert {"take", "keep"} <= set(theirs)


def test_nobody_takes_long_over_what_it_receives() -> None:
    """Whoever waits for the ward to come to rest relies on it; but some take their time, and vanish with it in hand."""
    taken = [device.handles_s for device in FLEET.listening()]
    assert 0.0 < max(taken) <= 0.1


def test_the_same_seed_makes_the_same_day() -> None:
    """A demo that somebody describes can be seen by others."""
    days = [list(islice(readings(random.Random(seed), per_s=100), 200)) for seed in (1, 1, 2)]
    going = [list(islice(moves(FLEET, random.Random(seed)), 200)) for seed in (1, 1, 2)]
    assert days[0] == days[1] != days[2]
    assert going[0] == going[1] != going[2]


def test_devices_come_and_go_in_turn_and_time_goes_on() -> None:
    """Nobody goes who is not there, and nobody comes twice."""
    found = list(islice(moves(FLEET, random.Random(3)), 2_000))
    assert all(before.at_s <= after.at_s for before, after in pairwise(found))
    for name in _NAMES:
        changes = [move.change is Change.COMES for move in found if move.device == name]
        assert changes[0]
        assert all(before != after for before, after in pairwise(changes))
    assert {move.change for move in found} == set(Change)


@pytest.mark.parametrize(("vanishes", "change"), [(0.0, Change.LEAVES), (1.0, Change.VANISHES)])
def test_a_device_goes_as_it_is_its_habit(vanishes: float, change: Change) -> None:
    """Whoever never says goodbye never does, and the other way round."""
    fleet = Fleet(people=(), devices=(Device(name="a", vanishes=vanishes),))
    gone = {move.change for move in islice(moves(fleet, random.Random(1)), 50)} - {Change.COMES}
    assert gone == {change}


def test_readings_come_from_sensors_at_about_the_rate() -> None:
    """A publication by a device that is not there would never be sent."""
    found = list(islice(readings(random.Random(5), per_s=200), 4_000))
    listening = {device.name for device in FLEET.listening()}
    assert {reading.device for reading in found} == set(_NAMES) - listening
    assert 3_000 < 4_000 / found[-1].at_s * 20 < 5_000
    assert {reading.qos for reading in found} == {0, 1}


def test_what_expires_is_sent_at_qos_1() -> None:
    """At QoS 0 it could count as received and never be sent, which no witness could tell from a loss."""
    found = list(islice(readings(random.Random(5), per_s=200), 2_000))
    assert {reading.qos for reading in found if reading.expiry_s is not None} == {1}


def test_every_body_is_the_only_one_of_its_kind() -> None:
    """Devices know notifications by their bodies."""
    found = list(islice(readings(random.Random(5), per_s=200), 2_000))
    bodies = [reading.body(number, 17) for number, reading in enumerate(found)]
    assert len(set(bodies)) == len(bodies)
    assert json.loads(bodies[0]) == {"reading": 0, "sent_us": 17, **found[0].values}


def _everything_wished() -> list[tuple[str, Wish]]:
    shared = [(person.session, wish) for person in FLEET.people for wish in person.wishes]
    return shared + [(device.name, wish) for device in FLEET.devices for wish in device.wishes]


def test_everybody_gets_something_and_nobody_gets_all() -> None:
    """A filter that is always or never true shows nothing."""
    found = list(islice(readings(random.Random(5), per_s=150), 6_000))
    counts: Counter[str] = Counter()
    for whose, wish in _everything_wished():
        wanted = None if wish.filter_text is None else Filter(wish.filter_text)
        topics = asked_for(wish.subject_filter) or "#"
        for reading in found:
            if matches(topics, reading.subject) and (wanted is None or wanted.verdict(reading.values) is True):
                counts[whose] += 1
    assert counts.keys() == {whose for whose, _ in _everything_wished()}
    assert min(counts.values()) > 20
    assert max(counts.values()) < len(found)
