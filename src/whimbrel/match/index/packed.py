"""A packed index: an immutable set of filters in flat arrays, which the kernel matches and many processes can map."""

from __future__ import annotations

import json
import os
import secrets
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from whimbrel.errors import InvalidValueError
from whimbrel.language.ast import NumberFunction, PatternFunction, TextFunction
from whimbrel.language.pattern_cost import UNBOUNDED
from whimbrel.match.events.encoder import Encoder
from whimbrel.match.index.damage import DAMAGE, CorruptIndexError
from whimbrel.match.index.integrity import fault
from whimbrel.match.index.packing import pack
from whimbrel.match.index.plans import Dictionary, Harvest, harvest
from whimbrel.match.kernels.addresses import new_table, write_addresses
from whimbrel.match.kernels.arrays import Events, Matches, PackedArrays, Scratch
from whimbrel.match.kernels.matching import match_event, match_events
from whimbrel.model.attributes import Attributes, Int64
from whimbrel.model.bounds import INT32_MAX
from whimbrel.model.bounds import whole as whole_number

__all__ = ["PackedIndex", "Workspace"]

_MAGIC = b"whimbrel packed index 3\n"
_ALIGNMENT = 64
_DTYPES = tuple(map(np.dtype, (np.uint8, np.int32, np.int64, np.float64)))
_DERIVATIONS = frozenset(("size", *(function.value for function in (*TextFunction, *NumberFunction))))


class PackedIndex:
    """Filters by handle (number), packed once; ``kernels.matching`` explains how they are matched."""

    def __init__(
        self,
        arrays: PackedArrays,
        columns: dict[tuple[str, tuple[str, ...]], int],
        patterns: dict[tuple[int, str, str, int], int],
        handles: int,
    ) -> None:
        self.arrays = arrays
        self.encoder = Encoder(columns, patterns, seed=int(arrays.seed[0]))
        self._columns = columns
        self._patterns = patterns
        self.handles = handles
        """One more than the largest handle."""
        self.widest = int(arrays.lists[1::4].max(initial=0))
        """Number of clauses in the longest list that one anchor activates."""
        self.dead = np.zeros(handles + 1, np.uint8)
        """1 for each removed handle, and in the last element if any was removed; nothing else in the index changes."""

    @classmethod
    def build(cls, filters: Iterable[tuple[int, str]], *, seed: int | None = None) -> PackedIndex:
        """Pack (handle, text) pairs; raise ``FilterError`` for the first text that is not a filter."""
        found = Harvest()
        handles = 0
        for handle, text in filters:
            harvest(found, handle, text)
            handles = max(handles, handle + 1)
        return cls.from_harvest(found, handles, seed=seed)

    @classmethod
    def from_harvest(cls, found: Harvest, handles: int, *, seed: int | None = None) -> PackedIndex:
        """Return an index of the filters whose clauses *found* has.

        *seed* seeds its hash tables, at random by default.
        """
        if seed is None:
            seed = secrets.randbits(60)  # strangers must not be able to predict the hash tables
        arrays = pack(found, seed=seed)
        dictionary: Dictionary = found.dictionary
        return cls(arrays, dictionary.columns, dictionary.patterns, handles)

    def bury(self, handle: int) -> bool:
        """Mark the filter of *handle* as removed; return False if it was marked before."""
        was_in = not self.dead[handle]
        self.dead[handle] = 1
        self.dead[-1] = 1
        return bool(was_in)

    def workspace(self) -> Workspace:
        """Return working memory for one thread."""
        return Workspace(self)

    @property
    def size_bytes(self) -> int:
        """Memory of the arrays, or their part of the mapped file, in bytes."""
        return sum(array.nbytes for array in self.arrays)

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, path: Path, *, extra: dict[str, Any] | None = None) -> None:
        """Write the index to *path*, atomically; the *extra* arrays are stored with it."""
        arrays = dict(self.arrays._asdict())
        arrays |= {f"extra.{name}": array for name, array in (extra or {}).items()}
        layout: dict[str, Any] = {}
        at = checksum = 0
        for name, array in arrays.items():
            layout[name] = {"at": at, "dtype": array.dtype.str, "size": int(array.size)}
            at += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
            checksum = zlib.crc32(
                bytes(-array.nbytes % _ALIGNMENT), zlib.crc32(np.ascontiguousarray(array).data, checksum)
            )
        header = json.dumps(
            {
                "arrays": layout,
                "bytes": at,
                "crc32": checksum,
                "handles": self.handles,
                "columns": [[name, list(derivation)] for name, derivation in self._columns],
                "patterns": [list(key) for key in self._patterns],
            }
        ).encode()
        head = _MAGIC + len(header).to_bytes(8, "little") + zlib.crc32(header).to_bytes(8, "little") + header
        head += b"\0" * (-len(head) % _ALIGNMENT)
        scratch = path.with_name(path.name + ".part")
        try:
            with scratch.open("wb") as out:
                out.write(head)
                for array in arrays.values():
                    out.write(np.ascontiguousarray(array).data)
                    out.write(b"\0" * (-array.nbytes % _ALIGNMENT))
                out.flush()
                os.fsync(out.fileno())  # the file must be on disk before its name is visible
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)  # a full disk must not keep an unfinished file

    @classmethod
    def map(cls, path: Path) -> tuple[PackedIndex, dict[str, Any]]:
        """Map the index at *path* into memory, with its extra arrays; processes that map one file share one copy."""
        return cls._from_bytes(path, np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8))

    @classmethod
    def read(cls, path: Path) -> tuple[PackedIndex, dict[str, Any]]:
        """Read the index at *path* into private memory, so that no match waits for the disk."""
        whole = np.empty(path.stat().st_size, np.uint8)
        with path.open("rb", buffering=0) as file:
            at = 0
            while count := file.readinto(whole.data[at:]):
                at += count
        return cls._from_bytes(path, whole[:at])

    @classmethod
    def _from_bytes(cls, path: Path, whole: Any) -> tuple[PackedIndex, dict[str, Any]]:
        try:
            return cls._from_whole(path, whole)
        except DAMAGE as error:
            raise CorruptIndexError(str(path), f"not a packed index ({error})") from error

    @classmethod
    def _from_whole(cls, path: Path, whole: Any) -> tuple[PackedIndex, dict[str, Any]]:
        start = len(_MAGIC) + 16
        if whole[: len(_MAGIC)].tobytes() != _MAGIC:
            raise CorruptIndexError(str(path), "the first bytes are not those of a packed index")
        length, header_checksum = whole[len(_MAGIC) : start].view("<u8").tolist()
        text = whole[start : start + length].tobytes()
        if zlib.crc32(text) != header_checksum:
            raise CorruptIndexError(str(path), "the checksum of its header is wrong")
        header = json.loads(text)
        begin = start + length
        begin += -begin % _ALIGNMENT
        if whole.size != begin + header["bytes"]:
            raise CorruptIndexError(str(path), f"{whole.size} bytes, expected {begin + header['bytes']}")
        if zlib.crc32(whole[begin:]) != header["crc32"]:
            raise CorruptIndexError(str(path), "its checksum is wrong")
        arrays = {name: _array(name, whole[begin:], place) for name, place in header["arrays"].items()}
        extra = {name.removeprefix("extra."): arrays.pop(name) for name in list(arrays) if name.startswith("extra.")}
        packed = PackedArrays(**arrays)
        columns = {_column(*given): number for number, given in enumerate(header["columns"])}
        patterns = {_pattern(len(columns), *given): number for number, given in enumerate(header["patterns"])}
        handles = whole_number("handles", header["handles"], 0, INT32_MAX)
        if len(columns) < len(header["columns"]) or len(patterns) < len(header["patterns"]):
            raise CorruptIndexError(str(path), "it has a column or a pattern twice")
        found = fault(packed, columns=len(columns), patterns=len(patterns), handles=handles)
        if found is not None:  # the kernel trusts every number of an index
            raise CorruptIndexError(str(path), found)
        return cls(packed, columns, patterns, handles), extra


