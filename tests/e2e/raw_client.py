"""A blocking MQTT client for tests: packets in, packets out, nothing kept up behind the scenes.

Rule: nothing of Whimbrel is imported. Packets are written and read from the text of the standards (MQTT 5.0, MQTT
3.1.1), so that this client and the broker can disagree.
Rule: it acknowledges, answers and reconnects only when it is told to; so a test can leave out any step.
Rule: nothing sleeps. ``receive`` waits for a packet of one kind and keeps the others in order of arrival.

``messages_so_far`` is how a test learns that something did *not* come: the broker answers PINGREQ after whatever it
has already sent, so once a publisher has its acknowledgement, the copies for others stand before their PINGRESP.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from types import TracebackType
from typing import Self

__all__ = ["Clients", "Kind", "P", "Packet", "Properties", "RawClient", "Will", "packet", "publish_packet", "wish"]

TIMEOUT_S = 30.0
"""How long an expected packet may take; only a failing test waits that long."""


class Kind(IntEnum):
    """The control packets (2.1.2)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14


class P(IntEnum):
    """The properties of MQTT 5.0 (2.2.2.2)."""

    PAYLOAD_FORMAT = 0x01
    MESSAGE_EXPIRY = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    SESSION_EXPIRY = 0x11
    ASSIGNED_CLIENT_ID = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARDS_AVAILABLE = 0x28
    SUBSCRIPTION_IDENTIFIERS_AVAILABLE = 0x29
    SHARED_AVAILABLE = 0x2A


Value = int | str | bytes | tuple[str, str]
Properties = tuple[tuple[P, Value], ...]
"""In the order of the packet; some may come more than once."""

