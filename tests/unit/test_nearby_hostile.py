"""Strangers on the air: forged and replayed frames, areas as large as the Earth, floods. Bounded and counted."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from tests.unit.nearby_rig import MS, SECOND, WORDS, Street, at

from whimbrel.model.keys import KeyHashes, Scheme
from whimbrel.model.place import Area, Place
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.signatures import Signer
from whimbrel.nearby.frames.values import Beacon, Event, Join, Request
from whimbrel.nearby.frames.wire import decode, encode
from whimbrel.nearby.group.outputs import NoteKind, Send
from whimbrel.nearby.group.subscriptions import NearbySubscription
from whimbrel.nearby.node import Node
from whimbrel.nearby.vocabulary import Vocabulary

_Kind = TypeVar("_Kind", Beacon, Event, Join)
AMBULANCE = NearbySubscription(subject="ambulance")
TRUE, FALSE, MEMBER = Signer(b"t" * 32), Signer(b"f" * 32), Signer(b"m" * 32)


def _street(*, signer: Signer | None = None, **settings: object) -> Street:
    """Return an ambulance and a car near it that has joined."""
    street = Street()
    street.add("ambulance", at(0), signer=signer)
    street.announce("ambulance", "ambulance", moves=True)
    street.add("car", at(20), member_signer=MEMBER, **settings).subscribe(AMBULANCE)
    street.run(2.5)
    return street


def _last(street: Street, kind: type[_Kind]) -> _Kind:
    found = [frame for _, frame in street.sent if isinstance(frame, kind)]
    return found[-1]


def test_nobody_need_believe_an_ambulance() -> None:
    """A node that trusts certain keys takes nothing else for true, nor does it repeat it."""
    street = _street(signer=TRUE, trusted={TRUE.public: None})
    street.publish("ambulance", "ambulance", siren=1)
    street.run(0.1)
    assert street.values("car") == [1]
    true = _last(street, Event)
    forged = replace(true, seq=true.seq + 10, number=true.number + 1, attributes={"siren": 7})
    car, relayed = street.nodes["car"], replace(forged, hops=3, max_hops=3)
    for frame in (
        forged,
        relayed,
        FALSE.sign(forged, issued_at=None),
        replace(forged, key=None, signature=None, issued_at=None),
    ):
        assert [note.kind for note in car.receive(frame, now=street.now)] == [NoteKind.UNBELIEVED]  # type: ignore[union-attr] # notes
    assert car.counts["unbelieved"] == 4
    assert car.timer(now=street.now + 20 * MS) == []
    street.publish("ambulance", "ambulance", siren=2)
    street.run(0.1)
    assert street.values("car") == [1, 2]


def test_a_forged_join_does_not_silence_a_signed_producer() -> None:
    """A join of a stranger is not believed; a seq that one of them claims must not count for what is."""
    street = _street(signer=TRUE, trusted={TRUE.public: None})
    forged = replace(_last(street, Join), origin="ambulance", sender="x", seq=2**60)
    street.nodes["car"].receive(forged, now=street.now)
    street.publish("ambulance", "ambulance", siren=1)
    street.run(4)
    assert street.values("car") == [1]
    assert NoteKind.LAPSED not in street.kinds("car")


def test_keys_of_match_apply_to_a_subscription() -> None:
    """One subscription believes a key's holder only, another everybody."""
    keys = KeyHashes.of_private(Scheme.PRODUCER, TRUE.public)
    wary = NearbySubscription(subject="ambulance", name="wary", keys=keys, accept_insecure=False)
    street = _street(signer=TRUE)
    street.add("liar", at(5), signer=FALSE)
    street.announce("liar", "ambulance")
    street.nodes["car"].subscribe(wary)
    street.run(1.5)
    street.publish("ambulance", "ambulance", siren=1)
    street.publish("liar", "ambulance", siren=2)
    street.run(0.1)
    assert {(each.event.origin, each.subscriptions) for _, each in street.delivered} == {
        ("ambulance", ("", "wary")),
        ("liar", ("",)),
    }


