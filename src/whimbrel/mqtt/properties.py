"""Properties: the optional fields of 5.0 packets (MQTT 5.0, 2.2.2).

Rule: ``KINDS`` is the only table of a property's encoding, the places where it may stand, those where it may repeat,
and the bounds of its number. Decoding, encoding and building all use it.
Rule: a *place* is a packet type, or ``WILL`` for the will inside CONNECT, which has properties of its own.
Rule: a property in the wrong place is a malformed packet (2.2.2.2); a repeated property, or a number out of bounds,
is a protocol error. Topic alias 0 has a code of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import whole
from whimbrel.mqtt.codes import PacketType, ReasonCode
from whimbrel.mqtt.errors import MalformedPacketError, ProtocolError
from whimbrel.mqtt.primitives import (
    MAX_VARINT,
    UINT16,
    UINT32,
    binary_at,
    byte_at,
    encode_binary,
    encode_text,
    encode_varint,
    text_at,
    uint16_at,
    uint32_at,
    varint_at,
)
from whimbrel.mqtt.topics import check_topic_name

__all__ = [
    "KINDS",
    "MAX_USER_PROPERTIES",
    "NO_PROPERTIES",
    "WILL",
    "Kind",
    "Properties",
    "Property",
    "Wire",
    "check_places",
    "decode_properties",
    "encode_properties",
    "passed_on",
]

WILL = 0
"""The place number of a will's properties; other places are packet types."""
MAX_USER_PROPERTIES = 8_192
"""Most user properties of one packet: each takes two microseconds to decode, in which no other client is served."""

_Value: TypeAlias = int | str | bytes


class Property(IntEnum):
    """Identifier of a property: the byte before its value."""

    PAYLOAD_FORMAT_INDICATOR = 1
    MESSAGE_EXPIRY_INTERVAL = 2
    CONTENT_TYPE = 3
    RESPONSE_TOPIC = 8
    CORRELATION_DATA = 9
    SUBSCRIPTION_IDENTIFIER = 11
    SESSION_EXPIRY_INTERVAL = 17
    ASSIGNED_CLIENT_IDENTIFIER = 18
    SERVER_KEEP_ALIVE = 19
    AUTHENTICATION_METHOD = 21
    AUTHENTICATION_DATA = 22
    REQUEST_PROBLEM_INFORMATION = 23
    WILL_DELAY_INTERVAL = 24
    REQUEST_RESPONSE_INFORMATION = 25
    RESPONSE_INFORMATION = 26
    SERVER_REFERENCE = 28
    REASON_STRING = 31
    RECEIVE_MAXIMUM = 33
    TOPIC_ALIAS_MAXIMUM = 34
    TOPIC_ALIAS = 35
    MAXIMUM_QOS = 36
    RETAIN_AVAILABLE = 37
    USER_PROPERTY = 38
    MAXIMUM_PACKET_SIZE = 39
    WILDCARD_SUBSCRIPTION_AVAILABLE = 40
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 41
    SHARED_SUBSCRIPTION_AVAILABLE = 42


class Wire(Enum):
    """Encoding of a property's value."""

    BYTE = "byte"
    UINT16 = "two byte integer"
    UINT32 = "four byte integer"
    VARINT = "variable byte integer"
    TEXT = "string"
    BINARY = "binary data"
    PAIR = "string pair"


class Kind(NamedTuple):
    """Specification of one property: its encoding, its places, its bounds, and the places where it may repeat."""

    wire: Wire
    places: frozenset[int]
    low: int = 0
    high: int = 0
    """Bounds of a number, inclusive."""
    repeats_in: frozenset[int] = frozenset()


_PLACES: Mapping[str, int] = MappingProxyType({"WILL": WILL, **PacketType.__members__})


def _in(names: str) -> frozenset[int]:
    return frozenset(int(_PLACES[name]) for name in names.split())


_ACKNOWLEDGEMENTS = "PUBACK PUBREC PUBREL PUBCOMP SUBACK UNSUBACK"
_EVERYWHERE = _in(f"WILL CONNECT CONNACK PUBLISH {_ACKNOWLEDGEMENTS} SUBSCRIBE UNSUBSCRIBE DISCONNECT AUTH")
_MAX16, _MAX32 = 2**16 - 1, 2**32 - 1

