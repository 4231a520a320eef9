"""Metadata of pictures (EXIF, GPS, thumbnails), removed without decoding a pixel."""

from whimbrel.shape.pictures.metadata import Picture, without_metadata

__all__ = ["Picture", "without_metadata"]
