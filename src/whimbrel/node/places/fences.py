"""Fences (geofences): the areas that sessions name, and which of them each session is in.

A client names an area by a subscription to ``$whimbrel/near/<name>`` with ``near=lat,lon,R`` or a polygon. It gets a
notice on that topic when it enters the area and when it leaves it.
Rule: only a private session can have a fence: a client gets notices about its own places only. A notice has no place.
Rule: the rules of ``model.proximity`` decide whether a place is valid; when it becomes stale, the session has left.
Rule: places and subscriptions alone determine which fences a session is in, so a restart restores it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from whimbrel.hold.commands import Identity
from whimbrel.hold.private import client_of, is_private
from whimbrel.model.near import DEFAULT_STALE_US
from whimbrel.model.place import Area
from whimbrel.model.polygon import Polygon
from whimbrel.model.proximity import Sighting, is_fresh
from whimbrel.model.subscription import Subscription

__all__ = ["FENCE", "Crossing", "Fences", "fence_name"]

FENCE = "$whimbrel/near/"

Crossing = tuple[str, str, bool]
"""A client, the name of the area, and whether the client entered it."""


def fence_name(subscription: Subscription) -> str | None:
    """Return the name of the area that a subscription names; None if it is not for a fence."""
    wanted = subscription.subject_filter
    if wanted is None or not wanted.startswith(FENCE) or not isinstance(subscription.near, Area | Polygon):
        return None
    return wanted.removeprefix(FENCE) if is_private(subscription.session) else None


class Fences:
    """The named areas by session; *sightings* returns the last places of a session's members."""

    def __init__(self, sightings: Callable[[str], list[Sighting]]) -> None:
        self._sightings = sightings
        self._named: dict[str, dict[Identity, Subscription]] = {}
        self._inside: dict[tuple[str, Identity], None] = {}
        self._stale: list[tuple[int, str, Identity]] = []
        """Heap of the times when the place of a session in an area becomes stale, unless it reports again."""
        self._queued: set[tuple[str, Identity]] = set()
        """Session and identity of each entry in ``_stale``: at most one per fence, even if a session comes and goes."""

    def __bool__(self) -> bool:
        return bool(self._named)

    def put(self, subscription: Subscription, now: int) -> Iterator[Crossing]:
        """Add the fence of a subscription that names an area; yield a crossing if its session is inside."""
        session, identity = subscription.session, (subscription.subject_filter, subscription.name)
        if fence_name(subscription) is None:
            self.remove(session, identity)
            return
        self._inside.pop((session, identity), None)
        self._queued.discard((session, identity))
        self._named.setdefault(session, {})[identity] = subscription
        yield from self._look(session, identity, subscription, now)

    def remove(self, session: str, identity: Identity) -> None:
        """Remove the fence of a subscription that was removed."""
        found = self._named.get(session)
        if found is not None and found.pop(identity, None) is not None:
            self._inside.pop((session, identity), None)
            if not found:
                del self._named[session]

    def end(self, session: str) -> None:
        """Remove the fences of a session that ended."""
        for identity in self._named.pop(session, ()):
            self._inside.pop((session, identity), None)

    def on_place(self, session: str, now: int) -> Iterator[Crossing]:
        """Yield the areas that a session entered and left, after its device reported a place."""
        for identity, subscription in self._named.get(session, {}).items():
            yield from self._look(session, identity, subscription, now)

    def tick(self, now: int) -> Iterator[Crossing]:
        """Yield the areas that sessions left because their places are stale."""
        while self._stale and self._stale[0][0] <= now:
            _, session, identity = heapq.heappop(self._stale)
            self._queued.discard((session, identity))
            subscription = self._named.get(session, {}).get(identity)
            if subscription is not None and (session, identity) in self._inside:
                yield from self._look(session, identity, subscription, now)

    def _look(self, session: str, identity: Identity, subscription: Subscription, now: int) -> Iterator[Crossing]:
        near = subscription.near
        assert isinstance(near, Area | Polygon)
        stale_us = DEFAULT_STALE_US if subscription.stale_us is None else subscription.stale_us
        inside = [
            each.reported_at + stale_us
            for each in self._sightings(session)
            if is_fresh(each, now=now, stale_us=stale_us) and near.contains(each.place)
        ]
        was_inside = (session, identity) in self._inside
        if inside and (session, identity) not in self._queued:
            self._queued.add((session, identity))
            heapq.heappush(self._stale, (max(inside), session, identity))
        if bool(inside) is was_inside:
            return
        if inside:
            self._inside[session, identity] = None
        else:
            del self._inside[session, identity]
        name, client = fence_name(subscription), client_of(session)
        assert name is not None
        if client is not None:
            yield client, name, bool(inside)
