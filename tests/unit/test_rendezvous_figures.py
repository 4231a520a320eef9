"""Figures 4-2 to 4-8 and 4-10 of the thesis: over the simulated radio message by message, then thread by thread.

A tap on every radio writes down the lines of the figures: standard Bluetooth actions (inquire, page, connect, switch
roles, park, scan) and what our layer says. ``P`` is the publisher, ``S`` the subscriber, ``C`` the controller.
"""

from __future__ import annotations

from itertools import product

import pytest
from tests.unit.rendezvous_rig import ALICE, BOB, CAROL, PHONE, PRINTER, Member, Rig, notes, publication, script, sent
from tests.unit.rendezvous_tap import Tap

from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller import Disconnected, Input, NoteKind, Said
from whimbrel.rendezvous.controller.commands import Poll
from whimbrel.rendezvous.device import Device, DeviceState
from whimbrel.rendezvous.events import Address, EventId, GroupKey, Publication, Subscription
from whimbrel.rendezvous.matching import has_common_key, is_consistent
from whimbrel.rendezvous.nodes import DeviceNode
from whimbrel.rendezvous.tokens import GroupOwner
from whimbrel.rendezvous.wire import encode
from whimbrel.sim.hall import Hall

SECOND = 1_000_000
P1, S1, S2 = EventId("P1"), EventId("S1"), EventId("S2")


def bring(hall: Hall, who: Address, name: str, *, is_shown: bool = False) -> DeviceNode:
    """Bring a device into the hall."""
    return hall.add(Device(address=who, name=name, is_discoverable=is_shown), is_shown=is_shown)


def seek(hall: Hall) -> None:
    """Let Alice come and seek Bob."""
    alice = bring(hall, ALICE, "Alice")
    alice.do(alice.core.subscribe(Subscription(name="bob")))


def offer(hall: Hall, *, is_direct: bool) -> DeviceNode:
    """Let Bob come and publish, or be discoverable."""
    bob = bring(hall, BOB, "Bob", is_shown=not is_direct)
    if is_direct:
        bob.do(bob.core.publish())
    return bob


JOIN = ["inquires", "hears C", "pages C", "connects C"]
"""How a device comes to the controller by itself (4.1); the controller then becomes master."""


def joined(who: str) -> list[str]:
    """Return the lines of a device that joins the controller by itself."""
    return [*(f"{who} {each}" for each in JOIN), f"C is master of {who}"]


def words_of(who: Address, message: m.Message) -> Said:
    """Return the input that a device said *message*."""
    return Said(who, encode(message))


def without(lines: list[str], *words: str) -> list[str]:
    """Return *lines* without those that hold one of *words*."""
    return [line for line in lines if not any(word in line for word in words)]


def test_figure_4_2_a_direct_publication_over_the_radio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inquire, page, connect, role switch, publish(), identifier; no match: scans off and parked."""
    hall = Hall()
    tap = Tap(monkeypatch, hall)
    bob = offer(hall, is_direct=True)
    hall.air.run(30 * SECOND)
    assert tap.lines == [
        *joined("P")[:4],
        "P says to C publish",
        "C is master of P",
        "C says to P accepted",
        "C says to P sleep",
        "C parks P",
        "P scans off",
    ]
    assert bob.core.wishes.by_id(P1) is not None  # the publisher stores the identifier for later reference


def test_figure_4_2_an_indirect_publication_over_the_radio(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller inquires, hears the device, pages it, publishes for it and gives it the identifier."""
    hall = Hall()
    tap = Tap(monkeypatch, hall)
    bob = offer(hall, is_direct=False)
    hall.air.run(30 * SECOND)
    assert tap.lines == [
        "P scans inquiry+page",
        "C hears P",
        "C pages P",
        "C connects P",
        "C says to P accepted",
        "C says to P sleep",
        "C parks P",
        "P scans off",
    ]
    assert bob.core.wishes.by_id(P1) is not None