KINDS: Mapping[Property, Kind] = MappingProxyType(
    {
        Property.PAYLOAD_FORMAT_INDICATOR: Kind(Wire.BYTE, _in("PUBLISH WILL"), 0, 1),
        Property.MESSAGE_EXPIRY_INTERVAL: Kind(Wire.UINT32, _in("PUBLISH WILL"), 0, _MAX32),
        Property.CONTENT_TYPE: Kind(Wire.TEXT, _in("PUBLISH WILL")),
        Property.RESPONSE_TOPIC: Kind(Wire.TEXT, _in("PUBLISH WILL")),
        Property.CORRELATION_DATA: Kind(Wire.BINARY, _in("PUBLISH WILL")),
        Property.SUBSCRIPTION_IDENTIFIER: Kind(Wire.VARINT, _in("PUBLISH SUBSCRIBE"), 1, MAX_VARINT, _in("PUBLISH")),
        Property.SESSION_EXPIRY_INTERVAL: Kind(Wire.UINT32, _in("CONNECT CONNACK DISCONNECT"), 0, _MAX32),
        Property.ASSIGNED_CLIENT_IDENTIFIER: Kind(Wire.TEXT, _in("CONNACK")),
        Property.SERVER_KEEP_ALIVE: Kind(Wire.UINT16, _in("CONNACK"), 0, _MAX16),
        Property.AUTHENTICATION_METHOD: Kind(Wire.TEXT, _in("CONNECT CONNACK AUTH")),
        Property.AUTHENTICATION_DATA: Kind(Wire.BINARY, _in("CONNECT CONNACK AUTH")),
        Property.REQUEST_PROBLEM_INFORMATION: Kind(Wire.BYTE, _in("CONNECT"), 0, 1),
        Property.WILL_DELAY_INTERVAL: Kind(Wire.UINT32, _in("WILL"), 0, _MAX32),
        Property.REQUEST_RESPONSE_INFORMATION: Kind(Wire.BYTE, _in("CONNECT"), 0, 1),
        Property.RESPONSE_INFORMATION: Kind(Wire.TEXT, _in("CONNACK")),
        Property.SERVER_REFERENCE: Kind(Wire.TEXT, _in("CONNACK DISCONNECT")),
        Property.REASON_STRING: Kind(Wire.TEXT, _in(f"CONNACK {_ACKNOWLEDGEMENTS} DISCONNECT AUTH")),
        Property.RECEIVE_MAXIMUM: Kind(Wire.UINT16, _in("CONNECT CONNACK"), 1, _MAX16),
        Property.TOPIC_ALIAS_MAXIMUM: Kind(Wire.UINT16, _in("CONNECT CONNACK"), 0, _MAX16),
        Property.TOPIC_ALIAS: Kind(Wire.UINT16, _in("PUBLISH"), 1, _MAX16),
        Property.MAXIMUM_QOS: Kind(Wire.BYTE, _in("CONNACK"), 0, 1),
        Property.RETAIN_AVAILABLE: Kind(Wire.BYTE, _in("CONNACK"), 0, 1),
        Property.USER_PROPERTY: Kind(Wire.PAIR, _EVERYWHERE, repeats_in=_EVERYWHERE),
        Property.MAXIMUM_PACKET_SIZE: Kind(Wire.UINT32, _in("CONNECT CONNACK"), 1, _MAX32),
        Property.WILDCARD_SUBSCRIPTION_AVAILABLE: Kind(Wire.BYTE, _in("CONNACK"), 0, 1),
        Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE: Kind(Wire.BYTE, _in("CONNACK"), 0, 1),
        Property.SHARED_SUBSCRIPTION_AVAILABLE: Kind(Wire.BYTE, _in("CONNACK"), 0, 1),
    }
)

