"""The server's side of one connection: checks on the client's packets, topic aliases and flow control.

Rule: no socket and no clock. Bytes come in, packets come out; a protocol error is kept in ``failure``, for good.
Rule: bytes behind a CONNECT are kept, in order, until the CONNECT is answered and ``go_on`` is called.
Rule: everything that belongs to the connection and not to the session is here: version, aliases, flow control, limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from whimbrel.mqtt.codec import Decoder
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.mounts import mount_packet
from whimbrel.mqtt.packets import (
    V5,
    Auth,
    Connack,
    Connect,
    Packet,
    Pingresp,
    Puback,
    PubackRun,
    Publish,
    Suback,
    Unsuback,
)
from whimbrel.mqtt.properties import NO_PROPERTIES, Property

__all__ = ["MAX_RECEIVE", "Phase", "ServerConnection", "ServerLimits"]

MAX_RECEIVE = 65_535
"""The receive maximum of a peer that states none."""

_FROM_SERVERS = (Connack, Suback, Unsuback, Pingresp)
_ALIAS_BYTES = 200
"""Approximate memory of an alias besides its topic, in bytes."""


class Phase(Enum):
    """Phase of a connection."""

    NEW = "new"
    """Waiting for CONNECT."""
    CONNECTING = "connecting"
    """CONNECT came and is being answered."""
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits that the server sets for one client."""

    packet_bytes: int = 1_048_576
    receive_maximum: int = 32
    topic_alias_maximum: int = 32
    outbound_topic_aliases: int = 32
    piece_bytes: int = 131_072
    """Most bytes decoded in one call: tens of thousands of the shortest packets take tens of milliseconds."""


