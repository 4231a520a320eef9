"""What plain MQTT asks of the hold (rules 15 to 18 of docs/explanation/holding.md), and the fast lane."""

from __future__ import annotations

import cbor2
import pytest
from kept import without_kept

from whimbrel.hold.commands import Command, HandOver, Identity, Settle
from whimbrel.hold.private import asked_for, client_of, is_private, is_shared, private_session
from whimbrel.hold.sessions import Hold
from whimbrel.model.facts import InterestChanged, Outcome, PresenceChange, PresenceChanged
from whimbrel.model.notification import Notification
from whimbrel.model.subscription import InterestChange, Subscription

A: Identity = ("a", "")
SHARE: Identity = ("$share/g/a", "")
TTL_US = 100


def a_hold(*sessions: str, qos: int | None = 1, no_local: bool = False, identity: Identity = A) -> Hold[Notification]:
    """Return a hold with a subscription in each of the sessions."""
    hold = Hold[Notification]("n")
    for session in sessions:
        subscription = Subscription(
            session=session, subject_filter=identity[0], qos=qos, no_local=no_local, ttl_us=TTL_US
        )
        change = InterestChange.ADDED
        hold.apply(InterestChanged(node="n", seq=0, changed_at=0, change=change, subscription=subscription))
    return hold


def join(hold: Hold[Notification], *clients: str) -> None:
    """Let clients come to their private sessions."""
    for client in clients:
        hold.joined(0, client, private_session(client), takes=True)


def publish(hold: Hold[Notification], seq: int, *sessions: str, qos: int = 1, identity: Identity = A) -> list[Command]:
    """Publish at the time that is the number."""
    return hold.published(_notification(seq, qos), [(session, (identity,)) for session in sessions])


def _notification(seq: int, qos: int, publisher: str | None = None) -> Notification:
    return Notification(node="n", seq=seq, published_at=seq, qos=qos, publisher=publisher)


def settled(commands: list[Command]) -> list[tuple[str | None, Outcome, int]]:
    """Return for whom, how and when."""
    return [(c.device, c.outcome, c.decided_at) for c in commands if isinstance(c, Settle)]


def handed(commands: list[Command]) -> list[tuple[str, int]]:
    """Return to whom, and with which quality."""
    return [(c.device, c.qos) for c in commands if isinstance(c, HandOver)]


def test_a_private_session_is_known_by_its_name() -> None:
    """Logs, Spark and the broker need no table of who is whose."""
    assert private_session("c") == "$mqtt/c"
    assert is_private("$mqtt/c")
    assert client_of("$mqtt/c") == "c"
    assert client_of("c") is None


@pytest.mark.parametrize("text", [None, "a/b", "$share", "$share/g", "$share//a", "$share/g/", "x$share/g/a"])
def test_what_is_no_share_asks_for_what_it_says(text: str | None) -> None:
    """A filter that only looks like a share is matched as it stands."""
    assert not is_shared(text)
    assert asked_for(text) == text


def test_a_share_asks_for_the_filter_within() -> None:
    """The group is no part of the subject."""
    assert asked_for("$share/g/a/+/b") == "a/+/b"


@pytest.mark.parametrize(("published", "granted", "sent"), [(0, 2, 0), (1, 2, 1), (2, 1, 1), (2, 2, 2), (2, 0, 0)])
def test_a_client_gets_the_lower_quality_of_the_two(published: int, granted: int, sent: int) -> None:
    """Neither the publisher nor the subscriber is given more than it asked for (MQTT 5, 3.8.4)."""
    hold = a_hold("$mqtt/c", qos=granted)
    join(hold, "c")
    assert handed(publish(hold, 1, "$mqtt/c", qos=published)) == [("c", sent)]


def test_quality_0_is_its_own_receipt_and_never_stored() -> None:
    """Nobody will ever confirm it, so nothing may wait for that."""
    hold = a_hold("$mqtt/c")
    join(hold, "c")
    commands = publish(hold, 1, "$mqtt/c", qos=0)
    assert [type(command) for command in commands] == [HandOver, Settle]
    assert settled(commands) == [("c", Outcome.DELIVERED, 1)]
    assert hold.confirmed(2, "$mqtt/c", "c", 1, Outcome.DELIVERED) == []


