"""Places: where sessions are, and which of the subscriptions that match hear a notification there (rule 20).

Rule: a place that no subscription may count any more is forgotten (``forget_old``), whether its device comes back or
not. It saves memory alone: every delivery stays the same.
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
    """Learns where devices are as the hold does."""

    def place_changed(self, device: str, sighting: Sighting | None) -> None:
        """Note where a device is; None if its place is forgotten."""


class Places:
    """The last places of devices, and the rule that leaves out who is not near; *follower* learns of every place."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._last: dict[str, Sighting] = {}
        """By device; the one that reported last is at the end. Empty where places are not heeded."""
        self.follower: Follower | None = None
        self.touch: Callable[[tuple[str, str]], None] = _ignore
        """Called with the key of each row that changes."""

    def __contains__(self, device: str) -> bool:
        return device in self._last

    def __len__(self) -> int:
        return len(self._last)

    def reported(self, fact: Reported) -> None:
        """Note where a device is; a report without a place changes nothing."""
        if fact.state.place is not None:
            self.sighted(fact.state.device, Sighting(fact.seq, fact.state.reported_at, fact.state.place))

    def sighted(self, device: str, sighting: Sighting) -> None:
        """Note where a device is."""
        places = self._last
        if device in places:
            del places[device]  # it goes to the end: those that were not heard of for longest come first
        places[device] = sighting
        self.touch(("place", device))
        if self.follower is not None:
            self.follower.place_changed(device, sighting)

    def forget_old(self, now: int, *, most: int) -> int:
        """Forget up to *most* places that no subscription of a client may count at *now*; return how many."""
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
        """Restore the last places, in the order of their reports."""
        self._last = dict(sorted(places.items(), key=lambda each: each[1].seq))

    def last(self, device: str) -> Sighting | None:
        """Return the last place of a device."""
        return self._last.get(device)

    def members(self, name: str) -> Collection[str]:
        """Return the devices whose places are those of a session."""
        session = self._state.sessions.get(name)
        return () if session is None else session.members

    def sightings(self, name: str) -> list[Sighting]:
        """Return the last places of the members of a session, stale ones too."""
        session, places = self._state.sessions.get(name), self._last
        if session is None or not places:
            return []
        return [places[device] for device in session.members if device in places]

    def heard_by(self, notification: Notification, matches: Matches) -> Matches:
        """Return *matches* without the subscriptions that do not hear *notification*."""
        return self.heard(matches, place=notification.place, area=notification.area, at=notification.published_at)

    def heard(
        self, matches: Matches, *, place: Place | None, area: Area | None, at: int
    ) -> list[tuple[str, tuple[Identity, ...]]]:
        """Return *matches* without the subscriptions that do not hear what was published for *area* at *at*."""
        found: list[tuple[str, tuple[Identity, ...]]] = []
        for name, identities in matches:
            session = self._state.sessions.get(name)
            subscriptions = {} if session is None else session.subscriptions
            if area is None and all((s := subscriptions.get(i)) is None or s.near is None for i in identities):
                found.append((name, identities))  # places make no difference to it
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
    """Take no note of a row: nothing follows yet."""