def test_figure_4_3_a_subscription_over_the_radio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the device may begin: inquire, page, connect, role switch, subscribe(), identifier; then it is parked."""
    hall = Hall()
    tap = Tap(monkeypatch, hall)
    seek(hall)
    hall.air.run(30 * SECOND)
    assert tap.lines == [
        *joined("S")[:4],
        "S says to C subscribe",
        "C is master of S",
        "C says to S accepted",
        "C says to S sleep",
        "C parks S",
        "S scans off",
    ]


@pytest.mark.parametrize("is_direct", [True, False])
def test_figure_4_4_over_the_radio(monkeypatch: pytest.MonkeyPatch, *, is_direct: bool) -> None:
    """P-C action; C-S action; then FHS to S and wake-up to P, page and page scan, connection of the two."""
    hall = Hall()
    offer(hall, is_direct=is_direct)
    hall.air.run(30 * SECOND)
    tap = Tap(monkeypatch, hall)
    seek(hall)
    hall.air.run(30 * SECOND)
    lines = without(tap.lines, "hears P", "hears S")
    start = lines.index("C says to S accepted")
    assert sorted(lines[:start]) == sorted([*joined("S"), "S says to C subscribe"])
    assert lines[start + 1 :][:3] == ["C unparks P", "C says to S matched", "C says to P wake up"]
    rest = lines[start + 4 :]
    for earlier, later in (
        ("S says to C noted", "S pages P"),
        ("S pages P", "S connects P"),
        ("P says to C noted", "C parks P"),
        ("P scans page", "S connects P"),
        ("S says to C noted", "C parks S"),
    ):
        assert rest.index(earlier) < rest.index(later), (earlier, later, rest)


def test_figure_4_5_over_the_radio_with_a_direct_publication(monkeypatch: pytest.MonkeyPatch) -> None:
    """The subscriber sleeps; the publisher connects and publishes; both are told, S is woken for it."""
    hall = Hall()
    seek(hall)
    hall.air.run(30 * SECOND)
    tap = Tap(monkeypatch, hall)
    offer(hall, is_direct=True)
    hall.air.run(30 * SECOND)
    lines = without(tap.lines, "hears P", "hears S")
    start = lines.index("C says to P accepted")
    assert sorted(lines[:start]) == sorted([*joined("P"), "P says to C publish"])
    assert lines[start + 1 :][:3] == ["C unparks S", "C says to S matched", "C says to P wake up"]
    assert {"S pages P", "S connects P", "P scans page", "C parks P", "C parks S"} <= set(lines[start:])


def test_figure_4_5_over_the_radio_with_an_indirect_publication(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the FHS goes to the subscriber: no page by the controller, no connection, no wake-up of the publisher."""
    hall = Hall()
    seek(hall)
    hall.air.run(30 * SECOND)
    tap = Tap(monkeypatch, hall)
    offer(hall, is_direct=False)
    hall.air.run(10 * SECOND)
    told = ["C unparks S", "C says to S matched", "S says to C noted", "S pages P", "C parks S", "S connects P"]
    lines = tap.lines[: tap.lines.index("S connects P") + 1]
    assert without(lines, "P scans", "hears") == told
    assert not [line for line in lines if line in {"C pages P", "C connects P", "C says to P wake up"}]


# -- Figures 4-7 and 4-8: what the five threads do ---------------------------------------------------------------------


def test_figure_4_7_cleaning_removes_expired_events_and_tells_their_devices() -> None:
    """Thread one: TTL is over → remove → send expiration."""
    rig = Rig()
    rig.publish(BOB)
    rig.wait(1)
    rig.subscribe(ALICE, name="Nobody")
    done = rig.wait(599)
    assert [note.id for note in notes(done, NoteKind.EXPIRED)] == [P1]
    assert sent(done, BOB) == [m.Expired(P1)]
    assert not sent(done, ALICE)
    assert rig.open() == {"S1"}


def test_figure_4_7_disconnections_remove_the_events_of_devices_that_are_gone() -> None:
    """Thread two: device gone → remove its events; nobody is told."""
    rig = Rig()
    rig.publish(BOB)
    rig.subscribe(BOB, name="Nobody")
    rig.subscribe(ALICE, name="Nobody")
    done = rig.leave(BOB)
    assert {note.id for note in notes(done, NoteKind.FLUSHED)} == {P1, S1}
    assert script(done) == []
    assert rig.open() == {"S2"}


def test_figure_4_7_a_new_connection_adds_its_event_to_the_queue() -> None:
    """Thread three: connect → become master → valid? → identifier → queue; invalid: refused, and nothing is queued."""
    rig = Rig()
    assert script(rig.connect(BOB)) == ["SwitchRole P"]
    assert script(rig.say(BOB, m.Publish(publication(CAROL)))) == ["→P Refused", "→P Sleep", "park P"]
    assert rig.core.sizes()["events"] == 0
    assert script(rig.say(BOB, m.Publish(publication())))[:2] == ["unpark P", "→P Accepted P1"]
    assert rig.core.sizes()["events"] == 1


def test_figure_4_7_existing_connections_are_asked_whether_they_renew_add_or_remove() -> None:
    """Thread four: poll parked devices → renew, add or remove → park again."""
    rig = Rig()
    rig.publish(BOB)
    assert any(isinstance(each, Poll) for each in rig.wait(10.24))
    done = [
        script(rig.say(BOB, message))
        for message in (m.Renew(P1), m.Subscribe(Subscription(name="Nobody")), m.Unpublish(P1))
    ]
    assert [lines[:2] for lines in done] == [
        ["unpark P", "→P Accepted P1"],
        ["unpark P", "→P Accepted S1"],
        ["unpark P", "→P Removed P1"],
    ]
    assert all(lines[-2:] == ["→P Sleep", "park P"] for lines in done)
    assert rig.open() == {"S1"}


