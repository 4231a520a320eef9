"""Components: sessions that share a device or divide work among them, in one group, so that they are folded together.

A device in two sessions gets one copy of what matches in both (Elvin proxy, 4.6), so neither can be folded without the
other; and of all sessions with the same share (``$share/…``) only one is given each notification. Everything else about
a session is its own affair: groups are folded side by side.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

__all__ = ["Components"]


class Components:
    """The groups of one node's sessions, from (device, session) pairs and (share, session) pairs."""

    def __init__(
        self, pairs: Iterable[tuple[str, str]], shares: Iterable[tuple[str, str]] = (), *, groups: int
    ) -> None:
        self._parents: dict[str, str] = {}
        self._groups = groups
        self._of_device: dict[str, str] = {}
        for device, session in pairs:
            first = self._of_device.setdefault(device, session)
            self._join(first, session)
        firsts: dict[str, str] = {}
        for share, session in shares:
            self._join(firsts.setdefault(share, session), session)

    def _root(self, session: str) -> str:
        parents = self._parents
        root = session
        while (above := parents.get(root, root)) != root:
            root = above
        while session != root:  # so that no later search walks this path
            parents[session], session = root, parents.get(session, session)
        return root

    def _join(self, one: str, other: str) -> None:
        low, high = sorted((self._root(one), self._root(other)))
        if low != high:
            self._parents[high] = low

    def group(self, session: str) -> int:
        """Return the group of *session*: the same for all that share devices or work, directly or not."""
        return crc32(self._root(session).encode()) % self._groups

    def group_of_device(self, device: str) -> int | None:
        """Return the group of the sessions of *device*; None if it is in none."""
        session = self._of_device.get(device)
        return None if session is None else self.group(session)
