"""Limits: what one run of a policy may cost, counted and never timed, so that every engine and replay decides alike.

A step is a node of the tree; string functions count the characters that they may look at, comparisons those that they
compare, arithmetic several. Bytes and pixels are those that transforms read. A step takes some tenths of a microsecond
whatever a hostile policy chooses (``bounds``), so the greatest number is a millisecond or two on the broker's loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from whimbrel.model.bounds import INT64_MAX, whole

__all__ = ["DEFAULT_POLICY_LIMITS", "PolicyCost", "PolicyLimits"]


class PolicyCost(NamedTuple):
    """Steps of a program, and bytes and pixels that its transforms read."""

    steps: int = 0
    bytes: int = 0
    pixels: int = 0

    def plus(self, other: PolicyCost) -> PolicyCost:
        """Return one after the other."""
        return PolicyCost(self.steps + other.steps, self.bytes + other.bytes, self.pixels + other.pixels)

    def or_else(self, other: PolicyCost) -> PolicyCost:
        """Return the greater of two ways."""
        return PolicyCost(max(self.steps, other.steps), max(self.bytes, other.bytes), max(self.pixels, other.pixels))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLimits:
    """What a deployment allows; the first three bound a policy when it is put, the others what a transform takes."""

    steps: int = 5_000
    bytes: int = 16 << 20
    pixels: int = 64_000_000
    body_bytes: int = 4 << 20
    """Of one body that a transform reads."""
    image_pixels: int = 16_000_000
    """Of one image that a transform reads."""
    variables: int = 256
    """Manual variables of one device and policy."""
    variable_bytes: int = 16_384
    """Names and values of these together."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            whole(name, getattr(self, name), 0, INT64_MAX)


DEFAULT_POLICY_LIMITS = PolicyLimits()
