"""The board: a few numbers in a file that the processes of a generator share."""

from __future__ import annotations

import mmap
import secrets
import time
from pathlib import Path

__all__ = ["Board"]


class Board:
    """Numbers that several processes see, each written by one of them."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._numbers = memoryview(self._memory).cast("q")

    @staticmethod
    def made(folder: Path) -> Path:
        """Return the path of a new one, all zero."""
        path = folder / f"board-{secrets.token_hex(4)}"
        path.write_bytes(bytes(32))
        return path

    def arrived(self, count: int) -> None:
        """Note how many came, and that it was now."""
        self._numbers[1] = time.monotonic_ns()
        self._numbers[0] = count

    @property
    def count(self) -> int:
        """How many have arrived."""
        return self._numbers[0]

    @property
    def last_ns(self) -> int:
        """When the last arrived."""
        return self._numbers[1]

    @property
    def is_ready(self) -> bool:
        """Whether all subscribers have subscribed."""
        return bool(self._numbers[2])

    def ready(self) -> None:
        """Say so."""
        self._numbers[2] = 1

    @property
    def is_over(self) -> bool:
        """Whether subscribers may go."""
        return bool(self._numbers[3])

    def over(self) -> None:
        """Say so."""
        self._numbers[3] = 1
