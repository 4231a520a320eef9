"""Order: what is ready for a device leaves in the order in which it was due, whatever finished first.

Rule: a device waits for its own transforms only, never for another's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["InOrder", "Turn"]

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Turn(Generic[T]):
    """The place of one hand-over in its device's order."""

    device: Hashable
    result: T | None = None
    is_ready: bool = False


class InOrder(Generic[T]):
    """The hand-overs that are due to each device, in order."""

    def __init__(self) -> None:
        self._due: dict[Hashable, deque[Turn[T]]] = {}

    def enter(self, device: Hashable) -> Turn[T]:
        """Return the next turn of *device*."""
        turn: Turn[T] = Turn(device)
        self._due.setdefault(device, deque()).append(turn)
        return turn

    def is_waiting(self, device: Hashable) -> bool:
        """Tell whether anything is due to *device*; if not, what comes next need not enter."""
        return device in self._due

    def finish(self, turn: Turn[T], result: T) -> list[T]:
        """Say what came of *turn*; return what may leave now, in order: nothing if the device has left."""
        turn.result, turn.is_ready = result, True
        due = self._due.get(turn.device)
        released: list[T] = []
        while due and due[0].is_ready:
            released.append(due.popleft().result)  # type: ignore[arg-type]  # it is ready
        if due is not None and not due:
            del self._due[turn.device]
        return released

    def leave(self, device: Hashable) -> None:
        """Forget what is due to *device*: its link is gone, and the hold has it still."""
        self._due.pop(device, None)
