"""Fast check of whole Arrow columns: finds all rows of the log that may be invalid.

Rule: every row that ``model.rows.fact_of`` refuses is marked, and few valid rows are. ``dead_letters`` then validates
each marked row on its own.
Rule: the bounds of each column are those of ``model.columns``; rules between columns are in this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from whimbrel.errors import InvalidInputError
from whimbrel.match.prepared import check_stored
from whimbrel.match.topics import check_topic_filter
from whimbrel.model.attributes import INT32_MAX, INT32_MIN, AttributeType
from whimbrel.model.bounds import INT64_MAX, INT64_MIN
from whimbrel.model.columns import LOG_SPECS, Column, Kind
from whimbrel.model.facts import Outcome, PolicyChange, PresenceChange, WillChange
from whimbrel.model.keys import DIGEST_BYTES, MAX_KEYS, Scheme
from whimbrel.model.notification import MAX_QOS
from whimbrel.model.tables import TABLES, TIME_TYPE

__all__ = ["Mask", "suspects"]

Arrow = Any
"""A ``pyarrow`` array, batch or table; pyarrow ships no types."""
Mask = NDArray[np.bool_]

_NODE = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_SCHEMES = pa.array([scheme.value for scheme in Scheme])
_DIGEST_BYTES = pa.array(sorted(DIGEST_BYTES), pa.int32())
_DATA_BUFFER = 2
"""Index of the buffer of an Arrow text column that has its bytes."""


def suspects(table: str, rows: Arrow, node: str | None) -> Mask:
    """Return a mask of the rows of a batch that may be invalid: every invalid row, and few valid ones."""
    found = _Suspects(rows, TABLES[table].schema)
    own, *others = LOG_SPECS[table].columns
    found.nodes(own.name, node)
    for column in others:
        _look(found, column)
    if table in _BETWEEN and not found.mask.all():
        _BETWEEN[table](found)
    return found.mask


class _Suspects:
    """Mask of the rows of one batch that may be invalid; each method checks one column and adds to the mask."""

    def __init__(self, rows: Arrow, schema: Arrow) -> None:
        self._rows = rows
        self.mask: Mask = np.zeros(rows.num_rows, np.bool_)
        for field in schema:
            if not field.nullable and (column := self.column(field.name)).null_count:
                self.flag(column.is_null())

    def column(self, name: str) -> Arrow:
        """Return the column *name* as one Arrow array."""
        column = self._rows.column(name)
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    def flag(self, is_suspect: Arrow) -> None:
        """Mark the rows where a condition is true; null marks nothing."""
        if is_suspect.true_count:
            self.mask |= is_suspect.fill_null(False).to_numpy(zero_copy_only=False)

    def unless(self, is_fine: Arrow) -> None:
        """Mark the rows where *is_fine* is false; null marks nothing."""
        self.flag(pc.invert(is_fine))

    # -- kinds of columns ----------------------------------------------------------------------------------------------

    def rank(self, name: str, least: int, most: int) -> None:
        """Mark the rows whose integer in the column *name* is below *least* or above *most*."""
        column = self.column(name)
        if column.null_count < len(column):
            extremes = pc.min_max(column).as_py()
            if extremes["min"] < least or extremes["max"] > most:
                self.flag(pc.or_(pc.less(column, least), pc.greater(column, most)))

    def between(self, name: str, least: float, most: float) -> None:
        """Mark the rows whose real number in the column *name* is NaN, below *least* or above *most*."""
        self.flag(_outside(self.column(name), least, most))

    def times(self, name: str, least: int, most: int) -> None:
        """Mark the rows whose time in the column *name*, in microseconds, is below *least* or above *most*."""
        if (least, most) != (INT64_MIN, INT64_MAX):
            column = self.column(name).cast(TIME_TYPE).cast(pa.int64())
            self.flag(pc.or_(pc.less(column, least), pc.greater(column, most)))

    def nodes(self, name: str, only: str | None) -> None:
        """Mark the rows whose value in the column *name* is not a valid name of a node, or is not *only*, if given."""
        column = self.column(name)
        values = _valid_text(column, self)
        if values is None:
            return
        known = pc.unique(values).to_pylist()
        bad = [each for each in known if each is not None and (each != only if only else not _NODE.match(each))]
        if bad:
            self.flag(pc.is_in(values, pa.array(bad, pa.string())))

    def text(self, name: str, max_bytes: int, *, min_bytes: int, without: bytes) -> None:
        """Mark the rows whose text in the column *name* has a wrong size in bytes, or a character of *without*."""
        column = self.column(name)
        if column.null_count == len(column) or _valid_text(column, self) is None:
            return
        sizes = pc.binary_length(column)
        extremes = pc.min_max(sizes).as_py()
        if extremes["min"] < min_bytes or extremes["max"] > max_bytes:
            self.flag(pc.or_(pc.less(sizes, min_bytes), pc.greater(sizes, max_bytes)))
        for byte in without:
            if _has_byte(column, byte):
                self.flag(pc.match_substring(column, chr(byte)))

    def size(self, name: str, least: int, most: int) -> None:
        """Mark the rows whose binary value in the column *name* has fewer than *least* or more than *most* bytes."""
        column = self.column(name)
        if column.null_count == len(column):
            return
        sizes = pc.binary_length(column)
        self.flag(pc.greater(sizes, most))
        if least:
            self.flag(pc.less(sizes, least))

    def words(self, name: str, allowed: Sequence[str]) -> None:
        """Mark the rows whose value in the column *name* is not one of the words *allowed*."""
        column = self.column(name)
        if column.null_count < len(column) and _valid_text(column, self) is not None:
            self.flag(pc.and_(pc.invert(pc.is_in(column, pa.array(allowed))), column.is_valid()))

    def fields(self, name: str, bounds: Mapping[str, tuple[float, float]]) -> None:
        """Mark the rows whose struct in the column *name* has a field that is null or outside *bounds*."""
        column = self.column(name)
        if column.null_count == len(column):
            return
        for part, (least, most) in bounds.items():
            values = pc.struct_field(column, part)
            self.flag(pc.and_(column.is_valid(), values.is_null()))
            self.flag(_outside(values, least, most))

    def keys(self, name: str) -> None:
        """Mark the rows whose list in the column *name* has an invalid key hash, or more than ``MAX_KEYS`` of them."""
        column = self.column(name)
        owners, each = _entries(column)
        if not owners.size:
            return
        scheme, digest = each.flatten()
        is_fine = pc.and_(pc.is_in(scheme, _SCHEMES), pc.is_in(pc.binary_length(digest), _DIGEST_BYTES))
        self.mask[owners[~_true(is_fine)]] = True
        self.flag(pc.greater(pc.list_value_length(column), MAX_KEYS))

    def identities(self, name: str) -> None:
        """Mark the rows whose list in the column *name* has an invalid identity of a subscription."""
        owners, each = _entries(self.column(name))
        if not owners.size:
            return
        subject_filters, names = each.flatten()
        is_odd = names.is_null().to_numpy(zero_copy_only=False)
        if is_odd.any() or not (_is_text(names) and _is_text(subject_filters)):
            is_odd = is_odd | _are_no_text(names) | _are_no_text(subject_filters)
            self.mask[owners[is_odd]] = True

    def attributes(self, name: str) -> None:
        """Mark the rows whose attributes have a name twice, an invalid name, or a value of another type than stated."""
        column = self.column(name)
        offsets = column.offsets.to_numpy()
        begin, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        if not count:
            return
        owners = np.repeat(np.arange(len(column)), np.diff(offsets))
        names, items = column.keys.slice(begin, count), column.items.slice(begin, count)
        if _suspicious_bytes(names) or names.null_count:
            self.mask[owners[_are_odd_names(names)]] = True
        kinds, *fields = items.flatten()
        is_fine = _have_values(kinds, fields)
        if not is_fine.all():
            self.mask[owners[~is_fine]] = True
        if _suspicious_bytes(fields[2], is_zero_fine=True):
            self.mask[owners[_are_no_text(fields[2])]] = True
        encoded = names.dictionary_encode()
        places = owners * (len(encoded.dictionary) + 1) + encoded.indices.fill_null(0).to_numpy()
        order = np.sort(places)
        twice = order[1:][order[1:] == order[:-1]]
        self.mask[twice // (len(encoded.dictionary) + 1)] = True

    def filters(self, name: str, check: Callable[[str], object]) -> None:
        """Mark the rows whose text in the column *name* is refused by *check*; each distinct text is checked once."""
        column = self.column(name)
        if column.null_count == len(column) or _valid_text(column, self) is None:
            return
        encoded = column.dictionary_encode()
        is_bad = [not _passes(check, text) for text in encoded.dictionary.to_pylist()]
        if any(is_bad):
            self.flag(pa.array(is_bad).take(encoded.indices))


def _outside(values: Arrow, least: float, most: float) -> Arrow:
    """Return a column of booleans: is the number below *least*, above *most* or NaN? Null stays null."""
    if values.null_count == len(values):
        return pa.nulls(len(values), pa.bool_())
    return pc.invert(pc.and_(pc.greater_equal(values, least), pc.less_equal(values, most)))


def _entries(column: Arrow) -> tuple[NDArray[np.int64], Arrow]:
    """Return the row number of each entry of a column of lists, and the entries."""
    return pc.list_parent_indices(column).to_numpy(), column.flatten()


def _true(values: Arrow) -> Mask:
    found: Mask = values.fill_null(False).to_numpy(zero_copy_only=False)
    return found


def _has_byte(column: Arrow, byte: int) -> bool:
    """Return whether *byte* is anywhere in a text column's buffer, also outside the column's slice of it."""
    data = column.buffers()[_DATA_BUFFER]
    return data is not None and bool((np.frombuffer(data, np.uint8) == byte).any())


def _suspicious_bytes(column: Arrow, *, is_zero_fine: bool = False) -> bool:
    """Return whether a text column may contain empty texts, U+0000 or invalid UTF-8."""
    if not is_zero_fine:
        sizes = pc.min(pc.binary_length(column)).as_py()
        if sizes == 0 or _has_byte(column, 0):
            return True
    return not _is_text(column)


def _is_text(column: Arrow) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _are_no_text(column: Arrow) -> Mask:
    """Return a mask of the values of a text column that are not valid UTF-8."""
    return np.array([not _is_unicode(value) for value in column.cast(pa.binary()).to_pylist()], np.bool_)


def _are_odd_names(column: Arrow) -> Mask:
    """Return a mask of attribute names that are missing, empty or not valid UTF-8, or contain U+0000."""
    values = column.cast(pa.binary()).to_pylist()
    return np.array([not value or b"\0" in value or not _is_unicode(value) for value in values], np.bool_)


def _is_unicode(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False


def _valid_text(column: Arrow, found: _Suspects) -> Arrow | None:
    """Return a text column, or None if it contains invalid UTF-8; then all rows are marked."""
    if _is_text(column):
        return column
    found.mask |= _are_no_text(column)
    found.mask |= True  # Arrow's functions need valid text, so every row is checked on its own
    return None


def _have_values(kinds: Arrow, fields: Sequence[Arrow]) -> Mask:
    """Return a mask of the attributes that have a value of their stated type."""
    kind = kinds.fill_null(0).to_numpy()
    integers = fields[0].fill_null(INT64_MAX).to_numpy()
    places = {AttributeType.INT32: 0, AttributeType.INT64: 0, AttributeType.REAL64: 1}
    places |= {AttributeType.STRING: 2, AttributeType.OPAQUE: 3}
    found: Mask = np.zeros(kind.size, np.bool_)
    for each, place in places.items():
        is_kind = kind == int(each)
        if is_kind.any():
            found |= is_kind & fields[place].is_valid().to_numpy(zero_copy_only=False)
    found &= (kind != int(AttributeType.INT32)) | ((integers >= INT32_MIN) & (integers <= INT32_MAX))
    return found


@lru_cache(maxsize=100_000)
def _passes(check: Callable[[str], object], text: str | None) -> bool:
    try:
        return text is None or check(text) is not NotImplemented
    except InvalidInputError:
        return False


# -- the columns and tables -------------------------------------------------------------------------------------------

_EARTH = {"latitude": (-90.0, 90.0), "longitude": (-180.0, 180.0)}
_SCREEN = {"width_px": (0, INT32_MAX), "height_px": (0, INT32_MAX)}


def _look(found: _Suspects, column: Column) -> None:
    """Mark the rows whose value of *column* may have the wrong kind or exceed the column's bounds."""
    name, least, most = column.name, int(column.least or 0), int(column.most or 0)
    match column.kind:
        case Kind.TEXT if column.words:
            found.words(name, column.word_texts)
        case Kind.TEXT:
            found.text(name, most, min_bytes=least, without=column.without.encode())
        case Kind.NODE:
            found.nodes(name, None)
        case Kind.INT8 | Kind.INT32 | Kind.INT64:
            found.rank(name, least, most)
        case Kind.REAL:
            found.between(name, column.least or 0, column.most or 0)
        case Kind.TIME:
            found.times(name, least, most)
        case Kind.BODY | Kind.HASH | Kind.PROPERTIES | Kind.BYTES:
            found.size(name, least, most)
        case Kind.ATTRIBUTES:
            found.attributes(name)
        case Kind.KEYS:
            found.keys(name)
        case Kind.PLACE:
            found.fields(name, _EARTH)
        case Kind.DISPLAY:
            found.fields(name, _SCREEN)
        case Kind.SUBSCRIPTIONS:
            found.identities(name)
        case Kind.TEXTS:  # few rows have a value here: mark each for the slow check
            found.flag(pc.greater(pc.list_value_length(found.column(name)), 0))
        case Kind.AREA | Kind.CORNERS:  # few rows have a value here: mark each for the slow check
            found.flag(found.column(name).is_valid())
        case Kind.FLAG:
            pass


