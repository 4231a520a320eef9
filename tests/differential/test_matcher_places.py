"""The matcher with places against the plainest answer: whatever finds a subscription, who hears is the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whimbrel.errors import InvalidValueError
from whimbrel.language.filters import Filter
from whimbrel.match.matcher import Interest, Matcher, PublishedAt
from whimbrel.match.placed import Bounds
from whimbrel.match.proximity.index import Publications
from whimbrel.match.proximity.stored import read, state_arrays
from whimbrel.match.topics import matches
from whimbrel.model.attributes import Attributes
from whimbrel.model.near import ANYWHERE, Around, Near
from whimbrel.model.notification import Notification
from whimbrel.model.place import Area, Place
from whimbrel.model.polygon import Polygon
from whimbrel.model.proximity import Sighting, hears, places_at
from whimbrel.model.tables import ATTRIBUTES_TYPE, attributes_to_column_value

PLACES = [Place(52.52, 13.405), Place(52.521, 13.405), Place(52.53, 13.405), Place(-17.0, 180.0), Place(90.0, 0.0)]
RADII = [0.0, 111.3, 1_500.0, 60_000.0, 2e7]
NEARS: list[Near | None] = [
    *(Area(place, radius_m) for place in PLACES[::2] for radius_m in RADII[1:]),
    *(Around(radius_m) for radius_m in RADII),
    Polygon.parse("52.5,13.4;52.5,13.5;52.6,13.5"),
    Polygon.parse("-20,179;-20,-179;-15,-179;-15,179"),
    ANYWHERE,
    None,
    None,
]
INTERESTS = st.builds(
    lambda near, session, stale_us, subject, text: Interest(
        near=near,
        session="s" if session is None and isinstance(near, Around) else session,
        stale_us=stale_us,
        subject_filter=subject,
        filter_text=text,
    ),
    st.sampled_from(NEARS),
    st.sampled_from([None, "s", "t", "u"]),
    st.sampled_from([None, 5]),
    st.sampled_from([None, "a", "a/+", "#"]),
    st.sampled_from([None, None, "x > 1", "y == 'k'"]),
)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from([None, "a", "a/b", "$x"]),
        st.sampled_from([{}, {"x": 1}, {"x": 2, "y": "k"}]),
        st.sampled_from([None, *PLACES]),
        st.sampled_from([None, *RADII]),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=5,
)
Event = tuple[str | None, Attributes, Place | None, float | None, int]
MEMBERS = st.sets(st.tuples(st.sampled_from("stu"), st.sampled_from("abcd")))
MOVES = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(PLACES), st.integers(0, 9)), max_size=8)
BOUNDS = st.builds(
    Bounds, st.sampled_from([0.0, 50_000.0, 1e9]), st.sampled_from([0, 1, 100]), st.sampled_from([0, 2, 128])
)


def _wants(interest: Interest, event: Event, places: list[Place]) -> bool:
    subject, attributes, place, radius_m, _ = event
    if interest.subject_filter is not None and (subject is None or not matches(interest.subject_filter, subject)):
        return False
    if interest.filter_text is not None and not Filter(interest.filter_text).matches(attributes):
        return False
    has_area = place is not None and radius_m is not None and interest.session is not None
    area = Area(place, radius_m) if has_area and place is not None and radius_m is not None else None
    return hears(interest.near, places, place=place, area=area)


def _answers(matcher: Matcher, events: list[Event]) -> Iterator[list[set[str]]]:
    """Yield who wants each event: one by one, as notifications, in rows, and in an Arrow batch."""
    spots = [(e[2], None if e[2] is None else e[3], e[4]) for e in events]
    where = [PublishedAt(*spot) for spot in spots]
    yield [
        {matcher.id_of(handle) for handle in _once(matcher.match_parts(e[0], e[1], where=where[at]))}
        for at, e in enumerate(events)
    ]
    facts = [
        Notification(node="n", seq=1, subject=s, attributes=a, place=p, radius_m=r, published_at=at)
        for (s, a, _, _, _), (p, r, at) in zip(events, spots, strict=True)
    ]
    yield [{matcher.id_of(handle) for handle in _once(matcher.match(fact))} for fact in facts]
    everywhere = Publications.of(*(list(column) for column in zip(*spots, strict=True)))
    column = pa.array([attributes_to_column_value(e[1]) for e in events], ATTRIBUTES_TYPE)
    for attributes in ([e[1] for e in events], column):
        rows, handles = matcher.match_batch([e[0] for e in events], attributes, where=everywhere)
        assert rows.tolist() == sorted(rows.tolist())
        pairs = _once(list(zip(rows.tolist(), handles.tolist(), strict=True)))
        yield [{matcher.id_of(handle) for row, handle in pairs if row == at} for at in range(len(events))]


def _once(found: list[Any]) -> list[Any]:
    assert len(found) == len(set(found))
    return found


@settings(max_examples=150, deadline=None)
@given(
    wanted=st.lists(INTERESTS, max_size=8),
    gone=st.sets(st.integers(0, 7)),
    again=st.lists(INTERESTS, max_size=3),
    events=EVENTS,
    members=MEMBERS,
    moves=MOVES,
    bounds=BOUNDS,
)
def test_whatever_finds_a_subscription_who_hears_is_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    wanted: list[Interest],
    gone: set[int],
    again: list[Interest],
    events: list[Event],
    members: set[tuple[str, str]],
    moves: list[tuple[str, Place, int]],
    bounds: Bounds,
) -> None:
    """Loaded, added, replaced, removed; place as the source and as the sieve; saved and mapped."""
    matcher = Matcher.load([(str(at), each) for at, each in enumerate(wanted[:4])], bounds=bounds)
    seen: dict[str, Sighting] = {}
    for session, device in sorted(members):
        matcher.places.join(session, device)
    for at, each in enumerate(wanted[4:], start=4):
        matcher.add(str(at), each)
    for device, place, at in moves:
        matcher.places.move(device, place, at)
        seen[device] = Sighting(0, at, place)
    known = {str(at): each for at, each in enumerate(wanted)}
    for number in gone:
        matcher.remove(str(number))
        known.pop(str(number), None)
    for at, each in enumerate(again):
        matcher.add(str(at), each)
        known[str(at)] = each
    want = [
        {
            name
            for name, each in known.items()
            if _wants(
                each,
                event,
                places_at(
                    [seen.get(device) for session, device in members if session == each.session],
                    now=event[4],
                    stale_us=each.stale_us,
                ),
            )
        }
        for event in events
    ]
    for found in _answers(matcher, events):
        assert found == want
    path = tmp_path_factory.mktemp("places") / "matcher"
    matcher.save(path)
    mapped, _ = Matcher.map(path)
    for found in _answers(mapped, events):
        assert found == want


def test_a_hundred_thousand_that_say_near_are_not_all_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Place is where they are looked for: the others are never asked."""
    matcher = Matcher()
    for number in range(2_000):
        matcher.places.join(f"s{number}", f"d{number}")
        matcher.add(str(number), Interest(near=Around(200.0), session=f"s{number}", subject_filter="#"))
        matcher.places.move(f"d{number}", Place(52.0, number / 1_000), 0)
    monkeypatch.setattr(type(matcher.places), "sieve", lambda *_: pytest.fail("everybody was asked"))
    found = matcher.match_parts("a", {}, where=PublishedAt(Place(52.0, 0.5), 150.0, 1))
    assert {matcher.id_of(handle) for handle in found} == {"498", "499", "500", "501", "502"}


