"""Preparation: the state of a broker between opening its ports and accepting clients.

The broker restores its stored state. If that has many filters, they are first packed into an index, since evaluating
them one by one would take too long. Meanwhile every CONNECT is answered with 0x88 (server unavailable) and the reason.
Rule: after five minutes clients are accepted even if packing is not done: a slow broker is better than none.
"""

from __future__ import annotations

from whimbrel.broker.state.routes import Routes

__all__ = ["MAX_UNPACKED", "Preparation"]

MAX_UNPACKED = 2_048
"""Most stored filters that may be evaluated without the packed index when clients are accepted.

They take about 8 ms per publication: 20,000 ranges were measured to take 76 ms.
"""
_PATIENCE_US = 300_000_000


class Preparation:
    """Progress of a broker that has just started, and the reason for which it still refuses clients."""

    def __init__(self) -> None:
        self.reason: str | None = "the stored sessions are being restored; try again in a moment"
        """Why no client may connect yet; None if clients may connect."""
        self._routes: Routes | None = None

    def pack(self, routes: Routes) -> None:
        """Record that the state is restored; accept clients unless many stored filters are not packed yet.

        *routes* is the matching index of the restored subscriptions.
        """
        self._routes, self.reason = routes, None
        if routes.unpacked > MAX_UNPACKED:
            self.reason = f"{routes.unpacked:,} stored filters are being packed; try again in a moment"

    def look(self, listened_us: int) -> tuple[str, str] | None:
        """Accept clients if the filters are packed or packing takes too long; return a log level and text, or None."""
        if self.reason is None or self._routes is None:
            return None
        unpacked = self._routes.unpacked
        if unpacked <= MAX_UNPACKED:
            self.reason = None
            return "info", f"the stored filters are packed after {listened_us / 1_000_000:.1f} s: clients may connect"
        if listened_us > _PATIENCE_US:
            self.reason = None
            return "warning", f"{unpacked:,} stored filters could not be packed; publications are matched slowly"
        return None