def _array(name: str, data: Any, place: dict[str, Any]) -> Any:
    """Return the array that *place* (offset, type and size) describes in the file's *data*, after a check of these."""
    dtype = np.dtype(place["dtype"])
    if dtype not in _DTYPES:
        raise InvalidValueError(f"type of {name}", place["dtype"], ", ".join(each.str for each in _DTYPES))
    at = whole_number(f"place of {name}", place["at"], 0, data.size)
    size = whole_number(f"size of {name}", place["size"], 0, (data.size - at) // dtype.itemsize)
    if at % _ALIGNMENT:
        raise InvalidValueError(f"place of {name}", at, f"a multiple of {_ALIGNMENT}")
    return data[at : at + size * dtype.itemsize].view(np.ndarray).view(dtype)


def _column(name: str, derivation: list[str]) -> tuple[str, tuple[str, ...]]:
    if not isinstance(name, str) or not _DERIVATIONS.issuperset(derivation):
        raise InvalidValueError("column", [name, derivation], "a name and functions")
    return name, tuple(derivation)


def _pattern(columns: int, column: int, function: str, pattern: str, longest: int) -> tuple[int, str, str, int]:
    whole_number("column of a pattern", column, 0, columns - 1)
    if not isinstance(pattern, str):
        raise InvalidValueError("pattern", pattern, "a string")
    whole_number("bytes that a pattern is run on", longest, 0, UNBOUNDED)
    return column, PatternFunction(function).value, pattern, longest


class Workspace:
    """Working memory of one thread for matching against an index, with room for one event."""

    _ITEMS, _TEXT, _ROOM, _SPANS = 256, 65_536, 1_024, 1_024

    def __init__(self, index: PackedIndex) -> None:
        self._index = index
        a = index.arrays
        columns = index.encoder.width
        self._scratch = Scratch(
            epoch=np.zeros(1, np.int64),
            buckets=np.zeros(columns, np.int64),
            slots=np.zeros(4 * columns, np.int64),
            pattern_epoch=np.zeros(a.pattern_anchor.size + 1, np.int64),
            seen=np.zeros(index.handles + 1, np.int64),
            active=np.zeros(a.lists.size // 4 + 1, np.int32),
            symbols=np.zeros(columns, np.int32),
            words=np.zeros((index.widest + 63) // 64 + 1, np.int64),
            spans=np.zeros(index.widest + self._SPANS, np.int64),
        )
        self._table = new_table()
        write_addresses(self._table, {**a._asdict(), **self._scratch._asdict(), "dead": index.dead})
        self._one = self._room_for_one()
        self._found = _room_for(self._ROOM)
        self._one_table = self._table.copy()
        write_addresses(self._one_table, {**self._one._asdict(), **self._found._asdict()})
        self._views: tuple[Any, ...] = tuple(memoryview(array) for array in self._one[:8])

    def _room_for_one(self) -> Events:
        n = self._ITEMS
        return Events(
            row_start=np.zeros(2, np.int64),
            column=np.zeros(n, np.int32),
            kind=np.zeros(n, np.uint8),
            integer=np.zeros(n, np.int64),
            real=np.zeros(n, np.float64),
            text_start=np.zeros(n, np.int64),
            text_end=np.zeros(n, np.int64),
            text=np.zeros(self._TEXT, np.uint8),
            given_start=np.zeros(0, np.int64),
            given=np.zeros(0, np.int32),
        )

    def match_one(self, attributes: Attributes) -> tuple[Any, list[int]]:
        """Return the handles that certainly match, and the handles that the compiled filters must decide."""
        if not self._write_one(attributes):
            _, handles, doubts = self.match(self._index.encoder.rows([attributes]))
        else:
            row, n = match_event(self._one_table)
            if row == 0:  # the event has more matches than fit into the buffer
                _, handles, doubts = self.match(self._index.encoder.rows([attributes]))
            else:
                handles, doubts = self._found.handles[:n], self._found.doubts[:n]
        if b"\1" in doubts.tobytes():  # half the time of doubts.any()
            return handles[doubts == 0], handles[doubts == 1].tolist()
        return handles, []

    def _write_one(self, attributes: Attributes) -> bool:
        """Write an event straight into this workspace; return False if ``Encoder.rows`` must encode the event instead.

        That is so if the event is too large, or if filters need values derived from an attribute or patterns that RE2
        decides.
        """
        encoder = self._index.encoder
        if encoder.decided:
            return False
        row_start, column, kind, integer, real, text_start, text_end, text = self._views
        plain = encoder.plain
        n = used = 0
        for name, value in attributes.items():
            number = plain.get(name)
            if number is None:
                if name in encoder.columns:
                    return False  # a column is derived from this attribute
                continue
            if n == self._ITEMS:
                return False
            column[n] = number
            which = type(value)
            if which is int:
                kind[n] = 1
                integer[n] = value
            elif which is float:
                kind[n] = 3
                real[n] = value
            elif which is str:
                data = value.encode()  # type: ignore[union-attr]  # its class was just looked at
                kind[n] = 4
                if used + len(data) > self._TEXT:
                    return False
                text[used : used + len(data)] = data
                text_start[n] = used
                used += len(data)
                text_end[n] = used
            elif which is Int64:
                kind[n] = 2
                integer[n] = value
            else:
                kind[n] = 5
            n += 1
        row_start[1] = n
        return True

    def match(self, events: Events) -> tuple[Any, Any, Any]:
        """Match many events; return rows, handles, and per match whether the compiled filter must decide it."""
        table = self._table.copy()
        write_addresses(table, events._asdict())
        rows = events.row_start.size - 1
        room = max(64, 8 * rows)
        row = 0
        parts: list[Matches] = []
        while row < rows:
            found = _room_for(room)
            write_addresses(table, found._asdict())
            row, n = match_events(table, row)
            parts.append(Matches(*(array[:n] for array in found)))
            room *= 2
        if len(parts) == 1:
            return parts[0]
        return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True)) if parts else tuple(_room_for(0))  # type: ignore[return-value]  # three arrays


def _room_for(matches: int) -> Matches:
    return Matches(np.empty(matches, np.int32), np.empty(matches, np.int32), np.empty(matches, np.uint8))
