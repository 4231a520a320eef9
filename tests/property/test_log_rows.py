"""A fact survives every form the log gives it: row, record, Arrow, JSON line."""

from __future__ import annotations

import json
from contextlib import suppress

import cbor2
from hypothesis import given
from hypothesis import strategies as st
from strategies import facts

from whimbrel.errors import InvalidInputError, InvalidValueError
from whimbrel.log.columns import from_arrow, to_arrow
from whimbrel.log.lines import json_of, row_from_json
from whimbrel.log.records import BODY, body_of, row_from, time_from
from whimbrel.model.attributes import type_of
from whimbrel.model.facts import Fact
from whimbrel.model.json_body import read_json
from whimbrel.model.notification import Notification
from whimbrel.model.rows import COLUMNS, fact_of, row_of

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def kinds(fact: Fact) -> object:
    """Return the types of a publication's attributes, which equality does not see."""
    return {n: type_of(v) for n, v in fact.attributes.items()} if isinstance(fact, Notification) else None


@given(fact=facts())
def test_a_row_gives_its_fact_back(fact: Fact) -> None:
    """The tables record all there is."""
    back = fact_of(*row_of(fact))
    assert back == fact
    assert kinds(back) == kinds(fact)


@given(fact=facts())
def test_a_record_gives_its_fact_back(fact: Fact) -> None:
    """So does the segment."""
    body, at = body_of(fact)
    seq, number = BODY.unpack_from(body)
    back = fact_of(*row_from(fact.node, seq, number, body[BODY.size :]))
    assert back == fact
    assert kinds(back) == kinds(fact)
    assert time_from(number, body[BODY.size :]) == at


@given(found=st.lists(facts(), max_size=5))
def test_arrow_gives_the_facts_back(found: list[Fact]) -> None:
    """So does Parquet, whose types these are."""
    for table in COLUMNS:
        mine = [fact for fact in found if row_of(fact)[0] == table]
        data = to_arrow(table, [row_of(fact)[1] for fact in mine])
        back = list(from_arrow(table, data))
        assert back == mine
        assert list(map(kinds, back)) == list(map(kinds, mine))
        assert [fact for batch in data.to_batches() for fact in from_arrow(table, batch)] == mine
        assert list(from_arrow(table, data.slice(1))) == mine[1:]


@given(fact=facts())
def test_a_json_line_gives_its_fact_back(fact: Fact) -> None:
    """What ``show --json`` prints, ``import`` reads."""
    line = json.dumps(json_of(*row_of(fact)))
    back = fact_of(*row_from_json(read_json(line)))
    assert back == fact
    assert kinds(back) == kinds(fact)


@given(table=st.sampled_from(sorted(COLUMNS)), tree=st.dictionaries(st.text(max_size=3), ANYTHING), data=st.data())
def test_any_json_line_is_a_fact_or_our_error(table: str, tree: dict[str, object], data: st.DataObject) -> None:
    """Import takes lines from strangers."""
    names = st.sampled_from([*COLUMNS[table], "body_base64", "attributes_typed"])
    line = {"table": table, **tree, **data.draw(st.dictionaries(names, ANYTHING))}
    with suppress(InvalidInputError):
        fact_of(*row_from_json(line))


@given(table=st.sampled_from(sorted(COLUMNS)), data=st.data())
def test_any_row_is_a_fact_or_our_error(table: str, data: st.DataObject) -> None:
    """Others write Parquet too."""
    row = data.draw(st.dictionaries(st.sampled_from(COLUMNS[table]), ANYTHING))
    with suppress(InvalidValueError):
        fact_of(table, row)


@given(number=st.integers(0, 255), payload=st.binary(max_size=60) | st.lists(ANYTHING, max_size=15).map(cbor2.dumps))
def test_any_payload_is_a_row_or_our_error(number: int, payload: bytes) -> None:
    """A checksum says that bytes are as they were written, not that they were well written."""
    with suppress(InvalidValueError):
        fact_of(*row_from("n", 1, number, payload))
    with suppress(InvalidValueError):
        time_from(number, payload)
