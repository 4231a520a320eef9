"""Moves: where devices were and whose members they were, from rows of the log to the tracks that kernels follow.

A batch job packs the moves of the whole log once and ships them with the matcher; a stream keeps them from piece to
piece (``node_state``). Both say the same to ``version_places``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.errors import InvalidValueError
from whimbrel.match.proximity.past.track_keeper import MemberChange, Reports, TrackKeeper
from whimbrel.match.proximity.past.tracks import TrackArrays, Tracks
from whimbrel.model.facts import PresenceChange, SessionChange
from whimbrel.model.tables import PLACE_TYPE, TIME_TYPE

__all__ = ["MEMBERS", "NOWHERE", "SEEN", "Moves", "ShippedMoves"]

SEEN = ("node", "seq", "reported_at", "device", "place")
"""The columns of ``reports`` that say where devices are."""
MEMBERS = ("node", "seq", "device", "session", "change")
"""The columns of ``presence`` that say whose members they are."""
_JOINED, _LEFT = PresenceChange.JOINED.value, PresenceChange.LEFT.value

_NONE, _NO_PLACE, _START = np.zeros(0, np.int64), np.zeros(0, np.float64), np.zeros(1, np.int64)
_NO_ARRAYS = TrackArrays(_START, _NONE, _NONE, _NONE, _START, _NONE, _START, _NONE, _NONE, _NO_PLACE, _NONE)
NOWHERE = Tracks(_NO_ARRAYS)
"""The tracks of a log in which no device was ever anywhere."""


class Moves:
    """The devices and sessions of one node; ``tracks`` are those of the span that was taken last."""

    def __init__(self) -> None:
        self.keeper = TrackKeeper()
        self.tracks = NOWHERE

    def restore(self, members: Iterable[tuple[str, str]]) -> None:
        """Restore, as session and device, whose members devices were before the first span."""
        for session, device in members:
            self.keeper.restore_member(session, device)

    def take(self, reports: Any, presence: Any, sessions: Any) -> None:
        """Take in the rows of a span of the node's log: Arrow tables with the columns above, in any order."""
        changes = sorted(_changes(presence, sessions))
        self.tracks = self.keeper.take(_reports(reports), changes)

    def numbers(self, sessions: Iterable[str]) -> Any:
        """Return by which number the tracks know each session."""
        return self.keeper.numbers(sessions)

    def arrays(self) -> dict[str, Any]:
        """Return the tracks as flat arrays."""
        return {f"tracks.{name}": array for name, array in self.tracks.arrays._asdict().items()}


class ShippedMoves(NamedTuple):
    """Moves as a file has them, with the numbers of the sessions of its versions."""

    tracks: Tracks
    numbers: Any

    @classmethod
    def of(cls, arrays: Mapping[str, Any], numbers: Any, *, versions: int) -> ShippedMoves:
        """Return what ``Moves.arrays`` gave; every number that kernels follow is looked at."""
        found = TrackArrays(*(arrays[f"tracks.{name}"] for name in TrackArrays._fields))
        if numbers.size != versions or (versions and numbers.min() < 0):
            raise InvalidValueError("numbers of sessions", numbers.size, f"{versions}, one for each version")
        return cls(Tracks(found.check()), numbers)


def _reports(table: Any) -> Reports:
    """Return the reports that say where a device is, in order."""
    place = table.column("place")
    table = table.filter(place.is_valid()).sort_by("seq").combine_chunks()
    place = table.column("place").cast(PLACE_TYPE)
    device = pc.dictionary_encode(table.column("device")).combine_chunks() if table.num_rows else None
    names = [] if device is None else device.dictionary.to_pylist()
    codes = _NONE if device is None else device.indices.to_numpy().astype(np.int64)
    at = table.column("reported_at").cast(TIME_TYPE).cast(pa.int64()).to_numpy()
    degrees = [pc.struct_field(place, name).to_numpy().astype(np.float64) for name in ("latitude", "longitude")]
    return Reports(names, codes, table.column("seq").to_numpy(), at, np.stack(degrees, axis=1))


def _changes(presence: Any, sessions: Any) -> Iterator[MemberChange]:
    """Yield who joined and left, and which sessions were deleted."""
    some = presence.filter(pc.is_in(presence.column("change"), pa.array([_JOINED, _LEFT])))
    columns = (some.column(name).to_pylist() for name in ("seq", "session", "device", "change"))
    for seq, session, device, change in zip(*columns, strict=True):
        yield MemberChange(seq, session, device, change == _JOINED)
    gone = sessions.filter(pc.equal(sessions.column("change"), SessionChange.DELETED.value))
    for seq, session in zip(gone.column("seq").to_pylist(), gone.column("session").to_pylist(), strict=True):
        yield MemberChange(seq, session, None)
