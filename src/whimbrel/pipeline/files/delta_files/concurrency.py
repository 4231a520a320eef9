"""Concurrent changes: make a change of a table again if another process commits while it is made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from whimbrel.errors import WhimbrelError

__all__ = ["ATTEMPTS", "ConcurrentChangeError", "repeat_until_undisturbed"]

ATTEMPTS = 20
"""Most times that a commit, or a change of a table, is tried."""


class ConcurrentChangeError(WhimbrelError):
    """Another process committed after we read the files that a commit replaces. Reaction: do the same again."""

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.table = table

    def __str__(self) -> str:
        return f"table {self.table}: another process replaced files meanwhile; try again"


def repeat_until_undisturbed(change: Callable[[], None]) -> None:
    """Make a change of a table; make it again on the new version if another process commits meanwhile."""
    for _ in range(ATTEMPTS - 1):
        with suppress(ConcurrentChangeError):
            return change()
    return change()
