"""Lanes: subjects that only plain MQTT sessions want, for their subject alone; the hold is asked only where it must be.

Two of three cases leave nothing behind in the hold. At QoS 0 a private session's hand-over is live only and its own
receipt. And a session that ends with its connection is owed nothing after it: what is on its way to it is in its
client's queue, and the receipt is written down when it comes.
Rule: who is on a lane is a matter of subscriptions alone; whether a client is here, and whether its session outlives
the connection, is looked at every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from whimbrel.broker.clients import Client, Outgoing, Terms
from whimbrel.broker.messages import Message
from whimbrel.broker.routes import Found
from whimbrel.broker.sending import Sender
from whimbrel.broker.state import BrokerState
from whimbrel.hold.private import client_of, is_shared
from whimbrel.mqtt.codec import publish_parts
from whimbrel.mqtt.packets import V5, V311

__all__ = ["Lane", "Lanes"]

_REMEMBERED = 100_000
_LENGTHS = 256


class _Seat(NamedTuple):
    """One session on a lane."""

    client: Client
    qos: int
    """The highest that was granted."""
    terms: Terms


class Lane:
    """A subject that only private sessions want, by the subject alone."""

    __slots__ = ("_heads", "_seats", "_subject", "subject")

    def __init__(self, subject: str, seats: list[_Seat]) -> None:
        self._subject, self.subject = subject, subject.encode()
        self._seats = seats
        self._heads: dict[tuple[int, int], bytes] = {}

    def __bool__(self) -> bool:
        return bool(self._seats)

    @property
    def is_owed(self) -> bool:
        """Whether somebody could ask for what comes at QoS 1 or 2 after a crash."""
        for seat in self._seats:  # noqa: SIM110 # any() takes four times as long, and this is asked every time
            if seat.client.expiry_us and seat.qos:
                return True
        return False

    def send(self, payload: bytes, sender: Sender) -> None:
        """Send everybody who is here a copy at QoS 0."""
        length = len(payload)
        old = new = b""
        sent = 0
        for client, _, terms in self._seats:
            link = client.link
            if link is None or link.closing is not None:
                continue
            if link.machine.version != V5:
                if not old:
                    old = self._head(V311, length) + payload
                data = old
            elif link.is_plain and not terms.identifiers:
                if not new:
                    new = self._head(V5, length) + payload
                data = new
            else:
                sender.copy(link, Message.live(self._subject, payload), terms.identifiers, 0, retain=False)
                continue
            sent += 1
            link.out.append(data)
            if not link.is_dirty:
                link.is_dirty = True
                sender.dirty.append(link)
        sender.counters.sent += sent

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
                if link is not None:
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

    def get(self, subject: str) -> Lane | None:
        """Return the lane of *subject*; None if the hold has to be asked."""
        if self._state.routes.epoch != self._epoch:
            self._epoch = self._state.routes.epoch
            self._lanes.clear()
        try:
            return self._lanes[subject]
        except KeyError:
            if len(self._lanes) >= _REMEMBERED:
                self._lanes.clear()
            lane = self._lanes[subject] = self._lane(subject)
            return lane

    def _lane(self, subject: str) -> Lane | None:
        state = self._state
        if state.routes.has_content or self._is_refused(subject):
            return None
        seats: list[_Seat] = []
        for session, identities in state.routes.by_subject(subject):
            client = state.clients.get(client_of(session) or "")
            if client is None:
                return None
            granted = 0
            for identity in identities:
                subscription = state.hold.subscription(session, identity)
                if subscription is None or subscription.qos is None:
                    return None
                if subscription.no_local or subscription.max_held == 0 or is_shared(identity[0]):
                    return None
                granted = max(granted, subscription.qos)
            seats.append(_Seat(client, granted, state.terms(session, identities, client.id)))
        return Lane(subject, seats)
