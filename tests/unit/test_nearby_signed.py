"""Signed groups, through the daemon's own door: the datagrams of a street, recorded and sent again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
from tests.unit.nearby_rig import SECOND, WORDS, at

from whimbrel.cli.nearby.printing import print_event
from whimbrel.model.place import Area
from whimbrel.nearby.frames.signatures import Signer, has_valid_signature
from whimbrel.nearby.frames.values import Beacon, Event, Frame, Join, Request, Signable
from whimbrel.nearby.frames.wire import decode, encode
from whimbrel.nearby.group.outputs import Deliver, Note
from whimbrel.nearby.group.subscriptions import NearbySubscription
from whimbrel.nearby.node import Node
from whimbrel.nearby.transport.daemon import NearbyDaemon, monotonic_us
from whimbrel.nearby.transport.multicast import MulticastSocket

DAY_S = 86_400
TRUE, FALSE = Signer(b"t" * 32), Signer(b"f" * 32)
AMBULANCE = NearbySubscription(subject="ambulance")


@dataclass
class Tape:
    """A link that records what is sent: the bytes, and how many datagrams they take."""

    sent: list[bytes] = field(default_factory=list)
    each: list[int] = field(default_factory=list)
    """How many datagrams each frame was."""

    def listen(self, addresses: frozenset[str]) -> None:
        """Listen on these addresses."""

    def send(self, data: bytes, addresses: Iterable[str]) -> int:
        """Record a frame."""
        self.sent.append(data)
        self.each.append(len(list(addresses)))
        return 0

    def frames(self, kind: type[Frame]) -> list[Frame]:
        """Return the frames of one kind that were sent."""
        return [frame for frame in map(decode, self.sent) if isinstance(frame, kind)]


@dataclass
class Station:
    """A daemon on a tape, with what it gave to its application and what it reported."""

    daemon: NearbyDaemon
    tape: Tape
    delivered: list[Deliver]
    notes: list[Note]

    @property
    def node(self) -> Node:
        """The daemon's node."""
        return self.daemon.node

    def kinds(self) -> list[str]:
        """Return what was reported."""
        return [note.kind.value for note in self.notes]


def station(name: str, x_m: float = 0.0, **settings: object) -> Station:
    """Return a daemon at a place of the street."""
    node = Node(name, vocabulary=WORDS, **settings)  # type: ignore[arg-type] # it checks
    tape, delivered, notes = Tape(), list[Deliver](), list[Note]()
    daemon = NearbyDaemon(node, cast("MulticastSocket", tape), deliver=delivered.append, note=notes.append)
    daemon.move(at(x_m))
    return Station(daemon, tape, delivered, notes)


def run(scenario: Callable[[], None]) -> None:
    """Run *scenario* in a loop, which daemons set their timers in."""

    async def whole() -> None:
        scenario()

    asyncio.run(whole())


def announce(producer: Station, **more: object) -> None:
    """Let *producer* announce an ambulance."""
    settings = {"radius_m": 200.0, "deadline_us": SECOND, **more}
    _, outputs = producer.node.announce("ambulance", now=monotonic_us(), **settings)  # type: ignore[arg-type] # it checks
    producer.daemon.perform(outputs)


def publish(producer: Station, siren: int = 1) -> None:
    """Let *producer* publish."""
    producer.daemon.perform(producer.node.publish("ambulance", {"siren": siren}, now=monotonic_us())[1])


def recording(signer: Signer) -> list[bytes]:
    """Return the datagrams of an ambulance with one member: its beacon and an event."""
    found: list[bytes] = []

    def scenario() -> None:
        ambulance, car = station("ambulance", signer=signer), station("car", 10, **with_key())
        car.node.subscribe(AMBULANCE)
        announce(ambulance)
        car.daemon.receive(ambulance.tape.sent[0])
        car.daemon.perform(car.node.timer(now=monotonic_us() + 20_000))
        (join,) = (data for data in car.tape.sent if isinstance(decode(data), Join))
        ambulance.daemon.receive(join)
        publish(ambulance)
        found.extend(ambulance.tape.sent)

    run(scenario)
    return found


def with_key() -> dict[str, object]:
    """Return the settings of a member that can sign its joins."""
    return {"member_signer": Signer(b"m" * 32)} if "member_signer" in Node.__init__.__annotations__ else {}


@pytest.fixture
def days_later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return how to let the machine's clock say another time."""
    read = time.time_ns

    def later(seconds: float) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: read() + round(seconds * 1e9))

    return later


def test_a_signed_frame_is_refused_a_day_later(days_later: Callable[[float], None]) -> None:
    """Whoever recorded an ambulance yesterday does not send one today."""
    tape = recording(TRUE)

    def replay() -> None:
        car = station("newcomer", 20, trusted={TRUE.public: None}, **with_key())
        car.node.subscribe(AMBULANCE)
        for data in tape:
            car.daemon.receive(data)
        assert not car.node.memberships()
        assert car.node.take(now=monotonic_us())[0] is None

    days_later(DAY_S)
    run(replay)


