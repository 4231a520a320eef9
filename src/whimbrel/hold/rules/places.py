"""Places: last known locations of devices, and which matching subscriptions are in range of a notification (rule 20).

Rule: a place that is too old for every subscription is forgotten (``forget_old``), whether its device comes back or
not. This only saves memory: every delivery stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from whimbrel.hold.commands import Identity, Matches
from whimbrel.hold.state import State
from whimbrel.model.facts import Reported
from whimbrel.model.near import DEFAULT_STALE_US, MAX_STALE_US
from whimbrel.model.notification import Notification
from whimbrel.model.place import Area, Place
from whimbrel.model.proximity import Sighting, hears, places_at

__all__ = ["Follower", "Places"]


class Follower(Protocol):
    """Observer of the places of devices, for example a spatial index."""

    def place_changed(self, device: str, sighting: Sighting | None) -> None:
        """Handle a change of a device's last place; *sighting* is None if the place is forgotten."""


class Places:
    """Last places of devices, and the check of matching subscriptions for range.

    ``follower`` is notified of every change.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._last: dict[str, Sighting] = {}
        """Last place of each device, in the order of these reports. Empty if the hold does not handle places."""
        self.follower: Follower | None = None
        self.touch: Callable[[tuple[str, str]], None] = _ignore
        """Function that is called with the key of each row of the saved state that changes."""

    def __contains__(self, device: str) -> bool:
        return device in self._last

    def __len__(self) -> int:
        return len(self._last)

    def reported(self, fact: Reported) -> None:
        """Record the place in a report; a report without a place changes nothing."""
        if fact.state.place is not None:
            self.sighted(fact.state.device, Sighting(fact.seq, fact.state.reported_at, fact.state.place))

    def sighted(self, device: str, sighting: Sighting) -> None:
        """Record the last place of a device, and notify the observer (``follower``)."""
        places = self._last
        if device in places:
            del places[device]  # moves it to the end: the oldest reports come first
        places[device] = sighting
        self.touch(("place", device))
        if self.follower is not None:
            self.follower.place_changed(device, sighting)

    def forget_old(self, now: int, *, most: int) -> int:
        """Forget up to *most* places that are too old for every subscription at *now*; return the number forgotten."""
        places, old = self._last, list[str]()
        for device, sighting in places.items():
            if len(old) == most or now < sighting.reported_at + MAX_STALE_US:
                break
            old.append(device)
        for device in old:
            del places[device]
            self.touch(("place", device))
            if self.follower is not None:
                self.follower.place_changed(device, None)
        return len(old)

    def devices(self) -> list[str]:
        """Return the devices that have a place."""
        return list(self._last)

    def restore(self, places: Mapping[str, Sighting]) -> None:
        """Replace all last places, and put them in the order of their reports."""
        self._last = dict(sorted(places.items(), key=lambda each: each[1].seq))

    def last(self, device: str) -> Sighting | None:
        """Return the last place of a device, or None."""
        return self._last.get(device)

    def members(self, name: str) -> Collection[str]:
        """Return the devices of a session; the session counts as being at the place of each of them."""
        session = self._state.sessions.get(name)
        return () if session is None else session.members

    def sightings(self, name: str) -> list[Sighting]:
        """Return the last places of the members of a session, including stale ones."""
        session, places = self._state.sessions.get(name), self._last
        if session is None or not places:
            return []
        return [places[device] for device in session.members if device in places]

    def heard_by(self, notification: Notification, matches: Matches) -> Matches:
        """Return *matches* (sessions with subscriptions) without subscriptions out of range of *notification*."""
        return self.heard(matches, place=notification.place, area=notification.area, at=notification.published_at)

    def heard(
        self, matches: Matches, *, place: Place | None, area: Area | None, at: int
    ) -> list[tuple[str, tuple[Identity, ...]]]:
        """Return *matches* without the subscriptions that are out of range of a publication.

        The publication was made at *place* at the time *at*, and is meant for *area*.
        """
        found: list[tuple[str, tuple[Identity, ...]]] = []
        for name, identities in matches:
            session = self._state.sessions.get(name)
            subscriptions = {} if session is None else session.subscriptions
            if area is None and all((s := subscriptions.get(i)) is None or s.near is None for i in identities):
                found.append((name, identities))  # places make no difference for these subscriptions
                continue
            sightings = self.sightings(name)
            stays = []
            for identity in identities:
                wanted = subscriptions.get(identity)
                near, stale = (None, None) if wanted is None else (wanted.near, wanted.stale_us)
                places = places_at(sightings, now=at, stale_us=DEFAULT_STALE_US if stale is None else stale)
                if hears(near, places, place=place, area=area):
                    stays.append(identity)
            if stays:
                found.append((name, tuple(stays)))
        return found


def _ignore(_: tuple[str, str]) -> None:
    """Do nothing with the key of a changed row, because no store saves the places."""
