# mypy: disable-error-code="no-any-return, no-untyped-call"
# (numba infers the types inside a kernel; mypy cannot know them)
"""Kernels for matching of the past: which versions of subscriptions a publication reached, by the places at its seq.

Rule: ``_decide_then`` is the twin of ``kernels.decide`` and of ``model.proximity.hears``; the grids only find
candidates. Where it returns DOUBT, the caller asks ``hears``.
Rule: a version of a subscription is reported once per publication, however many searches find it (``STAMP``).
"""

from __future__ import annotations

import math
from typing import Any

from whimbrel.match.kernels.compiled import njit
from whimbrel.match.proximity.grid import search
from whimbrel.match.proximity.ground import INSIDE, OUTSIDE
from whimbrel.match.proximity.kernels import SPOT_OF, both, by_place, must_be_inside, noted, weighed
from whimbrel.match.proximity.past.tracks import (
    BASE_AT,
    BASE_SPOT,
    LINK_DEVICE,
    LINK_FROM,
    LINK_START,
    LINK_TO,
    SIGHT_AT,
    SIGHT_SEQ,
    SIGHT_SPOT,
    SIGHT_START,
    WINDOW_DEVICE,
)
from whimbrel.match.proximity.tables import (
    AROUND,
    CIRCLE,
    KIND,
    PLACE,
    POLYGON,
    SESSION,
    SPOT,
    SPOTS_AT,
    STALE,
    STAMP,
    WANTED,
    WANTED_AT,
)
from whimbrel.match.proximity.words import prefetch, real, set_word, word

__all__ = [
    "BEGUN",
    "ENDED",
    "ENTRIES",
    "ENTRY",
    "ENTRY_CLASS",
    "ENTRY_HANDLE",
    "ENTRY_START",
    "ENTRY_WISH",
    "REACHES",
    "VERSION_WISH",
    "WISHED",
    "hear_then",
    "sieve_then",
]

# Indexes in the table of the versions' arrays (``past_versions``).
BEGUN, ENDED, VERSION_WISH, WISHED, ENTRY_START, ENTRIES, REACHES = range(7)
# An entry is one version of a session that a device is in; its fields are side by side, to be one access to memory.
ENTRY_HANDLE, ENTRY_CLASS, ENTRY_WISH, ENTRY = range(4)
_AHEAD = 6


@njit(cache=True)
def _last_before(s: Any, device: Any, seq: Any) -> Any:
    """Return the index of a device's last sighting (reported place) before *seq*; -1 if the span has none."""
    begin, end = word(word(s, SIGHT_START), device), word(word(s, SIGHT_START), device + 1)
    low, high = begin, end
    while low < high:
        middle = (low + high) >> 1
        if word(word(s, SIGHT_SEQ), middle) < seq:
            low = middle + 1
        else:
            high = middle
    return low - 1 if low > begin else -1


@njit(cache=True)
def _by_members_then(
    t: Any, s: Any, spot: Any, at: Any, seq: Any, handle: Any, is_for_area: Any, is_around: Any
) -> Any:
    """Return whether the session's members at *seq* fulfil the conditions on place: INSIDE, OUTSIDE or DOUBT.

    If *is_for_area*, some member must be in the publication's area. If *is_around*, some member must be within the
    subscription's radius of the publication's place.
    """
    wanted = word(t, WANTED_AT) + 8 * WANTED * handle
    session = word(wanted, SESSION)
    if session < 0:
        return OUTSIDE
    radius_m = real(word(t, SPOTS_AT), SPOT * handle + 2)
    inside, close = OUTSIDE if is_for_area else INSIDE, OUTSIDE if is_around else INSIDE
    for link in range(word(word(s, LINK_START), session), word(word(s, LINK_START), session + 1)):
        if word(word(s, LINK_FROM), link) >= seq or word(word(s, LINK_TO), link) <= seq:
            continue
        device = word(word(s, LINK_DEVICE), link)
        last = _last_before(s, device, seq)
        if last >= 0:
            here, reported_at = word(s, SIGHT_SPOT) + 8 * PLACE * last, word(word(s, SIGHT_AT), last)
        else:
            here, reported_at = word(s, BASE_SPOT) + 8 * PLACE * device, word(word(s, BASE_AT), device)
        if math.isnan(real(here, 0)) or at - reported_at >= word(wanted, STALE):
            continue
        inside, close = weighed(spot, here, radius_m, inside, close)
        if inside == INSIDE and close == INSIDE:
            break
    return both(inside, close)


@njit(cache=True)
def _decide_then(t: Any, s: Any, spot: Any, at: Any, seq: Any, handle: Any) -> Any:
    """Return whether a publication reached a version of a subscription: INSIDE, OUTSIDE or DOUBT."""
    kind = word(word(t, WANTED_AT), WANTED * handle + KIND)
    if kind in (CIRCLE, POLYGON, AROUND) and math.isnan(real(spot, 0)):
        return OUTSIDE
    verdict = by_place(t, spot, handle, kind)
    is_for_area = must_be_inside(spot, kind)
    if verdict == OUTSIDE or not (is_for_area or kind == AROUND):
        return verdict
    other = _by_members_then(t, s, spot, at, seq, handle, is_for_area, kind == AROUND)
    return other if other == OUTSIDE or verdict == INSIDE else verdict


