"""Protocol errors of a peer, one class per answer to it.

Rule: they are about the *peer*'s bytes. Packets that our own side must not send are refused with
``InvalidValueError``.
"""

from __future__ import annotations

from whimbrel.errors import WhimbrelError
from whimbrel.mqtt.codes import ReasonCode

__all__ = [
    "InvalidConnectError",
    "MalformedPacketError",
    "PacketTooLargeError",
    "ProtocolError",
    "UnsupportedVersionError",
]


class ProtocolError(WhimbrelError):
    """The peer broke a rule of MQTT. Reaction: send the code where the version has a packet for it, then close."""

    def __init__(self, code: ReasonCode, reason: str) -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason

    def __str__(self) -> str:
        return f"{self.reason} (0x{self.code:02X} {self.code.title})"


class MalformedPacketError(ProtocolError):
    """The bytes are not a valid packet."""

    def __init__(self, reason: str) -> None:
        super().__init__(ReasonCode.MALFORMED_PACKET, reason)
        self.args = (reason,)


class PacketTooLargeError(ProtocolError):
    """The packet is larger than our maximum packet size."""

    def __init__(self, size_bytes: int, max_bytes: int) -> None:
        super().__init__(ReasonCode.PACKET_TOO_LARGE, f"a packet of {size_bytes} bytes; at most {max_bytes} are taken")
        self.args = (size_bytes, max_bytes)
        self.size_bytes, self.max_bytes = size_bytes, max_bytes


class InvalidConnectError(ProtocolError):
    """A CONNECT of MQTT 5 that breaks a rule. Reaction: CONNACK with the code if it is the first, then close (4.13.1).

    For a bad CONNECT of 3.1.1 the connection is closed without a CONNACK [MQTT-3.1.4-1], as for any other bad packet.
    """


class UnsupportedVersionError(ProtocolError):
    """The peer uses another protocol, or another version of MQTT."""

    def __init__(self, protocol: str, level: int) -> None:
        reason = f"protocol {protocol[:40]!r}, level {level}; spoken here are 'MQTT' 4 (3.1.1) and 5"
        super().__init__(ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, reason)
        self.args = (protocol, level)
        self.protocol, self.level = protocol, level
