"""The theoretical delay of binary spray and wait: an exact Markov chain over the distribution of copies.

Any two nodes meet after an exponential time with the mean *meeting_s* (Spyropoulos and others, 2008, on which Campus++
is based). The state is the multiset of the holders' copies. In a transition, either a holder of several copies meets a
node without one and gives it half, or any holder meets the destination.
"""

from __future__ import annotations

from collections import Counter

from whimbrel.model.bounds import real, whole

__all__ = ["MAX_COPIES", "spray_delay_s"]

MAX_COPIES = 64
"""With more copies the chain has too many states."""


def spray_delay_s(copies: int, *, nodes: int, meeting_s: float) -> float:
    """Return the mean delay of a message with *copies* among *nodes*, source and destination included."""
    whole("copies", copies, 1, MAX_COPIES)
    whole("nodes", nodes, 2, 1_000_000)
    real("meeting_s", meeting_s, 0, 1e12)
    return _steps((copies,), nodes, {}) * meeting_s


def _steps(state: tuple[int, ...], nodes: int, known: dict[tuple[int, ...], float]) -> float:
    """Return the mean time to delivery from *state*, in meeting times."""
    if state in known:
        return known[state]
    without = nodes - 1 - len(state)
    rate, later = float(len(state)), 0.0
    for copies, holders in Counter(state).items():
        if copies > 1 and without > 0:
            rest = list(state)
            rest.remove(copies)
            after = tuple(sorted([*rest, copies - copies // 2, copies // 2]))
            rate += holders * without
            later += holders * without * _steps(after, nodes, known)
    known[state] = (1 + later) / rate
    return known[state]
