"""An outage of the disk, as the log of the process tells of it: at its beginning, every minute, and at its end."""

from __future__ import annotations

__all__ = ["Outage"]

_AGAIN_US = 60_000_000


class Outage:
    """Says when there is something to tell; times are those of a clock that never steps."""

    def __init__(self) -> None:
        self._since_us: int | None = None
        self._told_us = 0

    def fails(self, now_us: int) -> bool:
        """Take in a failure; return whether it is to be told: the first, and then one a minute."""
        if self._since_us is None:
            self._since_us = self._told_us = now_us
            return True
        if now_us - self._told_us < _AGAIN_US:
            return False
        self._told_us = now_us
        return True

    def ends(self, now_us: int) -> float | None:
        """Take in a success; return for how many seconds there was none, if there was an outage."""
        since_us, self._since_us = self._since_us, None
        return None if since_us is None else (now_us - since_us) / 1e6
