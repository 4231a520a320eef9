"""Clients: what is on its way to each, and what it still has to answer (MQTT 5, 4.3 and 4.9).

A client outlives its connections as long as its session does. What is in flight stands here and nowhere on disk: the
hold hands everything that has no receipt over again when the client comes back.
Rule: at most *receive maximum* are in flight; the rest waits in the order it was handed over.
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

__all__ = ["HELD", "LIVE", "Joining", "Link", "LiveClient", "Outgoing", "Terms"]


_NOTED_STEP = 1 << 16
"""What waits for a client and is not held is counted in steps of so many bytes."""
LIVE, HELD = "live", "held"
"""How a message comes that is not retained, as receipts say it."""


class Terms(NamedTuple):
    """What a session's subscriptions say about handing over, worked out once per combination of them."""

    session: str
    identities: tuple[Identity, ...]
    identifiers: tuple[int, ...]
    keeps_retain: bool
    receipt: bytes
    """The beginning of a receipt, which is the same every time."""
    granted: int
    """The highest QoS that was granted."""
    is_plain: bool
    """Whether they only ask for copies: for all who have them, and of everything."""
    policies: tuple[str | None, ...]
    """The policy of each subscription, if it has one."""


class Outgoing(NamedTuple):
    """A message for a client."""

    message: KeptNotification
    qos: int
    retain: bool
    dup: bool
    identifiers: tuple[int, ...]
    terms: tuple[Terms, ...]
    """For which sessions it counts."""
    is_held: bool = True
    """Whether the hold holds it, and is told of the receipt."""
    via: str = LIVE
    is_decided: bool = False
    """Whether a policy has decided about it, so that the message is what came of that."""


class Joining(NamedTuple):
    """A named session that a device may join."""

    session: str
    mode: Mode
    rights: frozenset[Right]
    access: str | None
    """Who might do what in it when this was decided; if that has changed, it is decided anew."""


class Link:
    """A connection as the core sees it; *shell* is whatever carries the bytes."""

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
        """The bytes that came and are not decoded yet."""
        self.incoming_bytes = 0
        """How many bytes it is counted with that came and are not handled yet."""
        self.out: list[bytes] = []
        self.retained: dict[tuple[str, str, str], int] = {}
        """Subscriptions, by session, topic filter and name, to which retained messages are sent in pieces, and the seq
        of the last SUBSCRIBE to each: only for that one it goes on."""
        self.client: LiveClient | None = None
        self.user: str | None = None
        self.has_assigned_id = False  # the broker chose its client identifier, which needs no right
        self.user_epoch: int | None = None  # which users file decided who it is (``UserCheck.epoch``); None: none yet
        self.closing: str | None = None
        """Why it is to be closed, once what is in ``out`` is written."""
        # Choked, its client reads too slowly: nothing more is sent that can wait. Confirming, its QoS 0 hand-overs have
        # receipts whether or not it reads too slowly. Lagging, there is no room: its QoS 0 hand-overs wait, and have
        # receipts.
        self.is_choked = self.confirms = self.is_lagging = False
        self.room = INT32_MAX
        """How many more bytes may wait to be written to it; see ``gate.has_room``."""
        # A body that is being made for its client: nothing else is sent meanwhile. Nothing is written to it before the
        # log has ``after_seq``, the decision about what is in ``out``. How many were decided about wait for the disk.
        self.shaping: object | None = None
        self.shaping_since: int | None = None
        """Since when it has been waiting for one body after the other; None if it waits for none."""
        self.after_seq = self.unsent = self.unsent_bytes = 0
        self.is_dirty = self.is_ours = False
        """Its CONNECT carried ``whimbrel=1``: see ``own_properties``."""
        self.is_plain = True
        """No aliases and no bound on packets: what is encoded for others will do."""
        self.numbered_by: str | None = None
        """The node, if copies carry their numbers: something was subscribed to over it with ``since``."""
        self.keep_alive_us = self.last_at = 0
        self.is_heard = True
        """Something came since it was last asked how long nothing came."""
        self.is_unread = False
        """The broker does not read from it for now: what it says is not heard."""
        self.opened_at: int | None = None
        self.heard_at = 0
        """When it was first seen, and last heard, by the clock of ``Broker.end_silent``."""
        self.parked: object | None = None
        """A CONNECT that is being answered; what comes meanwhile waits in the machine, undecoded."""
        # Busy, a packet of it is being handled piece by piece; those that came ``behind`` wait.
        self.is_busy, self.behind = False, list[Packet]()
        self.stalled: StalledPublications | None = None
        self.meter: Meter | None = None
        """What it may send by its rate limits, once its CONNECT is answered; None if there are none."""
        self.joining: tuple[Joining, ...] = ()
        """The named sessions that its CONNECT asks for, which it may join; the first is its home."""
        self.rights: dict[str, frozenset[Right]] = {}
        """The named sessions that were joined over it, and what it may do in each."""
        self.keyring = NO_KEYS_AT_ALL
        """The keys of everything that is published and subscribed to over it."""

    @property
    def home(self) -> str | None:
        """The named session that SUBSCRIBE is for; None if it is for the private one."""
        return self.joining[0].session if self.joining else None

    def set_keyring(self, keyring: Keyring, memory: Memory) -> None:
        """Take *keyring* as its keys from now on, and count them."""
        memory.counted += KEY_BYTES * (len(keyring) - len(self.keyring))
        self.keyring = keyring

    def is_here(self) -> bool:
        """Tell whether it is neither closed nor to be closed."""
        return self.closing is None


