"""A broker that is killed again and again, clients that come and go meanwhile, and a judge of what they saw.

Rule: nothing of whimbrel is imported (``broker_process`` only runs its command). The client, the receiver's rule of
QoS 2 and the judge are written from the standard alone, so that a mistake of the broker cannot hide behind the same
mistake here.
Rule: clients only note what happens (``Sent``, ``Accepted``, ``Received`` ...). ``violations`` judges the notes and
knows no socket, so it is tested with histories that were made up.
Rule: all randomness comes of one seed. The broker's pace does not, so a seed gives the same plan, not the same history.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from tests.e2e.broker_process import BrokerProcess, Settings
from tests.e2e.calamities import Calamities
from tests.e2e.stepped_clock import SteppedClock

__all__ = [
    "STEADY",
    "V5",
    "V311",
    "Accepted",
    "Acknowledged",
    "Client",
    "Connected",
    "Crowd",
    "Disk",
    "Event",
    "Habit",
    "Key",
    "Received",
    "RefusedError",
    "Released",
    "Rig",
    "Run",
    "Sent",
    "Subscribed",
    "Subscriber",
    "crash",
    "is_admitted",
    "violations",
    "wire_after_properties",
    "wire_connect",
    "wire_packet",
    "wire_publish",
    "wire_read",
    "wire_subscribe",
]

V311, V5 = 4, 5
ROUNDING_S = 1.0
"""How late a message may be: its expiry travels in whole seconds."""
_GIVE_UP_S = 15.0
_CONNACK, _PUBLISH, _PUBACK, _PUBREC, _PUBREL, _PUBCOMP, _SUBACK, _PINGRESP = 2, 3, 4, 5, 6, 7, 9, 13
_GONE = (OSError, EOFError)
_QUOTA_EXCEEDED = 0x97


# -- what is noted -----------------------------------------------------------------------------------------------------

Key = tuple[str, int]
"""A publication: its publisher, and the publisher's number for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A publisher sent a publication, for the first time or again."""

    at: float
    key: Key
    topic: str
    qos: int
    expiry_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A publisher got PUBACK or PUBREC: from here on the broker answers for it."""

    at: float
    key: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """A client got CONNACK."""

    at: float
    client: str
    is_resumed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """A subscriber got SUBACK."""

    at: float
    subscriber: str
    topic_filter: str
    qos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A subscriber got PUBLISH."""

    at: float
    subscriber: str
    key: Key
    topic: str
    qos: int
    packet_id: int
    is_dup: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """A subscriber sent PUBACK or PUBREC; whether it arrived is not known."""

    at: float
    subscriber: str
    key: Key
    packet_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """A subscriber got PUBREL."""

    at: float
    subscriber: str
    packet_id: int


Event = Sent | Accepted | Connected | Subscribed | Received | Acknowledged | Released


# -- the judge ---------------------------------------------------------------------------------------------------------


class _Notes:
    """A history, by who and what."""

    def __init__(self, history: Sequence[Event]) -> None:
        self.first: dict[Key, tuple[int, Sent]] = {}
        """Where in the history each publication was first sent."""
        self.times_sent: Counter[Key] = Counter()
        self.accepted: dict[Key, float] = {}
        self.subscriptions: dict[str, list[tuple[int, Subscribed]]] = defaultdict(list)
        self.receptions: dict[str, list[Received]] = defaultdict(list)
        self.given: dict[str, list[Received]] = defaultdict(list)
        """What the receiver's rule lets through to the application."""
        self.lost_sessions: list[str] = []
        self.unreleased: dict[str, dict[int, Key]] = defaultdict(dict)
        known: set[str] = set()
        for place, event in enumerate(history):
            match event:
                case Sent():
                    self.first.setdefault(event.key, (place, event))
                    self.times_sent[event.key] += 1
                case Accepted():
                    self.accepted.setdefault(event.key, event.at)
                case Connected():
                    if event.client in known and not event.is_resumed:
                        self.lost_sessions.append(event.client)
                    known.add(event.client)
                case Subscribed():
                    self.subscriptions[event.subscriber].append((place, event))
                case Received():
                    self.receptions[event.subscriber].append(event)
                    if event.qos < 2 or event.packet_id not in self.unreleased[event.subscriber]:
                        self.given[event.subscriber].append(event)
                    if event.qos == 2:
                        self.unreleased[event.subscriber][event.packet_id] = event.key
                case Released():
                    self.unreleased[event.subscriber].pop(event.packet_id, None)
                case Acknowledged():
                    pass


