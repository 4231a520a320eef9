"""Limits: the most that one run of a policy may cost; counted and never timed, so all engines and replays agree.

A step is a node of the tree. String functions count the characters that they may read, comparisons the characters that
they compare, and arithmetic several steps. Bytes and pixels are those that transforms read. A step takes some tenths of
a microsecond even for a hostile policy (``bounds``), so the limit is a millisecond or two on the broker's event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from whimbrel.model.bounds import INT64_MAX, whole

__all__ = ["DEFAULT_POLICY_LIMITS", "PolicyCost", "PolicyLimits"]


class PolicyCost(NamedTuple):
    """Cost of one run of a policy: steps, and the bytes and pixels that its transforms read."""

    steps: int = 0
    bytes: int = 0
    pixels: int = 0

    def plus(self, other: PolicyCost) -> PolicyCost:
        """Return the cost of a run of two parts of a policy, *self* and *other*, one after the other."""
        return PolicyCost(self.steps + other.steps, self.bytes + other.bytes, self.pixels + other.pixels)

    def or_else(self, other: PolicyCost) -> PolicyCost:
        """Return the higher of two costs, separately for steps, bytes and pixels."""
        return PolicyCost(max(self.steps, other.steps), max(self.bytes, other.bytes), max(self.pixels, other.pixels))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLimits:
    """Limits of a deployment: three for the cost of a policy as a whole, then those of transforms and of variables."""

    steps: int = 5_000
    bytes: int = 16 << 20
    pixels: int = 64_000_000
    body_bytes: int = 4 << 20
    """Largest body that a transform reads."""
    image_pixels: int = 16_000_000
    """Largest image that a transform reads, in pixels."""
    variables: int = 256
    """Most manual variables of one device and policy."""
    variable_bytes: int = 16_384
    """Most bytes of the names and values of one device's manual variables for one policy, together."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            whole(name, getattr(self, name), 0, INT64_MAX)


DEFAULT_POLICY_LIMITS = PolicyLimits()
