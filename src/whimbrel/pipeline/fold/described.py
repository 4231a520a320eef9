"""Described notifications: what a worker keeps of a notification while any device is owed it.

A worker describes notifications in rows of ``deliveries`` and never sends them, so it keeps the hash of a body and not
the body, unless a policy reads bodies.
"""

from __future__ import annotations

from whimbrel.hold.quality import CONFIRMED
from whimbrel.pipeline.fold.beginnings import Known
from whimbrel.pipeline.fold.policies import Content, KeptContent

__all__ = ["Described"]


class Described:
    """A notification: the values that the rules ask for, those of its rows, and what policies made of it."""

    __slots__ = (
        "body_hash",
        "content",
        "deadline_at",
        "differences",
        "expires_at",
        "published_at",
        "publisher",
        "qos",
        "seq",
        "shaped",
        "subject",
    )

    def __init__(
        self,
        seq: int,
        known: Known,
        *,
        expires_at: int | None = None,
        qos: int = CONFIRMED,
        publisher: str | None = None,
        content: KeptContent | None = None,
    ) -> None:
        self.seq, self.expires_at, self.qos, self.publisher = seq, expires_at, qos, publisher
        self.body_hash, self.published_at, self.subject, self.deadline_at = known
        self.content = content
        """What policies can see of it; None where nothing is kept for them."""
        self.shaped: dict[str, bytes] | None = None
        """By device, the hash of the body that a policy decided to hand over."""
        self.differences: dict[str, str] | None = None
        """By device, how a decision of the log differs from what its policy decides."""

    @property
    def known(self) -> Known:
        """The values of its row in a stream's state."""
        return Known(self.body_hash, self.published_at, self.subject, self.deadline_at)

    def body_hash_for(self, device: str | None) -> bytes:
        """Return the hash of the body that a device is handed."""
        shaped = self.shaped
        return self.body_hash if shaped is None or device is None else shaped.get(device, self.body_hash)

    def difference_for(self, device: str | None) -> str | None:
        """Return how the decision about a device's copy differs from what its policy decides; None if it does not."""
        differences = self.differences
        return None if differences is None or device is None else differences.get(device)

    def readable(self) -> Content | None:
        """Return the content that policies may read; None if none is kept for them."""
        return None if self.content is None else self.content.read(self.subject)
