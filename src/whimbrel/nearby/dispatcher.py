"""The dispatcher: a queue of events to the application, earliest deadline first (4.3; T28).

Rule: the earliest deadline goes first, ties by arrival. An event whose deadline has passed is expired, never delivered.
Rule: when the queue is full, the last event in it, the one with the latest deadline, is dropped.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from operator import attrgetter

from whimbrel.model.attributes import Attributes
from whimbrel.nearby.frames.values import Event

__all__ = ["Dispatcher", "Waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An event that waits for the application."""

    event: Event
    subscriptions: tuple[str, ...]
    attributes: Attributes
    dies_at: int
    arrived_at: int
    order: int
    is_age_known: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key of the queue: deadline, then arrival."""
        return self.dies_at, self.order


class Dispatcher:
    """The queue of events; with *by_deadline* off it is first in, first out, for comparison."""

    def __init__(self, *, max_waiting: int, by_deadline: bool = True) -> None:
        self._max_waiting = max_waiting
        self._rank = attrgetter("rank" if by_deadline else "order")
        self._line: list[Waiting] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._line)

    def add(
        self,
        event: Event,
        *,
        subscriptions: tuple[str, ...],
        attributes: Attributes,
        dies_at: int,
        now: int,
        is_age_known: bool = False,
    ) -> Waiting | None:
        """Queue *event*; return the event that was dropped because the queue was full, or None."""
        self._order += 1
        waiting = Waiting(
            event=event,
            subscriptions=subscriptions,
            attributes=attributes,
            dies_at=dies_at,
            arrived_at=now,
            order=self._order,
            is_age_known=is_age_known,
        )
        insort(self._line, waiting, key=self._rank)
        return self._line.pop() if len(self._line) > self._max_waiting else None

    def take(self, *, now: int) -> tuple[Waiting | None, list[Waiting]]:
        """Remove and return the next event to deliver, and those before it whose deadline has passed."""
        for index, waiting in enumerate(self._line):
            if now < waiting.dies_at:
                expired = self._line[:index]
                del self._line[: index + 1]
                return waiting, expired
        expired, self._line = self._line, []
        return None, expired
