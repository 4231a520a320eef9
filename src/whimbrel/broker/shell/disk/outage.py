"""Disk outage: decides when a failing disk is reported to the operator: at once, every minute, and at the end."""

from __future__ import annotations

__all__ = ["Outage"]

_AGAIN_US = 60_000_000


class Outage:
    """Rate limit for log lines about failed writes; times are readings of a monotonic clock, in µs."""

    def __init__(self) -> None:
        self._since_us: int | None = None
        self._told_us = 0

    def fails(self, now_us: int) -> bool:
        """Record a failed write; return whether to log it: the first one, and then one per minute."""
        if self._since_us is None:
            self._since_us = self._told_us = now_us
            return True
        if now_us - self._told_us < _AGAIN_US:
            return False
        self._told_us = now_us
        return True

    def ends(self, now_us: int) -> float | None:
        """Record a successful write; if it ends an outage, return how long the outage was, in seconds."""
        since_us, self._since_us = self._since_us, None
        return None if since_us is None else (now_us - since_us) / 1e6
