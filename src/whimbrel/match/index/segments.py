"""Segments: packed indexes with the handles and texts of their filters, and the packing of filters into a new one."""

from __future__ import annotations

import ctypes
import heapq
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from whimbrel.language.backends.python import VerdictFunction, compile_filter
from whimbrel.language.filters import parse_stored
from whimbrel.match.index.damage import DAMAGE, CorruptIndexError
from whimbrel.match.index.packed import PackedIndex, Workspace
from whimbrel.match.index.parts import Part
from whimbrel.match.index.plans import Harvest
from whimbrel.match.index.shape_groups import ShapeGroups
from whimbrel.match.index.texts import Texts
from whimbrel.model.attributes import Attributes

__all__ = ["Segment", "closure", "pack_filters", "pack_parts"]

_AT_ONCE = 8_192
"""Number of filters whose texts are copied together."""
_LARGE = 100_000
"""Number of filters above which the C library's free memory is returned to the system after packing."""


class Segment:
    """A packed index with the handles and texts of its filters; the packed index itself knows a filter by position."""

    def __init__(self, index: PackedIndex, handles: Any, texts: Texts) -> None:
        self.index, self.handles, self.texts = index, handles, texts
        self.buried = 0
        self._local = threading.local()

    @property
    def workspace(self) -> Workspace:
        """Working memory of the calling thread for matching."""
        found: Workspace | None = getattr(self._local, "workspace", None)
        if found is None:
            found = self._local.workspace = self.index.workspace()
        return found

    def position(self, handle: int) -> int | None:
        """Return the position of *handle* in this segment, or None."""
        at = int(np.searchsorted(self.handles, handle))
        return at if at < self.handles.size and self.handles[at] == handle else None

    def bury(self, position: int) -> bool:
        """Mark the filter at *position* as removed; return False if it was marked before."""
        was_alive = self.index.bury(position)
        self.buried += was_alive
        return was_alive

    def part(self) -> Part:
        """Return this segment's filters, with a copy of the marks of removed ones, to be packed into a new segment.

        The copy does not show filters that are removed later.
        """
        return Part(self.handles, **self.texts.arrays(), dead=self.index.dead[:-1].copy())

    def match(self, attributes: Attributes) -> list[int]:
        """Return the handles of the filters that are true of *attributes*."""
        certain, doubtful = self.workspace.match_one(attributes)
        found: list[int] = self.handles[certain].tolist() if certain.size else []
        if doubtful:
            asked = set(doubtful).difference(certain.tolist())
            found += [int(self.handles[position]) for position in asked if self.is_true(position, attributes)]
        return found

    def is_true(self, position: int, attributes: Attributes) -> bool:
        """Return whether the filter at *position* is true, by its compiled form; this decides doubtful matches."""
        return closure(self.texts[position])(attributes) is True

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, path: Path, *, extra: Mapping[str, Any] | None = None) -> None:
        """Write the segment to *path*, atomically; the *extra* arrays are stored with it."""
        own = {"handles": self.handles, "dead": self.index.dead, **self.texts.arrays()}
        self.index.save(path, extra=own | dict(extra or {}))

    @classmethod
    def map(cls, path: Path) -> tuple[Segment, dict[str, Any]]:
        """Map the file that ``save`` wrote; return the segment and the extra arrays.

        Later removals are marked in this process only.
        """
        packed, extra = PackedIndex.map(path)
        return cls._of(path, packed, extra), extra

    @classmethod
    def read(cls, path: Path) -> Segment:
        """Read the file that ``save`` wrote into private memory."""
        return cls._of(path, *PackedIndex.read(path))

    @classmethod
    def _of(cls, path: Path, packed: PackedIndex, extra: dict[str, Any]) -> Segment:
        try:
            handles, dead, texts = extra["handles"], extra["dead"], Texts.of(extra["text_bytes"], extra["text_start"])
        except DAMAGE as error:
            raise CorruptIndexError(str(path), f"not a segment ({error})") from error
        if handles.size != packed.handles or dead.size != packed.handles + 1 or len(texts) != packed.handles:
            counts = f"{handles.size} handles, {dead.size - 1} marks and {len(texts)} texts"
            raise CorruptIndexError(str(path), f"{counts} for {packed.handles} filters")
        if handles.dtype != np.int64 or (handles.size and handles[0] < 0) or (np.diff(handles) <= 0).any():
            raise CorruptIndexError(str(path), "its handles do not ascend")
        packed.dead[:-1] = dead[:-1] != 0
        packed.dead[-1] = packed.dead[:-1].any()
        segment = cls(packed, handles, texts)
        segment.buried = int(packed.dead[:-1].sum())
        return segment


def pack_filters(filters: Iterable[tuple[int, str]]) -> Segment:
    """Pack pairs of handle and filter text into a segment; handles must ascend."""
    found, texts = Harvest(), Texts()
    handles: list[int] = []
    groups, rest = ShapeGroups(found), iter(filters)
    while some := list(islice(rest, _AT_ONCE)):
        for position, (_, text) in enumerate(some, len(handles)):
            groups.add(position, text)
        handles += [handle for handle, _ in some]
        texts.extend(text for _, text in some)
    groups.end()
    segment = Segment(PackedIndex.from_harvest(found, len(handles)), np.array(handles, np.int64), texts)
    del found
    if len(handles) > _LARGE:
        _release_free_memory()
    return segment


def pack_parts(parts: Sequence[Part]) -> Segment:
    """Pack the filters of *parts* (flat arrays) that are not removed into one segment."""
    return pack_filters(heapq.merge(*(part.living() for part in parts)))


@lru_cache(maxsize=4_096)
def closure(text: str) -> VerdictFunction:
    """Compile a stored filter: return the function that evaluates it on attributes."""
    return compile_filter(parse_stored(text))


def _release_free_memory() -> None:
    """Return freed memory to the system, if the C library can (glibc): it keeps half an index's size after packing."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    trim(0)
