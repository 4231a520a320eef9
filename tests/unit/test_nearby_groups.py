"""Proximity groups: announcing, joining, leaving, repairing, merging."""

from __future__ import annotations

import pytest
from tests.unit.nearby_rig import MS, SECOND, Street, at

from whimbrel.errors import InvalidValueError
from whimbrel.model.place import Area
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.values import Beacon, Event, GroupId, Join, Request
from whimbrel.nearby.group.outputs import NoteKind
from whimbrel.nearby.group.producer import NoFixError, NotAnnouncedError
from whimbrel.nearby.group.subscriptions import NearbySubscription
from whimbrel.nearby.group.view import digest_of, member_hash
from whimbrel.nearby.prediction import DeadlineTooShortError
from whimbrel.nearby.vocabulary import FilterTooCostlyError

LIGHT = NearbySubscription(subject="traffic light")
GROUP = GroupId("light", "traffic light")


def _crossing(*cars: str, hops: int = 0, **settings: object) -> Street:
    """Return a light with cars around it, ten metres apart, that are members already."""
    street = Street(**settings)  # type: ignore[arg-type] # it checks
    street.add("light", at(0))
    street.announce("light", "traffic light", hops=hops)
    for number, car in enumerate(cars, start=1):
        street.add(car, at(10 * number)).subscribe(LIGHT)
    street.run(2.5)
    return street


def test_a_consumer_that_is_inside_and_interested_joins() -> None:
    """Both sides of a proximity group, the functional and the geographical (4.2, T20)."""
    street = _crossing("car")
    street.add("far", at(300)).subscribe(LIGHT)
    street.add("deaf", at(5))
    street.run(2)
    assert list(street.nodes["light"].members("traffic light")) == ["car"]
    assert street.kinds("car") == [NoteKind.JOINED]
    assert list(street.nodes["car"].memberships()) == [GROUP]


def test_a_consumer_that_leaves_the_area_is_out_without_a_word() -> None:
    """It is outside, where it must not transmit; the producer notices the silence after three periods (T20)."""
    street = _crossing("car")
    street.move("car", at(250))
    assert street.kinds("car") == [NoteKind.JOINED, NoteKind.LEFT]
    sent = [frame for who, frame in street.sent if who == "car"]
    street.run(3.9)
    assert [frame for who, frame in street.sent if who == "car"] == sent
    assert not street.nodes["light"].members("traffic light")
    assert street.kinds("light")[-1] is NoteKind.MEMBER_SILENT


def test_unsubscribing_tells_the_producer_at_once() -> None:
    """A consumer that is inside may say so."""
    street = _crossing("car", "van")
    street.do("car", street.nodes["car"].unsubscribe("traffic light", now=street.now))
    street.run(0.1)
    assert list(street.nodes["light"].members("traffic light")) == ["van"]
    street.publish("light", "traffic light", status="red")
    street.run(0.1)
    assert (street.values("car"), street.values("van")) == ([], ["red"])
    with pytest.raises(InvalidValueError, match="one that was made"):
        street.nodes["car"].unsubscribe("traffic light", now=street.now)


def test_a_producer_that_falls_silent_is_gone_after_three_periods() -> None:
    """Failed entities are the norm (5, T31)."""
    street = _crossing("car")
    street.hears = lambda _a, _b: False
    street.run(2)
    assert GROUP in street.nodes["car"].memberships()
    street.run(1.1)
    assert street.kinds("car")[-1] is NoteKind.LAPSED
    assert not street.nodes["car"].memberships()


def test_an_announcement_that_ends_ends_its_group() -> None:
    """Unannounce says so with a last beacon; a lifetime says so by itself."""
    street = _crossing("car")
    street.do("light", street.nodes["light"].unannounce("traffic light", now=street.now))
    street.run(0.1)
    assert street.kinds("car") == [NoteKind.JOINED, NoteKind.LEFT]
    with pytest.raises(NotAnnouncedError):
        street.publish("light", "traffic light", status="red")
    street.announce("light", "traffic light", lifetime_us=2 * SECOND)
    street.run(2.5)
    assert street.kinds("car")[2:] == [NoteKind.JOINED, NoteKind.LEFT]
    with pytest.raises(NotAnnouncedError):
        street.nodes["light"].members("traffic light")