def violations(history: Sequence[Event], *, ended_at: float) -> list[str]:
    """Return what should not have happened, one sentence each; *history* ended with everybody there and drained."""
    notes = _Notes(history)
    return [
        *(f"{client}: its session was lost" for client in notes.lost_sessions),
        *_lost(notes, ended_at),
        *_made_up(notes),
        *_late(notes),
        *_out_of_order(notes),
        *_repeated(notes),
        *_unreleased(notes),
    ]


def _lost(notes: _Notes, ended_at: float) -> Iterable[str]:
    """Whatever was accepted reaches everybody who had subscribed before, unless it expired first."""
    for subscriber, subscriptions in notes.subscriptions.items():
        seen = {each.key for each in notes.given[subscriber]}
        for key in notes.accepted:
            place, sent = notes.first[key]
            is_wanted = any(at < place and is_admitted(each.topic_filter, sent.topic) for at, each in subscriptions)
            is_over = sent.expiry_s is not None and sent.at + sent.expiry_s <= ended_at
            if is_wanted and key not in seen and not is_over:
                yield f"{subscriber}: {_named(key)} was acknowledged and is lost (QoS {sent.qos}, {sent.topic})"


def _made_up(notes: _Notes) -> Iterable[str]:
    """Nobody gets what nobody sent, or did not ask for."""
    for subscriber, receptions in notes.receptions.items():
        for each in receptions:
            sent = notes.first.get(each.key)
            if sent is None or sent[1].topic != each.topic:
                yield f"{subscriber}: {_named(each.key)} was never sent to {each.topic}"
            elif not any(is_admitted(wanted.topic_filter, each.topic) for _, wanted in notes.subscriptions[subscriber]):
                yield f"{subscriber}: {_named(each.key)} was not asked for"


def _late(notes: _Notes) -> Iterable[str]:
    """Nothing is given after its expiry, which counts from when the broker accepted it: at the latest when it said so.

    QoS 2 with DUP is left out: once it was sent, expiry must not be applied any more (MQTT-4.3.3-7).
    """
    for subscriber, given in notes.given.items():
        for each in given:
            accepted_at, sent = notes.accepted.get(each.key), notes.first.get(each.key)
            if sent is None or accepted_at is None or sent[1].expiry_s is None or (each.qos == 2 and each.is_dup):
                continue
            late_s = each.at - accepted_at - sent[1].expiry_s
            if late_s > ROUNDING_S:
                yield f"{subscriber}: {_named(each.key)} came {late_s:.2f} s after its expiry"


def _out_of_order(notes: _Notes) -> Iterable[str]:
    """First deliveries from one publisher on one topic with one QoS come in the order they were sent.

    What expires and was sent twice is left out: the broker may have accepted it twice, and the first may have expired.
    """
    for subscriber, given in notes.given.items():
        last: dict[tuple[str, str, int], int] = {}
        seen: set[Key] = set()
        for each in given:
            if each.key in seen or each.key not in notes.first:
                continue
            seen.add(each.key)
            (publisher, number), sent = each.key, notes.first[each.key][1]
            if sent.expiry_s is not None and notes.times_sent[each.key] > 1:
                continue
            row = (publisher, sent.topic, sent.qos)
            if number < last.get(row, -1):
                yield f"{subscriber}: {_named(each.key)} came after {publisher}'s {last[row]} ({sent.topic})"
            last[row] = max(number, last.get(row, -1))


def _repeated(notes: _Notes) -> Iterable[str]:
    """QoS 2 is given once; QoS 1 is repeated only with DUP.

    A QoS 1 publication that its publisher sent twice may have been accepted twice, and then is two: as many copies may
    lack DUP as it was sent times.
    """
    for subscriber, given in notes.given.items():
        exactly_once = Counter(each.key for each in given if each.qos == 2)
        for key, count in exactly_once.items():
            if count > 1:
                yield f"{subscriber}: {_named(key)} of QoS 2 was given {count} times"
        fresh = Counter(each.key for each in given if each.qos == 1 and not each.is_dup)
        for key, count in fresh.items():
            if key not in notes.first:
                continue
            allowed = notes.times_sent[key] if notes.first[key][1].qos == 1 else 1
            if count > allowed:
                yield f"{subscriber}: {_named(key)} came {count} times without DUP, and was sent {allowed} times"


