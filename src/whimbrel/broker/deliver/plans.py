"""Delivery plans: who receives the publications of a topic, computed once per topic and kept until that changes.

A plan lists the private sessions that subscribe by topic alone (its *recipients*), each with its delivery options, and
leaves the *rest* to the rules of the hold (the queues of all sessions): named sessions and the devices in them, shares,
subscriptions with No Local, and devices and subscriptions with a policy. Sessions that match by content differ from
publication to publication: at QoS 0 they are cached one by one, otherwise a plan is made for that publication only.
Where a copy is recorded depends on the recipient. At QoS 0 it is nowhere: it counts as delivered when it is sent,
unless rule 16 of the hold requires a receipt. At QoS 1 and 2 a session that outlives its connection has it in flight in
the hold, in its fast lane. A session that ends with its connection has it in its client's queue alone, unless a named
session is among the rest: a device that joins that session must not get a copy twice, so the hold has to know of it.
Rule: a publication that can expire has no plan, since at QoS 0 each of its copies has a receipt.
Rule: a plan depends on subscriptions, policies and members of named sessions, and is dropped when one of these changes
(``Routes.epoch``). Whether a client is connected, and whether its session outlives the connection, is checked for each
publication.
Rule: a copy of QoS 1 or 2 is written at once if its client could be sent it at the end of the turn: nothing waits for
the client, its receive maximum and buffer have room, and no right has to be checked. Otherwise it is queued.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.remembered import Remembered
from whimbrel.broker.state.routes import Found
from whimbrel.broker.wire.clients import LIVE, HandOverOptions, LiveClient, Outgoing
from whimbrel.broker.wire.encoded import packet_of
from whimbrel.broker.wire.sender import Sender
from whimbrel.hold.commands import Identity
from whimbrel.hold.private import client_of, is_private
from whimbrel.hold.rules.fast_lane import FlightTarget
from whimbrel.hold.sessions import PIECE
from whimbrel.model.keys import OPEN
from whimbrel.mqtt.codec import publish_parts
from whimbrel.mqtt.packets import V5, V311
from whimbrel.node.publication import LONG, KeptNotification, packet_id_of

__all__ = ["DeliveryPlan", "Others", "Plans", "Recipient", "is_plain"]

Others: TypeAlias = dict[LiveClient, tuple[int, ...]]
"""Clients that get a copy, each with the identifiers of its subscriptions."""

_BY_SESSION = itemgetter(0)
_REMEMBERED = 100_000
_RECIPIENT_BYTES = 750
"""Approximate memory of one recipient in a plan, in bytes."""
_LENGTHS = 256
_NEW = tuple.__new__  # makes a named tuple in a third of the time of its constructor


class Recipient(NamedTuple):
    """One recipient of a plan: a private session with its client."""

    client: LiveClient
    qos: int
    """The highest QoS granted to its matching subscriptions."""
    terms: HandOverOptions
    alone: tuple[HandOverOptions, ...]
    """Its delivery options, in the form in which a copy has them."""


class _Split(NamedTuple):
    """The recipients of a publication, by where their copies are recorded."""

    in_hold: list[Recipient]
    targets: list[FlightTarget]
    """The targets of ``in_hold``, in its order."""
    confirmed: list[Recipient]
    """Those whose copies of QoS 1 or 2 are in their client's queue alone."""
    unconfirmed: list[Recipient]
    """Those that get it at QoS 0."""


