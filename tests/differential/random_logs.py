"""Small random logs in which everything happens often: ties in time, ends of ttl and max, shared devices, MQTT."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from whimbrel.hold.private import client_of, is_private
from whimbrel.model.device import DeviceState
from whimbrel.model.facts import (
    Decided,
    Fact,
    InterestChanged,
    Mode,
    Outcome,
    PolicyChange,
    PolicyChanged,
    PresenceChange,
    PresenceChanged,
    Receipt,
    Reported,
    SessionChange,
    SessionChanged,
    WillChange,
    WillChanged,
    time_of,
)
from whimbrel.model.keys import NO_KEYS, KeyHashes, Scheme
from whimbrel.model.near import ANYWHERE, Around, Near
from whimbrel.model.notification import Notification, NotificationId
from whimbrel.model.place import Area, Place
from whimbrel.model.polygon import Polygon
from whimbrel.model.subscription import InterestChange, Subscription, SubscriptionIdentity
from whimbrel.model.will import LastWill

__all__ = ["placed_log", "random_log"]

SESSIONS, DEVICES = ("s1", "s2", "s3"), ("d1", "d2", "d3", "d4")
PRIVATE_SESSIONS = ("$mqtt/d1", "$mqtt/d2", "$mqtt/c1", "$mqtt/c2")
"""Of two clients that are in other sessions too, and of two that have nothing in common but shares."""
ALL_SESSIONS = (*SESSIONS, *SESSIONS, *PRIVATE_SESSIONS)
SUBJECT_FILTERS, NAMES = (None, "a", "a/#", "+/b"), ("", "x")
TOPIC_FILTERS = ("a", "a/#", "+/b", "$share/g/a/#", "$share/g/+/b", "$share/h/a")
FILTERS = (None, None, "v == 1", "v > 0 || w == 'x'", "!(v < 1)", "require(w)", "v + 1 == 2")
KEYS = KeyHashes.of_private(Scheme.PRODUCER, b"key")
POLICIES = (
    "if (m.v > 1) { return NULL; } return m;",
    "if (device.Battery < 0.5) { return NULL; } m.low = 0; return m;",
    "if (state.n == NULL) { state.n = 0; } state.n = state.n + 1; if (state.n % 3 == 0) { return NULL; } return m;",
    "return summarise(m, 0, 'v');",
    "if (isResponsible(m.w)) { return project(m, 'v'); } return NULL;",
    f"state.s = m.w; state.much = '{'é' * 9_000}'; return m;",
)
"""The last one keeps more than it may, and is suspended."""
_OF_A_SESSION = {PresenceChange.JOINED, PresenceChange.LEFT, PresenceChange.RECEIPTS}


PLACES = (Place(52.52, 13.405), Place(52.521, 13.405), Place(52.53, 13.405), Place(-17.0, 180.0), Place(90.0, 0.0))
RADII = (None, None, 0.0, 111.3, 2_000.0, 2e7)
NEARS: tuple[Near | None, ...] = (
    *(None, None, None, ANYWHERE, Around(0.0), Around(111.3), Around(111.3), Around(2_000.0), Around(90_000.0)),
    *(Area(PLACES[0], 500.0), Area(PLACES[2], 90_000.0), Area(PLACES[3], 111.3)),
    Polygon.parse("52.5,13.4;52.5,13.5;52.525,13.5;52.525,13.4"),
    Polygon.parse("-20,179;-20,-179;-15,-179;-15,179"),
)


def random_log(random: Random, node: str, *, facts: int, has_receipts: bool) -> list[Fact]:
    """Return the log of a node; its times stand still as often as they move."""
    return list(_facts(random, node, facts, has_receipts=has_receipts))


def placed_log(random: Random, node: str, *, facts: int, has_receipts: bool) -> list[Fact]:
    """Return a log in which devices move between any two facts, and publications and subscriptions have places.

    Reports come late as often as not: after the facts of the same moment that they were meant for.
    """
    found: list[Fact] = []
    for fact in _facts(random, node, facts, has_receipts=has_receipts):
        given = replace(fact, seq=len(found) + 1)
        if isinstance(given, Notification):
            place = random.choice((None, *PLACES[:3], *PLACES))
            given = replace(given, place=place, radius_m=None if place is None else random.choice(RADII))
        elif isinstance(given, InterestChanged):
            wanted = replace(given.subscription, near=random.choice(NEARS), stale_us=random.choice((None, None, 25, 0)))
            given = replace(given, subscription=wanted)
        found.append(_renumbered(given, found))
        while random.random() < 0.5:
            place = random.choice((None, *PLACES[:3], *PLACES))
            device = random.choice((*DEVICES, "c1", "c2"))
            state = DeviceState(device=device, reported_at=time_of(fact), place=place)
            found.append(Reported(node=node, seq=len(found) + 1, state=state))
    return found


def _renumbered(fact: Fact, before: list[Fact]) -> Fact:
    """Return a fact that speaks of a publication as one that speaks of the publication's new number."""
    if not isinstance(fact, Receipt | Decided):
        return fact
    published = [each.seq for each in before if isinstance(each, Notification)][-5:]
    return replace(fact, notification=NotificationId(fact.node, published[fact.notification.seq % len(published)]))


