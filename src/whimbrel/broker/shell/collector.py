"""Garbage collection of the broker's process: examine only new objects, so that no collection blocks the event loop.

Python's default collector examines all objects now and then: half a second per million objects, in which no client is
answered. Here the objects that survive a collection are *frozen* (``gc.freeze``): reference counting still frees them,
as it frees nearly all of our objects, but later collections skip them.
Rule: a collection examines some twenty thousand objects, those created since the last one. It takes a few milliseconds.
Rule: reference cycles among frozen objects are found only by a full collection. One runs when the number of frozen
objects has doubled. This is seldom: without such cycles, the number grows only while the broker's state grows.
"""

from __future__ import annotations

import gc

__all__ = ["Collector"]

_YOUNG = 20_000
_NEVER = 1_000_000_000
_MUCH = 1_000_000
"""Number of frozen objects below which no full collection runs; for more, one would take over half a second."""


class Collector:
    """Settings of Python's garbage collector for a broker, in force from ``begin`` to ``end``."""

    def __init__(self) -> None:
        self._before = gc.get_threshold()
        self._most = 0

    def begin(self) -> None:
        """Run one full collection, and from then on examine only new objects."""
        gc.collect()
        gc.freeze()
        self._most = 2 * gc.get_freeze_count() + _MUCH
        gc.set_threshold(_YOUNG, _NEVER, _NEVER)
        gc.callbacks.append(_freeze)

    def accept(self) -> None:
        """Count the present objects as permanent, so that the next full collection runs when they have doubled.

        It is called after a restore, whose objects have just been examined in small collections.
        """
        self._most = 2 * gc.get_freeze_count() + _MUCH

    def turn(self) -> None:
        """Run a full collection if the number of frozen objects has doubled since the last; call this now and then."""
        if gc.get_freeze_count() > self._most:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._most = 2 * gc.get_freeze_count() + _MUCH

    def end(self) -> None:
        """Restore the collector's settings from before ``begin``: thresholds and callbacks; unfreeze all objects."""
        gc.callbacks.remove(_freeze)
        gc.set_threshold(*self._before)
        gc.unfreeze()


def _freeze(phase: str, info: dict[str, int]) -> None:
    """Freeze the surviving objects after each collection."""
    del info
    if phase == "stop":
        gc.freeze()
