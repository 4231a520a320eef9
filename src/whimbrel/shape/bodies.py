"""Bodies: the kind of a body, the size in an image's header, and the transforms of JSON. Pure, and without Pillow.

Rule: a header may lie; the decoder checks the size again before it reads a pixel.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from whimbrel.errors import InvalidValueError, MalformedBodyError
from whimbrel.model.attributes import Attributes, Limits, Scalar
from whimbrel.model.codecs import to_cbor, to_json
from whimbrel.model.json_body import read_json
from whimbrel.shape.faults import Fault, TransformError

__all__ = [
    "BodyKind",
    "ImageSize",
    "decoded_pixels",
    "digest_of",
    "image_size",
    "kind_of",
    "project",
    "rewritten",
    "write_body",
]

_JSON_LIMITS = Limits(max_bytes=1 << 30, max_depth=64)
_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_OBJECT = re.compile(rb"[ \t\n\r]*+\{")
_CBOR_MAPS = range(0xA0, 0xC0)
_PNG_DEPTH = 25
"""Offset of the colour type in a PNG's header; the byte before it has the bits per channel."""
_PNG_HEADER = struct.Struct(">II")
_SIZE = struct.Struct(">HH")
_LENGTH = struct.Struct(">H")
_SCAN = b"\xff\xda"
_SCANS_A_DECODING = 8
"""Additional scans of a JPEG that take at most as long as decoding it once; each goes over the whole picture."""
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Channels of a PNG, by its colour type."""
_PIXEL_BITS = 24
"""Most bits per pixel of a PNG that count as one pixel; deeper pixels count in proportion."""
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""The JPEG markers of frames, whose segments have the size; the three exceptions are tables and an extension."""
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
"""The JPEG markers without a length."""


_SHORT, _LONG = 4 << 10, 1 << 20
"""Lengths in bytes between which a body's digest is cached: shorter ones hash fast, longer ones use much memory."""
_REMEMBERED = 32


class BodyKind(Enum):
    """The kind of a body, by its first bytes."""

    JPEG = "JPEG"
    PNG = "PNG"
    JSON = "JSON"
    CBOR = "CBOR"
    OTHER = "other"


class ImageSize(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int

    @property
    def pixels(self) -> int:
        """Width times height."""
        return self.width * self.height


def kind_of(body: bytes) -> BodyKind:
    """Return the kind of *body* by its first bytes."""
    if body.startswith(_JPEG):
        return BodyKind.JPEG
    if body.startswith(_PNG):
        return BodyKind.PNG
    if _OBJECT.match(body):
        return BodyKind.JSON
    return BodyKind.CBOR if body and body[0] in _CBOR_MAPS else BodyKind.OTHER


def digest_of(body: bytes) -> bytes:
    """Return the SHA-256 of *body*; cached, so that one body for two hundred devices is hashed once."""
    return _known_digest(body) if _SHORT < len(body) <= _LONG else hashlib.sha256(body).digest()


@lru_cache(maxsize=_REMEMBERED)
def _known_digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def image_size(body: bytes) -> ImageSize:
    """Return the size in the header of a JPEG or PNG, or raise ``TransformError``."""
    found = _png_size(body) if body.startswith(_PNG) else _jpeg_size(body)
    if found is None or not found.pixels:
        raise TransformError(Fault.UNREADABLE)
    return found


def decoded_pixels(body: bytes) -> int:
    """Return the pixels of a JPEG or PNG as decoding counts them: more if it has many scans, or many bits a pixel."""
    pixels = image_size(body).pixels
    if body.startswith(_PNG):
        bits = (
            body[_PNG_DEPTH - 1] * _CHANNELS.get(body[_PNG_DEPTH], max(_CHANNELS.values()))
            if len(body) > _PNG_DEPTH
            else 0
        )
        return pixels * max(bits, _PIXEL_BITS) // _PIXEL_BITS
    scans = max(body.count(_SCAN), 1)  # in a thumbnail too, which makes little difference
    return pixels * (_SCANS_A_DECODING + scans - 1) // _SCANS_A_DECODING


def _png_size(body: bytes) -> ImageSize | None:
    if body[12:16] != b"IHDR" or len(body) < 24:
        return None
    return ImageSize(*_PNG_HEADER.unpack_from(body, 16))


def _jpeg_size(body: bytes) -> ImageSize | None:
    at = 2
    while at + 4 <= len(body) and body[at] == 0xFF:
        marker = body[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _BARE:
            at += 2
        elif marker in _FRAMES:
            if at + 9 > len(body):
                return None
            height, width = _SIZE.unpack_from(body, at + 5)
            return ImageSize(width, height)
        else:
            at += 2 + max(2, _LENGTH.unpack_from(body, at + 2)[0])
    return None


def _read(body: bytes) -> dict[str, object]:
    try:
        return read_json(body, limits=_JSON_LIMITS)
    except MalformedBodyError:
        raise TransformError(Fault.UNREADABLE) from None


def _dump_json(tree: Mapping[str, object]) -> bytes:
    return json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def project(body: bytes, names: tuple[str, ...]) -> bytes:
    """Return the JSON object *body* with only the named members (``a.b``: member b of a); another *body* as it is."""
    if kind_of(body) is not BodyKind.JSON:
        return body
    tree = _read(body)
    kept: dict[str, object] = {}
    for name in names:
        _copy(tree, kept, name)
    return _dump_json(kept)


def _copy(tree: Mapping[str, object], kept: dict[str, object], name: str) -> None:
    """Copy the member *name* from *tree* to *kept*: the member of exactly that name, else the one at that path."""
    if name in tree:
        kept[name] = tree[name]
        return
    head, _, rest = name.partition(".")
    inner = tree.get(head)
    if rest and isinstance(inner, Mapping):
        below = kept.setdefault(head, {})
        if isinstance(below, dict):
            _copy(inner, below, rest)
            if not below:
                del kept[head]


def rewritten(body: bytes, changes: Mapping[str, Scalar | None]) -> bytes:
    """Return the JSON object *body* with *changes* (None: removed) made to its members; any other *body* as it is.

    A value that JSON does not have, opaque or not finite, is left out: it travels as an attribute only.
    """
    if not changes or kind_of(body) is not BodyKind.JSON:
        return body
    tree = _read(body)
    for name, value in changes.items():
        if value is None or isinstance(value, bytes) or value != value or value in _INFINITE:  # noqa: PLR0124 # NaN
            _put(tree, name, None)
        else:
            _put(tree, name, int(value) if isinstance(value, int) else value)
    return _dump_json(tree)


_INFINITE = (float("inf"), float("-inf"))


def _put(tree: dict[str, object], name: str, value: object) -> None:
    """Set the member *name* where it stands, in an inner object too, else on top; None removes it."""
    head, _, rest = name.partition(".")
    inner = tree.get(head)
    if name not in tree and rest and isinstance(inner, dict):
        _put(inner, rest, value)
    elif value is None:
        tree.pop(name, None)
    else:
        tree[name] = value


def write_body(attributes: Attributes) -> bytes:
    """Return the body of a message that has attributes only: JSON, or CBOR where JSON does not have a value."""
    if not attributes:
        return b""
    try:
        return to_json(attributes).encode()
    except InvalidValueError:
        return to_cbor(attributes)
