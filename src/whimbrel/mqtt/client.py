"""The client's side of MQTT: one session, and its successive connections (the counterpart of ``server``).

Rule: no socket, no clock and no random number. Bytes and the time come in; events come out, and ``take`` returns the
bytes to send. A protocol error is kept in ``failure``, for good.
Rule: ``ClientSession`` has the state that outlives a connection: publications without their last answer, and received
publications that are not finished. All other state is in ``ClientConnection``, and each connection starts empty.
Rule: a publication keeps its packet identifier until its last answer. On the next connection it is sent again with DUP,
in the original order, after the PUBRELs (MQTT 5, 4.4 and 4.6).
Rule: a received publication is confirmed when the application has handled it, and only on the connection on which it
came last. If it comes again before it was confirmed, it is not given to the application a second time.

If the server has lost the session, QoS 1 publications are sent as new ones. A QoS 2 publication after PUBREL counts as
accepted. One that was sent and has no PUBREC is ``OutcomeUnknown``: sent again it might be accepted twice, so its
publisher has to decide. The client sends no topic aliases.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from whimbrel.errors import InvalidValueError
from whimbrel.mqtt.codec import MAX_PACKET_BYTES, Decoder, encode
from whimbrel.mqtt.codes import CODES_IN, PacketType, ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import (
    V5,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property
from whimbrel.mqtt.server import MAX_RECEIVE, Phase
from whimbrel.mqtt.topics import check_topic_name

__all__ = [
    "Accepted",
    "Arrived",
    "ClientConnection",
    "ClientLimits",
    "ClientSession",
    "Delivery",
    "Event",
    "OutcomeUnknown",
    "PublishCompleted",
    "Refused",
    "ServerDisconnected",
    "ServerLimits",
    "SubscribeAnswered",
    "check_own_topic",
]

_MAX_ID = 65_535
_DUP = 0x08


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits that the client sets for the server; only version 5 can transmit them."""

    packet_bytes: int = 16 << 20
    receive_maximum: int = 64
    """Most QoS 1 and 2 publications in flight. A server that sends more is tolerated: some do (mosquitto 2.0.11, when
    many wait), and a program that reads no more than it can hold needs no other bound."""
    topic_alias_maximum: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits that the server sets for the client on one connection, and the agreed session parameters."""

    client_id: str
    keep_alive_s: int
    session_expiry_s: int = 0
    receive_maximum: int = MAX_RECEIVE
    topic_alias_maximum: int = 0
    packet_bytes: int = MAX_PACKET_BYTES
    maximum_qos: int = 2
    is_retain_available: bool = True


# -- events ----------------------------------------------------------------------------------------------------------


class Accepted(NamedTuple):
    """CONNECT was accepted."""

    is_session_present: bool
    terms: ServerLimits


class Refused(NamedTuple):
    """CONNECT was refused; in 3.1.1 *code* is a return code, 1 to 5."""

    code: int
    reason: str | None


class ServerDisconnected(NamedTuple):
    """The server sent DISCONNECT."""

    code: ReasonCode
    reason: str | None


class PublishCompleted(NamedTuple):
    """A publication has its last answer."""

    packet_id: int
    code: ReasonCode
    reason: str | None = None


class OutcomeUnknown(NamedTuple):
    """The server has lost the session, and it is unknown whether it had accepted this QoS 2 publication."""

    packet_id: int


class SubscribeAnswered(NamedTuple):
    """SUBSCRIBE or UNSUBSCRIBE was answered, with a code for each topic filter; UNSUBSCRIBE of 3.1.1 has none."""

    packet_id: int
    codes: tuple[int, ...]
    reason: str | None


class _Inbound:
    """A received QoS 1 or 2 publication whose exchange has not ended."""

    __slots__ = ("connection", "content", "is_handled", "qos")

    def __init__(self, packet: Publish, connection: int) -> None:
        self.qos = packet.qos
        self.content = hash((packet.topic, packet.payload))
        self.connection = connection
        """Number of the connection on which it came last."""
        self.is_handled = False

    def is_same(self, packet: Publish) -> bool:
        """Return whether *packet* retransmits this publication (same identifier).

        At QoS 2 the identifier alone should decide. But a server may have dropped a message that we still know, and
        have used its identifier again: a packet without DUP and with other content is a new message.
        """
        is_alike = self.content == hash((packet.topic, packet.payload))
        if packet.qos != self.qos:
            return False
        return (packet.dup or is_alike) if self.qos == 2 else (packet.dup and is_alike)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A received publication for the application, which passes it to ``acknowledge`` when it is handled."""

    packet: Publish
    inbound: _Inbound | None = field(default=None, repr=False, compare=False)
    """None at QoS 0."""


