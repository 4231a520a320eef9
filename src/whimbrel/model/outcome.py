"""Outcomes of a notification for a device."""

from __future__ import annotations

from enum import Enum

__all__ = ["Outcome"]


class Outcome(Enum):
    """The outcome of a notification for a device; a column of ``receipts``, ``deliveries`` and ``decisions``."""

    DELIVERED = "delivered"
    WITHHELD = "withheld"
    """A policy decided that this device does not get the notification."""
    EXPIRED = "expired"
    DISPLACED = "displaced"
    """Newer notifications took its place."""
    TAKEN_ELSEWHERE = "taken elsewhere"
    DROPPED = "dropped"
    """The notification was not held (live only), or no subscriber is left."""
