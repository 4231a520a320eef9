"""Converts columns of a generated world to the log's ``attributes`` and to JSON bodies with the same values.

Rule: parsing a row's body by the rules of ``model.codecs`` gives the row's attributes; a test asserts it.
Rule: numpy and Arrow convert whole columns; a Python call per row would take longer than everything else together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.model.attributes import AttributeType
from whimbrel.model.tables import ATTRIBUTES_TYPE
from whimbrel.sim.logs.draws import Flags, Integers

__all__ = ["Column", "attributes_column", "bodies_column"]

Array: TypeAlias = Any
"""A ``pyarrow.Array``; pyarrow ships no types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One attribute of many rows; rows where *present* is false do not have it."""

    name: str
    present: Flags
    whole: Integers | None = None
    """Integers; with *decimals* > 0, a real64 in units of 10 ** -*decimals*, which is not negative."""
    decimals: int = 0
    text: Array | None = None
    """Strings that need no escaping in JSON."""
    is_wide: bool = False
    """Whether the integers need int64."""

    @property
    def type(self) -> AttributeType:
        """The type of every value in the column."""
        if self.text is not None:
            return AttributeType.STRING
        if self.decimals:
            return AttributeType.REAL64
        return AttributeType.INT64 if self.is_wide else AttributeType.INT32


def attributes_column(columns: Sequence[Column]) -> Array:
    """Return *columns* as one array of ``ATTRIBUTES_TYPE``."""
    present = np.stack([column.present for column in columns], axis=1)
    rows, which = np.nonzero(present)  # row by row, as the entries of a map must be
    offsets = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int32)
    types = np.array([int(column.type) for column in columns], np.int8)[which]
    numbers = np.stack([np.zeros(len(present), np.int64) if c.whole is None else c.whole for c in columns], axis=1)
    value = numbers[rows, which]
    scale = np.array([10.0**column.decimals for column in columns])[which]
    is_integer = types <= int(AttributeType.INT64)
    is_real = types == int(AttributeType.REAL64)
    entries = pa.StructArray.from_arrays(
        [
            pa.array(types),
            pa.array(value, mask=~is_integer),
            pa.array(value / scale, mask=~is_real),
            _texts(columns, rows, which),
            pa.nulls(len(rows), pa.binary()),
        ],
        fields=list(ATTRIBUTES_TYPE.item_type),
    )
    names = pa.array([column.name for column in columns]).take(pa.array(which))
    return pa.MapArray.from_arrays(pa.array(offsets), names, entries)


def _texts(columns: Sequence[Column], rows: Integers, which: Integers) -> Array:
    """Return the texts of the entries; null for a number."""
    texts = [column.text for column in columns if column.text is not None]
    if not texts:
        return pa.nulls(len(rows), pa.string())
    rank = np.cumsum([column.text is not None for column in columns]) - 1
    is_text = np.array([column.text is not None for column in columns])[which]
    place = rank[which] * len(texts[0]) + rows
    return pa.concat_arrays(texts).take(pa.array(np.where(is_text, place, 0), mask=~is_text))


def bodies_column(columns: Sequence[Column]) -> Array:
    """Return the JSON object of every row, as bytes."""
    members = [_member(column) for column in columns]
    inner = pc.binary_join_element_wise(*members, ",", null_handling="skip")
    return pc.binary_join_element_wise("{", inner, "}", "").cast(pa.binary())


def _member(column: Column) -> Array:
    """Return ``"name":value`` for the rows that have the attribute, null for the others."""
    if column.text is not None:
        value = pc.binary_join_element_wise('"', column.text, '"', "")
    elif column.decimals:
        # From integers, because Arrow writes 37.0 as 37, which has another type.
        assert column.whole is not None, "what is no text is a number"
        whole, part = np.divmod(column.whole, 10**column.decimals)
        digits = pc.utf8_lpad(pa.array(part).cast(pa.string()), column.decimals, "0")
        value = pc.binary_join_element_wise(pa.array(whole).cast(pa.string()), ".", digits, "")
    else:
        value = pa.array(column.whole).cast(pa.string())
    member = pc.binary_join_element_wise(f'"{column.name}":', value, "")
    return pc.if_else(pa.array(column.present), member, pa.scalar(None, pa.string()))