def test_a_group_stays_with_the_key_it_began_with() -> None:
    """A second key cannot take over a group, trusted or not."""
    street = _street(signer=TRUE)
    street.publish("ambulance", "ambulance", siren=1)
    street.run(0.1)
    true = _last(street, Event)
    taken_over = FALSE.sign(replace(true, seq=true.seq + 1, number=true.number + 1), issued_at=None)
    assert street.nodes["car"].receive(taken_over, now=street.now) == []
    assert street.nodes["car"].counts["another key"] == 1


def test_replayed_frames_change_nothing() -> None:
    """Beacons of a former place, events that were delivered, joins of members that left."""
    street = _street()
    street.publish("ambulance", "ambulance", siren=1)
    street.run(0.1)
    frames = [frame for _, frame in street.sent]
    street.run(1)
    before = (
        len(street.delivered),
        dict(street.nodes["car"].memberships()),
        list(street.nodes["ambulance"].members("ambulance")),
    )
    for frame in frames * 3:
        for name in ("car", "ambulance"):
            assert street.nodes[name].receive(frame, now=street.now) == []
    after = (
        len(street.delivered),
        dict(street.nodes["car"].memberships()),
        list(street.nodes["ambulance"].members("ambulance")),
    )
    assert after == before


def test_an_event_from_before_a_members_time_is_not_let_out_again() -> None:
    """A stranger kept it and sends it as if it were fresh: the remaining time is not signed, since it shrinks."""
    street = _street(signer=TRUE)
    for siren in (1, 2):
        street.publish("ambulance", "ambulance", siren=siren)
    old = [frame for _, frame in street.sent if isinstance(frame, Event)]
    street.run(1)
    street.add("late", at(30), member_signer=MEMBER).subscribe(AMBULANCE)
    street.run(1.5)
    for frame in old:
        street.do("late", street.nodes["late"].receive(replace(frame, sender="x"), now=street.now))
    street.run(0.1)
    assert street.values("late") == []


def test_an_area_as_large_as_the_earth_is_not_believed() -> None:
    """Whatever its frames say, nobody joins, delivers or repeats."""
    street = _street()
    beacon = _last(street, Beacon)
    car = street.nodes["car"]
    for radius_m in (5_001.0, 20_037_508.0):
        huge = replace(beacon, origin="huge", seq=1, hops=8, max_hops=8, area=Area(Place(0, 0), radius_m))
        assert car.receive(huge, now=street.now) == []
    assert car.counts["areas too large"] == 2


def test_more_hops_than_the_deployment_allows_are_not_believed() -> None:
    """A frame may say 32 on the wire; here nobody announces more than eight, and nobody repeats it."""
    street = _street()
    beacon = _last(street, Beacon)
    car = street.nodes["car"]
    for number, hops in ((1, 9), (2, 32), (3, 8)):
        forged = replace(beacon, origin="far", sender="x", seq=number, hops=hops, max_hops=hops)
        street.do("car", car.receive(forged, now=street.now))
    assert car.counts["too many hops"] == 2
    street.run(0.1)
    assert [frame.hops for who, frame in street.sent if who == "car" and isinstance(frame, Beacon)] == [7]


def test_a_flood_of_strangers_fills_no_table_beyond_its_bound() -> None:
    """Origins, groups, repeats, members and missing numbers are bounded; each refusal is counted."""
    small = Deployment(
        max_origins=50,
        max_groups=8,
        max_queue=20,
        max_kept=10,
        max_members=12,
        max_missing=4,
        max_sender_frames=1_000,
    )
    street = _street(deployment=small)
    beacon = _last(street, Beacon)
    car = street.nodes["car"]
    for number in range(500):
        forged = replace(
            beacon, origin=f"x{number}", sender="x", seq=1, hops=8, max_hops=8, latest=number * 10**12, latest_us=SECOND
        )
        car.receive(forged, now=street.now)
    assert len(car.memberships()) == 8
    assert car.counts["groups full"] == 493
    assert car.counts["queue full"] == 480
    assert len(car._relay._seen) == 50
    assert len(car._relay._groups) == 8
    assert all(len(each._buckets) <= 50 for each in car._rates.values())
    jump = replace(beacon, origin="x0", sender="x", seq=2, hops=0, latest=2**62, latest_us=SECOND)
    notes = car.receive(jump, now=street.now)
    assert [note.kind for note in notes] == [NoteKind.MISSED]  # type: ignore[union-attr] # notes
    assert all(len(each.missing) <= 5 for each in car.memberships().values())
    busy = Street()
    busy.add("light", at(0), deployment=small)
    busy.announce("light", "traffic light")
    join = replace(
        _last(street, Join), origin="m", producer="light", subject="traffic light", epoch=0, area=Area(at(0), 200)
    )
    for number in range(100):
        busy.do("light", busy.nodes["light"].receive(replace(join, origin=f"m{number}", seq=1), now=busy.now))
    assert len(busy.nodes["light"].members("traffic light")) == 12
    assert busy.nodes["light"].counts["view full"] == 88


