"""The groups that a consumer knows, and the active ones among them: bounded, whatever strangers announce.

Rule: a group is identified by producer and subject. A later epoch starts a new membership; an earlier one is stale. A
group is bound to its first key; a signed group replaces an unsigned one.
Rule: when the table is full, the inactive group that was not heard for the longest time is removed; if all are active,
the new one is refused.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from whimbrel.nearby.frames.values import Beacon, Event, GroupId
from whimbrel.nearby.group.membership import Membership

__all__ = ["MembershipTable"]


class MembershipTable:
    """Table of groups, in the order in which they were last heard."""

    def __init__(self, *, max_groups: int, counts: Counter[str]) -> None:
        self._max_groups, self._counts = max_groups, counts
        self.known: OrderedDict[GroupId, Membership] = OrderedDict()
        self.active: dict[GroupId, Membership] = {}
        """Groups of which this node is a member, or from which it still requests events."""

    def find(self, frame: Beacon | Event) -> tuple[Membership | None, int]:
        """Return the membership of the group of *frame*, and the number of events of a former epoch that are missed.

        The membership is ``None`` if the frame is of a former epoch or another key, or the table is full.
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
        """Remove *group* from the active ones if it is not active any more."""
        if not self.known[group].is_active:
            self.active.pop(group, None)
