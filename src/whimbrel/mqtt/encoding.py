"""Encoding: a packet to its bytes.

Rule: encoded packets can be decoded: lengths, text, codes, places of properties and identifiers are checked, and an
invalid one raises ``InvalidValueError``, an error of ours. Only wildcards in topic names are left to the caller.
Rule: for 3.1.1, fields that only 5.0 has are left out, and codes are translated.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.mqtt.codes import (
    CODES_IN,
    PUBLISH_FIRST_BYTE,
    PacketType,
    ReasonCode,
    connect_return_code,
    suback_return_code,
)
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
    Unsuback,
    Unsubscribe,
    Will,
)
from whimbrel.mqtt.primitives import MAX_BINARY_BYTES, UINT16, encode_binary, encode_text, encode_varint, utf8
from whimbrel.mqtt.properties import WILL, Properties, check_places, encode_properties

__all__ = ["encode", "publish_parts"]

_SMALL = struct.Struct(">BBH")
"""First byte, a length below 128, and two bytes: a whole acknowledgement, or the head of a PUBLISH."""


def encode(packet: Packet, version: int) -> bytes:
    """Return the bytes of *packet*; a CONNECT has its own version, for it *version* is ignored."""
    return _ENCODERS[type(packet)](packet, version)


def publish_parts(
    topic: bytes,
    payload: bytes,
    *,
    qos: int,
    retain: bool,
    dup: bool,
    version: int,
    properties: bytes,
) -> tuple[bytes, bytes]:
    """Return a PUBLISH in two halves, between which the packet identifier stands; at QoS 0 the second is empty.

    So a broker encodes a message once and joins ``head + identifier + tail`` per receiver. *topic* is checked text in
    UTF-8; *properties* are encoded, without their length (as by ``passed_on``), and left out in 3.1.1.
    """
    if not 0 <= qos <= 2 or (dup and not qos):
        raise InvalidValueError("PUBLISH", Phrase(f"QoS {qos}, DUP {dup}"), "QoS 0 to 2, DUP only from 1 on")
    first = PUBLISH_FIRST_BYTE | dup << 3 | qos << 1 | retain
    if version == V5:
        tail = encode_varint(len(properties)) + properties + payload if properties else b"\0" + payload
    else:
        tail = payload
    topic_bytes = len(topic)
    if topic_bytes > MAX_BINARY_BYTES:
        raise InvalidValueError("topic", Phrase(f"{topic_bytes} bytes"), f"at most {MAX_BINARY_BYTES}")
    size = topic_bytes + len(tail) + (4 if qos else 2)
    if size < 128:
        head = _SMALL.pack(first, size, topic_bytes) + topic
    else:
        head = b"".join((bytes((first,)), encode_varint(size), UINT16.pack(topic_bytes), topic))
    return (head, tail) if qos else (head + tail, b"")


def _publish(packet: Publish, version: int) -> bytes:
    topic, payload, qos, retain, dup, packet_id, properties = packet
    encoded = b""
    if properties and version == V5:
        check_places(properties, PacketType.PUBLISH)
        encoded = encode_properties(properties)
    head, tail = publish_parts(
        utf8(topic), payload, qos=qos, retain=retain, dup=dup, version=version, properties=encoded
    )
    if qos:
        return head + _packet_id(packet_id) + tail
    if packet_id:
        raise InvalidValueError("packet identifier", packet_id, "0 at QoS 0")
    return head


def _acknowledgement(first: int, place: PacketType) -> Callable[[Puback | Pubrec | Pubrel | Pubcomp, int], bytes]:
    def encoder(packet: Puback | Pubrec | Pubrel | Pubcomp, version: int) -> bytes:
        packet_id, code, properties = packet
        if version != V5 or (not code and not properties):
            if not 0 < packet_id < 65_536:
                raise _bad_packet_id(packet_id)
            return _SMALL.pack(first, 2, packet_id)
        body = _packet_id(packet_id) + _code(code, place)
        return _frame(first, body + _block(properties, place) if properties else body)

    return encoder


def _connect(packet: Connect, _version: int) -> bytes:
    version, will = packet.version, packet.will
    if version not in {V311, V5}:
        raise InvalidValueError("version", version, f"{V311} or {V5}")
    if version == V311 and packet.password is not None and packet.username is None:
        raise InvalidValueError("CONNECT of 3.1.1", Phrase("a password without a user name"), "both, or a user name")
    if not 0 <= packet.keep_alive_s < 65_536:
        raise InvalidValueError("keep_alive_s", packet.keep_alive_s, "0 to 65535")
    flags = 0x02 if packet.clean_start else 0
    parts = [_block(packet.properties, PacketType.CONNECT) if version == V5 else b"", encode_text(packet.client_id)]
    if will is not None:
        flags |= _will_flags(will)
        parts += [_block(will.properties, WILL) if version == V5 else b""]
        parts += [encode_text(will.topic), encode_binary(will.payload)]
    if packet.username is not None:
        flags |= 0x80
        parts.append(encode_text(packet.username))
    if packet.password is not None:
        flags |= 0x40
        parts.append(encode_binary(packet.password))
    head = b"\0\4MQTT" + bytes((version, flags)) + UINT16.pack(packet.keep_alive_s)
    return _frame(0x10, head + b"".join(parts))


def _will_flags(will: Will) -> int:
    if not 0 <= will.qos <= 2:
        raise InvalidValueError("QoS of a will", will.qos, "0 to 2")
    return 0x04 | will.qos << 3 | (0x20 if will.retain else 0)


def _connack(packet: Connack, version: int) -> bytes:
    code = packet.code
    if code and packet.session_present:
        raise InvalidValueError("CONNACK", Phrase(f"code {code} with a session"), "a session only with success")
    flags = b"\1" if packet.session_present else b"\0"
    if version == V5:
        block = _block(packet.properties, PacketType.CONNACK)
        return _frame(0x20, flags + _code(code, PacketType.CONNACK) + block)
    value = connect_return_code(code) if isinstance(code, ReasonCode) else code
    if not 0 <= value <= 5:
        raise InvalidValueError("return code of CONNACK", value, "0 to 5")
    return _frame(0x20, flags + bytes((value,)))


def _subscribe(packet: Subscribe, version: int) -> bytes:
    if not packet.requests:
        raise InvalidValueError("SUBSCRIBE", Phrase("no topic filter"), "at least one")
    parts = [_write_packet_id(packet.packet_id, packet.properties, version, PacketType.SUBSCRIBE)]
    for topic_filter, qos, no_local, retain_as_published, retain_handling in packet.requests:
        if not 0 <= qos <= 2 or not 0 <= retain_handling <= 2:
            raise InvalidValueError(
                "SUBSCRIBE", Phrase(f"QoS {qos}, retain handling {retain_handling}"), "0 to 2 for both"
            )
        options = qos | no_local << 2 | retain_as_published << 3 | retain_handling << 4
        parts += [encode_text(topic_filter), bytes((options if version == V5 else qos,))]
    return _frame(0x82, b"".join(parts))


def _suback(packet: Suback, version: int) -> bytes:
    head = _write_packet_id(packet.packet_id, packet.properties, version, PacketType.SUBACK)
    codes = packet.codes if version == V5 else tuple(map(suback_return_code, packet.codes))
    return _frame(0x90, head + _codes(codes, PacketType.SUBACK))


def _unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    if not packet.topic_filters:
        raise InvalidValueError("UNSUBSCRIBE", Phrase("no topic filter"), "at least one")
    head = _write_packet_id(packet.packet_id, packet.properties, version, PacketType.UNSUBSCRIBE)
    return _frame(0xA2, head + b"".join(map(encode_text, packet.topic_filters)))


def _unsuback(packet: Unsuback, version: int) -> bytes:
    head = _write_packet_id(packet.packet_id, packet.properties, version, PacketType.UNSUBACK)
    return _frame(0xB0, head + _codes(packet.codes, PacketType.UNSUBACK) if version == V5 else head)


def _pingreq(_packet: Pingreq, _version: int) -> bytes:
    return b"\xc0\0"


def _pingresp(_packet: Pingresp, _version: int) -> bytes:
    return b"\xd0\0"


def _disconnect(packet: Disconnect, version: int) -> bytes:
    if version != V5 or (not packet.code and not packet.properties):
        return b"\xe0\0"
    block = _block(packet.properties, PacketType.DISCONNECT) if packet.properties else b""
    return _frame(0xE0, _code(packet.code, PacketType.DISCONNECT) + block)


def _auth(packet: Auth, version: int) -> bytes:
    if version != V5:
        raise InvalidValueError("AUTH", Phrase(f"version {version}"), "5.0 only")
    if not packet.code and not packet.properties:
        return b"\xf0\0"
    return _frame(0xF0, _code(packet.code, PacketType.AUTH) + _block(packet.properties, PacketType.AUTH))


def _frame(first: int, body: bytes) -> bytes:
    return bytes((first,)) + encode_varint(len(body)) + body


def _write_packet_id(packet_id: int, properties: Properties, version: int, place: PacketType) -> bytes:
    """Write the packet identifier and properties of SUBSCRIBE, UNSUBSCRIBE and their answers."""
    return _packet_id(packet_id) + (_block(properties, place) if version == V5 else b"")


def _block(properties: Properties, place: int) -> bytes:
    """Write properties with their length; raise ``InvalidValueError`` if one must not stand in *place*."""
    if not properties:
        return b"\0"
    check_places(properties, place)
    encoded = encode_properties(properties)
    return encode_varint(len(encoded)) + encoded


def _packet_id(packet_id: int) -> bytes:
    if not 0 < packet_id < 65_536:
        raise _bad_packet_id(packet_id)
    return UINT16.pack(packet_id)


def _bad_packet_id(packet_id: int) -> InvalidValueError:
    return InvalidValueError("packet identifier", packet_id, "1 to 65535")


def _codes(codes: tuple[int, ...], place: PacketType) -> bytes:
    if not codes:
        raise InvalidValueError(place.name, Phrase("no code"), "one for each topic filter")
    return b"".join(_code(code, place) for code in codes)


def _code(code: int, place: PacketType) -> bytes:
    if not 0 <= code < 256 or CODES_IN[place][code] is None:
        raise InvalidValueError(f"code of {place.name}", code, "one that 5.0 has for it")
    return bytes((code,))


# Each takes its own class, which the type of a dict cannot say; a test encodes every packet.
_ENCODERS: Mapping[type[Packet], Callable[[Any, int], bytes]] = {
    Publish: _publish,
    Puback: _acknowledgement(0x40, PacketType.PUBACK),
    Pubrec: _acknowledgement(0x50, PacketType.PUBREC),
    Pubrel: _acknowledgement(0x62, PacketType.PUBREL),
    Pubcomp: _acknowledgement(0x70, PacketType.PUBCOMP),
    Connect: _connect,
    Connack: _connack,
    Subscribe: _subscribe,
    Suback: _suback,
    Unsubscribe: _unsubscribe,
    Unsuback: _unsuback,
    Pingreq: _pingreq,
    Pingresp: _pingresp,
    Disconnect: _disconnect,
    Auth: _auth,
}
