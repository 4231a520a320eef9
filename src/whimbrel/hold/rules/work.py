"""Work in slices: long operations are generators that yield every few milliseconds, so that other work can run."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from whimbrel.hold.commands import Command

__all__ = ["PIECE", "QUICK_PIECE", "Work", "all_of", "at_once"]

PIECE = 250
"""Sessions that one slice of ``Hold.publishing`` handles: about 20 µs each on the machine of bench/results."""
QUICK_PIECE = 2_000
"""Items that one slice handles if each takes only a microsecond or two."""

Work: TypeAlias = Generator[None, None, list[Command]]
"""Generator that yields after each slice of work, and returns the resulting commands."""


def all_of(work: Work) -> list[Command]:
    """Run all slices of the generator *work* at once, and return the commands that it returns."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # what a generator returns is typed there


def at_once(commands: list[Command]) -> Work:
    """Return a generator that yields nothing and returns *commands*, for work that is already done."""
    yield from ()
    return commands