def test_a_signed_event_is_good_until_its_own_deadline(days_later: Callable[[float], None]) -> None:
    """A neighbour may answer for it later than a minute; a beacon as old as that is refused."""

    def ask_later(seconds: float) -> tuple[bool, bool]:
        days_later(0)
        ambulance, car = station("ambulance", signer=TRUE), station("car", 10, **with_key())
        car.node.subscribe(AMBULANCE)
        announce(ambulance, deadline_us=600 * SECOND)
        publish(ambulance)
        event, _ = ambulance.node.publish("ambulance", {"siren": 2}, now=monotonic_us())
        days_later(seconds)
        car.daemon.receive(encode(event))
        found, _ = car.node.take(now=monotonic_us())
        car.daemon.receive(ambulance.tape.sent[0])
        return found is not None, bool(car.node.memberships())

    seen: list[tuple[bool, bool]] = []
    for seconds in (50, 300, 610):
        run(lambda: seen.append(ask_later(seconds)))  # noqa: B023 # it runs at once
    assert seen == [(True, True), (True, False), (False, False)]


def test_a_node_without_a_clock_takes_signed_frames_and_marks_them(days_later: Callable[[float], None]) -> None:
    """It cannot judge their age; its application is told so."""
    tape = recording(TRUE)
    marks: list[bool] = []

    def replay(clock: str, seconds: float) -> None:
        days_later(seconds)
        car = station("newcomer", 20, **with_key())
        car.node.subscribe(AMBULANCE)
        for data in tape:
            car.daemon.receive(data)
        found, _ = car.node.take(now=monotonic_us())
        assert found is not None, clock
        marks.append(found.is_age_known)

    run(lambda: replay("set", 0))
    run(lambda: replay("not set: the year 1970", -time.time() + DAY_S))
    assert marks == [True, False]


def test_an_event_whose_age_is_not_known_is_printed_with_that(capsys: pytest.CaptureFixture[str]) -> None:
    """As `whimbrel nearby subscribe` prints it, and as a line of JSON."""
    event = Event(
        origin="light",
        seq=1,
        sender="light",
        hops=0,
        max_hops=0,
        subject="ambulance",
        area=Area(at(0), 100),
        place=at(0),
        epoch=1,
        number=1,
        deadline_us=SECOND,
        remaining_us=SECOND,
        attributes={"siren": 1},
    )
    signed = TRUE.sign(event, issued_at=1)
    for told, is_known, mark in ((event, False, False), (signed, False, True), (signed, True, False)):
        found = Deliver(
            event=told, subscriptions=("",), attributes=told.attributes, left_us=SECOND, is_age_known=is_known
        )
        print_event(found, as_json=False)
        assert ("our clock is not set" in capsys.readouterr().out) is mark
        print_event(found, as_json=True)
        said = json.loads(capsys.readouterr().out)
        assert (said["signed"], said["age_known"]) == (told.key is not None, is_known)


def test_a_key_is_trusted_until_its_expiry(days_later: Callable[[float], None]) -> None:
    """Then its holder signs in vain, and whoever stole it, too."""
    expires_at = time.time_ns() // 1_000 + 3_600 * SECOND

    def hear(seconds: float, tape: list[bytes]) -> bool:
        days_later(seconds)
        car = station("newcomer", 20, trusted={TRUE.public: expires_at}, **with_key())
        car.node.subscribe(AMBULANCE)
        for data in tape:
            car.daemon.receive(data)
        return bool(car.node.memberships())

    believed: list[bool] = []
    for seconds in (0, 3_599, 3_601):
        days_later(seconds)
        tape = recording(TRUE)
        run(lambda: believed.append(hear(seconds, tape)))  # noqa: B023 # it runs at once
    assert believed == [True, True, False]


def _forged(join: Join, number: int, **more: object) -> bytes:
    made = replace(join, origin=f"m{number}", seq=number + 1, hops=2, max_hops=2, **more)  # type: ignore[arg-type] # they are fields
    return encode(made)


def stop_clock(monkeypatch: pytest.MonkeyPatch, now: int) -> None:
    """Let every daemon's clock stand at *now*: a rate is one of time, and the machine's is not asserted."""
    monkeypatch.setattr("whimbrel.nearby.transport.daemon.monotonic_us", lambda: now)


