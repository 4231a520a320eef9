"""The view: the members of a group, which its producer knows from joins.

Rule: members are ordered by the time at which they were last heard, so that the silent ones are at the front.
Rule: the digest is updated with each change, so reading it is free.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from whimbrel.nearby.frames.values import Join, ViewDigest

__all__ = ["Member", "MemberView", "digest_of", "member_hash"]


@lru_cache(maxsize=65_536)
def member_hash(node: str) -> int:
    """Return the 64-bit hash under which a beacon lists *node*."""
    return int.from_bytes(hashlib.blake2s(node.encode(), digest_size=8).digest(), "big")


def digest_of(hashes: frozenset[int]) -> ViewDigest:
    """Return the digest of a view with these members."""
    mixed = 0
    for each in hashes:
        mixed ^= each
    return ViewDigest(len(hashes), mixed)


@dataclass(slots=True)
class Member:
    """The producer's record of one member."""

    heard_at: int
    seq: int
    key: bytes | None = None
    """The key that signed its joins."""
    accounted: int = 0
    expired: int = 0
    missed: int = 0


class MemberView:
    """The members of one group."""

    __slots__ = ("_members", "_mixed")

    def __init__(self) -> None:
        self._members: OrderedDict[str, Member] = OrderedDict()
        self._mixed = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __contains__(self, node: object) -> bool:
        return node in self._members

    def get(self, node: str) -> Member | None:
        """Return the record of the member *node*, or None."""
        return self._members.get(node)

    def add(self, join: Join, *, now: int) -> Member:
        """Add the sender of *join*, which is not yet a member."""
        member = self._members[join.origin] = Member(now, join.seq, join.key)
        self._mixed ^= member_hash(join.origin)
        return member

    def hear(self, node: str, *, now: int) -> None:
        """Record that the member *node* was heard."""
        self._members[node].heard_at = now
        self._members.move_to_end(node)

    def remove(self, node: str) -> Member | None:
        """Remove *node*; return its record, or None."""
        member = self._members.pop(node, None)
        if member is not None:
            self._mixed ^= member_hash(node)
        return member

    def remove_silent(self, *, since: int) -> list[tuple[str, Member]]:
        """Remove and return the members that were last heard at or before *since*."""
        gone = []
        while self._members:
            node, member = next(iter(self._members.items()))
            if member.heard_at > since:
                break
            self.remove(node)
            gone.append((node, member))
        return gone

    @property
    def digest(self) -> ViewDigest:
        """The digest of the view."""
        return ViewDigest(len(self._members), self._mixed)
