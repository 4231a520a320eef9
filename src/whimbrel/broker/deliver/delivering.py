"""Delivering: send queued messages to clients, and record receipts (their outcomes) in the log (MQTT 5, 4.3, 4.4)."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from whimbrel.broker.deliver.shaping import PolicyHandler
from whimbrel.broker.settings.config import Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.wire.clients import HandOverOptions, Link, LiveClient, Outgoing
from whimbrel.broker.wire.gate import Gate
from whimbrel.broker.wire.sender import Sender
from whimbrel.hold.sessions import RETAINED
from whimbrel.log.compact import receipt_bodies, receipt_body
from whimbrel.model.facts import Outcome, PresenceChange, PresenceChanged, Receipt
from whimbrel.model.notification import EXACTLY_ONCE, NotificationId
from whimbrel.model.subscription import SubscriptionIdentity
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, Pubrec, Pubrel
from whimbrel.mqtt.properties import NO_PROPERTIES
from whimbrel.node.publication import KeptNotification, packet_id_of

__all__ = ["DeliveryHandler"]

_PUBREL = b"\x62\x02"
_MAX_SENT = 1_000
"""Most messages that one client is sent in a turn of the event loop; each takes about 5 µs."""
_MAX_DECIDED = 320
"""Budget of one turn for policy decisions, over all clients; the unit is the cost of sending one message. Eight cheap
decisions fit into it (about 1.5 ms); they share the fixed cost of a turn, such as writing to the log."""


class DeliveryHandler:
    """Sends queued messages to clients, and handles the clients' acknowledgements."""

    def __init__(self, config: Config, commits: CommitQueue, state: BrokerState, sender: Sender, gate: Gate) -> None:
        self._most_bytes = config.limits.send_buffer_bytes
        self._policies = state.decisions
        self._commits, self._state, self._sender, self._gate = commits, state, sender, gate
        self.shaping = PolicyHandler(
            commits,
            state,
            config.policies.limits,
            config.policies.steps_per_second,
            send=self._send,
            withhold=self._withhold,
            go_on=self._take_turn,
            go_on_later=self._decide_later,
        )
        self.unfinished: deque[LiveClient] = deque()
        """Clients that may be sent more in the next turns."""
        self.deciding: dict[LiveClient, None] = {}
        """Clients whose next message a policy must decide about, in order."""

    @property
    def has_work(self) -> bool:
        """Whether clients wait for ``go_on``, which continues to send their messages."""
        return bool(self.unfinished or self.deciding)

    def pump_ready(self, now: int) -> None:
        """Send their new messages to all clients that have some.

        A client whose next message a policy decides about is served in a later turn of the event loop, after the
        others: one decision takes as long as sending a hundred messages.
        """
        ready = self._state.volatile.ready
        while ready:
            client = ready.pop()
            if client not in self.deciding:
                if self._policies.are_used and self.shaping.is_next(client):
                    self.deciding[client] = None
                else:
                    self.pump(client, now)
            self._bound(client, now)

    def _bound(self, client: LiveClient, now: int) -> None:
        """Drop queued messages that exceed a client's bounds, or disconnect a client that is too far behind."""
        queued_bytes, most = client.queued_bytes, self._most_bytes
        is_noted = client.note_below < queued_bytes <= client.note_above
        if is_noted and queued_bytes <= most and not (client.queue or client.live):
            return  # all its messages are in flight, and they are small
        if queued_bytes and (queued_bytes > most or not self._state.memory.has_room()):
            self._shed(client, now)
        client.note_queued()
        has_several = len(client.flying) + len(client.queue) > 1  # a single copy may exceed the bound
        is_far_behind = has_several and client.queued_bytes > 2 * most and client.unshed_bytes > 2 * most
        if is_far_behind and not client.expiry_us and client.link is not None:
            # A session that ends with its connection is queued for in memory alone, so its queue must be bounded.
            self._sender.counters.slow_readers += 1
            reason = f"more than {2 * most} bytes wait to be sent, or to be acknowledged"
            self._sender.fail(client.link, ReasonCode.QUOTA_EXCEEDED, reason)

    def _shed(self, client: LiveClient, now: int) -> None:
        """Drop QoS 0 messages that exceed the bound; those that fit into the connection's buffer stay queued."""
        if self._state.memory.has_room():
            most, room = self._most_bytes, client.open_room
        else:
            most, room = 0, min(client.open_room, 1)  # only the next message
        for out in client.shed(most, room):
            self._receipt(client, out, Outcome.DROPPED, now)

    def pump(self, client: LiveClient, now: int) -> int:
        """Send a client its queued messages, up to the limit of one turn; ``go_on`` sends the rest in later turns.

        Return the cost; the unit is the cost of sending one message.
        """
        gate = self._gate
        is_open, policies = gate.rights.is_open, self._policies
        left = _MAX_SENT
        while left > 0:
            left -= 1
            out = client.next_to_send()
            if out is None:
                return _MAX_SENT - left
            link, message = client.link, out.message
            assert link is not None
            refused = None
            if not is_open or message.expires_at is not None:
                refused = gate.refusal(link, client.id, message, now, is_begun=_is_begun(out))
            if refused is not None:
                client.sent -= 1
                self._receipt(client, out, refused, now)
            elif not out.qos and out.via is RETAINED and not self._state.is_retained(message):
                client.sent -= 1  # a newer retained message replaced this one while it waited, and counts instead
            elif policies.are_used and self.shaping.is_for(client, out):
                left -= self.shaping.begin(client, link, out, now)
            elif link.unsent:
                self.shaping.send_behind(client, link, out)
            else:
                self._send(client, link, out, now)
        self.unfinished.append(client)
        return _MAX_SENT

    def _send(self, client: LiveClient, link: Link, out: Outgoing, now: int) -> None:
        """Send a message that may be sent.

        Record its receipt at once if it is too long, or has QoS 0 (a retained one only if a policy decided about it).
        """
        if out.is_decided and out.qos:
            identifier = packet_id_of(out.message.seq)
            flying = client.flying.get(identifier)
            if flying is None or flying.message.seq != out.message.seq:
                return  # the message was withdrawn during the wait for the disk
            client.flying[identifier] = flying._replace(message=out.message, is_decided=True)
        if not out.qos:
            is_sent = self._sender.copy(link, out.message, out.identifiers, now, retain=out.retain)
            client.sent -= not is_sent
            if out.via is not RETAINED or out.is_decided:
                self._receipt(client, out, Outcome.DELIVERED if is_sent else Outcome.DROPPED, now)
        elif not self._sender.hand_over(link, out, now):
            client.sent -= 1
            self._receipt(client, out, Outcome.DROPPED, now)  # longer than the client's packet limit

    def _withhold(self, client: LiveClient, out: Outgoing, now: int) -> None:
        """Record that policies withheld a message."""
        client.sent -= 1  # a withheld message does not count as sent to the device
        self._receipt(client, out, Outcome.WITHHELD, now)

    def go_on(self, now: int) -> None:
        """Continue sending to one client that used up its turn, and decide about messages of several clients."""
        if self.unfinished:
            self._take_turn(self.unfinished.popleft(), now)
        spent = 0
        while self.deciding and spent < _MAX_DECIDED:
            client = next(iter(self.deciding))
            del self.deciding[client]
            spent += self._take_turn(client, now)

    def _take_turn(self, client: LiveClient, now: int) -> int:
        """Send a client its next messages, drop those over its bounds, and return the cost (see ``pump``)."""
        spent = self.pump(client, now)
        self._bound(client, now)
        return spent

    def wake(self, now: int) -> None:
        """Schedule devices whose pause is over; a device pauses if its policies took too many steps."""
        for client in self.shaping.wake(now):
            self._decide_later(client)

    def _decide_later(self, client: LiveClient) -> None:
        self.deciding.setdefault(client)

    def resume(self, client: LiveClient, link: Link) -> None:
        """Send PUBREL again for QoS 2 messages received but not completed over the client's last connection."""
        client.releases = set(client.releasing)
        for identifier in sorted(client.releases):
            self._sender.send(link, _PUBREL + identifier.to_bytes(2))

    def on_pubacks(self, client: LiveClient, identifiers: Sequence[int], now: int) -> None:
        """Record in the log the deliveries that PUBACKs of a client acknowledge (QoS 1), all together."""
        flying, now = client.flying, self._commits.now(now)
        decided = self._policies.by_seq
        outs: list[Outgoing] = []
        for identifier in identifiers:
            out = flying.get(identifier)
            if out is None:
                if identifier in client.releases:  # PUBREL may be answered only by PUBCOMP (4.3.3)
                    self._wrong_kind(client, "PUBACK", identifier, EXACTLY_ONCE)
                    break
                continue  # late, or invented by the client: harmless
            if out.qos != 1:
                self._wrong_kind(client, "PUBACK", identifier, out.qos)
                break
            if (
                out.via is RETAINED
                or len(out.terms) != 1
                or (out.message.seq in decided and self._is_kept(client, out))
            ):
                self._record_run(client, outs, now)
                outs = []
                self._receipt(client, out, Outcome.DELIVERED, now)
                continue
            del flying[identifier]
            outs.append(out)
        self._record_run(client, outs, now)
        client.note_queued()
        if client.queue:
            self.pump(client, now)

    def _record_run(self, client: LiveClient, outs: Sequence[Outgoing], now: int) -> None:
        """Record deliveries of QoS 1 for one session each, which are not in flight any more."""
        if not outs:
            return
        commits = self._commits
        first = commits.seq
        commits.append_bodies(
            receipt_bodies(first, now, [(out.terms[0].receipt, out.message.seq, out.via) for out in outs]), now
        )
        self._sender.counters.receipts += len(outs)
        held = [out for out in outs if out.is_held]
        if len(held) < len(outs):  # the hold has no record of the others, so nothing else needs to change
            client.queued_bytes -= sum([len(out.message.record) for out in outs if not out.is_held])
        if held:
            is_waiting = bool(commits.waiting)
            settle = partial(self._settle_run, client, held, now, is_late=is_waiting)
            commits.enter_run(first - 1, first + len(outs) - 1, settle, is_owed=False)

    def _settle_run(self, client: LiveClient, outs: Sequence[Outgoing], now: int, *, is_late: bool) -> None:
        """Apply receipts of deliveries in the hold; *is_late*: they waited for the disk (see ``_settle_later``)."""
        own = client.session
        by_session = {own: [out.message.seq for out in outs if out.terms[0].session == own]}
        if len(by_session[own]) < len(outs):
            for out in outs:
                if (session := out.terms[0].session) != own:
                    by_session.setdefault(session, []).append(out.message.seq)
        for session, seqs in by_session.items():
            settled = self._state.node.settle_run(now, session, client.id, seqs)
            if settled:
                self._state.perform(settled, now)
        if is_late:
            for out in outs:
                uncounted = client.take_uncounted(out.message.seq)
                if uncounted:
                    self._receipt(client, out._replace(terms=uncounted), Outcome.DELIVERED, now)

    def on_pubrec(self, client: LiveClient, link: Link, packet: Pubrec, now: int) -> None:
        """Handle PUBREC: record the delivery in the log, and send PUBREL when the record is accepted."""
        identifier = packet.packet_id
        out = client.flying.get(identifier)
        if out is not None and out.qos != EXACTLY_ONCE:
            self._wrong_kind(client, "PUBREC", identifier, out.qos)
            return
        if out is None:
            is_unknown = identifier not in client.releases and link.machine.version == V5
            if packet.code < ReasonCode.UNSPECIFIED_ERROR:
                not_found = Pubrel(identifier, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND, NO_PROPERTIES)
                self._sender.send(link, encode(not_found, V5) if is_unknown else _PUBREL + identifier.to_bytes(2))
            return
        if packet.code >= ReasonCode.UNSPECIFIED_ERROR:  # the client refuses the message: nothing to release
            self._receipt(client, out, Outcome.DROPPED, now)
            self.pump(client, now)
            return
        client.releases.add(identifier)
        self._receipt(client, out, Outcome.DELIVERED, now, is_owed=client.is_persistent)
        self._commits.then(partial(self._release, client, link, identifier))

    def _release(self, client: LiveClient, link: Link, identifier: int) -> None:
        if client.link is link:
            self._sender.send(link, _PUBREL + identifier.to_bytes(2))

    def on_pubcomp(self, client: LiveClient, identifier: int, now: int) -> None:
        """Handle PUBCOMP: record that a QoS 2 delivery is complete, and free its packet id."""
        if identifier not in client.releases:
            out = client.flying.get(identifier)
            if out is not None:
                self._wrong_kind(client, "PUBCOMP", identifier, out.qos)
            return
        client.releases.discard(identifier)
        fact = PresenceChanged(
            node=self._commits.node,
            seq=self._commits.seq,
            changed_at=self._commits.now(now),
            device=client.id,
            change=PresenceChange.COMPLETED,
            packet_id=identifier,
        )
        # Need not be durable: after a crash PUBREL is sent again, and the client confirms it again.
        self._commits.enter(fact, partial(self._state.apply, fact), is_owed=False)
        self.pump(client, now)

    def _wrong_kind(self, client: LiveClient, kind: str, identifier: int, qos: int) -> None:
        """Disconnect a client that acknowledged a message with the wrong kind of packet [MQTT-4.8.0-1 in 3.1.1]."""
        assert client.link is not None
        reason = f"{kind} for packet identifier {identifier}, under which a publication of QoS {qos} was sent"
        self._sender.counters.protocol_errors += 1
        self._sender.fail(client.link, ReasonCode.PROTOCOL_ERROR, reason)

    def _receipt(self, client: LiveClient, out: Outgoing, outcome: Outcome, now: int, *, is_owed: bool = False) -> None:
        """Record and apply the outcome of a delivery."""
        commits, message = self._commits, out.message
        now = commits.now(now)
        self._sender.counters.receipts += bool(out.terms)
        if out.qos:
            gone = client.flying.pop(packet_id_of(message.seq), None)
            if gone is not None and not gone.is_held:
                client.let_go(gone)
        for terms in out.terms:
            seq = commits.seq
            if out.via is RETAINED:  # marked as such: a replay must not take it for the receipt of a held message
                commits.append(self._of_retained(seq, now, terms, client, message, outcome))
            elif outcome is Outcome.DELIVERED:
                commits.append_body(receipt_body(seq, now, terms.receipt, message.seq, out.via), now)
            else:
                commits.append(self._new_receipt(seq, now, terms, client, message, outcome))
            is_released_later = out.qos == EXACTLY_ONCE and outcome is Outcome.DELIVERED
            if not (out.is_held or out.via is RETAINED or is_released_later or self._is_kept(client, out)):
                continue  # the node has no record of this delivery
            if is_owed or commits.waiting:
                commits.enter_appended(
                    seq, partial(self._settle_later, client, out, terms, outcome, now), is_owed=is_owed
                )
            else:
                self._settle(client, out, terms, outcome, now)

    def _is_kept(self, client: LiveClient, out: Outgoing) -> bool:
        """Return whether a policy's decision about a delivery is stored; it is until the receipt is applied."""
        return self._policies.are_used and bool(self._policies.find_decisions(client.id, out.message.seq))

    def _settle_later(
        self, client: LiveClient, out: Outgoing, terms: HandOverOptions, outcome: Outcome, now: int
    ) -> None:
        """Apply a receipt that waited for the disk.

        If the device has joined another session meanwhile, whose queue has the same message, record a receipt there
        too.
        """
        seq = out.message.seq
        self._settle(client, out, terms, outcome, now)
        uncounted = client.take_uncounted(seq) if out.is_held else ()
        if uncounted:
            self._receipt(client, out._replace(terms=uncounted), outcome, now)

    def _settle(self, client: LiveClient, out: Outgoing, terms: HandOverOptions, outcome: Outcome, now: int) -> None:
        """Apply a receipt (log record of a delivery's outcome) to the state."""
        if out.is_held:
            settled = self._state.node.settle(now, terms.session, client.id, out.message.seq, outcome, qos=out.qos)
            self._state.perform(settled, now)
        else:
            self._state.node.settle_beside(client.id, out.message.seq, outcome, qos=out.qos)

    def _of_retained(
        self,
        seq: int,
        now: int,
        terms: HandOverOptions,
        client: LiveClient,
        message: KeptNotification,
        outcome: Outcome = Outcome.DELIVERED,
    ) -> Receipt:
        """Return the receipt of a retained message, with a copy of the message's subject, time and body hash.

        The message may be replaced later, so no later step can look up these values.
        """
        return replace(
            self._new_receipt(seq, now, terms, client, message, outcome),
            body_hash=hashlib.sha256(message.payload).digest() if outcome is Outcome.DELIVERED else None,
            via=RETAINED,
            published_at=message.published_at,
            subject=message.subject,
        )

    def _new_receipt(
        self,
        seq: int,
        now: int,
        terms: HandOverOptions,
        client: LiveClient,
        message: KeptNotification,
        outcome: Outcome,
    ) -> Receipt:
        node = self._commits.node
        return Receipt(
            node=node,
            seq=seq,
            handed_at=now,
            session=terms.session,
            device=client.id,
            notification=NotificationId(node, message.seq),
            outcome=outcome,
            subscriptions=tuple(SubscriptionIdentity(*identity) for identity in terms.identities),
        )


def _is_begun(out: Outgoing) -> bool:
    """Return whether a QoS 2 delivery has begun and must be completed even if it has expired (4.3.3)."""
    return out.qos == EXACTLY_ONCE and out.dup
