"""The broker around a node: it finds who wants a publication, lets the node apply facts, and performs its commands.

Beside the node stands what follows from its state: routes, the terms of deliveries, indexes. What a restart does not
know is in ``volatile_state``.
Rule: a fact of this broker and one of a log that is replayed go through the same methods. While a log is replayed no
client is connected, so that of the commands nothing is seen.
Rule: nothing here answers a client.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import filterfalse

from whimbrel.broker.limits.memory import Memory
from whimbrel.broker.state.hand_overs import HandOvers
from whimbrel.broker.state.routes import Found, Routes
from whimbrel.broker.state.session_index import SessionIndex
from whimbrel.broker.state.terms_cache import TermsCache
from whimbrel.broker.state.volatile_state import VolatileState
from whimbrel.broker.wire.clients import LiveClient
from whimbrel.hold.commands import Identity
from whimbrel.hold.private import PRIVATE, client_of, is_private
from whimbrel.hold.rows import KINDS as HOLD_KINDS
from whimbrel.hold.sessions import Hold
from whimbrel.hold.touched_rows import Key
from whimbrel.log.records import body_of
from whimbrel.model.facts import Fact, SessionChanged, time_of
from whimbrel.model.keys import OPEN
from whimbrel.model.notification import Notification
from whimbrel.model.place import Place
from whimbrel.model.subscription import Subscription
from whimbrel.node.node import Node
from whimbrel.node.parts import NodeCommand, NodeListener
from whimbrel.node.policies import PolicyFact
from whimbrel.node.publication import KeptNotification, secured_of
from whimbrel.node.retained import Retained
from whimbrel.node.wills import LeftWill

__all__ = ["BrokerState"]

_SYSTEM = "$SYS/"


class BrokerState(NodeListener[LiveClient]):
    """The node *name* of a broker; *hold* and *routes* are new unless given."""

    def __init__(self, name: str, *, hold: Hold[KeptNotification] | None = None, routes: Routes | None = None) -> None:
        self.routes = Routes() if routes is None else routes
        self.memory: Memory = self.routes.memory
        self.node: Node[LiveClient] = Node(name, LiveClient, memory=self.memory, hold=hold)
        self.node.listener = self
        node = self.node
        self.hold, self.held, self.clients, self.view = node.hold, node.held, node.clients.by_id, node.rows
        self.retained, self.areas, self.wills, self.decisions = node.retained, node.areas, node.wills, node.policies
        self.routes.heard, self.routes.near.places = self.hold.places.heard, self.hold.places
        self.routes.near.named_sessions = lambda: filterfalse(is_private, self.hold.sessions())
        self.memory.hold = self.hold.tally
        self.subscribed_to: dict[str, dict[Identity, int]] = {}
        """By session, its subscriptions, also those that wait for fsync, and how many each asks to be held."""
        self.volatile = VolatileState()
        self.terms = TermsCache(self.hold, self.clients)
        self.named = SessionIndex(self.hold)
        hand_overs = HandOvers(self.volatile, self.clients, self.terms, self.subscribed_to)
        # Its methods are the state's own: each call would cost a second one for every delivery.
        self.perform, self.performing, self.tell = hand_overs.perform, hand_overs.performing, hand_overs.tell

    # -- facts -------------------------------------------------------------------------------------------------------

    def apply(self, fact: Fact) -> None:
        """Apply a fact, of this broker or of a log."""
        for _ in self.applying(fact):
            pass

    def applying(self, fact: Fact) -> Iterator[None]:
        """Apply a fact in pieces, yielding after each; until the last, the state is that of no number."""
        if isinstance(fact, Notification):
            kept = KeptNotification.of(fact, body_of(fact)[0])
            commands = yield from self.node.applying(fact, self._match(kept, fact), kept)
        else:
            commands = yield from self.node.applying(fact)
        changer = getattr(fact, "device", None)  # the notice of a change names the device that made it
        yield from self.performing(commands, time_of(fact), changer=changer)

    def applying_presence(self, fact: Fact) -> Generator[None, None, list[NodeCommand]]:
        """Apply a change of a device's presence in pieces; return what is to be done about it."""
        return self.node.applying(fact)

    def note(self, fact: PolicyFact | SessionChanged) -> None:
        """Let policies know of a fact, as soon as it is appended."""
        self.node.note(fact)

    def move(self, device: str, seq: int, place: Place, now: int) -> None:
        """Apply a report that only moves a device; the time of the hold is for the caller to advance."""
        commands = self.node.move(device, seq, place, now)
        if commands:
            self.perform(commands, now)

    def tick(self, now: int) -> None:
        """Advance the time to *now*."""
        commands = self.node.tick(now)
        if commands:
            self.perform(commands, now)

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

    # -- what follows of the node's state ------------------------------------------------------------------------------

    def subscribed(self, subscription: Subscription) -> None:
        """Add the routes to a session's new subscription."""
        self.routes.put(subscription)
        identity = (subscription.subject_filter, subscription.name)
        self.subscribed_to.setdefault(subscription.session, {})[identity] = subscription.max_held or 0
        self.terms.forget(subscription.session)

    def unsubscribed(self, session: str, identity: Identity) -> None:
        """Remove the routes to a subscription."""
        self.routes.remove(session, identity)
        self.subscribed_to.get(session, {}).pop(identity, None)
        self.terms.forget(session)

    def session_ends(self, session: str, subscriptions: Sequence[Subscription], members: Iterable[str]) -> None:
        """Remove the routes to a session, and withdraw its copies from its members."""
        for subscription in subscriptions:
            self.routes.remove(session, (subscription.subject_filter, subscription.name))
        self.terms.forget(session)
        self.subscribed_to.pop(session, None)
        if not is_private(session):
            for device in members:
                if (member := self.clients.get(device)) is not None:
                    member.withdraw(session, is_deleted=True)

    def session_changed(self, session: str, ended_members: Sequence[str]) -> None:
        """Keep the index of named sessions."""
        is_named = not is_private(session)
        if not self.hold.has(session):
            self.routes.near.members_changed(session, is_named=is_named)
            self.named.note_end(session, ended_members if is_named else ())
        elif is_named:
            self.named.note_access(session)

    def members_changed(self, session: str, device: str) -> None:
        """Keep the indexes of members."""
        is_named = not is_private(session)
        if self.routes.near.grid_so_far is not None:
            self.routes.near.members_changed(session, is_named=is_named)
        if is_named:
            self.named.note_member(device, session)

    def conditions_changed(self) -> None:
        """Forget the cached routes: other clients than before may be served without the hold."""
        self.routes.forget()

    def left(self, client: LiveClient, session: str) -> None:
        """Send a client nothing more for a session that it leaves."""
        client.withdraw(session, is_deleted=False)

    def disconnected(self, client: LiveClient) -> None:
        """Forget what is in flight over a connection that ended."""
        client.land()

    def client_ended(self, client: LiveClient) -> None:
        """Forget what waits for a client whose session has ended."""
        client.end()

    # -- questions ---------------------------------------------------------------------------------------------------

    def will_of(self, device: str) -> LeftWill | None:
        """Return the will of a client, unless it is being published."""
        left = self.wills.get(device)
        return None if left is None or left.seq in self.volatile.publishing_wills else left

    def is_retained(self, message: KeptNotification) -> bool:
        """Return whether *message* is what its subject retains, and not one that it replaced."""
        return self.retained_for(message.subject).get(message.subject) is message

    def retained_for(self, subject: str) -> Retained:
        """Return where messages of a subject, or of a subject filter, are retained."""
        return self.volatile.system if subject.startswith(_SYSTEM) else self.retained

    def is_owed(self, found: Found) -> bool:
        """Return whether any of these sessions could need a QoS 1 or 2 publication after a crash."""
        for session, identities in found:
            if not session.startswith(PRIVATE):
                return True
            client = self.clients.get(session[len(PRIVATE) :])
            if client is None or (client.expiry_us and self.terms.granted(session, identities)):
                return True
        return False

    def keep_up(self, found: Found) -> bool:
        """Return whether each of these sessions is private, its client is connected, and nothing waits for it."""
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
    def restore(cls, name: str, rows: Iterable[tuple[Key, bytes]], *, routes: Routes | None = None) -> BrokerState:
        """Return the state that a view has the *rows* of."""
        own: list[tuple[Key, bytes]] = []

        def of_the_hold() -> Iterator[tuple[Key, bytes]]:
            for key, value in rows:
                if key[0] in HOLD_KINDS:
                    yield key, value
                else:
                    own.append((key, value))

        state = cls(name, hold=Hold.restore(name, of_the_hold(), heeds_places=True), routes=routes)
        state.node.restore(own)
        return state
