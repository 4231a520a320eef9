"""Connected clients: the messages queued and in flight for each, and the answers they owe (MQTT 5, 4.3 and 4.9).

A client outlives its connections for as long as its session exists. Messages in flight are kept here in memory and
nowhere on disk: when the client returns, the hold (the queues of all sessions) delivers again each message without a
receipt.
Rule: at most *receive maximum* messages are in flight; the rest waits, in the order in which the hold delivered it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from whimbrel.broker.access.keyring import NO_KEYS_AT_ALL, Keyring
from whimbrel.broker.limits.memory import RETAINED_COPY_BYTES, Memory
from whimbrel.broker.limits.rate_limits import Meter
from whimbrel.broker.wire.listener_rules import OPEN_LISTENER, ListenerRules
from whimbrel.broker.wire.stalled_publications import StalledPublications
from whimbrel.hold.access import Right
from whimbrel.hold.commands import Identity
from whimbrel.hold.sessions import RETAINED
from whimbrel.model.bounds import INT32_MAX
from whimbrel.model.facts import Mode
from whimbrel.mqtt.packets import Packet
from whimbrel.mqtt.server import Phase, ServerConnection
from whimbrel.node.clients import StoredClient
from whimbrel.node.memory import IDENTIFIER_BYTES, KEY_BYTES, MemoryCount
from whimbrel.node.publication import KeptNotification, packet_id_of

__all__ = ["HELD", "LIVE", "HandOverOptions", "Joining", "Link", "LiveClient", "Outgoing"]


_NOTED_STEP = 1 << 16
"""Least change, in bytes, of the queued messages outside the hold at which the memory counter is updated."""
LIVE, HELD = "live", "held"
"""Values of ``Receipt.via`` for messages that are not retained: delivered directly, or from a session's queue."""


class HandOverOptions(NamedTuple):
    """Delivery options of a session for one combination of its subscriptions; computed once and cached."""

    session: str
    identities: tuple[Identity, ...]
    identifiers: tuple[int, ...]
    keeps_retain: bool
    receipt: bytes
    """The first bytes of each receipt's record, which are the same every time."""
    granted: int
    """The highest QoS that was granted to one of the subscriptions."""
    is_plain: bool
    """Whether each subscription gets a plain copy of every match: no share, policy, No Local or max of 0."""
    policies: tuple[str | None, ...]
    """For each subscription its policy's name, or None."""


class Outgoing(NamedTuple):
    """A message that is queued for, or in flight to, a client."""

    message: KeptNotification
    qos: int
    retain: bool
    dup: bool
    identifiers: tuple[int, ...]
    terms: tuple[HandOverOptions, ...]
    """Delivery options of each session that the message is delivered for."""
    is_held: bool = True
    """Whether the hold keeps the message, so that the hold must be given its receipt."""
    via: str = LIVE
    is_decided: bool = False
    """Whether a policy has decided about the message; *message* is then the result of the policy."""


class Joining(NamedTuple):
    """A named session that a device may join."""

    session: str
    mode: Mode
    rights: frozenset[Right]
    access: str | None
    """The session's access rules when the rights were checked; if they have changed since, the rights are checked
    again."""


