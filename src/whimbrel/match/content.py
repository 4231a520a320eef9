"""The content index: filters by the million, matched in microseconds, changed at any time.

Segments are packed and immutable; what is new goes into a small delta, what is removed is marked dead. When the delta
has grown it is packed into a segment of its own, small segments are merged, and now and then everything is: all of it
beside the matching, which goes on with what was there until the new segment takes over in one assignment.

Rule: a handle is in exactly one place, delta or segment.
Rule: ``match`` never waits for a repacking; only changes take the lock, and hold it briefly.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from whimbrel.language.backends.python import VerdictFunction, compile_filter
from whimbrel.language.filters import parse
from whimbrel.match.delta import Delta
from whimbrel.match.events import Encoder, joined
from whimbrel.match.kernels import Events
from whimbrel.match.memory import give_back
from whimbrel.match.packed import PackedIndex, Workspace
from whimbrel.match.plans import Harvest, harvest
from whimbrel.match.texts import Texts
from whimbrel.model.attributes import Attributes

__all__ = ["Beside", "ContentIndex"]

_DELTA = 1_024
"""Filters in the delta that make a repacking due."""
_SEGMENTS = 4
"""Small segments that are merged into one."""
_LARGE = 100_000
"""A segment of more filters than this is worth asking the C library to give back what packing it took."""
_SHARE = 4
"""Everything is merged once the small segments, or the dead, are this part of the large one."""


class Beside(NamedTuple):
    """Attributes that rows have beside their own: a few known ones, and which of them each row has (-1: none)."""

    known: Sequence[Attributes]
    chosen: Any


class _Segment:
    """A packed index with the handles and texts of its filters; its own numbers are positions in these."""

    def __init__(self, index: PackedIndex, handles: Any, texts: Texts) -> None:
        self.index, self.handles, self.texts = index, handles, texts
        self.buried = 0
        self._local = threading.local()

    @property
    def workspace(self) -> Workspace:
        """This thread's working memory."""
        found: Workspace | None = getattr(self._local, "workspace", None)
        if found is None:
            found = self._local.workspace = self.index.workspace()
        return found

    def position(self, handle: int) -> int | None:
        """Return where *handle* stands here, or None."""
        at = int(np.searchsorted(self.handles, handle))
        return at if at < self.handles.size and self.handles[at] == handle else None

    def bury(self, position: int) -> bool:
        """Mark a filter dead; return whether it was alive."""
        was_alive = self.index.bury(position)
        self.buried += was_alive
        return was_alive

    def living(self) -> Iterator[tuple[int, str]]:
        """Yield what is not dead."""
        for position, handle in enumerate(self.handles.tolist()):
            if not self.index.dead[position]:
                yield handle, self.texts[position]


def _packed(filters: Iterable[tuple[int, str]]) -> _Segment:
    """Pack (handle, text) pairs, handles ascending."""
    found, handles, texts = Harvest(), [], Texts()
    for position, (handle, text) in enumerate(filters):
        harvest(found, position, text)
        handles.append(handle)
        texts.append(text)
    segment = _Segment(PackedIndex.from_harvest(found, len(handles)), np.array(handles, np.int64), texts)
    del found
    if len(handles) > _LARGE:
        give_back()
    return segment


@dataclass(frozen=True, slots=True)
class _State:
    """What a match looks at, replaced as a whole; of the deltas only the last still grows."""

    segments: tuple[_Segment, ...]
    deltas: tuple[Delta, ...]


