"""The content index: matches millions of filters in microseconds, and accepts changes at any time.

Most filters are in *segments*, which are packed and immutable; removed filters are marked dead in their segment. New
filters go into the *delta*, a small unpacked index. A delta that has grown is packed into a segment of its own. Small
segments are merged, and from time to time all of them. All of this runs in the background: a match sees the old state
until one assignment puts the new segment in place. The delta is packed even during a long merge, because its compiled
filters (Python functions) are slow and keep the garbage collector busy.
Rule: a handle is in exactly one place, the delta or one segment.
Rule: ``match`` never waits for a repacking; only changes take the lock, and hold it briefly.
Rule: numba is loaded with the first segment. Until then all filters are in the delta, which gives the same answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from whimbrel.match.events.bodies import Bodies
from whimbrel.match.index.delta import Delta, ReadFilter
from whimbrel.match.index.parts import Part
from whimbrel.match.kernels.arrays import Events
from whimbrel.model.attributes import Attributes

if TYPE_CHECKING:
    from whimbrel.match.events.encoder import Encoder
    from whimbrel.match.index.segments import Segment

__all__ = ["Beside", "ContentIndex", "Pack", "Run", "pack_here"]

Run: TypeAlias = Callable[[Callable[[], None]], object]
"""Function that starts a task in the background, e.g. in a thread."""
Pack: TypeAlias = "Callable[[Sequence[Part]], Segment]"
"""Function that packs the filters of some parts, except removed ones, into one segment."""

_DELTA = 1_024
"""Number of filters in the delta (unpacked index) from which on it is packed."""
_DELTA_PATTERNS = 128
"""Number of patterns in the delta from which on it is packed: there each is run alone, slowly on a long string."""
_LITTLE = 16
"""Fewest filters in the delta that ``settle`` packs, once no filters are added any more."""


def pack_here(parts: Sequence[Part]) -> Segment:
    """Pack the filters in *parts* (flat arrays) into one segment, in the calling thread."""
    from whimbrel.match.index.segments import pack_parts  # it loads numba

    return pack_parts(parts)


class _Pace(NamedTuple):
    """Thresholds for merging segments: each segment costs time for every event, and merging is work."""

    segments: int
    """Number of small segments (all but the largest) that are merged into one."""
    share: int
    """All segments are merged once the small ones, or the dead filters, are 1/``share`` of the largest segment."""


_BUSY, _QUIET = _Pace(4, 4), _Pace(2, 16)
"""Thresholds while filters are being added, and once none were added for a while."""


class Beside(NamedTuple):
    """Extra attributes for the rows of a batch.

    *known* has a few distinct sets of them; *chosen* has, for each row, an index in *known*, or -1 for none.
    """

    known: Sequence[Attributes]
    chosen: Any


@dataclass(frozen=True, slots=True)
class _State:
    """Immutable snapshot of the index, which a match reads; repacking replaces it.

    Its last delta still gets new filters.
    """

    segments: tuple[Segment, ...]
    deltas: tuple[Delta, ...]


class _Removed:
    """Handles of filters removed during a repacking; the new segment still has them and must mark them as removed."""

    def __init__(self) -> None:
        self.handles: list[int] = []


class ContentIndex:
    """Content filters, each under a handle (number), and the search for those that are true of an event.

    *run* starts a repacking in the background, e.g. in a thread; without it, nothing is repacked until ``repack``.
    *pack* does the packing; a ``PackingProcess`` packs in another process, so that it does not compete with the
    matching.
    """

    def __init__(self, *, run: Run | None = None, pack: Pack = pack_here) -> None:
        self._state = _State((), (Delta(),))
        self._lock = threading.Lock()
        self._packing_delta, self._merging = threading.Lock(), threading.Lock()
        self._witnesses: list[_Removed] = []
        """One record of removed handles for each repacking under way."""
        self._run, self._pack = run, pack
        self._is_packing, self._is_merging = False, False
        """Whether a packing of the delta (or a merge of segments) was started and has not ended."""
        self._added = self._settled_at = 0
        """Number of filters added so far, and the value of that number when ``settle`` was last called."""

    @classmethod
    def load(
        cls, filters: Iterable[tuple[int, str]], *, run: Run | None = None, pack: Pack = pack_here
    ) -> ContentIndex:
        """Return an index of pairs of handle and filter text, packed at once; handles must ascend."""
        from whimbrel.match.index.segments import pack_filters  # it loads numba

        index = cls(run=run, pack=pack)
        index._state = _State((pack_filters(filters),), (Delta(),))
        return index

    # -- changes -----------------------------------------------------------------------------------------------------

    def add(self, handle: int, text: str, read: ReadFilter | None = None) -> None:
        """Add a filter under an unused handle; raise ``FilterError`` if *text* is not a filter.

        *read* is the filter as prepared by ``delta.reading`` before; with it, adding takes hardly any time.
        """
        with self._lock:
            delta = self._state.deltas[-1]
            delta.add(handle, text, read)
            self._added += 1
            is_due = len(delta) >= _DELTA or delta.patterns >= _DELTA_PATTERNS
            is_due = is_due and self._run is not None and not self._is_packing
            self._is_packing |= is_due
        if is_due and self._run is not None:
            self._run(self._pack_once)

    def settle(self) -> None:
        """If no filter was added since the last call, start to pack the delta in the background, or to merge segments.

        Call it periodically. The delta is packed unless it is very small; then a merge is started, if one is due.
        Filters of the delta are evaluated one by one, and every segment costs time per event. This hardly matters while
        filters come and go, but is the whole cost once they stay.
        """
        with self._lock:
            added = self._added
            is_quiet, self._settled_at = added == self._settled_at, added
            is_quiet = is_quiet and self._run is not None and not self._is_packing
            to_pack = is_quiet and len(self._state.deltas[-1]) >= _LITTLE
            to_merge = is_quiet and not to_pack and not self._is_merging
            to_merge = to_merge and bool(_to_merge(self._state.segments, _QUIET))
            self._is_packing |= to_pack
            self._is_merging |= to_merge
        if to_pack and self._run is not None:
            self._run(self._pack_once)
        if to_merge and self._run is not None:
            self._run(partial(self._merge_once, _QUIET))

    def _pack_once(self) -> None:
        try:
            self._pack_delta()
        finally:
            with self._lock:
                self._is_packing = False
                is_due = bool(_to_merge(self._state.segments)) and self._run is not None and not self._is_merging
                self._is_merging |= is_due
        if is_due and self._run is not None:
            self._run(self._merge_once)

    def _merge_once(self, pace: _Pace = _BUSY) -> None:
        is_done = False
        try:
            self._merge(pace)
            is_done = True
        finally:
            with self._lock:  # more segments may have been packed during the merge
                self._is_merging = is_due = is_done and bool(_to_merge(self._state.segments))
        if is_due and self._run is not None:
            self._run(self._merge_once)

    def remove(self, handle: int) -> bool:
        """Remove a filter; return whether it was present."""
        with self._lock:
            for witness in self._witnesses:
                witness.handles.append(handle)
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
        """Return the text of the filter under *handle*, or None if there is none."""
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
        """Pack the delta (new filters), and merge segments if a merge is due.

        With *whole*, merge everything into one segment.
        """
        if whole:
            with self._packing_delta, self._merging:
                self._replace(self._state.segments, with_delta=True)
        else:
            self._pack_delta()
            self._merge()

    def _pack_delta(self) -> None:
        with self._packing_delta:
            self._replace((), with_delta=True)

    def _merge(self, pace: _Pace = _BUSY) -> None:
        with self._merging:
            merged = _to_merge(self._state.segments, pace)
            if merged:
                self._replace(merged, with_delta=False)

    def _replace(self, merged: tuple[Segment, ...], *, with_delta: bool) -> None:
        """Replace the segments *merged* (and, if *with_delta*, all deltas) by one new segment.

        If that fails, no filter is lost.
        """
        removed = _Removed()
        with self._lock:
            segments, frozen = self._state.segments, self._state.deltas if with_delta else ()
            if with_delta:  # from here on, changes go to a new delta
                self._state = _State(segments, (*frozen, Delta()))
            self._witnesses.append(removed)
        try:
            parts = [segment.part() for segment in merged]
            parts += [Part.of(sorted(delta.texts.items())) for delta in frozen]
            fresh = self._pack(parts)
            with self._lock:
                for position in map(fresh.position, removed.handles):
                    if position is not None:
                        fresh.bury(position)
                kept = tuple(segment for segment in self._state.segments if segment not in merged)
                segments = (*kept, fresh) if fresh.handles.size else kept
                self._state = _State(segments, self._state.deltas[len(frozen) :])
        finally:
            with self._lock:
                self._witnesses.remove(removed)

    # -- matching ----------------------------------------------------------------------------------------------------

    def match(self, attributes: Attributes) -> list[int]:
        """Return the handles of all filters that are true of *attributes*."""
        state = self._state
        found: list[int] = []
        for segment in state.segments:
            found += segment.match(attributes)
        for delta in state.deltas:
            found += delta.match(attributes)
        return found

    def match_rows(self, rows: Sequence[Attributes], *, beside: Beside | None = None) -> tuple[Any, Any]:
        """Match many rows of attributes; return pairs of row number and handle as two arrays, in order of rows."""
        if isinstance(rows, Bodies):
            bodies = rows
            return self._match_many(lambda encoder: encoder.bodies(bodies), rows, beside)
        return self._match_many(lambda encoder: encoder.rows(rows), rows, beside)

    def match_arrow(self, column: Any, *, beside: Beside | None = None) -> tuple[Any, Any]:
        """Match the rows of an Arrow array of the log's attributes column; return row numbers and handles.

        Raise ``InvalidValueError`` if the column's type or any of its rows is invalid; then nothing is matched.
        """
        from whimbrel.match.events.columns import (
            AttributeColumn,
        )  # it loads pyarrow, which matching one event does not need

        rows = AttributeColumn(column)
        return self._match_many(lambda encoder: encoder.arrow(rows), rows, beside)

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
                from whimbrel.match.events.encoder import join_events  # the segment has loaded it already

                events = join_events(events, segment.index.encoder.rows(beside.known), beside.chosen)
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

    def save(self, path: Path, *, extra: Mapping[str, Any] | None = None) -> None:
        """Write all filters to *path* as one segment, atomically; the *extra* arrays are stored with it."""
        from whimbrel.match.index.segments import pack_filters  # it loads numba

        state = self._state
        if len(state.segments) != 1 or any(map(len, state.deltas)):
            self.repack(whole=True)
        segments = self._state.segments
        (segments[0] if segments else pack_filters([])).save(path, extra=extra)

    @classmethod
    def map(cls, path: Path) -> ContentIndex:
        """Return the index in the file that ``save`` wrote, memory-mapped.

        Processes that map one file share one copy.
        """
        return cls.map_with(path)[0]

    @classmethod
    def map_with(cls, path: Path) -> tuple[ContentIndex, dict[str, Any]]:
        """Return the index in the file that ``save`` wrote, memory-mapped, and the extra arrays."""
        from whimbrel.match.index.segments import Segment  # it loads numba

        segment, extra = Segment.map(path)
        index = cls()
        index._state = _State((segment,), (Delta(),))
        return index, extra

    @property
    def unpacked(self) -> int:
        """Number of filters that are not packed into a segment yet; they are evaluated one by one."""
        return sum(map(len, self._state.deltas))

    @property
    def size_bytes(self) -> int:
        """Memory of the segments and the filter texts, in bytes."""
        return sum(s.index.size_bytes + s.handles.nbytes + s.texts.size_bytes for s in self._state.segments)


def _to_merge(segments: tuple[Segment, ...], pace: _Pace = _BUSY) -> tuple[Segment, ...]:
    """Return the segments (packed parts of the index) that are to be merged now; empty if no merge is due."""
    if not segments:
        return ()
    large, *small = sorted(segments, key=lambda segment: -segment.handles.size)
    grown = sum(segment.handles.size for segment in small)
    if large.buried * pace.share >= large.handles.size or (small and grown * pace.share >= large.handles.size):
        return segments
    return tuple(small) if len(small) >= pace.segments else ()


def _decide(segment: Segment, row: Any, position: Any, doubts: Any, rows: Sequence[Attributes]) -> tuple[Any, Any]:
    """Return the rows and positions of all matches, after the compiled filters have decided the doubtful ones.

    *doubts* is 1 for those. A filter of several clauses may match both certainly and doubtfully; it is certain then,
    and not evaluated.
    """
    key = row.astype(np.int64) << 32 | position
    certain = key[doubts == 0]
    doubtful = np.setdiff1d(key[doubts == 1], certain)
    kept = [k for k in doubtful.tolist() if segment.is_true(k & 0xFFFFFFFF, rows[k >> 32])]
    everything = np.sort(np.concatenate([certain, np.array(kept, np.int64)]))
    return (everything >> 32).astype(np.int32), everything & 0xFFFFFFFF


class _Joined(Sequence[Attributes]):
    """Sequence of rows; each has its own attributes and the extra ones of ``Beside``, joined when the row is read."""

    def __init__(self, rows: Sequence[Attributes], beside: Beside) -> None:
        self._rows, self._beside = rows, beside

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: Any) -> Any:
        number = int(self._beside.chosen[row])
        return self._rows[row] if number < 0 else {**self._rows[row], **self._beside.known[number]}
