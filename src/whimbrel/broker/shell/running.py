"""A running server, as all its parts know it: the core, its clock, the event loop, and whether it still serves."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from typing import Protocol, TypeVar

from whimbrel.broker.broker import Broker
from whimbrel.broker.settings.config import Config
from whimbrel.broker.shell.log_clock import LogClock
from whimbrel.broker.shell.preparation import Preparation

__all__ = ["Running", "monotonic_us", "on_signals", "until_closed"]


def monotonic_us() -> int:
    """Return the time by which durations are judged: it never steps."""
    return time.monotonic_ns() // 1_000


class Running:
    """What the parts of one server share."""

    __slots__ = (
        "broker",
        "clock",
        "config",
        "failure",
        "is_closed",
        "listened_us",
        "loop",
        "preparation",
        "started_us",
        "too_few_files",
    )

    loop: asyncio.AbstractEventLoop
    """Set when the server starts; no part does anything before."""

    def __init__(self, config: Config, broker: Broker, clock: LogClock, preparation: Preparation) -> None:
        self.config, self.broker, self.clock, self.preparation = config, broker, clock, preparation
        self.failure: str | None = None
        """Why the broker has to stop."""
        self.too_few_files: str | None = None
        """Why fewer connections are allowed than the configuration says."""
        self.is_closed = False
        """The server has stopped: no timer may act any more."""
        self.started_us = monotonic_us()
        self.listened_us = 0
        """How long the broker has listened, as far as ticks have counted it; see ``Timers``."""


def on_signals(loop: asyncio.AbstractEventLoop, acts: Mapping[signal.Signals, Callable[[], None]]) -> None:
    """Let the event loop act on signals, where it may: only that of the main thread can."""
    for number, act in acts.items():
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, act)


class _Part(Protocol):
    @property
    def running(self) -> Running: ...


_PartT = TypeVar("_PartT", bound=_Part)


def until_closed(act: Callable[[_PartT], None]) -> Callable[[_PartT], None]:
    """Let a method that a timer calls do nothing once the server is closed."""

    @wraps(act)
    def checked(part: _PartT) -> None:
        if not part.running.is_closed:
            act(part)

    return checked
