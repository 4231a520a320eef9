"""Described notifications: the form in which a worker stores a notification while it is owed to any device.

A worker writes rows of ``deliveries`` about notifications, but never sends them. So it stores the hash of a body, and
the body itself only if a policy reads bodies.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import cbor2

from whimbrel.hold.quality import CONFIRMED
from whimbrel.model.notification import Notification
from whimbrel.pipeline.fold.policies import Content, KeptContent

__all__ = ["Described", "HeldValues", "known_of"]


class HeldValues(NamedTuple):
    """Values of a notification that go to its rows of ``deliveries``; times in microseconds."""

    body_hash: bytes
    published_at: int
    subject: str | None
    deadline_at: int | None


def known_of(fact: Notification) -> HeldValues:
    """Return the values of a notification that go to its rows of ``deliveries``."""
    return HeldValues(hashlib.sha256(fact.body).digest(), fact.published_at, fact.subject, fact.deadline_at)


class Described:
    """A notification as a worker stores it: values for session queues and ``deliveries``, and results of policies."""

    __slots__ = (
        "body_hash",
        "content",
        "deadline_at",
        "differences",
        "expires_at",
        "is_written",
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
        known: HeldValues,
        *,
        expires_at: int | None = None,
        qos: int = CONFIRMED,
        publisher: str | None = None,
        content: KeptContent | None = None,
    ) -> None:
        self.seq, self.expires_at, self.qos, self.publisher = seq, expires_at, qos, publisher
        self.body_hash, self.published_at, self.subject, self.deadline_at = known
        self.content = content
        """The content that policies can read; None if none is stored."""
        self.shaped: dict[str, bytes] | None = None
        """Hash of the body that a policy decided to deliver, per device."""
        self.differences: dict[str, str] | None = None
        """How a decision in the log differs from the policy's own result, per device."""
        self.is_written = False
        """Whether a row of this notification may have been written to the worker's store."""

    @property
    def known(self) -> HeldValues:
        """The values that go to the notification's rows of ``deliveries``."""
        return HeldValues(self.body_hash, self.published_at, self.subject, self.deadline_at)

    def body_hash_for(self, device: str | None) -> bytes:
        """Return the hash of the body that a device receives."""
        shaped = self.shaped
        return self.body_hash if shaped is None or device is None else shaped.get(device, self.body_hash)

    def difference_for(self, device: str | None) -> str | None:
        """Return how the logged decision for *device* differs from the policy's own result; None if it does not."""
        differences = self.differences
        return None if differences is None or device is None else differences.get(device)

    def readable(self) -> Content | None:
        """Return the content that policies may read; None if none is stored."""
        return None if self.content is None else self.content.read(self.subject)

    # -- the notification's row in a worker's state; rows of the hold have its other values ---------------------------

    def row(self) -> bytes:
        """Encode the notification: the values of ``HeldValues`` and, if any, content, body hashes and differences."""
        values: list[Any] = [*self.known]
        content = None if self.content is None else [*self.content]
        more = [content, self.shaped, self.differences]
        while more and more[-1] is None:
            more.pop()
        return cbor2.dumps(values + more)

    @classmethod
    def restored(cls, seq: int, row: bytes) -> Described:
        """Decode the *row* of the notification with the seq *seq*."""
        *known, content, shaped, differences = [*cbor2.loads(row), None, None, None][: len(HeldValues._fields) + 3]
        found = cls(seq, HeldValues(*known), content=None if content is None else KeptContent(*content))
        found.shaped, found.differences = shaped, differences
        return found
