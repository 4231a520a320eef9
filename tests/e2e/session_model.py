"""What every client of a run must have seen: the log of its broker, as the naive hold reads it.

Time and order over many connections are ambiguous, so the order of the log decides: its facts go to the naive hold
(``tests/property/naive_hold.py``) one by one, and what that hands over is what each device must have been sent.
Rule: nothing of the broker is imported, and of the hold only its naive twin. Who wants a publication is found by a
topic match that stands here and by asking each content filter.
Rule: no socket and no clock. Facts and notes of clients go in, sentences about what should not have happened come out;
so the judge is tested with histories that were made up.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from naive_hold import NaiveHold

from whimbrel.hold.commands import HandOver, Identity, NotifyChange, NotifySubscriptions, Settle
from whimbrel.language.filters import Filter
from whimbrel.model.facts import (
    Fact,
    InterestChanged,
    Outcome,
    PresenceChange,
    PresenceChanged,
    Receipt,
    SessionChange,
    SessionChanged,
)
from whimbrel.model.notification import Notification
from whimbrel.model.subscription import InterestChange, Subscription

__all__ = [
    "Due",
    "End",
    "Heard",
    "Judge",
    "Key",
    "Ledger",
    "Publication",
    "Told",
    "View",
    "body_of",
    "fact_key",
    "is_admitted",
    "number_of",
    "private",
    "subscribed_key",
]

Key = tuple[object, ...]
"""A fact, as far as the client that asked for it can know it."""

_PRIVATE = "$mqtt/"
_SHARE = "$share/"
_SECOND_US = 1_000_000
_LATE_US = 200_000
"""How far the broker's time of a packet may be behind the clock: it is that of the last fact."""


def private(device: str) -> str:
    """Return the name of a device's private session."""
    return _PRIVATE + device


# -- bodies and topics -------------------------------------------------------------------------------------------------


def body_of(number: int, level: int, kind: str) -> bytes:
    """Return a body that no other publication of the run has."""
    return json.dumps({"n": number, "level": level, "kind": kind}).encode()


def number_of(body: bytes) -> int:
    """Return the number of the publication that has this body."""
    return int(json.loads(body)["n"])


def is_admitted(topic_filter: str, topic: str) -> bool:
    """Tell whether *topic_filter* admits *topic* (MQTT 5, 4.7)."""
    if topic.startswith("$") and topic_filter[:1] in {"+", "#"}:
        return False
    wanted, levels = topic_filter.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted.pop()
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(w in {"+", level} for w, level in zip(wanted, levels, strict=True))


@lru_cache(maxsize=1_000)
def _filter(text: str) -> Filter:
    return Filter(text)


def _is_wanted(subscription: Subscription, topic: str, body: bytes) -> bool:
    topic_filter = subscription.subject_filter or "#"
    if topic_filter.startswith(_SHARE):
        topic_filter = topic_filter.removeprefix(_SHARE).partition("/")[2]
    if not is_admitted(topic_filter, topic):
        return False
    return subscription.filter_text is None or _filter(subscription.filter_text).matches(json.loads(body))


