"""The groups that a consumer knows, and which of them need anything: bounded, whatever strangers announce.

Rule: a group is known by producer and subject. A later epoch begins it anew; an earlier one is stale. It stays with the
key it began with; a signed group takes the place of an unsigned one.
Rule: when there are too many, the group that was not heard for the longest time and needs nothing is forgotten; if all
need something, the new one is refused.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from whimbrel.nearby.frames.values import Beacon, Event, GroupId
from whimbrel.nearby.group.membership import Membership

__all__ = ["MembershipTable"]


class MembershipTable:
    """Groups, in the order in which they were last heard."""

    def __init__(self, *, max_groups: int, counts: Counter[str]) -> None:
        self._max_groups, self._counts = max_groups, counts
        self.known: OrderedDict[GroupId, Membership] = OrderedDict()
        self.active: dict[GroupId, Membership] = {}
        """Those that this node is a member of, or still asks for events of."""

    def find(self, frame: Beacon | Event) -> tuple[Membership | None, int]:
        """Return the group of *frame*, and how many events of a former epoch are missed with it.

        The group is ``None`` if the frame is of a former epoch or another key, or there is no room.
        """
        group = frame.group
        found, lost = self.known.get(group), 0
        if found is not None and frame.epoch < found.epoch:
            self._counts["stale announcements"] += 1
            return None, 0
        if found is not None and found.key is not None and found.key != frame.key:
            self._counts["another key"] += 1
            return None, 0
        if found is None or frame.epoch > found.epoch or found.key != frame.key:
            if found is None and not self._has_room():
                self._counts["groups full"] += 1
                return None, 0
            begun = Membership(epoch=frame.epoch, key=frame.key)
            if found is not None:
                lost = len(found.missing)
                begun.missed, begun.expired = found.missed + lost, found.expired
            found = self.known[group] = begun
            self.active.pop(group, None)
        self.known.move_to_end(group)
        return found, lost

    def _has_room(self) -> bool:
        if len(self.known) < self._max_groups:
            return True
        for group, found in self.known.items():
            if not found.is_active:
                self._counts["forgotten"] += 1
                del self.known[group]
                return True
        return False

    def rest(self, group: GroupId) -> None:
        """Have nothing to do for *group* any more, if that is so."""
        if not self.known[group].is_active:
            self.active.pop(group, None)
