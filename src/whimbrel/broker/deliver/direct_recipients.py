"""Direct recipients: the precomputed recipients of a topic, for publications that only private sessions receive.

The list of these recipients is called a *lane*: a fast path past the hold (the queues of all sessions), which saves
most of the work for a publication. Sessions whose subscriptions match by topic alone are cached per topic. Sessions
that match by content differ from publication to publication: at QoS 0 they are cached one by one, otherwise a lane is
built for that publication only.
Some recipients only the hold can serve: named sessions and the devices in them, shares, subscriptions with No Local,
and devices and subscriptions with a policy. They are the *rest* of a lane and are left to the hold.
Two kinds of delivery store nothing in the hold. At QoS 0 a delivery to a private session is live only, and counts as
delivered when sent unless rule 16 of the hold requires a receipt. A session that ends with its connection gets its
copies in its client's queue alone, and their receipts are written when the client acknowledges them. A private session
that outlives its connection is left to the hold at QoS 1 and 2.
Rule: a publication that can expire takes no lane, since at QoS 0 each of its copies has a receipt.
Rule: the members of a lane depend on subscriptions alone; whether a client is connected, and whether its session
outlives the connection, is checked for each publication.
Rule: rights are not checked here. A client whose rights may refuse a message that its private session subscribes to has
receipts for QoS 0 (``confirms``), so it is left to the hold; its queued messages are checked when they are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.remembered import Remembered
from whimbrel.broker.state.routes import Found
from whimbrel.broker.wire.clients import HandOverOptions, LiveClient, Outgoing
from whimbrel.broker.wire.sender import Sender
from whimbrel.hold.commands import Identity
from whimbrel.hold.private import client_of, is_private
from whimbrel.hold.sessions import PIECE
from whimbrel.model.keys import OPEN
from whimbrel.mqtt.codec import publish_parts
from whimbrel.mqtt.packets import V5, V311
from whimbrel.node.publication import LONG, KeptNotification

__all__ = ["DirectRecipients", "DirectRecipientsCache", "Others", "is_plain"]

Others: TypeAlias = dict[LiveClient, tuple[int, ...]]
"""Clients that get a copy, each with the identifiers of its subscriptions."""

_BY_SESSION = itemgetter(0)
_REMEMBERED = 100_000
_SEAT_BYTES = 750
"""Approximate memory of one recipient in a lane, in bytes."""
_LENGTHS = 256


class _Recipient(NamedTuple):
    """One recipient of a lane (the list of a topic's direct recipients): a private session with its client."""

    client: LiveClient
    qos: int
    """The highest QoS granted to its matching subscriptions."""
    terms: HandOverOptions


class DirectRecipients:
    """Lane: the recipients of a topic, split into those that are served directly and those left to the hold.

    *found* are all sessions with their matching subscriptions, *rest* the sessions that are left to the hold.
    """

    __slots__ = (
        "_devices",
        "_heads",
        "_identifiers",
        "_is_held",
        "_seats",
        "_subject",
        "confirms",
        "found",
        "is_long",
        "rest",
        "subject",
    )

    def __init__(self, subject: str, found: Found, seats: list[_Recipient], rest: Found) -> None:
        self._subject, self.subject = subject, subject.encode()
        self.found, self._seats, self.rest = found, seats, rest
        self._identifiers = {seat.client: seat.terms.identifiers for seat in seats}
        self._devices = frozenset(seat.client.id for seat in seats)
        self._is_held = any(not is_private(session) for session, _ in rest)
        """Whether the rest contains a named session. A device that joins that session while it holds the publication
        must not get it twice, so the hold is told who received it, and handles all recipients that have yet to
        confirm."""
        self._heads: dict[tuple[int, int], bytes] = {}
        self.is_long = len(seats) > PIECE
        """Whether serving all recipients at QoS 1 takes more than one turn of the event loop."""
        self.confirms = any(seat.client.confirms for seat in seats)
        """Whether the hold is needed at QoS 0 too, because some client's copy has a receipt."""

    def __bool__(self) -> bool:
        return bool(self._seats)

    @property
    def is_owed(self) -> bool:
        """Whether the session of a direct recipient outlives its connection and was granted QoS 1 or 2.

        Messages at QoS 1 and 2 must then be durable.
        """
        for seat in self._seats:  # noqa: SIM110 # any() takes four times as long, and this is asked every time
            if seat.client.expiry_us and seat.qos:
                return True
        return False

    def send(self, payload: bytes, sender: Sender, others: Others | None = None) -> Collection[str]:
        """Send a QoS 0 copy to each connected recipient; return the client identifiers of those that have it.

        *others* are more recipients, found by content, with their subscription identifiers.
        """
        length = len(payload)
        old = new = b""
        skipped = absent = 0
        receivers = self._identifiers
        if others:
            receivers = {**others, **receivers} if receivers else others
        for client, identifiers in receivers.items():
            link = client.link
            if link is None or link.closing is not None:
                skipped += 1
                absent += link is None
                continue
            if link.is_plain and link.machine.version != V5:
                if not old:
                    old = self._head(V311, length) + payload
                data = old
            elif link.is_plain and not identifiers:
                if not new:
                    new = self._head(V5, length) + payload
                data = new
            else:
                sender.live(link, KeptNotification.live(self._subject, payload), identifiers, 0, retain=False)
                skipped += 1
                continue
            client.sent += 1
            link.out.append(data)
            if not link.is_dirty:
                link.is_dirty = True
                sender.dirty.append(link)
        sender.counters.sent += len(receivers) - skipped
        return self._devices if not absent else {seat.client.id for seat in self._seats if seat.client.link is not None}

    def _head(self, version: int, length: int) -> bytes:
        """Return the bytes of a PUBLISH packet before its body; they are cached per length of the body."""
        head = self._heads.get((version, length))
        if head is None:
            if len(self._heads) >= _LENGTHS:
                self._heads.clear()
            packet, _ = publish_parts(
                self.subject, bytes(length), qos=0, retain=False, dup=False, version=version, properties=b""
            )
            head = self._heads[version, length] = packet[: len(packet) - length]
        return head

    def passing_on(
        self, message: KeptNotification, sender: Sender, ready: list[LiveClient], now: int
    ) -> Generator[None, None, tuple[Found, list[str]]]:
        """Do the work of ``pass_on`` in steps, yielding between them; return the same result."""
        held: Found = []
        received: list[str] = []
        for start in range(0, len(self._seats), PIECE):
            if start:
                yield
            held += self._pass_on(self._seats[start : start + PIECE], message, sender, ready, now, received)
        return self._with_rest(held), received

    def pass_on(
        self, message: KeptNotification, sender: Sender, ready: list[LiveClient], now: int
    ) -> tuple[Found, list[str]]:
        """Deliver a message to each direct recipient that does not need the hold (queues of all sessions).

        Return the recipients left to the hold, and the devices that the hold must count as having the message.
        """
        received: list[str] = []
        held = self._pass_on(self._seats, message, sender, ready, now, received)
        return self._with_rest(held), received

    def _with_rest(self, held: Found) -> Found:
        """Return the recipients left to the hold (queues of all sessions): *held* and the rest, sorted by session."""
        return sorted(held + self.rest, key=_BY_SESSION) if held and self.rest else held or self.rest

    def _pass_on(
        self,
        seats: list[_Recipient],
        message: KeptNotification,
        sender: Sender,
        ready: list[LiveClient],
        now: int,
        received: list[str],
    ) -> Found:
        held: Found = []
        qos = message.qos
        if qos and len(message.record) > LONG:
            message.keep()  # copies may wait for acknowledgements
        for client, granted, terms in seats:
            link = client.link
            effective = granted if granted < qos else qos  # noqa: FURB136 # min() takes four times as long
            if not effective:
                if client.confirms:  # deliveries to this client have receipts
                    held.append((terms.session, terms.identities))
                elif link is not None:
                    retain = message.retain and terms.keeps_retain
                    if client.live:
                        client.put_behind(message, terms.identifiers, retain=retain)
                    else:
                        sender.live(link, message, terms.identifiers, now, retain=retain)
                    if self._is_held:
                        received.append(client.id)
            elif client.expiry_us or self._is_held:
                held.append((terms.session, terms.identities))
            elif link is not None:
                retain = message.retain and terms.keeps_retain
                client.put(Outgoing(message, effective, retain, False, terms.identifiers, (terms,), False))
                if not ready or ready[-1] is not client:
                    ready.append(client)
        return held


class DirectRecipientsCache:
    """Cache of lanes (lists of direct recipients) per topic, valid until the routes (matching index) change.

    A topic for which *is_refused* returns a reason has no lane.
    """

    def __init__(self, state: BrokerState, is_refused: Callable[[str], object]) -> None:
        self._state, self._is_refused = state, is_refused
        self._epoch = -1
        self._lanes = Remembered[DirectRecipients | None](state.memory, item_bytes=_SEAT_BYTES)
        self._plain: dict[int, LiveClient] = {}
        """Client of each subscription whose QoS 0 copies need no delivery options, by the subscription's handle in the
        matcher."""

    def get(self, subject: str) -> DirectRecipients | None:
        """Return the lane (list of direct recipients) of the topic *subject*, without subscribers found by content.

        Return None if publishing to the topic is refused, or if a long lane is not cached: ``making`` builds such a
        lane.
        """
        self._keep_up()
        try:
            return self._lanes[subject]
        except KeyError:
            found = self._state.routes.by_subject(subject)
            return None if len(found) > PIECE else self._remember(subject, self._lane(subject, found))

    def making(self, subject: str, found: Found) -> Generator[None, None, DirectRecipients | None]:
        """Build the lane (direct recipients) of a publication from the sessions *found*; yield after each step."""
        self._keep_up()
        lane = self._lanes.get(subject)
        if lane is not None and lane.found is found:
            return lane
        epoch, seats, rest = self._epoch, list[_Recipient](), list[tuple[str, tuple[Identity, ...]]]()
        members = self._members(found)
        for start in range(0, len(found), PIECE):
            if start:
                yield
            self._seat(found[start : start + PIECE], members, seats, rest)
        lane = None if self._is_refused(subject) else DirectRecipients(subject, found, seats, rest)
        self._keep_up()
        if self._epoch == epoch and found is self._state.routes.by_subject(subject):
            self._remember(subject, lane)
        return lane

    def _keep_up(self) -> None:
        """Clear the cached lanes (lists of direct recipients) if the routes (matching index) have changed."""
        if self._state.routes.epoch != self._epoch:
            self._epoch = self._state.routes.epoch
            self._lanes.clear()
            self._plain.clear()

    def _remember(self, subject: str, lane: DirectRecipients | None) -> DirectRecipients | None:
        self._lanes.put(subject, lane, 0 if lane is None else len(lane.found))
        return lane

    def of(self, subject: str, found: Found) -> DirectRecipients | None:
        """Return the lane (direct recipients) for the sessions *found*, including sessions that match by content."""
        lane = self.get(subject)
        return lane if lane is None or lane.found is found else self._lane(subject, found)

    def others(self, handles: Iterable[int]) -> Others | None:
        """Return the QoS 0 recipients of subscriptions with a content filter, or None if one of them needs the hold.

        *handles* are the matcher's indices of these subscriptions. The caller must call ``get`` first, which clears
        outdated entries.
        """
        try:
            return dict.fromkeys(map(self._plain.__getitem__, handles), ())
        except KeyError:
            return self._new_others(handles)

    def _new_others(self, handles: Iterable[int]) -> Others | None:
        state, found = self._state, list[LiveClient]()
        if len(self._plain) >= _REMEMBERED:
            self._plain.clear()
        for handle in handles:
            session, identity = state.routes.whose(handle)
            client = state.clients.get(client_of(session) or "")
            if client is None or client.confirms or state.decisions.shape.chosen(client.id) is not None:
                return None
            terms = state.terms.get(session, (identity,), client.id)
            if not terms.is_plain or terms.identifiers:
                return None
            self._plain[handle] = client
            found.append(client)
        return dict.fromkeys(found, ())

    def _lane(self, subject: str, found: Found) -> DirectRecipients | None:
        if self._is_refused(subject):
            return None
        seats, rest = list[_Recipient](), list[tuple[str, tuple[Identity, ...]]]()
        self._seat(found, self._members(found), seats, rest)
        return DirectRecipients(subject, found, seats, rest)

    def _members(self, found: Found) -> set[str]:
        """Return the devices in the named sessions of *found*: each gets one copy for all its sessions."""
        hold = self._state.hold
        return {device for session, _ in found if not is_private(session) for device in hold.members(session)}

    def _seat(self, found: Found, members: set[str], seats: list[_Recipient], rest: Found) -> None:
        """Add each session of *found* to *seats* (direct recipients) or, if the hold must serve it, to *rest*."""
        state = self._state
        for session, identities in found:
            client = state.clients.get(client_of(session) or "")
            if client is not None and client.id not in members and state.decisions.shape.chosen(client.id) is None:
                terms = state.terms.get(session, identities, client.id)
                if terms.is_plain:
                    seats.append(_Recipient(client, terms.granted, terms))
                    continue
            rest.append((session, identities))


def is_plain(message: KeptNotification) -> bool:
    """Return whether direct recipients may be used: the publication has no keys, expiry, deadline or place."""
    return (
        message.secured is OPEN
        and message.expires_at is None
        and (message.placing is None and message.deadline_at is None)
    )