# -- notes -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A PUBLISH that a client sent."""

    number: int
    publisher: str
    topic: str
    body: bytes
    qos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A PUBLISH that a client got."""

    number: int
    topic: str
    qos: int
    is_dup: bool = False
    identifiers: tuple[int, ...] = ()
    expiry_s: int | None = None
    is_retained: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """What a client was told of a session: *what* is ``subscriptions`` or ``changes``."""

    session: str
    what: str
    text: str
    """The body, with its members in order."""


class End:
    """How a connection ended, as its client knows it."""

    CLOSED = "closed"
    """By the client, by another connection of the same client, or by a broker that stopped."""
    KILLED = "killed"
    """With its broker: what that had not yet written down, it may have said nevertheless."""


@dataclass(slots=True, kw_only=True, eq=False)
class View:
    """What a client saw over one connection."""

    device: str
    version: int = 5
    sessions: int = 0
    """How many sessions its CONNECT named."""
    is_persistent: bool = False
    is_answered: bool = False
    """Whether CONNACK came."""
    is_resumed: bool = False
    """Whether CONNACK says that there was a private session."""
    receive_maximum: int = 65_535
    heard: list[Heard] = field(default_factory=list)
    rests: list[int] = field(default_factory=list)
    """How often everybody had come to rest before it heard each."""
    joins: deque[int] = field(default_factory=deque)
    """How much it had heard when each of its requests to join was answered: what is held follows the answer."""
    told: list[Told] = field(default_factory=list)
    acknowledged: Counter[int] = field(default_factory=Counter)
    """The numbers that it sent PUBACK or PUBREC for, and how often."""
    end: str | None = None
    ended_at: int = 0
    connection: Connection | None = None
    """The same, as the log knows it."""


@dataclass(slots=True, kw_only=True, eq=False)
class Due:
    """A copy that a device must be sent."""

    seq: int
    number: int
    topic: str
    qos: int
    is_again: bool
    identifiers: dict[str, tuple[int, ...]]
    """Those of each session's subscriptions."""
    doubtful: set[str] = field(default_factory=set)
    """Sessions that were joined or left while it was on its way: only if it was not yet sent by then, that shows."""
    expires_at: int | None
    sessions: set[str]
    """For which it still counts; one that the device has left does not."""
    is_hasty: bool = False
    """QoS 0, and for the private session alone."""
    has_receipt: bool = True
    """False: it is its own."""
    is_loose: bool = False
    """The device has left all sessions that it was for: it is not sent, unless it was before."""
    loose_since: int = 0
    """How often everybody had come to rest before."""
    is_confirmed: bool = False
    is_expired: bool = False
    """The log says that it expired while it waited for its turn."""


@dataclass(slots=True, kw_only=True, eq=False)
class Connection:
    """What a device must be sent over one connection, so far as the log goes."""

    device: str
    view: View | None
    due: list[Due] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    joining: int = 0
    """How many sessions of its CONNECT are not yet joined."""
    is_over: bool = False


# -- the ledger --------------------------------------------------------------------------------------------------------


def subscribed_key(subscription: Subscription) -> Key:
    """Return the key of a subscription that was added or modified."""
    return (
        "subscribed", subscription.session, subscription.subject_filter, subscription.name, subscription.filter_text,
        subscription.ttl_us, subscription.max_held, subscription.qos, subscription.identifier, subscription.no_local,
    )  # fmt: skip


def fact_key(fact: Fact) -> Key | None:
    """Return what a client knows of a fact that it asked for; None if nobody asks for such facts."""
    match fact:
        case Notification():
            return ("published", number_of(fact.body))
        case InterestChanged(change=InterestChange.REMOVED, subscription=gone):
            return ("removed", gone.session, gone.subject_filter, gone.name)
        case InterestChanged():
            return subscribed_key(fact.subscription)
        case PresenceChanged(session=str() as session) if not session.startswith(_PRIVATE):
            mode = () if fact.receipt is None else (fact.receipt.value,)
            return (fact.change.value, session, fact.device, *mode)
        case SessionChanged() if not fact.session.startswith(_PRIVATE):
            return (fact.change.value, fact.session)
    return None


class Ledger:
    """What was asked for, what was granted, and what the log has of it."""

    def __init__(self) -> None:
        self._asked: Counter[Key] = Counter()
        self._granted: Counter[Key] = Counter()
        self._found: Counter[Key] = Counter()

    def ask(self, key: Key) -> None:
        """Note that the log may have *key* once more."""
        self._asked[key] += 1

    def grant(self, key: Key) -> None:
        """Note that the broker said yes: the log must have it."""
        self._granted[key] += 1

    def refuse(self, key: Key) -> None:
        """Note that the broker said no: the log must not have it."""
        self._asked[key] -= 1

    def find(self, key: Key) -> None:
        """Note that the log has it."""
        self._found[key] += 1

    def missing(self) -> list[Key]:
        """Return what was granted and is not in the log."""
        return [key for key, count in self._granted.items() if self._found[key] < count]

    def unasked(self) -> list[Key]:
        """Return what is in the log and nobody asked for."""
        return [key for key, count in self._found.items() if count > self._asked[key]]

    def close(self) -> None:
        """Begin anew: whatever was asked for until now is in the log, or never will be."""
        for each in (self._asked, self._granted, self._found):
            each.clear()


