"""Touched rows: which rows of a view have changed, and what a store has to write of them.

Four views are written in small steps, and all of them use this: ``hold.view``, ``node.rows``,
``pipeline.unit.node_state`` and ``pipeline.stream.windows``.
Rule: a view has one table: for each kind of row, the function that returns the row as it is now. It is called with the
rest of the row's key and returns None where the row has gone, which is then dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import cbor2

__all__ = ["ChangedRows", "Encode", "Key", "RowTable", "TouchedRows", "changed_rows"]

Key: TypeAlias = tuple[str | int | None, ...]
"""The key of a row: its kind, a text, then whose it is: ``("notification", 17)``."""
ChangedRows: TypeAlias = tuple[dict[Key, bytes], set[Key]]
"""The rows that a store has to put, and the keys of those that it has to drop."""
RowTable: TypeAlias = Mapping[str, Callable[..., object | None]]
"""The function that returns a row from the rest of its key, by kind of row."""
Encode: TypeAlias = Callable[[Any], bytes]


def changed_rows(touched: Iterable[Key], table: RowTable, *, encode: Encode = cbor2.dumps) -> ChangedRows:
    """Return the rows of *touched* keys that exist, encoded, and the keys of those that do not."""
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
    """The keys of the rows that have changed since a store was last told; *table* returns the rows."""

    __slots__ = ("_encode", "_keys", "_table", "touch", "untouch")

    def __init__(self, table: RowTable, *, encode: Encode = cbor2.dumps) -> None:
        self._table, self._encode = table, encode
        self._keys: set[Key] = set()
        self.touch: Callable[[Key], None] = self._keys.add
        """Note that the row of a key has changed; the set's own method, because hot paths call it."""
        self.untouch: Callable[[Key], None] = self._keys.discard
        """Note that the store has no row of a key and needs none."""

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def touch_only(self, keys: Iterable[Key]) -> None:
        """Note that the rows of *keys* have changed, and forget all others."""
        self._keys.clear()
        self._keys.update(keys)

    def rows(self) -> ChangedRows:
        """Return the changes; they are returned again until ``clear`` is called."""
        return changed_rows(self._keys, self._table, encode=self._encode)

    def take(self) -> ChangedRows:
        """Return the changes, and forget them."""
        changes = self.rows()
        self._keys.clear()
        return changes

    def take_some(self, most: int) -> ChangedRows:
        """Return at most *most* of the changes, and forget these; a row may change again before the rest is taken.

        For a caller that has much to write and little time at once: what all calls return together, the later before
        the earlier, is what one ``take`` at the end would have returned.
        """
        keys = self._keys
        chosen = [keys.pop() for _ in range(min(most, len(keys)))]
        return changed_rows(chosen, self._table, encode=self._encode)

    def clear(self) -> None:
        """Forget the changes."""
        self._keys.clear()