def test_quality_0_does_not_wait_for_a_client() -> None:
    """A client that is away misses it, as MQTT says it may."""
    hold = a_hold("$mqtt/c")
    join(hold, "c")
    hold.disconnected(0, "c")
    assert settled(publish(hold, 1, "$mqtt/c", qos=0)) == [("c", Outcome.DROPPED, 1)]


def test_a_session_of_several_devices_holds_quality_0_until_one_comes() -> None:
    """Such a session was made to hold; only the receipt is saved."""
    hold = a_hold("s", qos=0)
    assert publish(hold, 1, "s") == []
    assert hold.is_stored(1)
    commands = hold.joined(2, "d", "s", takes=True)
    assert handed(commands) == [("d", 0)]
    assert settled(commands) == [("d", Outcome.DELIVERED, 2)]
    assert not hold.is_stored(1)


def test_the_highest_quality_of_all_sessions_decides() -> None:
    """One copy counts for all of them, and it is sent once."""
    hold = a_hold("s", "t", qos=0)
    subscription = Subscription(session="t", subject_filter="a", qos=1)
    hold.apply(
        InterestChanged(node="n", seq=0, changed_at=0, change=InterestChange.MODIFIED, subscription=subscription)
    )
    for session in ("s", "t"):
        hold.joined(0, "d", session, takes=True)
    commands = publish(hold, 1, "s", "t", qos=2)
    assert handed(commands) == [("d", 1)]
    assert settled(commands) == []


def test_what_no_mqtt_subscription_wants_is_confirmed_whatever_its_quality() -> None:
    """Publications of older logs all say quality 0; their devices confirmed them."""
    hold = a_hold("s", qos=None)
    hold.joined(0, "d", "s", takes=True)
    commands = publish(hold, 1, "s", qos=0)
    assert handed(commands) == [("d", 2)]
    assert settled(commands) == []


def test_a_client_that_wants_nothing_of_its_own_gets_what_others_publish() -> None:
    """No local keeps out one publisher, not a subject."""
    hold = a_hold("$mqtt/c", no_local=True)
    join(hold, "c")
    matches = [("$mqtt/c", (A,))]
    assert hold.published(_notification(1, 1, "c"), matches) == []
    assert handed(hold.published(_notification(2, 1, "d"), matches)) == [("c", 1)]


def test_a_share_is_served_in_turns_by_those_who_are_there() -> None:
    """Work goes to who can do it, and waits for somebody if nobody can."""
    sessions = ("$mqtt/a", "$mqtt/b", "$mqtt/c")
    hold = a_hold(*sessions, identity=SHARE)
    join(hold, "a", "c")
    served = [handed(publish(hold, seq, *sessions, identity=SHARE))[0][0] for seq in range(1, 5)]
    assert served == ["a", "c", "a", "c"]
    hold.disconnected(5, "a")
    hold.disconnected(5, "c")
    publish(hold, 7, *sessions, identity=SHARE)
    assert [hold.pending_count(session) for session in sessions] == [2, 1, 2]


def test_a_flight_that_is_confirmed_leaves_nothing() -> None:
    """Stored before it is handed over, settled, forgotten: as without the lane."""
    hold = a_hold("$mqtt/c")
    join(hold, "c")
    assert [type(command) for command in publish(hold, 1, "$mqtt/c")] == [HandOver]
    assert hold.is_stored(1)
    assert hold.counts() == {"sessions": 1, "notifications": 1, "pending": 1}
    commands = hold.confirmed(2, "$mqtt/c", "c", 1, Outcome.DELIVERED)
    assert without_kept(commands) == [Settle("$mqtt/c", "c", 1, (A,), Outcome.DELIVERED, 2, 1 + TTL_US)]
    assert not hold.is_stored(1)
    assert hold.counts() == {"sessions": 1, "notifications": 0, "pending": 0}


def test_a_notification_is_forgotten_with_its_last_flight() -> None:
    """It is stored once for all, so one receipt may not take it from the others."""
    hold = a_hold("$mqtt/a", "$mqtt/b")
    join(hold, "a", "b")
    publish(hold, 1, "$mqtt/a", "$mqtt/b")
    hold.confirmed(2, "$mqtt/a", "a", 1, Outcome.DELIVERED)
    assert hold.is_stored(1)
    hold.confirmed(2, "$mqtt/b", "b", 1, Outcome.DELIVERED)
    assert not hold.is_stored(1)


