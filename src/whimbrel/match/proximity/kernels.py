# mypy: disable-error-code="no-any-return, no-untyped-call"
# (numba infers the types inside a kernel; mypy cannot know them)
"""The kernels of proximity: the grids find candidates, and ``decide`` checks which publications reach them.

Rule: ``decide`` is the twin of ``model.proximity.hears``. Where it returns DOUBT, the caller asks ``hears``. There is
one shortcut: ``_note_sole`` decides a subscription with ``near=R`` whose session has one device, and calls ``decide``
only in doubt.
Rule: a subscription is reported once per publication, however many searches find it (``STAMP``).
Rule: a publication is six floats (``SPOT_OF``): latitude (NaN: no place), longitude, x, y, z and radius (NaN: no area).
"""

from __future__ import annotations

import math
from typing import Any

from whimbrel.match.kernels.compiled import njit
from whimbrel.match.proximity.grid import POINT_LEVEL, prefetch_entry, prefetch_row, put, search
from whimbrel.match.proximity.ground import DOUBT, INSIDE, OUTSIDE, by_chord, compare, earth_point, is_in_polygon
from whimbrel.match.proximity.tables import (
    ANY,
    AROUND,
    BALL,
    CIRCLE,
    CORNER_RADIX,
    CORNERS,
    CORNERS_AT,
    DEVICE,
    DEVICES_AT,
    FIRST_HANDLE,
    FIRST_MEMBER,
    FIRST_RING,
    FIRST_SESSION,
    IS_SOURCE,
    KIND,
    LINK,
    LINKS_AT,
    NEXT_HANDLE,
    NEXT_OF_DEVICE,
    NEXT_OF_SESSION,
    NEXT_RING,
    OF_A_SESSION,
    OF_SESSION,
    PLACE,
    POLYGON,
    REPORTED_AT,
    RING,
    RING_DEVICE,
    RING_LEVEL,
    RINGS_AT,
    SEEN,
    SEEN_AT,
    SESSION,
    SESSIONS_AT,
    SOLE,
    SOLE_RADIUS,
    SOLE_SEEN,
    SOLE_STALE,
    SPOT,
    SPOTS_AT,
    STALE,
    STAMP,
    UNPLACED,
    WANTED,
    WANTED_AT,
)
from whimbrel.match.proximity.words import prefetch, real, set_real, set_word, word

__all__ = [
    "FOUND",
    "SPOT_OF",
    "both",
    "by_place",
    "match_inside",
    "match_near",
    "move_many",
    "must_be_inside",
    "noted",
    "sieve",
    "weighed",
]

SPOT_OF = 6
_AHEAD = 8
"""Number of devices by which the memory of a move is prefetched ahead."""
FOUND = 3
"""Words per result in ``found``: publication, handle of the subscription, and verdict."""


@njit(cache=True)
def _chord(spot: Any, point: Any) -> Any:
    """Return the squared distance, through the Earth, from a publication to the x, y, z at address *point*."""
    dx, dy, dz = real(spot, 2) - real(point, 0), real(spot, 3) - real(point, 1), real(spot, 4) - real(point, 2)
    return dx * dx + dy * dy + dz * dz


@njit(cache=True)
def _either(verdict: Any, other: Any) -> Any:
    """Combine the verdicts (INSIDE, OUTSIDE or DOUBT) of two conditions of which one suffices."""
    if INSIDE in (verdict, other):
        return INSIDE
    return DOUBT if DOUBT in (verdict, other) else OUTSIDE


@njit(cache=True)
def both(verdict: Any, other: Any) -> Any:
    """Combine the verdicts (INSIDE, OUTSIDE or DOUBT) of two conditions that must both hold."""
    if OUTSIDE in (verdict, other):
        return OUTSIDE
    return DOUBT if DOUBT in (verdict, other) else INSIDE


@njit(cache=True)
def weighed(spot: Any, here: Any, radius_m: Any, inside: Any, close: Any) -> Any:
    """Update two verdicts about a session's members by the member whose place is at address *here*; return both.

    *inside*: a member is in the publication's area. *close*: a member is at most *radius_m* from the publication's
    place.
    """
    latitude, longitude, away = real(here, 0), real(here, 1), _chord(spot, here + 16)
    if inside != INSIDE:
        inside = _either(inside, compare(away, real(spot, 5), real(spot, 0), real(spot, 1), latitude, longitude))
    if close != INSIDE:
        close = _either(close, compare(away, radius_m, latitude, longitude, real(spot, 0), real(spot, 1)))
    return inside, close