class ServerConnection:
    """One client's connection, from its first byte to its last."""

    __slots__ = (
        "_aliases",
        "_decoder",
        "_limits",
        "_outbound",
        "_outbound_maximum",
        "alias_bytes",
        "failure",
        "max_packet_bytes",
        "mount",
        "phase",
        "receive_maximum",
        "unanswered",
        "version",
        "wants_reasons",
    )

    def __init__(self, limits: ServerLimits, *, mount: str = "") -> None:
        self._limits = limits
        self.mount = mount
        """The mount point of the client's topics; see ``mounts``."""
        self._decoder = Decoder(
            max_packet_bytes=limits.packet_bytes,
            stops_after_connect=True,
            piece_bytes=limits.piece_bytes,
            joins_pubacks=True,
        )
        self._aliases: dict[int, str] = {}
        self._outbound: dict[str, int] = {}
        self._outbound_maximum = 0
        self.alias_bytes = 0
        """Approximate memory of the topics with an alias, in both directions, in bytes."""
        self.phase = Phase.NEW
        self.version = V5
        self.failure: ProtocolError | None = None
        self.receive_maximum = MAX_RECEIVE
        """Most QoS 1 and 2 publications to the client without its answer."""
        self.max_packet_bytes = 0
        """Largest packet that the client accepts, in bytes; 0: no limit."""
        self.wants_reasons = True
        """Whether answers may have a reason string (3.1.2.11.7)."""
        self.unanswered = 0
        """Number of the client's QoS 1 and 2 publications without our last answer."""

    def receive(self, data: bytes) -> list[Packet]:
        """Decode *data*; return the complete, allowed packets, with aliases resolved and topics mounted."""
        if self.failure is not None:
            return []
        packets = self._decode(data)
        return self._mount_topics(packets) if self.mount else packets

    def _mount_topics(self, packets: list[Packet]) -> list[Packet]:
        """Return *packets* with whole topics, up to the first whose mounted topics are too long."""
        for at, packet in enumerate(packets):
            try:
                packets[at] = mount_packet(packet, self.mount)
            except ProtocolError as error:
                self.failure = error
                return packets[:at]
        return packets

    def _decode(self, data: bytes) -> list[Packet]:
        packets = self._decoder.receive(data)
        for at, packet in enumerate(packets):
            if type(packet) is Publish:
                if packet.properties is not NO_PROPERTIES or not packet.topic:  # else there is no alias
                    try:
                        packets[at] = self._resolve_alias(packet)
                    except ProtocolError as error:
                        self.failure = error
                        return packets[:at]
            elif type(packet) is not Puback and type(packet) is not PubackRun:
                trouble = self._trouble(packet)
                if trouble is not None:
                    self.failure = trouble
                    return packets[:at]
        self.failure = self._decoder.failure
        return packets

    @property
    def has_more(self) -> bool:
        """Whether the next ``receive`` may return packets even if it is passed no bytes."""
        return self._decoder.has_more and self.failure is None

    def hold(self, data: bytes) -> None:
        """Keep *data* for the next ``receive``."""
        self._decoder.hold(data)

    @property
    def held_bytes(self) -> int:
        """Number of bytes kept undecoded: the beginning of a packet, or all bytes behind CONNECT."""
        return self._decoder.held_bytes

    @property
    def held(self) -> bytearray:
        """The bytes kept undecoded; always the same object, which callers must not change."""
        return self._decoder.held

    def take_held(self) -> bytes:
        """Remove and return the bytes kept undecoded; the caller passes them to ``receive`` later."""
        return self._decoder.take_held()

    def go_on(self) -> None:
        """Resume decoding behind CONNECT, which is answered now, at the next ``receive``."""
        self._decoder.go_on()

    def _trouble(self, packet: Packet) -> ProtocolError | None:
        if type(packet) is Connect:
            if self.phase is not Phase.NEW:
                return ProtocolError(ReasonCode.PROTOCOL_ERROR, "a second CONNECT")
            self._begin(packet)
        elif type(packet) in _FROM_SERVERS:
            return ProtocolError(ReasonCode.PROTOCOL_ERROR, f"{type(packet).__name__.upper()} from a client")
        elif type(packet) is Auth:
            return ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH, and no authentication method was agreed on")
        return None

    def _begin(self, connect: Connect) -> None:
        self.phase = Phase.CONNECTING
        self.version = connect.version
        properties = connect.properties
        self.receive_maximum = properties.integer(Property.RECEIVE_MAXIMUM) or MAX_RECEIVE
        self.max_packet_bytes = properties.integer(Property.MAXIMUM_PACKET_SIZE) or 0
        self.wants_reasons = properties.integer(Property.REQUEST_PROBLEM_INFORMATION) != 0
        aliases = properties.integer(Property.TOPIC_ALIAS_MAXIMUM) or 0
        self._outbound_maximum = min(aliases, self._limits.outbound_topic_aliases)

    def _resolve_alias(self, packet: Publish) -> Publish:
        """Return *packet* with the topic that its alias stands for, if it has an alias (MQTT 5, 3.3.2.3.4)."""
        if packet.properties.identifiers:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "a subscription identifier in a client's PUBLISH")
        alias = packet.properties.integer(Property.TOPIC_ALIAS)
        if alias is None:
            return packet
        if not 0 < alias <= self._limits.topic_alias_maximum:
            allowed = f"allowed are 1 to {self._limits.topic_alias_maximum}"
            raise ProtocolError(ReasonCode.TOPIC_ALIAS_INVALID, f"topic alias {alias}, {allowed}")
        if packet.topic:
            self.alias_bytes += _alias_bytes(packet.topic) - _alias_bytes(self._aliases.get(alias))
            self._aliases[alias] = packet.topic
            return packet
        topic = self._aliases.get(alias)
        if topic is None:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"topic alias {alias}, which stands for no topic yet")
        return packet._replace(topic=topic)

    # -- flow control ------------------------------------------------------------------------------------------------

    @property
    def room_to_begin(self) -> int:
        """How many more QoS 1 or 2 publications without an answer the client's receive maximum allows."""
        return MAX_RECEIVE if self.version != V5 else self._limits.receive_maximum - self.unanswered

    def publication_begins(self) -> bool:
        """Count a QoS 1 or 2 publication of the client; return whether it is within the receive maximum (4.9)."""
        self.unanswered += 1
        return self.version != V5 or self.unanswered <= self._limits.receive_maximum

    def publication_ends(self) -> None:
        """Count our last answer to a QoS 1 or 2 publication."""
        if self.unanswered:
            self.unanswered -= 1

    # -- outbound ----------------------------------------------------------------------------------------------------

    @property
    def has_outbound_aliases(self) -> bool:
        """Whether topics to this client may be sent as aliases."""
        return self._outbound_maximum > 0

    def outbound_alias(self, topic: str) -> tuple[int, bool]:
        """Return the alias of *topic*, and whether the client knows it already; alias 0 if none is free."""
        alias = self._outbound.get(topic)
        if alias is not None:
            return alias, True
        if len(self._outbound) >= self._outbound_maximum:
            return 0, False
        alias = self._outbound[topic] = len(self._outbound) + 1
        self.alias_bytes += _alias_bytes(topic)
        return alias, False


def _alias_bytes(topic: str | None) -> int:
    return 0 if topic is None else _ALIAS_BYTES + len(topic)
