"""Touched rows: tracks which rows of a saved state (*view*) have changed, and builds them for a store to write.

Four states are saved in small steps, and all of them use this: ``hold.view``, ``node.rows``,
``pipeline.fold.contact_fold`` and ``pipeline.stream.windows``.
Rule: each state has one table of functions, one for each kind of row, that build the current row. The arguments are the
parts of the row's key after the kind. The result is None if the row no longer exists; then the store deletes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import cbor2

__all__ = ["ChangedRows", "Encode", "Key", "RowTable", "TouchedRows", "changed_rows"]

Key: TypeAlias = tuple[str | int | None, ...]
"""Key of a row: its kind, then names or numbers that identify it: ``("notification", 17)``."""
ChangedRows: TypeAlias = tuple[dict[Key, bytes], set[Key]]
"""Encoded rows that a store must write, and the keys of rows that it must delete."""
RowTable: TypeAlias = Mapping[str, Callable[..., object | None]]
"""For each kind of row, the function that builds a row from the other parts of its key."""
Encode: TypeAlias = Callable[[Any], bytes]


def changed_rows(touched: Iterable[Key], table: RowTable, *, encode: Encode = cbor2.dumps) -> ChangedRows:
    """Return the encoded rows of the *touched* keys and, if a row no longer exists, its key for the store to delete."""
    put: dict[Key, bytes] = {}
    drop: set[Key] = set()
    for key in touched:
        row = table[key[0]](*key[1:])  # type: ignore[index]  # the kind of a row is a text
        if row is None:
            drop.add(key)
        else:
            put[key] = encode(row)
    return put, drop


class TouchedRows:
    """Keys of the rows that have changed since they were last written; *table* builds the rows."""

    __slots__ = ("_encode", "_keys", "_table", "touch", "untouch")

    def __init__(self, table: RowTable, *, encode: Encode = cbor2.dumps) -> None:
        self._table, self._encode = table, encode
        self._keys: set[Key] = set()
        self.touch: Callable[[Key], None] = self._keys.add
        """Mark the row of a key as changed (the set's own method, because it is called very often)."""
        self.untouch: Callable[[Key], None] = self._keys.discard
        """Remove the mark of a key, for a row that came and went since the last write."""

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def touch_only(self, keys: Iterable[Key]) -> None:
        """Mark the rows of *keys* as changed, and no others."""
        self._keys.clear()
        self._keys.update(keys)

    def rows(self) -> ChangedRows:
        """Return the changed rows and the keys of deleted ones, without removing their marks."""
        return changed_rows(self._keys, self._table, encode=self._encode)

    def take(self) -> ChangedRows:
        """Return the changed rows and the keys of deleted ones, and remove all marks."""
        changes = self.rows()
        self._keys.clear()
        return changes

    def take_some(self, most: int) -> ChangedRows:
        """Return at most *most* of the changed rows (and keys of deleted ones), and remove their marks.

        For a caller that must write many rows in short steps. A row may change again between two calls. If later
        results overwrite earlier ones, all calls together give the same rows as one ``take`` at the end.
        """
        keys = self._keys
        chosen = [keys.pop() for _ in range(min(most, len(keys)))]
        return changed_rows(chosen, self._table, encode=self._encode)

    def clear(self) -> None:
        """Remove all marks."""
        self._keys.clear()
