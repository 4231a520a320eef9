"""Standing in for a device: what a radio does with the pages of an address that is not its own (Huang, 5.4.4)."""

from __future__ import annotations

from enum import Enum

__all__ = ["StandIn"]


class StandIn(Enum):
    """What is done with the pages of another device."""

    OFF = "ignores"
    LISTEN = "listens"
    ANSWER = "answers"
