"""Places of versions: decide which of the matching versions are within range of a publication.

A version is a subscription between two changes (``versions``). The subscriptions of a fleet are much alike. The matcher
has each *distinct filter* once: one for all versions with the same subject filter, content filter and keys.
``match.proximity.past`` decides which of these versions are within range.
Rule: places matter only if a version is limited to a place (``near``), or a publication has an area; all other matches
ignore them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.match.proximity.ground import earth_points
from whimbrel.match.proximity.index import Publications
from whimbrel.match.proximity.kernels import SPOT_OF
from whimbrel.match.proximity.past.past_versions import PastBounds, PastVersions, PlaceColumns
from whimbrel.match.proximity.tables import ANY, AROUND, CIRCLE, PLAIN, POLYGON
from whimbrel.model.near import DEFAULT_STALE_US
from whimbrel.model.place import Place
from whimbrel.model.polygon import Polygon
from whimbrel.model.tables import TIME_TYPE
from whimbrel.pipeline.subscriptions.moves import NOWHERE, Moves, ShippedMoves

__all__ = ["BOUNDS", "PLACED", "VersionPlaces", "codes_of", "distinct_wishes", "whole_array"]

PLACED = ("near", "around_m", "corners", "hears_anywhere", "stale_us")
"""Columns of ``interests`` about places."""
BOUNDS = PastBounds()
_SAVED = ("kind", "stale_us", "circle", "corner_start", "corners")


def distinct_wishes(table: Any) -> tuple[Any, Any]:
    """Assign numbers to the distinct filters of *table*; return each row's number, and a row of each filter."""
    keys = table.column("keys")
    columns = [table.column(name) for name in ("subject_filter", "filter_text", "accept_insecure")]
    if pc.any(pc.greater(pc.list_value_length(keys), 0)).as_py():
        columns.append(pa.array([repr(sorted(map(_sort_key, value or ()))) for value in keys.to_pylist()]))
    found = codes_of(columns)
    first = np.unique(found, return_index=True)[1]
    return found, table.take(pa.array(first, pa.int64()))


def codes_of(columns: Iterable[Any]) -> Any:
    """Return a number per row, equal for rows whose values in all *columns* are equal; the numbers have no gaps."""
    found: Any = None
    for column in columns:
        encoded = pc.dictionary_encode(whole_array(column), null_encoding="encode")
        codes = encoded.indices.to_numpy().astype(np.int64)
        if found is None:
            found = codes
        elif len(encoded.dictionary) > 1:
            found = np.unique(found * len(encoded.dictionary) + codes, return_inverse=True)[1].astype(np.int64)
    return found


def _sort_key(key: Mapping[str, Any]) -> tuple[str, bytes]:
    return key["scheme"], key["digest"]


