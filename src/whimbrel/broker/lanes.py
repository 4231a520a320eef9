"""Lanes: publications that only plain MQTT sessions want; the hold is asked only where it must be.

Who wants a publication for its subject alone is remembered by subject. Whom content adds is another matter each time:
at QoS 0 they are remembered one by one, and else a lane is made for the occasion.
Two of three cases leave nothing behind in the hold. At QoS 0 a private session's hand-over is live only, and its own
receipt unless rule 16 of the hold says otherwise. And a session that ends with its connection is owed nothing after it:
what is on its way to it is in its client's queue, and the receipt is written down when it comes.
Rule: what may expire takes no lane: at QoS 0 each copy of it has a receipt.
Rule: who is on a lane is a matter of subscriptions alone; whether a client is here, and whether its session outlives
the connection, is looked at every time.
Rule: rights are not asked here. A client whose rights may refuse something that its private session subscribes to has
receipts for QoS 0 (``confirms``), so that the hold is asked; what waits for a client is asked about when it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from whimbrel.broker.clients import Client, Outgoing, Terms
from whimbrel.broker.messages import Message
from whimbrel.broker.routes import Found
from whimbrel.broker.sending import Sender
from whimbrel.broker.state import BrokerState
from whimbrel.hold.commands import Identity
from whimbrel.hold.private import client_of, is_shared
from whimbrel.model.subscription import Subscription
from whimbrel.mqtt.codec import publish_parts
from whimbrel.mqtt.packets import V5, V311

__all__ = ["Lane", "Lanes", "Others"]

Others: TypeAlias = dict[Client, tuple[int, ...]]
"""Clients who are to have a copy, and the identifiers of their subscriptions."""

_REMEMBERED = 100_000
_LENGTHS = 256


class _Seat(NamedTuple):
    """One session on a lane."""

    client: Client
    qos: int
    """The highest that was granted."""
    terms: Terms


class Lane:
    """A subject that only private sessions want; *found* is who they are."""

    __slots__ = ("_heads", "_identifiers", "_seats", "_subject", "confirms", "found", "subject")

    def __init__(self, subject: str, found: Found, seats: list[_Seat]) -> None:
        self._subject, self.subject = subject, subject.encode()
        self.found, self._seats = found, seats
        self._identifiers = {seat.client: seat.terms.identifiers for seat in seats}
        self._heads: dict[tuple[int, int], bytes] = {}
        self.confirms = any(seat.client.confirms for seat in seats)
        """Whether the hold must be asked at QoS 0 too, because some copy has a receipt."""

    def __bool__(self) -> bool:
        return bool(self._seats)

    @property
    def is_owed(self) -> bool:
        """Whether somebody could ask for what comes at QoS 1 or 2 after a crash."""
        for seat in self._seats:  # noqa: SIM110 # any() takes four times as long, and this is asked every time
            if seat.client.expiry_us and seat.qos:
                return True
        return False

    def send(self, payload: bytes, sender: Sender, others: Others | None = None) -> None:
        """Send everybody who is here a copy at QoS 0, and *others* too."""
        length = len(payload)
        old = new = b""
        skipped = 0
        everybody = self._identifiers
        if others:
            everybody = {**others, **everybody} if everybody else others
        for client, identifiers in everybody.items():
            link = client.link
            if link is None or link.closing is not None:
                skipped += 1
                continue
            if link.machine.version != V5:
                if not old:
                    old = self._head(V311, length) + payload
                data = old
            elif link.is_plain and not identifiers:
                if not new:
                    new = self._head(V5, length) + payload
                data = new
            else:
                sender.copy(link, Message.live(self._subject, payload), identifiers, 0, retain=False)
                skipped += 1
                continue
            client.sent += 1
            link.out.append(data)
            if not link.is_dirty:
                link.is_dirty = True
                sender.dirty.append(link)
        sender.counters.sent += len(everybody) - skipped

    def _head(self, version: int, length: int) -> bytes:
        """Return what a packet begins with, which is the same for all bodies of one length."""
        head = self._heads.get((version, length))
        if head is None:
            if len(self._heads) >= _LENGTHS:
                self._heads.clear()
            packet, _ = publish_parts(
                self.subject, bytes(length), qos=0, retain=False, dup=False, version=version, properties=b""
            )
            head = self._heads[version, length] = packet[: len(packet) - length]
        return head

    def pass_on(self, message: Message, sender: Sender, ready: list[Client], now: int) -> Found:
        """Hand a message over to everybody for whom the hold need not hold it; return for whom it must."""
        held: Found = []
        qos = message.qos
        for client, granted, terms in self._seats:
            link = client.link
            effective = granted if granted < qos else qos  # noqa: FURB136 # min() takes four times as long
            if not effective:
                if client.confirms:  # the copy has a receipt
                    held.append((terms.session, terms.identities))
                elif link is not None:
                    sender.copy(link, message, terms.identifiers, now, retain=message.retain and terms.keeps_retain)
            elif client.expiry_us:
                held.append((terms.session, terms.identities))
            elif link is not None:
                retain = message.retain and terms.keeps_retain
                client.put(Outgoing(message, effective, retain, False, terms.identifiers, (terms,), False))
                if not ready or ready[-1] is not client:
                    ready.append(client)
        return held


class Lanes:
    """The lanes by subject, as long as no subscription changes; there are none where a subject *is_refused*."""

    def __init__(self, state: BrokerState, is_refused: Callable[[str], object]) -> None:
        self._state, self._is_refused = state, is_refused
        self._epoch = -1
        self._lanes: dict[str, Lane | None] = {}
        self._plain: dict[int, Client] = {}
        """By handle of a subscription by content: whose it is, where that is all there is to know at QoS 0."""

    def get(self, subject: str) -> Lane | None:
        """Return the lane of those who want *subject* whatever its content; None if the hold has to be asked."""
        if self._state.routes.epoch != self._epoch:
            self._epoch = self._state.routes.epoch
            self._lanes.clear()
            self._plain.clear()
        try:
            return self._lanes[subject]
        except KeyError:
            if len(self._lanes) >= _REMEMBERED:
                self._lanes.clear()
            lane = self._lanes[subject] = self._lane(subject, self._state.routes.by_subject(subject))
            return lane

    def of(self, subject: str, found: Found) -> Lane | None:
        """Return the lane of all who were *found* to want a publication, perhaps for its content."""
        lane = self.get(subject)
        return lane if lane is None or lane.found is found else self._lane(subject, found)

    def others(self, handles: Iterable[int]) -> Others | None:
        """Return whom content adds at QoS 0, if the hold need not be asked; call ``get`` before."""
        try:
            return dict.fromkeys(map(self._plain.__getitem__, handles), ())
        except KeyError:
            return self._new_others(handles)

    def _new_others(self, handles: Iterable[int]) -> Others | None:
        state, found = self._state, list[Client]()
        if len(self._plain) >= _REMEMBERED:
            self._plain.clear()
        for handle in handles:
            session, identity = state.routes.whose(handle)
            client, subscription = state.clients.get(client_of(session) or ""), self._subscription(session, identity)
            if client is None or subscription is None or subscription.identifier is not None or client.confirms:
                return None
            self._plain[handle] = client
            found.append(client)
        return dict.fromkeys(found, ())

    def _lane(self, subject: str, found: Found) -> Lane | None:
        state = self._state
        if self._is_refused(subject):
            return None
        seats: list[_Seat] = []
        for session, identities in found:
            client = state.clients.get(client_of(session) or "")
            if client is None:
                return None
            if any(self._subscription(session, identity) is None for identity in identities):
                return None
            granted = state.granted(session, identities)
            seats.append(_Seat(client, granted, state.terms(session, identities, client.id)))
        return Lane(subject, found, seats)

    def _subscription(self, session: str, identity: Identity) -> Subscription | None:
        """Return a subscription that only asks for copies, to everybody who has it and of everything; else None."""
        found = self._state.hold.subscription(session, identity)
        if found is None or found.qos is None or found.no_local or found.max_held == 0 or is_shared(identity[0]):
            return None
        return found