@njit(cache=True)
def noted(row: Any, handle: Any, verdict: Any, found: Any, room: Any, n: Any) -> Any:
    """Append a result (row, handle, verdict) if there is room.

    Return the number of results, including those without room.
    """
    if n < room:
        set_word(found, FOUND * n, row)
        set_word(found, FOUND * n + 1, handle)
        set_word(found, FOUND * n + 2, verdict)
    return n + 1


@njit(cache=True)
def _by_members(t: Any, spot: Any, at: Any, handle: Any, is_for_area: Any, must_be_close: Any) -> Any:
    """Return whether the session's members fulfil the conditions on place: INSIDE, OUTSIDE or DOUBT.

    If *is_for_area*, some member must be in the publication's area. If *must_be_close*, some member must be within the
    subscription's radius of the publication's place.
    """
    wanted = word(t, WANTED_AT) + 8 * WANTED * handle
    radius_m = real(word(t, SPOTS_AT), SPOT * handle + 2)
    inside, close = OUTSIDE if is_for_area else INSIDE, OUTSIDE if must_be_close else INSIDE
    link = word(word(t, SESSIONS_AT), OF_A_SESSION * word(wanted, SESSION) + FIRST_MEMBER)
    while link >= 0 and (inside != INSIDE or close != INSIDE):
        row = word(t, LINKS_AT) + 8 * LINK * link
        device, link = word(row, DEVICE), word(row, NEXT_OF_SESSION)
        here = word(t, DEVICES_AT) + 8 * PLACE * device
        reported_at = word(word(t, SEEN_AT), SEEN * device + REPORTED_AT)
        if not math.isnan(real(here, 0)) and at - reported_at < word(wanted, STALE):
            inside, close = weighed(spot, here, radius_m, inside, close)
    return both(inside, close)


@njit(cache=True)
def by_place(t: Any, spot: Any, handle: Any, kind: Any) -> Any:
    """Return whether a publication's place is in the subscription's circle or polygon; INSIDE if it has neither."""
    if kind == CIRCLE:
        own = word(t, SPOTS_AT) + 8 * SPOT * handle
        return compare(_chord(spot, own + 24), real(own, 2), real(own, 0), real(own, 1), real(spot, 0), real(spot, 1))
    if kind == POLYGON:
        first, count = divmod(word(word(t, WANTED_AT), WANTED * handle + CORNERS), CORNER_RADIX)
        corners = word(t, CORNERS_AT) + 16 * first
        return INSIDE if is_in_polygon(corners, count, real(spot, 0), real(spot, 1)) else OUTSIDE
    return INSIDE


@njit(cache=True)
def must_be_inside(spot: Any, kind: Any) -> Any:
    """Return whether a publication has an area and subscriptions of this kind are restricted by areas."""
    return not math.isnan(real(spot, 5)) and kind != ANY


@njit(cache=True)
def decide(t: Any, spot: Any, at: Any, handle: Any) -> Any:
    """Return whether a publication reaches a subscription: INSIDE, OUTSIDE or DOUBT."""
    wanted = word(t, WANTED_AT) + 8 * WANTED * handle
    kind = word(wanted, KIND)
    if kind == UNPLACED:
        return INSIDE
    if kind in (CIRCLE, POLYGON, AROUND) and math.isnan(real(spot, 0)):
        return OUTSIDE
    verdict = by_place(t, spot, handle, kind)
    is_for_area = must_be_inside(spot, kind) and word(wanted, SESSION) >= 0
    if verdict == OUTSIDE or not (is_for_area or kind == AROUND):
        return verdict
    other = _by_members(t, spot, at, handle, is_for_area, kind == AROUND)
    return other if other == OUTSIDE or verdict == INSIDE else verdict


@njit(cache=True)
def sieve(t: Any, spots: Any, times: Any, count: Any, rows: Any, handles: Any, verdicts: Any) -> Any:
    """Write whether the publication reaches the subscription (INSIDE, OUTSIDE or DOUBT), for each pair."""
    for n in range(count):
        row = word(rows, n)
        set_word(verdicts, n, decide(t, spots + 8 * SPOT_OF * row, word(times, row), word(handles, n)))