def _publications(found: _Suspects) -> None:
    found.flag(pc.and_(found.column("radius_m").is_valid(), found.column("place").is_null()))
    found.flag(pc.and_(found.column("packet_id").is_valid(), pc.not_equal(found.column("qos"), MAX_QOS)))


def _interests(found: _Suspects) -> None:
    for name in ("around_m", "hears_anywhere"):  # at most one of four columns may be set: mark each row with one
        found.flag(found.column(name).is_valid())
    found.filters("subject_filter", check_topic_filter)
    found.filters("filter_text", check_stored)


def _presence(found: _Suspects) -> None:
    change = found.column("change")

    def belongs(name: str, *changes: PresenceChange, is_needed: bool) -> None:
        """Mark the rows with a value in the column *name*, unless their column ``change`` has one of *changes*.

        If *is_needed*, also mark the rows where ``change`` is one of *changes* and *name* has no value.
        """
        may = pc.is_in(change, pa.array([each.value for each in changes]))
        has = found.column(name).is_valid()
        found.flag(pc.xor(may, has) if is_needed else pc.and_not(has, may))

    joined, disconnected = PresenceChange.JOINED, PresenceChange.DISCONNECTED
    belongs("session", joined, PresenceChange.LEFT, PresenceChange.RECEIPTS, is_needed=True)
    belongs("receipt", joined, is_needed=True)
    belongs("packet_id", PresenceChange.RELEASED, PresenceChange.COMPLETED, is_needed=True)
    belongs("session_expiry_us", joined, disconnected, is_needed=False)
    belongs("sent_seq", disconnected, PresenceChange.LEFT, is_needed=False)
    belongs("confirms", joined, PresenceChange.RECEIPTS, is_needed=False)
    belongs("owner", joined, is_needed=False)
    is_said = found.column("confirms").is_valid()
    found.flag(pc.and_not(pc.equal(change, PresenceChange.RECEIPTS.value), is_said))


def _wills(found: _Suspects) -> None:
    is_left = pc.equal(found.column("change"), WillChange.LEFT.value)
    found.flag(pc.and_(is_left, found.column("subject").is_null()))


def _policies(found: _Suspects) -> None:
    change = found.column("change")
    is_chosen = pc.equal(change, PolicyChange.CHOSEN.value)
    found.flag(pc.and_not(found.column("name").is_null(), is_chosen))
    found.flag(pc.and_(is_chosen, found.column("device").is_null()))
    found.flag(pc.xor(pc.equal(change, PolicyChange.PUT.value), found.column("text").is_valid()))


def _decisions(found: _Suspects) -> None:
    is_sent = pc.equal(found.column("outcome"), Outcome.DELIVERED.value)
    for name in ("body_hash", "body_bytes"):
        found.flag(pc.xor(found.column(name).is_valid(), is_sent))
    for name in ("body", "attributes"):
        found.flag(pc.and_not(found.column(name).is_valid(), is_sent))


_BETWEEN: dict[str, Callable[[_Suspects], None]] = {
    "publications": _publications,
    "interests": _interests,
    "presence": _presence,
    "wills": _wills,
    "policies": _policies,
    "decisions": _decisions,
}
"""Check of the rules between columns, per table."""
