"""Outputs of the cores: commands to the shell, and notes for reports.

Rule: the shell performs them in order. A ``Note`` is for people, logs and tests; nothing depends on its readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from whimbrel.model.attributes import Attributes
from whimbrel.nearby.frames.values import Event, Frame, GroupId

__all__ = ["Deliver", "Note", "NoteKind", "Output", "Send"]


class NoteKind(Enum):
    """Kinds of reported events and failures, at a consumer and at a producer."""

    # at a consumer
    JOINED = "joined"
    LEFT = "left"
    """The consumer left the area or unsubscribed, or the announcement ended."""
    LAPSED = "lapsed"
    """The producer was silent for too long."""
    PROPAGATED = "propagated"
    """Subject and proximity match: the event has reached this consumer (Figure 2)."""
    DISCARDED = "discarded"
    """No content filter matched the event."""
    EXPIRED = "expired"
    """The event's deadline passed before it was delivered."""
    MISSED = "missed"
    """No neighbour answered the requests. Without a number: published during a cut-off, or in a long gap."""
    PASSED_BY = "passed by"
    """A member heard the event outside of its area: it is not owed."""
    DROPPED = "dropped"
    """The event was dropped: the queue to the application is full."""
    UNFIT = "unfit"
    """The event does not fit the vocabulary."""
    CONTRADICTED = "contradicted"
    """The producer's vocabulary has another event type for this subject."""
    MISMATCHED = "mismatched"
    """The producer's deployment has another cell size."""
    UNBELIEVED = "unbelieved"
    """A signature is missing or wrong, or its key is not trusted."""
    KEY_EXPIRED = "key expired"
    """The trust in the signing key has expired."""
    CLOCKS_DIFFER = "clocks differ, or a frame was sent again"
    """A signed frame is older than the deployment allows, or ahead of the clock here; *seconds* is the difference."""
    EARLIER = "an earlier announcement than one that is known"
    """A producer's epoch went back (it lost its count of starts): a consumer that knows a later one does not join."""
    NO_KEY = "no key to join with"
    """The producer signs, so its members must sign, too; this node has no key."""
    # at a producer
    UNHEARD = "unheard"
    """The view is empty: the event was not transmitted."""
    OUTSIDE = "outside"
    """The producer is outside its own area, and sends nothing."""
    MEMBER_JOINED = "member joined"
    MEMBER_LEFT = "member left"
    MEMBER_SILENT = "member silent"
    """A member was not heard for too long; the count is the number of events without its account."""
    MEMBER_RETURNED = "member returned"
    """A member that had timed out is heard again."""
    MEMBER_EXPIRED = "member expired"
    """A member reports events whose deadline passed."""
    MEMBER_MISSED = "member missed"
    """A member reports events that it requested without success."""


@dataclass(frozen=True, slots=True)
class Send:
    """Transmit *frame*."""

    frame: Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something to report about *group*."""

    kind: NoteKind
    group: GroupId
    number: int | None = None
    """Number of the event, if the note is about one."""
    member: str | None = None
    count: int = 1
    seconds: float | None = None
    """Apparent lead of the other clock over the one here, if the note is about clocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Deliver *event* to the application for these matching subscriptions."""

    event: Event
    subscriptions: tuple[str, ...]
    attributes: Attributes
    """Attributes of the event and the consumer's own."""
    left_us: int
    """Time left until its deadline."""
    is_age_known: bool = False
    """Whether its age is certain: it is signed, and this node's clock is set."""


Output: TypeAlias = Send | Note