def _unreleased(notes: _Notes) -> Iterable[str]:
    """Every QoS 2 exchange ends: what is never released blocks its packet identifier for good."""
    for subscriber, kept in notes.unreleased.items():
        for packet_id, key in kept.items():
            expiry = f", expiry {sent[1].expiry_s}" if (sent := notes.first.get(key)) else ""
            yield f"{subscriber}: {_named(key)} of QoS 2 was never released (packet {packet_id}{expiry})"


def is_admitted(topic_filter: str, topic: str) -> bool:
    """Tell whether *topic_filter* admits *topic* (4.7); topics here do not begin with ``$``."""
    wanted, levels = topic_filter.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted.pop()
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(w in {"+", level} for w, level in zip(wanted, levels, strict=True))


def _named(key: Key) -> str:
    return f"{key[0]}'s {key[1]}"


# -- the wire ----------------------------------------------------------------------------------------------------------


def wire_packet(first: int, body: bytes) -> bytes:
    """Return a packet: its first byte, its length, its body."""
    size, length = len(body), bytearray()
    while True:
        size, low = divmod(size, 128)
        length.append(low | 128 if size else low)
        if not size:
            return bytes((first, *length)) + body


def _text(value: str) -> bytes:
    data = value.encode()
    return len(data).to_bytes(2) + data


def wire_connect(
    client_id: str,
    version: int,
    *,
    is_clean: bool = False,
    receive_maximum: int = 0,
    keep_alive_s: int = 0,
    properties: bytes = b"",
    will: tuple[str, bytes] | None = None,
) -> bytes:
    """Return a CONNECT; in version 5 the session outlives the connection by an hour, unless it *is_clean*.

    More *properties* are for version 5, and all together at most 127 bytes. A *will* is a topic and a body, at QoS 1.
    """
    flags = (2 if is_clean else 0) | (0x0C if will else 0)
    body = _text("MQTT") + bytes((version, flags)) + keep_alive_s.to_bytes(2)
    if version == V5:
        properties += b"" if is_clean else b"\x11" + (3_600).to_bytes(4)
        properties += b"\x21" + receive_maximum.to_bytes(2) if receive_maximum else b""
        body += bytes((len(properties),)) + properties
    body += _text(client_id)
    if will is not None:
        body += (b"\x00" if version == V5 else b"") + _text(will[0]) + len(will[1]).to_bytes(2) + will[1]
    return wire_packet(0x10, body)


def wire_publish(
    topic: str,
    body: bytes,
    version: int,
    *,
    qos: int = 0,
    packet_id: int = 0,
    expiry_s: int | None = None,
    is_dup: bool = False,
    is_retained: bool = False,
) -> bytes:
    """Return a PUBLISH."""
    head = _text(topic) + (packet_id.to_bytes(2) if qos else b"")
    if version == V5:
        head += b"\x00" if expiry_s is None else b"\x05\x02" + expiry_s.to_bytes(4)
    return wire_packet(0x30 | qos << 1 | (8 if is_dup else 0) | is_retained, head + body)


def wire_subscribe(packet_id: int, topic_filter: str, version: int, *, qos: int, properties: bytes = b"") -> bytes:
    """Return a SUBSCRIBE; *properties* of version 5 without their length, which is at most 127 here."""
    head = packet_id.to_bytes(2) + (bytes((len(properties),)) + properties if version == V5 else b"")
    return wire_packet(0x82, head + _text(topic_filter) + bytes((qos,)))


def _answer(kind: int, packet_id: int) -> bytes:
    return bytes((kind << 4 | (2 if kind == _PUBREL else 0), 2)) + packet_id.to_bytes(2)


async def wire_read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return a packet's first byte and body."""
    first = (await reader.readexactly(1))[0]
    length = shift = 0
    while True:
        digit = (await reader.readexactly(1))[0]
        length |= (digit & 127) << shift
        shift += 7
        if digit < 128:
            return first, await reader.readexactly(length)


def wire_after_properties(body: bytes, at: int, version: int) -> int:
    """Return where *body* goes on after the properties at *at*; they are shorter than 16 KiB here."""
    if version != V5:
        return at
    return at + 1 + body[at] if body[at] < 128 else at + 2 + (body[at] & 127 | body[at + 1] << 7)


# -- the clients -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Habit:
    """How a subscriber behaves on one connection."""

    name: str
    messages: int = 0
    """After how many it leaves."""
    pause_s: float = 0.0
    """How long it thinks before an answer."""