def test_many_of_one_subject_are_looked_for_by_the_area(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand cars listen for ambulances; the one that comes asks only those around it."""
    matcher = Matcher()
    for number in range(1_000):
        matcher.places.join(f"s{number}", f"d{number}")
        matcher.add(str(number), Interest(session=f"s{number}", subject_filter="hazard/+"))
        matcher.places.move(f"d{number}", Place(52.0, number / 1_000), 0)
    monkeypatch.setattr(type(matcher.places), "sieve", lambda *_: pytest.fail("everybody was asked"))
    found = matcher.match_parts("hazard/ambulance", {}, where=PublishedAt(Place(52.0, 0.5), 150.0, 1))
    assert {matcher.id_of(handle) for handle in found} == {"498", "499", "500", "501", "502"}
    assert matcher.match_parts("other", {}, where=PublishedAt(Place(52.0, 0.5), 150.0, 1)) == []


def test_a_file_with_other_numbers_is_refused() -> None:
    """The kernels trust every number, so each is looked at when a file is mapped."""
    matcher = Matcher()
    matcher.places.join("s", "d")
    matcher.places.move("d", PLACES[0], 0)
    matcher.add("a", Interest(near=Area(PLACES[0], 5.0), session="s"))
    matcher.add("b", Interest(near=NEARS[-5], session="s"))
    good = state_arrays(matcher.places)
    assert len(read(good, handles=2)) == 2
    faults: dict[str, list[float]] = {
        "handles": [5, -1],
        "wanted": [9, -2, 2**62],
        "spots": [91.0, float("nan")],
        "corner_counts": [65, -1, 2],
        "corners": [91.0, float("inf"), 1e300],
        "members": [7, -1],
        "places": [91.0, float("inf")],
    }
    for name, values in faults.items():
        for value in values:
            for at in range(good[name].size):
                bad = {**good, name: good[name].copy()}
                bad[name][at] = value
                try:
                    index = read(bad, handles=2)
                except InvalidValueError:
                    continue
                index.near(Publications.of_one(PLACES[0], 5.0, 1))  # what is not refused does no harm
    with pytest.raises(InvalidValueError):
        read({**good, "wanted": np.zeros(3, np.int64)}, handles=2)


def test_a_radius_around_nobody_is_refused() -> None:
    """There is nothing to be near to."""
    with pytest.raises(InvalidValueError, match="no session"):
        Interest(near=Around(5.0))
