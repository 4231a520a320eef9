"""Primitives of the wire: integers, text and binary data (MQTT 5.0, 1.5).

Rule: ``…_at`` read: they take the bytes and a place in them, and return the value and the place after it, or raise
``MalformedPacketError``. The bytes end where the packet (or its properties) ends.
Rule: ``encode_…`` write, and raise ``InvalidValueError`` for what the wire cannot carry.
Rule: a variable byte integer has the fewest bytes that its value needs, four at most. 5.0 requires it (1.5.5); 3.1.1
has the same algorithm without that sentence, and the same check applies to it.
"""

from __future__ import annotations

import struct

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.mqtt.errors import MalformedPacketError

__all__ = [
    "MAX_BINARY_BYTES",
    "MAX_VARINT",
    "UINT16",
    "UINT32",
    "binary_at",
    "byte_at",
    "encode_binary",
    "encode_text",
    "encode_varint",
    "partial_varint_at",
    "text_at",
    "text_from",
    "uint16_at",
    "uint32_at",
    "utf8",
    "varint_at",
]

MAX_BINARY_BYTES = 65_535
MAX_VARINT = 268_435_455

UINT16 = struct.Struct(">H")
UINT32 = struct.Struct(">I")
_ONE_BYTE = tuple(bytes((value,)) for value in range(128))


def byte_at(data: bytes, at: int) -> tuple[int, int]:
    """Read one byte."""
    if at >= len(data):
        raise _cut("a byte")
    return data[at], at + 1


def uint16_at(data: bytes, at: int) -> tuple[int, int]:
    """Read a two byte integer."""
    end = at + 2
    if end > len(data):
        raise _cut("a two byte integer")
    return data[at] << 8 | data[at + 1], end


def uint32_at(data: bytes, at: int) -> tuple[int, int]:
    """Read a four byte integer."""
    end = at + 4
    if end > len(data):
        raise _cut("a four byte integer")
    return int.from_bytes(data[at:end], "big"), end


def partial_varint_at(data: bytes, at: int) -> tuple[int, int] | None:
    """Read a variable byte integer; return None if its last byte has not come yet."""
    value = 0
    for place, byte in enumerate(data[at : at + 4]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if not byte and place:
                raise MalformedPacketError(f"a variable byte integer of {place + 1} bytes where fewer would do")
            return value, at + place + 1
    if len(data) >= at + 4:
        raise MalformedPacketError("a variable byte integer of more than four bytes")
    return None


def varint_at(data: bytes, at: int) -> tuple[int, int]:
    """Read a variable byte integer."""
    found = partial_varint_at(data, at)
    if found is None:
        raise _cut("a variable byte integer")
    return found


def binary_at(data: bytes, at: int) -> tuple[bytes, int]:
    """Read binary data: a length in two bytes, then the bytes."""
    start = at + 2
    if start > len(data):
        raise _cut("a length")
    end = start + (data[at] << 8 | data[at + 1])
    if end > len(data):
        raise _cut("text or binary data")
    return data[start:end], end


def text_at(data: bytes, at: int) -> tuple[str, int]:
    """Read an MQTT string: binary data that is UTF-8."""
    start = at + 2
    if start > len(data):
        raise _cut("a length")
    end = start + (data[at] << 8 | data[at + 1])
    if end > len(data):
        raise _cut("text or binary data")
    return text_from(data[start:end]), end


def text_from(raw: bytes) -> str:
    """Return the text in *raw*; Python's strict UTF-8 refuses surrogates and overlong forms, as MQTT requires."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedPacketError(f"text that is not UTF-8: {error.reason} at byte {error.start}") from None
    if b"\0" in raw:
        raise MalformedPacketError("text with U+0000")
    return text


def encode_varint(value: int) -> bytes:
    """Write a variable byte integer."""
    if 0 <= value < 128:
        return _ONE_BYTE[value]
    if not 0 <= value <= MAX_VARINT:
        raise InvalidValueError("variable byte integer", value, f"0 to {MAX_VARINT}")
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def utf8(text: str) -> bytes:
    """Return *text* in UTF-8, without a length; raise ``InvalidValueError`` if it is not a valid MQTT string."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValueError("MQTT string", text, "Unicode without lone surrogates") from error
    if len(encoded) > MAX_BINARY_BYTES:
        raise InvalidValueError(
            "MQTT string", Phrase(f"{len(encoded)} bytes"), f"at most {MAX_BINARY_BYTES} bytes of UTF-8"
        )
    if b"\0" in encoded:
        raise InvalidValueError("MQTT string", text, "text without U+0000")
    return encoded


def encode_text(text: str) -> bytes:
    """Write an MQTT string."""
    encoded = utf8(text)
    return UINT16.pack(len(encoded)) + encoded


def encode_binary(data: bytes) -> bytes:
    """Write binary data."""
    if len(data) > MAX_BINARY_BYTES:
        raise InvalidValueError("binary data", Phrase(f"{len(data)} bytes"), f"at most {MAX_BINARY_BYTES} bytes")
    return UINT16.pack(len(data)) + data


def _cut(what: str) -> MalformedPacketError:
    return MalformedPacketError(f"{what} runs past the end")