@njit(cache=True)
def sieve_then(
    t: Any, s: Any, spots: Any, times: Any, seqs: Any, count: Any, rows: Any, handles: Any, verdicts: Any
) -> Any:
    """Write whether the publication reached the version (INSIDE, OUTSIDE or DOUBT) to *verdicts*, for each pair."""
    for n in range(count):
        row = word(rows, n)
        verdict = _decide_then(t, s, spots + 8 * SPOT_OF * row, word(times, row), word(seqs, row), word(handles, n))
        set_word(verdicts, n, verdict)


@njit(cache=True)
def _note(
    t: Any,
    s: Any,
    v: Any,
    spot: Any,
    at: Any,
    seq: Any,
    row: Any,
    handle: Any,
    stamp: Any,
    found: Any,
    room: Any,
    n: Any,
) -> Any:
    """Append a version to *found* if the publication may have reached it; return the number of results.

    A version that was not in force is skipped, and one that *stamp* marks as decided for this publication before.
    """
    wanted = word(t, WANTED_AT) + 8 * WANTED * handle
    if word(wanted, STAMP) == stamp:
        return n
    if word(word(v, BEGUN), handle) >= seq or word(word(v, ENDED), handle) <= seq:
        return n
    set_word(wanted, STAMP, stamp)
    verdict = _decide_then(t, s, spot, at, seq, handle)
    return n if verdict == OUTSIDE else noted(row, handle, verdict, found, room, n)


@njit(cache=True)
def _note_around(
    t: Any,
    s: Any,
    v: Any,
    grid: Any,
    is_window: Any,
    reach: Any,
    which: Any,
    spot: Any,
    at: Any,
    seq: Any,
    row: Any,
    stamp: Any,
    found: Any,
    room: Any,
    met: Any,
    met_room: Any,
    n: Any,
) -> Any:
    """Append the versions of one class whose session had a device within *reach* metres of the publication, by *grid*.

    The class *which* is a cube size, for versions with a near (place condition) around the session of that size; or it
    is the class of the versions without a near. Return the number of results. Return also the size that the search
    needs if the buffer *met* was too small, else 0.
    """
    count = search(grid, real(spot, 2), real(spot, 3), real(spot, 4), reach, met, met_room)
    if count > met_room:
        return n, count
    if is_window:
        for i in range(count):
            set_word(met, i, word(word(s, WINDOW_DEVICE), word(met, i)))
    starts, entries = word(v, ENTRY_START), word(v, ENTRIES)
    for i in range(min(2 * _AHEAD, count)):
        prefetch(starts, word(met, i))
    for i in range(count):
        if i + 2 * _AHEAD < count:
            prefetch(starts, word(met, i + 2 * _AHEAD))
        if i + _AHEAD < count:
            prefetch(entries, ENTRY * word(starts, word(met, i + _AHEAD)))
        device = word(met, i)
        for place in range(word(starts, device), word(starts, device + 1)):
            own = entries + 8 * ENTRY * place
            if word(own, ENTRY_CLASS) == which and word(word(v, WISHED), word(own, ENTRY_WISH)) == stamp:
                n = _note(t, s, v, spot, at, seq, row, word(own, ENTRY_HANDLE), stamp, found, room, n)
    return n, 0


@njit(cache=True)
def hear_then(
    t: Any,
    s: Any,
    v: Any,
    areas: Any,
    base: Any,
    window: Any,
    spots: Any,
    times: Any,
    seqs: Any,
    reaches: Any,
    seeks: Any,
    starts: Any,
    wishes: Any,
    begin: Any,
    end: Any,
    classes: Any,
    stamp: Any,
    found: Any,
    room: Any,
    met: Any,
    met_room: Any,
) -> Any:
    """Search by place: append to *found* the subscription versions that publications may have reached, with verdicts.

    The publications are the rows from *begin* to *end* - 1. For each ``row``:

    - ``wishes[starts[row]]`` to ``wishes[starts[row + 1] - 1]`` are the filter combinations (subject filter, content
      filter and keys) that it matches. Only versions with these are found.
    - ``seeks[row]`` is 1 to search versions with a place condition (near), or 0.
    - ``reaches[row]`` is the radius around it in which to search devices, for their sessions' versions without a place
      condition, or 0 for no such search.
    - ``stamp + row`` is the mark of the versions that have been decided for it.

    Return three numbers: the first row whose results did not fit (*end* if all did), the number of results before that
    row, and the buffer size needed to go on (0 if all did fit).
    """
    n = 0
    for row in range(begin, end):
        is_sought = word(seeks, row) != 0
        spot, at, seq = spots + 8 * SPOT_OF * row, word(times, row), word(seqs, row)
        if not is_sought and real(reaches, row) <= 0.0:
            continue
        kept, own = n, stamp + row
        for i in range(word(starts, row), word(starts, row + 1)):
            set_word(word(v, WISHED), word(wishes, i), own)
        count = 0
        if is_sought:
            count = search(areas, real(spot, 2), real(spot, 3), real(spot, 4), 0.0, met, met_room)
        if count > met_room:
            return row, kept, count
        for i in range(count):
            if word(word(v, WISHED), word(word(v, VERSION_WISH), word(met, i))) == own:
                n = _note(t, s, v, spot, at, seq, row, word(met, i), own, found, room, n)
        for which in range(classes + 1):
            reach = real(word(v, REACHES), which) if which < classes else real(reaches, row)
            if reach <= 0.0 or (which < classes and not is_sought):
                continue
            for is_window in range(2):
                grid = window if is_window else base
                n, more = _note_around(
                    t, s, v, grid, is_window, reach, which, spot, at, seq, row, own, found, room, met, met_room, n
                )
                if more:
                    return row, kept, more
        if n > room:
            return row, kept, n
    return end, n, 0
