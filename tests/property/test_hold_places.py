"""The hold that heeds places (rule 20) against its naive twin: devices move between any two facts, nears change."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from naive_hold import NaiveHold
from test_hold import DEVICES, END, NODE, RETENTION, STEADY, Event, _Timed, _told, _unordered, spelled

from whimbrel.hold.sessions import Hold
from whimbrel.hold.store.interface import Key
from whimbrel.model.device import DeviceState
from whimbrel.model.facts import InterestChanged, Reported
from whimbrel.model.near import ANYWHERE, Around, Near
from whimbrel.model.notification import Notification
from whimbrel.model.place import Area, Place
from whimbrel.model.polygon import Polygon
from whimbrel.node.places.last_places import LastPlaces

PLACES = [Place(52.52, 13.405), Place(52.521, 13.405), Place(52.53, 13.405), Place(-17.0, 180.0)]
RADII = [None, None, 111.3, 2_000.0]
NEARS: list[Near | None] = [
    *(None, None, None, ANYWHERE, Around(111.3), Around(2_000.0), Area(PLACES[0], 500.0)),
    Polygon.parse("52.5,13.4;52.5,13.5;52.525,13.5;52.525,13.4"),
]


def _placed(events: list[Event], seed: int) -> list[Event]:
    """Return *events* with places: publications have some, subscriptions want some, and ticks become reports."""
    rng, found = random.Random(seed), []
    for seq, (fact, matches) in enumerate(events):
        if isinstance(fact, Notification):
            place = rng.choice([None, *PLACES[:3], *PLACES])
            fact = replace(fact, place=place, radius_m=None if place is None else rng.choice(RADII))  # noqa: PLW2901
        elif isinstance(fact, InterestChanged):
            wanted = replace(fact.subscription, near=rng.choice(NEARS), stale_us=rng.choice([None, None, 3, 0]))
            fact = replace(fact, subscription=wanted)  # noqa: PLW2901
        elif isinstance(fact, int | Reported):
            now = fact if isinstance(fact, int) else fact.state.reported_at
            place = rng.choice([None, *PLACES[:3], *PLACES])
            state = DeviceState(device=rng.choice(DEVICES), reported_at=now, place=place)
            fact = Reported(node=NODE, seq=seq, state=state)  # noqa: PLW2901
        found.append(Event(fact, matches))
        if rng.random() < 0.5 and isinstance(fact, Notification):
            state = DeviceState(device=rng.choice(DEVICES), reported_at=fact.published_at, place=rng.choice(PLACES[:3]))
            found.append(Event(Reported(node=NODE, seq=seq, state=state)))
    return found


@settings(deadline=None)
@given(steps=STEADY, seed=st.integers(0, 2**32), has_fast_lane=st.booleans(), stops_at=st.integers(0, 60))
def test_the_hold_that_heeds_places_agrees_with_its_naive_twin(
    steps: list[_Timed], seed: int, *, has_fast_lane: bool, stops_at: int
) -> None:
    """Wherever devices are, whatever is stale, and after a restart from the rows of a view."""
    hold = Hold[Notification](NODE, retention=RETENTION, has_fast_lane=has_fast_lane, heeds_places=True)
    twin = NaiveHold(NODE, retention=RETENTION, heeds_places=True)
    rows: dict[Key, bytes] = {}
    for number, event in enumerate([*_placed(spelled(steps), seed), Event(END)]):
        found, wanted = _told(hold, event), _told(twin, event)
        assert _unordered(found) == _unordered(wanted), event
        if number == stops_at:
            rows.update(hold.changes()[0])
            places = LastPlaces(hold.places)
            seen = {key: row for key in list(places.keys()) if (row := places.row(key)) is not None}  # no mapping
            hold = Hold[Notification].restore(
                NODE, rows.items(), retention=RETENTION, has_fast_lane=has_fast_lane, heeds_places=True
            )
            LastPlaces(hold.places).restore(seen)  # a node has them in rows of its own
