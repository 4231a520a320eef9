"""A fair queue: addresses take turns, and within an address its users do.

Rule: an item waits behind one item of each other address, and within its address behind one of each other user,
however many items they have put in. The items of one user of one address come in order.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

__all__ = ["FairQueue"]

_T = TypeVar("_T")


class FairQueue(Generic[_T]):
    """Items of users at addresses; putting and taking cost the same however many wait."""

    def __init__(self) -> None:
        self._addresses: dict[str, dict[str, deque[_T]]] = {}
        """In the order of their turns, as are the users of each."""
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(self._counts.values())

    def __bool__(self) -> bool:
        return bool(self._counts)

    def waiting(self, address: str) -> int:
        """Return how many items of *address* wait."""
        return self._counts.get(address, 0)

    def put(self, address: str, user: str, item: _T) -> None:
        """Let *item* wait for its turn."""
        self._addresses.setdefault(address, {}).setdefault(user, deque()).append(item)
        self._counts[address] = self._counts.get(address, 0) + 1

    def take(self) -> _T:
        """Return the next item; there must be one."""
        address = next(iter(self._addresses))
        users = self._addresses.pop(address)
        user = next(iter(users))
        items = users.pop(user)
        item = items.popleft()
        if items:
            users[user] = items  # behind the other users
        if users:
            self._addresses[address] = users  # behind the other addresses
            self._counts[address] -= 1
        else:
            del self._counts[address]
        return item