STEADY = Habit("steady", messages=1 << 60)


class Rig:
    """What the clients of one run share: the broker's port, the notes, and how far the run is."""

    def __init__(self, broker: BrokerProcess, topics: Sequence[str]) -> None:
        self.broker, self.topics = broker, topics
        self.history: list[Event] = []
        self.is_up = asyncio.Event()
        self.is_closing = asyncio.Event()
        """No more publications, no more leaving."""
        self.markers: dict[Key, Sent] = {}
        """Everybody's last publications, and wills: who has them all has all."""
        self.may_refuse = False
        """Whether publications may be refused: the disk is full at times."""
        self.faults: dict[str, None] = {}
        """What clients saw that should not have happened, once each."""
        self.sent = 0
        self.target = 0
        self.is_reached = asyncio.Event()

    def mark(self, sent: Sent) -> None:
        """Let everybody who has subscribed before it was *sent* wait for it."""
        self.markers[sent.key] = sent

    def note(self, event: Event) -> None:
        """Write *event* down."""
        self.history.append(event)
        if isinstance(event, Sent):
            self.sent += 1
            if self.sent >= self.target:
                self.is_reached.set()

    async def more(self, count: int) -> None:
        """Wait until *count* more publications are sent."""
        self.is_reached.clear()
        self.target = self.sent + count
        async with asyncio.timeout(_GIVE_UP_S):
            await self.is_reached.wait()


class RefusedError(ConnectionRefusedError):
    """The broker answered CONNECT with a code of refusal."""


class Client:
    """What publishers and subscribers share."""

    has_session = True
    """Whether its session outlives its connections."""

    def __init__(self, rig: Rig, name: str, version: int, rng: Random) -> None:
        self.rig, self.name, self.version, self.rng = rig, name, version, rng
        self.writer: asyncio.StreamWriter | None = None
        self.receive_maximum = 0

    async def run(self) -> None:
        """Connect and converse, again and again, until cancelled."""
        while True:
            await self.rig.is_up.wait()
            try:
                with suppress(*_GONE):
                    await self.converse()
            finally:
                self.drop()
            await asyncio.sleep(0 if self.rig.is_closing.is_set() else self.rng.random() * 0.05)

    async def converse(self) -> None:
        """Have one connection."""
        raise NotImplementedError

    async def rest(self) -> None:
        """Return once it has nothing left to say."""
        raise NotImplementedError

    def lacks(self) -> str:
        """Return what it waits for, in words."""
        raise NotImplementedError

    def connect_packet(self) -> bytes:
        """Return its CONNECT."""
        return wire_connect(self.name, self.version, receive_maximum=self.receive_maximum)

    async def open(self) -> asyncio.StreamReader:
        """Connect and wait for the answer."""
        reader = await self.dial()
        first, body = await wire_read(reader)
        if first >> 4 != _CONNACK or body[1]:
            raise RefusedError(f"{first:#x} {body.hex()}")
        if self.has_session:
            self.rig.note(Connected(at=time.time(), client=self.name, is_resumed=bool(body[0] & 1)))
        return reader

    async def dial(self) -> asyncio.StreamReader:
        """Connect and wait for nothing."""
        reader, self.writer = await asyncio.open_connection("127.0.0.1", self.rig.broker.port)
        self.write(self.connect_packet())
        return reader

    def write(self, data: bytes) -> bool:
        """Send *data*, if there is a connection."""
        if self.writer is None or self.writer.is_closing():
            return False
        self.writer.write(data)
        return True

    def drop(self) -> None:
        """Close without a word."""
        if self.writer is not None:
            self.writer.transport.abort()
            self.writer = None


@dataclass(slots=True)
class _Pending:
    """A publication that its publisher has no last answer to."""

    key: Key
    topic: str
    qos: int
    expiry_s: int | None
    is_received: bool = False


