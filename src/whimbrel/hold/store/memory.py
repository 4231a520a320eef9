"""Store in memory, for the simulator, the pipeline and tests, which replay the log from its beginning."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from whimbrel.hold.store.interface import NOTHING_APPLIED, Key, decode_key, encode_key
from whimbrel.model.bounds import INT64_MAX, whole

__all__ = ["MemoryStore"]


class MemoryStore:
    """Store in a dictionary from encoded keys to rows; encoded keys sort as in other stores."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, bytes], bytes] = {}
        self._applied = NOTHING_APPLIED

    @property
    def applied(self) -> int:
        """Seq of the last fact that the rows include; ``NOTHING_APPLIED`` if there is none."""
        return self._applied

    def rows(self) -> Iterator[tuple[Key, bytes]]:
        """Yield all rows in order of their keys."""
        for encoded, value in sorted(self._rows.items()):
            yield decode_key(*encoded), value

    def get(self, key: Key) -> bytes | None:
        """Return the row under *key*, or None."""
        return self._rows.get(encode_key(key))

    def commit(self, applied: int, put: Mapping[Key, bytes], drop: Collection[Key]) -> None:
        """Delete the rows under *drop*, write *put* and set ``applied``, atomically: an error changes nothing."""
        whole("applied", applied, self._applied, INT64_MAX)
        # Encode everything first, because this may fail and must then change nothing.
        dropped = list(map(encode_key, drop))
        added = {encode_key(key): bytes(value) for key, value in put.items()}
        for encoded in dropped:
            self._rows.pop(encoded, None)
        self._rows.update(added)
        self._applied = applied

    def replace(self, applied: int, rows: Mapping[Key, bytes]) -> None:
        """Replace all rows by *rows* and set ``applied``, atomically: an error changes nothing."""
        whole("applied", applied, self._applied, INT64_MAX)
        self._rows = {encode_key(key): bytes(value) for key, value in rows.items()}
        self._applied = applied

    def close(self) -> None:
        """Close the store."""
