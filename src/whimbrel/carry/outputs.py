"""Outputs of a participant, besides the steps of its carrier: messages for the daemon to send, and notes to log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from whimbrel.carry.hello import Acknowledgement, Sample, Subscriptions, TimeAnswer, TimeQuestion, TopicsQuestion
from whimbrel.carry.node import Step

__all__ = ["Greet", "Note", "NoteKind", "Output", "TakeBack", "Tell"]


class NoteKind(Enum):
    """Kind of an event for the operator."""

    REFUSED = "a sample from the future was refused"
    CONTROL = "control data is in force"
    CLOCK = "a way-server has set the clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A line for the log of the daemon."""

    kind: NoteKind
    neighbour: int
    topic: int | None = None
    difference_us: int | None = None
    """Microseconds by which the sample is in the future, or the clock was off."""
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Tell:
    """Send *message* to the node at *address*."""

    address: int
    message: TopicsQuestion | Subscriptions | TimeQuestion | TimeAnswer | Acknowledgement


@dataclass(frozen=True, slots=True)
class Greet:
    """Say an empty part of a Hello, so that a new neighbour learns this node's address and can answer."""


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Note that *copies* of *sample* are this node's again: their receiver has not acknowledged or not kept them."""

    sample: Sample
    copies: int


Output = Step | Tell | Note | Greet | TakeBack