class Arrived(NamedTuple):
    """A publication was received."""

    delivery: Delivery


Event: TypeAlias = (
    Accepted | Refused | ServerDisconnected | PublishCompleted | OutcomeUnknown | SubscribeAnswered | Arrived
)


# -- the session -----------------------------------------------------------------------------------------------------


class _Outbound:
    """A QoS 1 or 2 publication in flight to the server, as bytes: a retransmission differs in one bit."""

    __slots__ = ("is_retained", "qos", "was_sent", "wire")

    def __init__(self, packet: Publish, version: int) -> None:
        self.qos, self.is_retained = packet.qos, packet.retain
        self.wire = encode(packet, version)
        self.was_sent = False

    def next_wire(self) -> bytes:
        """Return the bytes to send now, with DUP if they were sent before."""
        if not self.was_sent:
            self.was_sent = True
            return self.wire
        return bytes((self.wire[0] | _DUP,)) + self.wire[1:]


class ClientSession:
    """Session state of a client, which outlives its connections.

    It lives in memory: a client that restarts and resumes its session at the server begins with an empty state. It
    should pass another *first_id* than before, or the server may take a new QoS 2 publication for an old one.
    """

    __slots__ = ("connections", "inbound", "last_id", "outbound", "releasing", "requests", "version")

    def __init__(self, version: int = V5, *, first_id: int = 1) -> None:
        self.version: Final = version
        self.last_id = first_id - 1
        self.connections = 0
        """Number of connections so far."""
        self.outbound: dict[int, _Outbound] = {}
        """Publications without PUBACK or PUBREC, in order."""
        self.releasing: dict[int, None] = {}
        """Packet identifiers between PUBREL and PUBCOMP, in order."""
        self.requests: dict[int, int] = {}
        """Unanswered SUBSCRIBE and UNSUBSCRIBE of this connection: number of topic filters per packet identifier."""
        self.inbound: dict[int, _Inbound] = {}

    def publish(self, packet: Publish) -> int:
        """Queue a QoS 1 or 2 publication, and return its packet identifier; a ``ClientConnection`` sends it."""
        check_publication(packet)
        identifier = self.new_id()
        self.outbound[identifier] = _Outbound(packet._replace(packet_id=identifier, dup=False), self.version)
        return identifier

    def mark_handled(self, delivery: Delivery) -> None:
        """Record that the application has handled *delivery*, while there is no connection on which to confirm it."""
        if delivery.inbound is not None:
            delivery.inbound.is_handled = True

    @property
    def unanswered(self) -> int:
        """Number of publications without their last answer."""
        return len(self.outbound) + len(self.releasing)

    def new_id(self) -> int:
        """Return a free packet identifier."""
        for step in range(1, _MAX_ID + 1):
            identifier = (self.last_id + step - 1) % _MAX_ID + 1
            if not (identifier in self.outbound or identifier in self.releasing or identifier in self.requests):
                self.last_id = identifier
                return identifier
        raise InvalidValueError("packets without an answer", _MAX_ID, f"fewer than {_MAX_ID}")

    def begin_again(self) -> list[Event]:
        """Reset the session after the server has lost it; return the events of publications that ended by this."""
        events: list[Event] = [PublishCompleted(identifier, ReasonCode.SUCCESS) for identifier in self.releasing]
        self.releasing.clear()
        self.inbound.clear()
        for identifier, out in list(self.outbound.items()):
            if out.qos == 2 and out.was_sent:
                del self.outbound[identifier]
                events.append(OutcomeUnknown(identifier))
            out.was_sent = False
        return events


