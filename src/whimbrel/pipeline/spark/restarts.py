"""Restarts: decide whether a failed query is started again in the same process.

Spark starts Python processes beside the driver and gives each ten seconds to connect, which no setting changes. On a
machine under load this may take longer for minutes. Nothing was processed by then, so the query is started again.
Rule: a query that makes batches is restarted without limit. A query that fails to start ``MAX_IN_A_ROW`` times in a
row is given up.
"""

from __future__ import annotations

__all__ = ["MAX_IN_A_ROW", "Restarts"]

_TOO_SLOW = "Python worker failed to connect back"
MAX_IN_A_ROW = 30
_MAX_PAUSE_S = 60.0


class Restarts:
    """Counter of the restarts of one query."""

    def __init__(self) -> None:
        self._in_a_row = 0

    @property
    def pause_s(self) -> float:
        """Seconds to wait before the next start: doubled each time, up to a minute."""
        return min(2.0**self._in_a_row, _MAX_PAUSE_S)

    def note_batch(self) -> None:
        """Reset the count of failed starts: the query has made a batch."""
        self._in_a_row = 0

    def may_restart(self, error: str) -> bool:
        """Return whether a query that ended with *error* may be started again; if so, count the restart."""
        if _TOO_SLOW not in error or self._in_a_row >= MAX_IN_A_ROW:
            return False
        self._in_a_row += 1
        return True
