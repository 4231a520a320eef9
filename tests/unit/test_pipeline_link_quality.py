"""Link quality from reports: NetworkConnection of the paper, report to report."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.device import DeviceState
from whimbrel.model.tables import TABLES, TIME_TYPE
from whimbrel.node.link_quality import LinkQuality
from whimbrel.node.memory import MemoryCount
from whimbrel.pipeline.tables.link_quality import link_rows
from whimbrel.shape import variables
from whimbrel.shape.variables import SILENCE_US

Report = tuple[str, int | None, int | None]
"""Device, received, sent; its place in a list is its number, and its time ten times that."""


def reports(rows: list[Report], *, first: int = 0) -> Any:
    """Return *rows* as a table of the log."""
    schema = TABLES["reports"].schema
    given = {
        "node": ["n"] * len(rows),
        "seq": list(range(first, first + len(rows))),
        "reported_at": [10 * seq for seq in range(first, first + len(rows))],
        "device": [device for device, _, _ in rows],
        "received": [received for _, received, _ in rows],
        "sent": [sent for _, _, sent in rows],
    }
    columns = [pa.array(given.get(field.name, [None] * len(rows)), field.type) for field in schema]
    return pa.table(columns, schema=schema)


def told(batch: Any) -> list[tuple[Any, ...]]:
    """Return rows of ``link_quality``, times in microseconds."""
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


class Links:
    """The links of a node, and which of their rows have changed."""

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self.links = LinkQuality(lambda key: self.changed.add(str(key[1])), MemoryCount(), most=INT64_MAX)

    def take(self, table: Any) -> Any:
        """Return the rows of the next reports."""
        return link_rows("n", self.links, table)


def naive(rows: list[Report]) -> list[tuple[Any, ...]]:
    """Return the table by looking back from every report at all before it."""
    found: list[tuple[Any, ...]] = []
    for seq, (device, received, sent) in enumerate(rows):
        before = [each for each in range(seq) if rows[each][0] == device]
        values = [
            min(1.0, rows[each][1] / rows[each][2])  # type: ignore[operator]  # both are numbers, as asked below
            for each in [*before, seq]
            if rows[each][1] is not None and rows[each][2] not in {None, 0}
        ]
        if before:
            value = values[-1] if values else None
            found.append(("n", seq, device, 10 * before[-1], 10 * seq, received, sent, value))
    return found


counts = st.none() | st.integers(0, 4)
some_reports = st.lists(st.tuples(st.sampled_from("abc"), counts, counts), max_size=30)


@given(rows=some_reports, cut=st.integers(0, 30))
def test_links_go_on_from_batch_to_batch(rows: list[Report], cut: int) -> None:
    """Wherever reports are cut, the rows are those of looking back at all of them."""
    links = Links()
    found = told(links.take(reports(rows[:cut]))) + told(links.take(reports(rows[cut:], first=len(rows[:cut]))))
    assert found == naive(rows)


@given(rows=some_reports, cut=st.integers(0, 30))
def test_what_changed_is_enough_to_go_on(rows: list[Report], cut: int) -> None:
    """A stream keeps only the devices that reported since it kept the others."""
    kept: dict[str, variables.LinkState] = {}
    for part in (rows[:cut], rows[cut:]):
        links = Links()
        links.links.state |= kept
        links.take(reports(part))
        assert links.changed == {device for device, _, _ in part}
        kept |= {device: links.links.state[device] for device in links.changed}
    whole = Links()
    whole.take(reports(rows))
    assert {device: value for device, (_, value) in kept.items()} == {
        device: value for device, (_, value) in whole.links.state.items()
    }


def test_nothing_sent_keeps_the_value() -> None:
    """A quiet night says nothing about the radio (SUBLIM leaves it open)."""
    rows: list[Report] = [("a", None, None), ("a", 0, 0), ("a", 1, 2), ("a", 0, 0), ("a", None, 5), ("a", 9, 3)]
    assert [row[-1] for row in told(Links().take(reports(rows)))] == [None, 0.5, 0.5, 0.5, 1.0]


def test_the_first_report_is_remembered() -> None:
    """It has no interval behind it, but what it says is better than nothing."""
    rows: list[Report] = [("a", 1, 4), ("a", 0, 0)]
    assert told(Links().take(reports(rows))) == [("n", 1, "a", 0, 10, 0, 0, 0.25)]


def test_a_device_that_was_silent_too_long_begins_anew() -> None:
    """Whether or not its state was forgotten meanwhile: who forgets and who does not tell the same."""
    first, second = reports([("a", 3, 4), ("b", 1, 1)]), reports([("a", None, None), ("b", None, None)], first=2)
    late = pa.array([SILENCE_US, SILENCE_US + 9], TIME_TYPE)  # a reported at 0 and b at 10
    second = second.set_column(second.schema.get_field_index("reported_at"), "reported_at", late)
    for forgets in (False, True):
        links = Links()
        links.take(first)
        if forgets:
            links.changed.clear()
            links.links.forget(SILENCE_US)
            assert links.links.state.keys() == {"b"}
            assert links.changed == {"a"}
        assert told(links.take(second)) == [("n", 3, "b", 10, SILENCE_US + 9, None, None, 1.0)]


@given(rows=st.lists(st.tuples(counts, counts), max_size=9), step=st.sampled_from([10, SILENCE_US - 1, SILENCE_US]))
def test_the_variable_of_policies_is_what_the_table_says(rows: list[tuple[int | None, int | None]], step: int) -> None:
    """Policies and the pipeline must see one NetworkConnection, a week of silence included."""
    assert variables.SILENCE_US == SILENCE_US
    variable, links = variables.AutomaticVariables(), Links()
    for seq, (received, sent) in enumerate(rows):
        at = seq * step
        state = DeviceState(device="a", reported_at=at, received=received, sent=sent)
        variable.take(state)
        table = reports([("a", received, sent)], first=seq)
        times = pa.array([at], pa.int64()).cast(TIME_TYPE)
        links.take(table.set_column(table.schema.get_field_index("reported_at"), "reported_at", times))
        assert variable.values.get("NetworkConnection") == links.links.state["a"][1]