def test_figure_4_8_events_are_processed_first_in_first_out() -> None:
    """Thread five: take the head → match check → none: open and park; one: notify; several: oldest, or the list."""
    rig = Rig()
    for who in (ALICE, CAROL, BOB):
        rig.connect(who)
    wishes = [words_of(who, m.Subscribe(Subscription(name="Bob"))) for who in (CAROL, ALICE)]
    done = rig.core.take([*wishes, words_of(BOB, m.Publish(publication()))], now=rig.now)
    kinds = [(note.kind, note.id, note.other_id) for note in notes(done)]
    assert kinds == [
        (NoteKind.OPENED, S1, None),
        (NoteKind.OPENED, S2, None),
        (NoteKind.MATCHED, P1, S1),
    ]
    assert isinstance(sent(done, CAROL)[-1], m.Matched)


def test_figure_4_8_the_notification_wakes_tells_awaits_and_parks_both() -> None:
    """Activate if parked → notify both → wait for both notifications → remove both → park both."""
    rig = Rig(is_noting=False)
    rig.publish(BOB)
    done = rig.subscribe(ALICE, name="Bob")
    assert script(done)[-3:] == ["unpark P", "→S Matched S1", "→P WakeUp P1"]
    assert script(rig.say(ALICE, m.Noted(S1))) == []  # one of two: nothing is removed, nobody is parked
    assert rig.core.sizes()["events"] == 2
    assert script(rig.say(BOB, m.Noted(P1))) == ["park P", "park S"]
    assert rig.core.sizes()["events"] == 0


def test_figure_4_7_a_device_that_is_gone_is_in_no_match_of_the_same_moment() -> None:
    """The locks of the thesis order the threads; here the order is explicit, whichever input came first."""
    for order in (0, 1):
        rig = Rig()
        rig.publish(BOB)
        rig.connect(ALICE)
        inputs: list[Input] = [Disconnected(BOB), words_of(ALICE, m.Subscribe(Subscription()))]
        done = rig.core.take(inputs[:: -1 if order else 1], now=0)
        assert not notes(done, NoteKind.MATCHED)


# -- Figure 4-10: the match procedure ----------------------------------------------------------------------------------

FAMILY, WORK = GroupOwner(b"f" * 32), GroupOwner(b"w" * 32)


def printed_procedure(pub: Publication, sub: Subscription, verified: set[GroupKey]) -> bool:
    """Return what Figure 4-10 returns, line by line; with comparison that ignores case, as the text has it."""
    common = [None] if not pub.keys else [key for key in pub.keys if key in sub.keys]
    if not any(key is None or key in verified for key in common):
        return False
    if sub.address is not None and pub.address.lower() != sub.address.lower():
        return False
    if sub.name is not None and pub.name.lower() != sub.name.lower():
        return False
    return not (sub.device_class is not None and pub.device_class != sub.device_class)


@pytest.mark.parametrize("groups", [(), (FAMILY,), (WORK,), (FAMILY, WORK)])
def test_figure_4_10_the_match_procedure(groups: tuple[GroupOwner, ...]) -> None:
    """Every template against two publications: the controller matches exactly where the printed procedure says so."""
    wanted = product(
        (None, BOB), (None, "BOB", "Carol"), (None, PHONE, PRINTER), ((), (FAMILY.public,), (WORK.public,))
    )
    verdicts = []
    for (address, name, device_class, keys), restricted in product(wanted, ((), (FAMILY.public, WORK.public))):
        pub = publication(keys=restricted)
        sub = Subscription(address=address, name=name, device_class=device_class, keys=keys)
        rig = Rig()
        rig.members = {ALICE: Member(ALICE, *groups), BOB: Member(BOB, FAMILY, WORK)}
        rig.connect(BOB)
        rig.say(BOB, m.Publish(pub))
        rig.connect(ALICE)
        rig.say(ALICE, m.Subscribe(sub))
        is_matched = bool(notes(rig.commands, NoteKind.MATCHED))
        assert is_matched is printed_procedure(pub, sub, {each.public for each in groups}), (pub, sub)
        if not (is_consistent(pub, sub) and has_common_key(pub, sub)):
            assert not rig.members[ALICE].asked  # attributes come before keys: nobody is asked in vain
        verdicts.append(is_matched)
    assert any(verdicts)
    assert not all(verdicts)


def test_figure_4_6_is_what_devices_go_through_over_the_radio() -> None:
    """Inquiry scan, active, parked, page scan, parked for the publisher; active, page, parked for the subscriber."""
    hall = Hall()
    seen: dict[str, list[DeviceState]] = {"publisher": [], "subscriber": []}
    bob = offer(hall, is_direct=False)
    alice = bring(hall, ALICE, "Alice")

    def look() -> None:
        for role, node in (("publisher", bob), ("subscriber", alice)):
            state = getattr(node.core, role)
            if seen[role][-1:] != [state]:
                seen[role].append(state)

    for each in range(4_000):
        look()
        if each == 3_000:
            alice.do(alice.core.subscribe(Subscription(name="Bob")))
        hall.air.run(10_000)
    s = DeviceState
    assert seen["publisher"] == [s.INQUIRY_SCAN, s.ACTIVE, s.PARKED, s.ACTIVE, s.PAGE_SCAN, s.PARKED]
    assert seen["subscriber"] == [s.DISCONNECTED, s.ACTIVE, s.PAGE, s.PARKED]
