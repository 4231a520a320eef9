"""The server's side of one connection: what a client may send now, and how much may be sent to it.

Rule: no socket and no clock. Bytes come in, packets come out; a breach of the protocol is ``failure``, for good.
Rule: what comes behind a CONNECT is kept as bytes, in order, until the CONNECT is answered and ``go_on`` is called.
Rule: everything that belongs to the connection and not to the session is here: version, aliases, flow control, limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from whimbrel.mqtt.codec import Decoder
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.mounts import mount_packet
from whimbrel.mqtt.packets import V5, Auth, Connack, Connect, Packet, Pingresp, Puback, Publish, Suback, Unsuback
from whimbrel.mqtt.properties import NO_PROPERTIES, Property

__all__ = ["MAX_RECEIVE", "Phase", "ServerConnection", "ServerLimits"]

MAX_RECEIVE = 65_535
"""The receive maximum of a client that does not give one."""

_FROM_SERVERS = (Connack, Suback, Unsuback, Pingresp)
_ALIAS_BYTES = 200
"""Memory of an alias beside its topic, about."""


class Phase(Enum):
    """How far a connection is."""

    NEW = "new"
    """Waiting for CONNECT."""
    CONNECTING = "connecting"
    """CONNECT came and is being answered."""
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What the server lets one client do."""

    packet_bytes: int = 1_048_576
    receive_maximum: int = 32
    topic_alias_maximum: int = 32
    outbound_topic_aliases: int = 32
    piece_bytes: int = 131_072
    """How much of what came is decoded at once: tens of thousands of the shortest packets take tens of milliseconds."""


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
            max_packet_bytes=limits.packet_bytes, stops_after_connect=True, piece_bytes=limits.piece_bytes
        )
        self._aliases: dict[int, str] = {}
        self._outbound: dict[str, int] = {}
        self._outbound_maximum = 0
        self.alias_bytes = 0
        """How much memory the topics take that are known by an alias, in both directions, about."""
        self.phase = Phase.NEW
        self.version = V5
        self.failure: ProtocolError | None = None
        self.receive_maximum = MAX_RECEIVE
        """How many QoS 1 and 2 publications the client takes before it answers."""
        self.max_packet_bytes = 0
        """The longest packet the client takes; 0: any."""
        self.wants_reasons = True
        """Whether answers may say why in words (3.1.2.11.7)."""
        self.unanswered = 0
        """Publications of the client, QoS 1 and 2, that it has no last answer to."""

    def receive(self, data: bytes) -> list[Packet]:
        """Take in *data*; return the packets that are whole and allowed. Aliases are resolved, topics mounted."""
        if self.failure is not None:
            return []
        packets = self._received(data)
        return self._mounted(packets) if self.mount else packets

    def _mounted(self, packets: list[Packet]) -> list[Packet]:
        """Return *packets* with whole topics, up to the first whose topics are too long for that."""
        for at, packet in enumerate(packets):
            try:
                packets[at] = mount_packet(packet, self.mount)
            except ProtocolError as error:
                self.failure = error
                return packets[:at]
        return packets

    def _received(self, data: bytes) -> list[Packet]:
        packets = self._decoder.receive(data)
        for at, packet in enumerate(packets):
            if type(packet) is Publish:
                if packet.properties is not NO_PROPERTIES or not packet.topic:  # else there is no alias
                    try:
                        packets[at] = self._resolved(packet)
                    except ProtocolError as error:
                        self.failure = error
                        return packets[:at]
            elif type(packet) is not Puback:
                trouble = self._trouble(packet)
                if trouble is not None:
                    self.failure = trouble
                    return packets[:at]
        self.failure = self._decoder.failure
        return packets

    @property
    def has_more(self) -> bool:
        """Whether the next ``receive`` may return packets although it is given nothing."""
        return self._decoder.has_more and self.failure is None

    def hold(self, data: bytes) -> None:
        """Keep *data* for the next ``receive``."""
        self._decoder.hold(data)

    @property
    def held_bytes(self) -> int:
        """How many bytes are kept undecoded: the beginning of a packet, or everything behind CONNECT."""
        return self._decoder.held_bytes

    @property
    def held(self) -> bytearray:
        """The bytes that are kept undecoded; the same object all the time, and not to be changed."""
        return self._decoder.held

    def take_held(self) -> bytes:
        """Return, once, the bytes that are kept undecoded; the caller brings them again."""
        return self._decoder.take_held()

    def go_on(self) -> None:
        """Let the next ``receive`` return the packets that came behind CONNECT, which is answered now."""
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

    def _resolved(self, packet: Publish) -> Publish:
        """Return *packet* with its topic, where it came under an alias (MQTT 5, 3.3.2.3.4)."""
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
    def may_begin(self) -> bool:
        """Whether the client may have one more QoS 1 or 2 publication without an answer."""
        return self.version != V5 or self.unanswered < self._limits.receive_maximum

    def publication_begins(self) -> bool:
        """Count a QoS 1 or 2 publication of the client; tell whether it may have that many (4.9)."""
        self.unanswered += 1
        return self.version != V5 or self.unanswered <= self._limits.receive_maximum

    def publication_ends(self) -> None:
        """Count the last answer to one."""
        if self.unanswered:
            self.unanswered -= 1

    # -- outbound ----------------------------------------------------------------------------------------------------

    @property
    def has_outbound_aliases(self) -> bool:
        """Whether topics to this client may be shortened."""
        return self._outbound_maximum > 0

    def outbound_alias(self, topic: str) -> tuple[int, bool]:
        """Return the alias of *topic*, and whether the client knows it already; 0 if there is none left."""
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
