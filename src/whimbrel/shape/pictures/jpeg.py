"""JPEG without metadata: segments are left out, and the scan data between them is copied unchanged.

Rule: an allow-list: the segments that draw the picture, JFIF without its thumbnail, Adobe's segment (how colours are
stored) and the colour profile. All else is left out, and so are any bytes behind the end of the picture.
"""

from __future__ import annotations

import re
import struct

from whimbrel.shape.faults import Fault, TransformError
from whimbrel.shape.pictures.orientation import UPRIGHT, orientation_of, written_orientation

__all__ = ["stripped_jpeg"]

_START, _END, _SCAN, _RESTARTS = 0xD8, 0xD9, 0xDA, range(0xD0, 0xD8)
_BARE = frozenset({0x01, _START, *_RESTARTS})
"""Markers without a length."""
_JFIF, _EXIF, _PROFILE, _ADOBE = 0xE0, 0xE1, 0xE2, 0xEE
_DRAWN = frozenset({*range(0xC0, 0xD0), *range(0xDA, 0xE0)}) - {0xC8}
"""Markers of frames and scans, and of the tables and numbers that they need."""
_KEPT = {_JFIF: b"JFIF\0", _PROFILE: b"ICC_PROFILE\0", _ADOBE: b"Adobe"}
"""The application segments that stay, if their data begins with these bytes."""
_JFIF_BYTES, _ADOBE_BYTES = 14, 12
"""Length of the data of a JFIF segment without its thumbnail, and of Adobe's segment."""
_EXIF_HEAD = b"Exif\0\0"
_NEXT = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
"""A marker behind the data of a scan, in which 0xFF is followed by 0 or the number of a restart."""
_LENGTH = struct.Struct(">H")


def stripped_jpeg(body: bytes) -> tuple[bytes, int]:
    """Return the JPEG without metadata, and its orientation; or raise ``TransformError``."""
    kept: list[bytes] = []
    orientation, at, has_scan = UPRIGHT, 2, False
    while True:
        at, marker = _marker(body, at)
        if marker == _END:
            break
        if marker in _BARE:
            at += 2
            continue
        end = _end(body, at)
        data = body[at + 4 : end]
        if marker in _DRAWN:
            kept.append(body[at:end])
        elif marker == _EXIF and data.startswith(_EXIF_HEAD):
            orientation = orientation_of(data[len(_EXIF_HEAD) :])
        elif marker in _KEPT and data.startswith(_KEPT[marker]):
            kept.append(_segment(marker, _of_known_length(marker, data)))
        at = end
        if marker == _SCAN:
            has_scan = True
            found = _NEXT.search(body, at)
            at = len(body) if found is None else found.start()
            kept.append(body[end:at])
    if not has_scan:
        raise TransformError(Fault.UNREADABLE)
    if orientation != UPRIGHT:
        has_jfif = kept[0].startswith(bytes((0xFF, _JFIF)))  # which has to be the first
        kept.insert(int(has_jfif), _segment(_EXIF, _EXIF_HEAD + written_orientation(orientation)))
    return bytes((0xFF, _START)) + b"".join(kept) + bytes((0xFF, _END)), orientation


def _marker(body: bytes, at: int) -> tuple[int, int]:
    """Return the offset and the number of the marker at *at*, behind any fill bytes."""
    if body[at : at + 1] != b"\xff":
        raise TransformError(Fault.UNREADABLE)
    while body[at + 1 : at + 2] == b"\xff":
        at += 1
    if at + 2 > len(body):
        raise TransformError(Fault.UNREADABLE)
    return at, body[at + 1]


def _end(body: bytes, at: int) -> int:
    """Return the offset of the end of the segment at *at*, or raise ``TransformError``."""
    length = _LENGTH.unpack_from(body, at + 2)[0] if at + 4 <= len(body) else 0
    end = at + 2 + int(length)
    if length < _LENGTH.size or end > len(body):
        raise TransformError(Fault.UNREADABLE)
    return end


def _segment(marker: int, data: bytes) -> bytes:
    return bytes((0xFF, marker)) + _LENGTH.pack(len(data) + _LENGTH.size) + data


def _of_known_length(marker: int, data: bytes) -> bytes:
    """Return the *data* of a segment without a JFIF thumbnail, and Adobe's without excess bytes."""
    if marker == _JFIF and len(data) > _JFIF_BYTES:
        return data[: _JFIF_BYTES - 2] + b"\0\0"
    return data[:_ADOBE_BYTES] if marker == _ADOBE else data