@njit(cache=True)
def _note(t: Any, spot: Any, at: Any, row: Any, handle: Any, stamp: Any, found: Any, room: Any, n: Any) -> Any:
    """Decide whether the publication reaches a subscription; append the subscription to *found* unless it is OUTSIDE.

    *stamp* marks the subscription as decided for this publication, so that it is decided only once.
    """
    wanted = word(t, WANTED_AT) + 8 * WANTED * handle
    if word(wanted, STAMP) == stamp:
        return n
    set_word(wanted, STAMP, stamp)
    verdict = decide(t, spot, at, handle)
    return n if verdict == OUTSIDE else noted(row, handle, verdict, found, room, n)


@njit(cache=True)
def _note_sole(t: Any, spot: Any, at: Any, row: Any, ring: Any, away: Any, found: Any, room: Any, n: Any) -> Any:
    """Append the one subscription of a ring (circle around a device) to *found*, if the publication may reach it.

    *away* is the squared chord (distance through the Earth) from the publication's place to the ring's device.
    """
    if at - word(ring, SOLE_SEEN) >= word(ring, SOLE_STALE):
        return n
    inside = INSIDE if math.isnan(real(spot, 5)) else by_chord(away, real(spot, 5))
    verdict, handle = both(inside, by_chord(away, real(ring, SOLE_RADIUS))), word(ring, SOLE)
    if verdict == DOUBT:
        verdict = decide(t, spot, at, handle)
    return n if verdict == OUTSIDE else noted(row, handle, verdict, found, room, n)


@njit(cache=True)
def _note_sessions(
    t: Any, device: Any, of_source: Any, spot: Any, at: Any, row: Any, stamp: Any, found: Any, room: Any, n: Any
) -> Any:
    """Append the subscriptions of a device's sessions that the publication may reach.

    With *of_source*, take those with ``near=R`` (a radius around the session's devices) that the search by place finds.
    Without it, take those that the topic or content index finds, except ``near=any``.
    """
    link = word(word(t, SEEN_AT), SEEN * device + FIRST_SESSION)
    while link >= 0:
        session = word(word(t, LINKS_AT), LINK * link + OF_SESSION)
        handle = word(word(t, SESSIONS_AT), OF_A_SESSION * session + FIRST_HANDLE)
        while handle >= 0:
            wanted = word(t, WANTED_AT) + 8 * WANTED * handle
            kind = word(wanted, KIND)
            is_asked = kind == AROUND if of_source else kind != ANY
            if is_asked and word(wanted, IS_SOURCE) == of_source:
                n = _note(t, spot, at, row, handle, stamp, found, room, n)
            handle = word(wanted, NEXT_HANDLE)
        link = word(word(t, LINKS_AT), LINK * link + NEXT_OF_DEVICE)
    return n


@njit(cache=True)
def _gather(t: Any, count: Any, met: Any) -> Any:
    """Prefetch the memory that is needed to decide about *count* devices: the first link of each, then the next.

    Each link leads to an effectively random address. Without the prefetch, these reads took ten times as long as
    everything else.
    """
    for i in range(count):
        prefetch(word(t, SEEN_AT), SEEN * word(met, i) + FIRST_SESSION)
        prefetch(word(t, DEVICES_AT), PLACE * word(met, i))
    for i in range(count):
        link = word(word(t, SEEN_AT), SEEN * word(met, i) + FIRST_SESSION)
        if link >= 0:
            prefetch(word(t, LINKS_AT), LINK * link)
    for step in range(2):
        for i in range(count):
            link = word(word(t, SEEN_AT), SEEN * word(met, i) + FIRST_SESSION)
            if link < 0:
                continue
            session = word(word(t, LINKS_AT), LINK * link + OF_SESSION)
            if step == 0:
                prefetch(word(t, SESSIONS_AT), OF_A_SESSION * session)
                continue
            handle = word(word(t, SESSIONS_AT), OF_A_SESSION * session + FIRST_HANDLE)
            if handle >= 0:
                prefetch(word(t, WANTED_AT), WANTED * handle)
                prefetch(word(t, WANTED_AT), WANTED * handle + WANTED - 1)
                prefetch(word(t, SPOTS_AT), SPOT * handle + 2)


@njit(cache=True)
def _doubts(found: Any, count: Any) -> Any:
    """Return how many of the first *count* results in *found* are in doubt."""
    doubts = 0
    for n in range(count):
        doubts += word(found, FOUND * n + 2) == DOUBT
    return doubts