class LiveClient(StoredClient):
    """A client of a broker that runs: its connection while there is one, and what waits or is in flight."""

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
        """Between which numbers of queued bytes nothing is to be counted anew."""
        self.id_bytes = client_id.encode()
        self.link: Link | None = None
        self.receiving: set[int] = set()
        """Packet identifiers of QoS 2 publications that wait for fsync."""
        self.asked: set[int] = set()
        """Packet identifiers of QoS 2 requests and reports that were answered, or were refused: a restart forgets
        them."""
        self.releases: set[int] = set()
        """Packet identifiers of QoS 2 deliveries over this connection: PUBREC came, PUBCOMP did not. ``releasing`` has
        those of them that a restart knows."""
        self.flying: dict[int, Outgoing] = {}
        self.queue: deque[Outgoing] = deque()
        self.live: deque[Outgoing] = deque()
        """QoS 0 for its private session, with receipts: it waits for the link and for no acknowledgement."""
        self.live_bytes = 0
        """Bytes of these copies."""
        self.queued_bytes = 0
        """Bytes that wait, and those in flight that the hold does not have."""
        self.sent_seq = 0
        """The largest number that was sent over its connection, of those that the hold holds."""
        self.sent = 0
        """How many PUBLISH were due to it, over all its connections since this broker knows it: written, waiting behind
        its window, or dropped because its link was full; not what was withheld."""
        self.reported_sent: int | None = None
        """The same when it last reported, or when its session began; None if this broker was started since."""
        self._again: list[Outgoing] = []
        self._also: dict[int, tuple[Terms, ...]] = {}
        """By number, the terms for which something counts that waits, beside its own."""

    def count_retained(self) -> None:
        """Count the memory of the retained messages that wait for it."""
        size = RETAINED_COPY_BYTES * self._retained_waiting
        self._memory.counted += size - self._retained_counted_bytes
        self._retained_counted_bytes = size

    def put(self, out: Outgoing) -> None:
        """Let something wait for its turn that is not retained."""
        self.sent += 1
        self.queue.append(out)
        self.queued_bytes += len(out.message.record)

    def let_go(self, out: Outgoing) -> None:
        """Take in that a copy which the hold does not have is confirmed."""
        if not out.is_held and out.via is not RETAINED:
            self.queued_bytes -= len(out.message.record)

    def note_queued(self) -> None:
        """Count what waits and the hold does not have, in steps, if it changed by one; little counts as nothing."""
        if self.note_below < self.queued_bytes <= self.note_above:
            return
        size = self.queued_bytes if not self.expiry_us else self.live_bytes
        noted = -(-size // _NOTED_STEP) * _NOTED_STEP if size > _NOTED_STEP else 0
        self._memory.counted += noted - self._noted_bytes
        self._noted_bytes = noted
        step = self.queued_bytes // _NOTED_STEP * _NOTED_STEP
        self.note_above, self.note_below = step + _NOTED_STEP, step - _NOTED_STEP

    def put_retained(self, found: list[Outgoing], terms: tuple[Terms, ...]) -> None:
        """Let what is retained for a subscription wait, instead of what still waits for it from a SUBSCRIBE before.

        Its bytes do not count: it is kept anyway, and a client that subscribes to much is not slow for that.
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
        """Let more of what is retained wait."""
        self.sent += len(found)
        self.queue.extend(found)
        self._retained_waiting += len(found)
        self.count_retained()

    def put_live(self, out: Outgoing) -> None:
        """Let a QoS 0 copy wait for the link alone."""
        self.sent += 1
        self.live.append(out)
        size = len(out.message.record)
        self.live_bytes += size
        self.queued_bytes += size

    def put_behind(self, message: KeptNotification, identifiers: tuple[int, ...], *, retain: bool) -> None:
        """Let a live copy that has no receipt wait behind those that have: it must not overtake them."""
        self.put_live(Outgoing(message, 0, retain, False, identifiers, (), is_held=False))

    @property
    def unshed_bytes(self) -> int:
        """How many of the queued bytes are not of QoS 0 copies, of which ``shed`` leaves no more than may wait."""
        waiting = sum(len(out.message.record) for out in self.queue if not out.qos and out.via is not RETAINED)
        return self.queued_bytes - self.live_bytes - waiting

    def shed(self, most_bytes: int, room: int = 0) -> list[Outgoing]:
        """Take away the newest QoS 0 copies that wait, until no more than *most_bytes* do; return them.

        Those for which there is *room* in the connection do not count, and stay: only their turn has not come yet. The
        last of these may be longer than the room that is left for it, as it may when it is sent.
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
        """Take down what was in flight: the connection is gone, and the hold hands it over again.

        Retained messages, which it does not hold, are kept here.
        """
        self.sent -= len(self.queue) + len(self.live)  # it is due again when it is handed over again
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
        """Let what was not acknowledged, and the hold does not hold, wait for its turn again."""
        again, self._again = self._again, []
        self._retained_waiting -= len(again)
        self.extend_retained(again)

    def remember_answer(self, identifier: int) -> None:
        """Remember the packet identifier of a QoS 2 publication that was answered or refused, until PUBREL."""
        if identifier not in self.asked:
            self.asked.add(identifier)
            self._memory.counted += IDENTIFIER_BYTES

    def forget_answer(self, identifier: int) -> None:
        """Forget the packet identifier of a publication that was answered or refused."""
        if identifier in self.asked:
            self.asked.discard(identifier)
            self._memory.counted -= IDENTIFIER_BYTES

    def end(self) -> None:
        """Let go of everything that waits: its session is over."""
        self.land()
        self._memory.counted -= IDENTIFIER_BYTES * len(self.asked)
        self.asked.clear()
        self._again.clear()
        self._retained_waiting = 0
        self.count_retained()

    @property
    def open_room(self) -> int:
        """How many bytes its connection takes of what waits, before the client must read or acknowledge something."""
        link, queue = self.link, self.queue
        if not (queue or self.live) or link is None or link.room <= 0 or link.machine.phase is not Phase.OPEN:
            return 0
        if link.parked is not None:  # what it was held for in the sessions that it is joining comes first
            return 0
        if self.live or not queue[0].qos:  # nothing is to be acknowledged
            return link.room
        if len(self.flying) + len(self.releases) >= link.machine.receive_maximum:
            return 0
        identifier = packet_id_of(queue[0].message.seq)
        if identifier in self.flying or identifier in self.releases:
            return 0  # 65,535 notifications ago; it must be answered first
        return link.room

    def next_to_send(self) -> Outgoing | None:
        """Return what may be sent now, if anything; it is in flight then."""
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
            if out.is_held or not out.qos:  # else it counts until it is confirmed
                self.queued_bytes -= len(out.message.record)
        else:
            self._retained_waiting -= 1
            self.count_retained()
        if self._also and out.is_held:
            for terms in self._also.pop(out.message.seq, ()):
                out = out._replace(terms=(*out.terms, terms), identifiers=(*out.identifiers, *terms.identifiers))
        return out

    def arrange(self) -> None:
        """Put what waits in the order it was accepted: a session that was joined brought what is older."""
        self.queue = deque(sorted(self.queue, key=lambda out: out.message.seq))

    def count(self, seq: int, terms: Terms) -> None:
        """Let a copy that is on its way count for one more session."""
        flying = self.flying.get(packet_id_of(seq))
        if flying is not None and flying.is_held and flying.message.seq == seq:
            self.flying[packet_id_of(seq)] = flying._replace(terms=(*flying.terms, terms))
        else:
            self._also[seq] = (*self._also.get(seq, ()), terms)

    def uncounted(self, seq: int) -> tuple[Terms, ...]:
        """Take the terms that came to count for a copy after it was acknowledged."""
        return self._also.pop(seq, ())

    def last_sent(self, session: str) -> int:
        """Return the number of the newest copy that was sent for a session and is not confirmed; 0 if there is none."""
        sent = (out.message.seq for out in self.flying.values() if out.is_held and _counts_for(out, session))
        return max(sent, default=0)

    def withdraw(self, session: str, *, is_deleted: bool) -> None:
        """Send nothing more for a session; the receipts of what was sent count there unless it is deleted."""
        if is_deleted:
            for identifier, out in self.flying.items():
                self.flying[identifier] = _without(out, session)
        waiting, self.queue = self.queue, deque()
        self.sent -= len(waiting)  # what stays is counted anew
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
    """Return *out* without its terms for a session, and without the identifiers of that session's subscriptions."""
    left = tuple(terms for terms in out.terms if terms.session != session)
    return out._replace(terms=left, identifiers=tuple(each for terms in left for each in terms.identifiers))
