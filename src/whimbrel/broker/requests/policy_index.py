"""Index of policies: their names in sorted order, of all policies and per owner."""

from __future__ import annotations

from collections.abc import Iterable

from whimbrel.broker.state.sorted_names import SortedNames
from whimbrel.shape.state import PolicyVersion

__all__ = ["PolicyIndex"]

_NONE = SortedNames()


class PolicyIndex:
    """Sorted names of policies, at first those of *policies*; ``change`` keeps them up to date."""

    def __init__(self, policies: Iterable[PolicyVersion]) -> None:
        known = list(policies)
        self.names = SortedNames(each.name for each in known)
        """The names of all policies."""
        self._owned: dict[str, SortedNames] = {}
        for each in known:
            self._owned.setdefault(each.owner, SortedNames()).add(each.name)

    def of_owner(self, owner: str) -> SortedNames:
        """Return the names of the policies of *owner*."""
        return self._owned.get(owner, _NONE)

    def change(self, before: PolicyVersion | None, after: PolicyVersion | None) -> None:
        """Update the index after a policy was stored, replaced or removed; None stands for a missing policy."""
        if before is after:
            return
        if before is not None:
            self.names.discard(before.name)
            owned = self._owned[before.owner]
            owned.discard(before.name)
            if not owned:
                del self._owned[before.owner]
        if after is not None:
            self.names.add(after.name)
            self._owned.setdefault(after.owner, SortedNames()).add(after.name)
