"""Outcomes: how a notification ended for a device."""

from __future__ import annotations

from enum import Enum

__all__ = ["Outcome"]


class Outcome(Enum):
    """How a notification ended for a device; a column of ``receipts``, ``deliveries`` and ``decisions``."""

    DELIVERED = "delivered"
    WITHHELD = "withheld"
    """A policy decided that this device should not have it."""
    EXPIRED = "expired"
    DISPLACED = "displaced"
    """Newer ones took its place."""
    TAKEN_ELSEWHERE = "taken elsewhere"
    DROPPED = "dropped"
    """Not held (live only), or no subscriber is left."""
