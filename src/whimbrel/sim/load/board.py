"""The board: a few numbers in a memory-mapped file, through which the generator's processes share their progress."""

from __future__ import annotations

import mmap
import secrets
import time
from pathlib import Path

__all__ = ["Board"]


class Board:
    """Numbers shared by several processes; each number has one writer."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._numbers = memoryview(self._memory).cast("q")

    @staticmethod
    def made(folder: Path) -> Path:
        """Create a board file with all numbers 0; return its path."""
        path = folder / f"board-{secrets.token_hex(4)}"
        path.write_bytes(bytes(32))
        return path

    def record_arrivals(self, count: int) -> None:
        """Record the number of arrivals so far, and the current time."""
        self._numbers[1] = time.monotonic_ns()
        self._numbers[0] = count

    @property
    def count(self) -> int:
        """Number of publications that have arrived."""
        return self._numbers[0]

    @property
    def last_ns(self) -> int:
        """Time of the last arrival, in monotonic nanoseconds."""
        return self._numbers[1]

    @property
    def is_ready(self) -> bool:
        """Whether all subscribers have subscribed."""
        return bool(self._numbers[2])

    def ready(self) -> None:
        """Record that all subscribers have subscribed."""
        self._numbers[2] = 1

    @property
    def is_over(self) -> bool:
        """Whether the subscribers may disconnect."""
        return bool(self._numbers[3])

    def over(self) -> None:
        """Record that the subscribers may disconnect."""
        self._numbers[3] = 1
