"""Cache: the results of transforms, so that equal work is done once: two hundred doctors, one compression.

Rule: bounded in bytes; the least recently used results go first, and one that is too large is not kept.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["ResultCache"]


class ResultCache:
    """Bodies by the key of the work that made them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self.bytes = 0

    def get(self, key: bytes) -> bytes | None:
        """Return the result of equal work, if it is still known."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key]

    def put(self, key: bytes, result: bytes) -> None:
        """Keep *result*."""
        if key in self._kept or len(result) > self._max_bytes:
            return
        self._kept[key] = result
        self.bytes += len(result)
        while self.bytes > self._max_bytes:
            self.bytes -= len(self._kept.popitem(last=False)[1])
