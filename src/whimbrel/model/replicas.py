"""The replica plan: the number of copies of each topic's samples that all nodes together should carry (Campus++, 3.3).

With L copies, the mean delivery delay of a sample falls as 1 / L. For topics with S_i subscribers and a memory of C_tot
samples, the mean delay is lowest at L_i = C_tot · √S_i / Σ √S_j (the paper's equation 1). C_tot should be 80 % of the
whole memory: beyond that, spraying finds no free slot and takes longer than it saves.
Rule: numbers of copies are whole, at least one (the source's own, which counts) and at most one per node. When a bound
adds or removes copies, the rest is shared again by the same formula. Copies left over by rounding go to the largest
remainders.
Rule: the sum over the topics that the formula serves never exceeds C_tot. If there are more topics than slots, the
formula serves the most wanted that fit. Each other topic has one copy, its source's own, and is counted and named.
Rule: this is the only implementation: the pipeline's table, the carriers and the simulator use it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from whimbrel.model.bounds import INT32_MAX, real, whole

__all__ = ["TARGET", "find_unserved", "plan", "unserved_note"]

TARGET = 0.8
"""Share of the memory to fill; the paper measured that 0.8 is best."""
_SHOWN = 10
"""Most subjects that a message names."""
_NOTHING = 1e-9
"""Tolerance for rounding of binary fractions, so that 0.8 · 35 is 28."""


def plan(subscribers: Mapping[str, int], *, nodes: int, slots_per_node: int, target: float = TARGET) -> dict[str, int]:
    """Return L_i for each subject of *subscribers*, which has S_i by subject.

    A subject without subscribers gets one copy, and so does a subject for which no slot is left (``find_unserved``).
    """
    capacity = _checked_capacity(nodes, slots_per_node, target)
    ranked = _rank(subscribers)
    copies = dict.fromkeys(sorted(ranked), 1)
    subjects = sorted(ranked[:capacity])
    counts = [subscribers[name] for name in subjects]
    ideal = _share_capacity([math.sqrt(count) for count in counts], capacity, nodes)
    copies.update(zip(subjects, _round_shares(ideal, counts, capacity, nodes), strict=True))
    return copies


def find_unserved(
    subscribers: Mapping[str, int], *, nodes: int, slots_per_node: int, target: float = TARGET
) -> list[str]:
    """Return the subjects for which there is no slot, the most wanted first; equal ones are sorted by name."""
    return _rank(subscribers)[_checked_capacity(nodes, slots_per_node, target) :]


def unserved_note(names: Sequence[str], *, subjects: int) -> str:
    """Return a message about *names*, the result of ``find_unserved``, of *subjects* subjects in all."""
    shown = ", ".join(names[:_SHOWN])
    more = f", … ({len(names) - _SHOWN:,} more)" if len(names) > _SHOWN else ""
    count = f"{len(names):,} of {subjects:,} subjects"
    return f"{count} are beyond the memory and keep one copy, their source's: {shown}{more}"


def _rank(subscribers: Mapping[str, int]) -> list[str]:
    """Return the subjects, the most wanted first; equal ones are sorted by name."""
    for name, count in subscribers.items():
        whole(f"subscribers of {name}", count, 0, 2**53)
    return sorted(subscribers, key=lambda name: (-subscribers[name], name))


def _checked_capacity(nodes: int, slots_per_node: int, target: float) -> int:
    whole("nodes", nodes, 1, INT32_MAX)
    whole("slots_per_node", slots_per_node, 1, INT32_MAX)
    real("target", target, 0, 1)
    return _capacity(nodes, slots_per_node, target)


def _capacity(nodes: int, slots_per_node: int, target: float) -> int:
    return math.floor(nodes * slots_per_node * target + _NOTHING)


def _share_capacity(weights: Sequence[float], capacity: int, most: int) -> list[float]:
    """Return shares of *capacity* in proportion to *weights*, each from 1 to *most*.

    Shares outside the bounds are fixed at the bounds, first on the side that deviates more, and the rest is shared
    again. Every round fixes at least one share. The result equals that of the bounded optimisation.
    """
    shares = [1.0] * len(weights)
    free = [
        place for place, weight in enumerate(weights) if weight > 0
    ]  # a subject without subscribers keeps its one copy
    room = capacity - (len(weights) - len(free))
    while free:
        unit = room / math.fsum(weights[place] for place in free)
        wanted = {place: weights[place] * unit for place in free}
        for place in free:
            shares[place] = min(max(wanted[place], 1.0), float(most))
        excess = math.fsum(shares[place] - wanted[place] for place in free)
        if abs(excess) <= _NOTHING * capacity:
            break
        fixed = {place for place in free if (shares[place] - wanted[place]) * excess > 0}
        room -= len(fixed) * (1 if excess > 0 else most)
        free = [place for place in free if place not in fixed]
    return shares


def _round_shares(ideal: Sequence[float], counts: Sequence[int], capacity: int, most: int) -> list[int]:
    """Return whole numbers for *ideal*; the largest remainders are rounded up while there is room."""
    copies = [math.floor(share + _NOTHING) for share in ideal]
    remainders = [share - whole_part for share, whole_part in zip(ideal, copies, strict=True)]
    left = min(capacity, round(math.fsum(ideal))) - sum(copies)
    growing = [place for place, rest in enumerate(remainders) if copies[place] < most and rest > _NOTHING]
    # Ties go to the subject with more subscribers, then to the name that sorts first, so that the plan is unique.
    growing.sort(key=lambda place: (-round(remainders[place], 9), -counts[place]))
    for place in growing[: max(left, 0)]:
        copies[place] += 1
    return copies
