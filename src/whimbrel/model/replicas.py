"""The replica plan: how many copies of each topic's samples the nodes together should carry (Campus++, section 3.3).

The mean delivery delay of a sample falls as 1 / L with its copies L. Shared among topics with S_i subscribers, a
memory C_tot gives the least mean delay at L_i = C_tot · √S_i / Σ √S_j (the paper's equation 1), and C_tot should be
80 % of what there is: beyond that, spraying finds no free place and takes longer than it saves.

Rule: copies are whole, at least one (the source's own, which counts), at most one a node; what a bound takes or leaves
is shared again by the same formula, and what is left of rounding goes to the largest remainders.
Rule: the sum over the topics that the formula serves never exceeds C_tot. Where there are more topics than places, it
serves the most wanted that fit; each other topic has one copy, its source's own, and is counted and named.
Rule: this is the only formula: the pipeline's table, the carriers and the simulator ask it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from whimbrel.model.bounds import INT32_MAX, real, whole

__all__ = ["TARGET", "plan", "unserved", "unserved_note"]

TARGET = 0.8
"""The part of the memory to fill: what the paper measured to be best."""
_SHOWN = 10
"""How many subjects a sentence names."""
_NOTHING = 1e-9
"""What rounding of binary fractions may leave: 0.8 · 35 is 28."""


def plan(subscribers: Mapping[str, int], *, nodes: int, slots_per_node: int, target: float = TARGET) -> dict[str, int]:
    """Return L_i for each subject of *subscribers*, which counts S_i; a subject without subscribers gets one copy.

    So does each subject that is ``unserved``, because there are more subjects than places.
    """
    capacity = _checked_capacity(nodes, slots_per_node, target)
    ranked = _ranked(subscribers)
    copies = dict.fromkeys(sorted(ranked), 1)
    subjects = sorted(ranked[:capacity])
    counts = [subscribers[name] for name in subjects]
    ideal = _shared([math.sqrt(count) for count in counts], capacity, nodes)
    copies.update(zip(subjects, _rounded(ideal, counts, capacity, nodes), strict=True))
    return copies


def unserved(subscribers: Mapping[str, int], *, nodes: int, slots_per_node: int, target: float = TARGET) -> list[str]:
    """Return the subjects for which there is no place, the most wanted first; of equals, by name."""
    return _ranked(subscribers)[_checked_capacity(nodes, slots_per_node, target) :]


def unserved_note(names: Sequence[str], *, subjects: int) -> str:
    """Return the sentence that tells of *names*, which are ``unserved`` of so many *subjects*."""
    shown = ", ".join(names[:_SHOWN])
    more = f", … ({len(names) - _SHOWN:,} more)" if len(names) > _SHOWN else ""
    count = f"{len(names):,} of {subjects:,} subjects"
    return f"{count} are beyond the memory and keep one copy, their source's: {shown}{more}"


def _ranked(subscribers: Mapping[str, int]) -> list[str]:
    """Return the subjects, the most wanted first."""
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


def _shared(weights: Sequence[float], capacity: int, most: int) -> list[float]:
    """Return shares of *capacity* in proportion to *weights*, each from 1 to *most*.

    Shares outside the bounds are fixed at them, those on the side that is further out first, and the rest is shared
    again: every round fixes at least one, and the result is the one that the bounded optimisation has.
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


def _rounded(ideal: Sequence[float], counts: Sequence[int], capacity: int, most: int) -> list[int]:
    """Return whole numbers for *ideal*, the largest remainders rounded up while there is room."""
    copies = [math.floor(share + _NOTHING) for share in ideal]
    remainders = [share - whole_part for share, whole_part in zip(ideal, copies, strict=True)]
    left = min(capacity, round(math.fsum(ideal))) - sum(copies)
    growing = [place for place, rest in enumerate(remainders) if copies[place] < most and rest > _NOTHING]
    # Ties go to what more people want, then to the name that sorts first: the plan depends on nothing else.
    growing.sort(key=lambda place: (-round(remainders[place], 9), -counts[place]))
    for place in growing[: max(left, 0)]:
        copies[place] += 1
    return copies
