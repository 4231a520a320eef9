# mypy: disable-error-code="arg-type, call-arg, no-any-return"
# (numba infers the types inside a kernel; mypy cannot know them)
"""Checks of an Arrow column of attributes: the kernels read its buffers, so each buffer must have the expected layout.

Rule: a column type is checked once and the result is cached. Layouts with the same meaning (views, large and
dictionary-encoded strings, integers of another width, fields in another order) are cast. Every other type is refused.
Rule: a row that ``model.tables.attributes_from_column_value`` refuses is refused here with the same words. No limits on
size apply, as always when a log is read. A null row has no attributes, whatever its offsets span.
Rule: only the rows of a slice are checked, and all of them before any row is matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from whimbrel.errors import InvalidValueError, Phrase, description_of
from whimbrel.match.kernels.compiled import njit, read_only
from whimbrel.model.attributes import NO_ATTRIBUTES, Attributes, AttributeType
from whimbrel.model.rows import UNBOUNDED
from whimbrel.model.tables import ATTRIBUTES_TYPE, attributes_from_column_value

__all__ = ["AttributeColumn"]

_INT32, _INT64, _REAL, _STRING, _OPAQUE = map(int, AttributeType)
_NO_TYPE = 0xFF
_NO_BYTES = np.zeros(1, np.uint8)
_LAST_ASCII = 0x7F


class AttributeColumn(Sequence[Attributes]):
    """An Arrow array of the log's attributes column as flat arrays; indexing a row returns its attributes in Python."""

    def __init__(self, column: Any) -> None:
        self._column = column = _one_array(column)
        layout = _layout(column.type)
        try:
            column.validate()
            starts = np.asarray(column.offsets).astype(np.int64)
            _check_offsets(starts, len(column.keys))
            first, count = int(starts[0]), int(starts[-1] - starts[0])
            fields = column.items.slice(first, count).flatten()
            keys = _cast(column.keys.slice(first, count), layout[0][1])
            kinds, integers, reals, texts, opaques = (_cast(fields[at], target) for at, target in layout[1:])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidValueError("attributes column", Phrase(str(error)), "a valid Arrow array") from error
        if keys.null_count:
            raise InvalidValueError("attribute name", None, "a string")
        self.starts: Any = starts - first
        """Index of the first item (one attribute of a row) of each row, and at the end the number of items."""
        encoded = keys.dictionary_encode()
        self.distinct: list[str] = encoded.dictionary.to_pylist()
        """The distinct attribute names."""
        self.names: Any = encoded.indices.to_numpy(zero_copy_only=False)
        """Name of each item (one attribute of a row), as an index in ``distinct``."""
        self.kinds: Any = _values(kinds, np.int8).astype(np.uint8)
        """Attribute type of each item; 0 for items that belong to a null row."""
        self.integers: Any = _values(integers, np.int64)
        self.reals: Any = _values(reals, np.float64)
        self.texts, self.opaques = texts, opaques
        """String and opaque value of each item (one attribute of a row), as Arrow arrays."""
        self.text_starts, self.text_ends, self.text_bytes = _places(texts)
        """Begin and end of each item's string, as positions in the buffer ``text_bytes``."""
        self._check_rows(kinds, (integers, reals, texts, opaques))

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, row: Any) -> Any:
        value = self._column[row].as_py()
        return NO_ATTRIBUTES if value is None else attributes_from_column_value(value, limits=UNBOUNDED)

    def _check_rows(self, kinds: Any, fields: Sequence[Any]) -> None:
        """Refuse the column if a row has invalid attributes.

        Set the type of the items (attributes) of null rows to 0.
        """
        if kinds.null_count:
            self.kinds[~kinds.is_valid().to_numpy(zero_copy_only=False)] = _NO_TYPE
        is_good = all(name != "" and name[0] != "\0" for name in self.distinct)
        if self._column.null_count:
            is_null = np.repeat(self._column.is_null().to_numpy(zero_copy_only=False), np.diff(self.starts))
            is_good = is_good and bool((self.kinds[~is_null] != 0).all())
            self.kinds[is_null] = 0
        is_good = is_good and _are_values(
            self.kinds, read_only(self.integers), *_validity(fields), self._column.null_count > 0
        )
        if not is_good or _has_a_name_twice(
            read_only(self.starts), read_only(self.names), self.kinds, len(self.distinct)
        ):
            self._refuse()

    def _refuse(self) -> None:
        """Read the rows one by one and raise the error of the first bad row, with its row number.

        If every row is valid, raise nothing: the bad items then belong to null rows.
        """
        for row in range(len(self)):
            try:
                self[row]
            except InvalidValueError as error:
                raise InvalidValueError(f"row {row}, {error.what}", error.found, error.allowed) from None


