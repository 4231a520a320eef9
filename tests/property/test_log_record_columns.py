"""Records by columns are the rows that records one by one are, and fail where these fail."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from compacted import as_it_came
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import facts

from whimbrel.errors import InvalidValueError
from whimbrel.log.columns import values_to_arrow
from whimbrel.log.record_columns import UNREADABLE, RecordColumns
from whimbrel.log.records import BODY, body_of, values_from
from whimbrel.model.facts import Fact

Records = list[tuple[int, int, bytes]]


@st.composite
def records(draw: st.DrawFn) -> Records:
    """Return sequence number, form and payload of records, compact where they may be; some are damaged."""
    found: Records = []
    for fact in draw(st.lists(facts(), max_size=12)):
        found.append((len(found) + 1, *_record(fact, is_compact=draw(st.booleans()))))
    if found and draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(found) - 1))
        seq, number, payload = found[at]
        cut = draw(st.integers(0, len(payload)))
        found[at] = (
            seq,
            number,
            payload[:cut] + draw(st.binary(max_size=3)) + payload[cut + draw(st.integers(0, 3)) :],
        )
    return found


def _record(fact: Fact, *, is_compact: bool) -> tuple[int, bytes]:
    made = as_it_came(fact) if is_compact else None
    body = body_of(fact)[0] if made is None else made[1]
    return BODY.unpack_from(body)[1], body[BODY.size :]


def one_by_one(some: Records) -> dict[str, Any]:
    """Return the rows of each table, by the reference."""
    rows: dict[str, list[list[object]]] = {}
    for seq, number, payload in some:
        table, values = values_from("n", seq, number, payload)
        rows.setdefault(table, []).append(values)
    return {table: values_to_arrow(table, own) for table, own in rows.items()}


def _shown(rows: Any) -> list[str]:
    """Return columns as text: Python's times end in the year 9999, and a NaN is not equal to itself."""
    plain = (each.cast(pa.int64()) if pa.types.is_timestamp(each.type) else each for each in rows.columns)
    return [repr(each.to_pylist()) for each in plain]


@settings(max_examples=100)
@given(some=records())
def test_columns_are_rows(some: Records) -> None:
    """Any records of any form, sound or not; a null attribute is no attribute in both."""
    columns = RecordColumns("n")
    for record in some:
        columns.add(*record)
    try:
        wanted = one_by_one(some)
    except InvalidValueError:
        with pytest.raises(UNREADABLE):
            columns.tables()
        return
    found = {table: pa.concat_tables(own).sort_by("seq") for table, own in columns.tables().items()}
    assert {table: _shown(rows) for table, rows in found.items()} == {
        table: _shown(rows) for table, rows in wanted.items()
    }
    for table, rows in found.items():
        rows.validate(full=True)
        assert rows.schema == wanted[table].schema
