"""The content index: filters by the million, matched in microseconds, changed at any time.

Segments are packed and immutable; what is new goes into a small delta, what is removed is marked dead. When the delta
has grown it is packed into a segment of its own; small segments are merged, and now and then everything is. All of it
goes on beside the matching, which sees what was there until the new segment takes over in one assignment. The delta is
packed even while a long merge is under way: the closures that decide it are slow, and work for the garbage collector.

Rule: a handle is in exactly one place, delta or segment.
Rule: ``match`` never waits for a repacking; only changes take the lock, and hold it briefly.
Rule: numba is loaded with the first segment. Until then everything is in the delta, which gives the same answers.
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
"""Starts something beside the matching."""
Pack: TypeAlias = "Callable[[Sequence[Part]], Segment]"
"""Makes one segment of what lives in some parts."""

_DELTA = 1_024
"""Filters in the delta that make a repacking due."""
_DELTA_PATTERNS = 128
"""Patterns in the delta that make one due: on a long string each of them costs as much as a whole index of them."""
_LITTLE = 16
"""Filters in the delta that are worth a packing once they stay."""


def pack_here(parts: Sequence[Part]) -> Segment:
    """Pack in this thread."""
    from whimbrel.match.index.segments import pack_parts  # it loads numba

    return pack_parts(parts)


class _Pace(NamedTuple):
    """How eagerly segments are merged: each is asked about every event, and merging is work."""

    segments: int
    """So many small segments are merged into one."""
    share: int
    """Everything is merged once the small segments, or the dead, are this part of the large one."""


_BUSY, _QUIET = _Pace(4, 4), _Pace(2, 16)
"""While filters come, and when they stay."""


class Beside(NamedTuple):
    """Attributes that rows have beside their own: a few known ones, and which of them each row has (-1: none)."""

    known: Sequence[Attributes]
    chosen: Any


@dataclass(frozen=True, slots=True)
class _State:
    """What a match looks at, replaced as a whole; of the deltas only the last still grows."""

    segments: tuple[Segment, ...]
    deltas: tuple[Delta, ...]


class _Removed:
    """Handles removed while a repacking is under way; it took them along and must bury them."""

    def __init__(self) -> None:
        self.handles: list[int] = []


class ContentIndex:
    """Filters under handles.

    *run* starts a repacking beside the matching, e.g. in a thread; without it nothing is repacked until ``repack``.
    *pack* does the packing; a ``PackingProcess`` keeps it from taking turns with the matching.
    """

    def __init__(self, *, run: Run | None = None, pack: Pack = pack_here) -> None:
        self._state = _State((), (Delta(),))
        self._lock = threading.Lock()
        self._packing_delta, self._merging = threading.Lock(), threading.Lock()
        self._witnesses: list[_Removed] = []
        """What was removed since each repacking under way began."""
        self._run, self._pack = run, pack
        self._is_packing, self._is_merging = False, False
        """Whether one was started and has not ended."""
        self._added = self._settled_at = 0
        """How many filters were added, in all and when ``settle`` was last called."""

    @classmethod
    def load(
        cls, filters: Iterable[tuple[int, str]], *, run: Run | None = None, pack: Pack = pack_here
    ) -> ContentIndex:
        """Pack many filters at once; handles ascending."""
        from whimbrel.match.index.segments import pack_filters  # it loads numba

        index = cls(run=run, pack=pack)
        index._state = _State((pack_filters(filters),), (Delta(),))
        return index

    # -- changes -----------------------------------------------------------------------------------------------------

    def add(self, handle: int, text: str, read: ReadFilter | None = None) -> None:
        """Add a filter under a handle that is not in use; raise ``FilterError`` if *text* is none.

        It may have been *read* before, which takes nearly all the time.
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
        """Start packing what is in the delta, or else merging, if nothing was added since the last call.

        To be called now and then: a delta that is too small to be packed is asked filter by filter, and every
        segment is asked anew, which is of no account while filters come and go, and is all the cost there is once they
        stay.
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
            with self._lock:  # filters were added while it was packed
                self._is_merging = is_due = is_done and bool(_to_merge(self._state.segments))
        if is_due and self._run is not None:
            self._run(self._merge_once)

    def remove(self, handle: int) -> bool:
        """Remove a filter; return whether there was one."""
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
        """Pack the delta, and merge segments where that is due; into one, if it is to be *whole*."""
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
        """Put one segment in the place of *merged* (and of the deltas there are); if that fails, all is as it was."""
        removed = _Removed()
        with self._lock:
            segments, frozen = self._state.segments, self._state.deltas if with_delta else ()
            if with_delta:  # from here on changes go to a new delta
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
        """Match many; return row numbers and handles, rows ascending."""
        if isinstance(rows, Bodies):
            bodies = rows
            return self._match_many(lambda encoder: encoder.bodies(bodies), rows, beside)
        return self._match_many(lambda encoder: encoder.rows(rows), rows, beside)

    def match_arrow(self, column: Any, *, beside: Beside | None = None) -> tuple[Any, Any]:
        """Match the rows of an Arrow array of the log's attributes column; return row numbers and handles.

        A column or a row that is no attributes raises ``InvalidValueError``, and nothing is matched.
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
                from whimbrel.match.events.encoder import join_events  # loaded already, with the segment

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
        """Write everything to *path* as one segment, whole or not at all; *extra* arrays travel with it."""
        from whimbrel.match.index.segments import pack_filters  # it loads numba

        state = self._state
        if len(state.segments) != 1 or any(map(len, state.deltas)):
            self.repack(whole=True)
        segments = self._state.segments
        (segments[0] if segments else pack_filters([])).save(path, extra=extra)

    @classmethod
    def map(cls, path: Path) -> ContentIndex:
        """Map what ``save`` wrote; workers that map one file share one copy of it."""
        return cls.map_with(path)[0]

    @classmethod
    def map_with(cls, path: Path) -> tuple[ContentIndex, dict[str, Any]]:
        """Map what ``save`` wrote, with the extra arrays."""
        from whimbrel.match.index.segments import Segment  # it loads numba

        segment, extra = Segment.map(path)
        index = cls()
        index._state = _State((segment,), (Delta(),))
        return index, extra

    @property
    def unpacked(self) -> int:
        """How many filters the delta has, which are asked one by one."""
        return sum(map(len, self._state.deltas))

    @property
    def size_bytes(self) -> int:
        """What segments and texts take."""
        return sum(s.index.size_bytes + s.handles.nbytes + s.texts.size_bytes for s in self._state.segments)


def _to_merge(segments: tuple[Segment, ...], pace: _Pace = _BUSY) -> tuple[Segment, ...]:
    """Return the segments that one should replace now."""
    if not segments:
        return ()
    large, *small = sorted(segments, key=lambda segment: -segment.handles.size)
    grown = sum(segment.handles.size for segment in small)
    if large.buried * pace.share >= large.handles.size or (small and grown * pace.share >= large.handles.size):
        return segments
    return tuple(small) if len(small) >= pace.segments else ()


def _decide(segment: Segment, row: Any, position: Any, doubts: Any, rows: Sequence[Attributes]) -> tuple[Any, Any]:
    """Ask the closures about doubtful matches; a filter that another of its clauses made certain is not asked."""
    key = row.astype(np.int64) << 32 | position
    certain = key[doubts == 0]
    doubtful = np.setdiff1d(key[doubts == 1], certain)
    kept = [k for k in doubtful.tolist() if segment.is_true(k & 0xFFFFFFFF, rows[k >> 32])]
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