def test_views_are_equal_within_three_periods() -> None:
    """The beacon lists the members after a change and tells the digest always."""
    street = _crossing("a", "b", "c")
    street.run(1)
    hashes = frozenset(map(member_hash, "abc"))
    assert all(street.nodes[car].memberships()[GROUP].view == hashes for car in "abc")
    street.run(5)
    last = [frame for who, frame in street.sent if isinstance(frame, Beacon)][-1]
    assert last.members is None
    assert last.view == digest_of(hashes)


def test_a_member_that_missed_the_list_asks_for_it() -> None:
    """By a flag in its next join; no frame of its own is needed."""
    street = _crossing("a")
    street.run(5)
    membership = street.nodes["a"].memberships()[GROUP]
    membership.view = frozenset()
    street.run(2.1)
    assert membership.view == {member_hash("a")}


def test_a_moving_area_goes_along_with_its_producer() -> None:
    """An ambulance (4, T26): who was in its way is in the group, who it has passed is not."""
    street = Street()
    street.add("ambulance", at(0))
    street.announce("ambulance", "ambulance", radius_m=100, moves=True)
    for name, x_m in (("near", 50), ("ahead", 350)):
        street.add(name, at(x_m)).subscribe(NearbySubscription(subject="ambulance"))
    street.run(1.5)
    assert list(street.nodes["ambulance"].members("ambulance")) == ["near"]
    for x_m in (100, 200, 300):
        street.move("ambulance", at(x_m))
        street.run(2)
    street.publish("ambulance", "ambulance", siren=1)
    street.run(0.1)
    assert (street.values("near"), street.values("ahead")) == ([], [1])


def test_a_subscription_may_state_a_near_of_its_own() -> None:
    """Both must hold (T11)."""
    street = _crossing()
    for name, radius_m in (("wide", 500.0), ("narrow", 20.0)):
        subscription = NearbySubscription(subject="traffic light", near=Area(at(60), radius_m))
        street.add(name, at(60)).subscribe(subscription)
    street.run(1.5)
    street.publish("light", "traffic light", status="red")
    street.run(0.1)
    assert (street.values("wide"), street.values("narrow")) == (["red"], [])
    assert list(street.nodes["light"].members("traffic light")) == ["wide"]


def test_a_producer_that_leaves_the_near_of_a_subscription_owes_nothing_there() -> None:
    """The consumer is still in the producer's area, but does not want events from that far: no miss, and no member."""
    street = Street()
    street.add("ambulance", at(0))
    street.announce("ambulance", "ambulance", moves=True)
    near = NearbySubscription(subject="ambulance", near=Area(at(0), 30))
    street.add("car", at(10)).subscribe(near)
    street.run(1.5)
    street.move("ambulance", at(100))
    street.publish("ambulance", "ambulance", siren=1)
    street.run(2.5)
    assert street.kinds("car") == [NoteKind.JOINED, NoteKind.PASSED_BY, NoteKind.LEFT]
    assert street.nodes["car"].counts["requests"] == 0


def test_nobody_in_the_view_means_nothing_on_the_air() -> None:
    """Events are propagated only where both filters match (4.3); a newcomer gets the latest while it is good."""
    street = _crossing()
    street.publish("light", "traffic light", status="red")
    assert street.kinds("light") == [NoteKind.UNHEARD]
    assert not any(isinstance(frame, Event) for _, frame in street.sent)
    street.do("light", street.nodes["light"].unannounce("traffic light", now=street.now))
    street.announce("light", "traffic light", deadline_us=10 * SECOND)
    street.publish("light", "traffic light", status="amber")
    street.publish("light", "traffic light", status="green")
    street.add("car", at(20)).subscribe(LIGHT)
    street.run(2.5)
    assert street.values("car") == ["green"]


def test_a_flood_reaches_members_beyond_the_radio_and_stays_inside() -> None:
    """Nodes inside the area repeat, once each; nodes outside never do (T23)."""
    order = ["light", "a", "b", "c", "outside"]
    street = Street(hears=lambda one, other: abs(order.index(one) - order.index(other)) == 1)
    for number, name in enumerate(order):
        street.add(name, at(60 * number)).subscribe(LIGHT)
    street.announce("light", "traffic light", radius_m=190, hops=3)
    street.run(2.5)
    assert set(street.nodes["light"].members("traffic light")) == {"a", "b", "c"}
    street.publish("light", "traffic light", status="red")
    street.run(0.3)
    assert [street.values(name) for name in order[1:]] == [["red"], ["red"], ["red"], []]
    senders = [who for who, frame in street.sent if isinstance(frame, Event)]
    assert senders == ["light", "a", "b", "c"]
    assert street.nodes["outside"].counts["outside"]
    assert not [frame for who, frame in street.sent if who == "outside"]


