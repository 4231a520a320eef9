"""Held messages: the notifications that the hold stores, each once, whatever number of sessions waits for it."""

from __future__ import annotations

from collections.abc import Iterator

from whimbrel.broker.memory import Memory
from whimbrel.node.publication import LONG, KeptNotification

__all__ = ["HeldMessages"]


class HeldMessages:
    """Messages by seq; what they take is counted in *memory*."""

    __slots__ = ("_memory", "by_seq", "size_bytes")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.by_seq: dict[int, KeptNotification] = {}
        self.size_bytes = 0
        """How much memory they take, about."""

    def __len__(self) -> int:
        return len(self.by_seq)

    def __iter__(self) -> Iterator[int]:
        return iter(self.by_seq)

    def store(self, message: KeptNotification) -> None:
        """Hold a message that was just published."""
        if len(message.record) > LONG:
            message.keep()
        self._add(message)

    def restore(self, message: KeptNotification) -> None:
        """Hold a message that was read from a view."""
        message.keep()
        self._add(message)

    def _add(self, message: KeptNotification) -> None:
        self.by_seq[message.seq] = message
        size = message.size
        self.size_bytes += size
        self._memory.counted += size

    def forget(self, seq: int) -> bool:
        """Let go of a message; return whether it was held."""
        gone = self.by_seq.pop(seq, None)
        if gone is None:
            return False
        size = gone.size
        self.size_bytes -= size
        self._memory.counted -= size
        return True