def _facts(random: Random, node: str, count: int, *, has_receipts: bool) -> Iterator[Fact]:
    now = 1_000_000
    joined: set[tuple[str, str]] = set()
    published: list[int] = []
    versions: dict[str | None, int] = {}
    for seq in range(1, count + 1):  # as a log numbers its facts
        now += random.choice((0, 0, 1, 3, 10))
        number = {"node": node, "seq": seq}
        kind = random.random()
        if kind < 0.45:
            published.append(seq)
            yield _notification(random, now, number)
        elif kind < 0.62:
            yield _interest(random, now, number)
        elif has_receipts and kind < 0.75 and published and joined:
            member, about = random.choice(sorted(joined)), random.choice(published[-5:])
            if random.random() < 0.25:
                yield _decision(random, now, number, member, about, versions)
            else:
                yield _receipt(random, now, number, member, about)
        elif kind < 0.92:
            yield _presence(random, now, number, joined)
        elif kind < 0.95:
            yield _report(random, now, number)
        elif kind < 0.955:
            yield _will(random, now, number)
        elif kind < 0.985:
            changed = _policy(random, now, number)
            if changed.change is PolicyChange.PUT:
                versions[changed.name] = seq
            yield changed
        else:
            change = random.choice((SessionChange.CREATED, SessionChange.DELETED))
            session = random.choice(ALL_SESSIONS)
            if change is SessionChange.DELETED:
                joined -= {pair for pair in joined if pair[1] == session}
            device = client_of(session)
            yield SessionChanged(**number, changed_at=now, session=session, device=device, change=change)  # type: ignore[arg-type]


def _notification(random: Random, now: int, number: dict[str, object]) -> Notification:
    attributes = {"v": random.choice((0, 1, 1, 2)), "w": random.choice(("x", "y"))}
    if random.random() < 0.2:
        del attributes["w"]
    return Notification(
        **number,  # type: ignore[arg-type]
        published_at=now,
        subject=random.choice((None, "a", "a/b", "c/b")),
        publisher=random.choice((None, "d1", "c1", "c2")),
        qos=random.choice((0, 1, 2)),
        attributes=attributes,
        body=random.choice((b"", random.randbytes(3), b'{"v": 1, "w": "x"}')),
        expires_at=random.choice((None, None, now, now + 3, now + 10)),
        deadline_at=random.choice((None, now, now + 1, now + 5)),
        keys=random.choice((NO_KEYS, NO_KEYS, KEYS)),
        deliver_insecure=random.random() < 0.9,
    )


def _interest(random: Random, now: int, number: dict[str, object]) -> InterestChanged:
    change = random.choice(
        (InterestChange.ADDED, InterestChange.ADDED, InterestChange.MODIFIED, InterestChange.REMOVED)
    )
    session = random.choice(ALL_SESSIONS)
    has_client = is_private(session)
    qos = random.choice((0, 1, 2) if has_client else (None, None, 0, 1))
    subscription = Subscription(
        session=session,
        subject_filter=random.choice(TOPIC_FILTERS if has_client else SUBJECT_FILTERS),
        name=random.choice(NAMES),
        filter_text=random.choice(FILTERS),
        ttl_us=random.choice((None, None, 0, 3, 10, 20)),
        max_held=random.choice((None, None, 0, 1, 2)),
        keys=random.choice((NO_KEYS, NO_KEYS, KEYS)),
        accept_insecure=random.random() < 0.9,
        qos=qos,
        no_local=has_client and random.random() < 0.3,
        policy=random.choice((None, None, None, "p", "q")),
    )
    return InterestChanged(**number, changed_at=now, change=change, subscription=subscription)  # type: ignore[arg-type]


