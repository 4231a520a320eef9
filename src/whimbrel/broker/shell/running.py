"""Shared objects of a running server: the core, its clock, the event loop, and whether it is still serving."""

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
    """Return the monotonic clock, in microseconds, for measuring durations."""
    return time.monotonic_ns() // 1_000


class Running:
    """State that the parts of one server share."""

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
    """The event loop; set when the server starts, before any part acts."""

    def __init__(self, config: Config, broker: Broker, clock: LogClock, preparation: Preparation) -> None:
        self.config, self.broker, self.clock, self.preparation = config, broker, clock, preparation
        self.failure: str | None = None
        """Why the broker has to stop; None while it can serve."""
        self.too_few_files: str | None = None
        """Why fewer connections are allowed than configured (too few file descriptors); None if all are."""
        self.is_closed = False
        """Whether the server has stopped, so that no timer may act any more."""
        self.started_us = monotonic_us()
        self.listened_us = 0
        """Microseconds in which the broker could read from clients; excludes time when it was stopped (``Timers``)."""


def on_signals(loop: asyncio.AbstractEventLoop, acts: Mapping[signal.Signals, Callable[[], None]]) -> None:
    """Register a function per signal with the event loop; do nothing outside the main thread (it is impossible)."""
    for number, act in acts.items():
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, act)


class _Part(Protocol):
    @property
    def running(self) -> Running: ...


_PartT = TypeVar("_PartT", bound=_Part)


def until_closed(act: Callable[[_PartT], None]) -> Callable[[_PartT], None]:
    """Wrap a method that a timer calls, so that it does nothing once the server is closed."""

    @wraps(act)
    def checked(part: _PartT) -> None:
        if not part.running.is_closed:
            act(part)

    return checked