@njit(cache=True)
def match_near(
    t: Any,
    areas: Any,
    rings: Any,
    spots: Any,
    times: Any,
    begin: Any,
    end: Any,
    stamp: Any,
    found: Any,
    room: Any,
    met: Any,
    met_room: Any,
) -> Any:
    """Search by place: append the subscriptions that the publications from *begin* to *end* may reach to *found*.

    Return the first publication whose results did not fit (or *end*), the number of results before it, the buffer size
    that it needs, and the number of doubtful results. Subscriptions that were decided for publication ``row`` are
    marked with the number ``stamp + row``.
    """
    n = 0
    for row in range(begin, end):
        spot, at = spots + 8 * SPOT_OF * row, word(times, row)
        if math.isnan(real(spot, 0)):
            continue
        kept, x, y, z = n, real(spot, 2), real(spot, 3), real(spot, 4)
        count = search(areas, x, y, z, 0.0, met, met_room)
        if count > met_room:
            return row, kept, count, _doubts(found, kept)
        for i in range(count):
            n = _note(t, spot, at, row, word(met, i), stamp + row, found, room, n)
        count = search(rings, x, y, z, 0.0, met, met_room)
        if count > met_room:
            return row, kept, count, _doubts(found, kept)
        others, lines = 0, word(t, RINGS_AT)
        for i in range(count):
            prefetch(lines, RING * word(met, i) + SOLE)
            prefetch(lines, RING * word(met, i) + SOLE_RADIUS)
        for i in range(count):
            ring = lines + 8 * RING * word(met, i)
            if word(ring, SOLE) >= 0:
                n = _note_sole(t, spot, at, row, ring, real(met, met_room + i), found, room, n)
            else:
                set_word(met, others, word(ring, RING_DEVICE))
                others += 1
        _gather(t, others, met)
        for i in range(others):
            n = _note_sessions(t, word(met, i), 1, spot, at, row, stamp + row, found, room, n)
        if n > room:
            return row, kept, n, _doubts(found, kept)
    return end, n, 0, _doubts(found, n)


@njit(cache=True)
def match_inside(
    t: Any, points: Any, spot: Any, at: Any, reach: Any, stamp: Any, found: Any, room: Any, met: Any, met_room: Any
) -> Any:
    """Append the subscriptions of sessions with a device within *reach* metres that a publication may reach.

    The publication has an area. Subscriptions that ``match_near`` finds are left out. Return the number of results, and
    the buffer size that the search needs.
    """
    count = search(points, real(spot, 2), real(spot, 3), real(spot, 4), reach, met, met_room)
    if count > met_room:
        return 0, count
    _gather(t, count, met)
    n = 0
    for i in range(count):
        n = _note_sessions(t, word(met, i), 0, spot, at, 0, stamp, found, room, n)
    return n, n


@njit(cache=True)
def move_many(t: Any, points: Any, rings: Any, count: Any, devices: Any, places: Any, times: Any, begin: Any) -> Any:
    """Write the places of devices from index *begin* on, and move their points and rings (circles) in the two grids.

    Return the number of devices moved in all, and the grid that is full: 0 none, 1 the points, 2 the rings. A device
    that occurs twice gets its last place.
    """
    for n in range(begin, count):
        if n + 2 * _AHEAD < count:
            device = word(devices, n + 2 * _AHEAD)
            prefetch(word(t, DEVICES_AT), PLACE * device)
            prefetch(word(t, SEEN_AT), SEEN * device)
            prefetch_entry(points, device)
        if n + _AHEAD < count:
            device = word(devices, n + _AHEAD)
            prefetch_row(points, device)
            ring = word(word(t, SEEN_AT), SEEN * device + FIRST_RING)
            if ring >= 0:
                prefetch(word(t, RINGS_AT), RING * ring)
                prefetch_entry(rings, ring)
        device = word(devices, n)
        latitude, longitude = real(places, 2 * n), real(places, 2 * n + 1)
        x, y, z = earth_point(latitude, longitude)
        here = word(t, DEVICES_AT) + 8 * PLACE * device
        set_real(here, 0, latitude)
        set_real(here, 1, longitude)
        set_real(here, 2, x)
        set_real(here, 3, y)
        set_real(here, 4, z)
        seen = word(t, SEEN_AT) + 8 * SEEN * device
        set_word(seen, REPORTED_AT, word(times, n))
        if not put(points, device, POINT_LEVEL, x, y, z, 0.0):
            return n, 1
        ring = word(seen, FIRST_RING)
        while ring >= 0:
            line = word(t, RINGS_AT) + 8 * RING * ring
            set_word(line, SOLE_SEEN, word(times, n))
            if not put(rings, ring, word(line, RING_LEVEL), x, y, z, real(line, BALL)):
                return n, 2
            ring = word(line, NEXT_RING)
    return count, 0
