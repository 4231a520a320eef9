"""Index of named sessions: per device, the sessions that it is a member of (present or away); per user, those it owns.

The index is built from the hold when a broker starts, and updated with each fact. It serves requests for lists of
sessions without a scan of all sessions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from whimbrel.broker.access.passwords import read_access
from whimbrel.broker.state.sorted_names import SortedNames
from whimbrel.hold.access import AccessControlList
from whimbrel.hold.private import is_private
from whimbrel.hold.sessions import Hold

__all__ = ["SessionIndex"]


class SessionIndex:
    """Index of the named sessions of *hold* (the store of sessions) by member device and by owning user."""

    def __init__(self, hold: Hold[Any]) -> None:
        self._hold = hold
        self._by_device: dict[str, SortedNames] = {}
        self._by_user: dict[str, SortedNames] = {}
        self._owners: dict[str, str] = {}
        self._locked: set[str] = set()
        for session in hold.sessions():
            if not is_private(session):
                self.note_access(session)
                for device in hold.members(session):
                    self.note_member(device, session)

    @property
    def has_passwords(self) -> bool:
        """Whether any session has a password."""
        return bool(self._locked)

    def of_device(self, device: str) -> SortedNames | None:
        """Return the named sessions that *device* is a member of, or None if it is not a member of any."""
        return self._by_device.get(device)

    def of_user(self, user: str | None) -> SortedNames | None:
        """Return the named sessions that *user* owns, or None if there are none."""
        return None if user is None else self._by_user.get(user)

    def note_member(self, device: str, session: str) -> None:
        """Update the index after *device* joined or left *session*."""
        if self._hold.is_member(session, device):
            self._by_device.setdefault(device, SortedNames()).add(session)
        else:
            _discard(self._by_device, device, session)

    def note_access(self, session: str) -> None:
        """Update the index after a session was created or deleted, or its access was changed."""
        access = self._hold.access(session)
        owner = _owner(access)
        if access is None or '"passwords"' not in access:
            self._locked.discard(session)
        else:
            self._locked.add(session)
        before = self._owners.pop(session, None)
        if before is not None and before != owner:
            _discard(self._by_user, before, session)
        if owner is not None:
            self._owners[session] = owner
            self._by_user.setdefault(owner, SortedNames()).add(session)

    def note_end(self, session: str, devices: Iterable[str]) -> None:
        """Update the index after a session with the members *devices* was deleted."""
        self.note_access(session)
        for device in devices:
            _discard(self._by_device, device, session)


def _discard(index: dict[str, SortedNames], key: str, session: str) -> None:
    names = index.get(key)
    if names is not None:
        names.discard(session)
        if not names:
            del index[key]


def _owner(access: str | None) -> str | None:
    if access is None or '"list"' not in access:
        return None
    found = read_access(access)
    return found.owner if isinstance(found, AccessControlList) else None
