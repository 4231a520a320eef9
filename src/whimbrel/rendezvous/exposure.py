"""Exposure: for how long a device could be found by inquiries, and for how long it could be paged.

With park a device listens for pages only while it is matched. Without, it listens as long as its event is open: it
cannot be found, but a device that knows its address can page it. So the two times are reported separately.
"""

from __future__ import annotations

from dataclasses import dataclass

from whimbrel.model.clock import US_PER_S

__all__ = ["Exposure"]


@dataclass(slots=True)
class Exposure:
    """Times for which one device was discoverable and connectable, up to *since*."""

    since: int
    is_discoverable: bool = False
    is_connectable: bool = False
    discoverable_us: int = 0
    connectable_us: int = 0

    def set_scans(self, *, inquiry: bool, page: bool, now: int) -> None:
        """Record which scans are on from *now*."""
        self.advance(now)
        self.is_discoverable, self.is_connectable = inquiry, page

    def advance(self, now: int) -> None:
        """Add the time up to *now*."""
        passed, self.since = max(0, now - self.since), max(now, self.since)
        self.discoverable_us += passed * self.is_discoverable
        self.connectable_us += passed * self.is_connectable

    def seconds(self, now: int) -> dict[str, float]:
        """Return the seconds in which the device was discoverable, and connectable, up to *now*."""
        self.advance(now)
        return {
            "discoverable_s": round(self.discoverable_us / US_PER_S, 2),
            "connectable_s": round(self.connectable_us / US_PER_S, 2),
        }
