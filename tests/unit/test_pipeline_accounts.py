"""An account that closes is a proof only if one that should not close does not: every kind of gap is made, and seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from whimbrel.model.tables import TABLES
from whimbrel.pipeline.accounts import Account, Entries, Gaps, HeldEntry, Membership, account, memberships

Row = dict[str, Any]
SHARE = "$share/archive/bed/#"


class World:
    """A few notifications, sessions and devices, and what became of them; a test changes what it likes."""

    def __init__(self) -> None:
        self.matches = [
            _match(10, "nurse"),
            _match(10, "nurse", name="second"),
            _match(10, "doctor"),
            _match(11, "nurse"),
            _match(12, "$mqtt/worker-1", SHARE),
            _match(12, "$mqtt/worker-2", SHARE),
            _match(13, "alone"),
            _match(14, "doctor"),
        ]
        self.deliveries = [
            _delivery(10, "nurse", "phone", "delivered"),
            _delivery(10, "nurse", "desk", "taken elsewhere"),
            _delivery(10, "doctor", "pager", "expired"),
            _delivery(11, "nurse", "desk", "delivered"),
            _delivery(12, "$mqtt/worker-2", "worker-2", "delivered"),
            _delivery(13, "alone", None, "displaced"),
        ]
        self.held: list[HeldEntry] = [("n", "nurse", 11, None), ("n", "doctor", 14, "pager")]
        self.members = [
            Membership("n", "nurse", "phone", 1),
            Membership("n", "nurse", "desk", 2),
            Membership("n", "doctor", "pager", 3),
            Membership("n", "$mqtt/worker-1", "worker-1", 4),
            Membership("n", "$mqtt/worker-2", "worker-2", 5),
        ]

    def account(self) -> Account:
        """Return the account of it."""
        return account(
            _table("matches", self.matches), _table("deliveries", self.deliveries), self.held, members=self.members
        )


def _match(seq: int, session: str, subject_filter: str = "bed/#", name: str = "") -> Row:
    return {
        "notification_node": "n", "notification_seq": seq, "published_at": seq, "session": session,
        "subject_filter": subject_filter, "name": name, "interest_seq": 0,
    }  # fmt: skip


def _delivery(seq: int, session: str, device: str | None, outcome: str) -> Row:
    return {
        "notification_node": "n", "notification_seq": seq, "session": session, "device": device, "subscriptions": [],
        "outcome": outcome, "body_hash": None, "decided_at": seq, "lapses_at": None,
    }  # fmt: skip


def _table(name: str, rows: list[Row]) -> Any:
    return pa.Table.from_pylist(rows, schema=TABLES[name].schema)


def test_an_account_counts_what_became_of_everything() -> None:
    """Per device, and once for each notification and session; what is held is held for whoever has no outcome."""
    found = World().account()
    assert found.closes
    assert found.gaps == ()
    assert (found.notifications, found.wanted) == (5, 6)
    told = {each.device: each for each in found.devices}
    assert list(told) == ["desk", "pager", "phone", "worker-2", None]
    assert (told["phone"].delivered, told["phone"].held) == (1, 1)
    assert (told["desk"].delivered, told["desk"].taken_elsewhere, told["desk"].held) == (1, 1, 0)
    assert (told["pager"].expired, told["pager"].held) == (1, 1)
    assert (told[None].displaced, told[None].entries) == (1, 1)
    assert sum(each.entries for each in found.devices) == 8


@pytest.mark.parametrize("index", [0, 1, 2, 4, 5])
def test_a_row_that_is_missing_is_seen(index: int) -> None:
    """Something that matched has no outcome: it was lost, or the tables are wrong."""
    world = World()
    del world.deliveries[index]
    assert world.account().gap_count == 1


def test_a_share_that_a_policy_withheld_is_served_by_the_next() -> None:
    """Who was to have it has an entry too; that no one got it, though each was to, is no gap."""
    world = World()
    world.deliveries.append(_delivery(12, "$mqtt/worker-1", "worker-1", "withheld"))
    assert world.account().closes
    assert {each.device: each.withheld for each in world.account().devices}["worker-1"] == 1
    world.deliveries[4]["outcome"] = "withheld"
    assert world.account().closes
    world.deliveries[4]["outcome"] = world.deliveries[-1]["outcome"] = "delivered"
    assert world.account().gap_count == 1


def test_what_is_held_is_held_for_whoever_has_no_row() -> None:
    """Without its receipt, a device is owed what its session still holds."""
    world = World()
    del world.deliveries[3]
    found = world.account()
    assert {each.device: each.held for each in found.devices}["desk"] == 1
    assert found.closes


@pytest.mark.parametrize("index", range(6))
def test_a_row_that_is_there_twice_is_seen(index: int) -> None:
    """Once means once."""
    world = World()
    world.deliveries.append(world.deliveries[index])
    (gap,) = world.account().gaps
    assert "two entries" in gap


def _other_outcome(world: World) -> None:
    world.deliveries.append(_delivery(10, "nurse", "phone", "expired"))


def _not_matched(world: World) -> None:
    world.deliveries.append(_delivery(11, "doctor", "pager", "delivered"))


def _match_gone(world: World) -> None:
    del world.matches[2]


def _new_match(world: World) -> None:
    world.matches.append(_match(14, "nurse"))


def _share_served_twice(world: World) -> None:
    world.deliveries.append(_delivery(12, "$mqtt/worker-1", "worker-1", "delivered"))


def _share_served_by_nobody(world: World) -> None:
    del world.deliveries[4]


def _a_device_and_none(world: World) -> None:
    world.deliveries.append(_delivery(13, "alone", "phone", "displaced"))


def _held_and_ended_for_nobody(world: World) -> None:
    world.held.append(("n", "alone", 13, None))


def _held_and_delivered(world: World) -> None:
    world.held.append(("n", "nurse", 10, "phone"))


def _held_and_not_matched(world: World) -> None:
    world.held.append(("n", "doctor", 11, None))


def _no_longer_held(world: World) -> None:
    del world.held[1]


def _another_member(world: World) -> None:
    world.members.append(Membership("n", "doctor", "tablet", 4))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_other_outcome, "10 in nurse has two entries for phone: delivered and expired"),
        (_not_matched, "11 has an entry in doctor and did not match there"),
        (_match_gone, "10 has an entry in doctor and did not match there"),
        (_new_match, "14 matched in nurse and has no entry there"),
        (_share_served_twice, "12 was given to 2 of $share/archive/bed/#: $mqtt/worker-1, $mqtt/worker-2"),
        (_share_served_by_nobody, "12 matched $share/archive/bed/# and was given to none of it"),
        (_a_device_and_none, "13 in alone has an entry for no device and for phone"),
        (_held_and_ended_for_nobody, "13 in alone has ended for want of a device, and is held"),
        (_held_and_delivered, "10 in nurse has two entries for phone: delivered and held"),
        (_held_and_not_matched, "11 has an entry in doctor and did not match there"),
        (_no_longer_held, "14 matched in doctor and has no entry there"),
        (_another_member, "10 in doctor has no entry for tablet, which was a member"),
    ],
)
def test_every_kind_of_gap_is_told(change: Callable[[World], None], words: str) -> None:
    """A sentence names the notification, the session and what is wrong."""
    world = World()
    change(world)
    found = world.account()
    assert not found.closes
    assert any(words in gap for gap in found.gaps), found.gaps


def test_who_joined_later_or_left_is_owed_nothing() -> None:
    """Only a member of that moment is, and only if it stayed."""
    world = World()
    world.members += [
        Membership("n", "nurse", "late", 20),
        Membership("n", "doctor", "early", 1, 9),
        Membership("n", "doctor", "gone", 1, 12, has_left=True),
    ]
    found = world.account()
    assert not [gap for gap in found.gaps if "early" in gap or "gone" in gap]
    # What is held is owed to who came later too; what has ended is not.
    told = {each.device: each for each in found.devices}
    assert (told["late"].held, told["late"].entries) == (1, 1)


def test_a_share_may_be_served_by_who_wants_it_anyway() -> None:
    """One entry then stands for both, and the other members have none."""
    world = World()
    world.matches.append(_match(12, "$mqtt/worker-2"))
    assert world.account().closes
    world.deliveries.append(_delivery(12, "$mqtt/worker-1", "worker-1", "delivered"))
    assert world.account().closes


def test_what_is_held_for_nobody_yet_is_counted() -> None:
    """A session without devices keeps for whoever comes."""
    world = World()
    world.matches.append(_match(15, "alone"))
    world.held.append(("n", "alone", 15, None))
    found = world.account()
    assert found.closes
    assert {each.device: each.held for each in found.devices}[None] == 1


def test_gaps_are_all_counted_and_some_told() -> None:
    """A million gaps are one page."""
    world = World()
    world.deliveries += [_delivery(seq, "doctor", "pager", "delivered") for seq in range(100, 200)]
    found = world.account()
    assert found.gap_count == 100
    assert len(found.gaps) == 20
    assert found.as_json()["closes"] is False


def test_members_are_found_in_the_log() -> None:
    """A device is a member from its first joining until it leaves or the session is deleted, however often it comes."""
    presence = [
        ("a", "s", 1, "joined"), ("a", None, 2, "disconnected"), ("a", "s", 3, "joined"),
        ("b", "s", 4, "joined"), ("b", "s", 6, "left"),
        ("a", "s", 9, "joined"), ("c", "other", 5, "joined"),
    ]  # fmt: skip
    rows = [
        {"node": "n", "seq": seq, "changed_at": seq, "device": device, "session": session, "change": change}
        for device, session, seq, change in presence
    ]
    sessions = [{"node": "n", "seq": 7, "changed_at": 7, "change": "deleted", "session": "s"}]
    sessions += [{"node": "n", "seq": 8, "changed_at": 8, "change": "created", "session": "s"}]
    assert sorted(memberships(_table("presence", rows), _table("sessions", sessions))) == sorted(
        [
            Membership("n", "s", "a", 1, 7),
            Membership("n", "s", "b", 4, 6, has_left=True),
            Membership("n", "s", "a", 9),
            Membership("n", "other", "c", 5),
        ]
    )


def test_entries_say_what_each_device_has() -> None:
    """Whoever compares with what devices say looks here."""
    world = World()
    found = Entries(_table("deliveries", world.deliveries), world.held, world.members, Gaps())
    assert found.devices["n", 11, "nurse"] == {"desk": "delivered", "phone": "held"}
