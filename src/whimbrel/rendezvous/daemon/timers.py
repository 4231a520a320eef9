"""Timers: the clock of a daemon, and calls that it makes later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["LoopTimers", "WallClock"]


class WallClock:
    """Microseconds since 1970 that never go back: the wall clock at the start, and the monotonic one from then on."""

    def __init__(self) -> None:
        self._began = time.time_ns() // 1_000 - time.monotonic_ns() // 1_000

    def now(self) -> int:
        """Return the time."""
        return self._began + time.monotonic_ns() // 1_000


class LoopTimers:
    """Calls later, on the event loop that runs."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def after(self, delay_us: int, do: Callable[[], None]) -> None:
        """Call *do* after *delay_us*."""
        self._loop.call_later(delay_us / 1_000_000, do)
