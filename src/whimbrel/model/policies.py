"""Policies as facts: a policy put, removed or chosen, and the decision of a policy for one hand-over (SUBLIM, 4).

Rule: the seq of a policy that was put is its version; each decision names it.
Rule: a decision is written before the bytes leave. Manual variables follow from decisions alone, so a policy runs only
once for a hand-over, however often the notification is sent again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from whimbrel.errors import InvalidValueError
from whimbrel.model.attributes import NO_ATTRIBUTES, Attributes
from whimbrel.model.bounds import INT64_MAX, check_time, name, text, whole
from whimbrel.model.notification import MAX_BODY_BYTES, NotificationId
from whimbrel.model.outcome import Outcome

__all__ = ["MAX_POLICY_BYTES", "MAX_REASON_BYTES", "MAX_REMOVED", "Decided", "PolicyChange", "PolicyChanged"]

MAX_POLICY_BYTES = 65_536
MAX_REASON_BYTES = 1_024
MAX_REMOVED = 1_024
_HASH_BYTES = 32


class PolicyChange(Enum):
    """A change of a policy; the ``change`` column of ``policies``."""

    PUT = "put"
    REMOVED = "removed"
    CHOSEN = "chosen"
    """A device chose the policy as its own or, without a name, has none from here on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChanged:
    """One row of ``policies``."""

    node: str
    seq: int
    changed_at: int
    change: PolicyChange
    owner: str
    """The verified user who owns the policy; the device if no user was verified."""
    name: str | None = None
    text: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        NotificationId(self.node, whole("seq", self.seq, 0, INT64_MAX))
        check_time("changed_at", self.changed_at)
        name("owner", self.owner)
        if self.name is not None:
            name("name", self.name)
        elif self.change is not PolicyChange.CHOSEN:
            raise InvalidValueError("name", None, "a name unless a device chooses none")
        if (self.change is PolicyChange.PUT) != (self.text is not None):
            raise InvalidValueError("text", self.text, "the policy where it is put, else none")
        if self.text is not None:
            text("text", self.text, max_bytes=MAX_POLICY_BYTES)
        if self.device is not None:
            name("device", self.device)
        elif self.change is PolicyChange.CHOSEN:
            raise InvalidValueError("device", None, "the device that chose")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """One row of ``decisions``: the decision of a policy about one notification for one device, and its reason."""

    node: str
    seq: int
    decided_at: int
    session: str
    device: str
    notification: NotificationId
    policy_seq: int
    policy: str
    """Name of the policy; manual variables are kept per device and name."""
    outcome: Outcome
    reason: str | None = None
    """Reason of a failure, or None; a policy that fails withholds the notification."""
    body_hash: bytes | None = None
    body_bytes: int | None = None
    body: bytes | None = None
    """Body to hand over, if it is not the notification's own and may have to be sent again."""
    attributes: Attributes | None = None
    """Attributes to hand over; None if they are the notification's own."""
    read: Attributes = NO_ATTRIBUTES
    changed: Attributes = NO_ATTRIBUTES
    """Manual variables that were set, with their new values."""
    removed: tuple[str, ...] = ()
    """Names of the manual variables that were removed."""
    steps: int = 0
    bytes_read: int = 0
    """Number of bytes that transforms read."""
    pixels_read: int = 0
    publisher: str | None = None
    """Device that published the notification; None if unknown, as in older logs."""

    def __post_init__(self) -> None:
        NotificationId(self.node, whole("seq", self.seq, 0, INT64_MAX))
        check_time("decided_at", self.decided_at)
        name("session", self.session)  # one statement each, for speed: each hand-over has a decision
        name("device", self.device)
        name("policy", self.policy)
        if self.publisher is not None:
            name("publisher", self.publisher)
        whole("policy_seq", self.policy_seq, 0, INT64_MAX)
        whole("steps", self.steps, 0, INT64_MAX)
        whole("bytes_read", self.bytes_read, 0, INT64_MAX)
        whole("pixels_read", self.pixels_read, 0, INT64_MAX)
        if self.outcome not in {Outcome.DELIVERED, Outcome.WITHHELD}:
            raise InvalidValueError("outcome", self.outcome.value, "delivered or withheld")
        if self.reason is not None:
            text("reason", self.reason, max_bytes=MAX_REASON_BYTES)
        self._check_body()
        if len(self.removed) > MAX_REMOVED:
            raise InvalidValueError("removed", len(self.removed), f"at most {MAX_REMOVED} names")
        for each in self.removed:
            name("removed", each)
            if each in self.changed:
                raise InvalidValueError("removed", each, "names that were not set")

    def _check_body(self) -> None:
        is_sent = self.outcome is Outcome.DELIVERED
        if (self.body_hash is not None) != is_sent or (self.body_bytes is not None) != is_sent:
            what = "body_bytes" if (self.body_hash is not None) == is_sent else "body_hash"
            raise InvalidValueError(what, getattr(self, what), "one where it is delivered, else none")
        if not is_sent and (self.body is not None or self.attributes is not None):
            what = "attributes" if self.body is None else "body"
            raise InvalidValueError(what, getattr(self, what), "none where it is withheld")
        if self.body_hash is not None and (type(self.body_hash) is not bytes or len(self.body_hash) != _HASH_BYTES):
            raise InvalidValueError("body_hash", self.body_hash, f"{_HASH_BYTES} bytes of SHA-256")
        if self.body_bytes is not None:
            whole("body_bytes", self.body_bytes, 0, MAX_BODY_BYTES)
        if self.body is not None and (type(self.body) is not bytes or len(self.body) > MAX_BODY_BYTES):
            raise InvalidValueError("body", self.body, f"at most {MAX_BODY_BYTES} bytes")
