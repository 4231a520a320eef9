"""PNG without metadata: only the chunks that draw the picture are kept, byte for byte."""

from __future__ import annotations

import struct
from zlib import crc32

from whimbrel.shape.faults import Fault, TransformError
from whimbrel.shape.pictures.orientation import UPRIGHT, orientation_of, written_orientation

__all__ = ["stripped_png"]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEAD = struct.Struct(">I4s")
_FRAME_BYTES = 12
"""Bytes of a chunk besides its data: length, name and CRC-32."""
_KEPT = frozenset(b"IHDR PLTE IDAT tRNS cHRM gAMA iCCP sBIT sRGB cICP mDCV cLLI bKGD hIST pHYs acTL fcTL fdAT".split())
_DATA, _EXIF, _END = b"IDAT", b"eXIf", b"IEND"


def stripped_png(body: bytes) -> tuple[bytes, int]:
    """Return the PNG without metadata, and its orientation; or raise ``TransformError``."""
    kept: list[bytes] = []
    orientation, at, first_data = UPRIGHT, len(_SIGNATURE), None
    while True:
        length, name = _HEAD.unpack_from(body, at) if at + _HEAD.size <= len(body) else (len(body), _END)
        end = at + _FRAME_BYTES + length
        if end > len(body):
            raise TransformError(Fault.UNREADABLE)
        if name == _END:
            break
        if name == _EXIF:
            orientation = orientation_of(body[at + _HEAD.size : end - 4])
        elif name in _KEPT:
            if name == _DATA and first_data is None:
                first_data = len(kept)
            kept.append(body[at:end])
        at = end
    if first_data is None:
        raise TransformError(Fault.UNREADABLE)
    if orientation != UPRIGHT:
        kept.insert(first_data, _chunk(_EXIF, written_orientation(orientation)))
    return _SIGNATURE + b"".join(kept) + _chunk(_END, b""), orientation


def _chunk(name: bytes, data: bytes) -> bytes:
    return _HEAD.pack(len(data), name) + data + struct.pack(">I", crc32(name + data))
