"""The broker's state: what a restart knows again, as a fold over the log of its node.

``apply`` takes in a fact, of this broker or of a log that is replayed: the same methods for both. The hold is the
heart; beside it stands what MQTT alone has: clients and how long their sessions outlive their connections, packet
identifiers of QoS 2, held and retained messages, wills.
Its view (``broker_view``) writes it as rows and restores it from them; ``hand_overs`` performs the hold's commands;
what a restart does not know is in ``volatile_state``.
Rule: nothing here answers a client.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator
from itertools import filterfalse

from whimbrel.broker.state.broker_view import OWN_KINDS, BrokerView
from whimbrel.broker.state.decisions import Decisions
from whimbrel.broker.state.hand_overs import HandOvers
from whimbrel.broker.state.places.fences import Crossing, Fences
from whimbrel.broker.state.places.retained_areas import RetainedAreas
from whimbrel.broker.state.retained import Retained
from whimbrel.broker.state.routes import Found, Routes
from whimbrel.broker.state.session_index import SessionIndex
from whimbrel.broker.state.terms_cache import TermsCache
from whimbrel.broker.state.volatile_state import VolatileState
from whimbrel.broker.state.wills import Wills
from whimbrel.broker.wire.clients import LiveClient
from whimbrel.broker.wire.notices import crossed
from whimbrel.hold.commands import Command, Identity
from whimbrel.hold.private import client_of, is_private, private_session
from whimbrel.hold.sessions import RETAINED, Hold
from whimbrel.hold.touched_rows import Key
from whimbrel.log.records import body_of
from whimbrel.model.facts import (
    Decided,
    Fact,
    InterestChanged,
    Outcome,
    PolicyChanged,
    PresenceChange,
    PresenceChanged,
    Receipt,
    Reported,
    SessionChange,
    SessionChanged,
    WillChanged,
    time_of,
)
from whimbrel.model.keys import OPEN
from whimbrel.model.notification import Notification
from whimbrel.model.place import Place
from whimbrel.model.proximity import Sighting
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.node.held import HeldNotifications
from whimbrel.node.memory import CLIENT_BYTES, LINK_BYTES, PLACE_BYTES, session_bytes
from whimbrel.node.publication import KeptNotification, packet_id_of, secured_of
from whimbrel.shape.variables import LinkStates

__all__ = ["BrokerState"]

_EXACTLY_ONCE = 2
_SYSTEM = "$SYS/"
_MOST_FORGOTTEN = 1_000  # places, in one turn
_MEMBERSHIP = frozenset({PresenceChange.JOINED, PresenceChange.LEFT})


class BrokerState:
    """Clients, sessions, subscriptions, wills, retained and held messages; *hold* and *routes* are new unless given."""

    def __init__(self, node: str, *, hold: Hold[KeptNotification] | None = None, routes: Routes | None = None) -> None:
        self.node = node
        self.routes = Routes() if routes is None else routes
        self.memory = self.routes.memory
        self.hold: Hold[KeptNotification] = Hold(node, heeds_places=True) if hold is None else hold
        self.decisions = Decisions(node, self.memory)
        self.held = HeldNotifications(self.memory, self.decisions.forget)
        self.hold.follow(self.held)
        self.routes.heard, self.routes.near.places = self.hold.places.heard, self.hold.places
        self.routes.near.named_sessions = lambda: filterfalse(is_private, self.hold.sessions())
        self.memory.hold = self.hold.tally
        self.clients: dict[str, LiveClient] = {}
        self.retained = Retained(self.memory)
        self.areas = RetainedAreas(lambda session: self._touch(("arrived", session)), self.memory)
        self.fences = Fences(self.hold.places.sightings)
        self.wills = Wills(lambda device: self._touch(("will", device)), self.memory)
        self.subscribed: dict[str, dict[Identity, int]] = {}
        """By session, its subscriptions, also those that wait for fsync, and how many each asks to be held."""
        self._links = LinkStates()
        """How good the links of devices were at their last reports: for a pipeline that begins at a checkpoint."""
        self.view = BrokerView(
            self.hold,
            self.memory,
            self.clients,
            self.retained,
            self.wills,
            self.decisions,
            self.areas,
            self._links,
        )
        self._touch = self.held.touch = self.view.touch
        self.volatile = VolatileState()
        self.terms = TermsCache(self.hold, self.clients)
        self.named = SessionIndex(self.hold)
        hand_overs = HandOvers(self.volatile, self.clients, self.terms, self.subscribed)
        # Its methods are the state's own: each call would cost a second one for everything handed over.
        self._perform, self.performing, self.tell = hand_overs.perform, hand_overs.performing, hand_overs.tell

    # -- facts -------------------------------------------------------------------------------------------------------

    def apply(self, fact: Fact) -> None:
        """Apply a fact, of this broker or of a log."""
        for _ in self.applying(fact):
            pass

    def applying(self, fact: Fact) -> Iterator[None]:
        """Apply a fact in pieces, yielding after each; until the last, the state is that of no number."""
        if isinstance(fact, Notification):
            message = KeptNotification.of(fact, body_of(fact)[0])
            self.apply_publication(message, self._match(message, fact), fact.packet_id or 0, now=fact.published_at)
            if fact.will_seq is not None:
                self.wills.published(fact.publisher, fact.will_seq)
        elif isinstance(fact, PresenceChanged):
            commands = yield from self.applying_presence(fact)
            yield from self.performing(commands, fact.changed_at)
        elif isinstance(fact, InterestChanged):
            self.apply_interest(fact)
        elif isinstance(fact, SessionChanged):
            commands = yield from self._applying_session(fact)
            yield from self.performing(commands, fact.changed_at)
        elif isinstance(fact, Receipt):
            if fact.notification.node == self.node:
                self._apply_receipt(fact)
        elif isinstance(fact, WillChanged):
            self.wills.apply(fact)
            self._perform(self.hold.apply(fact), fact.changed_at)
        else:
            self.take(fact)
            known = len(self.hold.places)
            if isinstance(fact, Reported):
                self._apply_report(fact)
            self._perform(self.hold.apply(fact), time_of(fact))
            self.memory.counted += (len(self.hold.places) - known) * PLACE_BYTES
            if isinstance(fact, Reported) and fact.state.place is not None:
                self.moved(fact.state.device, fact.state.place, fact.state.reported_at)

    def move(self, device: str, seq: int, place: Place, now: int) -> None:
        """Apply a report that only moves a device; the time of the hold is for the caller to advance."""
        if device not in self.hold.places:
            self.memory.counted += PLACE_BYTES
        self.hold.places.sighted(device, Sighting(seq, now, place))
        self.moved(device, place, now)

    def moved(self, device: str, place: Place, now: int) -> None:
        """Take in that a device has a place, which is noted already: its sessions may enter and leave areas."""
        if self.fences:
            self._cross(self.fences.moved(private_session(device), now), now)
        if self.areas:
            for session in (private_session(device), *self.hold.sessions_of(device)):
                arrived = [(session, message) for message in self.areas.entered(session, place)]
                if self.volatile.sender is not None:
                    self.volatile.arrived += arrived

    def _cross(self, crossings: Iterable[Crossing], now: int) -> None:
        """Tell clients that they entered or left areas that they named."""
        for device, name, is_inside in crossings:
            client = self.clients.get(device)
            if client is not None:
                self.tell(client, crossed(name, is_inside=is_inside), now)

    def note(self, fact: SessionChanged) -> None:
        """Let policies know that a client's session ends, as soon as the fact is appended."""
        if fact.change is SessionChange.DELETED and fact.device is not None:
            self.decisions.end(fact.device, fact.seq)

    def take(self, fact: Reported | PolicyChanged | Decided) -> None:
        """Let policies know of a fact, as soon as it is appended."""
        is_held = isinstance(fact, Decided) and self.hold.is_stored(fact.notification.seq)
        self.decisions.take(fact, is_held=is_held)
        if isinstance(fact, PolicyChanged):
            self.routes.forget()  # who may be served without the hold was worked out for the other case

    def _apply_report(self, fact: Reported) -> None:
        """Note how good a device's link was; unlike policies, only once the report is applied, as a replay does."""
        before = len(self._links.state)
        for device in self._links.take(fact.state):
            self._touch(("link", device))
        self.memory.counted += (len(self._links.state) - before) * LINK_BYTES

    def _match(self, message: KeptNotification, notification: Notification) -> Found:
        secured, routes, placing = secured_of(notification), self.routes, message.placing
        if not routes.has_content and secured is OPEN and placing is None:
            return routes.by_subject(message.subject)
        attributes = notification.attributes
        handles = routes.by_content([message.subject], [attributes], [secured])[0] if routes.has_content else []
        if placing is None:
            return routes.subscribers(message.subject, handles, secured)
        near = routes.near.wanting(message.subject, attributes, secured, placing, notification.published_at)
        return routes.subscribers_at(message.subject, handles, near, secured, placing, notification.published_at)

    def apply_publication(
        self,
        message: KeptNotification,
        found: Found,
        packet_id: int,
        *,
        now: int,
        received: Collection[str] = (),
    ) -> None:
        """Apply a publication that is accepted *now*, for the sessions that were *found* to want it.

        Devices that have *received* it were served without the hold (``lanes``).
        """
        self._receive(message, packet_id)
        commands = self.hold.published(message, found, received=received)
        if commands:
            self._perform(commands, now)
        if message.retain:
            self._retain(message, found)

    def applying_publication(
        self, message: KeptNotification, found: Found, packet_id: int, *, now: int, received: Collection[str]
    ) -> Iterator[None]:
        """Do what ``apply_publication`` does in pieces, yielding after each."""
        self._receive(message, packet_id)
        commands = yield from self.hold.publishing(message, found, received=received)
        yield from self.performing(commands, now)
        if message.retain:
            self._retain(message, found)

    def _receive(self, message: KeptNotification, packet_id: int) -> None:
        """Note the packet identifier of a publication of QoS 2, which may come again."""
        publisher = self.clients.get(message.publisher or "") if packet_id else None
        if publisher is not None:
            publisher.received.add(packet_id)
            publisher.recount()
            self._touch(("client", publisher.id))

    def _retain(self, message: KeptNotification, found: Found) -> None:
        self._touch(("retained", message.subject))
        had_source = message.subject in self.retained.sources
        if message.payload:
            client = self.clients.get(message.publisher or "")
            source = self.wills.owner_of(message.publisher or "") if client is None else client.owner
            self.retained.put(message, source)
            if source is not None or had_source:
                self._touch(("source", message.subject))
            if self.areas or message.placing is not None:
                self.areas.put(message)
                for session, _ in found if message.placing is not None else ():
                    self.areas.see(session, message)  # it comes, or came, as it was published
        else:
            self.retained.remove(message.subject)
            self.areas.remove(message.subject)
            if had_source:
                self._touch(("source", message.subject))

    def applying_presence(self, fact: PresenceChanged) -> Generator[None, None, list[Command]]:
        """Apply a change of a device's presence in pieces; return the hold's commands."""
        change = fact.change
        self._touch(("client", fact.device))
        if fact.session is not None and not is_private(fact.session):
            self.routes.forget()  # who is in a named session has one copy for all its sessions
        if change is PresenceChange.JOINED and fact.session is not None and is_private(fact.session):
            client = self.clients.get(fact.device)
            if client is None:
                client = self.clients[fact.device] = LiveClient(fact.device, fact.session, self.memory)
                self.memory.counted += CLIENT_BYTES
            client.expiry_us = fact.session_expiry_us or 0
            client.disconnected_at = None
            self.wills.present(fact)
            self._let_confirm(client, is_confirming=bool(fact.confirms))
            client.owner = fact.owner
            client.is_unclaimed = fact.owner is None and fact.confirms is None  # from before both were written down
        client = self.clients.get(fact.device)
        if client is not None:
            if change is PresenceChange.LEFT:
                client.withdraw(fact.session or "", is_deleted=False)
            if change is PresenceChange.DISCONNECTED:
                self.wills.present(fact)
                client.land()
                client.disconnected_at = fact.changed_at
                if fact.session_expiry_us is not None:
                    client.expiry_us = fact.session_expiry_us
            elif change is PresenceChange.RECEIPTS:
                self._let_confirm(client, is_confirming=bool(fact.confirms))
            elif change is PresenceChange.RELEASED:
                client.received.discard(fact.packet_id or 0)
                client.recount()
            elif change is PresenceChange.COMPLETED:
                client.releasing.discard(fact.packet_id or 0)
                client.recount()
        before = session_bytes(self.hold, fact.session)
        commands = yield from self.hold.applying(fact)
        self.memory.counted += session_bytes(self.hold, fact.session) - before
        if fact.session is not None and change in _MEMBERSHIP:
            is_named = not is_private(fact.session)
            self.routes.near.members_changed(fact.session, is_named=is_named)
            if is_named:
                self.named.note_member(fact.device, fact.session)
        return commands

    def _let_confirm(self, client: LiveClient, *, is_confirming: bool) -> None:
        """Let the QoS 0 hand-overs of a client's private session have receipts, or none."""
        if client.confirms is not is_confirming:
            client.confirms = is_confirming
            self.routes.forget()  # who may be served without the hold was worked out for the other case

    def apply_interest(self, fact: InterestChanged) -> None:
        """Apply a change of a subscription."""
        subscription = fact.subscription
        commands = self.hold.apply(fact)
        if fact.change is InterestChange.REMOVED:
            identity = (subscription.subject_filter, subscription.name)
            self.routes.remove(subscription.session, identity)
            self.fences.remove(subscription.session, identity)
            self.subscribed.get(subscription.session, {}).pop(identity, None)
        else:
            self._subscribe(subscription)
            self._cross(self.fences.put(subscription, fact.changed_at), fact.changed_at)
            if self.areas:  # what is retained where the session is comes with SUBSCRIBE
                for each in self.hold.places.sightings(subscription.session):
                    for _ in self.areas.entered(subscription.session, each.place):
                        pass
        self.terms.forget(subscription.session)
        self._perform(commands, fact.changed_at, changer=fact.device)

    def _subscribe(self, subscription: Subscription) -> None:
        self.routes.put(subscription)
        identity = (subscription.subject_filter, subscription.name)
        self.subscribed.setdefault(subscription.session, {})[identity] = subscription.max_held or 0

    def _applying_session(self, fact: SessionChanged) -> Generator[None, None, list[Command]]:
        """Apply a change of a session in pieces; return the hold's commands."""
        before = session_bytes(self.hold, fact.session)
        commands = yield from self._applying_to_session(fact)
        self.memory.counted += session_bytes(self.hold, fact.session) - before
        return commands

    def _applying_to_session(self, fact: SessionChanged) -> Generator[None, None, list[Command]]:
        is_release = fact.access in {None, self.hold.access(fact.session)}  # else it is marked (``SessionMoves``)
        if fact.change is SessionChange.ACCESS and is_private(fact.session) and is_release:
            released = self.clients.get(client_of(fact.session) or "")
            if released is not None:
                released.owner, released.is_unclaimed = None, True
                self._touch(("client", released.id))
        if fact.change is SessionChange.DELETED:
            for subscription in self.hold.subscriptions(fact.session):
                self.routes.remove(fact.session, (subscription.subject_filter, subscription.name))
            self.terms.forget(fact.session)
            self.subscribed.pop(fact.session, None)
            self.fences.end(fact.session)
            self.areas.end(fact.session)
            if not is_private(fact.session):
                for device in self.hold.members(fact.session):
                    if (member := self.clients.get(device)) is not None:
                        member.withdraw(fact.session, is_deleted=True)
            elif fact.device is not None:
                self.note(fact)
                gone = self.clients.pop(fact.device, None)
                if gone is not None:
                    self.memory.counted -= CLIENT_BYTES
                    gone.forget_identifiers()
                    gone.end()
                self._touch(("client", fact.device))
        is_named = not is_private(fact.session)
        devices = tuple(self.hold.members(fact.session)) if is_named else ()
        commands = yield from self.hold.applying(fact)
        if fact.change is SessionChange.DELETED:
            self.routes.near.members_changed(fact.session, is_named=is_named)
            self.named.note_end(fact.session, devices)
        elif is_named:
            self.named.note_access(fact.session)
        return commands

    def settle(self, at: int, session: str, device: str, seq: int, outcome: Outcome, *, qos: int | None) -> None:
        """Apply the receipt of a copy that the hold has in flight, sent with *qos*; the hold knows it if None."""
        if outcome is Outcome.DELIVERED:
            if qos is None:
                qos = self.hold.flight_qos(session, device, seq)
            if qos == _EXACTLY_ONCE:
                self.await_completion(device, seq)
        self._perform(self.hold.confirmed(at, session, device, seq, outcome), at)

    def _apply_receipt(self, fact: Receipt) -> None:
        """Apply a receipt from a log that is replayed."""
        seq = fact.notification.seq
        self.decisions.received(fact.device, seq)
        if fact.via == RETAINED:  # it was sent beside the hold
            if fact.outcome is Outcome.DELIVERED and self._granted(fact) == _EXACTLY_ONCE:
                self.await_completion(fact.device, seq)
            self.tick(fact.handed_at)
        else:
            self.settle(fact.handed_at, fact.session, fact.device, seq, fact.outcome, qos=None)

    def await_completion(self, device: str, seq: int) -> None:
        """Note that a device has received a copy of QoS 2: PUBREL is repeated until PUBCOMP."""
        client = self.clients.get(device)
        if client is not None:
            client.releasing.add(packet_id_of(seq))
            client.recount()
            self._touch(("client", device))

    def _granted(self, fact: Receipt) -> int:
        """Return the highest QoS that a retained message may have been sent with: it was sent beside the hold."""
        granted = [
            subscription.qos or 0
            for each in fact.subscriptions
            if (subscription := self.hold.subscription(fact.session, (each.subject_filter, each.name))) is not None
        ]
        return max(granted, default=_EXACTLY_ONCE)  # it may have been sent at less: one PUBREL more does no harm

    def tick(self, now: int) -> None:
        """Let time pass to *now*."""
        self._perform(self.hold.tick(now), now)
        if self.fences:
            self._cross(self.fences.tick(now), now)

    def forget_places(self, now: int) -> None:
        """Forget some of the places that no subscription may count any more."""
        self.memory.counted -= self.hold.places.forget_old(now, most=_MOST_FORGOTTEN) * PLACE_BYTES

    # -- questions ---------------------------------------------------------------------------------------------------

    def is_retained(self, message: KeptNotification) -> bool:
        """Return whether *message* is what its subject retains, and not one that it replaced."""
        return self.retained_for(message.subject).get(message.subject) is message

    def retained_for(self, subject: str) -> Retained:
        """Return where messages of a subject, or of a subject filter, are retained."""
        return self.volatile.system if subject.startswith(_SYSTEM) else self.retained

    def is_heard(self, message: KeptNotification, subscription: Subscription, now: int) -> bool:
        """Tell whether places let a subscription have a message *now*."""
        placing = message.placing
        if subscription.near is None and (placing is None or placing.radius_m is None):
            return True
        place, area = (None, None) if placing is None else (placing.place, placing.area)
        asked = (subscription.session, ((subscription.subject_filter, subscription.name),))
        return bool(self.hold.places.heard([asked], place=place, area=area, at=now))

    def is_owed(self, found: Found) -> bool:
        """Tell whether any of these sessions could ask for a QoS 1 or 2 publication after a crash."""
        for session, identities in found:
            client = self.clients.get(client_of(session) or "")
            if client is None or (client.expiry_us and self.terms.granted(session, identities)):
                return True
        return False

    def keep_up(self, found: Found) -> bool:
        """Tell whether each of these sessions is private, its client is connected, and nothing waits for it."""
        for session, _ in found:
            client = self.clients.get(client_of(session) or "")
            if client is None or client.link is None or client.link.is_lagging or client.queue or client.live:
                return False
        return True

    def lapsed(self, now: int) -> list[LiveClient]:
        """Return the clients whose sessions have expired."""
        return [
            client
            for client in self.clients.values()
            if client.link is None
            and client.disconnected_at is not None
            and client.disconnected_at + client.expiry_us <= now
        ]

    # -- restoring ---------------------------------------------------------------------------------------------------

    @classmethod
    def restore(cls, node: str, rows: Iterable[tuple[Key, bytes]], *, routes: Routes | None = None) -> BrokerState:
        """Return the state that a view has the *rows* of."""
        own: list[tuple[Key, bytes]] = []

        def of_the_hold() -> Iterator[tuple[Key, bytes]]:
            for key, value in rows:
                if key[0] in OWN_KINDS:
                    own.append((key, value))
                else:
                    yield key, value

        state = cls(node, hold=Hold.restore(node, of_the_hold(), heeds_places=True), routes=routes)
        state.memory.counted += sum(session_bytes(state.hold, session) for session in state.hold.sessions())
        state.memory.counted += len(state.hold.places) * PLACE_BYTES
        state.view.restore(node, own)
        state.memory.counted += len(state._links.state) * LINK_BYTES
        for session in state.hold.sessions():
            for subscription in state.hold.subscriptions(session):
                state._subscribe(subscription)
                state._cross(state.fences.put(subscription, state.hold.now), state.hold.now)
        for message in state.retained:
            if message.placing is not None:
                state.areas.put(message)
        return state