class _Publisher(Client):
    """Publishes QoS 1 and 2, and sends again whatever is not acknowledged."""

    def __init__(self, rig: Rig, name: str, version: int, rng: Random) -> None:
        super().__init__(rig, name, version, rng)
        self._pending: dict[int, _Pending] = {}
        self._number = self._packet_id = 0
        self._window = rng.choice((1, 4, 16))
        self._has_room = asyncio.Event()
        self._to_mark = [(topic, qos) for topic in rig.topics for qos in (1, 2)]
        self._is_done = asyncio.Event()

    async def rest(self) -> None:
        """Return once all that it has sent is answered."""
        await self._is_done.wait()

    async def converse(self) -> None:
        """Send again what must be, then new ones until somebody goes."""
        reader = await self.open()
        for packet_id, pending in self._pending.items():  # in the order they were first sent (4.4)
            if pending.is_received:
                self.write(_answer(_PUBREL, packet_id))
            else:
                self._send(packet_id, pending, is_dup=True)
        listening = asyncio.create_task(self._listen(reader))
        publishing = asyncio.create_task(self._publish())
        try:
            await asyncio.wait((listening, publishing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            publishing.cancel()
            listening.cancel()
            outcomes = await asyncio.gather(listening, publishing, return_exceptions=True)
        self.drop()
        for each in outcomes:
            if isinstance(each, Exception) and not isinstance(each, _GONE):
                raise each

    async def _publish(self) -> None:
        while True:
            while len(self._pending) >= self._window:
                self._has_room.clear()
                await self._has_room.wait()
            if not self.rig.is_closing.is_set():
                topic, qos = self.rng.choice(self.rig.topics), self.rng.choice((1, 1, 2))
                expiry_s = self.rng.choice((None, None, 1, 2, 3_600)) if self.version == V5 else None
                self._new(topic, qos, expiry_s)
                if self.rng.random() < 0.01:
                    return  # leaves without a word
                await asyncio.sleep(self.rng.random() * 0.03)
            elif self._to_mark:
                topic, qos = self._to_mark.pop()
                self.rig.mark(self._new(topic, qos, None))
            else:
                self._settle()
                await asyncio.Event().wait()

    def _new(self, topic: str, qos: int, expiry_s: int | None) -> Sent:
        self._number += 1
        while True:
            self._packet_id = self._packet_id % 65_535 + 1
            if self._packet_id not in self._pending:
                break
        pending = self._pending[self._packet_id] = _Pending((self.name, self._number), topic, qos, expiry_s)
        return self._send(self._packet_id, pending, is_dup=False)

    def _send(self, packet_id: int, pending: _Pending, *, is_dup: bool) -> Sent:
        sent = Sent(at=time.time(), key=pending.key, topic=pending.topic, qos=pending.qos, expiry_s=pending.expiry_s)
        self.rig.note(sent)
        body = f"{pending.key[0]} {pending.key[1]}".encode()
        self.write(
            wire_publish(
                pending.topic,
                body,
                self.version,
                qos=pending.qos,
                packet_id=packet_id,
                expiry_s=pending.expiry_s,
                is_dup=is_dup,
            )
        )
        return sent

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while True:
            first, body = await wire_read(reader)
            kind, packet_id = first >> 4, int.from_bytes(body[:2])
            pending = self._pending.get(packet_id)
            code = body[2] if len(body) > 2 else 0
            if pending is None or kind not in {_PUBACK, _PUBREC, _PUBCOMP}:
                continue
            if code >= 0x80 and kind != _PUBCOMP:
                if code != _QUOTA_EXCEEDED or not self.rig.may_refuse:
                    raise AssertionError(f"{self.name}: {pending.key} was refused with {code:#x}")
                del self._pending[packet_id]  # the disk is full, and nobody answers for it
                self._has_room.set()
                continue
            if kind != _PUBCOMP and not pending.is_received:
                self.rig.note(Accepted(at=time.time(), key=pending.key))
                pending.is_received = True
            if kind == _PUBREC:
                self.write(_answer(_PUBREL, packet_id))
            else:
                del self._pending[packet_id]
                self._has_room.set()
                self._settle()

    def lacks(self) -> str:
        """Say what it waits for."""
        return f"answers to {[_named(each.key) for each in self._pending.values()]}"

    def _settle(self) -> None:
        if not self._pending and not self._to_mark and self.rig.is_closing.is_set():
            self._is_done.set()


class Subscriber(Client):
    """Subscribes once, and comes and goes."""

    def __init__(self, rig: Rig, name: str, version: int, rng: Random, topic_filter: str, qos: int) -> None:
        super().__init__(rig, name, version, rng)
        self._topic_filter, self._qos = topic_filter, qos
        self.is_subscribed, self._subscribed_at = False, 0.0
        self._seen: set[Key] = set()
        self._unreleased: set[int] = set()
        self._is_answered = asyncio.Event()
        self.receive_maximum = rng.choice((0, 3, 20))

    async def converse(self) -> None:
        """Listen and answer, in whatever way it feels like."""
        habit = self.habit()
        if habit.name == "hasty":
            await self.dial()
            await asyncio.sleep(0)
            self.drop()
        reader = await self.open()
        if self.rig.is_closing.is_set():
            habit = STEADY  # it was on its way with another when everybody was told to settle
        if not self.is_subscribed:
            await self.subscribe(reader)
        answers: asyncio.Queue[tuple[Received, bytes]] = asyncio.Queue()
        answering = asyncio.create_task(self._answer(answers, habit))
        try:
            await self._listen(reader, answers, habit)
        finally:
            answering.cancel()
        if habit.name == "polite":
            self.write(b"\xe0\x00")
            assert self.writer is not None
            self.writer.close()
            self.writer = None
        else:
            self.drop()

    def habit(self) -> Habit:
        """Return how it behaves on its next connection."""
        if self.rig.is_closing.is_set():
            return STEADY
        name = self.rng.choice(("polite", "rude", "slow", "silent", "hasty"))
        pause_s = self.rng.random() * 0.05 if name == "slow" else 0.0
        return Habit(name, messages=self.rng.randint(1, 80), pause_s=pause_s)

    async def subscribe(self, reader: asyncio.StreamReader) -> None:
        """Make its subscription, before anything else can be heard."""
        self.write(wire_subscribe(1, self._topic_filter, self.version, qos=self._qos))
        first, body = await wire_read(reader)
        if first >> 4 != _SUBACK or body[-1] != self._qos:
            raise AssertionError(f"{self.name}: SUBSCRIBE was answered with {first:#x} {body.hex()}")
        self.note_subscribed()

    def note_subscribed(self) -> None:
        """Note that what is sent from now on must come."""
        self.is_subscribed, self._subscribed_at = True, time.time()
        self.rig.note(
            Subscribed(at=self._subscribed_at, subscriber=self.name, topic_filter=self._topic_filter, qos=self._qos)
        )

    async def _listen(
        self, reader: asyncio.StreamReader, answers: asyncio.Queue[tuple[Received, bytes]], habit: Habit
    ) -> None:
        count = 0
        while count < habit.messages or self.rig.is_closing.is_set():
            first, body = await wire_read(reader)
            kind = first >> 4
            if kind == _PUBLISH:
                count += 1
                received = self._received(first, body)
                self._seen.add(received.key)
                if received.qos == 2:
                    self._unreleased.add(received.packet_id)
                if habit.name != "silent":
                    kind = _PUBACK if received.qos == 1 else _PUBREC
                    answers.put_nowait((received, _answer(kind, received.packet_id)))
            elif kind == _PUBREL:
                packet_id = int.from_bytes(body[:2])
                self._unreleased.discard(packet_id)
                self.rig.note(Released(at=time.time(), subscriber=self.name, packet_id=packet_id))
                self.write(_answer(_PUBCOMP, packet_id))
            elif kind == _PINGRESP:
                self._is_answered.set()

    def _received(self, first: int, body: bytes) -> Received:
        now = time.time()
        end = 2 + int.from_bytes(body[:2])
        topic, qos = body[2:end].decode(), first >> 1 & 3
        packet_id = int.from_bytes(body[end : end + 2])
        at = wire_after_properties(body, end + 2, self.version)
        publisher, number = body[at:].decode().split()
        received = Received(
            at=now, subscriber=self.name, key=(publisher, int(number)), topic=topic, qos=qos, packet_id=packet_id,
            is_dup=bool(first & 8),
        )  # fmt: skip
        self.rig.note(received)
        return received

    async def _answer(self, answers: asyncio.Queue[tuple[Received, bytes]], habit: Habit) -> None:
        while True:
            received, data = await answers.get()
            if habit.pause_s:
                await asyncio.sleep(self.rng.random() * habit.pause_s)
            if self.write(data):
                self.rig.note(
                    Acknowledged(at=time.time(), subscriber=self.name, key=received.key, packet_id=received.packet_id)
                )

    async def rest(self) -> None:
        """Wait until everybody's last publications are here and all of QoS 2 is released, as the broker must know."""
        while self._missing() or self._unreleased:
            await self._round_trip()
        await self._round_trip()

    def lacks(self) -> str:
        """Say what it waits for."""
        missing = sorted(map(_named, self._missing()))
        return f"{len(missing)} last publications {missing[:3]}, PUBREL for {sorted(self._unreleased)}"

    def _missing(self) -> set[Key]:
        markers = (each for each in self.rig.markers.values() if each.at > self._subscribed_at)
        return {each.key for each in markers if is_admitted(self._topic_filter, each.topic)} - self._seen

    async def _round_trip(self) -> None:
        """Let the broker answer a ping: it has read all that was sent before."""
        self._is_answered.clear()
        self.write(b"\xc0\x00")
        with suppress(TimeoutError):
            async with asyncio.timeout(1):  # ``wait_for`` of Python 3.11 may lose that it was cancelled
                await self._is_answered.wait()
        await asyncio.sleep(0.02)  # between one look and the next


# -- a run -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What became of a run."""

    seed: int
    kills: int
    seconds: float
    calamities: dict[str, int]
    """How often each happened."""
    history: tuple[Event, ...]
    violations: tuple[str, ...]

    def summary(self) -> dict[str, object]:
        """Return the numbers of it, for JSON."""
        notes = _Notes(self.history)
        receptions = [each for several in notes.receptions.values() for each in several]
        return {
            "seed": self.seed,
            "kills": self.kills,
            "seconds": round(self.seconds, 1),
            **self.calamities,
            "publications": len(notes.first),
            "sent": sum(notes.times_sent.values()),
            "acknowledged": len(notes.accepted),
            "received": len(receptions),
            "received_again": sum(each.is_dup for each in receptions),
            "connections": sum(isinstance(each, Connected) for each in self.history),
            "violations": list(self.violations),
        }


_TOPICS = ("ward/1/pulse", "ward/1/oxygen", "ward/2/pulse")
_SETTINGS = {"log": {"segment_bytes": 65_536, "view_interval_s": 0.1}}  # so that both change often


class Disk(Protocol):
    """A disk under the broker that may lose something while the broker is dead."""

    @property
    def root(self) -> Path:
        """The folder in which the broker has its configuration and its data."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables of the broker's process."""

    def start(self) -> None:
        """Take all that is there for durable; the broker starts next."""

    def aim(self) -> float:
        """Choose the moment of the next cut; return for how many seconds the broker may live until it comes."""

    def cut(self) -> None:
        """Lose what was not durable when the broker died."""


class Crowd(Protocol):
    """Clients beside the publishers and subscribers of every run."""

    @property
    def settings(self) -> Settings:
        """What they need of the broker's configuration."""

    def clients(self, rig: Rig, rng: Random) -> Sequence[Client]:
        """Return them."""


def crash(
    folder: Path,
    *,
    kills: int,
    seed: int,
    fsync_s: float = 0.0,
    has_calamities: bool = False,
    disk: Disk | None = None,
    crowd: Crowd | None = None,
    give_up_s: float = _GIVE_UP_S,
    progress: Callable[[str], None] = lambda _: None,
) -> Run:
    """Run a broker in *folder* among clients, kill it *kills* times, let everything settle, stop it and judge.

    With *fsync_s* its disk takes that much longer for every fsync, so that more is under way when it dies. If it
    *has_calamities*, clocks are set, the process is paused, disks are full, logs are cut and views lost between kills.
    Otherwise it may have a *disk* that loses something with each kill. A client that does not come to rest within
    *give_up_s* is a violation.
    """
    began = time.monotonic()
    clock = SteppedClock(folder / "clock", fsync_s=fsync_s)
    broker = BrokerProcess(
        folder if disk is None else disk.root,
        settings={**_SETTINGS, **(crowd.settings if crowd is not None else {})},
        clock=clock,
        environment=None if disk is None else disk.environment,
    )
    rng = Random(seed)
    calamities = Calamities(broker, clock, Random(seed + 1)) if has_calamities else None
    rig = Rig(broker, _TOPICS)
    rig.may_refuse = has_calamities
    clients = [*_publishers_and_subscribers(rig, rng), *(crowd.clients(rig, rng) if crowd is not None else ())]
    between = _Between(broker, disk, calamities)
    told = asyncio.run(_crash(rig, clients, between, rng, kills=kills, give_up_s=give_up_s, progress=progress))
    clock.close()
    found = [*told, *rig.faults, *violations(rig.history, ended_at=time.time())]
    if calamities is not None:
        found += calamities.violations
    if any("Traceback" in line for line in broker.lines):
        found.append("the broker wrote a traceback:\n" + "".join(broker.lines[-40:]))
    return Run(
        seed=seed,
        kills=kills,
        seconds=time.monotonic() - began,
        calamities={} if calamities is None else dict(calamities.count),
        history=tuple(rig.history),
        violations=tuple(found),
    )


def _publishers_and_subscribers(rig: Rig, rng: Random) -> list[Client]:
    publishers = [
        _Publisher(rig, f"publisher-{number}", V5 if number % 2 else V311, Random(rng.random())) for number in range(4)
    ]
    subscribers = [
        Subscriber(rig, f"subscriber-{number}", V5 if number % 2 else V311, Random(rng.random()), topic_filter, qos)
        for number, (topic_filter, qos) in enumerate(
            [("ward/#", 1), ("ward/#", 2), ("ward/+/pulse", 2), ("ward/1/+", 1), ("ward/1/pulse", 2), ("ward/#", 2)]
        )
    ]
    return [*publishers, *subscribers]


class _NoStartError(Exception):
    """A broker did not start on what its disk had kept."""


class _Between:
    """What happens to a broker's machine before each kill and after it."""

    def __init__(self, broker: BrokerProcess, disk: Disk | None, calamities: Calamities | None) -> None:
        self._broker, self._disk, self._calamities = broker, disk, calamities

    async def before(self) -> None:
        """Let something happen to the broker that runs."""
        if self._calamities is not None:
            await self._calamities.strike()
        if self._disk is not None:
            await asyncio.to_thread(self._broker.ends_within, self._disk.aim())

    def start(self) -> None:
        """Start the broker for the first time."""
        if self._disk is not None:
            self._disk.start()
        self._broker.start()

    def start_again(self) -> None:
        """Let something happen to the files of the broker that is dead, and start it."""
        if self._calamities is not None:
            self._calamities.spoil()
        elif self._disk is None:
            self._broker.start()
        else:
            self._disk.cut()
            self._disk.start()
            try:
                self._broker.start()
            except AssertionError as error:
                last = str(error).splitlines()[-1]
                raise _NoStartError(f"the broker did not start on what its disk had kept: {last}") from error


async def _crash(
    rig: Rig,
    clients: Sequence[Client],
    between: _Between,
    rng: Random,
    *,
    kills: int,
    give_up_s: float,
    progress: Callable[[str], None],
) -> list[str]:
    """Return what went wrong beside what is in the notes."""
    broker = rig.broker
    await asyncio.to_thread(between.start)
    rig.is_up.set()
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(each.run()) for each in clients]
        told: list[str] = []
        try:
            for number in range(kills):
                await rig.more(rng.randint(10, 150))
                await asyncio.sleep(rng.random() * 0.02)
                await between.before()
                rig.is_up.clear()
                broker.kill()
                await asyncio.to_thread(between.start_again)
                rig.is_up.set()
                progress(f"kill {number + 1} of {kills}: {rig.sent} sent, {len(rig.history)} events")
            await rig.more(50)
            told = await _settle(rig, clients, give_up_s)
        except TimeoutError:
            told.append(f"the clients are stuck: nobody published for {_GIVE_UP_S} s")
        except _NoStartError as error:
            told.append(str(error))
        finally:
            for each in running:
                each.cancel()
            status = await asyncio.to_thread(broker.stop) if broker.is_running else 0
            await _end(running)
        if status:
            told.append(f"the broker stopped with status {status}")
    await asyncio.sleep(0)  # transports close in the next turn
    return told


async def _end(running: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks until they have ended: one whose connection fails as it is cancelled goes on (``TaskGroup``)."""
    left = set(running)
    while left:
        for each in left:
            each.cancel()
        _, left = await asyncio.wait(left, timeout=1)


async def _settle(rig: Rig, clients: Sequence[Client], give_up_s: float) -> list[str]:
    """Let everybody come and stay until nothing is left to say; tell who could not."""
    rig.is_closing.set()
    for each in clients:
        each.drop()  # whatever habit it had
    told: list[str] = []

    async def in_time(who: Client) -> None:
        try:
            async with asyncio.timeout(give_up_s):
                await who.rest()
        except TimeoutError:
            told.append(f"{who.name} did not come to rest: {who.lacks()}")

    await asyncio.gather(*(in_time(each) for each in clients if not isinstance(each, Subscriber)))
    await asyncio.gather(*(in_time(each) for each in clients if isinstance(each, Subscriber)))  # who hear the others
    return told
