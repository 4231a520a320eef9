"""The baseband computed event by event against the one that goes tick by tick: the same happenings, the same ticks."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st
from slot_baseband import SlotBaseband

from whimbrel.rendezvous.radio.simulated.baseband import EventBaseband
from whimbrel.rendezvous.radio.simulated.stations import (
    Collided,
    Discovered,
    Happening,
    Overheard,
    PageOver,
    Station,
)
from whimbrel.rendezvous.radio.simulated.timing import Sending, scan_frequency

HORIZON = 11_000
"""Ticks of a scenario: 3.4 s, more than one train and two scan windows."""


@dataclass(frozen=True, slots=True)
class Action:
    """Something that a station does at a tick."""

    tick: int
    number: int
    what: str
    target: int
    value: int


@dataclass(frozen=True, slots=True)
class World:
    """Stations, who hears whom, and what they do."""

    offsets: tuple[int, ...]
    phases: tuple[int, ...]
    voice_links: tuple[int, ...]
    deaf: frozenset[tuple[int, int]]
    actions: tuple[Action, ...]
    places: tuple[tuple[int | None, bool], ...] = ()
    """For each station: in whose place it listens for pages, and whether it does so without answering."""


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw a world in which clocks often agree, so that stations also collide."""
    count = draw(st.integers(2, 4))
    offsets = st.sampled_from([0, 1, 3, 4_093, 70_000]) | st.integers(0, 2**17)
    phases = st.sampled_from([0, 100]) | st.integers(0, 4_095)
    ticks = st.sampled_from([0, 0, 1, 50]) | st.integers(0, HORIZON - 1)
    actions = draw(
        st.lists(
            st.builds(
                Action,
                tick=ticks,
                number=st.integers(0, count - 1),
                what=st.sampled_from(["inquire", "inquire", "scan", "scan", "page", "page", "hush", "deaf"]),
                target=st.integers(0, count - 1),
                value=st.integers(0, 9_000),
            ),
            max_size=9,
        )
    )
    start = [
        Action(0, 0, draw(st.sampled_from(["inquire", "page"])), 1, 9_000),
        *(Action(draw(st.sampled_from([0, 0, 700])), number, "scan", 0, 0) for number in range(1, count)),
    ]
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).map(lambda pair: (min(pair), max(pair)))
    return World(
        tuple(draw(offsets) for _ in range(count)),
        tuple(draw(phases) for _ in range(count)),
        tuple(draw(st.sampled_from([0, 0, 1, 2])) for _ in range(count)),
        draw(st.frozensets(pairs, max_size=1)),
        tuple(sorted([*start, *actions], key=lambda each: each.tick)),
        tuple(draw(st.just((None, False)) | st.tuples(st.integers(0, count - 1), st.booleans())) for _ in range(count)),
    )


def run(world: World, made: type[EventBaseband | SlotBaseband]) -> list[tuple[int, str]]:
    """Play *world* on a baseband and return what happened."""
    baseband = made(lambda one, other: (min(one, other), max(one, other)) not in world.deaf)
    places = world.places or ((None, False),) * len(world.offsets)
    for number, ((target, is_silent), offset, phase, links) in enumerate(
        zip(places, world.offsets, world.phases, world.voice_links, strict=True)
    ):
        station = Station(offset=offset, phase=phase, random=Random(7), voice_links=links)
        station.stands_in_for, station.is_silent = (None, False) if target == number else (target, is_silent)
        baseband.add(station)
    found: list[tuple[int, Happening]] = []
    for action in world.actions:
        found += baseband.advance(action.tick)
        number, tick = action.number, action.tick
        if action.what == "inquire":
            baseband.inquire(number, is_on=True, tick=tick)
        elif action.what == "hush":
            baseband.inquire(number, is_on=False, tick=tick)
        elif action.what in {"scan", "deaf"}:
            baseband.set_scans(number, inquiry=action.what == "scan", page=action.what == "scan", tick=tick)
        elif action.target != number and baseband.stations[number].paging is None:
            estimate = baseband.stations[action.target].offset + (action.value % 3) * 4
            baseband.page(number, action.target, estimate=estimate, timeout=action.value, tick=tick)
    found += baseband.advance(HORIZON)
    return sorted((tick, repr(each)) for tick, each in found)


SCANS_AGAIN = World(
    (4_093, 4_093),
    (560, 0),
    (2, 2),
    frozenset(),
    (
        Action(0, 0, "inquire", 1, 0),
        Action(0, 1, "scan", 0, 0),
        Action(50, 1, "deaf", 0, 0),
        Action(8_167, 1, "scan", 0, 0),
    ),
)
"""A scanner that answered, stopped and began again: the two once disagreed about its frequency."""

