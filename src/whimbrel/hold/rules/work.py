"""Work in pieces: what takes long yields every few milliseconds, so that others get their turn."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from whimbrel.hold.commands import Command

__all__ = ["PIECE", "QUICK_PIECE", "Work", "all_of", "at_once"]

PIECE = 250
"""How many sessions a piece of ``Hold.publishing`` sees to: some 20 µs each on the machine of bench/results."""
QUICK_PIECE = 2_000
"""The same where it takes a microsecond or two each."""

Work: TypeAlias = Generator[None, None, list[Command]]
"""A generator that yields after each piece of work, and returns the commands that follow."""


def all_of(work: Work) -> list[Command]:
    """Do all of some work at once."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # what a generator returns is typed there


def at_once(commands: list[Command]) -> Work:
    """Return work that is done already."""
    yield from ()
    return commands
