"""Bodies read straight into items against ``attributes_of``, which says what their attributes are."""

from __future__ import annotations

import json
from collections.abc import Sequence

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.match.events.bodies import Bodies
from whimbrel.match.events.encoder import Encoder
from whimbrel.match.index.content import ContentIndex
from whimbrel.match.kernels.arrays import Events
from whimbrel.model.attributes import Attributes
from whimbrel.model.codecs import attributes_of

COLUMNS = ("a", "b", "a.b", "temperature", "é", "n" * 30)
ENCODER = Encoder({(name, ()): number for number, name in enumerate(COLUMNS)}, {}, seed=7)
DERIVING = Encoder({("a", ()): 0, ("a", ("fold-case",)): 1, ("b", ()): 2}, {}, seed=7)
VALUED = Encoder({("value", ()): 0, ("a", ()): 1}, {}, seed=7)
VALUED_DERIVING = Encoder({("value", ()): 0, ("value", ("fold-case",)): 1}, {}, seed=7)
NAMES = st.sampled_from([*COLUMNS, "c", "", "\0"]) | st.text(max_size=4)
NUMBERS = st.from_regex(r"-?[0-9]{1,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{0,3})?", fullmatch=True)
PLAIN = st.none() | st.booleans() | st.integers(-(2**33), 2**33) | st.floats() | st.text('ab"\\\x7f é\n', max_size=5)
NESTED = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2))
VALUES = NUMBERS | NESTED.map(json.dumps) | st.sampled_from(["true", "nul", "falsefalse", "NaN", "-", "1.", "01", ""])
SPACE = st.sampled_from(["", "", "", " ", "\n\t", "\x0b"])
OBJECTS = st.builds(
    lambda pairs, space: (
        space
        + "{"
        + space
        + f"{space},{space}".join(f"{json.dumps(n)}{space}:{space}{v}" for n, v in pairs)
        + "}"
        + space
    ).encode(),
    st.lists(st.tuples(NAMES, VALUES), max_size=5),
    SPACE,
)
CUT = st.builds(lambda body, share: body[: int(len(body) * share)], OBJECTS, st.floats(0, 1))
SCALARS = st.builds(lambda space, value: (space + value + space).encode(), SPACE, VALUES | st.text(max_size=6))
BODIES = OBJECTS | CUT | st.binary(max_size=8) | NESTED.map(cbor2.dumps) | SCALARS


def _items(events: Events) -> list[dict[int, tuple[object, ...]]]:
    """Return what each row shows by column, with its type and to the last bit."""
    found: list[dict[int, tuple[object, ...]]] = []
    text = events.text.tobytes()
    for begin, end in zip(events.row_start[:-1], events.row_start[1:], strict=True):
        row: dict[int, tuple[object, ...]] = {}
        for item in range(begin, end):
            kind = int(events.kind[item])
            string = text[events.text_start[item] : events.text_end[item]] if kind == 4 else b""
            number = repr(float(events.real[item])) if kind == 3 else int(events.integer[item]) if kind < 3 else 0
            assert int(events.column[item]) not in row
            row[int(events.column[item])] = (kind, number, string)
        found.append(row)
    return found


def _both_ways_agree(encoder: Encoder, bodies: Sequence[bytes]) -> None:
    assert _items(encoder.bodies(Bodies(bodies))) == _items(encoder.rows([attributes_of(body) for body in bodies]))


@given(bodies=st.lists(BODIES, min_size=1, max_size=6))
def test_both_ways_agree_on_any_bodies(bodies: list[bytes]) -> None:
    """Names twice, nesting, nulls, large numbers, other forms, and what is cut off anywhere among them."""
    _both_ways_agree(ENCODER, bodies)
    _both_ways_agree(DERIVING, bodies)
    _both_ways_agree(VALUED, bodies)
    _both_ways_agree(VALUED_DERIVING, bodies)


@given(number=NUMBERS)
def test_numbers_are_read_to_the_last_bit(number: str) -> None:
    """A double that is off by one bit equals nothing that a filter names."""
    _both_ways_agree(ENCODER, [b'{"a": %s}' % number.encode()])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{}",
        b"{ } ",
        b"{,}",
        b'{"a": 1,}',
        b'{"a": 1 "b": 2}',
        b'{"a": 1} x',
        b'{"c": 1, "c": 2, "a": 3}',
        b'{"a": -0, "b": -0.0}',
        b'{"a": 2147483647, "b": -2147483648}',
        b'{"a": 2147483648}',
        b'{"a": 9007199254740993.0}',
        b'{"a": 1e22, "b": 1e23}',
        b'{"a": 0.1e-22}',
        b'{"a": true, "b": false, "a.b": null}',
        b'{"a": tru}',
        b'{"a": "\xc3\xa9"}',
        b'{"a": {"b": 1}}',
        b"{" + b", ".join(b'"n%d": %d' % (n, n) for n in range(64)) + b', "a": 1}',
        b'{"a": 1' + b" " * 1_020 + b"}",
        b'{"' + b"n" * 30 + b'": 1}',
        cbor2.dumps({"a": 1}),
        b" \xa0",
    ],
)
def test_both_ways_agree_on_what_there_is_a_rule_for(body: bytes) -> None:
    """Each doubt once, between bodies that there is none about."""
    _both_ways_agree(ENCODER, [b'{"a": 1}', body, b'{"temperature": 36.6, "b": "x"}'])


@given(bodies=st.lists(BODIES, min_size=2, max_size=4), shown=st.dictionaries(st.just("a"), st.integers(0, 3)))
def test_what_is_given_counts_instead_of_the_body(bodies: list[bytes], shown: Attributes) -> None:
    """User properties are attributes too, and only the caller has seen them."""
    index = ContentIndex.load([(0, "a == 1"), (1, "a > 0 || b == 'x'"), (2, "size(a) > 1"), (3, "a + 1 == 2")])
    index.add(4, "a >= 1")
    rows = [shown, *map(attributes_of, bodies[1:])]
    found, expected = index.match_rows(Bodies(bodies, {0: shown})), index.match_rows(rows)
    assert [each.tolist() for each in found] == [each.tolist() for each in expected]