def check_publication(packet: Publish) -> None:
    """Raise ``InvalidValueError`` if the topic of *packet* is invalid: the error is the caller's, not a peer's."""
    check_own_topic(packet.topic)


def check_own_topic(topic: str) -> None:
    """Raise ``InvalidValueError`` if *topic* is not a valid topic name."""
    try:
        check_topic_name(topic)
    except ProtocolError as error:
        raise InvalidValueError("topic", topic, "a topic name without wildcards", error.reason) from error


# -- the connection --------------------------------------------------------------------------------------------------


class ClientConnection:
    """One connection, from CONNECT on; the client's *limits* are added to *connect*."""

    __slots__ = (
        "_aliases",
        "_connect",
        "_decoder",
        "_in_flight",
        "_is_deaf",
        "_is_pinging",
        "_limits",
        "_number",
        "_out",
        "_pinged_at",
        "_received_at",
        "_sent_at",
        "_session",
        "_to_send",
        "failure",
        "phase",
        "terms",
    )

    def __init__(self, session: ClientSession, connect: Connect, limits: ClientLimits, *, now: float) -> None:
        if connect.version != session.version:
            raise InvalidValueError("version", connect.version, f"{session.version}, the session's")
        self._session, self._connect, self._limits = session, connect, limits
        self._decoder = Decoder(max_packet_bytes=limits.packet_bytes, version=connect.version)
        session.connections += 1
        session.requests.clear()  # their answers were lost with the last connection
        self._number = session.connections
        self._aliases: dict[int, str] = {}
        self._to_send: deque[int] = deque()
        """Packet identifiers of publications to send on this connection."""
        self._in_flight: set[int] = set()
        self._sent_at = self._received_at = self._pinged_at = now
        self._is_pinging = self._is_deaf = False
        self.phase = Phase.CONNECTING
        self.failure: ProtocolError | None = None
        self.terms = ServerLimits(client_id=connect.client_id, keep_alive_s=connect.keep_alive_s)
        """The limits that the client requested; from ``Accepted`` on, those agreed with the server."""
        self._out = [encode(_with_limits(connect, limits), connect.version)]

    # -- bytes -------------------------------------------------------------------------------------------------------

    def take(self, *, now: float) -> bytes:
        """Remove and return the bytes to send; the caller sends them immediately."""
        if not self._out:
            return b""
        self._sent_at = now
        data = b"".join(self._out)
        self._out.clear()
        return data

    def receive(self, data: bytes, *, now: float) -> list[Event]:
        """Handle bytes received from the server; return the events, in order."""
        self._received_at = now
        self._is_pinging = False  # any bytes prove that the server is alive
        events: list[Event] = []
        if self.is_closed:
            return events
        try:
            for packet in self._decoder.receive(data):
                if not self.is_closed:  # by the packet before
                    self._handle(packet, events)
        except ProtocolError as error:
            self._fail(error)
        else:
            if self._decoder.failure is not None:
                self._fail(self._decoder.failure)
        return events

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended: refused, closed by either side, or failed by a protocol error."""
        return self.phase is Phase.CLOSED

    def _fail(self, error: ProtocolError) -> None:
        self.failure = error.with_traceback(None)
        if self.phase is Phase.OPEN and self._session.version == V5:
            is_known = CODES_IN[PacketType.DISCONNECT][error.code] is not None
            self._send(Disconnect(error.code if is_known else ReasonCode.PROTOCOL_ERROR))
        self.phase = Phase.CLOSED

    def _send(self, packet: Packet) -> None:
        self._out.append(encode(packet, self._session.version))

    # -- time --------------------------------------------------------------------------------------------------------

    @property
    def ping_due_at(self) -> float | None:
        """Time to send PINGREQ, if no packet is sent or received until then; None without keep alive.

        It counts from the last bytes sent or the last received, whichever is older: a client that only sends would
        otherwise never notice a dead server.
        """
        keep_alive_s = self.terms.keep_alive_s
        if not keep_alive_s or self.phase is not Phase.OPEN:
            return None
        since = self._sent_at if self._is_pinging or self._is_deaf else min(self._sent_at, self._received_at)
        return since + keep_alive_s

    @property
    def dead_at(self) -> float | None:
        """Time at which the server counts as dead unless bytes come: half a keep alive (at least 1 s) after a ping."""
        if not self._is_pinging or self._is_deaf or self.phase is not Phase.OPEN:
            return None
        return self._pinged_at + max(1.0, self.terms.keep_alive_s / 2)

    def timer(self, *, now: float) -> None:
        """Send a ping that is due; fail the connection if the server did not answer one in time."""
        if self.dead_at is not None and now >= self.dead_at:
            self._fail(ProtocolError(ReasonCode.KEEP_ALIVE_TIMEOUT, "no answer to a ping"))
            return
        if self.ping_due_at is not None and now >= self.ping_due_at:
            if not self._is_pinging:
                self._is_pinging, self._pinged_at = True, now
            self._send(Pingreq())

    def stop_listening(self) -> None:
        """Suspend the check for a dead server while the caller reads nothing."""
        self._is_deaf = True

    def listen(self, *, now: float) -> None:
        """Resume the check for a dead server: the caller reads again."""
        self._is_deaf = self._is_pinging = False
        self._received_at = now

    # -- what the client says ----------------------------------------------------------------------------------------

    def publish_once(self, packet: Publish) -> ReasonCode:
        """Send a QoS 0 publication; return ``SUCCESS``, or the reason for which it cannot be sent."""
        check_publication(packet)
        data = encode(packet, self._session.version)
        code = self._unfit(data, packet.qos, is_retained=packet.retain)
        if code is ReasonCode.SUCCESS:
            self._out.append(data)
        return code

    def pump(self) -> list[Event]:
        """Send queued publications, as far as the server's receive maximum allows."""
        session, events = self._session, list[Event]()
        if self.phase is not Phase.OPEN:
            return events
        while self._to_send and len(self._in_flight) < self.terms.receive_maximum:
            identifier = self._to_send.popleft()
            out = session.outbound.get(identifier)
            if out is None:
                continue
            code = self._unfit(out.wire, out.qos, is_retained=out.is_retained)
            if code is not ReasonCode.SUCCESS:
                del session.outbound[identifier]
                events.append(PublishCompleted(identifier, code, "more than this server takes"))
                continue
            self._in_flight.add(identifier)
            self._out.append(out.next_wire())
        return events

    def publish(self, packet: Publish) -> tuple[int, list[Event]]:
        """Queue a QoS 1 or 2 publication; send it if the receive maximum allows. Return its identifier and events."""
        identifier = self._session.publish(packet)
        if self.phase is Phase.OPEN:  # else CONNACK will find it in the session
            self._to_send.append(identifier)
        return identifier, self.pump()

    def _unfit(self, data: bytes, qos: int, *, is_retained: bool) -> ReasonCode:
        if len(data) > self.terms.packet_bytes:
            return ReasonCode.PACKET_TOO_LARGE
        if qos > self.terms.maximum_qos:
            return ReasonCode.QOS_NOT_SUPPORTED
        if is_retained and not self.terms.is_retain_available:
            return ReasonCode.RETAIN_NOT_SUPPORTED
        return ReasonCode.SUCCESS

    def subscribe(self, requests: tuple[SubscriptionRequest, ...], properties: Properties = NO_PROPERTIES) -> int:
        """Send SUBSCRIBE; return its packet identifier."""
        identifier = self._session.new_id()
        self._send(Subscribe(identifier, requests, properties))
        self._session.requests[identifier] = len(requests)
        return identifier

    def unsubscribe(self, topic_filters: tuple[str, ...], properties: Properties = NO_PROPERTIES) -> int:
        """Send UNSUBSCRIBE; return its packet identifier."""
        identifier = self._session.new_id()
        self._send(Unsubscribe(identifier, topic_filters, properties))
        self._session.requests[identifier] = len(topic_filters)
        return identifier

    def acknowledge(self, delivery: Delivery) -> None:
        """Record that the application has handled *delivery*; confirm it if it came on this connection."""
        inbound, identifier = delivery.inbound, delivery.packet.packet_id
        if inbound is None or inbound.is_handled:
            return
        inbound.is_handled = True
        # If it came on an earlier connection, the server sends it again and is answered then: it would not
        # understand an answer to a packet that it has not sent on this connection.
        is_here = inbound.connection == self._number and self.phase is Phase.OPEN
        if is_here and self._session.inbound.get(identifier) is inbound:
            self._confirm(identifier, inbound)

    def disconnect(self) -> None:
        """Send DISCONNECT and close."""
        if self.phase is Phase.OPEN:
            self._send(Disconnect())
        self.phase = Phase.CLOSED

    # -- what the server says ----------------------------------------------------------------------------------------

    def _handle(self, packet: Packet, events: list[Event]) -> None:
        if self.phase is Phase.CONNECTING:
            if type(packet) is not Connack:
                raise _breach(f"{type(packet).__name__.upper()} before CONNACK")
            self._on_connack(packet, events)
            return
        match packet:
            case Publish():
                self._on_publish(packet, events)
            case Puback():
                self._on_puback(packet, events)
            case Pubrec():
                self._on_pubrec(packet, events)
            case Pubrel():
                self._on_pubrel(packet)
            case Pubcomp():
                self._on_pubcomp(packet, events)
            case Suback() | Unsuback():
                self._on_suback(packet, events)
            case Pingresp():
                pass
            case Disconnect() if self._session.version == V5:
                self.phase = Phase.CLOSED
                events.append(ServerDisconnected(packet.code, packet.properties.text(Property.REASON_STRING)))
            case _:
                raise _breach(f"{type(packet).__name__.upper()} from a server")

    def _on_connack(self, packet: Connack, events: list[Event]) -> None:
        if packet.code:
            self.phase = Phase.CLOSED
            events.append(Refused(int(packet.code), packet.properties.text(Property.REASON_STRING)))
            return
        if packet.session_present and self._connect.clean_start:
            raise _breach("a session in CONNACK, and a clean start was asked for")
        self.phase = Phase.OPEN
        self.terms = _terms(self._connect, packet.properties)
        events.append(Accepted(packet.session_present, self.terms))
        if not packet.session_present:
            events += self._session.begin_again()
        for identifier in self._session.releasing:
            self._in_flight.add(identifier)
            self._send(Pubrel(identifier))
        self._to_send.extend(self._session.outbound)
        events += self.pump()

    def _on_publish(self, packet: Publish, events: list[Event]) -> None:
        packet = self._resolve_alias(packet)
        if not packet.qos:
            events.append(Arrived(Delivery(packet)))
            return
        identifier, inbound = packet.packet_id, self._session.inbound
        known = inbound.get(identifier)
        if known is not None and known.is_same(packet):
            known.connection = self._number
            if known.is_handled:
                self._confirm(identifier, known)
            return
        new = inbound[identifier] = _Inbound(packet, self._number)
        events.append(Arrived(Delivery(packet, new)))

    def _resolve_alias(self, packet: Publish) -> Publish:
        """Return *packet* with the topic that its alias stands for, if it has an alias (MQTT 5, 3.3.2.3.4)."""
        alias = packet.properties.integer(Property.TOPIC_ALIAS) if packet.properties else None
        if alias is None:
            return packet
        allowed = self._limits.topic_alias_maximum
        if not 0 < alias <= allowed:
            raise ProtocolError(ReasonCode.TOPIC_ALIAS_INVALID, f"topic alias {alias}, allowed are 1 to {allowed}")
        if packet.topic:
            self._aliases[alias] = packet.topic
            return packet
        topic = self._aliases.get(alias)
        if topic is None:
            raise _breach(f"topic alias {alias}, which stands for no topic yet")
        return packet._replace(topic=topic)

    def _confirm(self, identifier: int, inbound: _Inbound) -> None:
        if inbound.qos == 2:
            self._send(Pubrec(identifier))
            return
        self._send(Puback(identifier))
        del self._session.inbound[identifier]

    def _on_pubrel(self, packet: Pubrel) -> None:
        inbound = self._session.inbound.pop(packet.packet_id, None)
        if inbound is None and self._session.version == V5:
            self._send(Pubcomp(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
            return
        self._send(Pubcomp(packet.packet_id))

    def _on_puback(self, packet: Puback, events: list[Event]) -> None:
        out = self._session.outbound.get(packet.packet_id)
        if out is None and packet.packet_id not in self._session.releasing:
            return  # answered twice: nothing is left to do
        if out is None or out.qos != 1:
            raise _breach("PUBACK to a QoS 2 publication")
        self._over(packet, events)

    def _on_pubrec(self, packet: Pubrec, events: list[Event]) -> None:
        session, identifier = self._session, packet.packet_id
        out = session.outbound.get(identifier)
        if out is None:
            is_known = identifier in session.releasing or session.version != V5
            code = ReasonCode.SUCCESS if is_known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            self._send(Pubrel(identifier, code))
        elif out.qos != 2:
            raise _breach("PUBREC to a QoS 1 publication")
        elif packet.code.is_error:
            self._over(packet, events)
        else:
            del session.outbound[identifier]
            session.releasing[identifier] = None
            self._send(Pubrel(identifier))

    def _on_pubcomp(self, packet: Pubcomp, events: list[Event]) -> None:
        if packet.packet_id in self._session.releasing:
            # "Not found" is not a failure here: the server has forgotten a completed exchange (3.7.2.1).
            self._over(packet._replace(code=ReasonCode.SUCCESS), events)
        elif packet.packet_id in self._session.outbound:
            raise _breach("PUBCOMP to a publication that was not released")

    def _over(self, packet: Puback | Pubrec | Pubcomp, events: list[Event]) -> None:
        identifier = packet.packet_id
        self._session.outbound.pop(identifier, None)
        self._session.releasing.pop(identifier, None)
        self._in_flight.discard(identifier)
        reason = packet.properties.text(Property.REASON_STRING) if packet.properties else None
        events.append(PublishCompleted(identifier, packet.code, reason))
        events += self.pump()

    def _on_suback(self, packet: Suback | Unsuback, events: list[Event]) -> None:
        asked = self._session.requests.pop(packet.packet_id, None)
        if asked is None:
            raise _breach(f"{type(packet).__name__.upper()} to a packet that was not sent")
        has_codes = type(packet) is Suback or self._session.version == V5
        if has_codes and len(packet.codes) != asked:
            raise _breach(f"{len(packet.codes)} codes for {asked} topic filters")
        reason = packet.properties.text(Property.REASON_STRING)
        events.append(SubscribeAnswered(packet.packet_id, packet.codes, reason))


def _breach(reason: str) -> ProtocolError:
    return ProtocolError(ReasonCode.PROTOCOL_ERROR, reason)


def _with_limits(connect: Connect, limits: ClientLimits) -> Connect:
    if connect.version != V5:
        return connect
    values: dict[Property, object] = dict(connect.properties.once())
    values[Property.RECEIVE_MAXIMUM] = limits.receive_maximum
    values[Property.MAXIMUM_PACKET_SIZE] = limits.packet_bytes
    if limits.topic_alias_maximum:
        values[Property.TOPIC_ALIAS_MAXIMUM] = limits.topic_alias_maximum
    return connect._replace(properties=Properties(values, user=connect.properties.user))


def _terms(connect: Connect, told: Properties) -> ServerLimits:
    """Return the agreed limits: the server's values, and the client's own where the server states none."""

    def either(which: Property, otherwise: int) -> int:
        value = told.integer(which)
        return otherwise if value is None else value

    asked_expiry_s = connect.properties.integer(Property.SESSION_EXPIRY_INTERVAL) or 0
    return ServerLimits(
        client_id=told.text(Property.ASSIGNED_CLIENT_IDENTIFIER) or connect.client_id,
        keep_alive_s=either(Property.SERVER_KEEP_ALIVE, connect.keep_alive_s),
        session_expiry_s=either(Property.SESSION_EXPIRY_INTERVAL, asked_expiry_s),
        receive_maximum=either(Property.RECEIVE_MAXIMUM, MAX_RECEIVE),
        topic_alias_maximum=either(Property.TOPIC_ALIAS_MAXIMUM, 0),
        packet_bytes=either(Property.MAXIMUM_PACKET_SIZE, MAX_PACKET_BYTES),
        maximum_qos=either(Property.MAXIMUM_QOS, 2),
        is_retain_available=either(Property.RETAIN_AVAILABLE, 1) == 1,
    )
