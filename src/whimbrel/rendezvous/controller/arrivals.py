"""Arrivals: events that wait to be processed, first in, first out (Huang, 4.1.1).

Rule: the head is always the oldest by ``seq``. With two queues, one for each kind (5.4.2), the heads of both are
looked up against the open events at the same time, when the older of them is due; acting on them stays in the order of
arrival. So no outcome changes: the candidates that the younger head found early are kept up to date by
``add_candidate``, and filtered when its turn comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from whimbrel.rendezvous.controller.openings import Record, Stage, is_pair
from whimbrel.rendezvous.events import Kind

__all__ = ["ArrivalQueue"]


class ArrivalQueue:
    """Events that wait to be processed, in one queue or in one per kind."""

    def __init__(self, look_up: Callable[[Record], list[Record]], *, has_two: bool) -> None:
        self._look_up = look_up
        self._publications: deque[Record] = deque()
        self._subscriptions: deque[Record] = deque() if has_two else self._publications
        self._has_two = has_two
        self._early: dict[Kind, tuple[Record, list[Record]]] = {}
        self.look_ups = 0
        """Number of look-ups of the open events; both heads at once count as one."""

    def push(self, record: Record) -> None:
        """Append *record*."""
        self._queue(record.kind).append(record)

    def head(self) -> tuple[Record, list[Record]] | None:
        """Return the oldest waiting event, and the open events that match it before proofs are checked."""
        if not self._has_two:
            only = self._first(Kind.PUBLICATION)
            self.look_ups += only is not None
            return None if only is None else (only, self._look_up(only))
        heads = [found for found in map(self._first, Kind) if found is not None]
        if not heads:
            return None
        head = min(heads, key=lambda each: each.seq)
        if not self._is_looked_up(head):
            self.look_ups += 1
            for each in heads:
                if not self._is_looked_up(each):
                    self._early[each.kind] = each, self._look_up(each)
        early = [each for each in self._early[head.kind][1] if each.stage is Stage.OPEN]
        return head, sorted(early, key=lambda each: each.seq)

    def _is_looked_up(self, record: Record) -> bool:
        return self._early.get(record.kind, (None,))[0] is record

    def add_candidate(self, record: Record) -> None:
        """Add *record*, which has just been opened, to the early candidates of a head of the other kind."""
        for kind, (head, found) in self._early.items():
            if kind is not record.kind and record not in found and is_pair(head, record):
                found.append(record)

    def pop(self, record: Record) -> None:
        """Remove *record*, which is the head of its queue."""
        popped = self._queue(record.kind).popleft()
        assert popped is record
        self._early.pop(record.kind, None)

    @property
    def is_waiting(self) -> bool:
        """Whether a queue has an entry; its event may have been removed meanwhile."""
        return bool(self._publications or self._subscriptions)

    def __len__(self) -> int:
        return len(self._publications) + len(self._subscriptions) * self._has_two

    def _queue(self, kind: Kind) -> deque[Record]:
        return self._publications if kind is Kind.PUBLICATION else self._subscriptions

    def _first(self, kind: Kind) -> Record | None:
        queue = self._queue(kind)
        while queue and queue[0].stage is not Stage.QUEUED:
            queue.popleft()  # removed or flushed while it waited
        return queue[0] if queue else None
