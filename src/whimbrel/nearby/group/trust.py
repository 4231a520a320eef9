"""Trust: the decision whether a node believes a frame, by key, signature and age.

Rule: a node that trusts certain keys believes beacons and events of their holders only, until the key expires. Every
node refuses an invalid signature.
Rule: a node whose clock is set refuses a signed frame that was issued longer than ``signed_age_us`` ago, or as far
ahead of its clock. An event is valid until its own deadline if that is longer. A node whose clock is not set cannot
check the age, and accepts the frame.
Rule: joins and requests of a group whose producer signs are signed by their member, with any key: trust in a producer
does not require knowledge of its consumers. The signature prevents that a node impersonates another member, and
replays after ``signed_age_us``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from whimbrel.model.clock import is_alive
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.signatures import has_valid_signature
from whimbrel.nearby.frames.values import Beacon, Event, Join, Request, Signable

__all__ = ["TimeOfDay", "Trust", "Verdict"]


class TimeOfDay:
    """The time of day of one node, as the lead of UTC over the node's own time."""

    __slots__ = ("_ahead_us",)

    def __init__(self) -> None:
        self._ahead_us: int | None = None

    def tell(self, utc: int | None, *, now: int) -> None:
        """Set the time of day to *utc* at the node's own time *now*; ``None`` if the clock is not set."""
        self._ahead_us = None if utc is None else utc - now

    def at(self, now: int) -> int | None:
        """Return the time of day in microseconds UTC, or ``None`` if the clock is not set."""
        return None if self._ahead_us is None else now + self._ahead_us


class Verdict(Enum):
    """Whether a frame is believed, or the reason for which it is not."""

    BELIEVED = "believed"
    UNBELIEVED = "unbelieved"
    """The signature is missing or wrong, or its key is not trusted."""
    KEY_EXPIRED = "key expired"
    UNTIMELY = "untimely"
    """The frame is signed, but too old, or ahead of the clock here."""


class Trust:
    """Checks of one node: its trusted keys, signatures, and the age of frames."""

    def __init__(self, keys: Mapping[bytes, int | None] | None, *, deployment: Deployment, day: TimeOfDay) -> None:
        self._keys, self._deployment, self._day = keys, deployment, day

    def judge(self, frame: Beacon | Event, *, now: int) -> Verdict:
        """Return whether a producer's *frame* is believed."""
        if frame.key is None:
            return Verdict.BELIEVED if self._keys is None else Verdict.UNBELIEVED
        if self._keys is not None and frame.key not in self._keys:
            return Verdict.UNBELIEVED
        if not has_valid_signature(frame):
            return Verdict.UNBELIEVED
        expires_at = None if self._keys is None else self._keys[frame.key]
        if not is_alive(expires_at, now=max(frame.issued_at or 0, self._day.at(now) or 0)):
            return Verdict.KEY_EXPIRED
        return Verdict.BELIEVED if self._is_timely(frame, now) else Verdict.UNTIMELY

    def is_members_own(self, frame: Join | Request, *, now: int) -> bool:
        """Return whether *frame* is validly signed by the key in it, and not too old or ahead of the clock."""
        return frame.key is not None and has_valid_signature(frame) and self._is_timely(frame, now)

    def ahead_us(self, frame: Signable, *, now: int) -> int | None:
        """Return the apparent lead of the signer's clock over the one here; None if either is not set."""
        utc = self._day.at(now)
        return None if utc is None or not frame.issued_at else frame.issued_at - utc

    def _is_timely(self, frame: Signable, now: int) -> bool:
        utc = self._day.at(now)
        if utc is None or frame.issued_at is None:
            return True
        most_us = self._deployment.signed_age_us
        longest_us = max(most_us, frame.deadline_us) if isinstance(frame, Event) else most_us
        return -most_us <= utc - frame.issued_at <= longest_us
