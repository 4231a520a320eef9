"""Transforms of bodies: their description (``Work``), cost and execution. Pure: equal work gives equal bytes here.

Rule: work is bounded before it begins: by the bytes of the body, and the pixels in its header.
Rule: work on at most ``LIGHT_BYTES`` without pictures is light, and done at once; all else needs a worker process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from whimbrel.language.policies.limits import PolicyCost, PolicyLimits
from whimbrel.language.policies.values import Compression, Level, Transform
from whimbrel.model.attributes import Scalar
from whimbrel.shape.bodies import BodyKind, decoded_pixels, digest_of, image_size, kind_of, project, rewritten
from whimbrel.shape.faults import Fault, TransformError
from whimbrel.shape.images import compressed_image, stays_as_it_is
from whimbrel.shape.pictures import without_metadata
from whimbrel.shape.pictures.members import IMAGES, may_hold_pictures, with_smaller_pictures

__all__ = ["LIGHT_BYTES", "Work", "cost_of", "drop_needless", "may_be_light", "may_need_work", "perform"]

LIGHT_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class Work:
    """Transforms of one body, and changes of its members, which are made after them."""

    body: bytes
    transforms: tuple[Transform, ...]
    changes: Mapping[str, Scalar | None] = field(default_factory=dict)

    @property
    def is_light(self) -> bool:
        """Whether this work may be done on the broker's loop."""
        return may_be_light(self.body)

    @property
    def makes_pictures(self) -> bool:
        """Whether this work makes pictures smaller, or would if the body could be parsed."""
        kind = kind_of(self.body)
        if kind in IMAGES:
            return True
        names = tuple(name for each in self.transforms if isinstance(each, Compression) for name in each.names)
        if not names or not may_hold_pictures(self.body, kind):
            return False
        try:
            return with_smaller_pictures(self.body, kind, names, lambda picture, _: picture) is not None
        except TransformError:
            return True

    @property
    def key(self) -> bytes:
        """Hash of the content, the transforms (level, display, names) and the changes; equal for equal work."""
        return hashlib.sha256(digest_of(self.body) + self._asked.encode()).digest()

    def is_equal(self, other: Work) -> bool:
        """Return whether *other* is equal work."""
        return self._asked == other._asked and self.body == other.body

    @property
    def _asked(self) -> str:
        return repr((self.transforms, sorted(self.changes.items())))


def may_be_light(body: bytes) -> bool:
    """Return whether all transforms of *body* may be done on the broker's loop."""
    kind = kind_of(body)
    return len(body) <= LIGHT_BYTES and kind not in IMAGES and not may_hold_pictures(body, kind)


def may_need_work(body: bytes) -> bool:
    """Return whether any transform of *body* may need a worker process; nothing is parsed."""
    kind = kind_of(body)
    if kind is BodyKind.JSON and len(body) > LIGHT_BYTES:
        return True
    return kind in IMAGES or may_hold_pictures(body, kind)


def drop_needless(work: Work) -> Work | None:
    """Return *work* without the parts that would change nothing; None if nothing is left. Only headers are read."""
    kind = kind_of(work.body)
    if kind is BodyKind.OTHER:
        return None
    transforms = tuple([each for each in work.transforms if _changes(each, kind, work.body)])
    changes = work.changes if kind is BodyKind.JSON else {}
    return Work(work.body, transforms, changes) if transforms or changes else None


def _changes(transform: Transform, kind: BodyKind, body: bytes) -> bool:
    if not isinstance(transform, Compression):
        return kind is BodyKind.JSON
    if kind is BodyKind.JSON and transform.names and transform.level is not Level.WHOLE:
        return True
    return kind in IMAGES or (
        bool(transform.names) and may_hold_pictures(body, kind)
    )  # a picture that is sent as it is loses its metadata


def cost_of(work: Work, limits: PolicyLimits) -> PolicyCost:
    """Return the bytes and pixels that *work* reads, or raise ``TransformError`` if those are too many."""
    if len(work.body) > limits.body_bytes:
        raise TransformError(Fault.BODY_BYTES)
    count = len(work.transforms)
    if kind_of(work.body) not in IMAGES or not count:
        return PolicyCost(bytes=len(work.body) * count)
    size = image_size(work.body)
    decoded = sum(isinstance(each, Compression) and not stays_as_it_is(size, each) for each in work.transforms)
    pixels = _pixels(work.body, limits) * decoded if decoded else 0
    return PolicyCost(bytes=len(work.body) * count, pixels=pixels)


def _with_members(body: bytes, kind: BodyKind, wanted: Compression, limits: PolicyLimits) -> bytes | None:
    """Return *body* with the pictures among its named members compressed; None if none of these is a picture."""
    if not may_hold_pictures(body, kind):
        return None
    left = limits.image_pixels

    def smaller(picture: bytes, of: BodyKind) -> bytes:
        nonlocal left
        left -= image_size(picture).pixels  # one limit for all pictures of the body together
        if left < 0:
            raise TransformError(Fault.PIXELS)
        return _compress(picture, of, wanted, limits)

    return with_smaller_pictures(body, kind, wanted.names, smaller)


def _pixels(body: bytes, limits: PolicyLimits) -> int:
    """Return the pixels of an image as decoding counts them, or raise ``TransformError`` if those are too many."""
    pixels = decoded_pixels(body)
    if pixels > limits.image_pixels:
        raise TransformError(Fault.PIXELS)
    return pixels


def _compress(body: bytes, kind: BodyKind, wanted: Compression, limits: PolicyLimits) -> bytes:
    """Return an image without metadata, compressed as *wanted*."""
    size, picture = image_size(body), without_metadata(body, kind)
    if not stays_as_it_is(size, wanted, is_sideways=picture.is_sideways):
        _pixels(body, limits)
    return compressed_image(picture, kind, size, wanted)


def perform(work: Work, limits: PolicyLimits) -> bytes:
    """Perform *work* and return the new body, or raise ``TransformError``."""
    body = work.body
    for transform in work.transforms:
        kind = kind_of(body)
        if not isinstance(transform, Compression):
            body = project(body, transform.names)
        elif kind in IMAGES:
            body = _compress(body, kind, transform, limits)
        elif transform.names and (made := _with_members(body, kind, transform, limits)) is not None:
            body = made
        elif kind is BodyKind.JSON and transform.names and transform.level is not Level.WHOLE:
            body = project(body, transform.names)
    return rewritten(body, work.changes)
