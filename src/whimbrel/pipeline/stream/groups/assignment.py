"""Assignment of sessions, devices and shares to the groups of a node.

Sessions that have a device or a share in common are in one group, since a fold of one group knows nothing of the
others (``fold.components``). A name keeps its group from batch to batch. When a new link joins two groups' sessions,
those of one side move, with all to which they are linked.

Rule: names that are new, and linked with none that is known, go to the group with the fewest names.
Rule: the directory has the names of everything that has rows in the state of a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import TypeAlias

from whimbrel.pipeline.stream.groups.directory import Kind

__all__ = ["Assignment", "Name", "assign"]

Name: TypeAlias = tuple[int, str]
"""A session, device or share: its kind, and its name."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Groups of names that are new or that move."""

    groups: dict[Name, int] = field(default_factory=dict)
    moved: dict[Name, int] = field(default_factory=dict)
    """Group that each of them leaves, of those that move."""


def assign(
    known: Mapping[int, Mapping[str, int]],
    names: Iterable[Name],
    links: Iterable[tuple[int, str, str]],
    *,
    of: int,
    older: Mapping[str, Iterable[Name]] | None = None,
) -> Assignment:
    """Assign *names* and everything in *links* to one of *of* groups.

    *known* has the groups of the directory, by kind and name. *links* are triples of the kind and the name of a device
    or a share, and a session. *older* are the links of the directory; if it is None and some names would have to move,
    ``OlderLinksError`` is raised, because all names to which these are linked must move, too.
    """
    sets = _Sets()
    for each in names:
        sets.add(each)
    for kind, name, session in links:
        sets.join((kind, name), (Kind.SESSION, session))
    if any(len(_groups(known, members)) > 1 for members in sets.all()):
        if older is None:
            raise OlderLinksError
        for session, others in older.items():
            for other in others:
                sets.join(other, (Kind.SESSION, session))
    made = Assignment()
    sizes = Counter(group for kind, own in known.items() if kind != Kind.KEPT_DEVICE for group in own.values())
    emptiest = [(sizes[group], group) for group in range(of)]
    heapify(emptiest)
    for members in sorted(map(sorted, sets.all()), key=len, reverse=True):
        groups = _groups(known, members)
        if groups:
            group = max(sorted(groups), key=groups.__getitem__)
        else:
            size, group = emptiest[0]
            heapreplace(emptiest, (size + len(members), group))
        for kind, name in members:
            before = known[kind].get(name)
            if before != group:
                made.groups[kind, name] = group
                if before is not None:
                    made.moved[kind, name] = before
    return made


class OlderLinksError(Exception):
    """Names of two groups were joined. Reaction: assign again, with the older links."""


def _groups(known: Mapping[int, Mapping[str, int]], members: Iterable[Name]) -> Counter[int]:
    """Return how many of *members* are in each group."""
    return Counter(group for kind, name in members if (group := known[kind].get(name)) is not None)


class _Sets:
    """Disjoint sets of names."""

    def __init__(self) -> None:
        self._parents: dict[Name, Name] = {}

    def add(self, name: Name) -> None:
        """Add a set of this name alone, if it is in none."""
        self._parents.setdefault(name, name)

    def join(self, one: Name, other: Name) -> None:
        """Join the sets of two names."""
        self.add(one)
        self.add(other)
        low, high = sorted((self._root(one), self._root(other)))
        self._parents[high] = low

    def _root(self, name: Name) -> Name:
        parents = self._parents
        root = name
        while parents[root] != root:
            root = parents[root]
        while name != root:  # path compression: later searches are short
            parents[name], name = root, parents[name]
        return root

    def all(self) -> list[list[Name]]:
        """Return all sets."""
        found: dict[Name, list[Name]] = {}
        for name in self._parents:
            found.setdefault(self._root(name), []).append(name)
        return [*found.values()]