_TEXTS = {
    P.CONTENT_TYPE, P.RESPONSE_TOPIC, P.ASSIGNED_CLIENT_ID, P.AUTHENTICATION_METHOD, P.RESPONSE_INFORMATION,
    P.SERVER_REFERENCE, P.REASON_STRING,
}  # fmt: skip
_BINARIES = {P.CORRELATION_DATA, P.AUTHENTICATION_DATA}
_FOUR_BYTES = {P.MESSAGE_EXPIRY, P.SESSION_EXPIRY, P.WILL_DELAY, P.MAXIMUM_PACKET_SIZE}
_TWO_BYTES = {P.SERVER_KEEP_ALIVE, P.RECEIVE_MAXIMUM, P.TOPIC_ALIAS_MAXIMUM, P.TOPIC_ALIAS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """A packet of the broker; what its kind does not have is as here."""

    kind: Kind
    packet_id: int = 0
    code: int = 0
    """The reason code, or the return code of 3.1.1."""
    codes: tuple[int, ...] = ()
    """Of SUBACK and UNSUBACK: one for each filter."""
    session_present: bool = False
    topic: str = ""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    properties: Properties = ()

    def __getitem__(self, wanted: P) -> Value:
        return self.every(wanted)[0]

    def every(self, wanted: P) -> list[Value]:
        """Return all values of one property."""
        return [value for name, value in self.properties if name == wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Will:
    """What the broker is to publish when its client is lost."""

    topic: str
    payload: bytes = b"will"
    qos: int = 0
    retain: bool = False
    properties: Properties = ()


# -- writing -----------------------------------------------------------------------------------------------------------


def _variable(number: int) -> bytes:
    """Return *number* as a variable byte integer (1.5.5)."""
    digits = bytearray()
    while True:
        number, low = divmod(number, 128)
        digits.append(low | (0x80 if number else 0))
        if not number:
            return bytes(digits)


def _text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return len(data).to_bytes(2) + data


def _property(name: P, value: Value) -> bytes:
    if isinstance(value, tuple):
        data = _text(value[0]) + _text(value[1])
    elif isinstance(value, str | bytes):
        data = _text(value)
    elif name is P.SUBSCRIPTION_IDENTIFIER:
        data = _variable(value)
    else:
        data = value.to_bytes(4 if name in _FOUR_BYTES else 2 if name in _TWO_BYTES else 1)
    return bytes([name]) + data


def _properties(properties: Properties, version: int) -> bytes:
    if version < 5:
        assert not properties, "3.1.1 has no properties"
        return b""
    data = b"".join(_property(name, value) for name, value in properties)
    return _variable(len(data)) + data


def packet(kind: Kind, body: bytes = b"", flags: int = 0) -> bytes:
    """Return a packet with its fixed header; also one that no standard allows."""
    return bytes([kind << 4 | flags]) + _variable(len(body)) + body


def publish_packet(
    topic: str,
    payload: bytes = b"",
    *,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
    properties: Properties = (),
    version: int = 5,
) -> bytes:
    """Return a PUBLISH."""
    head = _text(topic) + (packet_id.to_bytes(2) if qos else b"") + _properties(properties, version)
    return packet(Kind.PUBLISH, head + payload, dup << 3 | qos << 1 | retain)


def _connect_packet(
    client_id: str, version: int, *, clean: bool, keep_alive_s: int, will: Will | None, properties: Properties
) -> bytes:
    flags = clean << 1
    body = _text(client_id)
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
        body += _properties(will.properties, version) + _text(will.topic) + _text(will.payload)
    head = _text("MQTT") + bytes([version, flags]) + keep_alive_s.to_bytes(2) + _properties(properties, version)
    return packet(Kind.CONNECT, head + body)


def wish(
    topic_filter: str,
    qos: int = 2,
    *,
    no_local: bool = False,
    retain_as_published: bool = False,
    retain_handling: int = 0,
) -> tuple[str, int]:
    """Return a topic filter and its subscription options (3.8.3.1); in 3.1.1 they are the QoS alone."""
    return topic_filter, qos | no_local << 2 | retain_as_published << 3 | retain_handling << 4


# -- reading -----------------------------------------------------------------------------------------------------------


class _Body:
    """What is left of a packet to read; what is read beyond its end is an error of the broker."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, length: int) -> bytes:
        assert length <= len(self.data), f"{length} bytes expected, {len(self.data)} left"
        taken, self.data = self.data[:length], self.data[length:]
        return taken

    def number(self, length: int) -> int:
        return int.from_bytes(self.take(length))

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def text(self) -> str:
        return self.binary().decode()

    def variable(self) -> int:
        number = 0
        for place in range(4):
            digit = self.number(1)
            number |= (digit & 0x7F) << 7 * place
            if digit < 0x80:
                return number
        raise AssertionError("a variable byte integer of more than four bytes")

    def properties(self) -> Properties:
        return tuple(_Body(self.take(self.variable())).each_property())

    def each_property(self) -> Iterable[tuple[P, Value]]:
        while self.data:
            name = P(self.variable())
            if name is P.USER:
                yield name, (self.text(), self.text())
            elif name in _TEXTS:
                yield name, self.text()
            elif name in _BINARIES:
                yield name, self.binary()
            elif name is P.SUBSCRIPTION_IDENTIFIER:
                yield name, self.variable()
            else:
                yield name, self.number(4 if name in _FOUR_BYTES else 2 if name in _TWO_BYTES else 1)


def _decoded(kind: Kind, flags: int, body: _Body, version: int) -> Packet:
    is_v5 = version == 5
    match kind:
        case Kind.CONNACK:
            session_present, code = body.number(1), body.number(1)
            assert session_present in {0, 1}, session_present
            found = Packet(
                kind=kind,
                session_present=bool(session_present),
                code=code,
                properties=body.properties() if is_v5 and body.data else (),
            )
        case Kind.PUBLISH:
            qos = flags >> 1 & 3
            topic, packet_id = body.text(), body.number(2) if qos else 0
            properties = body.properties() if is_v5 else ()
            found = Packet(
                kind=kind, topic=topic, qos=qos, packet_id=packet_id, properties=properties,
                dup=bool(flags & 8), retain=bool(flags & 1), payload=body.take(len(body.data)),
            )  # fmt: skip
        case Kind.PUBACK | Kind.PUBREC | Kind.PUBREL | Kind.PUBCOMP:
            assert flags == (2 if kind is Kind.PUBREL else 0), flags
            packet_id, code = body.number(2), body.number(1) if body.data else 0
            found = Packet(kind=kind, packet_id=packet_id, code=code, properties=body.properties() if body.data else ())
        case Kind.SUBACK | Kind.UNSUBACK:
            packet_id, properties = body.number(2), body.properties() if is_v5 else ()
            codes = tuple(body.take(len(body.data)))
            found = Packet(kind=kind, packet_id=packet_id, codes=codes, properties=properties)
        case Kind.PINGRESP:
            found = Packet(kind=kind)
        case Kind.DISCONNECT:
            assert is_v5, "3.1.1 knows no DISCONNECT of the broker"
            code = body.number(1) if body.data else 0
            found = Packet(kind=kind, code=code, properties=body.properties() if body.data else ())
        case _:
            raise AssertionError(f"{kind.name} from a broker")
    assert not body.data, f"{len(body.data)} bytes more than {kind.name} has"
    return found


# -- the client --------------------------------------------------------------------------------------------------------


class RawClient:
    """A connection to the broker on *port*; *version* is 5, or 4 for MQTT 3.1.1.

    Its kernel keeps about *receive_bytes* of what the client does not read; 0 leaves that to the kernel.
    """

    def __init__(self, port: int, *, version: int = 5, receive_bytes: int = 0) -> None:
        self.version = version
        self.connack = Packet(kind=Kind.CONNACK)
        self.waiting: list[Packet] = []
        """What came and was not asked for yet."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.settimeout(TIMEOUT_S)
        if receive_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._numbers = count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()

    # -- one packet ----------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def answer(self, kind: Kind, packet_id: int, code: int = 0) -> None:
        """Send PUBACK, PUBREC, PUBREL or PUBCOMP."""
        body = packet_id.to_bytes(2) + (bytes([code]) if code else b"")
        self.send(packet(kind, body, 2 if kind is Kind.PUBREL else 0))

    def next_packet(self) -> Packet:
        """Return the next packet on the wire; raise ``EOFError`` if the broker closed, ``TimeoutError`` if it waits."""
        first = self._read(1)[0]
        length = bytearray(self._read(1))
        while length[-1] >= 0x80:
            length += self._read(1)
        body = _Body(self._read(_Body(bytes(length)).variable()))
        return _decoded(Kind(first >> 4), first & 0x0F, body, self.version)

    def receive(self, kind: Kind) -> Packet:
        """Return the first packet of *kind*; what came before it stays in ``waiting``."""
        for place, each in enumerate(self.waiting):
            if each.kind is kind:
                return self.waiting.pop(place)
        try:
            while (found := self.next_packet()).kind is not kind:
                self.waiting.append(found)
        except (EOFError, TimeoutError) as error:
            raise AssertionError(f"no {kind.name} came, but {self.waiting}: {error}") from error
        return found

    def is_closed(self) -> bool:
        """Wait for the broker to close; what comes before goes to ``waiting``."""
        try:
            while True:
                self.waiting.append(self.next_packet())
        except EOFError:
            return True

    def is_reset(self, *, tries: int = 60) -> bool:
        """Send PINGREQ four times a second, and read nothing, until the broker has cut the connection off."""
        waiting = threading.Event()
        for _ in range(tries):
            try:
                self.send(packet(Kind.PINGREQ))
            except ConnectionError:
                return True
            waiting.wait(0.25)
        return False

    def _read(self, length: int) -> bytes:
        while len(self._buffer) < length:
            try:
                more = self._socket.recv(65_536)
            except ConnectionError as error:
                raise EOFError(str(error)) from error
            if not more:
                raise EOFError("the broker closed the connection")
            self._buffer += more
        taken, self._buffer = self._buffer[:length], self._buffer[length:]
        return taken

    # -- an exchange ---------------------------------------------------------------------------------------------------

    def connect(
        self,
        client_id: str,
        *,
        clean: bool = True,
        keep_alive_s: int = 0,
        will: Will | None = None,
        properties: Properties = (),
    ) -> Packet:
        """Send CONNECT and return what CONNACK says."""
        self.send(
            _connect_packet(
                client_id, self.version, clean=clean, keep_alive_s=keep_alive_s, will=will, properties=properties
            )
        )
        self.connack = self.receive(Kind.CONNACK)
        return self.connack

    def subscribe(self, *wishes: tuple[str, int] | str, properties: Properties = ()) -> Packet:
        """Subscribe, to a filter alone with QoS 2, and return what SUBACK says."""
        packet_id = next(self._numbers)
        body = packet_id.to_bytes(2) + _properties(properties, self.version)
        for each in wishes:
            topic_filter, options = (each, 2) if isinstance(each, str) else each
            body += _text(topic_filter) + bytes([options])
        self.send(packet(Kind.SUBSCRIBE, body, 2))
        suback = self.receive(Kind.SUBACK)
        assert suback.packet_id == packet_id
        assert len(suback.codes) == len(wishes)
        return suback

    def unsubscribe(self, *topic_filters: str) -> Packet:
        """Unsubscribe and return what UNSUBACK says."""
        packet_id = next(self._numbers)
        body = packet_id.to_bytes(2) + _properties((), self.version)
        self.send(packet(Kind.UNSUBSCRIBE, body + b"".join(map(_text, topic_filters)), 2))
        unsuback = self.receive(Kind.UNSUBACK)
        assert unsuback.packet_id == packet_id
        return unsuback

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 1, *, retain: bool = False, properties: Properties = ()
    ) -> Packet | None:
        """Publish, wait until it is acknowledged as its QoS asks, and return PUBACK or PUBREC."""
        packet_id = next(self._numbers) if qos else 0
        self.send(
            publish_packet(
                topic, payload, qos=qos, retain=retain, packet_id=packet_id, properties=properties,
                version=self.version,
            )
        )  # fmt: skip
        if not qos:
            return None
        answer = self.receive(Kind.PUBACK if qos == 1 else Kind.PUBREC)
        assert answer.packet_id == packet_id
        if qos == 2 and answer.code < 0x80:
            self.answer(Kind.PUBREL, packet_id)
            assert self.receive(Kind.PUBCOMP).packet_id == packet_id
        return answer

    def message(self) -> Packet:
        """Return the next PUBLISH, acknowledged as its QoS asks."""
        found = self.receive(Kind.PUBLISH)
        if found.qos == 1:
            self.answer(Kind.PUBACK, found.packet_id)
        elif found.qos == 2:
            self.answer(Kind.PUBREC, found.packet_id)
            assert self.receive(Kind.PUBREL).packet_id == found.packet_id
            self.answer(Kind.PUBCOMP, found.packet_id)
        return found

    def messages(self, number: int) -> list[Packet]:
        """Return the next *number* of PUBLISHes, acknowledged."""
        return [self.message() for _ in range(number)]

    def ping(self) -> None:
        """Send PINGREQ and wait for PINGRESP."""
        self.send(packet(Kind.PINGREQ))
        self.receive(Kind.PINGRESP)

    def messages_so_far(self) -> list[Packet]:
        """Return whatever PUBLISHes the broker has sent by now, acknowledged."""
        self.ping()
        return self.messages(sum(each.kind is Kind.PUBLISH for each in self.waiting))

    def disconnect(self, code: int = 0, properties: Properties = ()) -> None:
        """Send DISCONNECT and wait until the broker closed: then it has taken it in."""
        body = bytes([code]) + _properties(properties, self.version) if code or properties else b""
        self.send(packet(Kind.DISCONNECT, body))
        assert self.is_closed()
        self.drop()

    def drop(self) -> None:
        """Close without a word."""
        with suppress(OSError):
            self._socket.close()


@dataclass(slots=True)
class Clients:
    """All clients of one test, with names and topics that no other test uses; closed at its end."""

    port: int
    space: str
    """What names and topics begin with."""
    version: int = 5
    _open: list[RawClient] = field(default_factory=list)
    _seconds: count[int] = field(default_factory=count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._open:
            client.drop()

    def topic(self, *levels: str) -> str:
        """Return a topic of this test."""
        return "/".join((self.space, *levels))

    def open(self, *, receive_bytes: int = 0) -> RawClient:
        """Return a client that is not yet connected in MQTT's sense."""
        self._open.append(client := RawClient(self.port, version=self.version, receive_bytes=receive_bytes))
        return client

    def connect(
        self,
        name: str,
        *,
        clean: bool = True,
        keep_alive_s: int = 0,
        will: Will | None = None,
        properties: Properties = (),
    ) -> RawClient:
        """Return a client that the broker has welcomed."""
        client = self.open()
        client.connect(f"{self.space}-{name}", clean=clean, keep_alive_s=keep_alive_s, will=will, properties=properties)
        assert client.connack.code == 0, client.connack
        return client

    def let_a_second_pass(self) -> None:
        """Wait until the broker's clock has gone on by a second, which a delayed will tells (5.0 only)."""
        name, topic = f"clock-{next(self._seconds)}", self.topic("clock")
        watcher = self.connect(f"{name}-watcher")
        watcher.subscribe(topic)
        ticking = self.connect(
            name,
            will=Will(topic=topic, properties=((P.WILL_DELAY, 1),)),
            properties=((P.SESSION_EXPIRY, 60),),
        )
        ticking.disconnect(0x04)
        assert watcher.message().topic == topic
        watcher.disconnect()