class Link:
    """A connection in the core (the broker without I/O); *shell* is the object that carries the bytes."""

    __slots__ = (
        "address",
        "after_seq",
        "behind",
        "client",
        "closing",
        "confirms",
        "has_assigned_id",
        "heard_at",
        "held",
        "incoming_bytes",
        "is_busy",
        "is_choked",
        "is_dirty",
        "is_heard",
        "is_lagging",
        "is_ours",
        "is_plain",
        "is_unread",
        "joining",
        "keep_alive_us",
        "keyring",
        "last_at",
        "listener",
        "machine",
        "meter",
        "numbered_by",
        "opened_at",
        "out",
        "parked",
        "retained",
        "rights",
        "room",
        "shaping",
        "shaping_since",
        "shell",
        "stalled",
        "unsent",
        "unsent_bytes",
        "user",
        "user_epoch",
        "verified_user",
    )

    def __init__(
        self,
        machine: ServerConnection,
        shell: object,
        address: str,
        *,
        verified_user: str | None,
        listener: ListenerRules = OPEN_LISTENER,
    ) -> None:
        self.machine, self.shell, self.address = machine, shell, address
        self.verified_user, self.listener = verified_user, listener
        self.held = machine.held
        """The bytes that arrived and are not decoded yet."""
        self.incoming_bytes = 0
        """Memory counted for bytes that arrived over the connection and are not handled yet."""
        self.out: list[bytes] = []
        self.retained: dict[tuple[str, str, str], int] = {}
        """Subscriptions (session, topic filter, name) that get retained messages, with the last SUBSCRIBE's seq."""
        self.client: LiveClient | None = None
        self.user: str | None = None
        self.has_assigned_id = False  # the broker chose its client identifier, so no right to use it is needed
        self.user_epoch: int | None = None  # ``UserCheck.epoch`` when its user was verified; None: not verified yet
        self.closing: str | None = None
        """Why the connection is to be closed when everything in ``out`` is written; None while it stays open."""
        # Choked: the client reads too slowly, so nothing that can wait is sent. Confirming: its QoS 0 deliveries have
        # receipts even if it reads fast enough. Lagging: its buffer is full; its QoS 0 copies wait, with receipts.
        self.is_choked = self.confirms = self.is_lagging = False
        self.room = INT32_MAX
        """How many more bytes may wait to be written to the connection; see ``gate.has_room``."""
        # shaping: the transform that its client waits for; nothing else is sent meanwhile. after_seq: the seq of the
        # decision about the bytes in ``out``, which are not written before the log has it. unsent: copies with a
        # decision that wait for the disk.
        self.shaping: object | None = None
        self.shaping_since: int | None = None
        """Time since which it has waited for one transform after the other; None while it waits for none."""
        self.after_seq = self.unsent = self.unsent_bytes = 0
        self.is_dirty = self.is_ours = False
        """Whether its CONNECT carried ``whimbrel=1``: see ``own_properties``."""
        self.is_plain = True
        """Whether it has no topic aliases, packet limit or mount point, so packets encoded for other clients fit it."""
        self.numbered_by: str | None = None
        """The node's name, if copies carry their notification's id because a SUBSCRIBE here used ``since``."""
        self.keep_alive_us = self.last_at = 0
        self.is_heard = True
        """Whether bytes arrived since the last check for timeouts."""
        self.is_unread = False
        """Whether the broker has paused reading from it, so that a lack of bytes does not count as silence."""
        self.opened_at: int | None = None
        self.heard_at = 0
        """Times of its first check and of its last bytes, by the clock of ``Broker.end_silent``."""
        self.parked: object | None = None
        """A CONNECT that is being answered; bytes that arrive meanwhile wait undecoded in the machine."""
        # busy: one of its packets is handled over several turns; the packets ``behind`` wait.
        self.is_busy, self.behind = False, list[Packet]()
        self.stalled: StalledPublications | None = None
        self.meter: Meter | None = None
        """Its rate-limit meter, from the answer to CONNECT on; None without rate limits."""
        self.joining: tuple[Joining, ...] = ()
        """The named sessions that its CONNECT asks for and may join; the first is its home."""
        self.rights: dict[str, frozenset[Right]] = {}
        """The named sessions joined over this connection, and the client's rights in each."""
        self.keyring = NO_KEYS_AT_ALL
        """The security keys of everything that is published and subscribed to over the connection."""

    @property
    def home(self) -> str | None:
        """The named session that SUBSCRIBE applies to; None if it applies to the private session."""
        return self.joining[0].session if self.joining else None

    def set_keyring(self, keyring: Keyring, memory: Memory) -> None:
        """Replace the connection's keys, and count their memory."""
        memory.counted += KEY_BYTES * (len(keyring) - len(self.keyring))
        self.keyring = keyring

    def is_here(self) -> bool:
        """Return whether the connection is open and not about to be closed."""
        return self.closing is None


