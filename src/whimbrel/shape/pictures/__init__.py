"""What a picture says beside itself: metadata, which is removed without decoding anything."""

from whimbrel.shape.pictures.metadata import Picture, without_metadata

__all__ = ["Picture", "without_metadata"]