@dataclass(slots=True, kw_only=True)
class VersionPlaces:
    """Places to which a matcher's subscription versions are limited; *shipped* has tracks from its file, if any."""

    columns: PlaceColumns
    sessions: Any
    """Session of each version, an Arrow column."""
    wishes: Any
    past: PastVersions
    shipped: ShippedMoves | None = None
    _numbers: tuple[Moves, Any] | None = field(default=None, init=False)

    @classmethod
    def of_table(cls, table: Any, *, wishes: Any, wish_count: int) -> VersionPlaces:
        """Read the places to which the versions in *table* are limited.

        The other arguments are about distinct filters (subject, content and keys): the number of each version's filter,
        and how many distinct filters there are.
        """
        return cls._of(table, _place_columns(table), wishes, wish_count)

    @classmethod
    def _of(cls, table: Any, columns: PlaceColumns, wishes: Any, wish_count: int) -> VersionPlaces:
        begun, ended = (table.column(name).to_numpy() for name in ("interest_seq", "ended_seq"))
        past = PastVersions(columns, wishes=wishes, wish_count=wish_count, begun=begun, ended=ended, bounds=BOUNDS)
        return cls(columns=columns, sessions=table.column("session"), wishes=wishes, past=past)

    @property
    def is_plain(self) -> bool:
        """Whether no version depends on places."""
        return self.columns.is_plain

    # -- files -------------------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, Any]:
        """Return flat arrays by name, from which ``of_arrays`` restores this object.

        They have the place that each subscription version is limited to, and the number of its distinct filter.
        """
        found = {f"places.{name}": np.ascontiguousarray(getattr(self.columns, name)).reshape(-1) for name in _SAVED}
        found["wishes"] = self.wishes
        return found

    @classmethod
    def of_arrays(cls, table: Any, arrays: Mapping[str, Any], *, wish_count: int) -> VersionPlaces:
        """Restore the places to which the subscription versions in *table* are limited, from the result of ``arrays``.

        Each array index that the kernels use unchecked is checked here.
        """
        saved = [arrays[f"places.{name}"] for name in _SAVED]
        kind, stale_us, circle, corner_start, corners = saved
        count, wishes = table.num_rows, arrays["wishes"]
        if not count == kind.size == stale_us.size == wishes.size == corner_start.size - 1 == circle.size // 3:
            raise InvalidValueError(
                "places", Phrase(f"columns of {[each.size for each in saved]}"), f"rows for {count} versions"
            )
        if count and not (0 <= wishes.min() <= wishes.max() < wish_count and PLAIN <= kind.min() <= kind.max() <= ANY):
            raise InvalidValueError("wishes", Phrase("other numbers"), f"numbers below {wish_count}")
        if corner_start[-1] * 2 != corners.size or corner_start[0] != 0 or (np.diff(corner_start) < 0).any():
            raise InvalidValueError("corners", corners.size, "as many as the polygons have")
        columns = PlaceColumns(kind, stale_us, circle.reshape(-1, 3), corner_start, corners.reshape(-1, 2))
        found = cls._of(table, columns, wishes, wish_count)
        if "numbers" in arrays:
            found.shipped = ShippedMoves.of(arrays, arrays["numbers"], versions=count)
        return found

    # -- which versions are within range -----------------------------------------------------------------------------

    def find_reached(self, rows: Any, wishes: Any, batch: Any, moves: Moves | None) -> tuple[Any, Any]:
        """Expand matches of distinct filters to versions in range; return numbers of rows and versions."""
        seqs = np.ascontiguousarray(batch.column("seq").to_numpy(), np.int64)
        where = self._publications(batch)
        if where is None:
            return self.past.find_reached(rows, wishes, None, seqs, None, NOWHERE)
        if moves is not None:
            if self._numbers is None or self._numbers[0] is not moves:
                self._numbers = (moves, moves.numbers(self.sessions.to_pylist()))
            return self.past.find_reached(rows, wishes, where, seqs, self._numbers[1], moves.tracks)
        if self.shipped is not None:
            return self.past.find_reached(rows, wishes, where, seqs, self.shipped.numbers, self.shipped.tracks)
        return self.past.find_reached(rows, wishes, where, seqs, np.full(self.wishes.size, -1, np.int64), NOWHERE)

    def _publications(self, batch: Any) -> Publications | None:
        """Return places, areas and times of the publications; None if places decide about no match here."""
        if "place" not in batch.schema.names or batch.column("place").null_count == batch.num_rows:
            return None
        radius = batch.column("radius_m")
        if self.is_plain and radius.null_count == batch.num_rows:
            return None
        spots = np.full((batch.num_rows, SPOT_OF), np.nan, np.float64)
        place = batch.column("place")
        spots[:, 0], spots[:, 1] = (_reals(pc.struct_field(place, name)) for name in ("latitude", "longitude"))
        spots[:, 2:5] = earth_points(np.ascontiguousarray(spots[:, 0]), np.ascontiguousarray(spots[:, 1]))
        spots[:, 5] = np.where(np.isnan(spots[:, 0]), np.nan, _reals(radius))
        times = batch.column("published_at").cast(TIME_TYPE).cast(pa.int64()).to_numpy()
        return Publications(spots, np.ascontiguousarray(times, np.int64))


def _reals(column: Any) -> Any:
    """Return a column as float64, with NaN for null."""
    return column.to_numpy(zero_copy_only=False).astype(np.float64)


def _place_columns(table: Any) -> PlaceColumns:
    """Convert the columns ``PLACED`` of subscription versions, which limit them to places, to flat arrays."""
    count = table.num_rows
    near, around, corners, anywhere, stale = (whole_array(table.column(name)) for name in PLACED)
    kind = np.full(count, PLAIN, np.int64)
    circle = np.full((count, 3), np.nan, np.float64)
    if near.null_count < count:
        for place, name in enumerate(("latitude", "longitude", "radius_m")):
            circle[:, place] = _reals(pc.struct_field(near, name))
        kind[near.is_valid().to_numpy(zero_copy_only=False)] = CIRCLE
    if around.null_count < count:
        is_around = around.is_valid().to_numpy(zero_copy_only=False)
        circle[is_around, 2] = _reals(around)[is_around]
        kind[is_around] = AROUND
    kind[pc.fill_null(anywhere, False).to_numpy(zero_copy_only=False)] = ANY
    flat: list[tuple[float, float]] = []
    counts = np.zeros(count, np.int64)
    for row in np.flatnonzero(corners.is_valid().to_numpy(zero_copy_only=False)).tolist():
        polygon = Polygon(tuple(Place(each["latitude"], each["longitude"]) for each in corners[row].as_py()))
        flat += polygon.flat
        kind[row], counts[row] = POLYGON, len(polygon.flat)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    stale_us = pc.fill_null(stale, DEFAULT_STALE_US).to_numpy(zero_copy_only=False).astype(np.int64)
    return PlaceColumns(kind, stale_us, circle, starts, np.array(flat, np.float64).reshape(-1, 2))


def whole_array(column: Any) -> Any:
    """Return a column of a table as one array, without a dictionary."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
