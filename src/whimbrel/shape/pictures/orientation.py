"""The orientation of a picture in EXIF: read from the camera's EXIF, and written as EXIF with nothing else.

Rule: reading never fails: bytes that cannot be parsed as EXIF are taken as upright.
"""

from __future__ import annotations

import struct

__all__ = ["UPRIGHT", "orientation_of", "written_orientation"]

UPRIGHT = 1
_TAG, _SHORT, _ENTRY_BYTES, _ORDERS = 0x0112, 3, 12, {b"II*\0": "<", b"MM\0*": ">"}
_LARGEST = 8


def orientation_of(tiff: bytes) -> int:
    """Return the orientation, 1 to 8, in EXIF data, given as the bytes of its TIFF file."""
    order = _ORDERS.get(tiff[:4])
    try:
        if order is None:
            return UPRIGHT
        (at,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, at)
        for number in range(count):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", tiff, at + 2 + number * _ENTRY_BYTES)
            if tag == _TAG and kind == _SHORT:
                return value if UPRIGHT <= value <= _LARGEST else UPRIGHT
    except struct.error:  # it ends before it should
        pass
    return UPRIGHT


def written_orientation(orientation: int) -> bytes:
    """Return EXIF data (a TIFF file) with the tag of *orientation* alone."""
    return b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, _TAG, _SHORT, 1, orientation, 0, 0)
