"""Components: groups of sessions that must be folded together, because they have a device or a share in common.

A device in two sessions gets one copy of a notification that matches in both (Elvin proxy, 4.6), so these sessions must
be folded together. Of all sessions with the same share (``$share/…``) only one gets each notification, so these must be
folded together, too. Sessions depend on each other in no other way, so groups can be folded in parallel.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

__all__ = ["Components"]


class Components:
    """The groups of one node's sessions, computed from (device, session) pairs and (share, session) pairs."""

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
        while session != root:  # path compression: later searches are short
            parents[session], session = root, parents.get(session, session)
        return root

    def _join(self, one: str, other: str) -> None:
        low, high = sorted((self._root(one), self._root(other)))
        if low != high:
            self._parents[high] = low

    def group(self, session: str) -> int:
        """Return the number of the group of *session*; sessions that are linked by devices or shares have the same."""
        return crc32(self._root(session).encode()) % self._groups

    def group_of_device(self, device: str) -> int | None:
        """Return the number of the group of the device's sessions; None if the device is in no session."""
        session = self._of_device.get(device)
        return None if session is None else self.group(session)
