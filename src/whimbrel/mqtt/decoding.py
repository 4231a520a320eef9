"""Decoding: the bytes of one packet to a packet (chapter 3 of MQTT 5.0 and of 3.1.1).

Rule: for any bytes, the result is a packet or a ``ProtocolError``.
Rule: every check that needs the packet alone is made here. Checks that need state (is this the first packet, is the
identifier in use, how large is the alias maximum) or the side that we are on are made by the connection.
Rule: the text of topic filters is not checked: SUBACK refuses a bad one, and the others of the packet still count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from whimbrel.mqtt.codes import CODES_IN, PacketType, ReasonCode
from whimbrel.mqtt.errors import InvalidConnectError, MalformedPacketError, ProtocolError, UnsupportedVersionError
from whimbrel.mqtt.packets import (
    V5,
    V311,
    Auth,
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
    Will,
)
from whimbrel.mqtt.primitives import binary_at, byte_at, text_at, text_from, uint16_at, varint_at
from whimbrel.mqtt.properties import NO_PROPERTIES, WILL, Properties, Property, decode_properties
from whimbrel.mqtt.topics import SHARE_PREFIX, check_topic_name

__all__ = ["MAX_FILTERS", "decode", "publish_at"]

_Ack = TypeVar("_Ack", Puback, Pubrec, Pubrel, Pubcomp)

# Names of an enum are looked up through its metaclass; these stand in the hot path.
_SUCCESS, _PUBLISH, _TOPIC_ALIAS = ReasonCode.SUCCESS, PacketType.PUBLISH, Property.TOPIC_ALIAS
_FLAGS = tuple((flags >> 1 & 3, flags & 1 != 0, flags & 8 != 0) for flags in range(16))
"""QoS, retain and DUP of a PUBLISH, by its flags."""
_new = tuple.__new__  # a named tuple's own constructor costs twice as much; used for the packets of the hot path

MAX_FILTERS = 10_000
"""Most topic filters of one packet: each takes a microsecond to decode, in which no other client is served."""
_MAX_TOPICS = 8_192
_MAX_TOPIC_BYTES = 256
_TLS_HANDSHAKE = 0x16
"""First byte of a TLS client (RFC 8446, 5.1); in MQTT it would be a CONNECT with reserved flags."""
_topics: dict[bytes, str] = {}
"""Cache of checked topic names, by their bytes; see ``_topic``."""


def decode(first: int, body: bytes, version: int) -> Packet:
    """Return the packet whose first byte is *first* and whose bytes after the length are *body*.

    A CONNECT has its own version; for it *version* is ignored.
    """
    decoder = _DECODERS.get(first)
    if decoder is not None:
        return decoder(body, version)
    if first >> 4 == PacketType.PUBLISH:
        return publish_at(body, first, 0, len(body), version)
    if first >> 4 == 0:
        raise MalformedPacketError("packet type 0 is reserved")
    if first == _TLS_HANDSHAKE:
        raise MalformedPacketError("this begins as TLS does, and here is no TLS")
    raise MalformedPacketError(f"flags {first & 15:04b} of {PacketType(first >> 4).name} are reserved")


def publish_at(data: bytes, first: int, at: int, end: int, version: int) -> Publish:
    """Return the PUBLISH whose body is ``data[at:end]``; decoded in place, so that no byte is copied twice."""
    qos, retain, dup = _FLAGS[first & 15]
    if qos == 3:
        raise MalformedPacketError("PUBLISH with QoS 3")
    start = at + 2
    cut = start + (data[at] << 8 | data[at + 1]) if start <= end else end + 1
    if cut > end:
        raise MalformedPacketError("the topic of a PUBLISH runs past the end")
    raw = data[start:cut]
    topic = _topics.get(raw)
    if topic is None:
        topic = _topic(raw)
    packet_id = 0
    if qos:
        start, cut = cut, cut + 2
        if cut > end:
            raise MalformedPacketError("PUBLISH without its packet identifier")
        packet_id = data[start] << 8 | data[start + 1]
        if not packet_id:
            raise MalformedPacketError("PUBLISH with packet identifier 0")
    elif dup:
        raise MalformedPacketError("PUBLISH with DUP at QoS 0")
    properties = NO_PROPERTIES
    if version == V5:
        if cut < end and not data[cut]:
            cut += 1
        else:
            properties, cut = _properties_at(data, cut, _PUBLISH, end)
    if not topic and (version != V5 or properties.integer(_TOPIC_ALIAS) is None):
        raise _no_topic(version)
    return _new(Publish, (topic, data[cut:end], qos, retain, dup, packet_id, properties))


def _topic(raw: bytes) -> str:
    """Return the checked topic name in *raw*; it may be empty, since an alias may stand for it.

    The same topics come again and again. The cache saves decoding and checking, and gives all later code the same
    string, whose hash is then computed once. A full cache is emptied; topics in use are back at once.
    """
    topic = text_from(raw)
    if topic:
        check_topic_name(topic)
    if len(raw) <= _MAX_TOPIC_BYTES:
        if len(_topics) >= _MAX_TOPICS:
            _topics.clear()
        _topics[raw] = topic
    return topic


def _no_topic(version: int) -> ProtocolError:
    if version == V5:
        return ProtocolError(ReasonCode.PROTOCOL_ERROR, "PUBLISH with neither a topic nor a topic alias")
    return ProtocolError(ReasonCode.TOPIC_NAME_INVALID, "PUBLISH without a topic")


def _properties_at(data: bytes, at: int, place: int, end: int | None = None) -> tuple[Properties, int]:
    """Read properties and their length; *end* is the end of the packet, if *data* is longer."""
    size, start = varint_at(data, at)
    stop = start + size
    if stop > (len(data) if end is None else end):
        raise MalformedPacketError("properties run past the end")
    return decode_properties(data[start:stop], place), stop


def _connect(body: bytes, _version: int) -> Connect:
    protocol, at = text_at(body, 0)
    version, at = byte_at(body, at)
    if protocol != "MQTT" or version not in {V311, V5}:
        raise UnsupportedVersionError(protocol, version)
    try:
        return _connect_at(body, at, version)
    except ProtocolError as error:
        if version == V5:
            raise InvalidConnectError(error.code, error.reason) from None
        raise


def _connect_at(body: bytes, at: int, version: int) -> Connect:
    """Read the rest of a CONNECT, behind the version."""
    flags, at = byte_at(body, at)
    _check_connect_flags(flags, version)
    keep_alive_s, at = uint16_at(body, at)
    properties = NO_PROPERTIES
    if version == V5:
        properties, at = _properties_at(body, at, PacketType.CONNECT)
        has_method = properties.text(Property.AUTHENTICATION_METHOD) is not None
        if not has_method and properties.binary(Property.AUTHENTICATION_DATA) is not None:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "CONNECT with authentication data but no method")
    client_id, at = text_at(body, at)
    will: Will | None = None
    if flags & 0x04:
        will, at = _will_at(body, at, flags, version)
    username: str | None = None
    password: bytes | None = None
    if flags & 0x80:
        username, at = text_at(body, at)
    if flags & 0x40:
        password, at = binary_at(body, at)
    _check_end(body, at, "CONNECT")
    return Connect(client_id, flags & 2 != 0, keep_alive_s, version, username, password, will, properties)


def _check_connect_flags(flags: int, version: int) -> None:
    if flags & 0x01:
        raise MalformedPacketError("the reserved flag of CONNECT is set")
    if flags & 0x18 == 0x18:
        raise MalformedPacketError("CONNECT with a will of QoS 3")
    if not flags & 0x04 and flags & 0x38:
        raise MalformedPacketError("CONNECT with flags of a will but no will")
    if version == V311 and flags & 0xC0 == 0x40:
        raise MalformedPacketError("CONNECT of 3.1.1 with a password but no user name")


def _will_at(body: bytes, at: int, flags: int, version: int) -> tuple[Will, int]:
    properties = NO_PROPERTIES
    if version == V5:
        properties, at = _properties_at(body, at, WILL)
    topic, at = text_at(body, at)
    check_topic_name(topic)
    payload, at = binary_at(body, at)
    return Will(topic, payload, flags >> 3 & 3, flags & 0x20 != 0, properties), at


def _connack(body: bytes, version: int) -> Connack:
    flags, at = byte_at(body, 0)
    if flags > 1:
        raise MalformedPacketError("reserved flags of CONNACK are set")
    value, at = byte_at(body, at)
    properties = NO_PROPERTIES
    code = value
    if version == V5:
        code = _code(value, PacketType.CONNACK)
        properties, at = _properties_at(body, at, PacketType.CONNACK)
    elif value > 5:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"return code {value} of CONNACK is reserved")
    _check_end(body, at, "CONNACK")
    if code and flags:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "CONNACK that refuses and speaks of a session")
    return Connack(flags == 1, code, properties)


def _acknowledgement(packet: type[_Ack], place: PacketType) -> Callable[[bytes, int], _Ack]:
    """Return a decoder of PUBACK, PUBREC, PUBREL or PUBCOMP, which differ only in their codes."""

    def decoder(body: bytes, version: int) -> _Ack:
        size = len(body)
        if size < 2 or (size > 2 and version != V5):
            raise MalformedPacketError(f"{place.name} of {size} bytes")
        packet_id = body[0] << 8 | body[1]
        if not packet_id:
            raise _no_packet_id(place)
        if size == 2:
            return _new(packet, (packet_id, _SUCCESS, NO_PROPERTIES))
        code, properties, at = _code(body[2], place), NO_PROPERTIES, 3
        if size > 3:
            properties, at = _properties_at(body, at, place)
        _check_end(body, at, place.name)
        return _new(packet, (packet_id, code, properties))

    return decoder


def _subscribe(body: bytes, version: int) -> Subscribe:
    packet_id, properties, at = _read_packet_id(body, version, PacketType.SUBSCRIBE)
    requests: list[SubscriptionRequest] = []
    size, known = len(body), dict[int, tuple[int, bool, bool, int]]()
    while at < size:
        topic_filter, at = text_at(body, at)
        options, at = byte_at(body, at)
        found = known.get(options)
        if found is None:
            found = known[options] = _options(options, version)
        if found[1] and topic_filter.startswith(SHARE_PREFIX):
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "SUBSCRIBE with no local on a shared subscription")
        requests.append(_new(SubscriptionRequest, (topic_filter, *found)))
        if len(requests) > MAX_FILTERS:
            raise _too_many_filters("SUBSCRIBE")
    if not requests:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "SUBSCRIBE without a topic filter")
    return Subscribe(packet_id, tuple(requests), properties)


def _too_many_filters(packet: str) -> ProtocolError:
    return ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"{packet} with more than {MAX_FILTERS} topic filters")


def _options(options: int, version: int) -> tuple[int, bool, bool, int]:
    """Return QoS, no local, retain as published and retain handling from a byte of subscription options."""
    if options & (0xC0 if version == V5 else 0xFC):
        raise MalformedPacketError(f"reserved bits of subscription options {options:08b} are set")
    qos, no_local, retain_handling = options & 3, options & 4 != 0, options >> 4
    if qos == 3:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "SUBSCRIBE with QoS 3")
    if retain_handling == 3:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "SUBSCRIBE with retain handling 3")
    return qos, no_local, options & 8 != 0, retain_handling


def _suback(body: bytes, version: int) -> Suback:
    packet_id, properties, at = _read_packet_id(body, version, PacketType.SUBACK)
    codes = _codes(body[at:], PacketType.SUBACK)
    if version != V5 and not {0, 1, 2, 0x80}.issuperset(codes):
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "SUBACK of 3.1.1 with a reserved return code")
    return Suback(packet_id, codes, properties)


def _unsubscribe(body: bytes, version: int) -> Unsubscribe:
    packet_id, properties, at = _read_packet_id(body, version, PacketType.UNSUBSCRIBE)
    topic_filters: list[str] = []
    while at < len(body):
        topic_filter, at = text_at(body, at)
        topic_filters.append(topic_filter)
        if len(topic_filters) > MAX_FILTERS:
            raise _too_many_filters("UNSUBSCRIBE")
    if not topic_filters:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "UNSUBSCRIBE without a topic filter")
    return Unsubscribe(packet_id, tuple(topic_filters), properties)


def _unsuback(body: bytes, version: int) -> Unsuback:
    packet_id, properties, at = _read_packet_id(body, version, PacketType.UNSUBACK)
    if version == V5:
        return Unsuback(packet_id, _codes(body[at:], PacketType.UNSUBACK), properties)
    _check_end(body, at, "UNSUBACK")
    return Unsuback(packet_id)


def _read_packet_id(body: bytes, version: int, place: PacketType) -> tuple[int, Properties, int]:
    """Read the packet identifier and properties of SUBSCRIBE, UNSUBSCRIBE and their answers."""
    packet_id, at = uint16_at(body, 0)
    if not packet_id:
        raise _no_packet_id(place)
    if version != V5:
        return packet_id, NO_PROPERTIES, at
    properties, at = _properties_at(body, at, place)
    return packet_id, properties, at


def _codes(values: bytes, place: PacketType) -> tuple[ReasonCode, ...]:
    if not values:
        raise MalformedPacketError(f"{place.name} without a code")
    return tuple(_code(value, place) for value in values)


def _code(value: int, place: PacketType) -> ReasonCode:
    code = CODES_IN[place][value]
    if code is None:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"reason code 0x{value:02X} does not stand in {place.name}")
    return code


def _pingreq(body: bytes, _version: int) -> Pingreq:
    _check_end(body, 0, "PINGREQ")
    return Pingreq()


def _pingresp(body: bytes, _version: int) -> Pingresp:
    _check_end(body, 0, "PINGRESP")
    return Pingresp()


def _disconnect(body: bytes, version: int) -> Disconnect:
    if not body:
        return Disconnect()
    if version != V5:
        raise MalformedPacketError(f"DISCONNECT of 3.1.1 with {len(body)} bytes")
    code, properties, at = _code(body[0], PacketType.DISCONNECT), NO_PROPERTIES, 1
    if len(body) > 1:
        properties, at = _properties_at(body, at, PacketType.DISCONNECT)
    _check_end(body, at, "DISCONNECT")
    return Disconnect(code, properties)


def _auth(body: bytes, version: int) -> Auth:
    if version != V5:
        raise MalformedPacketError("packet type 15 is reserved in 3.1.1")
    if not body:
        return Auth()
    code = _code(body[0], PacketType.AUTH)
    properties, at = _properties_at(body, 1, PacketType.AUTH)  # no short form with a code alone, unlike DISCONNECT
    _check_end(body, at, "AUTH")
    if properties.text(Property.AUTHENTICATION_METHOD) is None:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH without an authentication method")
    return Auth(code, properties)


def _check_end(body: bytes, at: int, what: str) -> None:
    if at != len(body):
        raise MalformedPacketError(f"{len(body) - at} bytes after the end of {what}")


def _no_packet_id(place: PacketType) -> MalformedPacketError:
    return MalformedPacketError(f"{place.name} with packet identifier 0")


# By the whole first byte, as flags are fixed for all but PUBLISH.
_DECODERS: Mapping[int, Callable[[bytes, int], Packet]] = {
    0x10: _connect,
    0x20: _connack,
    0x40: _acknowledgement(Puback, PacketType.PUBACK),
    0x50: _acknowledgement(Pubrec, PacketType.PUBREC),
    0x62: _acknowledgement(Pubrel, PacketType.PUBREL),
    0x70: _acknowledgement(Pubcomp, PacketType.PUBCOMP),
    0x82: _subscribe,
    0x90: _suback,
    0xA2: _unsubscribe,
    0xB0: _unsuback,
    0xC0: _pingreq,
    0xD0: _pingresp,
    0xE0: _disconnect,
    0xF0: _auth,
}
