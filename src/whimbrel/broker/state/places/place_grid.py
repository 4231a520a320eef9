"""The grid of places in the live broker: the matcher's spatial index, kept in step with the hold.

The grid is a fast second implementation of the hold's rule about places (``hold.rules.places``), which checks one
subscription after the other. If a hundred thousand devices subscribe with ``near=200``, the grid finds the seventy
that a publication reaches.
Rule: the grid gets places and members from the hold, and always decides as the hold would; a differential test
compares the two (tests/differential/test_broker_near.py).
Rule: the grid is filled in steps of some milliseconds, and used only when it has all places (``is_whole``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from whimbrel.hold.commands import Identity
from whimbrel.hold.private import private_session
from whimbrel.hold.shared_subscriptions import sorted_identities
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
"""A session and one of its subscriptions; in a result, all of its subscriptions that match."""
_BY_SESSION = itemgetter(0)
_MAX_MOVES = 2_000
"""Moves of devices that are applied to the index in one step, which takes a millisecond."""


class PlacesOfHold(Protocol):
    """Places of devices and members of sessions in the hold, as this grid uses them (``hold.rules.places.Places``)."""

    follower: Any
    """The object whose ``place_changed`` is called with every new place of a device."""

    def devices(self) -> list[str]:
        """Return the devices whose place is known."""

    def last(self, device: str) -> Sighting | None:
        """Return the last reported place of a device, or None if it has none."""

    def members(self, name: str) -> Collection[str]:
        """Return the member devices of a session: their places are the places of the session."""


class PlaceGrid:
    """Spatial index of the subscriptions with ``near``, and of the places of all devices that *places* has.

    Subscriptions have route numbers; *matcher* matches them, and its proximity index holds the places.
    """

    def __init__(self, matcher: Matcher, places: PlacesOfHold, named: Iterable[str]) -> None:
        """Begin with the devices and sessions in *places*, and follow their changes; *named* are the named sessions."""
        self._matcher, self._places = matcher, places
        self._index: ProximityIndex = matcher.places
        self._entries: list[Entry] = []
        """Session and subscription, by handle (the index of the subscription in the matcher)."""
        self._several = 0
        """Number of sessions with more than one subscription in the grid."""
        self._wanting: dict[str, int] = {}
        """Number of subscriptions in the grid per session."""
        self._joined: dict[str, frozenset[str]] = {}
        """Members of each session, as they are in the index."""
        self._changed: set[str] = set()
        """Sessions whose members may have changed since the last search."""
        self._named_of: dict[str, set[str]] = {}
        """Named sessions that each device is a member of, present or away."""
        self._named: dict[str, frozenset[str]] = {}
        """Members of each named session."""
        self._moved: dict[str, Sighting | None] = {}
        """New places of devices that are not in the index yet; None for a place that was forgotten."""
        self._unknown = deque(places.devices())
        """Devices whose place is not in the grid yet, because they had it before the grid was created."""
        for session in named:
            self._note_named(session)
        places.follower = self

    @property
    def is_whole(self) -> bool:
        """Whether the grid (spatial index) has all places that existed when it was created."""
        return not self._unknown

    def learn(self) -> None:
        """Add the next ``_MAX_MOVES`` of the places that existed when the grid (spatial index) was created."""
        for _ in range(min(_MAX_MOVES, len(self._unknown))):
            device = self._unknown.popleft()
            if device not in self._moved and (last := self._places.last(device)) is not None:
                self._moved[device] = last
        self._take_moves()

    # -- changes -----------------------------------------------------------------------------------------------------

    def put(self, number: int, entry: Entry, interest: Interest, read: ReadInterest | None = None) -> None:
        """Add a subscription under the route number *number*; raise ``FilterError`` if its filter cannot be parsed.

        *read* is its content filter, if it was prepared for the index already.
        """
        handle, session = self._matcher.add(str(number), interest, read), entry[0]
        self._entries += [entry] * (handle + 1 - len(self._entries))
        self._entries[handle] = entry
        self._wanting[session] = self._wanting.get(session, 0) + 1
        self._several += self._wanting[session] == 2
        self._changed.add(session)

    def remove(self, number: int, session: str) -> None:
        """Remove the subscription with the route number *number* of *session*, if the grid has it."""
        if self._matcher.remove(str(number)):
            self._wanting[session] -= 1
            self._several -= self._wanting[session] == 1
            self._changed.add(session)

    def members_changed(self, session: str, *, is_named: bool) -> None:
        """Note that a device joined or left a session, or the session ended; the next search updates the index."""
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

    def place_changed(self, device: str, sighting: Sighting | None) -> None:
        """Note the new place of a device, or that its place was forgotten (None); applied before the next search."""
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
        """Return the subscriptions that match a publication by subject, content and keys, and are near enough.

        *where* is its place, area and time. Each session is returned once, with all its matches.
        """
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
        """Return the sessions with a member in *area*, and possibly a few with members just outside."""
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
        """Number of content filters that are evaluated one by one, because the packed index does not have them yet."""
        return self._matcher.content.unpacked

    def settle(self) -> None:
        """Start packing new filters or merging segments, if needed and no filter was added since the last call."""
        self._matcher.content.settle()


def by_session(entries: list[Entry]) -> list[Entry]:
    """Merge *entries* by session: return one entry per session, ordered by session.

    An entry is a session with some of its subscriptions.
    """
    entries.sort(key=_BY_SESSION)
    found = dict(entries)
    if len(found) == len(entries):  # nearly always: no session has two matching subscriptions
        return entries
    several: dict[str, tuple[Identity, ...]] = {}
    for session, identities in entries:
        several[session] = (*several.get(session, ()), *identities)
    return [(session, sorted_identities(identities)) for session, identities in several.items()]
