"""Restarts: whether a query that failed is started again in the same process.

Spark starts processes of Python's beside the driver, and gives each ten seconds to connect, which no setting changes. A
machine under load takes longer, and may for minutes. Nothing was done by then, so the query is started again.
Rule: a query that makes batches is restarted without end; one that fails to start so many times in a row is broken.
"""

from __future__ import annotations

__all__ = ["MOST_IN_A_ROW", "Restarts"]

_TOO_SLOW = "Python worker failed to connect back"
MOST_IN_A_ROW = 30
_MOST_PAUSE_S = 60.0


class Restarts:
    """The restarts of one query."""

    def __init__(self) -> None:
        self._in_a_row = 0

    @property
    def pause_s(self) -> float:
        """How long to wait before the next start: longer each time."""
        return min(2.0**self._in_a_row, _MOST_PAUSE_S)

    def note_batch(self) -> None:
        """Note that the query has made a batch."""
        self._in_a_row = 0

    def may_restart(self, error: str) -> bool:
        """Return whether a query that ended with *error* is started again, and count it."""
        if _TOO_SLOW not in error or self._in_a_row >= MOST_IN_A_ROW:
            return False
        self._in_a_row += 1
        return True