class ContentIndex:
    """Filters under handles.

    *run* starts a repacking beside the matching, e.g. in a thread; without it nothing is repacked until ``repack``.
    """

    def __init__(self, *, run: Callable[[Callable[[], None]], object] | None = None) -> None:
        self._state = _State((), (Delta(),))
        self._lock = threading.Lock()
        self._repacking = threading.Lock()
        self._removed: set[int] | None = None
        """What was removed since the repacking under way began."""
        self._run = run
        self._is_started = False
        """Whether a repacking was started and has not ended."""

    @classmethod
    def load(
        cls, filters: Iterable[tuple[int, str]], *, run: Callable[[Callable[[], None]], object] | None = None
    ) -> ContentIndex:
        """Pack many filters at once; handles ascending."""
        index = cls(run=run)
        index._state = _State((_packed(filters),), (Delta(),))
        return index

    # -- changes -----------------------------------------------------------------------------------------------------

    def add(self, handle: int, text: str) -> None:
        """Add a filter under a handle that is not in use; raise ``FilterError`` if *text* is none."""
        with self._lock:
            delta = self._state.deltas[-1]
            delta.add(handle, text)
            is_due = len(delta) >= _DELTA and self._run is not None and not self._is_started
            self._is_started |= is_due
        if is_due and self._run is not None:
            self._run(self._repack_once)

    def _repack_once(self) -> None:
        try:
            self.repack()
        finally:
            with self._lock:
                self._is_started = False

    def remove(self, handle: int) -> bool:
        """Remove a filter; return whether there was one."""
        with self._lock:
            if self._removed is not None:
                self._removed.add(handle)
            if any(delta.remove(handle) for delta in self._state.deltas):
                return True
            for segment in self._state.segments:
                position = segment.position(handle)
                if position is not None and segment.bury(position):
                    return True
        return False

    def __len__(self) -> int:
        state = self._state
        packed = sum(segment.handles.size - segment.buried for segment in state.segments)
        return int(packed) + sum(map(len, state.deltas))

    def text(self, handle: int) -> str | None:
        """Return the filter under *handle*."""
        state = self._state
        for delta in state.deltas:
            if handle in delta.texts:
                return delta.texts[handle]
        for segment in state.segments:
            position = segment.position(handle)
            if position is not None and not segment.index.dead[position]:
                return segment.texts[position]
        return None

    # -- repacking ---------------------------------------------------------------------------------------------------

    def repack(self, *, whole: bool = False) -> None:
        """Pack the delta, merging segments where that is due (all of them if *whole*); one at a time."""
        with self._repacking:
            with self._lock:  # from here on changes go to a new delta
                state = self._state
                state = self._state = _State(state.segments, (*state.deltas, Delta()))
                self._removed = set()
            frozen = state.deltas[:-1]
            merged = state.segments if whole else _to_merge(state.segments, sum(map(len, frozen)))
            sources = [segment.living() for segment in merged]
            sources += [iter(sorted(delta.texts.items())) for delta in frozen]
            try:
                fresh = _packed(heapq.merge(*sources))
            except BaseException:  # no memory, say: all that was there still matches, and the next try takes it along
                with self._lock:
                    self._removed = None
                raise
            with self._lock:
                for handle in self._removed:
                    position = fresh.position(handle)
                    if position is not None:
                        fresh.bury(position)
                self._removed = None
                kept = tuple(segment for segment in self._state.segments if segment not in merged)
                segments = (*kept, fresh) if fresh.handles.size else kept
                self._state = _State(segments, self._state.deltas[len(frozen) :])

    # -- matching ----------------------------------------------------------------------------------------------------

    def match(self, attributes: Attributes) -> list[int]:
        """Return the handles of all filters that are true of *attributes*."""
        state = self._state
        found: list[int] = []
        for segment in state.segments:
            certain, doubtful = segment.workspace.match_one(attributes)
            for position in set(doubtful).difference(certain):
                if _closure(segment.texts[position])(attributes) is True:
                    certain.append(position)
            if certain:
                found += (
                    segment.handles[certain].tolist()
                    if len(certain) > 8
                    else [int(segment.handles[position]) for position in certain]
                )
        for delta in state.deltas:
            found += delta.match(attributes)
        return found

    def match_rows(self, rows: Sequence[Attributes], *, beside: Beside | None = None) -> tuple[Any, Any]:
        """Match many; return row numbers and handles, rows ascending."""
        return self._match_many(lambda encoder: encoder.rows(rows), rows, beside)

    def match_arrow(self, column: Any, *, beside: Beside | None = None) -> tuple[Any, Any]:
        """Match the rows of an Arrow array of the log's attributes column; return row numbers and handles."""
        return self._match_many(lambda encoder: encoder.arrow(column), _ArrowRows(column), beside)

    def _match_many(
        self, encode: Callable[[Encoder], Events], rows: Sequence[Attributes], beside: Beside | None
    ) -> tuple[Any, Any]:
        state = self._state
        if beside is not None:
            rows = _Joined(rows, beside)
        all_rows, all_handles = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for segment in state.segments:
            events = encode(segment.index.encoder)
            if beside is not None:
                events = joined(events, segment.index.encoder.rows(beside.known), beside.chosen)
            row, position, doubts = segment.workspace.match(events)
            if doubts.any():
                row, position = _decide(segment, row, position, doubts, rows)
            all_rows.append(row)
            all_handles.append(segment.handles[position])
        for delta in state.deltas:
            if len(delta):
                pairs = [(number, handle) for number, each in enumerate(rows) for handle in delta.match(each)]
                all_rows.append(np.array([number for number, _ in pairs], np.int32))
                all_handles.append(np.array([handle for _, handle in pairs], np.int64))
        row, handle = np.concatenate(all_rows), np.concatenate(all_handles)
        if len(all_rows) > 2:
            order = np.argsort(row, kind="stable")
            row, handle = row[order], handle[order]
        return row, handle

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Repack everything and write it to *path*, whole or not at all."""
        self.repack(whole=True)
        segments = self._state.segments
        segment = segments[0] if segments else _packed([])
        extra = {"handles": segment.handles, "dead": segment.index.dead, **segment.texts.arrays()}
        segment.index.save(path, extra=extra)

    @classmethod
    def map(cls, path: Path) -> ContentIndex:
        """Map what ``save`` wrote; workers that map one file share one copy of it."""
        packed, extra = PackedIndex.map(path)
        packed.dead[:] = extra["dead"]
        segment = _Segment(packed, extra["handles"], Texts.of(extra["text_bytes"], extra["text_start"]))
        segment.buried = int(packed.dead[:-1].sum())
        index = cls()
        index._state = _State((segment,), (Delta(),))
        return index

    @property
    def size_bytes(self) -> int:
        """What segments and texts take."""
        return sum(s.index.size_bytes + s.handles.nbytes + s.texts.size_bytes for s in self._state.segments)


def _to_merge(segments: tuple[_Segment, ...], fresh: int) -> tuple[_Segment, ...]:
    """Return the segments that the next one should swallow."""
    if not segments:
        return ()
    large, *small = sorted(segments, key=lambda segment: -segment.handles.size)
    grown = fresh + sum(segment.handles.size for segment in small)
    if grown * _SHARE >= large.handles.size or large.buried * _SHARE >= large.handles.size:
        return segments
    return tuple(small) if len(small) >= _SEGMENTS else ()


@lru_cache(maxsize=4_096)
def _closure(text: str) -> VerdictFunction:
    return compile_filter(parse(text))


def _decide(segment: _Segment, row: Any, position: Any, doubts: Any, rows: Sequence[Attributes]) -> tuple[Any, Any]:
    """Ask the closures about doubtful matches; a filter that another of its clauses made certain is not asked."""
    key = row.astype(np.int64) << 32 | position
    certain = key[doubts == 0]
    doubtful = np.setdiff1d(key[doubts == 1], certain)
    kept = [k for k in doubtful.tolist() if _closure(segment.texts[k & 0xFFFFFFFF])(rows[k >> 32]) is True]
    everything = np.sort(np.concatenate([certain, np.array(kept, np.int64)]))
    return (everything >> 32).astype(np.int32), everything & 0xFFFFFFFF


class _Joined(Sequence[Attributes]):
    """Rows with what they have beside them."""

    def __init__(self, rows: Sequence[Attributes], beside: Beside) -> None:
        self._rows, self._beside = rows, beside

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: Any) -> Any:
        number = int(self._beside.chosen[row])
        return self._rows[row] if number < 0 else {**self._rows[row], **self._beside.known[number]}


class _ArrowRows(Sequence[Attributes]):
    """Rows of an Arrow attributes column as Python attributes, made when somebody asks."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, row: Any) -> Any:
        from whimbrel.model.tables import attributes_from_column_value  # pyarrow is here already

        return attributes_from_column_value(self._column[row].as_py())
