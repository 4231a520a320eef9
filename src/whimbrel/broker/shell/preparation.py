"""Preparation: what a broker does between opening its ports and serving clients.

It restores what is stored; and where that has many filters, they are packed, since many are more than can be evaluated
one by one. It listens meanwhile, and every CONNECT is answered with 0x88 (server unavailable) and the reason.
Rule: it does not wait for ever. If packing fails again and again, a slow broker is better than none.
"""

from __future__ import annotations

from whimbrel.broker.state.routes import Routes

__all__ = ["MAX_UNPACKED", "Preparation"]

MAX_UNPACKED = 2_048
"""So many filters are asked one by one in 8 ms: 20,000 ranges were measured to take 76 ms a publication."""
_PATIENCE_US = 300_000_000


class Preparation:
    """How far a broker is that has just started."""

    def __init__(self) -> None:
        self.reason: str | None = "the stored sessions are being restored; try again in a moment"
        """Why no client may connect yet."""
        self._routes: Routes | None = None

    def pack(self, routes: Routes) -> None:
        """Take in what was restored."""
        self._routes, self.reason = routes, None
        if routes.unpacked > MAX_UNPACKED:
            self.reason = f"{routes.unpacked:,} stored filters are being packed; try again in a moment"

    def look(self, listened_us: int) -> tuple[str, str] | None:
        """Let clients in once the filters are packed, or packing takes too long; return what to log, and how."""
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