COLLIDES_LATE = World(
    (0, 1, 1),
    (0, 7, 0),
    (2, 1, 2),
    frozenset(),
    (Action(0, 2, "scan", 0, 0), Action(25, 0, "inquire", 2, 0), Action(700, 1, "scan", 0, 0)),
)
"""Two that answer one ID at once, the second of which began to scan first."""


IN_ITS_PLACE = World(
    (0, 70_000, 70_000),
    (0, 900, 900),
    (0, 0, 0),
    frozenset(),
    (Action(0, 1, "scan", 0, 0), Action(0, 2, "scan", 0, 0), Action(0, 0, "page", 1, 9_000)),
    ((None, False), (None, False), (1, False)),
)
"""Two answer the pages for one of them, with the same clock: neither is understood."""


@settings(max_examples=25)
@given(worlds())
@example(SCANS_AGAIN)
@example(COLLIDES_LATE)
@example(IN_ITS_PLACE)
def test_event_by_event_is_slot_by_slot(world: World) -> None:
    """The fast one is the slow one with the ticks left out in which nothing can happen."""
    assert run(world, EventBaseband) == run(world, SlotBaseband)


@given(
    st.integers(0, 2**28), st.integers(0, 2_000), st.sampled_from([1, 3, 128]), st.integers(0, 31), st.integers(0, 300)
)
def test_the_next_id_on_a_frequency_is_where_it_is_computed(
    offset: int, since: int, repetitions: int, frequency: int, start: int
) -> None:
    """The one formula that the fast baseband stands on, against asking every tick."""
    sending = Sending(offset, since, repetitions)
    end = start + 3_000
    ticks = [tick for tick in range(start, end) if sending.frequency(tick) == frequency]
    assert sending.next_on(frequency, start, end) == (ticks[0] if ticks else None)


def test_a_train_is_sixteen_frequencies_and_two_are_all() -> None:
    """As the standard has it: 16 in 10 ms, the other 16 after the repetitions."""
    sending = Sending(0, 0, 2)
    trains = [{sending.frequency(tick) for tick in range(start, start + 32)} - {None} for start in (0, 32, 64, 96)]
    assert [len(train) for train in trains] == [16, 16, 16, 16]
    assert trains[0] == trains[1]
    assert not trains[0] & trains[2]
    assert len(trains[0] | trains[2]) == 32


def test_a_pager_that_knows_the_clock_begins_with_the_right_train() -> None:
    """That is what the clock offset is good for."""
    for offset in range(0, 2**17, 997):
        sending = Sending(offset, 0, 128)
        assert scan_frequency(offset) in {sending.frequency(tick) for tick in range(32)}


def test_scenarios_of_the_differential_test_reach_every_happening() -> None:
    """A test that compares nothing with nothing proves nothing."""
    twins = World(
        (0, 70_000, 70_000),
        (0, 900, 900),
        (0, 0, 0),
        frozenset({(1, 2)}),
        tuple(Action(0, n, "scan", 0, 0) for n in (1, 2)),
    )
    calls = (*twins.actions, Action(0, 0, "inquire", 0, 0))
    found = run(World(twins.offsets, twins.phases, twins.voice_links, twins.deaf, calls), EventBaseband)
    assert any(Collided.__name__ in each for _, each in found)
    pages = (Action(0, 1, "scan", 0, 0), Action(0, 0, "page", 1, 9_000))
    found = run(World(twins.offsets, twins.phases, twins.voice_links, frozenset(), pages), EventBaseband)
    assert any(PageOver.__name__ in each for _, each in found)
    both = (Action(0, 1, "scan", 0, 0), Action(0, 2, "scan", 0, 0), Action(0, 0, "page", 1, 9_000))
    for is_silent, happening in ((True, Overheard), (False, Collided)):
        places = ((None, False), (None, False), (1, is_silent))
        found = run(World(twins.offsets, twins.phases, twins.voice_links, frozenset(), both, places), EventBaseband)
        assert any(happening.__name__ in each for _, each in found)
    calls = (Action(0, 1, "scan", 0, 0), Action(0, 0, "inquire", 0, 0))
    found = run(World(twins.offsets, twins.phases, twins.voice_links, frozenset(), calls), EventBaseband)
    assert any(Discovered.__name__ in each for _, each in found)