# -- types -----------------------------------------------------------------------------------------------------------


def _one_array(column: Any) -> Any:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.Array):
        return column
    raise InvalidValueError("attributes column", description_of(column), "an Arrow array")


@lru_cache(maxsize=64)
def _layout(kind: Any) -> tuple[tuple[int, Any], ...]:
    """Return where the name and the five fields of an attribute are in this column type, and the type to cast each to.

    The first pair is that of the name, with -1 as its position. The others have the position of a field in the struct.
    A target of None means that no cast is needed.
    """
    allowed = str(ATTRIBUTES_TYPE)
    if not pa.types.is_map(kind) or not pa.types.is_struct(kind.item_type):
        raise InvalidValueError("type of the attributes column", str(kind), allowed)
    entry = kind.item_type
    given = [entry.field(at) for at in range(entry.num_fields)]
    wanted = [field.name for field in ATTRIBUTES_TYPE.item_type]
    targets = [_target("key", kind.key_type)]
    if sorted(field.name for field in given) != sorted(wanted):
        raise InvalidValueError("fields of an attribute", ", ".join(field.name for field in given), ", ".join(wanted))
    places = [entry.get_field_index(name) for name in wanted]
    targets += [_target(name, given[at].type) for name, at in zip(wanted, places, strict=True)]
    return tuple(zip([-1, *places], targets, strict=True))


def _target(name: str, kind: Any) -> Any:
    """Return the type to cast a field to, or None if it needs no cast; refuse a type that cannot be cast."""
    wanted = pa.string() if name == "key" else ATTRIBUTES_TYPE.item_type.field(name).type
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text, is_bytes = wanted == pa.string(), wanted == pa.binary()
    if (is_text and _is_text(plain)) or (is_bytes and _is_bytes(plain)):
        large = pa.large_string() if is_text else pa.large_binary()
        return None if kind in {wanted, large} else large
    is_number = pa.types.is_integer if pa.types.is_integer(wanted) else pa.types.is_floating
    if plain is kind and (pa.types.is_null(kind) or (not is_text and not is_bytes and is_number(kind))):
        return None if kind == wanted else wanted
    raise InvalidValueError(f"type of the field {name}", str(kind), str(wanted))