def test_a_beacon_that_contradicts_itself_makes_no_frame_that_cannot_be_read() -> None:
    """A latest event that is good, but has no number: the join that answers it must still be one."""
    street = _street()
    beacon = replace(_last(street, Beacon), origin="x", sender="x", seq=1, latest=0, latest_us=SECOND)
    car = street.nodes["car"]
    car.receive(beacon, now=street.now)
    sent = [each.frame for each in car.unsubscribe("ambulance", now=street.now) if isinstance(each, Send)]
    assert len(sent) == 2
    assert all(decode(encode(frame)) == frame for frame in sent)


def test_requests_are_answered_once_in_a_while() -> None:
    """Asking a thousand times makes no thousand transmissions."""
    street = _street()
    street.publish("ambulance", "ambulance", siren=1)
    event = _last(street, Event)
    asked = Request(
        sender="x",
        to="ambulance",
        area=event.area,
        producer="ambulance",
        subject="ambulance",
        epoch=event.epoch,
        numbers=(1,) * 60,
    )
    answers = [street.nodes["ambulance"].receive(asked, now=street.now + step) for step in range(1_000)]
    assert sum(map(len, answers)) == 1
    elsewhere = replace(asked, to="car")
    assert street.nodes["ambulance"].receive(elsewhere, now=street.now) == []


def test_vocabularies_and_cells_that_differ_are_noticed() -> None:
    """The consumer does not join, and says why; so does another producer of the type."""
    street = _street()
    beacon = _last(street, Beacon)
    other = Node("other", vocabulary=Vocabulary.of({"ambulance": {"siren": "string"}}))
    other.move(at(20), now=0)
    other.subscribe(AMBULANCE)
    (note,) = other.receive(beacon, now=0)
    assert note.kind is NoteKind.CONTRADICTED  # type: ignore[union-attr] # a note
    rival = Node("rival", vocabulary=Vocabulary.of({"ambulance": {"siren": "string"}}))
    rival.move(at(20), now=0)
    rival.announce("ambulance", radius_m=100, deadline_us=SECOND, now=0)  # a producer need not subscribe to notice
    (note,) = rival.receive(beacon, now=0)
    assert note.kind is NoteKind.CONTRADICTED  # type: ignore[union-attr] # a note
    coarse = Node("coarse", vocabulary=WORDS, deployment=Deployment(cell_m=1_000))
    coarse.move(at(20), now=0)
    coarse.subscribe(AMBULANCE)
    (note,) = coarse.receive(beacon, now=0)
    assert note.kind is NoteKind.MISMATCHED  # type: ignore[union-attr] # a note


def test_an_event_that_does_not_fit_the_vocabulary_is_not_delivered() -> None:
    """Its producer has another idea of the type than its beacon says."""
    street = _street()
    street.publish("ambulance", "ambulance", siren=1)
    event = _last(street, Event)
    forged = replace(event, seq=99, number=event.number + 1, attributes={"siren": "loud"})
    notes = street.nodes["car"].receive(forged, now=street.now)
    assert NoteKind.UNFIT in [note.kind for note in notes]  # type: ignore[union-attr] # notes
    assert street.nodes["car"].take(now=street.now) == (None, [])


def test_a_node_without_a_fix_is_in_no_area() -> None:
    """It neither joins nor repeats, and leaves its groups when it loses its fix."""
    street = _street()
    street.move("car", None)
    assert street.kinds("car")[-1] is NoteKind.LEFT
    sent = len([who for who, _ in street.sent if who == "car"])
    street.publish("ambulance", "ambulance", siren=1)
    street.run(2)
    assert street.values("car") == []
    assert len([who for who, _ in street.sent if who == "car"]) == sent
