"""Outputs: what a core tells its shell to do, and what it has to report.

Rule: the shell performs them in order. A ``Note`` is for people, logs and tests; nothing depends on who reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from whimbrel.model.attributes import Attributes
from whimbrel.nearby.frames.values import Event, Frame, GroupId

__all__ = ["Deliver", "Note", "NoteKind", "Output", "Send"]


class NoteKind(Enum):
    """What happened."""

    # at a consumer
    JOINED = "joined"
    LEFT = "left"
    """Out of the area, unsubscribed, or the announcement ended."""
    LAPSED = "lapsed"
    """The producer was silent for too long."""
    PROPAGATED = "propagated"
    """Subject and proximity match: the event has reached this consumer (Figure 2)."""
    DISCARDED = "discarded"
    """The content filters did not want it."""
    EXPIRED = "expired"
    """Its deadline passed before it was delivered."""
    MISSED = "missed"
    """It was asked for in vain. Without a number: it was published while this member was cut off, or in a long gap."""
    PASSED_BY = "passed by"
    """A member heard it outside of its area: it is not owed."""
    DROPPED = "dropped"
    """Too many events wait for the application."""
    UNFIT = "unfit"
    """It does not fit the vocabulary."""
    CONTRADICTED = "contradicted"
    """The producer's vocabulary says something else of this subject."""
    MISMATCHED = "mismatched"
    """The producer's deployment has other cells."""
    UNBELIEVED = "unbelieved"
    """A signature is missing, wrong, or of another key than before."""
    KEY_EXPIRED = "key expired"
    """The key that signed is trusted no longer."""
    CLOCKS_DIFFER = "clocks differ, or a frame was sent again"
    """A signed frame is older than the deployment allows, or ahead of the clock here, by so many seconds."""
    EARLIER = "an earlier announcement than one that is known"
    """A producer began to count anew: a consumer that knows a later announcement of it does not join."""
    NO_KEY = "no key to join with"
    """The producer signs, and so must its members; this node has no key."""
    # at a producer
    UNHEARD = "unheard"
    """No node is in the view: the event was not transmitted."""
    OUTSIDE = "outside"
    """The producer is not in its own area, and silent."""
    MEMBER_JOINED = "member joined"
    MEMBER_LEFT = "member left"
    MEMBER_SILENT = "member silent"
    """A member was not heard for too long; the count is of events that it has not accounted for."""
    MEMBER_RETURNED = "member returned"
    """A member that was taken for gone is heard again."""
    MEMBER_EXPIRED = "member expired"
    """A member reports events whose deadline passed."""
    MEMBER_MISSED = "member missed"
    """A member reports events that it asked for in vain."""


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
    """The event, where it is about one."""
    member: str | None = None
    count: int = 1
    seconds: float | None = None
    """By how much a clock seems to be ahead of the one here, where it is about that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Give *event* to the application: these subscriptions want it."""

    event: Event
    subscriptions: tuple[str, ...]
    attributes: Attributes
    """Those of the event and the consumer's own."""
    left_us: int
    """The time to its deadline."""
    is_age_known: bool = False
    """Whether a signature and a clock that is set show how old it is."""


Output: TypeAlias = Send | Note