_NUMBERS: Mapping[Wire, Callable[[bytes, int], tuple[int, int]]] = {
    Wire.BYTE: byte_at,
    Wire.UINT16: uint16_at,
    Wire.UINT32: uint32_at,
    Wire.VARINT: varint_at,
}
_Entry: TypeAlias = tuple[Property, Kind, Callable[[bytes, int], tuple[int, int]] | None]
_BY_BYTE: Mapping[int, _Entry] = {int(which): (which, kind, _NUMBERS.get(kind.wire)) for which, kind in KINDS.items()}
# By place and byte. Tuples, because an enum's hash is a call of Python and dear in the hot path.
_KINDS_AT: tuple[tuple[_Entry | None, ...], ...] = tuple(
    tuple(_BY_BYTE[byte] if byte in _BY_BYTE and place in _BY_BYTE[byte][1].places else None for byte in range(256))
    for place in range(16)
)
_WIRES = tuple(_BY_BYTE[byte][1].wire if byte in _BY_BYTE else None for byte in range(256))
_BYTE, _UINT16, _TEXT, _PAIR = Wire.BYTE, Wire.UINT16, Wire.TEXT, Wire.PAIR
_IDENTIFIER, _RESPONSE_TOPIC = Property.SUBSCRIPTION_IDENTIFIER, Property.RESPONSE_TOPIC
_NO_VALUES: Mapping[Property, _Value] = MappingProxyType({})


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Properties:
    """The properties of one packet; the two that may be repeated have tuples of their own.

    >>> Properties({Property.TOPIC_ALIAS: 3}, user=(("ward", "3"),)).integer(Property.TOPIC_ALIAS)
    3
    """

    _values: tuple[tuple[Property, _Value], ...]
    """Sorted by property, so that equal properties have equal bytes; few enough for a linear search."""
    user: tuple[tuple[str, str], ...]
    identifiers: tuple[int, ...]

    def __init__(
        self,
        values: Mapping[Property, object] = _NO_VALUES,
        *,
        user: tuple[tuple[str, str], ...] = (),
        identifiers: tuple[int, ...] = (),
    ) -> None:
        checked = sorted((which, _check_value(which, value)) for which, value in values.items())
        identifier = KINDS[Property.SUBSCRIPTION_IDENTIFIER]
        for number in identifiers:
            whole("subscription identifier", number, identifier.low, identifier.high)
        _fill(self, tuple(checked), tuple(user), tuple(identifiers))

    def integer(self, which: Property) -> int | None:
        """Return the value of a numeric property, None if it is absent."""
        value = self._value(which)
        assert value is None or isinstance(value, int), f"{which.name} is not a number"
        return value

    def text(self, which: Property) -> str | None:
        """Return the value of a text property, None if it is absent."""
        value = self._value(which)
        assert value is None or isinstance(value, str), f"{which.name} is not text"
        return value

    def binary(self, which: Property) -> bytes | None:
        """Return the value of a binary property, None if it is absent."""
        value = self._value(which)
        assert value is None or isinstance(value, bytes), f"{which.name} is not binary data"
        return value

    def with_user(self, user: tuple[tuple[str, str], ...]) -> Properties:
        """Return these properties with *user* in place of their user properties."""
        return _fill(Properties(), self._values, user, self.identifiers)

    def once(self) -> tuple[tuple[Property, int | str | bytes], ...]:
        """Return the properties that cannot repeat, sorted; ``user`` and ``identifiers`` are not among them."""
        return self._values

    def _value(self, which: Property) -> _Value | None:
        for known, value in self._values:
            if known is which:
                return value
        return None

    def __bool__(self) -> bool:
        return bool(self._values or self.user or self.identifiers)

    def __repr__(self) -> str:
        values = ", ".join(f"{which.name}: {value!r}" for which, value in self._values)
        return f"Properties({{{values}}}, user={self.user!r}, identifiers={self.identifiers!r})"


def _fill(
    properties: Properties,
    values: tuple[tuple[Property, _Value], ...],
    user: tuple[tuple[str, str], ...],
    identifiers: tuple[int, ...],
) -> Properties:
    object.__setattr__(properties, "_values", values)
    object.__setattr__(properties, "user", user)
    object.__setattr__(properties, "identifiers", identifiers)
    return properties


def _check_value(which: Property, value: object) -> _Value:
    kind = KINDS[which]
    if kind.repeats_in:
        raise InvalidValueError(which.name, value, "given as user=… or identifiers=…")
    if kind.wire in _NUMBERS:
        return whole(which.name, value, kind.low, kind.high)
    wanted = str if kind.wire is Wire.TEXT else bytes
    if not isinstance(value, wanted):
        raise InvalidValueError(which.name, value, f"a {wanted.__name__}")
    return value


NO_PROPERTIES = Properties()


def check_places(properties: Properties, place: int) -> None:
    """Raise ``InvalidValueError`` if one of our own *properties* must not stand in *place*."""
    kinds = _KINDS_AT[place]
    for which in _present(properties):
        if kinds[which] is None:
            raise InvalidValueError("property", which.name, f"one that stands in {_place_name(place)}")
    if len(properties.identifiers) > 1 and place not in KINDS[Property.SUBSCRIPTION_IDENTIFIER].repeats_in:
        raise InvalidValueError("subscription identifiers", properties.identifiers, "one in a SUBSCRIBE")