def test_the_hop_bound_is_a_second_fence() -> None:
    """With one hop, what is three away does not hear."""
    order = ["light", "a", "b", "c"]
    street = Street(hears=lambda one, other: abs(order.index(one) - order.index(other)) == 1)
    for number, name in enumerate(order):
        street.add(name, at(10 * number)).subscribe(LIGHT)
    street.announce("light", "traffic light", hops=1)
    street.run(2.5)
    assert set(street.nodes["light"].members("traffic light")) == {"a", "b"}


def test_who_relays_is_a_setting() -> None:
    """A car that does not want to repeat for others still receives."""
    order = ["light", "a", "b"]
    street = Street(hears=lambda one, other: abs(order.index(one) - order.index(other)) == 1)
    for number, name in enumerate(order):
        street.add(name, at(10 * number), relays=name != "a").subscribe(LIGHT)
    street.announce("light", "traffic light", hops=3)
    street.run(2.5)
    assert list(street.nodes["light"].members("traffic light")) == ["a"]


def test_a_missed_event_is_asked_of_the_neighbour_heard_last() -> None:
    """The next event or beacon shows the gap; the answer is the event, and it is delivered once (T24)."""
    street = _crossing("car")
    street.hears = lambda _a, _b: False
    street.publish("light", "traffic light", status="red")
    street.run(0.01)
    street.hears = lambda _a, _b: True
    street.publish("light", "traffic light", status="green")
    street.run(0.2)
    asked = [frame for _, frame in street.sent if isinstance(frame, Request)]
    assert [(frame.to, frame.numbers) for frame in asked] == [("light", (1,))]
    assert street.values("car") == ["green", "red"]
    street.run(3)
    assert len(street.delivered) == 2


def test_an_event_that_nobody_has_is_a_counted_miss_on_both_sides() -> None:
    """Promised is what a radio can keep: the event, or a count."""
    street = _crossing("car", "van")
    street.hears = lambda one, _other: one not in {"light", "car"}
    for status in ("red", "amber"):
        street.publish("light", "traffic light", status=status)
    street.run(1.2)
    street.hears = lambda _a, _b: True
    street.run(2)
    missed = [note for who, note in street.notes if who == "car" and note.kind is NoteKind.MISSED]
    expired = [note for who, note in street.notes if who == "car" and note.kind is NoteKind.EXPIRED]
    assert [note.number for note in (*missed, *expired)] == [1, 2]
    reports = [note for who, note in street.notes if who == "light" and note.member == "car"]
    assert {(note.kind, note.count) for note in reports[1:]} == {
        (NoteKind.MEMBER_MISSED, 1),
        (NoteKind.MEMBER_EXPIRED, 1),
    }


def test_the_latest_event_reaches_a_partition_that_heals_once() -> None:
    """Both sides go on; when they meet, the view merges and the latest event comes over, within its lifetime (T31)."""
    street = Street()
    street.add("light", at(0))
    street.announce("light", "traffic light", deadline_us=60 * SECOND)
    for number, car in enumerate("abc", start=1):
        street.add(car, at(10 * number)).subscribe(LIGHT)
    street.run(1.5)
    street.hears = lambda one, other: (one in "bc") == (other in "bc")
    for status in ("red", "amber", "green"):
        street.publish("light", "traffic light", status=status)
        street.run(2)
    assert set(street.nodes["light"].members("traffic light")) == {"a"}
    assert [street.values(car) for car in "abc"] == [["red", "amber", "green"], [], []]
    street.hears = lambda _a, _b: True
    street.run(3)
    assert set(street.nodes["light"].members("traffic light")) == {"a", "b", "c"}
    assert [street.values(car) for car in "bc"] == [["green"], ["green"]]
    missed = [note.count for who, note in street.notes if who == "b" and note.kind is NoteKind.MISSED]
    assert missed == [2]
    assert NoteKind.MEMBER_RETURNED in street.kinds("light")
    reported = [(note.member, note.count) for _, note in street.notes if note.kind is NoteKind.MEMBER_MISSED]
    assert sorted(reported) == [("b", 2), ("c", 2)]


