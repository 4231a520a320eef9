"""Windows of a stream: after each batch the written rows of popularity are those that the whole history gives."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.hold.store.memory import MemoryStore
from whimbrel.model.tables import TIME_TYPE
from whimbrel.pipeline.stream.windows import Windows
from whimbrel.pipeline.tables.popularity import Wishes

W = 10
_SUBJECTS = ("a", "a/b", "a/c", "b")
_FILTERS = (None, "#", "a/+", "a", "a/b", "$share/g/a/#", "$share/g/b", "+", "a/#/b")
_TIMES = {"began_at": TIME_TYPE, "ended_at": TIME_TYPE}
_KINDS = {"node": pa.string(), "interest_seq": pa.int64(), "session": pa.string(), "subject_filter": pa.string()}


class _Interval(NamedTuple):
    session: str
    subject_filter: str | None
    began: int
    ended: int | None


_WISHES = st.builds(
    lambda session, wanted, began, length: _Interval(
        session, wanted, began, None if length is None else began + length
    ),
    st.sampled_from("xyz"),
    st.sampled_from(_FILTERS),
    st.integers(0, 45),
    st.none() | st.integers(0, 30),
)
_COUNTS = st.dictionaries(st.tuples(st.integers(0, 4), st.sampled_from(_SUBJECTS)), st.integers(1, 3), max_size=4)


@given(st.lists(st.tuples(_COUNTS, st.lists(_WISHES, max_size=2), st.booleans()), min_size=1, max_size=6))
def test_rows_are_written_again_only_and_always_where_they_change(
    batches: list[tuple[dict[tuple[int, str], int], list[_Interval], bool]],
) -> None:
    """A subscription that changes concerns the windows that end after it, and the subjects of its filter."""
    windows = Windows(MemoryStore(), window_us=W, horizon_us=1_000)
    totals: dict[tuple[int, str], int] = {}
    wishes: list[_Interval] = []
    written: dict[tuple[int, str], tuple[int, int]] = {}
    for batch, (counts, fresh, ends) in enumerate(batches, 1):
        for (number, subject), count in counts.items():
            totals[number * W, subject] = totals.get((number * W, subject), 0) + count
        windows.count([(number * W, subject, count) for (number, subject), count in counts.items()])
        if ends and wishes and wishes[0].ended is None:
            wishes[0] = wishes[0]._replace(ended=wishes[0].began + 7)
        wishes += fresh
        windows.change(_table(wishes))
        for rows in windows.popularity().values():
            written |= _rows(rows)
        windows.commit(batch)
        assert written == _rows(Wishes(_table(wishes)).popularity_rows(_counted(totals), W))


def _table(wishes: list[_Interval]) -> Any:
    rows = [dict(zip((*_KINDS, *_TIMES), ("n", number, *each), strict=True)) for number, each in enumerate(wishes)]
    return pa.Table.from_pylist(rows, schema=pa.schema([*_KINDS.items(), *_TIMES.items()]))


def _counted(totals: dict[tuple[int, str], int]) -> Any:
    rows = [
        {"subject": subject, "window_start": start, "window_end": start + W, "publications": count}
        for (start, subject), count in totals.items()
    ]
    kinds = [("window_start", TIME_TYPE), ("window_end", TIME_TYPE), ("publications", pa.int64())]
    return pa.Table.from_pylist(rows, schema=pa.schema([("subject", pa.string()), *kinds]))


def _rows(table: Any) -> dict[tuple[int, str], tuple[int, int]]:
    starts = table.column("window_start").cast(pa.int64()).to_pylist()
    names = ("subject", "publications", "subscribers")
    columns = (table.column(name).to_pylist() for name in names)
    return {(start, subject): values for start, subject, *values in zip(starts, *columns, strict=True)}  # type: ignore[misc]