class DeliveryPlan:
    """Recipients of a topic; *found* are all sessions with their matching subscriptions, *rest* those of the rules."""

    __slots__ = (
        "_devices",
        "_heads",
        "_identifiers",
        "_is_held",
        "_most_queued",
        "_recipients",
        "_state",
        "_subject",
        "_targets",
        "confirms",
        "found",
        "is_long",
        "rest",
        "subject",
    )

    def __init__(
        self, state: BrokerState, subject: str, found: Found, recipients: list[Recipient], rest: Found, most_queued: int
    ) -> None:
        self._state, self._most_queued = state, most_queued
        self._subject, self.subject = subject, subject.encode()
        self.found, self._recipients, self.rest = found, recipients, rest
        self._identifiers = {each.client: each.terms.identifiers for each in recipients}
        self._devices = frozenset(each.client.id for each in recipients)
        self._targets: list[FlightTarget] = []
        """The target of each recipient in the hold's fast lanes; filled when a publication first needs them."""
        self._is_held = any(not is_private(session) for session, _ in rest)
        """Whether the rest contains a named session. A device that joins that session while it holds the publication
        must not get it twice, so the hold is told who received it, and who has yet to confirm it."""
        self._heads: dict[tuple[int, int, int], bytes] = {}
        self.is_long = len(found) > PIECE
        """Whether a publication for all these sessions takes more than one turn of the event loop."""
        self.confirms = any(each.client.confirms for each in recipients)
        """Whether the hold is needed at QoS 0 too, because some client's copy has a receipt."""

    def __bool__(self) -> bool:
        return bool(self._recipients)

    def must_sync(self) -> bool:
        """Return whether a publication of QoS 1 or 2 must be durable before it is acknowledged.

        It must if a session that outlives its connection receives it at QoS 1 or 2, or if a named session does.
        """
        for each in self._recipients:  # any() takes four times as long, and this runs every time
            if each.client.expiry_us and each.qos:
                return True
        return bool(self.rest) and self._state.is_owed(self.rest)

    def send(self, payloads: Sequence[bytes], sender: Sender, others: Others | None = None) -> Collection[str]:
        """Send QoS 0 copies with *payloads* to each connected recipient; return the client identifiers of who has them.

        *others* are more recipients, found by content, with their subscription identifiers.
        """
        count = len(payloads)
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
                    old = self._packets(V311, payloads)
                data = old
            elif link.is_plain and not identifiers:
                if not new:
                    new = self._packets(V5, payloads)
                data = new
            else:
                for each in payloads:
                    sender.live(link, KeptNotification.live(self._subject, each), identifiers, 0, retain=False)
                skipped += 1
                continue
            client.sent += count
            link.out.append(data)
            if not link.is_dirty:
                link.is_dirty = True
                sender.dirty.append(link)
        sender.counters.sent += count * (len(receivers) - skipped)
        return (
            self._devices
            if not absent
            else {each.client.id for each in self._recipients if each.client.link is not None}
        )

    def _packets(self, version: int, payloads: Sequence[bytes]) -> bytes:
        """Return the PUBLISH packets of QoS 0 with *payloads*."""
        if len(payloads) == 1:
            (payload,) = payloads
            return self._head(version, len(payload), 0) + payload
        return b"".join([self._head(version, len(each), 0) + each for each in payloads])

    def _head(self, version: int, length: int, qos: int) -> bytes:
        """Return the bytes of a PUBLISH before its packet identifier, or at QoS 0 before its body.

        They are cached per length of the body.
        """
        head = self._heads.get((version, length, qos))
        if head is None:
            if len(self._heads) >= _LENGTHS:
                self._heads.clear()
            packet, _ = publish_parts(
                self.subject, bytes(length), qos=qos, retain=False, dup=False, version=version, properties=b""
            )
            head = self._heads[version, length, qos] = packet if qos else packet[: len(packet) - length]
        return head

    def passing_on(
        self, message: KeptNotification, sender: Sender, now: int
    ) -> Generator[None, None, tuple[Found, list[str]]]:
        """Do the work of ``deliver`` in steps, yielding between them; return the same result."""
        held: Found = []
        received: list[str] = []
        for start in range(0, len(self._recipients), PIECE):
            if start:
                yield
            held += self._deliver(self._split(message.qos, start, start + PIECE), [message], sender, now, received)
        return self._with_rest(held), received

    def deliver(self, message: KeptNotification, sender: Sender, now: int) -> tuple[Found, list[str]]:
        """Deliver a message to each recipient that the rules of the hold are not needed for.

        Return the recipients left to the hold, and the devices that the hold must count as having the message.
        """
        received: list[str] = []
        held = self._deliver(self._split(message.qos, 0, len(self._recipients)), [message], sender, now, received)
        return self._with_rest(held), received

    def pass_on(self, messages: Sequence[KeptNotification], sender: Sender, now: int) -> None:
        """Deliver messages of one QoS to all recipients, also to those that need the rules of the hold."""
        state = self._state
        received: list[str] = []
        split = self._split(messages[0].qos, 0, len(self._recipients))
        found = self._with_rest(self._deliver(split, messages, sender, now, received))
        if found:
            for message in messages:
                state.perform(state.node.publish(message, found, received=received), now)

    def _with_rest(self, held: Found) -> Found:
        """Return the recipients left to the hold (queues of all sessions): *held* and the rest, sorted by session."""
        return sorted(held + self.rest, key=_BY_SESSION) if held and self.rest else held or self.rest

    def _split(self, qos: int, start: int, end: int) -> _Split:
        """Divide the recipients from *start* to *end* by where their copies of a publication of *qos* are recorded."""
        split = _Split([], [], [], [])
        if not qos:
            split.unconfirmed.extend(self._recipients[start:end])
            return split
        if not self._targets:
            find = self._state.hold.find_target
            self._targets = [find(each.terms.session, each.terms.identities) for each in self._recipients]
        for at in range(start, min(end, len(self._recipients))):
            recipient = self._recipients[at]
            if not recipient.qos:
                split.unconfirmed.append(recipient)
            elif self._is_held or recipient.client.expiry_us:
                split.in_hold.append(recipient)
                split.targets.append(self._targets[at])
            else:
                split.confirmed.append(recipient)
        return split

    def _deliver(
        self, split: _Split, messages: Sequence[KeptNotification], sender: Sender, now: int, received: list[str]
    ) -> Found:
        """Deliver messages of one QoS to some recipients; return those left to the hold, and add to *received*.

        Both are the same for all messages.
        """
        held: Found = []
        in_hold, targets, confirmed, unconfirmed = split
        if in_hold or confirmed:
            for message in messages:
                if len(message.record) > LONG:
                    message.keep()  # copies may wait for acknowledgements
        if in_hold:
            left = self._state.hold.begin_flights(messages, targets)
            if left:
                held += [(in_hold[at].terms.session, in_hold[at].terms.identities) for at in left]
                in_hold = [each for at, each in enumerate(in_hold) if at not in left]
            self._hand_over(in_hold, messages, sender, now, is_held=True)
        for client, _, terms, _ in unconfirmed:
            if client.confirms:  # deliveries to this client have receipts
                held.append((terms.session, terms.identities))
            elif (link := client.link) is not None:
                for message in messages:
                    retain = message.retain and terms.keeps_retain
                    if client.live:
                        client.put_behind(message, terms.identifiers, retain=retain)
                    else:
                        sender.live(link, message, terms.identifiers, now, retain=retain)
                if self._is_held:
                    received.append(client.id)
        if confirmed:
            self._hand_over(confirmed, messages, sender, now, is_held=False)
        return held

    def _hand_over(
        self,
        recipients: Sequence[Recipient],
        messages: Sequence[KeptNotification],
        sender: Sender,
        now: int,
        *,
        is_held: bool,
    ) -> None:
        """Write copies of QoS 1 or 2 to their connections or, where that is not possible yet, queue them.

        The messages have one QoS; if they are several, they have no properties and are not retained.
        """
        first, count, size = messages[0], len(messages), sum([len(each.record) for each in messages])
        qos, retain, is_more, most = first.qos, first.retain, bool(first.properties), self._most_queued
        numbered = [(at, each, packet_id_of(each.seq)) for at, each in enumerate(messages)]
        gate, ready = self._state.volatile.gate, self._state.volatile.ready
        is_open = gate is not None and gate.rights.is_open
        old, new, sent = list[bytes](), list[bytes](), 0
        for client, granted, terms, alone in recipients:
            link = client.link
            if link is None:
                continue
            effective = granted if granted < qos else qos  # noqa: FURB136 # min() takes four times as long
            keeps = retain and terms.keeps_retain
            own, done = terms.identifiers, 0
            if not (
                client.queue
                or client.live
                or not link.is_plain
                or link.parked is not None
                or link.shaping is not None
                or link.unsent
                or not is_open
            ):
                flying, releases, machine = client.flying, client.releases, link.machine
                version = machine.version
                if effective != qos or keeps or (version == V5 and (is_more or own)):
                    copies = [
                        packet_of(each, version, effective, now, retain=keeps, identifiers=own) for each in messages
                    ]
                elif version == V5:
                    copies = new = new or self._copies(V5, messages)
                else:
                    copies = old = old or self._copies(V311, messages)
                window, done = machine.receive_maximum - len(flying) - len(releases), count
                for at, message, identifier in numbered:
                    if at >= window or link.room <= 0 or identifier in flying or identifier in releases:
                        done = at
                        break
                    copy = copies[at]
                    flying[identifier] = _NEW(
                        Outgoing, (message, effective, keeps, False, own, alone, is_held, LIVE, False)
                    )
                    link.room -= len(copy)
                    link.out.append(copy)
            if done:
                client.sent += done
                sent += done
                if not link.is_dirty:
                    link.is_dirty = True
                    sender.dirty.append(link)
                if is_held:
                    client.sent_seq = messages[done - 1].seq
                else:
                    gone = size if done == count else sum([len(each.record) for each in messages[:done]])
                    client.queued_bytes = queued = client.queued_bytes + gone
                    if queued > client.note_above or queued <= client.note_below or queued > most:
                        ready.append(client)  # to see to its bounds
            if done < count:
                for message in messages[done:]:
                    client.put(_NEW(Outgoing, (message, effective, keeps, False, own, alone, is_held, LIVE, False)))
                if not ready or ready[-1] is not client:
                    ready.append(client)
        sender.counters.sent += sent

    def _copies(self, version: int, messages: Sequence[KeptNotification]) -> list[bytes]:
        """Return the PUBLISH packets of *messages* in which only the packet identifier and the payload differ."""
        none = b"\0" if version == V5 else b""  # no properties
        return [
            b"".join((self._head(version, len(payload := each.payload), each.qos), each.packet_id, none, payload))
            for each in messages
        ]


