"""Metadata of pictures: removed in every case, because where and by whom a picture was taken must not leak.

Rule: nothing is decoded, and the picture data keeps every byte.
Rule: an allow-list, not a deny-list: the data that draws the picture, its colour profile, and EXIF's orientation.
"""

from __future__ import annotations

from typing import NamedTuple

from whimbrel.shape.bodies import BodyKind
from whimbrel.shape.pictures.jpeg import stripped_jpeg
from whimbrel.shape.pictures.png import stripped_png

__all__ = ["Picture", "without_metadata"]

_SIDEWAYS = 5
"""The lowest EXIF orientation that exchanges width and height."""


class Picture(NamedTuple):
    """A picture without metadata."""

    body: bytes
    orientation: int
    """Orientation in EXIF's numbers, 1 to 8; 1 is upright."""

    @property
    def is_sideways(self) -> bool:
        """Whether the picture is shown with width and height exchanged."""
        return self.orientation >= _SIDEWAYS


def without_metadata(body: bytes, kind: BodyKind) -> Picture:
    """Return *body*, a JPEG or PNG, without metadata, or raise ``TransformError`` if it is not one."""
    return Picture(*(stripped_jpeg(body) if kind is BodyKind.JPEG else stripped_png(body)))
