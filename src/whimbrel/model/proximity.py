"""Proximity: where a session is, and which publications reach it there; shared by live and volume (STEAM, 4.3).

Rule: each member of a session, present or away, is at its last place that was reported with a lower seq than the
publication's, as long as ``published_at < reported_at + stale``. A session is at the places of its members. A report
without a place changes nothing. A member without such a place is nowhere, and so is a session of such members.
Rule: three conditions must all hold. (1) A publication with an area reaches only sessions inside the area. (2) A
``near`` with a circle or polygon requires the publication's place inside. (3) A ``near`` with a radius requires the
publication's place within that distance of the session. ``near=any`` lifts the first condition. If a place is missing,
a condition that needs it does not hold.
Rule: the rim counts as inside; distances are those of ``distance_m``.
Rule: the conditions are evaluated once, when the publication is accepted: a held notification stays held when the
session moves.
All faster code (``match.proximity``, the hold's fold, Spark) is a twin of ``hears``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from whimbrel.model.near import DEFAULT_STALE_US, Anywhere, Around, Near
from whimbrel.model.place import Area, Place, distance_m

__all__ = ["Condition", "Sighting", "conditions", "hears", "is_fresh", "latest", "places_at"]


class Sighting(NamedTuple):
    """A place that a device reported, with seq and time of the report."""

    seq: int
    reported_at: int
    place: Place


class Condition(NamedTuple):
    """One of the three conditions: whether it holds, and the reason."""

    is_met: bool
    reason: str


def is_fresh(sighting: Sighting, *, now: int, stale_us: int | None = None) -> bool:
    """Return whether a reported place still counts for a publication accepted at *now*."""
    return now < sighting.reported_at + (DEFAULT_STALE_US if stale_us is None else stale_us)


def latest(sightings: Iterable[Sighting], *, seq: int) -> Sighting | None:
    """Return the last place that a device reported before *seq*, or None."""
    return max((each for each in sightings if each.seq < seq), key=lambda each: each.seq, default=None)


def places_at(sightings: Iterable[Sighting | None], *, now: int, stale_us: int | None = None) -> list[Place]:
    """Return the places of a session, from the latest sighting of each member; outdated ones are left out."""
    return [each.place for each in sightings if each is not None and is_fresh(each, now=now, stale_us=stale_us)]


def hears(near: Near | None, places: Sequence[Place], *, place: Place | None, area: Area | None) -> bool:
    """Return whether a publication at *place* for *area* reaches a session that is at *places*."""
    if area is not None and not isinstance(near, Anywhere) and not any(map(area.contains, places)):
        return False
    if near is None or isinstance(near, Anywhere):
        return True
    if place is None:
        return False
    if isinstance(near, Around):
        return any(distance_m(here, place) <= near.radius_m for here in places)
    return near.contains(place)


def conditions(
    near: Near | None, places: Sequence[Place], *, place: Place | None, area: Area | None
) -> tuple[Condition, ...]:
    """Return the three conditions in order, each with its reason; ``hears`` is true if all are met."""
    return (
        _inside_area(near, places, area),
        _from_where(near, place),
        _close_by(near, places, place),
    )


def _inside_area(near: Near | None, places: Sequence[Place], area: Area | None) -> Condition:
    if area is None:
        return Condition(is_met=True, reason="the publication has no area: it is for everywhere")
    if isinstance(near, Anywhere):
        return Condition(is_met=True, reason="near=any: areas do not matter")
    if not places:
        return Condition(is_met=False, reason="the publication has an area and the session has no fresh place")
    away_m = min(distance_m(area.centre, here) for here in places)
    is_met = away_m <= area.radius_m
    where = "inside" if is_met else "outside"
    return Condition(
        is_met, f"{where} the publication's area: {away_m:.2f} m from its centre, radius {area.radius_m:g} m"
    )


def _from_where(near: Near | None, place: Place | None) -> Condition:
    if near is None or isinstance(near, Anywhere | Around):
        return Condition(is_met=True, reason="the subscription names no circle or polygon")
    if place is None:
        return Condition(is_met=False, reason="near names an area and the publication has no place")
    is_met = near.contains(place)
    where = "inside" if is_met else "outside"
    if isinstance(near, Area):
        away_m = distance_m(near.centre, place)
        return Condition(is_met, f"{where} near: {away_m:.2f} m from its centre, radius {near.radius_m:g} m")
    return Condition(is_met, f"{where} near: a polygon of {len(near.corners)} corners")


def _close_by(near: Near | None, places: Sequence[Place], place: Place | None) -> Condition:
    if not isinstance(near, Around):
        return Condition(is_met=True, reason="the subscription asks for no distance from the session")
    if place is None:
        return Condition(is_met=False, reason="near asks for a distance and the publication has no place")
    if not places:
        return Condition(is_met=False, reason="near asks for a distance and the session has no fresh place")
    away_m = min(distance_m(here, place) for here in places)
    return Condition(away_m <= near.radius_m, f"{away_m:.2f} m from the session, near allows {near.radius_m:g} m")