def test_a_flight_that_lapses_is_delivered_if_it_is_confirmed_all_the_same() -> None:
    """It was sent in time; that its receipt is late changes nothing."""
    hold = a_hold("$mqtt/c")
    join(hold, "c")
    publish(hold, 1, "$mqtt/c")
    assert hold.tick(500) == []
    assert settled(hold.confirmed(600, "$mqtt/c", "c", 1, Outcome.DELIVERED)) == [("c", Outcome.DELIVERED, 600)]


def test_a_flight_that_lapses_unconfirmed_has_expired_at_its_lapse() -> None:
    """When the client goes, what ended meanwhile is told with the instant it ended."""
    hold = a_hold("$mqtt/c")
    join(hold, "c")
    publish(hold, 1, "$mqtt/c")
    commands = hold.disconnected(500, "c")
    assert settled(commands) == [("c", Outcome.EXPIRED, 1 + TTL_US)]
    assert not hold.is_stored(1)


def test_flights_are_saved_and_handed_over_again_after_a_restart() -> None:
    """What a client has not confirmed survives a crash, in order."""
    hold = a_hold("$mqtt/c")
    join(hold, "c")
    for seq in (1, 2, 3):
        publish(hold, seq, "$mqtt/c")
    hold.confirmed(4, "$mqtt/c", "c", 2, Outcome.DELIVERED)
    put, _ = hold.changes()
    restored = Hold[Notification].restore("n", put.items())
    restored.disconnected(5, "c")
    again = [c for c in restored.joined(6, "c", "$mqtt/c", takes=True) if isinstance(c, HandOver)]
    assert [(c.seq, c.is_again, c.qos) for c in again] == [(1, True, 1), (3, True, 1)]


def test_rows_from_before_mqtt_are_read() -> None:
    """A broker that is updated finds its view as the older one left it."""
    hold = a_hold("s", qos=None)
    publish(hold, 1, "s")
    put, _ = hold.changes()
    row = ("subscription", "s", *A)
    older = put | {row: cbor2.dumps(cbor2.loads(put[row])[:9]), ("copy", 1): cbor2.dumps([[], []])}
    restored = Hold[Notification].restore("n", older.items())
    assert restored.subscriptions("s") == hold.subscriptions("s")
    assert handed(restored.joined(2, "d", "s", takes=True)) == [("d", 2)]


def test_a_hold_tells_what_a_broker_asks() -> None:
    """Whoever serves clients asks what there is, and changes nothing by asking."""
    hold = a_hold("$mqtt/c")
    join(hold, "c")
    publish(hold, 1, "$mqtt/c")
    assert (hold.sessions(), hold.has("$mqtt/c"), hold.has("s")) == (("$mqtt/c",), True, False)
    assert hold.members("$mqtt/c") == {"c": (True, True)}
    found = hold.subscription("$mqtt/c", A)
    assert found is not None
    assert found.qos == 1
    assert (hold.pending_count("$mqtt/c"), hold.pending_count("s"), hold.is_stored(1)) == (1, 0, True)
    assert (hold.members("s"), hold.subscription("s", A)) == ({}, None)


def test_a_receipt_counts_once_for_a_device_that_left_and_joined_again() -> None:
    """What was taken back when it left is its own again: a second receipt finds nothing to settle."""
    hold = a_hold("ward", qos=None)
    hold.joined(0, "phone", "ward", takes=False)
    publish(hold, 1, "ward")
    left = PresenceChange.LEFT
    hold.apply(PresenceChanged(node="n", seq=2, changed_at=2, device="phone", change=left, session="ward", sent_seq=0))
    assert handed(hold.joined(3, "phone", "ward", takes=False)) == [("phone", 2)]
    receipts = [hold.confirmed(at, "ward", "phone", 1, Outcome.DELIVERED) for at in (4, 5)]
    assert [settled(each) for each in receipts] == [[("phone", Outcome.DELIVERED, 4)], []]
