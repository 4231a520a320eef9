"""Transforms: what is to be made of a body, and making it. Pure: the same work always gives the same bytes here.

Rule: work is bounded before it begins: the bytes of the body, and the pixels that its header says.
Rule: work that reads a few kilobytes of JSON is light and done at once; all else belongs into a process of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from whimbrel.language.policies.limits import PolicyCost, PolicyLimits
from whimbrel.language.policies.values import Compression, Level, Transform
from whimbrel.model.attributes import Scalar
from whimbrel.shape.bodies import BodyKind, decoded_pixels, image_size, kind_of, projected, rewritten
from whimbrel.shape.faults import Fault, TransformError
from whimbrel.shape.images import compressed_image, fitting

__all__ = ["LIGHT_BYTES", "Work", "cost_of", "needed", "perform"]

LIGHT_BYTES = 4_096
_IMAGES = frozenset({BodyKind.JPEG, BodyKind.PNG})


@dataclass(frozen=True, slots=True)
class Work:
    """Transforms of one body, then changes of its members."""

    body: bytes
    transforms: tuple[Transform, ...]
    changes: Mapping[str, Scalar | None] = field(default_factory=dict)

    @property
    def is_light(self) -> bool:
        """Whether it may be done on the broker's loop."""
        return len(self.body) <= LIGHT_BYTES and kind_of(self.body) not in _IMAGES

    @property
    def key(self) -> bytes:
        """What equal work has in common: content, transforms (level, display, names) and changes."""
        return hashlib.sha256(hashlib.sha256(self.body).digest() + self._asked.encode()).digest()

    def is_equal(self, other: Work) -> bool:
        """Tell whether *other* is equal work."""
        return self._asked == other._asked and self.body == other.body

    @property
    def _asked(self) -> str:
        return repr((self.transforms, sorted(self.changes.items())))


def needed(work: Work) -> Work | None:
    """Return the part of *work* that changes anything; None if nothing does. Looks at headers only."""
    kind = kind_of(work.body)
    if kind is BodyKind.OTHER:
        return None
    transforms = tuple([each for each in work.transforms if _changes(each, kind, work.body)])
    changes = work.changes if kind is BodyKind.JSON else {}
    return Work(work.body, transforms, changes) if transforms or changes else None


def _changes(transform: Transform, kind: BodyKind, body: bytes) -> bool:
    if not isinstance(transform, Compression):
        return kind is BodyKind.JSON
    if kind is BodyKind.JSON:
        return bool(transform.names) and transform.level is not Level.WHOLE
    if kind not in _IMAGES:
        return False
    size = image_size(body)
    return transform.level is not Level.WHOLE or fitting(size, transform) != size


def cost_of(work: Work, limits: PolicyLimits) -> PolicyCost:
    """Return the bytes and pixels that *work* reads, or raise ``TransformError`` if those are too many."""
    if len(work.body) > limits.body_bytes:
        raise TransformError(Fault.BODY_BYTES)
    count = len(work.transforms)
    if kind_of(work.body) not in _IMAGES or not count:
        return PolicyCost(bytes=len(work.body) * count)
    pixels = _pixels(work.body, limits)
    return PolicyCost(bytes=len(work.body) * count, pixels=pixels * count)


def _pixels(body: bytes, limits: PolicyLimits) -> int:
    """Return the pixels of an image as decoding counts them, or raise ``TransformError`` if those are too many."""
    pixels = decoded_pixels(body)
    if pixels > limits.image_pixels:
        raise TransformError(Fault.PIXELS)
    return pixels


def perform(work: Work, limits: PolicyLimits) -> bytes:
    """Return what comes of *work*, or raise ``TransformError``."""
    body = work.body
    for transform in work.transforms:
        kind = kind_of(body)
        if not isinstance(transform, Compression):
            body = projected(body, transform.names)
        elif kind in _IMAGES:
            _pixels(body, limits)
            body = compressed_image(body, kind, image_size(body), transform)
        elif kind is BodyKind.JSON and transform.names and transform.level is not Level.WHOLE:
            body = projected(body, transform.names)
    return rewritten(body, work.changes)
