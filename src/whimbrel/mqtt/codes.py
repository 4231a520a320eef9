"""Numbers of the wire: packet types, reason codes, and which code may stand in which packet (MQTT 5.0, 2.1.2 and 2.4).

Rule: ``PACKETS_OF`` is the only table of codes and packets; every other table is derived from it.
Rule: 3.1.1 has fewer codes, of its own; the functions at the end translate 5.0 codes to them, and never back.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

__all__ = [
    "CODES_IN",
    "PACKETS_OF",
    "PUBLISH_FIRST_BYTE",
    "PacketType",
    "ReasonCode",
    "connect_return_code",
    "suback_return_code",
]


class PacketType(IntEnum):
    """The upper four bits of a packet's first byte."""

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
    AUTH = 15


PUBLISH_FIRST_BYTE = PacketType.PUBLISH.value << 4
"""The first byte of a PUBLISH without flags."""


class ReasonCode(IntEnum):
    """Result of an operation; from 0x80 on it failed."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2

    @property
    def is_error(self) -> bool:
        """Whether the operation failed."""
        return self >= 0x80

    @property
    def title(self) -> str:
        """The name in lower case, for use in a sentence."""
        return self.name.replace("_", " ").lower()


def _packets(names: str) -> frozenset[PacketType]:
    return frozenset(PacketType[name] for name in names.split())


# From 2.4, joined with the tables of the packets' own chapters where those allow more (0x99 in PUBACK and PUBREC).
PACKETS_OF: Mapping[ReasonCode, frozenset[PacketType]] = MappingProxyType(
    {
        ReasonCode.SUCCESS: _packets("CONNACK PUBACK PUBREC PUBREL PUBCOMP SUBACK UNSUBACK DISCONNECT AUTH"),
        ReasonCode.GRANTED_QOS_1: _packets("SUBACK"),
        ReasonCode.GRANTED_QOS_2: _packets("SUBACK"),
        ReasonCode.DISCONNECT_WITH_WILL: _packets("DISCONNECT"),
        ReasonCode.NO_MATCHING_SUBSCRIBERS: _packets("PUBACK PUBREC"),
        ReasonCode.NO_SUBSCRIPTION_EXISTED: _packets("UNSUBACK"),
        ReasonCode.CONTINUE_AUTHENTICATION: _packets("AUTH"),
        ReasonCode.RE_AUTHENTICATE: _packets("AUTH"),
        ReasonCode.UNSPECIFIED_ERROR: _packets("CONNACK PUBACK PUBREC SUBACK UNSUBACK DISCONNECT"),
        ReasonCode.MALFORMED_PACKET: _packets("CONNACK DISCONNECT"),
        ReasonCode.PROTOCOL_ERROR: _packets("CONNACK DISCONNECT"),
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR: _packets("CONNACK PUBACK PUBREC SUBACK UNSUBACK DISCONNECT"),
        ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: _packets("CONNACK"),
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: _packets("CONNACK"),
        ReasonCode.BAD_USER_NAME_OR_PASSWORD: _packets("CONNACK"),
        ReasonCode.NOT_AUTHORIZED: _packets("CONNACK PUBACK PUBREC SUBACK UNSUBACK DISCONNECT"),
        ReasonCode.SERVER_UNAVAILABLE: _packets("CONNACK"),
        ReasonCode.SERVER_BUSY: _packets("CONNACK DISCONNECT"),
        ReasonCode.BANNED: _packets("CONNACK"),
        ReasonCode.SERVER_SHUTTING_DOWN: _packets("DISCONNECT"),
        ReasonCode.BAD_AUTHENTICATION_METHOD: _packets("CONNACK DISCONNECT"),
        ReasonCode.KEEP_ALIVE_TIMEOUT: _packets("DISCONNECT"),
        ReasonCode.SESSION_TAKEN_OVER: _packets("DISCONNECT"),
        ReasonCode.TOPIC_FILTER_INVALID: _packets("SUBACK UNSUBACK DISCONNECT"),
        ReasonCode.TOPIC_NAME_INVALID: _packets("CONNACK PUBACK PUBREC DISCONNECT"),
        ReasonCode.PACKET_IDENTIFIER_IN_USE: _packets("PUBACK PUBREC SUBACK UNSUBACK"),
        ReasonCode.PACKET_IDENTIFIER_NOT_FOUND: _packets("PUBREL PUBCOMP"),
        ReasonCode.RECEIVE_MAXIMUM_EXCEEDED: _packets("DISCONNECT"),
        ReasonCode.TOPIC_ALIAS_INVALID: _packets("DISCONNECT"),
        ReasonCode.PACKET_TOO_LARGE: _packets("CONNACK DISCONNECT"),
        ReasonCode.MESSAGE_RATE_TOO_HIGH: _packets("DISCONNECT"),
        ReasonCode.QUOTA_EXCEEDED: _packets("CONNACK PUBACK PUBREC SUBACK DISCONNECT"),
        ReasonCode.ADMINISTRATIVE_ACTION: _packets("DISCONNECT"),
        ReasonCode.PAYLOAD_FORMAT_INVALID: _packets("CONNACK PUBACK PUBREC DISCONNECT"),
        ReasonCode.RETAIN_NOT_SUPPORTED: _packets("CONNACK DISCONNECT"),
        ReasonCode.QOS_NOT_SUPPORTED: _packets("CONNACK DISCONNECT"),
        ReasonCode.USE_ANOTHER_SERVER: _packets("CONNACK DISCONNECT"),
        ReasonCode.SERVER_MOVED: _packets("CONNACK DISCONNECT"),
        ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: _packets("SUBACK DISCONNECT"),
        ReasonCode.CONNECTION_RATE_EXCEEDED: _packets("CONNACK DISCONNECT"),
        ReasonCode.MAXIMUM_CONNECT_TIME: _packets("DISCONNECT"),
        ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: _packets("SUBACK DISCONNECT"),
        ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: _packets("SUBACK DISCONNECT"),
    }
)
"""The packets in which each code may stand."""

_CODES = {int(code): code for code in ReasonCode}
_PACKETS = {int(code): packets for code, packets in PACKETS_OF.items()}

CODES_IN: tuple[tuple[ReasonCode | None, ...], ...] = tuple(
    tuple(_CODES.get(value) if packet in _PACKETS.get(value, ()) else None for value in range(256))
    for packet in range(16)
)
"""The inverse table: reason code per packet type and byte, None where the byte is not a valid code.

Tuples, because an enum's hash is a Python call, which is too slow as a dict key in the hot path.
"""

_RETURN_CODES = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.BAD_AUTHENTICATION_METHOD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
    ReasonCode.BANNED: 5,
}
_SERVER_UNAVAILABLE = 3


def connect_return_code(code: ReasonCode) -> int:
    """Return the return code of a 3.1.1 CONNACK for *code*: 0, or 1 to 5.

    A code without a counterpart becomes 3, server unavailable. That would be wrong for malformed packets, but 3.1.1
    answers those without a CONNACK (3.2.2.3), so they never get here.
    """
    return _RETURN_CODES.get(code, _SERVER_UNAVAILABLE) if code.is_error else 0


def suback_return_code(code: int) -> int:
    """Return the return code of a 3.1.1 SUBACK for *code*: the granted QoS, or 0x80 for every failure."""
    return 0x80 if code >= 0x80 else int(code)
