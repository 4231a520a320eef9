"""Names in alphabetical order, for lists that clients request page by page."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from heapq import merge

__all__ = ["SortedNames", "names_behind"]


class SortedNames:
    """A set of names in alphabetical order; the page behind a name is found by binary search."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = sorted(names)

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        """Add a name, unless the set contains it."""
        place = bisect_left(self._names, name)
        if self._names[place : place + 1] != [name]:
            self._names.insert(place, name)

    def discard(self, name: str) -> None:
        """Remove a name, if the set contains it."""
        place = bisect_left(self._names, name)
        if self._names[place : place + 1] == [name]:
            del self._names[place]

    def behind(self, after: str, most: int) -> list[str]:
        """Return the first *most* names that come behind the name *after* in the alphabet."""
        begin = bisect_right(self._names, after)
        return self._names[begin : begin + most]


def names_behind(kinds: Iterable[SortedNames | None], after: str, most: int) -> list[str]:
    """Return the first *most* names behind *after* in the union of the sets *kinds*, each name once."""
    found = merge(*(each.behind(after, most) for each in kinds if each is not None))
    return list(dict.fromkeys(found))[:most]
