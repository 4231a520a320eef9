"""The node: all state that a restart restores, computed as one fold of the log (event sourcing).

``apply`` takes the next fact and returns commands for the shell. A broker that serves clients and a broker that replays
its log call the same methods; a replay discards the commands.
Rule: facts are applied in the order of their seqs. The same facts and matches give the same commands and rows.
Rule: the node gets matches as an argument; it never finds them. They are the matches by subject, content and keys for
the state before the fact; for a publication with a place, also by place.
Rule: facts that policies depend on are applied to policies when they are appended (``note``). All other effects follow
when the fact is applied.
Rule: only this room and ``hold`` change the node. Listeners keep data that is derived from its state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, TypeVar

from whimbrel.hold.commands import Command, Matches
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
)
from whimbrel.model.notification import EXACTLY_ONCE, Notification
from whimbrel.model.place import Place
from whimbrel.model.proximity import Sighting
from whimbrel.model.subscription import InterestChange
from whimbrel.node.clients import Clients, StoredClient
from whimbrel.node.core import NodeCore
from whimbrel.node.held import CountedNotifications
from whimbrel.node.link_quality import LinkQuality
from whimbrel.node.memory import PLACE_BYTES, MemoryCount, session_bytes
from whimbrel.node.parts import Arrived, Crossed, NodeCommand, NodeListener, NodeWork
from whimbrel.node.places.fences import Fences
from whimbrel.node.places.last_places import LastPlaces
from whimbrel.node.places.retained_areas import RetainedAreas
from whimbrel.node.policies import Policies, PolicyFact
from whimbrel.node.publication import KeptNotification
from whimbrel.node.retained import Retained, RetainedRows
from whimbrel.node.wills import Wills

__all__ = ["Node"]

_MAX_FORGOTTEN = 1_000  # places, in one call of ``forget_places``
_MEMBERSHIP = frozenset({PresenceChange.JOINED, PresenceChange.LEFT})
C = TypeVar("C", bound=StoredClient)


class Node(NodeCore[KeptNotification], Generic[C]):
    """The state of the node *name*; *new_client* makes a client, to which the shell may add fields.

    *hold* is an existing hold to continue with; by default a new one is made. *memory* counts the bytes of all state.
    """

    def __init__(
        self,
        name: str,
        new_client: Callable[[str, str, MemoryCount], C],
        *,
        memory: MemoryCount,
        hold: Hold[KeptNotification] | None = None,
    ) -> None:
        hold = Hold(name, heeds_places=True) if hold is None else hold
        policies = Policies(name, memory, hold.is_stored)
        self.held = CountedNotifications(name, hold, memory, policies)
        super().__init__(name, hold, self.held, policies)
        self.memory = memory
        self.listener: NodeListener[C] = NodeListener()
        """Listener that is called with each change."""
        self._touch = touch = self.rows.touch
        self.clients = Clients(new_client, touch, memory)
        self.retained = Retained(memory)
        self.areas = RetainedAreas(touch, memory)
        self.wills = Wills(name, touch, memory)
        self.links = LinkQuality(touch, memory)
        self.fences = Fences(self.hold.places.sightings)
        retained_rows = RetainedRows(name, self.retained)
        hold.places.touch = touch
        places = LastPlaces(hold.places)
        self.add([self.clients, retained_rows, self.areas, self.wills, self.links, places])

    # -- facts -------------------------------------------------------------------------------------------------------

    def apply(self, fact: Fact, matches: Matches = (), kept: KeptNotification | None = None) -> list[NodeCommand]:
        """Apply the next fact; return the commands for the shell, in order.

        For a notification, *kept* is the form in which it is kept; by default it is made from the fact.
        """
        work = self.applying(fact, matches, kept)
        while True:
            try:
                next(work)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]  # ``StopIteration.value`` has no type

    def applying(self, fact: Fact, matches: Matches = (), kept: KeptNotification | None = None) -> NodeWork:
        """Apply a fact as ``apply`` does, but in steps, yielding after each; in between the state is incomplete."""
        if isinstance(fact, Notification):
            if kept is None:
                kept = KeptNotification.of(fact, body_of(fact)[0])
            return self.publishing(kept, matches, packet_id=fact.packet_id or 0, will_seq=fact.will_seq)
        if isinstance(fact, PresenceChanged):
            return self._presence(fact)
        if isinstance(fact, SessionChanged):
            return self._session(fact)
        return self._at_once(fact)

    def _at_once(self, fact: Fact) -> NodeWork:
        """Apply a fact that never takes long, in one step."""
        yield from ()
        return self._short(fact)

    def _short(self, fact: Fact) -> list[NodeCommand]:
        if isinstance(fact, InterestChanged):
            return self._interest(fact)
        if isinstance(fact, Receipt):
            if fact.notification.node != self.name:
                return []
            return self._receipt(fact)
        if isinstance(fact, WillChanged):
            self.wills.apply(fact)
            return [*self.hold.apply(fact)]
        assert isinstance(fact, Reported | PolicyChanged | Decided)
        self.note(fact)
        known = len(self.hold.places)
        if isinstance(fact, Reported):
            self.links.on_report(fact.state)
        commands: list[NodeCommand] = [*self.hold.apply(fact)]
        self.memory.counted += (len(self.hold.places) - known) * PLACE_BYTES
        if isinstance(fact, Reported) and fact.state.place is not None:
            commands += self._on_place(fact.state.device, fact.state.place, fact.state.reported_at)
        return commands

    def note(self, fact: PolicyFact | SessionChanged) -> None:
        """Apply a fact to policies as soon as it is appended; skip a fact that was applied already."""
        self.policies.note(fact)
        if isinstance(fact, PolicyChanged):
            self.listener.conditions_changed()

    def note_move(self, device: str, seq: int, place: Place, reported_at: int) -> None:
        """Apply a report that has only a place to policies, as soon as it is appended."""
        self.policies.on_place(device, seq, place, reported_at)

    def tick(self, now: int) -> list[NodeCommand]:
        """Advance the time to *now*."""
        commands: list[Command] = self.hold.tick(now)
        if self.fences:
            return [*commands, *(Crossed(*each) for each in self.fences.tick(now))]
        return commands  # type: ignore[return-value]  # each command of the hold is one of the node

    # -- publications, the most frequent kind: without building a fact -----------------------------------------------

    def publish(
        self,
        kept: KeptNotification,
        matches: Matches,
        *,
        packet_id: int = 0,
        will_seq: int | None = None,
        received: Collection[str] = (),
    ) -> list[Command]:
        """Apply a publication, for the sessions that match it.

        *packet_id* is its packet identifier at QoS 2. *will_seq* is the seq of the will that it publishes, if any. The
        devices in *received* have got it already, without the hold.
        """
        if packet_id:
            self.clients.on_publication(kept.publisher, packet_id)
        commands = self.hold.published(kept, matches, received=received)
        if kept.retain:
            self._retain(kept, matches)
        if will_seq is not None:
            self.wills.on_publication(kept.publisher, will_seq)
        return commands

    def publishing(
        self,
        kept: KeptNotification,
        matches: Matches,
        *,
        packet_id: int = 0,
        will_seq: int | None = None,
        received: Collection[str] = (),
    ) -> NodeWork:
        """Apply a publication as ``publish`` does, but in steps, yielding after each."""
        if packet_id:
            self.clients.on_publication(kept.publisher, packet_id)
        commands = yield from self.hold.publishing(kept, matches, received=received)
        if kept.retain:
            self._retain(kept, matches)
        if will_seq is not None:
            self.wills.on_publication(kept.publisher, will_seq)
        return [*commands]

    def _retain(self, kept: KeptNotification, matches: Matches) -> None:
        self._touch(("retained", kept.subject))
        had_source = kept.subject in self.retained.sources
        if kept.payload:
            client = self.clients.by_id.get(kept.publisher or "")
            source = self.wills.owner_of(kept.publisher or "") if client is None else client.owner
            self.retained.put(kept, source)
            if source is not None or had_source:
                self._touch(("source", kept.subject))
            if self.areas or kept.placing is not None:
                self.areas.put(kept)
                for session, _ in matches if kept.placing is not None else ():
                    self.areas.see(session, kept)  # sent already, or about to be, as a live publication
        else:
            self.retained.remove(kept.subject)
            self.areas.remove(kept.subject)
            if had_source:
                self._touch(("source", kept.subject))

    # -- receipts ----------------------------------------------------------------------------------------------------

    def settle(
        self, at: int, session: str, device: str, seq: int, outcome: Outcome, *, qos: int | None
    ) -> list[Command]:
        """Apply the receipt of a copy that the hold has in flight, sent with *qos* (None: ask the hold)."""
        if self.policies.are_used:
            self.policies.on_receipt(device, seq)
        if outcome is Outcome.DELIVERED:
            if qos is None:
                qos = self.hold.flight_qos(session, device, seq)
            if qos == EXACTLY_ONCE:
                self.clients.await_completion(device, seq)
        return self.hold.confirmed(at, session, device, seq, outcome)

    def settle_run(self, at: int, session: str, device: str, seqs: Sequence[int]) -> list[Command]:
        """Apply the receipts of copies that the hold has in flight, sent with QoS 1, through one session.

        The outcomes of copies in a fast lane of the hold are not among the commands.
        """
        if self.policies.are_used:
            for seq in seqs:
                self.policies.on_receipt(device, seq)
        return self.hold.confirm_all(at, session, device, seqs)

    def settle_beside(self, device: str, seq: int, outcome: Outcome, *, qos: int) -> None:
        """Apply the receipt of a copy that is not in the hold: a retained message, or for a session without expiry."""
        self.policies.on_receipt(device, seq)
        if outcome is Outcome.DELIVERED and qos == EXACTLY_ONCE:
            self.clients.await_completion(device, seq)

    def _receipt(self, fact: Receipt) -> list[NodeCommand]:
        seq = fact.notification.seq
        if fact.via == RETAINED:
            self.settle_beside(fact.device, seq, fact.outcome, qos=self._find_granted_qos(fact))
            return self.tick(fact.handed_at)
        return [*self.settle(fact.handed_at, fact.session, fact.device, seq, fact.outcome, qos=None)]

    def _find_granted_qos(self, fact: Receipt) -> int:
        """Return the highest QoS with which a retained message may have been sent; the hold does not have it."""
        granted = [
            subscription.qos or 0
            for each in fact.subscriptions
            if (subscription := self.hold.subscription(fact.session, (each.subject_filter, each.name))) is not None
        ]
        return max(granted, default=EXACTLY_ONCE)  # if it was sent at a lower QoS, an extra PUBREL does no harm

    # -- presence, subscriptions and sessions ------------------------------------------------------------------------

    def _presence(self, fact: PresenceChanged) -> NodeWork:
        change, session = fact.change, fact.session
        is_named = session is not None and not is_private(session)
        self._touch(("client", fact.device))
        if is_named:
            self.listener.conditions_changed()  # a member of a named session gets one copy for all its sessions
        if change is PresenceChange.JOINED and session is not None and not is_named:
            client: C | None = self.clients.on_join(fact)
            assert client is not None
            if fact.device in self.wills.by_device:
                self.wills.present(fact)
            self._let_confirm(client, is_confirming=bool(fact.confirms))
        else:
            client = self.clients.by_id.get(fact.device)
        if client is not None:
            if change is PresenceChange.LEFT:
                self.listener.client_leaves(client, session or "")
            elif change is PresenceChange.DISCONNECTED:
                if fact.device in self.wills.by_device:
                    self.wills.present(fact)
                self.listener.connection_ended(client)
            elif change is PresenceChange.RECEIPTS:
                self._let_confirm(client, is_confirming=bool(fact.confirms))
            self.clients.present(client, fact)
        before = session_bytes(self.hold, session) if is_named else 0
        commands = yield from self.hold.applying(fact)
        if is_named:
            self.memory.counted += session_bytes(self.hold, session) - before
        if session is not None and change in _MEMBERSHIP:
            self.listener.members_changed(session, fact.device)
        return [*commands]

    def _let_confirm(self, client: StoredClient, *, is_confirming: bool) -> None:
        """Set whether QoS 0 deliveries in a client's private session have receipts."""
        if client.confirms is not is_confirming:
            client.confirms = is_confirming
            self.listener.conditions_changed()

    def _interest(self, fact: InterestChanged) -> list[NodeCommand]:
        subscription = fact.subscription
        session, identity = subscription.session, (subscription.subject_filter, subscription.name)
        told = self.hold.apply(fact)
        crossed: list[NodeCommand] = []
        if fact.change is InterestChange.REMOVED:
            self.fences.remove(session, identity)
            self.listener.subscription_removed(session, identity)
        else:
            self.listener.subscription_put(subscription)
            stored = self.hold.subscription(session, identity)  # as the hold stores it: without parsed filters
            assert stored is not None
            crossed += [Crossed(*each) for each in self.fences.put(stored, fact.changed_at)]
            if self.areas:  # SUBSCRIBE sends the messages retained here, so mark them as sent
                for each in self.hold.places.sightings(session):
                    for _ in self.areas.enter(session, each.place):
                        pass
        return [*crossed, *told]

    def _session(self, fact: SessionChanged) -> NodeWork:
        session, is_named = fact.session, not is_private(fact.session)
        before = session_bytes(self.hold, session)
        is_release = fact.access in {None, self.hold.access(session)}  # else a mark of ``SessionMoves``
        if fact.change is SessionChange.ACCESS and not is_named and is_release:
            self.clients.release(client_of(session))
        devices: tuple[str, ...] = ()
        if fact.change is SessionChange.DELETED:
            devices = tuple(self.hold.members(session))
            self.listener.session_ends(session, self.hold.subscriptions(session), devices)
            self.fences.end(session)
            self.areas.end(session)
            if not is_named and fact.device is not None:
                self.note(fact)
                gone = self.clients.on_end(fact.device)
                if gone is not None:
                    self.listener.client_ended(gone)
        commands = yield from self.hold.applying(fact)
        self.listener.session_changed(session, devices)
        self.memory.counted += session_bytes(self.hold, session) - before
        return [*commands]

    # -- places ------------------------------------------------------------------------------------------------------

    def move(self, device: str, seq: int, place: Place, now: int) -> list[NodeCommand]:
        """Apply the report *seq* that has only a place; the caller advances the time of the hold."""
        if device not in self.hold.places:
            self.memory.counted += PLACE_BYTES
        self.hold.places.sighted(device, Sighting(seq, now, place))
        return self._on_place(device, place, now)

    def _on_place(self, device: str, place: Place, now: int) -> list[NodeCommand]:
        """Return the commands that follow from a device's new place: its sessions may enter and leave areas."""
        commands: list[NodeCommand] = []
        if self.fences:
            commands += [Crossed(*each) for each in self.fences.on_place(private_session(device), now)]
        if self.areas:
            for session in (private_session(device), *self.hold.sessions_of(device)):
                commands += [Arrived(session, kept) for kept in self.areas.enter(session, place)]
        return commands

    def forget_places(self, now: int) -> None:
        """Remove some of the places that are too old for any subscription."""
        self.memory.counted -= self.hold.places.forget_old(now, most=_MAX_FORGOTTEN) * PLACE_BYTES

    # -- restoring ---------------------------------------------------------------------------------------------------

    def restore(self, rows: Iterable[tuple[Key, bytes]]) -> None:
        """Restore everything except the hold from *rows*; the hold is restored already."""
        sessions = self.hold.sessions()
        self.memory.counted += sum(session_bytes(self.hold, session) for session in sessions)
        super().restore(rows)
        self.memory.counted += len(self.hold.places) * PLACE_BYTES
        for kept in self.retained:
            if kept.placing is not None:
                self.areas.put(kept)
        for session in sessions:
            for subscription in self.hold.subscriptions(session):
                self.listener.subscription_put(subscription)
                for _ in self.fences.put(subscription, self.hold.now):
                    pass  # no client is connected yet, so no notice is sent