def _receipt(
    random: Random, now: int, number: dict[str, object], member: tuple[str, str], notification_seq: int
) -> Receipt:
    device, session = member
    outcome = random.choice((*[Outcome.DELIVERED] * 4, Outcome.WITHHELD, Outcome.DROPPED, Outcome.EXPIRED))
    via = random.choice((None, "live", "live", "held", "retained")) if outcome is Outcome.DELIVERED else None
    of_retained: dict[str, object] = {}
    if via == "retained" and random.random() < 0.8:  # else it is of a log from before they said so
        wanted = (SubscriptionIdentity("a/#", ""), SubscriptionIdentity("a", "x"))
        of_retained = {"published_at": now - 7, "subject": "a", "body_hash": bytes(32), "subscriptions": wanted}
    return Receipt(
        **number,  # type: ignore[arg-type]  # node and seq
        **of_retained,  # type: ignore[arg-type]
        handed_at=now,
        session=session,
        device=device,
        notification=NotificationId(str(number["node"]), notification_seq),
        outcome=outcome,
        via=via,
    )


def _decision(  # as a receipt's, and one more
    random: Random,
    now: int,
    number: dict[str, object],
    member: tuple[str, str],
    notification_seq: int,
    versions: dict[str | None, int],
) -> Decided:
    """Return a decision as no policy made it, mostly."""
    device, session = member
    policy = random.choice(("p", "q"))
    outcome = random.choice((Outcome.DELIVERED, Outcome.DELIVERED, Outcome.WITHHELD))
    is_sent = outcome is Outcome.DELIVERED
    return Decided(
        **number,  # type: ignore[arg-type]  # node and seq
        decided_at=now,
        session=session,
        device=device,
        notification=NotificationId(str(number["node"]), notification_seq),
        policy_seq=versions.get(policy, 1),
        policy=policy,
        outcome=outcome,
        body_hash=random.randbytes(32) if is_sent else None,
        body_bytes=3 if is_sent else None,
    )


def _policy(random: Random, now: int, number: dict[str, object]) -> PolicyChanged:
    """Let a policy be put, removed or chosen."""
    change = random.choice((PolicyChange.PUT, PolicyChange.CHOSEN, PolicyChange.REMOVED))
    if random.random() < 0.7 and change is PolicyChange.REMOVED:
        change = PolicyChange.PUT
    device = random.choice((*DEVICES, "c1", "c2"))
    is_choice = change is PolicyChange.CHOSEN
    return PolicyChanged(
        **number,  # type: ignore[arg-type]  # node and seq
        changed_at=now,
        change=change,
        owner=device,
        name=random.choice((None, "p", "q") if is_choice else ("p", "q")),
        text=random.choice(POLICIES) if change is PolicyChange.PUT else None,
        device=device if is_choice else None,
    )


def _will(random: Random, now: int, number: dict[str, object]) -> WillChanged:
    change = random.choice(list(WillChange))
    will = LastWill(subject="a", body=b"gone", qos=1) if change is WillChange.LEFT else None
    device = random.choice(DEVICES)
    return WillChanged(**number, changed_at=now, device=device, change=change, will=will)  # type: ignore[arg-type]


def _report(random: Random, now: int, number: dict[str, object]) -> Reported:
    state = DeviceState(
        device=random.choice(DEVICES),
        reported_at=now,
        battery=random.choice((None, 0.2, 0.5, 0.9)),
        received=random.choice((None, 0, 1, 2, 3)),
        sent=random.choice((None, 0, 2, 3)),
        members=random.choice(({}, {"responsible": 1, "responsible.x": 1})),
    )
    return Reported(**number, state=state)  # type: ignore[arg-type]  # node and seq


def _presence(random: Random, now: int, number: dict[str, object], joined: set[tuple[str, str]]) -> PresenceChanged:
    device, session = random.choice(DEVICES), random.choice(ALL_SESSIONS)
    client = client_of(session)
    device = device if client is None else client
    changes = (PresenceChange.JOINED, PresenceChange.JOINED, PresenceChange.LEFT, PresenceChange.DISCONNECTED)
    change = random.choice(
        (*changes, *changes, PresenceChange.CONNECTED, PresenceChange.COMPLETED, PresenceChange.RECEIPTS)
    )
    mode = sent_seq = confirms = None
    if change is PresenceChange.JOINED:
        mode = random.choice((Mode.TAKE, Mode.KEEP)) if client is None else Mode.TAKE
        confirms = random.choice((None, False, True))
        joined.add((device, session))
    elif change is PresenceChange.RECEIPTS:
        confirms = random.random() < 0.5
    elif change is PresenceChange.LEFT:
        joined.discard((device, session))
    elif change is PresenceChange.DISCONNECTED:
        joined -= {pair for pair in joined if pair[0] == device}
        sent_seq = random.choice((None, max(0, int(str(number["seq"])) - random.randrange(30))))
    return PresenceChanged(
        **number,  # type: ignore[arg-type]
        changed_at=now,
        device=device,
        change=change,
        session=session if change in _OF_A_SESSION else None,
        receipt=mode,
        packet_id=1 if change is PresenceChange.COMPLETED else None,
        sent_seq=sent_seq,
        confirms=confirms,
    )
