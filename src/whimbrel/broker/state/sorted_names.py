"""Names in alphabetical order, for lists that are asked for a page at a time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from heapq import merge

__all__ = ["SortedNames", "names_behind"]


class SortedNames:
    """Names in alphabetical order; those behind another are found without a look at the others."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = sorted(names)

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        """Take in a name, if it is not there."""
        place = bisect_left(self._names, name)
        if self._names[place : place + 1] != [name]:
            self._names.insert(place, name)

    def discard(self, name: str) -> None:
        """Take out a name, if it is there."""
        place = bisect_left(self._names, name)
        if self._names[place : place + 1] == [name]:
            del self._names[place]

    def behind(self, after: str, most: int) -> list[str]:
        """Return the first *most* names that come behind *after*."""
        begin = bisect_right(self._names, after)
        return self._names[begin : begin + most]


def names_behind(kinds: Iterable[SortedNames | None], after: str, most: int) -> list[str]:
    """Return the first *most* names of any of *kinds* that come behind *after*, each once."""
    found = merge(*(each.behind(after, most) for each in kinds if each is not None))
    return list(dict.fromkeys(found))[:most]
