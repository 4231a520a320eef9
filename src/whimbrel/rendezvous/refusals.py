"""Refusals: why the controller did not do what a device asked, each with a stable code.

Rule: the table below is the only place where codes stand; the enum, the wire and the docs page are made from it.
"""

from __future__ import annotations

from enum import Enum
from typing import Self

__all__ = ["Refusal"]


class Refusal(Enum):
    """A stable code and the sentence that explains it; the sentence may change, the code may not."""

    MALFORMED = 3101, "the message cannot be read"
    FOREIGN_ADDRESS = 3102, "a publication describes the device that sends it: its address must be the sender's own"
    SECOND_PUBLICATION = 3103, "a device has one publication at a time; unpublish the other first"
    REPEATED_SUBSCRIPTION = 3104, "this subscription is open already"
    TOO_MANY_SUBSCRIPTIONS = 3105, "a device has at most as many subscriptions as it can have active slaves"
    UNKNOWN_EVENT = 3106, "no open or recently removed event of this device has this identifier"
    MIXED_KEYS = 3107, "a publication is restricted or it is not: NULL stands alone in its keys"
    UNEXPECTED = 3108, "this message is not for a controller, or answers no question"
    TOO_FAST = 3109, "too many messages in too short a time"
    NO_ROOM = 3110, "the controller has no room for more devices"
    IDLE = 3111, "a device without an event is disconnected after a while"
    NO_IDENTIFIER = 3112, "every identifier is in use"
    SILENT = 3113, "a device that does not answer in time is taken for gone; what it had can be renewed for a while"
    NOT_OWNER = 3114, "this device owns no group"
    NOT_ADMITTED = 3115, "the owner of the group does not admit this device"
    WRONG_TOKEN = 3116, "the device token was not made by this device for this address"
    NOT_PAIRED = 3117, "this device is not paired with the one whose page the controller answered"
    PARTNER_IS_HERE = 3118, "the smart device of a dumb one is here: the controller lets the dumb one go"

    code: int
    reason: str

    def __new__(cls, code: int, reason: str) -> Self:
        """Make the member whose value is its code."""
        member = object.__new__(cls)
        member._value_ = code
        member.code, member.reason = code, reason
        return member
