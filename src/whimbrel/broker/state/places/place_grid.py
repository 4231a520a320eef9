"""The grid of places in the live broker: the matcher's proximity index, kept in step with the hold.

It is a twin of the hold's own rule (``hold.rules.places``), which asks one subscription after the other: where a
hundred thousand devices say ``near=200``, the grid finds the seventy that hear a publication.
Rule: it learns of places and members from the hold and decides nothing that the hold would decide otherwise; a
differential test has both (tests/differential/test_broker_near.py).
Rule: what it has to learn is taken in pieces of some milliseconds; it is asked once it ``is_whole``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from whimbrel.hold.commands import Identity
from whimbrel.hold.counting import sorted_identities
from whimbrel.hold.private import private_session
from whimbrel.match.matcher import Interest, Matcher, PublishedAt, ReadInterest
from whimbrel.model.place import Area
from whimbrel.model.proximity import Sighting

if TYPE_CHECKING:
    from collections.abc import Collection

    from whimbrel.match.proximity.index import ProximityIndex
    from whimbrel.model.attributes import Attributes
    from whimbrel.model.keys import KeyHashes

__all__ = ["Entry", "PlaceGrid", "PlacesOfHold", "by_session"]

Entry: TypeAlias = tuple[str, tuple[Identity, ...]]
"""A session and one of its subscriptions; or several, in an answer."""
_BY_SESSION = itemgetter(0)
_MAX_MOVES = 2_000
"""So many moves are taken at once: a millisecond."""


class PlacesOfHold(Protocol):
    """What the hold knows of places (``hold.rules.places.Places``)."""

    follower: Any

    def devices(self) -> list[str]:
        """Return the devices that have a place."""

    def last(self, device: str) -> Sighting | None:
        """Return the last place of a device."""

    def members(self, name: str) -> Collection[str]:
        """Return the devices whose places are those of a session."""


class PlaceGrid:
    """The subscriptions with a near by number, in *matcher*, and the places of all devices that *places* knows."""

    def __init__(self, matcher: Matcher, places: PlacesOfHold, named: Iterable[str]) -> None:
        """Begin to follow *places*; *named* are the sessions that are not private."""
        self._matcher, self._places = matcher, places
        self._index: ProximityIndex = matcher.places
        self._entries: list[Entry] = []
        """By handle, session and subscription."""
        self._several = 0
        """How many sessions have more than one subscription here."""
        self._wanting: dict[str, int] = {}
        """By session, how many of its subscriptions are here."""
        self._joined: dict[str, frozenset[str]] = {}
        """By session, the members that the index knows."""
        self._changed: set[str] = set()
        """Sessions whose members may have changed since the last question."""
        self._named_of: dict[str, set[str]] = {}
        """By device, the named sessions that it is a member of, present or away."""
        self._named: dict[str, frozenset[str]] = {}
        self._moved: dict[str, Sighting | None] = {}
        """Where devices went since the last question; None if their place is forgotten."""
        self._unknown = deque(places.devices())
        """Devices whose place is to be looked up yet."""
        for session in named:
            self._note_named(session)
        places.follower = self

    @property
    def is_whole(self) -> bool:
        """Whether it knows all places that there were when it began."""
        return not self._unknown

    def learn(self) -> None:
        """Look up a piece of the places that it does not know yet."""
        for _ in range(min(_MAX_MOVES, len(self._unknown))):
            device = self._unknown.popleft()
            if device not in self._moved and (last := self._places.last(device)) is not None:
                self._moved[device] = last
        self._take_moves()

    # -- changes -----------------------------------------------------------------------------------------------------

    def put(self, number: int, entry: Entry, interest: Interest, read: ReadInterest | None = None) -> None:
        """Add a subscription; a filter that cannot be read raises ``FilterError``."""
        handle, session = self._matcher.add(str(number), interest, read), entry[0]
        self._entries += [entry] * (handle + 1 - len(self._entries))
        self._entries[handle] = entry
        self._wanting[session] = self._wanting.get(session, 0) + 1
        self._several += self._wanting[session] == 2
        self._changed.add(session)

    def remove(self, number: int, session: str) -> None:
        """Remove a subscription of a session, if it is there."""
        if self._matcher.remove(str(number)):
            self._wanting[session] -= 1
            self._several -= self._wanting[session] == 1
            self._changed.add(session)

    def members_changed(self, session: str, *, is_named: bool) -> None:
        """Take in that a device joined a session or left it, or that the session is no more."""
        if session in self._wanting:
            self._changed.add(session)
        if is_named:
            self._note_named(session)

    def _note_named(self, session: str) -> None:
        now = frozenset(self._places.members(session))
        before = self._named.pop(session, frozenset())
        if now:
            self._named[session] = now
        for device in before - now:
            self._named_of[device].discard(session)
            if not self._named_of[device]:
                del self._named_of[device]
        for device in now - before:
            self._named_of.setdefault(device, set()).add(session)

    def moved(self, device: str, sighting: Sighting | None) -> None:
        """Take in where a device is; None if its place is forgotten."""
        self._moved[device] = sighting
        if len(self._moved) >= _MAX_MOVES:
            self._take_moves()

    def _take_moves(self) -> None:
        if not self._moved:
            return
        moved = {device: sighting for device, sighting in self._moved.items() if sighting is not None}
        for device in self._moved.keys() - moved.keys():
            self._index.forget(device)
        self._moved = {}
        if not moved:
            return
        sightings = moved.values()
        numbers = np.fromiter(map(self._index.device, moved), np.int64, len(moved))
        places = np.array([(each.place.latitude, each.place.longitude) for each in sightings], np.float64)
        times = np.fromiter((each.reported_at for each in sightings), np.int64, len(moved))
        self._index.move_many(numbers, places, times)

    def _take_members(self) -> None:
        for session in self._changed:
            now = frozenset(self._places.members(session)) if self._wanting.get(session) else frozenset()
            before = self._joined.pop(session, frozenset())
            for device in before - now:
                self._index.leave(session, device)
            for device in now - before:
                self._index.join(session, device)
            if now:
                self._joined[session] = now
            if not self._wanting.get(session):
                self._wanting.pop(session, None)
        self._changed.clear()

    # -- questions ---------------------------------------------------------------------------------------------------

    def hearing(
        self, subject: str, attributes: Attributes, keys: KeyHashes, where: PublishedAt, *, deliver_insecure: bool
    ) -> list[Entry]:
        """Return the subscriptions that want a publication, hear it where it is, and may have it, by session."""
        if self._changed:
            self._take_members()
        if self._moved:
            self._take_moves()
        found = self._matcher.match_parts(subject, attributes, keys, deliver_insecure=deliver_insecure, where=where)
        entries = list(map(self._entries.__getitem__, found))
        if self._several:
            return by_session(entries)
        entries.sort(key=_BY_SESSION)
        return entries

    def sessions_within(self, area: Area) -> set[str]:
        """Return the sessions with a member that may be in an area: a few more than there are."""
        if self._moved:
            self._take_moves()
        devices = self._index.devices_within(area)
        found = set(map(private_session, devices))
        if self._named_of:
            for device in devices:
                found |= self._named_of.get(device, set())
        return found

    # -- the content filters -----------------------------------------------------------------------------------------

    @property
    def unpacked(self) -> int:
        """How many content filters are asked one by one."""
        return self._matcher.content.unpacked

    def settle(self) -> None:
        """Let the matcher make itself at home with what did not change since the last call."""
        self._matcher.content.settle()


def by_session(entries: list[Entry]) -> list[Entry]:
    """Return subscriptions by session, each session once."""
    entries.sort(key=_BY_SESSION)
    found = dict(entries)
    if len(found) == len(entries):  # nearly always: no session wants it for two reasons
        return entries
    several: dict[str, tuple[Identity, ...]] = {}
    for session, identities in entries:
        several[session] = (*several.get(session, ()), *identities)
    return [(session, sorted_identities(identities)) for session, identities in several.items()]