class LiveClient(StoredClient):
    """A client of a running broker: its connection, if it has one, and its queued and in-flight messages."""

    __slots__ = (
        "_again",
        "_also",
        "_noted_bytes",
        "_retained_counted_bytes",
        "_retained_waiting",
        "asked",
        "flying",
        "id_bytes",
        "link",
        "live",
        "live_bytes",
        "note_above",
        "note_below",
        "queue",
        "queued_bytes",
        "receiving",
        "releases",
        "reported_sent",
        "sent",
        "sent_seq",
    )

    def __init__(self, client_id: str, session: str, memory: MemoryCount) -> None:
        super().__init__(client_id, session, memory)
        self._noted_bytes = self._retained_waiting = self._retained_counted_bytes = 0
        self.note_above, self.note_below = _NOTED_STEP, -_NOTED_STEP
        """While ``queued_bytes`` is between these two values, the counted memory need not change."""
        self.id_bytes = client_id.encode()
        self.link: Link | None = None
        self.receiving: set[int] = set()
        """Packet identifiers of QoS 2 publications that wait for fsync."""
        self.asked: set[int] = set()
        """Packet ids of QoS 2 requests and reports that were answered or refused; lost in a restart."""
        self.releases: set[int] = set()
        """Packet ids of QoS 2 deliveries between PUBREC and PUBCOMP; a restart keeps those in ``releasing``."""
        self.flying: dict[int, Outgoing] = {}
        self.queue: deque[Outgoing] = deque()
        self.live: deque[Outgoing] = deque()
        """QoS 0 copies with receipts for the private session; they wait for buffer space, not for an ack."""
        self.live_bytes = 0
        """Bytes of the copies in ``live``."""
        self.queued_bytes = 0
        """Bytes of all waiting copies, and of the copies in flight that are not in the hold."""
        self.sent_seq = 0
        """The largest seq in the hold that was sent over the current connection."""
        self.sent = 0
        """PUBLISH packets due to the client since this broker started: written, waiting for the receive window, or
        dropped because its buffer was full. Messages that a policy or its rights withheld do not count."""
        self.reported_sent: int | None = None
        """The value of ``sent`` at its last report, or when its session began; None if the broker started since."""
        self._again: list[Outgoing] = []
        self._also: dict[int, tuple[HandOverOptions, ...]] = {}
        """Per seq, the delivery options of further sessions for which a waiting copy counts."""

    def count_retained(self) -> None:
        """Count the memory of the retained messages that wait for the client."""
        size = RETAINED_COPY_BYTES * self._retained_waiting
        self._memory.counted += size - self._retained_counted_bytes
        self._retained_counted_bytes = size

    def put(self, out: Outgoing) -> None:
        """Queue a copy of a message that is not retained."""
        self.sent += 1
        self.queue.append(out)
        self.queued_bytes += len(out.message.record)

    def let_go(self, out: Outgoing) -> None:
        """Subtract a confirmed copy that is not in the hold (store of queued messages) from the queued bytes."""
        if not out.is_held and out.via is not RETAINED:
            self.queued_bytes -= len(out.message.record)

    def note_queued(self) -> None:
        """Update the memory count of queued bytes outside the hold, if they changed by ``_NOTED_STEP``."""
        if self.note_below < self.queued_bytes <= self.note_above:
            return
        size = self.queued_bytes if not self.expiry_us else self.live_bytes
        noted = -(-size // _NOTED_STEP) * _NOTED_STEP if size > _NOTED_STEP else 0
        self._memory.counted += noted - self._noted_bytes
        self._noted_bytes = noted
        step = self.queued_bytes // _NOTED_STEP * _NOTED_STEP
        self.note_above, self.note_below = step + _NOTED_STEP, step - _NOTED_STEP

    def put_retained(self, found: list[Outgoing], terms: tuple[HandOverOptions, ...]) -> None:
        """Queue the retained messages *found* for a subscription, replacing those left from an earlier SUBSCRIBE.

        Their bytes do not count as queued: the messages are stored anyway, and a client with many subscriptions is not
        slow because of them.
        """
        if any(out.via == RETAINED for out in self.queue):
            waiting, self.queue = (
                self.queue,
                deque(out for out in self.queue if out.via != RETAINED or out.terms != terms),
            )
            self.sent -= len(waiting) - len(self.queue)
            self._retained_waiting -= len(waiting) - len(self.queue)
        self.extend_retained(found)

    def extend_retained(self, found: list[Outgoing]) -> None:
        """Queue more retained messages."""
        self.sent += len(found)
        self.queue.extend(found)
        self._retained_waiting += len(found)
        self.count_retained()

    def put_live(self, out: Outgoing) -> None:
        """Queue a QoS 0 copy that waits only for buffer space."""
        self.sent += 1
        self.live.append(out)
        size = len(out.message.record)
        self.live_bytes += size
        self.queued_bytes += size

    def put_behind(self, message: KeptNotification, identifiers: tuple[int, ...], *, retain: bool) -> None:
        """Queue a QoS 0 copy without a receipt behind the copies with receipts, so that it does not overtake them."""
        self.put_live(Outgoing(message, 0, retain, False, identifiers, (), is_held=False))

    @property
    def unshed_bytes(self) -> int:
        """Queued bytes, without those of the QoS 0 copies that ``shed`` can drop."""
        waiting = sum(len(out.message.record) for out in self.queue if not out.qos and out.via is not RETAINED)
        return self.queued_bytes - self.live_bytes - waiting

    def shed(self, most_bytes: int, room: int = 0) -> list[Outgoing]:
        """Remove the newest waiting QoS 0 copies until at most *most_bytes* of them wait; return the removed copies.

        The copies that fit into *room*, the free bytes of the connection's buffer, are not removed and do not count,
        since they will be sent soon. The last copy that counts as fitting may be longer than the remaining room.
        """
        shed: list[Outgoing] = []
        for queue in (self.live, self.queue):
            while self.queued_bytes > most_bytes + room and queue and not queue[-1].qos and queue[-1].via != RETAINED:
                size = len(queue[-1].message.record)
                if queue is self.live:
                    before = self.live_bytes - size
                else:
                    before = self.queued_bytes - size if self.live or len(queue) > 1 else 0
                if before < room:
                    break
                shed.append(queue.pop())
                self.queued_bytes -= size
                if queue is self.live:
                    self.live_bytes -= size
        return shed

    def land(self) -> None:
        """Clear the queued and in-flight copies after the connection ended; the hold will deliver its copies again.

        The hold is the store of queued messages. Retained messages are not in it, so unacknowledged ones are kept here.
        """
        self.sent -= len(self.queue) + len(self.live)  # these copies count again when they are delivered again
        self._again += [out._replace(dup=True) for out in self.flying.values() if out.via == RETAINED]
        self._again += [out for out in self.queue if out.via == RETAINED and out.qos]
        self._retained_waiting = len(self._again)
        self.count_retained()
        self.flying.clear()
        self.queue.clear()
        self.live.clear()
        self._also.clear()
        self.queued_bytes = self.live_bytes = 0
        self.note_queued()
        self.receiving.clear()
        self.releases.clear()

    def put_again(self) -> None:
        """Queue the unacknowledged retained messages of the last connection again."""
        again, self._again = self._again, []
        self._retained_waiting -= len(again)
        self.extend_retained(again)

    def remember_answer(self, identifier: int) -> None:
        """Remember the packet id of a QoS 2 publication that was answered or refused, until its PUBREL."""
        if identifier not in self.asked:
            self.asked.add(identifier)
            self._memory.counted += IDENTIFIER_BYTES

    def forget_answer(self, identifier: int) -> None:
        """Forget the packet id of a publication that was answered or refused."""
        if identifier in self.asked:
            self.asked.discard(identifier)
            self._memory.counted -= IDENTIFIER_BYTES

    def end(self) -> None:
        """Drop all messages that wait for the client, because its session ended."""
        self.land()
        self._memory.counted -= IDENTIFIER_BYTES * len(self.asked)
        self.asked.clear()
        self._again.clear()
        self._retained_waiting = 0
        self.count_retained()

    @property
    def open_room(self) -> int:
        """Bytes that the connection can take now, before the client must read or acknowledge something."""
        link, queue = self.link, self.queue
        if not (queue or self.live) or link is None or link.room <= 0 or link.machine.phase is not Phase.OPEN:
            return 0
        if link.parked is not None:  # the queues of the sessions that it is joining come first
            return 0
        if self.live or not queue[0].qos:  # no acknowledgement is needed
            return link.room
        if len(self.flying) + len(self.releases) >= link.machine.receive_maximum:
            return 0
        identifier = packet_id_of(queue[0].message.seq)
        if identifier in self.flying or identifier in self.releases:
            return 0  # the next packet id is still in use, by the message 65,535 before
        return link.room

    def next_to_send(self) -> Outgoing | None:
        """Return the next copy that may be sent now, or None; at QoS 1 or 2 the copy is in flight then."""
        if not self.open_room or self.link is None or self.link.shaping is not None:
            return None
        if self.live:
            out = self.live.popleft()
            size = len(out.message.record)
            self.live_bytes -= size
            self.queued_bytes -= size
            return out
        out = self._next()
        if not out.qos:
            return out
        self.flying[packet_id_of(out.message.seq)] = out
        if out.is_held:
            self.sent_seq = max(self.sent_seq, out.message.seq)
        return out

    def _next(self) -> Outgoing:
        out = self.queue.popleft()
        if out.via is not RETAINED:
            if out.is_held or not out.qos:  # otherwise it counts until it is confirmed
                self.queued_bytes -= len(out.message.record)
        else:
            self._retained_waiting -= 1
            self.count_retained()
        if self._also and out.is_held:
            for terms in self._also.pop(out.message.seq, ()):
                out = out._replace(terms=(*out.terms, terms), identifiers=(*out.identifiers, *terms.identifiers))
        return out

    def arrange(self) -> None:
        """Sort the queue by seq: a session that was just joined added older notifications."""
        self.queue = deque(sorted(self.queue, key=lambda out: out.message.seq))

    def count(self, seq: int, terms: HandOverOptions) -> None:
        """Add one more session, with its delivery options *terms*, to a copy that is queued or in flight."""
        flying = self.flying.get(packet_id_of(seq))
        if flying is not None and flying.is_held and flying.message.seq == seq:
            self.flying[packet_id_of(seq)] = flying._replace(terms=(*flying.terms, terms))
        else:
            self._also[seq] = (*self._also.get(seq, ()), terms)

    def take_uncounted(self, seq: int) -> tuple[HandOverOptions, ...]:
        """Remove and return delivery options that were added to a copy (``count``) after its acknowledgement."""
        return self._also.pop(seq, ())

    def last_sent(self, session: str) -> int:
        """Return the seq of the newest unconfirmed copy that was sent for a session, or 0."""
        sent = (out.message.seq for out in self.flying.values() if out.is_held and _counts_for(out, session))
        return max(sent, default=0)

    def withdraw(self, session: str, *, is_deleted: bool) -> None:
        """Stop sending for a session; receipts of copies already sent still count for it, unless it was deleted."""
        if is_deleted:
            for identifier, out in self.flying.items():
                self.flying[identifier] = _without(out, session)
        waiting, self.queue = self.queue, deque()
        self.sent -= len(waiting)  # copies that stay are counted again
        self._retained_waiting = 0
        unheld = (out for out in self.flying.values() if not out.is_held and out.via is not RETAINED)
        self.queued_bytes = sum(len(out.message.record) for out in (*self.live, *unheld))
        for out in waiting:
            also = self._also.pop(out.message.seq, ()) if out.is_held else ()
            left = _without(out._replace(terms=(*out.terms, *also)), session)
            if left.terms and left.via is RETAINED:
                self.extend_retained([left])
            elif left.terms:
                self.put(left)
        self.count_retained()


def _counts_for(out: Outgoing, session: str) -> bool:
    return any(terms.session == session for terms in out.terms)


def _without(out: Outgoing, session: str) -> Outgoing:
    """Return *out* without a session's delivery options and without its subscription identifiers."""
    left = tuple(terms for terms in out.terms if terms.session != session)
    return out._replace(terms=left, identifiers=tuple(each for terms in left for each in terms.identifiers))