def test_a_producer_that_restarts_begins_a_new_epoch() -> None:
    """Numbers begin again, and nothing is taken for a duplicate; beacons of the former run are stale."""
    street = _crossing("car")
    street.publish("light", "traffic light", status="red")
    street.run(0.1)
    old = [frame for who, frame in street.sent if isinstance(frame, Beacon)][-1]
    street.add("light", at(0), first_seq=1_000_000)
    street.announce("light", "traffic light")
    street.run(1.5)
    street.publish("light", "traffic light", status="green")
    street.run(0.1)
    assert street.values("car") == ["red", "green"]
    assert street.nodes["car"].receive(old, now=street.now) == []


def test_what_a_producer_takes_along_when_it_restarts_is_missed() -> None:
    """Events that a member still asked for are gone with the producer's former run: counted, not forgotten."""
    street = _crossing("car")
    street.hears = lambda _a, _b: False
    street.publish("light", "traffic light", status="red")
    street.run(0.01)
    street.hears = lambda _a, other: other == "car"
    street.publish("light", "traffic light", status="green")
    street.run(0.02)
    street.add("light", at(0), first_seq=1_000_000)
    street.announce("light", "traffic light")
    street.run(0.1)
    missed = [note for who, note in street.notes if who == "car" and note.kind is NoteKind.MISSED]
    assert [(note.number, note.count) for note in missed] == [(None, 1)]
    assert street.nodes["car"].memberships()[GROUP].missed == 1


def test_what_cannot_be_announced_is_refused() -> None:
    """Each with a sentence that says what is allowed."""
    street = Street()
    street.add("lost", None)
    with pytest.raises(NoFixError, match="no fix"):
        street.announce("lost", "traffic light")
    street.add("light", at(0))
    with pytest.raises(InvalidValueError, match="at most 5000"):
        street.announce("light", "traffic light", radius_m=20_000_000)
    with pytest.raises(InvalidValueError, match="around the producer"):
        street.announce("light", "traffic light", centre=at(900))
    with pytest.raises(DeadlineTooShortError, match=r"99\.9 % of events"):
        street.announce("light", "traffic light", deadline_us=5 * MS, hops=4)
    with pytest.raises(InvalidValueError, match="hops"):
        street.announce("light", "traffic light", hops=9)
    street.announce("light", "traffic light")
    with pytest.raises(InvalidValueError, match="string"):
        street.publish("light", "traffic light", status=3)
    with pytest.raises(InvalidValueError, match="found 1500 bytes, allowed is at most 1024 bytes"):
        street.publish("light", "traffic light", status="r" * 1_500)
    street.add("small", at(0), deployment=Deployment(max_frame_bytes=512))
    street.announce("small", "traffic light")
    with pytest.raises(InvalidValueError, match="at most 512 bytes in one frame"):
        street.publish("small", "traffic light", status="r" * 500)
    street.move("light", at(900))
    with pytest.raises(InvalidValueError, match="inside its own area"):
        street.publish("light", "traffic light", status="red")
    street.run(1.5)
    assert street.kinds("light")[-1] is NoteKind.OUTSIDE


def test_the_filters_of_a_subject_share_its_bound() -> None:
    """Many cheap filters are as costly as one that is not."""
    car = Street().add("car", at(0))
    text = "contains(status, 'r') || status == 'x'"
    for number in range(19):
        car.subscribe(NearbySubscription(subject="traffic light", name=str(number), filter_text=text))
    with pytest.raises(FilterTooCostlyError):
        car.subscribe(NearbySubscription(subject="traffic light", name="one more", filter_text=text))


def test_a_join_tells_the_type_and_nothing_of_the_place() -> None:
    """The area in it is the producer's own."""
    street = _crossing("car")
    joins = [frame for _, frame in street.sent if isinstance(frame, Join)]
    assert joins
    assert {frame.area for frame in joins} == {Area(at(0), 200)}


def test_a_clock_that_is_set_back_delays_nothing() -> None:
    """What counts is the time that has elapsed."""
    street = _crossing("car")
    light = street.nodes["light"]
    light.timer(now=street.now)
    due = light.next_due
    assert due is not None
    light.timer(now=street.now - 3_600 * SECOND)
    assert light.next_due == due - 3_600 * SECOND


def test_a_deployment_has_bounds() -> None:
    """A setting outside of them is a mistake."""
    for wrong in ({"cell_m": 1}, {"max_groups": 0}, {"repair_us": 2 * SECOND}, {"slots": 0}, {"period_us": 0}):
        with pytest.raises(InvalidValueError):
            Deployment(**wrong)
