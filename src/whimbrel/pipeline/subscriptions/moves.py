"""Moves: convert position reports and memberships of the log to tracks, the arrays that matching by place reads.

A batch job packs the moves of the whole log once and sends them to the workers in the matcher's file. A stream keeps
them from one chunk of the log to the next (``node_share``). Both give ``version_places`` the same tracks.
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
"""Columns of ``reports`` with the places of devices."""
MEMBERS = ("node", "seq", "device", "session", "change")
"""Columns of ``presence`` with the memberships of devices in sessions."""
_JOINED, _LEFT = PresenceChange.JOINED.value, PresenceChange.LEFT.value

_NONE, _NO_PLACE, _START = np.zeros(0, np.int64), np.zeros(0, np.float64), np.zeros(1, np.int64)
_NO_ARRAYS = TrackArrays(_START, _NONE, _NONE, _NONE, _START, _NONE, _START, _NONE, _NONE, _NO_PLACE, _NONE)
NOWHERE = Tracks(_NO_ARRAYS)
"""Tracks of a log without any place of a device."""


class Moves:
    """Places and memberships of the devices of one node; ``tracks`` has those of the seqs that were added last."""

    def __init__(self) -> None:
        self.keeper = TrackKeeper()
        self.tracks = NOWHERE

    def restore(self, members: Iterable[tuple[str, str]]) -> None:
        """Restore the memberships before the first seqs, as pairs of session and device."""
        for session, device in members:
            self.keeper.restore_member(session, device)

    def take(self, reports: Any, presence: Any, sessions: Any) -> None:
        """Add the rows of the next range of seqs, Arrow tables in any order of rows, and compute their ``tracks``."""
        changes = sorted(_changes(presence, sessions))
        self.tracks = self.keeper.take(_reports(reports), changes)

    def numbers(self, sessions: Iterable[str]) -> Any:
        """Return the number of each session, with which the tracks (devices' places over time) refer to it."""
        return self.keeper.numbers(sessions)

    def arrays(self) -> dict[str, Any]:
        """Return the tracks (devices' places over time) as flat arrays, by name."""
        return {f"tracks.{name}": array for name, array in self.tracks.arrays._asdict().items()}


class ShippedMoves(NamedTuple):
    """Devices' places over time (tracks), read from a matcher's file, with the session number of each version."""

    tracks: Tracks
    numbers: Any

    @classmethod
    def of(cls, arrays: Mapping[str, Any], numbers: Any, *, versions: int) -> ShippedMoves:
        """Restore tracks that ``Moves.arrays`` returned, and check each array index that the kernels use unchecked."""
        found = TrackArrays(*(arrays[f"tracks.{name}"] for name in TrackArrays._fields))
        if numbers.size != versions or (versions and numbers.min() < 0):
            raise InvalidValueError("numbers of sessions", numbers.size, f"{versions}, one for each version")
        return cls(Tracks(found.check()), numbers)


def _reports(table: Any) -> Reports:
    """Return the reports that have a place, ordered by seq."""
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
    """Yield the changes of membership: devices that joined or left, and deleted sessions."""
    some = presence.filter(pc.is_in(presence.column("change"), pa.array([_JOINED, _LEFT])))
    columns = (some.column(name).to_pylist() for name in ("seq", "session", "device", "change"))
    for seq, session, device, change in zip(*columns, strict=True):
        yield MemberChange(seq, session, device, change == _JOINED)
    gone = sessions.filter(pc.equal(sessions.column("change"), SessionChange.DELETED.value))
    for seq, session in zip(gone.column("seq").to_pylist(), gone.column("session").to_pylist(), strict=True):
        yield MemberChange(seq, session, None)
