"""State of a broker: the node (durable state), and what the broker derives from it.

It finds the subscriptions that match a publication, has the node apply facts, and performs the commands that the node
returns. The broker derives from the node's state the routes (matching index), the delivery options of sessions
(*terms*), and indexes. Values that are lost on a restart are in ``volatile_state``.
Rule: a new fact of this broker and a fact of a replayed log go through the same methods. While a log is replayed no
client is connected, so the commands have no visible effect.
Rule: no method here answers a client's request.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import filterfalse

from whimbrel.broker.limits.memory import Memory
from whimbrel.broker.state.hand_overs import HandOvers
from whimbrel.broker.state.options_cache import OptionsCache
from whimbrel.broker.state.routes import Found, Routes
from whimbrel.broker.state.session_index import SessionIndex
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
    """State of the broker with the node name *name*; *hold* and *routes* are new ones unless given."""

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
        """Subscriptions per session, also those that wait for fsync, each with the most messages to hold for it."""
        self.volatile = VolatileState()
        self.terms = OptionsCache(self.hold, self.clients)
        self.named = SessionIndex(self.hold)
        hand_overs = HandOvers(self.volatile, self.clients, self.terms, self.subscribed_to)
        # The methods become attributes of the state: methods that call them would cost a second call per delivery.
        self.perform, self.performing, self.tell = hand_overs.perform, hand_overs.performing, hand_overs.tell

    # -- facts -------------------------------------------------------------------------------------------------------

    def apply(self, fact: Fact) -> None:
        """Apply a fact: a log record that is new or comes from a replayed log."""
        for _ in self.applying(fact):
            pass

    def applying(self, fact: Fact) -> Iterator[None]:
        """Apply a fact (log record) in steps, and yield after each step.

        Until the last step, the state is between two facts: it is not the state after any seq.
        """
        if isinstance(fact, Notification):
            kept = KeptNotification.of(fact, body_of(fact)[0])
            commands = yield from self.node.applying(fact, self._match(kept, fact), kept)
        else:
            commands = yield from self.node.applying(fact)
        changer = getattr(fact, "device", None)  # the notice of a change names the device that made it
        yield from self.performing(commands, time_of(fact), changer=changer)

    def applying_presence(self, fact: Fact) -> Generator[None, None, list[NodeCommand]]:
        """Apply a change of a device's presence in steps, and return the commands to perform."""
        return self.node.applying(fact)

    def note(self, fact: PolicyFact | SessionChanged) -> None:
        """Pass a fact (log record) to the policies as soon as it is appended to the log."""
        self.node.note(fact)

    def move(self, device: str, seq: int, place: Place, now: int) -> None:
        """Apply a report that only changes the place of a device; the caller must advance the hold's time."""
        commands = self.node.move(device, seq, place, now)
        if commands:
            self.perform(commands, now)

    def tick(self, now: int) -> None:
        """Advance the node's time to *now*, and perform the commands that are due by then."""
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

    # -- updates of derived values -------------------------------------------------------------------------------------

    def subscription_put(self, subscription: Subscription) -> None:
        """Add a new or changed subscription to the routes (matching index)."""
        self.routes.put(subscription)
        identity = (subscription.subject_filter, subscription.name)
        self.subscribed_to.setdefault(subscription.session, {})[identity] = subscription.max_held or 0
        self.terms.forget(subscription.session)

    def subscription_removed(self, session: str, identity: Identity) -> None:
        """Remove an ended subscription from the routes (matching index)."""
        self.routes.remove(session, identity)
        self.subscribed_to.get(session, {}).pop(identity, None)
        self.terms.forget(session)

    def session_ends(self, session: str, subscriptions: Sequence[Subscription], members: Iterable[str]) -> None:
        """Remove all subscriptions of an ended session from the routes (matching index).

        Withdraw the copies that are queued for *members*, the devices of a named session.
        """
        for subscription in subscriptions:
            self.routes.remove(session, (subscription.subject_filter, subscription.name))
        self.terms.forget(session)
        self.subscribed_to.pop(session, None)
        if not is_private(session):
            for device in members:
                if (member := self.clients.get(device)) is not None:
                    member.withdraw(session, is_deleted=True)

    def session_changed(self, session: str, ended_members: Sequence[str]) -> None:
        """Update the indexes of places and named sessions after a session began, ended or changed its access."""
        is_named = not is_private(session)
        if not self.hold.has(session):
            self.routes.near.members_changed(session, is_named=is_named)
            self.named.note_end(session, ended_members if is_named else ())
        elif is_named:
            self.named.note_access(session)

    def members_changed(self, session: str, device: str) -> None:
        """Update the indexes of places and named sessions after a device joined or left a session."""
        is_named = not is_private(session)
        if self.routes.near.grid_so_far is not None:
            self.routes.near.members_changed(session, is_named=is_named)
        if is_named:
            self.named.note_member(device, session)

    def conditions_changed(self) -> None:
        """Discard the cached matches: other clients than before can be served directly, without the hold."""
        self.routes.forget()

    def client_leaves(self, client: LiveClient, session: str) -> None:
        """Remove from a client's queue the copies of the session that it leaves."""
        client.withdraw(session, is_deleted=False)

    def connection_ended(self, client: LiveClient) -> None:
        """Clear the queue and the messages in flight of a client whose connection ended.

        When the client reconnects, the hold (the message store) sends its messages again. Retained messages are kept in
        the client.
        """
        client.land()

    def client_ended(self, client: LiveClient) -> None:
        """Discard everything that waits for a client whose session has ended."""
        client.end()

    # -- questions ---------------------------------------------------------------------------------------------------

    def will_of(self, device: str) -> LeftWill | None:
        """Return the will of a client, or None if it has none or its will is being published."""
        left = self.wills.get(device)
        return None if left is None or left.seq in self.volatile.publishing_wills else left

    def is_retained(self, message: KeptNotification) -> bool:
        """Return whether *message* is still the retained message of its subject, and was not replaced."""
        return self.retained_for(message.subject).get(message.subject) is message

    def retained_for(self, subject: str) -> Retained:
        """Return the store of retained messages for a subject or subject filter: ``$SYS`` has a store of its own."""
        return self.volatile.system if subject.startswith(_SYSTEM) else self.retained

    def is_owed(self, found: Found) -> bool:
        """Return whether a QoS 1 or 2 publication for the sessions *found* must be durable before it is acknowledged.

        A named session, or a persistent session that was granted QoS 1 or 2, could need it after a crash.
        """
        for session, identities in found:
            if not session.startswith(PRIVATE):
                return True
            client = self.clients.get(session[len(PRIVATE) :])
            if client is None or (client.expiry_us and self.terms.granted_qos(session, identities)):
                return True
        return False

    def keep_up(self, found: Found) -> bool:
        """Return whether the clients of all these sessions keep up, so that a message is sent to each of them at once.

        That is: each session is private, and its client is connected, is not in slow mode and has an empty queue.
        """
        for session, _ in found:
            client = self.clients.get(client_of(session) or "")
            if client is None or client.link is None or client.link.is_lagging or client.queue or client.live:
                return False
        return True

    def expired_clients(self, now: int) -> list[LiveClient]:
        """Return the disconnected clients whose session expiry has passed at the time *now*."""
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
        """Return the state that is stored as *rows* in a snapshot."""
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