def _present(properties: Properties) -> Iterator[Property]:
    for which, _ in properties.once():
        yield which
    if properties.user:
        yield Property.USER_PROPERTY
    if properties.identifiers:
        yield Property.SUBSCRIPTION_IDENTIFIER


def encode_properties(properties: Properties) -> bytes:
    """Return the bytes of *properties*, without the length before them."""
    parts = [_encode_property(which, value) for which, value in properties.once()]
    parts += [b"\x0b" + encode_varint(number) for number in properties.identifiers]
    parts += [b"\x26" + encode_text(name) + encode_text(value) for name, value in properties.user]
    return b"".join(parts)


_PASSED_ON = frozenset(
    {
        Property.PAYLOAD_FORMAT_INDICATOR,
        Property.CONTENT_TYPE,
        Property.RESPONSE_TOPIC,
        Property.CORRELATION_DATA,
    }
)


def passed_on(properties: Properties) -> bytes:
    """Return the bytes of the properties of a PUBLISH that a server forwards unchanged (3.3.2.3), without the length.

    Topic alias and subscription identifiers belong to one connection, and are left out. So is the message expiry
    interval: it is forwarded less the time that the message waited, so the sender writes it.
    """
    if not properties:
        return b""
    parts = [_encode_property(which, value) for which, value in properties.once() if which in _PASSED_ON]
    parts += [b"\x26" + encode_text(name) + encode_text(value) for name, value in properties.user]
    return b"".join(parts)


def _encode_property(which: Property, value: _Value) -> bytes:
    identifier = encode_varint(which)
    if isinstance(value, str):
        return identifier + encode_text(value)
    if isinstance(value, bytes):
        return identifier + encode_binary(value)
    wire = _WIRES[which]
    if wire is _BYTE:
        return identifier + bytes((value,))
    return identifier + (UINT16 if wire is _UINT16 else UINT32).pack(value)


def decode_properties(data: bytes, context: int) -> Properties:
    """Decode the properties in *data*, bytes without the length; *context* is the place in which they stand."""
    if not data:
        return NO_PROPERTIES
    kinds = _KINDS_AT[context]
    values: list[tuple[Property, _Value]] = []
    user: list[tuple[str, str]] = []
    identifiers: list[int] = []
    at, end, seen = 0, len(data), 0
    while at < end:
        found = kinds[data[at]]  # identifiers are variable byte integers in the standard, but all below 128
        if found is None:
            raise MalformedPacketError(f"property {data[at]} does not stand in {_place_name(context)}")
        which, (wire, _, low, high, repeats_in), reader = found
        at += 1
        if wire is _PAIR:
            name, at = text_at(data, at)
            text, at = text_at(data, at)
            user.append((name, text))
            if len(user) > MAX_USER_PROPERTIES:
                reason = f"more than {MAX_USER_PROPERTIES} user properties in {_place_name(context)}"
                raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, reason)
            continue
        bit = 1 << which
        if seen & bit and context not in repeats_in:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"property {which.name} stands twice")
        seen |= bit
        if reader is not None:
            number, at = reader(data, at)
            if not low <= number <= high:
                raise _out_of_bounds(which, number)
            if which is _IDENTIFIER:
                identifiers.append(number)
            else:
                values.append((which, number))
        elif wire is _TEXT:
            text, at = text_at(data, at)
            if which is _RESPONSE_TOPIC:
                check_topic_name(text)
            values.append((which, text))
        else:
            binary, at = binary_at(data, at)
            values.append((which, binary))
    if len(values) > 1:
        values.sort()
    return _fill(Properties.__new__(Properties), tuple(values), tuple(user), tuple(identifiers))


def _out_of_bounds(which: Property, number: int) -> ProtocolError:
    is_alias = which is Property.TOPIC_ALIAS
    code = ReasonCode.TOPIC_ALIAS_INVALID if is_alias else ReasonCode.PROTOCOL_ERROR
    return ProtocolError(
        code, f"property {which.name} is {number}; allowed is {KINDS[which].low} to {KINDS[which].high}"
    )


def _place_name(place: int) -> str:
    return PacketType(place).name if place else "a will"
