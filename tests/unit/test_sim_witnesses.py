"""What devices say is held against the pipeline's account; each promise that could be broken is broken here once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from whimbrel.model.tables import TABLES
from whimbrel.pipeline.accounts import Entries, Gaps, HeldEntry, Membership
from whimbrel.sim.witnesses import Heard, Logged, Received, Sent, Spoken, compare_heard, compare_sent, read_logged

Row = dict[str, Any]


def _hash(seq: int) -> bytes:
    return seq.to_bytes(32)


def _table(name: str, rows: list[Row]) -> Any:
    return pa.Table.from_pylist(rows, schema=TABLES[name].schema)


# -- what was sent -----------------------------------------------------------------------------------------------------


def _sent() -> dict[bytes, Sent]:
    return {
        _hash(1): Sent("a", qos=1, is_acknowledged=True, has_gone=False),
        _hash(2): Sent("a", qos=0, is_acknowledged=False, has_gone=False),
        _hash(3): Sent("b", qos=1, is_acknowledged=False, has_gone=True),
        _hash(4): Sent("b", qos=1, is_acknowledged=False, has_gone=True),
        _hash(5): Sent("b", qos=0, is_acknowledged=False, has_gone=True),
    }


LOGGED = [Logged("n", 1, 1, _hash(1)), Logged("n", 2, 0, _hash(2)), Logged("n", 3, 1, _hash(3))]


def test_what_was_sent_is_in_the_log_or_its_sensor_was_gone() -> None:
    """Acknowledged means accepted; without an answer, nobody knows."""
    gaps = Gaps()
    spoken = compare_sent(_sent(), LOGGED, gaps)
    assert spoken == Spoken(acknowledged=1, once=1, lost=1, in_doubt=2, arrived=1, in_log=3)
    assert gaps.count == 0


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (LOGGED[1:], "was acknowledged and is not in the log"),
        ([LOGGED[0], LOGGED[2]], "at QoS 0, which stayed, is not in the log"),
        ([*LOGGED, LOGGED[0]], "a publication of a is in the log 2 times"),
        ([*LOGGED, Logged("n", 9, 0, _hash(9))], "n:9 is in the log, and no device says that it sent it"),
    ],
)
def test_a_loss_a_copy_and_an_invention_are_seen(found: list[Logged], words: str) -> None:
    """Each is a promise broken."""
    gaps = Gaps()
    compare_sent(_sent(), found, gaps)
    assert [words in gap for gap in gaps.sentences] == [True]


def test_who_stayed_has_its_answers() -> None:
    """A publication at QoS 1 without an answer over a connection that lasted is a broken promise."""
    sent = _sent() | {_hash(3): Sent("b", qos=1, is_acknowledged=False, has_gone=False)}
    gaps = Gaps()
    compare_sent(sent, LOGGED, gaps)
    assert gaps.sentences == ["a publication of b, which stayed, was never acknowledged"]


def test_the_log_is_read_from_a_table() -> None:
    """Of a table only four columns are needed."""
    table = pa.table({"node": ["n"], "seq": [7], "qos": [1], "body_hash": [_hash(7)]})
    assert read_logged(table) == [Logged("n", 7, 1, _hash(7))]


# -- what was received -------------------------------------------------------------------------------------------------


class World:
    """One device, ``phone``, that was there twice: until 50, and from 60 to the end at 100."""

    def __init__(self) -> None:
        self.logged = [Logged("n", seq, seq % 2, _hash(seq)) for seq in range(10, 90)]
        """Odd numbers are at QoS 1."""
        self.delivered = {10: 10, 11: 11, 12: 12, 13: 13, 48: 48, 70: 70, 71: 71, 72: 72}
        """By number, when."""
        self.heard = Heard()
        self.heard.is_present = True
        for seq in (10, 11, 12, 13, 70, 71, 72):
            self.heard.note(_hash(seq), is_dup=False)
        self.others: dict[int, str] = {}
        self.held: list[HeldEntry] = []

    def told(self) -> tuple[tuple[Received, ...], list[str]]:
        """Return what the comparison says."""
        outcomes = dict.fromkeys(self.delivered, "delivered") | self.others
        deliveries = _table("deliveries", [
            {"notification_node": "n", "notification_seq": seq, "session": "nurse", "device": "phone",
             "subscriptions": [], "outcome": outcome, "decided_at": self.delivered.get(seq, 99)}
            for seq, outcome in outcomes.items()
        ])  # fmt: skip
        presence = _table("presence", [
            {"node": "n", "seq": at, "changed_at": at, "device": "phone", "change": "disconnected"} for at in (50, 100)
        ])  # fmt: skip
        gaps = Gaps()
        entries = Entries(deliveries, self.held, [Membership("n", "nurse", "phone", 1)], Gaps())
        received = compare_heard(
            {"phone": self.heard}, self.logged, deliveries=deliveries, entries=entries, presence=presence, gaps=gaps
        )
        return received, gaps.sentences


def test_what_was_written_last_at_qos_0_may_be_unseen() -> None:
    """It counts as received when it is written to the connection, and the device was gone by then."""
    received, gaps = World().told()
    assert received == (Received(device="phone", notifications=7, again=0, unseen=1, unconfirmed=0),)
    assert gaps == []


def test_what_was_seen_and_not_acknowledged_is_still_owed() -> None:
    """The acknowledgement went down with the connection: it is held, or ended otherwise."""
    world = World()
    world.heard.note(_hash(15), is_dup=False)
    world.heard.note(_hash(17), is_dup=False)
    world.heard.note(_hash(17), is_dup=True)
    world.held.append(("n", "nurse", 15, None))
    world.others[17] = "taken elsewhere"
    (received,), gaps = world.told()
    assert (received.unconfirmed, received.again) == (2, 1)
    assert gaps == []


def _unseen_at_qos_1(world: World) -> None:
    world.delivered[15] = 15


def _unseen_among_others(world: World) -> None:
    del world.delivered[48]
    world.logged.append(Logged("n", 5, 0, _hash(5)))
    world.delivered[5] = 14


def _unseen_by_who_stayed(world: World) -> None:
    world.delivered[80] = 80


def _twice_unmarked(world: World) -> None:
    world.heard.note(_hash(11), is_dup=False)


def _invented(world: World) -> None:
    world.heard.note(b"nothing", is_dup=False)


def _seen_at_qos_0_and_not_delivered(world: World) -> None:
    world.heard.note(_hash(74), is_dup=False)
    world.others[74] = "expired"


def _not_for_it(world: World) -> None:
    world.heard.note(_hash(15), is_dup=False)


def _not_in_the_log(world: World) -> None:
    world.delivered[95] = 95


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_unseen_at_qos_1, "n:15 at QoS 1 was delivered to phone, which never saw it"),
        (_unseen_among_others, "number 5 at QoS 0 was delivered to phone, which saw later ones and not this"),
        (_unseen_by_who_stayed, "number 80 at QoS 0 was delivered to phone, which stayed and never saw it"),
        (_twice_unmarked, "phone received 1 again that were not marked DUP"),
        (_invented, "phone received what is not in the log"),
        (_seen_at_qos_0_and_not_delivered, "phone received n:74 at QoS 0, and it is not delivered"),
        (_not_for_it, "phone received n:15, which no record says was for it"),
        (_not_in_the_log, "n:95 was delivered to phone and is not in the log"),
    ],
)
def test_every_broken_promise_is_seen(change: Callable[[World], None], words: str) -> None:
    """The judge must see what it is there for."""
    world = World()
    change(world)
    _, gaps = world.told()
    assert gaps == [words]


def test_deliveries_to_a_device_that_is_none_are_seen() -> None:
    """Nothing is delivered to nobody."""
    world = World()
    deliveries = _table("deliveries", [
        {"notification_node": "n", "notification_seq": 10, "session": "s", "device": "ghost", "subscriptions": [],
         "outcome": "delivered", "decided_at": 10},
    ])  # fmt: skip
    gaps = Gaps()
    entries = Entries(deliveries, [], [], Gaps())
    presence = _table("presence", [])
    compare_heard({}, world.logged, deliveries=deliveries, entries=entries, presence=presence, gaps=gaps)
    assert gaps.sentences == ["ghost has deliveries, and there is no such device"]