def _is_text(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_bytes(kind: Any) -> bool:
    is_variable = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return is_variable or pa.types.is_fixed_size_binary(kind)


def _cast(field: Any, target: Any) -> Any:
    if target is None:
        _validate(field)
        return field
    field.validate(full=True)
    if pa.types.is_dictionary(field.type):
        field = field.dictionary_decode()
    return field.cast(target)


def _validate(field: Any) -> None:
    """Validate a primitive or string array as ``validate(full=True)`` does, but much faster for ASCII text."""
    field.validate()
    if field.type.num_buffers < 3 or field.buffers()[1] is None or not len(field):
        return
    places, data = _offsets(field)
    _check_offsets(places, data.size)
    has_text = pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
    if has_text and data[places[0] : places[-1]].max(initial=0) > _LAST_ASCII:
        field.validate(full=True)


def _check_offsets(places: Any, most: int) -> None:
    if places[0] < 0 or places[-1] > most or (places[1:] < places[:-1]).any():
        raise pa.ArrowInvalid("its offsets do not fit what they lead into")


# -- buffers ---------------------------------------------------------------------------------------------------------


def _values(column: Any, dtype: Any) -> Any:
    """Return the values of a primitive Arrow array without a copy; values under a null are undefined and never used."""
    data = column.buffers()[1]
    if data is None or len(column) == 0:
        return np.zeros(len(column), dtype)
    return np.frombuffer(data, dtype, count=len(column), offset=column.offset * np.dtype(dtype).itemsize)


def _places(column: Any) -> tuple[Any, Any, Any]:
    """Return the begin and the end of each string, and the buffer that they point into."""
    if len(column) == 0 or column.null_count == len(column) or column.buffers()[1] is None:
        none = np.zeros(len(column), np.int64)
        return none, none, _NO_BYTES
    offsets, data = _offsets(column)
    offsets = offsets.astype(np.int64)
    return offsets[:-1], offsets[1:], data


def _offsets(column: Any) -> tuple[Any, Any]:
    """Return the offsets of an array of strings without a copy, and the buffer that they point into."""
    _, offsets, data = column.buffers()
    is_wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    places = np.frombuffer(offsets, np.int64 if is_wide else np.int32)[column.offset : column.offset + len(column) + 1]
    return places, _NO_BYTES if data is None or data.size == 0 else np.frombuffer(data, np.uint8)


def _validity(fields: Sequence[Any]) -> tuple[Any, ...]:
    """Return the validity bitmap of each field and, last, the bit of the first byte at which all of them begin."""
    first = {field.offset & 7 for field in fields if field.buffers()[0] is not None}
    if len(first) > 1:  # the fields are slices that begin at different bits
        valid = [field.is_valid().to_numpy(zero_copy_only=False) for field in fields]
        return (*(read_only(np.packbits(each, bitorder="little")) for each in valid), 0)
    return (*map(_bitmap, fields), first.pop() if first else 0)


def _bitmap(field: Any) -> Any:
    bitmap = field.buffers()[0]
    if bitmap is None:  # no bitmap: every value is present
        return read_only(np.full(len(field) // 8 + 2, 0xFF, np.uint8))
    return read_only(np.frombuffer(bitmap, np.uint8)[field.offset >> 3 :])


# -- rows ------------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _are_values(
    kinds: Any,
    integers: Any,
    integer_valid: Any,
    real_valid: Any,
    text_valid: Any,
    opaque_valid: Any,
    first_bit: int,
    may_be_blank: bool,  # noqa: FBT001  # numba's kernels have no keyword-only arguments
) -> bool:
    """Return whether every item (one attribute of a row) has a valid type and a value of that type.

    The loop has no branch per item: with branches it takes five times as long.
    """
    is_bad = False
    for item in range(kinds.size):
        kind = kinds[item]
        byte, bit = np.uint64((first_bit + item) >> 3), np.uint64((first_bit + item) & 7)
        there = np.int64(may_be_blank)  # one bit per type: whether the item has a value of this type
        there |= np.int64((integer_valid[byte] >> bit) & 1) * (1 << _INT32 | 1 << _INT64)
        there |= np.int64((real_valid[byte] >> bit) & 1) << _REAL
        there |= np.int64((text_valid[byte] >> bit) & 1) << _STRING
        there |= np.int64((opaque_valid[byte] >> bit) & 1) << _OPAQUE
        is_there = ((there >> np.int64(kind & 7)) & 1) == 1 and kind <= _OPAQUE
        is_wide = kind == _INT32 and integers[item] != np.int64(np.int32(integers[item]))
        is_bad |= is_wide or not is_there
    return not is_bad


@njit(cache=True, nogil=True)
def _has_a_name_twice(starts: Any, names: Any, kinds: Any, count: int) -> bool:
    seen = np.full(count, -1, np.int64)  # per name: the last row that has it
    for row in range(starts.size - 1):
        for item in range(starts[row], starts[row + 1]):
            name = np.uint64(names[item])
            if seen[name] == row and kinds[item] != 0:
                return True
            seen[name] = row
    return False
