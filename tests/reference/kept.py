"""Which notifications a hold keeps, call by call; and commands without what is kept, as the naive twin gives them."""

from __future__ import annotations

from collections.abc import Iterable

from whimbrel.hold.commands import Command, HandOver, Settle
from whimbrel.hold.state import Copy, CopyFollower

__all__ = ["KeptNotes", "without_kept"]


class KeptNotes(CopyFollower):
    """Notes which notifications were stored and forgotten since it was last cleared."""

    def __init__(self) -> None:
        self.was_stored: list[int] = []
        self.was_forgotten: list[int] = []

    def stored(self, copy: Copy) -> None:
        """Note that a notification is kept."""
        assert copy.kept is not None
        self.was_stored.append(copy.kept.seq)

    def forgotten(self, seq: int, copy: Copy) -> None:
        """Note that a notification is kept no more."""
        assert copy.kept is not None
        assert copy.kept.seq == seq
        self.was_forgotten.append(seq)

    def clear(self) -> None:
        """Begin anew."""
        self.was_stored, self.was_forgotten = [], []


def without_kept(commands: Iterable[Command]) -> list[Command]:
    """Return the commands without the notifications that they are about, each of which has the command's number."""
    found: list[Command] = []
    for command in commands:
        if isinstance(command, HandOver | Settle):
            assert command.kept is None or command.kept.seq == command.seq
            found.append(command._replace(kept=None))
        else:
            found.append(command)
    return found
