"""Metadata of pictures: removed in every case, because where and by whom a picture was taken must not leak.

Rule: nothing is decoded, and the picture itself keeps every byte.
Rule: what stays is listed, not what goes: what draws the picture, its colour profile, and of EXIF the orientation.
"""

from __future__ import annotations

from typing import NamedTuple

from whimbrel.shape.bodies import BodyKind
from whimbrel.shape.pictures.jpeg import stripped_jpeg
from whimbrel.shape.pictures.png import stripped_png

__all__ = ["Picture", "without_metadata"]

_SIDEWAYS = 5
"""From this orientation on a picture is shown with width and height exchanged."""


class Picture(NamedTuple):
    """A picture without metadata."""

    body: bytes
    orientation: int
    """As EXIF numbers it, 1 to 8; 1 is upright."""

    @property
    def is_sideways(self) -> bool:
        """Whether it is shown with width and height exchanged."""
        return self.orientation >= _SIDEWAYS


def without_metadata(body: bytes, kind: BodyKind) -> Picture:
    """Return *body*, a JPEG or PNG, without metadata, or raise ``TransformError`` if it is none."""
    return Picture(*(stripped_jpeg(body) if kind is BodyKind.JPEG else stripped_png(body)))
