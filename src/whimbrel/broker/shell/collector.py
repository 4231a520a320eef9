"""The garbage collector of a broker's process: it looks at what is new, and leaves what stays alone.

Python's own looks at everything every so often: half a second for a million objects, in which no client is answered.
Here what is there at a look is *frozen*: counted references still free it, as they free nearly everything we make, and
the collector does not come to it again.
Rule: a look is at some twenty thousand objects that came since the last: a few milliseconds.
Rule: circles that were frozen with the rest are found when everything is looked at; that happens when there is twice as
much as at the last time, so seldom: if the process makes no such circles, only while the broker holds ever more.
"""

from __future__ import annotations

import gc

__all__ = ["Collector"]

_YOUNG = 20_000
_NEVER = 1_000_000_000
_MUCH = 1_000_000
"""With fewer objects everything is looked at in half a second at most, and need not be."""


class Collector:
    """The collector's rules while it is in force: from ``begin`` to ``end``."""

    def __init__(self) -> None:
        self._before = gc.get_threshold()
        self._most = 0

    def begin(self) -> None:
        """Look at everything once, and from then on only at what is new."""
        gc.collect()
        gc.freeze()
        self._most = 2 * gc.get_freeze_count() + _MUCH
        gc.set_threshold(_YOUNG, _NEVER, _NEVER)
        gc.callbacks.append(_freeze)

    def accept(self) -> None:
        """Take what is there by now as what stays: what was restored has just been looked at, piece by piece."""
        self._most = 2 * gc.get_freeze_count() + _MUCH

    def turn(self) -> None:
        """Look at everything if there is twice as much as at the last time; called once in a while."""
        if gc.get_freeze_count() > self._most:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._most = 2 * gc.get_freeze_count() + _MUCH

    def end(self) -> None:
        """Let Python do as it did."""
        gc.callbacks.remove(_freeze)
        gc.set_threshold(*self._before)
        gc.unfreeze()


def _freeze(phase: str, info: dict[str, int]) -> None:
    """Freeze what was looked at."""
    del info
    if phase == "stop":
        gc.freeze()