# -- the judge ---------------------------------------------------------------------------------------------------------


class Judge:
    """Facts and notes in, ``violations`` out; nobody keeps notes for the *ignored* device."""

    def __init__(self, node: str, *, ignored: str = "") -> None:
        self._ignored = ignored
        self.hold = NaiveHold(node)
        self.ledger = Ledger()
        self.violations: list[str] = []
        self.facts: list[Fact] = []
        self.sessions: set[str] = set()
        """The named sessions that exist."""
        self.persistent: set[str] = set()
        """The devices whose private sessions outlive their connections."""
        self.confirmed: set[tuple[str, int]] = set()
        """Device and number of what the log has a receipt for."""
        self.evictions: dict[tuple[str, str], str] = {}
        """Who puts a device out of a session: by session and device."""
        self._settles: list[Settle] = []
        self._rests: list[int] = []
        """When everybody came to rest: what is heard later was sent later."""
        self._views: list[View] = []
        self._unbound: dict[str, deque[View]] = defaultdict(deque)
        self._connections: dict[str, Connection] = {}
        self._publications: dict[int, Publication] = {}
        self._numbers: dict[int, int] = {}
        """The seq of each publication by its number."""
        self._notifications: dict[int, Notification] = {}
        self.heard: set[tuple[str, int]] = set()
        """Device and number of what was received before."""

    # -- notes ---------------------------------------------------------------------------------------------------------

    def connecting(self, view: View) -> None:
        """Take in that a client sends CONNECT; what it sees goes to *view*."""
        self._views.append(view)
        self._unbound[view.device].append(view)

    def refused(self, view: View) -> None:
        """Take in that CONNECT was refused."""
        self._views.remove(view)
        self._unbound[view.device].remove(view)

    def receives(self, view: View, heard: Heard) -> None:
        """Take in a PUBLISH."""
        view.heard.append(heard)
        view.rests.append(len(self._rests))
        if (view.device, heard.number) in self.heard and heard.qos and not heard.is_dup:
            self._accuse(view.device, f"{heard.number} came again without DUP")
        self.heard.add((view.device, heard.number))

    def publishing(self, publication: Publication) -> None:
        """Take in that a client publishes."""
        self._publications[publication.number] = publication
        self.ledger.ask(("published", publication.number))

    def is_owed(self, number: int) -> bool:
        """Tell whether a publication must be durable before anybody hears of it, by the subscriptions of now."""
        publication = self._publications[number]
        publisher = publication.publisher
        if not publication.qos:
            return False
        if publication.qos == 2 and publisher in self.persistent:
            return True
        for (session, (topic_filter, _)), found in self.hold.subscriptions.items():
            is_shared = (topic_filter or "").startswith(_SHARE)  # whose it is depends on a number that is not known
            if is_shared or not _is_wanted(found, publication.topic, publication.body):
                continue
            if found.max_held == 0 or found.ttl_us == 0:
                continue
            device = session.removeprefix(_PRIVATE) if session.startswith(_PRIVATE) else None
            if device is None or (
                device in self.persistent and found.qos != 0 and not (found.no_local and device == publisher)
            ):
                return True
        return False

    # -- facts ---------------------------------------------------------------------------------------------------------

    def take(self, fact: Fact) -> None:
        """Take in the next fact of the log."""
        self.facts.append(fact)
        present = set(self.hold.present)
        key = fact_key(fact)
        if key is not None and key[1] != private(self._ignored):
            self.ledger.find(key)
        self._before(fact)
        matches: list[tuple[str, tuple[Identity, ...]]] = []
        if isinstance(fact, Notification):
            matches = self._matches(fact)
        for command in self.hold.apply(fact, matches):
            match command:
                case HandOver():
                    self._hand_over(command)
                case Settle():
                    self._settles.append(command)
                case NotifyChange() | NotifySubscriptions():
                    self._tell(command, fact)
        self._after(fact)
        self._tell_more(fact, present)

    def _before(self, fact: Fact) -> None:
        match fact:
            case Notification():
                number = number_of(fact.body)
                if number in self._numbers:
                    self._accuse("the log", f"{number} stands there twice")
                self._numbers[number] = fact.seq
                self._notifications[fact.seq] = fact
            case PresenceChanged(change=PresenceChange.JOINED, session=str() as session):
                if session.startswith(_PRIVATE):
                    self._connected(fact)
                elif session not in self.sessions:
                    self._accuse(fact.device, f"joined {session}, which does not exist")
            case SessionChanged(change=SessionChange.CREATED):
                if fact.session in self.sessions:
                    self._accuse("the log", f"{fact.session} was created, and exists")
                self.sessions.add(fact.session)
            case SessionChanged(change=SessionChange.DELETED):
                if not fact.session.startswith(_PRIVATE):
                    if fact.session not in self.sessions:
                        self._accuse("the log", f"{fact.session} was deleted, and does not exist")
                    self.sessions.discard(fact.session)
            case Receipt():
                self._receipt(fact)

    def _connected(self, fact: PresenceChanged) -> None:
        device, waiting = fact.device, self._unbound[fact.device]
        view = waiting.popleft() if waiting else None
        connection = self._connections[device] = Connection(device=device, view=view)
        (self.persistent.add if fact.session_expiry_us else self.persistent.discard)(device)
        if view is not None:
            view.connection = connection
            is_known = (private(device), device) in self.hold.members
            if view.is_answered and view.is_resumed is not is_known:
                self._accuse(device, f"its private session is {'' if is_known else 'not '}there, and CONNACK denies it")
            connection.joining = view.sessions

    def _after(self, fact: Fact) -> None:
        match fact:
            case PresenceChanged(change=PresenceChange.DISCONNECTED):
                over = self._connections.pop(fact.device, None)
                if over is not None:
                    over.is_over = True
            case PresenceChanged(change=PresenceChange.LEFT, session=str() as session):
                self._loosen(session, fact.device)
            case PresenceChanged(change=PresenceChange.JOINED, session=str() as session):
                if not session.startswith(_PRIVATE):
                    self._put_in_order(self._connections[fact.device])
            case SessionChanged(change=SessionChange.DELETED):
                self._loosen(fact.session, None)

    @staticmethod
    def _put_in_order(connection: Connection) -> None:
        """Put what a session held for a device that joined it, and what waits for its turn, in the order of the log.

        With CONNECT all sessions are joined before anything is sent.
        """
        view, sent = connection.view, 0
        if view is None:
            return
        if connection.joining:
            connection.joining -= 1
        elif view.joins:
            sent = view.joins.popleft()
        else:  # it never had the answer, so it never had anything that came after it
            sent = len(view.heard)
        numbers = Counter(each.number for each in view.heard[:sent])
        gone: list[Due] = []
        waiting: list[Due] = []
        for due in connection.due:
            (gone if numbers[due.number] > 0 else waiting).append(due)
            numbers[due.number] -= 1
        again = {due.number for due in waiting if not due.is_loose}
        waiting = [due for due in waiting if not (due.is_loose and due.number in again)]  # one of the two is sent
        connection.due = gone + sorted(waiting, key=lambda due: due.seq)

    def _loosen(self, session: str, device: str | None) -> None:
        for connection in self._connections.values():
            if device not in {None, connection.device}:
                continue
            for due in connection.due:
                if session in due.sessions:
                    due.sessions.discard(session)
                    due.doubtful.add(session)
                    if not due.sessions and not due.is_confirmed:
                        due.is_loose, due.loose_since = True, len(self._rests)

    def _matches(self, fact: Notification) -> list[tuple[str, tuple[Identity, ...]]]:
        found: dict[str, list[Identity]] = defaultdict(list)
        for (session, identity), subscription in self.hold.subscriptions.items():
            if _is_wanted(subscription, fact.subject or "", fact.body):
                found[session].append(identity)
        return [(session, tuple(identities)) for session, identities in found.items()]

    def _hand_over(self, command: HandOver) -> None:
        connection = self._connections[command.device]
        if not command.is_copy:
            for due in reversed(connection.due):
                if due.seq == command.seq:
                    due.sessions.update(session for session, _ in command.sessions)
                    due.doubtful.update(session for session, _ in command.sessions)
                    due.identifiers |= self._identifiers(command)
                    return
            return
        notification = self._notifications[command.seq]
        connection.due.append(
            Due(
                seq=command.seq,
                number=number_of(notification.body),
                topic=notification.subject or "",
                qos=command.qos,
                is_again=command.is_again,
                identifiers=self._identifiers(command),
                expires_at=notification.expires_at,
                sessions={session for session, _ in command.sessions},
                is_hasty=command.qos == 0 and all(session.startswith(_PRIVATE) for session, _ in command.sessions),
                has_receipt=not command.is_own_receipt,
            )
        )

    def _identifiers(self, command: HandOver) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for session, identities in command.sessions:
            each = [self.hold.subscriptions.get((session, identity)) for identity in identities]
            found[session] = tuple(one.identifier for one in each if one is not None and one.identifier is not None)
        return found

    def _receipt(self, fact: Receipt) -> None:
        """Take in what the log says of a hand-over, and ask whether the client said so."""
        connection, seq = self._connections.get(fact.device), fact.notification.seq
        notification = self._notifications.get(seq)
        if connection is None or notification is None:
            self._accuse(fact.device, f"a receipt for {seq}, and it is not here, or there is no such publication")
            return
        number = number_of(notification.body)
        for due in connection.due:
            if due.seq == seq:
                due.is_confirmed = due.is_confirmed or fact.outcome is Outcome.DELIVERED
                due.is_expired = due.is_expired or fact.outcome is Outcome.EXPIRED
        if fact.outcome is Outcome.DELIVERED:
            self.confirmed.add((fact.device, number))
            self._judge_delivered(fact, number, connection)
        elif fact.outcome is not Outcome.EXPIRED:
            self._accuse(fact.device, f"{number} was {fact.outcome.value}, for no reason")
        elif notification.expires_at is None or notification.expires_at > fact.handed_at:
            self._accuse(fact.device, f"{number} is said to have expired, and has not")

    def _judge_delivered(self, fact: Receipt, number: int, connection: Connection) -> None:
        """Ask whether a client acknowledged what it is said to have; whether QoS 0 was sent, ``_walk`` asks."""
        view = connection.view
        if view is None or number in view.acknowledged:
            return
        is_unasked = any(due.seq == fact.notification.seq and not due.qos for due in connection.due)
        if not is_unasked:
            self._accuse(fact.device, f"the log has a receipt for {number}, which it did not acknowledge")

    def _tell(self, command: NotifyChange | NotifySubscriptions, fact: Fact) -> None:
        """Note what the hold says that a device is told."""
        session, device = command.session, command.device
        if session.startswith(_PRIVATE):
            return
        if isinstance(command, NotifySubscriptions):
            what = "subscriptions"
            tree: dict[str, object] = {"session": session, "subscriptions": [_tree(s) for s in command.subscriptions]}
        else:
            assert isinstance(fact, InterestChanged)
            what = "changes"
            tree = {
                "session": session,
                "change": command.change.value,
                "subscription": _tree(command.subscription),
                "device": fact.device,
            }
        self._told(device, session, what, tree)

    def _tell_more(self, fact: Fact, present: set[tuple[str, str]]) -> None:
        """Note what a device is told beside the hold's commands; *present* is who was, before the fact."""
        match fact:
            case InterestChanged(subscription=subscription) if fact.change is not InterestChange.REMOVED:
                device = subscription.session.removeprefix(_PRIVATE)
                for session in sorted(s for s, d in self.hold.present if d == device and not s.startswith(_PRIVATE)):
                    wanted = subscription.subject_filter or ""
                    if device != subscription.session and is_admitted(wanted, _topic(session, "subscriptions")):
                        found = [_tree(each) for (s, _), each in self.hold.subscriptions.items() if s == session]
                        self._told(device, session, "subscriptions", {"session": session, "subscriptions": found})
            case PresenceChanged(change=PresenceChange.LEFT, session=str() as session):
                by = self.evictions.pop((session, fact.device), fact.device)
                if by != fact.device and (session, fact.device) in present:
                    tree: dict[str, object] = {"session": session, "change": "left", "device": by}
                    self._told(fact.device, session, "changes", tree)
            case SessionChanged(change=SessionChange.DELETED, session=session) if not session.startswith(_PRIVATE):
                for device in sorted(d for s, d in present if s == session and d != fact.device):
                    tree = {"session": session, "change": "deleted", "device": fact.device}
                    self._told(device, session, "changes", tree)
            case SessionChanged(change=SessionChange.ACCESS, session=session):
                assert fact.device is not None
                for device in sorted(d for s, d in present if s == session and d != fact.device):
                    self.evictions[session, device] = fact.device

    def _told(self, device: str, session: str, what: str, tree: dict[str, object]) -> None:
        """Note what a device is told, if it subscribes to that."""
        asked = [identity[0] or "" for s, identity in self.hold.subscriptions if s == private(device)]
        connection = self._connections.get(device)
        if connection is not None and any(is_admitted(each, _topic(session, what)) for each in asked):
            connection.told.append(Told(session, what, json.dumps(tree, sort_keys=True)))

    # -- comparing -----------------------------------------------------------------------------------------------------

    def compare(self, *, now: int, outstanding: dict[str, int]) -> None:
        """Hold what everybody saw against the log, which has everything that they can have seen.

        *outstanding* says how many exchanges each device that is connected has begun and not finished. Everything that
        was sent until *now* has been heard.
        """
        for view in list(self._views):
            connection = view.connection
            if connection is None:
                self._compare_unknown(view)
                continue
            has_room = view.end is None and outstanding[view.device] < view.receive_maximum
            is_complete = has_room and not _is_blocked(view, connection)
            self._compare(view, connection, is_complete=is_complete, now=now)
            if view.end is None:
                if outstanding[view.device] > view.receive_maximum:
                    self._accuse(view.device, f"{outstanding[view.device]} in flight, {view.receive_maximum} allowed")
                self._compare_flights(view, connection)
            elif connection.is_over:
                self._views.remove(view)
        self._rests.append(now)

    def _compare_unknown(self, view: View) -> None:
        """Judge a connection that the log knows nothing of: it must have died with its broker, owed nothing."""
        if view.end is None:
            self._accuse(view.device, "the log does not know that it is connected")
            return
        self._views.remove(view)
        self._unbound[view.device].remove(view)
        if view.end != End.KILLED or (view.is_answered and view.is_persistent):
            self._accuse(view.device, "the log does not know of a connection")
        self._judge_lost(view, view.heard)

    def _compare(self, view: View, connection: Connection, *, is_complete: bool, now: int) -> None:
        heard = view.heard
        if view.end == End.KILLED:
            heard = [each for each in heard if each.number in self._numbers]
            self._judge_lost(view, [each for each in view.heard if each.number not in self._numbers])
            if view.heard[: len(heard)] != heard:
                lost = [each.number for each in view.heard if each.number not in self._numbers]
                self._accuse(view.device, f"{lost} are not in the log, and what came after them is")
        # QoS 0 that only the private session wants may overtake what waits; all the rest comes in one order.
        hasty = {due.number for due in connection.due if due.is_hasty}
        places: dict[int, int] = {}  # of what was heard, in what is due
        for is_hasty in (True, False):
            due = [(place, each) for place, each in enumerate(connection.due) if each.is_hasty is is_hasty]
            got = [(place, each) for place, each in enumerate(heard) if (each.number in hasty) is is_hasty]
            places |= self._walk(view, due, got, is_complete=is_complete, now=now)
        latest = -1
        for place, each in enumerate(heard):
            if place not in places:
                continue
            if each.number in hasty and places[place] < latest:
                self._accuse(view.device, f"{each.number} of QoS 0 was overtaken by what came later")
            latest = max(latest, places[place])
        if view.end != End.KILLED:  # what it subscribed to may have died with the broker
            self._compare_told(view, connection, is_complete=view.end is None)

    def _walk(
        self,
        view: View,
        due: Sequence[tuple[int, Due]],
        heard: Sequence[tuple[int, Heard]],
        *,
        is_complete: bool,
        now: int,
    ) -> dict[int, int]:
        """Hold what was heard against what was due, both in order; return where each of the former is in the latter."""
        places: dict[int, int] = {}
        at = 0
        for place, each in heard:
            begin = at
            while at < len(due) and due[at][1].number != each.number:
                at += 1
            if at == len(due):
                self._accuse(view.device, f"got {_said(each)}, and due was {_list(d for _, d in due[begin:])}")
                return places
            for _, skipped in due[begin:at]:
                if not _may_be_left_out(skipped, view, now):
                    self._accuse(view.device, f"got {_said(each)} without {_named(skipped)} before it")
            places[place] = due[at][0]
            self._compare_copy(view, due[at][1], each)
            self._compare_times(view, due[at][1], view.rests[place])
            at += 1
        if is_complete:
            for _, left in due[at:]:
                if not _may_be_left_out(left, view, now):
                    self._accuse(view.device, f"was not sent {_named(left)}")
        return places

    def _compare_copy(self, view: View, due: Due, heard: Heard) -> None:
        is_v5 = view.version == 5
        wanted = Heard(
            number=due.number,
            topic=due.topic,
            qos=due.qos,
            is_dup=due.is_again and due.qos > 0,  # of QoS 0 nothing is ever said to come again (MQTT-3.3.1-2)
            identifiers=_identifiers(due, heard) if is_v5 else (),
            expiry_s=heard.expiry_s if is_v5 and due.expires_at is not None else None,
        )
        if heard != wanted:
            self._accuse(view.device, f"got {_said(heard)}, and due was {_said(wanted)}")
        if is_v5 and due.expires_at is not None:
            published_at = self._notifications[due.seq].published_at
            most = -(-(due.expires_at - published_at) // _SECOND_US)
            if heard.expiry_s is None or not 1 <= heard.expiry_s <= most:
                self._accuse(view.device, f"{due.number} came with an expiry of {heard.expiry_s}, 1 to {most} allowed")

    def _compare_times(self, view: View, due: Due, rests: int) -> None:
        """Ask whether a copy came too late; it was sent after everybody had come to rest *rests* times."""
        if due.is_loose and rests > due.loose_since + 1:  # the log was read once more in between
            self._accuse(view.device, f"got {due.number} after it had left the sessions it was for")
        is_begun = due.qos == 2 and due.is_again  # which is brought to its end (rule 19)
        if due.expires_at is not None and rests and not is_begun and due.expires_at + _LATE_US < self._rests[rests - 1]:
            self._accuse(view.device, f"got {due.number} after it had expired")

    def _compare_told(self, view: View, connection: Connection, *, is_complete: bool) -> None:
        for session in {each.session for each in (*view.told, *connection.told)}:
            told = [each for each in view.told if each.session == session]
            due = [each for each in connection.told if each.session == session]
            if told != due[: len(told)] or (is_complete and len(told) < len(due)):
                shared = min(len(told), len(due))
                first = next((n for n in range(shared) if told[n] != due[n]), shared)
                got, wanted = (each[first:][:1] or "nothing" for each in (told, due))
                self._accuse(view.device, f"was told {got}, and due was {wanted}")

    def _compare_flights(self, view: View, connection: Connection) -> None:
        """Whatever the device has acknowledged is settled, and nothing else."""
        acknowledged = view.acknowledged.copy()
        heard = {each.number for each in view.heard}
        wanted: set[int] = set()
        unanswered: set[int] = set()  # also what it was sent for sessions that it has left since
        for due in connection.due:
            if due.qos and acknowledged[due.number] > 0:
                acknowledged[due.number] -= 1
                continue
            unanswered.add(due.number)
            if not due.qos and (due.number in heard or not due.has_receipt):
                continue  # it was sent, and that is all
            if due.sessions and not due.is_expired:
                wanted.add(due.number)
        found, left = self._flights_of(view.device)
        if found - wanted or left - unanswered:
            without = sorted((found - wanted) | (left - unanswered))
            self._accuse(view.device, f"{without} were acknowledged, and the log has no receipt")
        if wanted - found:
            self._accuse(view.device, f"{sorted(wanted - found)} were not acknowledged, and the log has a receipt")

    def _flights_of(self, device: str) -> tuple[set[int], set[int]]:
        """Return what a device has in flight by the log: in its sessions, and in those that it has left."""
        found: tuple[set[int], set[int]] = set(), set()
        for session, bearer, seq in self.hold.flights:
            if bearer == device:
                has_left = (session, device) not in self.hold.members
                found[has_left].add(number_of(self._notifications[seq].body))
        return found

    def _judge_lost(self, view: View, heard: Iterable[Heard]) -> None:
        """Judge what is not in the log: a broker that was killed may have said it, if it was owed to nobody."""
        for each in heard:
            if each.number in self._numbers:
                self._accuse(view.device, f"{each.number} came over a connection that the log does not know")
            elif self.is_owed(each.number):
                self._accuse(view.device, f"{each.number} was handed over before it was durable")

    # -- the end -------------------------------------------------------------------------------------------------------

    def settled(self) -> set[tuple[str, str | None, int, frozenset[Identity], Outcome, int, int | None]]:
        """Return what became of everything."""
        return {
            (s.session, s.device, s.seq, frozenset(s.subscriptions), s.outcome, s.decided_at, s.lapses_at)
            for s in self._settles
        }

    def _accuse(self, who: str, what: str) -> None:
        sentence = f"{who}: {what}"
        if sentence not in self.violations:
            self.violations.append(sentence)


def _is_blocked(view: View, connection: Connection) -> bool:
    """Tell whether a copy waits for the answer to an earlier one, and with it all that is behind.

    A device that leaves a session and joins it again gets what it has not acknowledged again, under the same packet
    identifier; and that is free only when it has answered.
    """
    due = Counter(each.number for each in connection.due if each.qos)
    heard = Counter(each.number for each in view.heard if each.qos)
    return any(heard[number] < count and view.acknowledged[number] < heard[number] for number, count in due.items())


def _may_be_left_out(due: Due, view: View, now: int) -> bool:
    if due.is_loose or due.is_expired:
        return True
    # Of QoS 0 no receipt says that it expired while it waited, and one that says so may have died with the broker.
    is_unsaid = due.qos == 0 or view.end == End.KILLED
    return is_unsaid and due.expires_at is not None and due.expires_at <= now


def _identifiers(due: Due, heard: Heard) -> tuple[int, ...]:
    """Return the identifiers that a copy has: those of *heard*, if it can have them."""
    certain = [each for session, found in due.identifiers.items() if session not in due.doubtful for each in found]
    possible = [tuple(sorted(certain))]
    for session in due.doubtful:
        possible += [tuple(sorted(each + due.identifiers.get(session, ()))) for each in possible]
    return heard.identifiers if heard.identifiers in possible else possible[-1]


def _topic(session: str, what: str) -> str:
    return f"$whimbrel/session/{session}/{what}"


def _tree(subscription: Subscription) -> dict[str, object]:
    """Return a subscription as docs/reference/sessions.md says it."""
    return {
        "topic": subscription.subject_filter,
        "name": subscription.name,
        "filter": subscription.filter_text,
        "ttl": None if subscription.ttl_us is None else subscription.ttl_us // _SECOND_US,
        "max": subscription.max_held,
        "qos": subscription.qos,
        "keys": [],
        "insecure": subscription.accept_insecure,
        "policy": subscription.policy,
        "near": None,
        "stale": None,
    }


def _said(heard: Heard) -> str:
    parts = [f"{heard.number} at QoS {heard.qos} on {heard.topic}"]
    parts += ["DUP"] * heard.is_dup + [f"identifiers {list(heard.identifiers)}"] * bool(heard.identifiers)
    parts += ["RETAIN"] * heard.is_retained + [f"expiry {heard.expiry_s}"] * (heard.expiry_s is not None)
    return " ".join(parts)


def _named(due: Due) -> str:
    return f"{due.number} at QoS {due.qos}{' DUP' * due.is_again} (seq {due.seq}, for {sorted(due.sessions)})"


def _list(due: Iterable[Due]) -> str:
    return ", ".join(map(_named, due)) or "nothing"
