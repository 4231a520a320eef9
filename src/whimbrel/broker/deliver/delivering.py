"""Delivering: QoS 1 and 2 from the hold to a client, and back with its receipt (MQTT 5, 4.3 and 4.4)."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from whimbrel.broker.deliver.shaping import Shaping
from whimbrel.broker.settings.config import Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.wire.clients import Link, LiveClient, Outgoing, Terms
from whimbrel.broker.wire.gate import Gate
from whimbrel.broker.wire.sender import Sender
from whimbrel.hold.sessions import RETAINED
from whimbrel.log.compact import receipt_body
from whimbrel.model.facts import Outcome, PresenceChange, PresenceChanged, Receipt
from whimbrel.model.notification import EXACTLY_ONCE, NotificationId
from whimbrel.model.subscription import SubscriptionIdentity
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, Puback, Pubrec, Pubrel
from whimbrel.mqtt.properties import NO_PROPERTIES
from whimbrel.node.publication import KeptNotification, packet_id_of

__all__ = ["Delivering"]

_PUBREL = b"\x62\x02"
_MAX_SENT = 1_000
"""How many messages one client is sent in a turn of the event loop: some 5 µs each."""
_MAX_DECIDED = 320
"""As how many messages the decisions of one turn may count, for several clients together: eight cheap decisions, some
1.5 ms. What a turn costs besides, such as writing to the log, is then shared by them."""


class Delivering:
    """What is on its way to clients."""

    def __init__(self, config: Config, commits: CommitQueue, state: BrokerState, sender: Sender, gate: Gate) -> None:
        self._most_bytes = config.limits.send_buffer_bytes
        self._policies = state.decisions
        self._commits, self._state, self._sender, self._gate = commits, state, sender, gate
        self.shaping = Shaping(
            commits,
            state,
            config.policies.limits,
            config.policies.steps_per_second,
            send=self._send,
            withhold=self._withhold,
            go_on=self._take_turn,
            go_on_later=self._decide_later,
        )
        self._unfinished: deque[LiveClient] = deque()
        """Clients to which more may be sent,"""
        self._deciding: dict[LiveClient, None] = {}
        """and those for whom policies decide what is next, in order."""

    @property
    def has_work(self) -> bool:
        """Whether ``go_on`` has something to do."""
        return bool(self._unfinished or self._deciding)

    def pump_ready(self, now: int) -> None:
        """Send to each client that something was handed over to; where a policy decides, in a turn of its own.

        So the others have theirs before: a decision takes as long as sending to a hundred.
        """
        ready = self._state.volatile.ready
        while ready:
            client = ready.pop()
            if client not in self._deciding:
                if self._policies.are_used and self.shaping.is_next(client):
                    self._deciding[client] = None
                else:
                    self.pump(client, now)
            self._bound(client, now)

    def _bound(self, client: LiveClient, now: int) -> None:
        """Drop what waits for a client beyond what may."""
        queued_bytes, most = client.queued_bytes, self._most_bytes
        is_noted = client.note_below < queued_bytes <= client.note_above
        if is_noted and queued_bytes <= most and not (client.queue or client.live):
            return  # it has all in flight, and that is little
        if queued_bytes and (queued_bytes > most or not self._state.memory.has_room()):
            self._shed(client, now)
        client.note_queued()
        has_several = len(client.flying) + len(client.queue) > 1  # a single copy may be longer than what may wait
        is_far_behind = has_several and client.queued_bytes > 2 * most and client.unshed_bytes > 2 * most
        if is_far_behind and not client.expiry_us and client.link is not None:
            # Its session ends with the connection, so nothing is held for it: what waits must not grow for ever.
            self._sender.counters.slow_readers += 1
            reason = f"more than {2 * most} bytes wait to be sent, or to be acknowledged"
            self._sender.fail(client.link, ReasonCode.QUOTA_EXCEEDED, reason)

    def _shed(self, client: LiveClient, now: int) -> None:
        """Drop QoS 0 that cannot wait any longer; what there is room for in the connection waits for its turn alone."""
        if self._state.memory.has_room():
            most, room = self._most_bytes, client.open_room
        else:
            most, room = 0, min(client.open_room, 1)  # what is next, and no more
        for out in client.shed(most, room):
            self._receipt(client, out, Outcome.DROPPED, now)

    def pump(self, client: LiveClient, now: int) -> int:
        """Send a client what may be sent to it now, as much as a turn may take; the rest in others, see ``go_on``.

        Return as how many messages that counts.
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
                client.sent -= 1  # a newer one has come while it waited for room, and was sent, or dropped
            elif policies.are_used and self.shaping.is_for(client, out):
                left -= self.shaping.begin(client, link, out, now)
            elif link.unsent:
                self.shaping.send_behind(client, link, out)
            else:
                self._send(client, link, out, now)
        self._unfinished.append(client)
        return _MAX_SENT

    def _send(self, client: LiveClient, link: Link, out: Outgoing, now: int) -> None:
        """Send what may be sent."""
        if out.is_decided and out.qos:
            identifier = packet_id_of(out.message.seq)
            flying = client.flying.get(identifier)
            if flying is None or flying.message.seq != out.message.seq:
                return  # it was taken back while the disk was waited for
            client.flying[identifier] = flying._replace(message=out.message, is_decided=True)
        if not out.qos:
            is_sent = self._sender.copy(link, out.message, out.identifiers, now, retain=out.retain)
            client.sent -= not is_sent
            if out.via is not RETAINED or out.is_decided:
                self._receipt(client, out, Outcome.DELIVERED if is_sent else Outcome.DROPPED, now)
        elif not self._sender.hand_over(link, out, now):
            client.sent -= 1
            self._receipt(client, out, Outcome.DROPPED, now)  # longer than the client takes

    def _withhold(self, client: LiveClient, out: Outgoing, now: int) -> None:
        """Take in that policies sent nothing of a message."""
        client.sent -= 1  # it was not due to the device
        self._receipt(client, out, Outcome.WITHHELD, now)

    def go_on(self, now: int) -> None:
        """Send more to one of those who had as much as a turn may take, or what policies decide about for several."""
        if self._unfinished:
            self._take_turn(self._unfinished.popleft(), now)
        spent = 0
        while self._deciding and spent < _MAX_DECIDED:
            client = next(iter(self._deciding))
            del self._deciding[client]
            spent += self._take_turn(client, now)

    def _take_turn(self, client: LiveClient, now: int) -> int:
        """Send a client what it is its turn for, and drop what waits beyond what may now that this is sent."""
        spent = self.pump(client, now)
        self._bound(client, now)
        return spent

    def wake(self, now: int) -> None:
        """Go on, in turns of their own, with devices that waited because of their policies' steps."""
        for client in self.shaping.wake(now):
            self._decide_later(client)

    def _decide_later(self, client: LiveClient) -> None:
        self._deciding.setdefault(client)

    def resume(self, client: LiveClient, link: Link) -> None:
        """Go on with what was received and not yet completed when the client was here before."""
        client.releases = set(client.releasing)
        for identifier in sorted(client.releases):
            self._sender.send(link, _PUBREL + identifier.to_bytes(2))

    def acknowledged(self, client: LiveClient, packets: Sequence[Puback], now: int) -> None:
        """Take in that a client has QoS 1 hand-overs."""
        commits, flying = self._commits, client.flying
        append, now, receipts, confirmed, seq = commits.append_body, commits.now(now), 0, 0, 0
        for packet in packets:
            identifier = packet.packet_id
            out = flying.get(identifier)
            if out is None:
                if identifier in client.releases:  # PUBREL is answered by PUBCOMP alone (4.3.3)
                    self._wrong_kind(client, "PUBACK", identifier, EXACTLY_ONCE)
                    break
                continue  # late, or made up: nothing hangs on it
            if out.qos != 1:
                self._wrong_kind(client, "PUBACK", identifier, out.qos)
                break
            if out.is_held or self._is_kept(client, out):
                self._receipt(client, out, Outcome.DELIVERED, now)
                seq = 0
                continue
            del flying[identifier]  # the hold does not know of it, so this is all
            receipts += 1
            message, via = out.message, out.via
            if via is RETAINED:
                for terms in out.terms:
                    seq = commits.seq
                    commits.append(self._of_retained(seq, now, terms, client, message))
                    settle = partial(self._settle, client, out, terms, Outcome.DELIVERED, now)
                    commits.enter_appended(seq, settle, is_owed=False)
                seq = 0
                continue
            confirmed += len(message.record)
            for terms in out.terms:
                seq = append(receipt_body(seq or commits.seq, now, terms.receipt, message.seq, via), now) + 1
        client.queued_bytes -= confirmed
        self._sender.counters.receipts += receipts
        client.note_queued()
        if client.queue:
            self.pump(client, now)

    def received(self, client: LiveClient, link: Link, packet: Pubrec, now: int) -> None:
        """Take in that a client has a QoS 2 hand-over; it is released once that is written."""
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
        if packet.code >= ReasonCode.UNSPECIFIED_ERROR:  # it will not have it: nothing is to be released
            self._receipt(client, out, Outcome.DROPPED, now)
            self.pump(client, now)
            return
        client.releases.add(identifier)
        self._receipt(client, out, Outcome.DELIVERED, now, is_owed=client.is_persistent)
        self._commits.then(partial(self._release, client, link, identifier))

    def _release(self, client: LiveClient, link: Link, identifier: int) -> None:
        if client.link is link:
            self._sender.send(link, _PUBREL + identifier.to_bytes(2))

    def completed(self, client: LiveClient, identifier: int, now: int) -> None:
        """Take in that a QoS 2 hand-over is over, and its identifier free."""
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
        # Not owed: after a crash PUBREL is sent once more, and the client says again that it knows nothing of it.
        self._commits.enter(fact, partial(self._state.apply, fact), is_owed=False)
        self.pump(client, now)

    def _wrong_kind(self, client: LiveClient, kind: str, identifier: int, qos: int) -> None:
        """Close the connection: what is in flight is acknowledged by another packet [MQTT-4.8.0-1 in 3.1.1]."""
        assert client.link is not None
        reason = f"{kind} for packet identifier {identifier}, under which a publication of QoS {qos} was sent"
        self._sender.counters.protocol_errors += 1
        self._sender.fail(client.link, ReasonCode.PROTOCOL_ERROR, reason)

    def _receipt(self, client: LiveClient, out: Outgoing, outcome: Outcome, now: int, *, is_owed: bool = False) -> None:
        """Write down and apply what became of a hand-over."""
        commits, message = self._commits, out.message
        now = commits.now(now)
        self._sender.counters.receipts += bool(out.terms)
        if out.qos:
            gone = client.flying.pop(packet_id_of(message.seq), None)
            if gone is not None and not gone.is_held:
                client.let_go(gone)
        for terms in out.terms:
            seq = commits.seq
            if out.via is RETAINED:  # else a replay takes it for the receipt of a copy that the hold has
                commits.append(self._of_retained(seq, now, terms, client, message, outcome))
            elif outcome is Outcome.DELIVERED:
                commits.append_body(receipt_body(seq, now, terms.receipt, message.seq, out.via), now)
            else:
                commits.append(self._undelivered(seq, now, terms, client, message, outcome))
            is_released_later = out.qos == EXACTLY_ONCE and outcome is Outcome.DELIVERED
            if not (out.is_held or out.via is RETAINED or is_released_later or self._is_kept(client, out)):
                continue  # the node knows nothing of it
            if is_owed or commits.waiting:
                commits.enter_appended(
                    seq, partial(self._settle_later, client, out, terms, outcome, now), is_owed=is_owed
                )
            else:
                self._settle(client, out, terms, outcome, now)

    def _is_kept(self, client: LiveClient, out: Outgoing) -> bool:
        """Return whether a decision about a copy is kept, until the receipt is applied."""
        return self._policies.are_used and bool(self._policies.kept(client.id, out.message.seq))

    def _settle_later(self, client: LiveClient, out: Outgoing, terms: Terms, outcome: Outcome, now: int) -> None:
        """Apply a receipt that waited for the disk.

        A session whose joining stood before it has been told meanwhile that this copy counts there too.
        """
        seq = out.message.seq
        self._settle(client, out, terms, outcome, now)
        uncounted = client.uncounted(seq) if out.is_held else ()
        if uncounted:
            self._receipt(client, out._replace(terms=uncounted), outcome, now)

    def _settle(self, client: LiveClient, out: Outgoing, terms: Terms, outcome: Outcome, now: int) -> None:
        """Apply a receipt."""
        if out.is_held:
            settled = self._state.node.settle(now, terms.session, client.id, out.message.seq, outcome, qos=out.qos)
            self._state.perform(settled, now)
        else:
            self._state.node.settle_beside(client.id, out.message.seq, outcome, qos=out.qos)

    def _of_retained(
        self,
        seq: int,
        now: int,
        terms: Terms,
        client: LiveClient,
        message: KeptNotification,
        outcome: Outcome = Outcome.DELIVERED,
    ) -> Receipt:
        """Return the receipt of a retained message, which says what it was: no later step needs it."""
        return replace(
            self._undelivered(seq, now, terms, client, message, outcome),
            body_hash=hashlib.sha256(message.payload).digest() if outcome is Outcome.DELIVERED else None,
            via=RETAINED,
            published_at=message.published_at,
            subject=message.subject,
        )

    def _undelivered(
        self, seq: int, now: int, terms: Terms, client: LiveClient, message: KeptNotification, outcome: Outcome
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
    """Tell whether a delivery is brought to its end, expired or not: it was begun at QoS 2 (4.3.3)."""
    return out.qos == EXACTLY_ONCE and out.dup