def test_joins_are_repeated_for_groups_that_are_believed_and_within_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 forged joins were 37,000 datagrams of the node that repeated them."""

    def forge() -> None:
        stop_clock(monkeypatch, now := monotonic_us())
        light, car, relay = station("ambulance"), station("car", 10), station("relay", 20)
        car.node.subscribe(AMBULANCE)
        announce(light, radius_m=1_500.0, hops=2)
        for each in (car, relay):
            each.daemon.receive(light.tape.sent[0])
        car.daemon.perform(car.node.timer(now=now + 20_000))
        (join,) = car.tape.frames(Join)
        assert isinstance(join, Join)
        for producer, repeated in (("nobody", 0), ("ambulance", 128)):
            before = len(relay.tape.sent)
            for number in range(500):
                relay.daemon.receive(_forged(join, number, producer=producer, sender=f"stranger-{producer}"))
            relay.daemon.perform(relay.node.timer(now=now + 40_000))
            assert len(relay.tape.frames(Join)) == repeated
            assert sum(relay.tape.each[before:]) <= 9 * (repeated + 1)  # and the beacon

    run(forge)


@pytest.mark.parametrize("is_outside", [True, False], ids=["of another area", "of an earlier start"])
def test_signatures_are_looked_at_within_a_rate(monkeypatch: pytest.MonkeyPatch, *, is_outside: bool) -> None:
    """A signature takes a tenth of a millisecond: beacons of a known group were verified however many came."""
    looked: list[object] = []

    def look(frame: Signable) -> bool:
        looked.append(frame)
        return has_valid_signature(frame)

    def flood() -> None:
        stop_clock(monkeypatch, now := monotonic_us())
        light, car = station("ambulance", signer=TRUE, first_seq=1_000), station("car", 10, **with_key())
        car.node.subscribe(AMBULANCE)
        announce(light)
        car.daemon.receive(light.tape.sent[0])
        beacon = decode(light.tape.sent[0])
        assert isinstance(beacon, Beacon)
        if not is_outside:  # it is silent, and another with fewer starts has its name
            stop_clock(monkeypatch, now + 60 * SECOND)
            car.daemon.perform(car.node.timer(now=now + 60 * SECOND))
        more = {"area": Area(at(3_000), 200)} if is_outside else {"epoch": 1}
        monkeypatch.setattr("whimbrel.nearby.group.trust.has_valid_signature", look)
        for number in range(500):
            seq = number if is_outside else beacon.seq
            car.daemon.receive(encode(replace(beacon, seq=seq, sender="stranger", **more)))
        assert len(looked) == 128

    run(flood)


def test_the_joins_of_a_signed_group_are_signed_and_so_is_their_hop_count() -> None:
    """Nobody joins, leaves or accounts for events in the name of another, or sends a join further than it was meant."""

    def forge() -> None:
        light, car, relay = station("ambulance", signer=TRUE), station("car", 10, **with_key()), station("relay", 20)
        car.node.subscribe(AMBULANCE)
        announce(light, hops=2)
        for each in (car, relay):
            each.daemon.receive(light.tape.sent[0])
        car.daemon.perform(car.node.timer(now=monotonic_us() + 20_000))
        (join,) = car.tape.frames(Join)
        assert isinstance(join, Join)
        own = join.key
        bare = replace(join, key=None, signature=None, issued_at=None)
        further = replace(join, hops=2, max_hops=2, sender="stranger")
        for wrong in (replace(bare, origin="ghost"), further, replace(join, is_leaving=True, seq=join.seq + 1)):
            light.daemon.receive(encode(wrong))
            relay.daemon.receive(encode(wrong))
        assert not light.node.members("ambulance")
        light.daemon.receive(encode(join))
        leaving = FALSE.sign(replace(bare, is_leaving=True, seq=join.seq + 1), issued_at=join.issued_at)
        light.daemon.receive(encode(leaving))
        assert own
        assert list(light.node.members("ambulance")) == ["car"]
        relay.daemon.perform(relay.node.timer(now=monotonic_us() + 40_000))
        assert not relay.tape.frames(Join)

    run(forge)


def test_signed_events_are_for_those_who_sign_their_requests() -> None:
    """And who did so just now: a request that was recorded makes nobody answer a day later."""

    def ask() -> None:
        light = station("ambulance", signer=TRUE)
        announce(light, deadline_us=10 * SECOND)
        event, _ = light.node.publish("ambulance", {"siren": 1}, now=monotonic_us())
        asked = Request(
            sender="car",
            to="ambulance",
            area=event.area,
            producer="ambulance",
            subject="ambulance",
            epoch=event.epoch,
            numbers=(1,),
        )
        now = time.time_ns() // 1_000
        replayed, fresh = (FALSE.sign(asked, issued_at=now - age_us) for age_us in (DAY_S * SECOND, 0))
        for request, answers in ((asked, 0), (replayed, 0), (replace(fresh, numbers=(1, 2)), 0), (fresh, 1)):
            light.daemon.receive(encode(request))
            assert len(light.tape.frames(Event)) == answers

    run(ask)


def test_a_node_without_a_key_says_why_it_does_not_join_a_signed_group() -> None:
    """It could not sign its joins."""

    def listen() -> None:
        light, car = station("ambulance", signer=TRUE), station("car", 10)
        car.node.subscribe(AMBULANCE)
        announce(light)
        car.daemon.receive(light.tape.sent[0])
        assert car.kinds() == ["no key to join with"]

    run(listen)
