"""Far events: what a consumer takes from a broker; one copy of what comes both ways."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.nearby_rig import SECOND, WORDS, at

from whimbrel.model.notification import NotificationId
from whimbrel.model.place import Area
from whimbrel.nearby.far_events import FarEvents
from whimbrel.nearby.frames.values import Event
from whimbrel.nearby.group.outputs import Deliver
from whimbrel.nearby.group.subscriptions import NearbySubscription
from whimbrel.nearby.listening import body_of, notification_of
from whimbrel.nearby.motion import Motion
from whimbrel.nearby.vocabulary import Vocabulary

NOW = 1_800_000_000 * SECOND
EVENT = Event(
    origin="light",
    seq=17,
    sender="light",
    hops=0,
    max_hops=0,
    subject="traffic light",
    area=Area(at(0), 200),
    place=at(50),
    epoch=1,
    number=1,
    deadline_us=SECOND,
    remaining_us=SECOND,
    attributes={"status": "red"},
)
HEARD = Deliver(event=EVENT, subscriptions=("",), attributes=EVENT.attributes, left_us=SECOND)


def _far(filter_text: str | None = None, *, near: Area | None = None, x_m: float = 5_000) -> FarEvents:
    motion = Motion(max_speed_m_s=100)
    motion.move(at(x_m), now=0)
    wanted = NearbySubscription(subject="traffic light", filter_text=filter_text, near=near)
    return FarEvents(vocabulary=WORDS, subscriptions=(wanted,), motion=motion)


def test_an_event_is_taken_far_from_its_area_with_the_consumers_own_attributes() -> None:
    """The broker is the way out of the area: five kilometres away it is the same event."""
    found = _far("distance_m > 1000 && status == 'red'").receive("traffic light", body_of(HEARD, at=NOW), at=NOW)
    assert found is not None
    assert (found.event.id, found.event.area, found.left_us) == (EVENT.id, EVENT.area, SECOND)
    assert dict(found.event.attributes) == {"status": "red"}
    assert found.attributes["distance_m"] == pytest.approx(4_950, abs=1)  # to the light, not to its area's centre
    told = json.loads(body_of(HEARD, at=NOW))
    del told["producer_place"]
    older = _far().receive("traffic light", json.dumps(told).encode(), at=NOW)
    assert older is not None
    assert older.attributes["distance_m"] == pytest.approx(5_000, abs=1)


def test_what_a_listener_without_a_clock_lets_out_is_marked() -> None:
    """A recording of a signed event must not look like one of today in the log and on the broker."""
    signed = replace(EVENT, issued_at=1, key=bytes(32), signature=bytes(64))
    for event, is_known, mark in ((EVENT, False, None), (signed, False, 0), (signed, True, None)):
        heard = replace(HEARD, event=event, is_age_known=is_known)
        body = body_of(heard, at=NOW)
        assert json.loads(body).get("age_known") == mark
        assert notification_of(heard, node="post", seq=1, at=NOW).attributes.get("age_known") == mark
        found = _far().receive("traffic light", body, at=NOW)
        assert found is not None
        assert dict(found.event.attributes) == {"status": "red"}


def test_an_event_that_comes_both_ways_is_taken_once() -> None:
    """By the flood first, by the broker first, or from two listeners."""
    body = body_of(HEARD, at=NOW)
    flood_first, broker_first, two_listeners = _far(), _far(), _far()
    assert flood_first.is_first(EVENT.id)
    assert flood_first.receive("traffic light", body, at=NOW) is None
    assert broker_first.receive("traffic light", body, at=NOW) is not None
    assert not broker_first.is_first(NotificationId("light", 17))
    taken = [two_listeners.receive("traffic light", body, at=NOW) for _ in range(2)]
    assert [each is not None for each in taken] == [True, False]
    assert two_listeners.counts == {"copies": 1}


@pytest.mark.parametrize(
    ("far", "waited_us", "counted"),
    [
        (_far(), SECOND, "expired"),
        (_far("status == 'green'"), 0, "discarded"),
        (_far(near=Area(at(5_000), 100)), 0, "discarded"),
    ],
)
def test_what_is_late_or_unwanted_is_counted(far: FarEvents, waited_us: int, counted: str) -> None:
    """Never delivered after its deadline; a filter and a near of the consumer hold here, too."""
    assert far.receive("traffic light", body_of(HEARD, at=NOW), at=NOW + waited_us) is None
    assert far.counts == {counted: 1}


@given(st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode))
def test_any_body_is_an_event_or_counted(body: bytes) -> None:
    """Anyone may publish under nearby/."""
    far = _far()
    assert far.receive("traffic light", body, at=NOW) is None
    assert far.counts == {"unfit": 1}


@given(
    st.sampled_from(["event", "producer_place", "place", "radius_m", "deadline_at", "status"]),
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text() | st.lists(st.integers(), max_size=2),
)
def test_any_member_of_a_body_may_be_wrong(name: str, value: object) -> None:
    """One wrong member: an event of the vocabulary or a count, never a traceback."""
    far = _far()
    body = json.dumps({**json.loads(body_of(HEARD, at=NOW)), name: value}).encode()
    found = far.receive("traffic light", body, at=NOW)
    assert (found is None) == (sum(far.counts.values()) == 1)


def test_bytes_and_whole_numbers_come_back_as_they_were() -> None:
    """JSON has neither; the vocabulary says what they are."""
    words = Vocabulary.of({"raw": {"data": "opaque", "count": "int64", "share": "real64"}})
    values: dict[str, object] = {"data": b"\x01\xff", "count": 3, "share": 2.0}
    event = Event(
        origin="light",
        seq=1,
        sender="light",
        hops=0,
        max_hops=0,
        subject="raw",
        area=EVENT.area,
        place=EVENT.place,
        epoch=1,
        number=1,
        deadline_us=SECOND,
        remaining_us=SECOND,
        attributes=words["raw"].check(values),
    )
    heard = Deliver(event=event, subscriptions=("",), attributes=event.attributes, left_us=SECOND)
    far = FarEvents(
        vocabulary=words, subscriptions=(NearbySubscription(subject="raw"),), motion=Motion(max_speed_m_s=1)
    )
    found = far.receive("raw", body_of(heard, at=NOW), at=NOW)
    assert found is not None
    assert found.event.attributes == event.attributes
