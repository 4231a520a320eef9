"""Contacts of walks, by exact crossing: the instants at which the distance of two nodes crosses the radio range.

While both walk straight, their difference is p + v·t, and |p + v·t|² = r² is a quadratic equation. There is no time
step, so no contact is too short to be found. This is the reference; ``sim.kernels.crossings`` is its fast twin.

Rule: parts of a contact that join at a corner are one contact, even if rounding leaves a microsecond between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from whimbrel.sim.contacts.table import Contacts
from whimbrel.sim.mobility.walks import Corner, Walks

__all__ = ["TOUCH_S", "contacts_of", "pair_contacts"]

TOUCH_S = 1e-6


def contacts_of(walks: Walks, *, range_m: float) -> Contacts:
    """Return all contacts of *walks*, ordered by start and pair."""
    corners = [walks.corners(node) for node in range(walks.nodes)]
    found = [
        (start, end, low, high)
        for low in range(walks.nodes)
        for high in range(low + 1, walks.nodes)
        for start, end in pair_contacts(corners[low], corners[high], range_m=range_m, seconds=walks.seconds)
    ]
    return Contacts.of(found, nodes=walks.nodes, seconds=walks.seconds)


def pair_contacts(
    one: Sequence[Corner], other: Sequence[Corner], *, range_m: float, seconds: float
) -> list[tuple[float, float]]:
    """Return the contacts of two walks, as (start, end)."""
    found: list[tuple[float, float]] = []
    for start, end in _pieces(one, other, range_m, seconds):
        if found and start <= found[-1][1] + TOUCH_S:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def _pieces(
    one: Sequence[Corner], other: Sequence[Corner], range_m: float, seconds: float
) -> Iterator[tuple[float, float]]:
    """Yield (start, end) in range for each stretch in which both walk straight."""
    i = j = 0
    now = 0.0
    while now < seconds:
        until = min(one[i + 1][0], other[j + 1][0], seconds)
        if until > now:
            x, y, vx, vy = _difference(one[i], one[i + 1], other[j], other[j + 1], now)
            inside = _inside((x, y), (vx, vy), range_m, until - now)
            if inside is not None:
                begins, ends = inside
                yield (now + begins if begins > 0 else now), (now + ends if ends < until - now else until)
        now = until
        i += one[i + 1][0] <= now and i + 2 < len(one)
        j += other[j + 1][0] <= now and j + 2 < len(other)


def _difference(a: Corner, a_next: Corner, b: Corner, b_next: Corner, now: float) -> tuple[float, float, float, float]:
    """Return position and velocity of the second walk relative to the first, at *now*."""
    avx, avy = (a_next[1] - a[1]) / (a_next[0] - a[0]), (a_next[2] - a[2]) / (a_next[0] - a[0])
    bvx, bvy = (b_next[1] - b[1]) / (b_next[0] - b[0]), (b_next[2] - b[2]) / (b_next[0] - b[0])
    ax, ay = a[1] + avx * (now - a[0]), a[2] + avy * (now - a[0])
    bx, by = b[1] + bvx * (now - b[0]), b[2] + bvy * (now - b[0])
    return bx - ax, by - ay, bvx - avx, bvy - avy


def _inside(
    place: tuple[float, float], velocity: tuple[float, float], range_m: float, length_s: float
) -> tuple[float, float] | None:
    """Return start and end of |place + velocity·t| ≤ range within 0 ≤ t ≤ length, or None if it is never true."""
    (x, y), (vx, vy) = place, velocity
    speed2 = vx * vx + vy * vy
    closing = x * vx + y * vy
    beyond = x * x + y * y - range_m * range_m
    if speed2 == 0:
        return (0.0, length_s) if beyond <= 0 else None
    root2 = closing * closing - speed2 * beyond
    if root2 <= 0:
        return None
    root = math.sqrt(root2)
    begins, ends = (-closing - root) / speed2, (-closing + root) / speed2
    return (begins, ends) if ends > 0 and begins < length_s else None