class Plans:
    """The plans of all topics in use, valid until the routes (matching index) change.

    A topic for which *is_refused* returns a reason has no plan. A client may have *most_queued* bytes queued before it
    counts as slow.
    """

    def __init__(self, state: BrokerState, is_refused: Callable[[str], object], *, most_queued: int) -> None:
        self._state, self._is_refused, self._most_queued = state, is_refused, most_queued
        self._epoch = -1
        self._plans = Remembered[DeliveryPlan | None](state.memory, item_bytes=_RECIPIENT_BYTES)
        self._plain: dict[int, LiveClient] = {}
        """Client of each subscription whose QoS 0 copies need no delivery options, by the subscription's handle in the
        matcher."""

    def get(self, subject: str) -> DeliveryPlan | None:
        """Return the plan of the topic *subject*, without subscribers found by content.

        Return None if publishing to the topic is refused, or if a long plan is not cached: ``making`` makes those.
        """
        if self._state.routes.epoch != self._epoch:
            self._keep_up()
        try:
            return self._plans[subject]
        except KeyError:
            found = self._state.routes.by_subject(subject)
            return None if len(found) > PIECE else self._remember(subject, self._plan(subject, found))

    def making(self, subject: str, found: Found) -> Generator[None, None, DeliveryPlan | None]:
        """Make the plan of a publication for the sessions *found*; yield after each step."""
        self._keep_up()
        plan = self._plans.get(subject)
        if plan is not None and plan.found is found:
            return plan
        epoch, recipients, rest = self._epoch, list[Recipient](), list[tuple[str, tuple[Identity, ...]]]()
        members = self._members(found)
        for start in range(0, len(found), PIECE):
            if start:
                yield
            self._sort_out(found[start : start + PIECE], members, recipients, rest)
        plan = None if self._is_refused(subject) else self._new(subject, found, recipients, rest)
        self._keep_up()
        if self._epoch == epoch and found is self._state.routes.by_subject(subject):
            self._remember(subject, plan)
        return plan

    def _keep_up(self) -> None:
        """Drop all plans if the routes (matching index) have changed."""
        if self._state.routes.epoch != self._epoch:
            self._epoch = self._state.routes.epoch
            self._plans.clear()
            self._plain.clear()

    def _remember(self, subject: str, plan: DeliveryPlan | None) -> DeliveryPlan | None:
        self._plans.put(subject, plan, 0 if plan is None else len(plan.found))
        return plan

    def of(self, subject: str, found: Found) -> DeliveryPlan | None:
        """Return the plan for the sessions *found*, including sessions that match by content."""
        plan = self.get(subject)
        return plan if plan is None or plan.found is found else self._plan(subject, found)

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

    def _plan(self, subject: str, found: Found) -> DeliveryPlan | None:
        if self._is_refused(subject):
            return None
        recipients, rest = list[Recipient](), list[tuple[str, tuple[Identity, ...]]]()
        self._sort_out(found, self._members(found), recipients, rest)
        return self._new(subject, found, recipients, rest)

    def _new(self, subject: str, found: Found, recipients: list[Recipient], rest: Found) -> DeliveryPlan:
        return DeliveryPlan(self._state, subject, found, recipients, rest, self._most_queued)

    def _members(self, found: Found) -> set[str]:
        """Return the devices in the named sessions of *found*: each gets one copy for all its sessions."""
        hold = self._state.hold
        return {device for session, _ in found if not is_private(session) for device in hold.members(session)}

    def _sort_out(self, found: Found, members: set[str], recipients: list[Recipient], rest: Found) -> None:
        """Add each session of *found* to *recipients* or, if the rules of the hold must serve it, to *rest*."""
        state = self._state
        for session, identities in found:
            client = state.clients.get(client_of(session) or "")
            if client is not None and client.id not in members and state.decisions.shape.chosen(client.id) is None:
                terms = state.terms.get(session, identities, client.id)
                if terms.is_plain:
                    recipients.append(Recipient(client, terms.granted, terms, (terms,)))
                    continue
            rest.append((session, identities))


def is_plain(message: KeptNotification) -> bool:
    """Return whether a publication may have a plan: the publication has no keys, expiry, deadline or place."""
    return (
        message.secured is OPEN
        and message.expires_at is None
        and (message.placing is None and message.deadline_at is None)
    )
