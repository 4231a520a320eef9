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

from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple, TypeAlias

from whimbrel.broker.clients import Client, Outgoing, Terms
from whimbrel.broker.messages import Message
from whimbrel.broker.routes import Found
from whimbrel.broker.sending import Sender
from whimbrel.broker.state import BrokerState
from whimbrel.hold.private import client_of
from whimbrel.hold.sessions import PIECE
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

    __slots__ = ("_heads", "_identifiers", "_seats", "_subject", "confirms", "found", "is_long", "subject")

    def __init__(self, subject: str, found: Found, seats: list[_Seat]) -> None:
        self._subject, self.subject = subject, subject.encode()
        self.found, self._seats = found, seats
        self._identifiers = {seat.client: seat.terms.identifiers for seat in seats}
        self._heads: dict[tuple[int, int], bytes] = {}
        self.is_long = len(seats) > PIECE
        """Whether handing over to everybody at QoS 1 is too much for one turn."""
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

    def passing_on(
        self, message: Message, sender: Sender, ready: list[Client], now: int
    ) -> Generator[None, None, Found]:
        """Do what ``pass_on`` does in pieces, yielding after each; return what it returns."""
        held: Found = []
        for start in range(0, len(self._seats), PIECE):
            if start:
                yield
            held += self.pass_on(message, sender, ready, now, self._seats[start : start + PIECE])
        return held

    def pass_on(
        self, message: Message, sender: Sender, ready: list[Client], now: int, seats: list[_Seat] | None = None
    ) -> Found:
        """Hand a message over to everybody for whom the hold need not hold it; return for whom it must."""
        held: Found = []
        qos = message.qos
        for client, granted, terms in self._seats if seats is None else seats:
            link = client.link
            effective = granted if granted < qos else qos  # noqa: FURB136 # min() takes four times as long
            if not effective:
                if client.confirms:  # the copy has a receipt
                    held.append((terms.session, terms.identities))
                elif link is not None:
                    retain = message.retain and terms.keeps_retain
                    if client.live:
                        client.put_behind(message, terms.identifiers, retain=retain)
                    else:
                        sender.copy(link, message, terms.identifiers, now, retain=retain)
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
        """Return the lane of those who want *subject* whatever its content; None if the hold has to be asked.

        One that is long is made by ``making``, and None until then.
        """
        self._keep_up()
        try:
            return self._lanes[subject]
        except KeyError:
            found = self._state.routes.by_subject(subject)
            return None if len(found) > PIECE else self._remember(subject, self._lane(subject, found))

    def making(self, subject: str, found: Found) -> Generator[None, None, Lane | None]:
        """Make a lane in pieces, yielding after each, for all who were *found* to want a publication, and return it."""
        self._keep_up()
        lane = self._lanes.get(subject)
        if lane is not None and lane.found is found:
            return lane
        epoch, seats = self._epoch, list[_Seat]()
        for start in range(0, len(found), PIECE):
            if start:
                yield
            some = self._seated(found[start : start + PIECE])
            if some is None:
                return None
            seats += some
        lane = None if self._is_refused(subject) else Lane(subject, found, seats)
        self._keep_up()
        if self._epoch == epoch and found is self._state.routes.by_subject(subject):
            self._remember(subject, lane)
        return lane

    def _keep_up(self) -> None:
        """Forget the lanes if a subscription has changed."""
        if self._state.routes.epoch != self._epoch:
            self._epoch = self._state.routes.epoch
            self._lanes.clear()
            self._plain.clear()

    def _remember(self, subject: str, lane: Lane | None) -> Lane | None:
        if len(self._lanes) >= _REMEMBERED:
            self._lanes.clear()
        self._lanes[subject] = lane
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
            client = state.clients.get(client_of(session) or "")
            if client is None or client.confirms:
                return None
            terms = state.terms(session, (identity,), client.id)
            if not terms.is_plain or terms.identifiers:
                return None
            self._plain[handle] = client
            found.append(client)
        return dict.fromkeys(found, ())

    def _lane(self, subject: str, found: Found) -> Lane | None:
        seats = None if self._is_refused(subject) else self._seated(found)
        return None if seats is None else Lane(subject, found, seats)

    def _seated(self, found: Found) -> list[_Seat] | None:
        """Return the seats of some who want a subject; None if the hold has to be asked about one of them."""
        state, seats = self._state, list[_Seat]()
        for session, identities in found:
            client = state.clients.get(client_of(session) or "")
            if client is None:
                return None
            terms = state.terms(session, identities, client.id)
            if not terms.is_plain:
                return None
            seats.append(_Seat(client, terms.granted, terms))
        return seats
