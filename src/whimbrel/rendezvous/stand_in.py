"""Standing in for a device: the treatment of pages for an address that is not the radio's own (Huang, 5.4.4)."""

from __future__ import annotations

from enum import Enum

__all__ = ["StandIn"]


class StandIn(Enum):
    """Treatment of the pages of another device."""

    OFF = "ignores"
    LISTEN = "listens"
    ANSWER = "answers"
