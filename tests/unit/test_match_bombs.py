"""Filter bombs: whatever a stranger sends is bounded in time and memory, counted in entries and bytes."""

from __future__ import annotations

import pytest

from whimbrel.errors import FilterError
from whimbrel.language.backends.python import compile_filter
from whimbrel.language.filters import parse
from whimbrel.language.rewrites import normal_form
from whimbrel.match.index.content import ContentIndex
from whimbrel.match.index.leaves import MAX_LEAVES, clauses

BOMBS = {
    "a thousand ors": " || ".join(f"a{i} == {i}" for i in range(1_000)),
    "ands of ors": " && ".join("(" + " || ".join(f"a{i} > {j}" for j in range(20)) + ")" for i in range(20)),
    "ors of ands of ors": " || ".join(f"(a{i} == 1 && (b == 1 || c == 1) && (d == 1 || e == 1))" for i in range(200)),
    "xors": " ^^ ".join(f"a{i} == 1" for i in range(200)),
    "nested xors": "(((a == 1 ^^ b == 1) && c == 1 ^^ d == 1) && e == 1 ^^ f == 1) && g == 1 ^^ h == 1",
    "deeply nested xors": "(" * 28 + "a == 1" + "".join(f" ^^ b == {i}) && a{i} == 1" for i in range(28)),
    "a hundred regexes": " || ".join(f"regex(a, 'x{i}+y')" for i in range(100)),
    "a long string": f"a == '{'x' * 65_000}'",
    "a long prefix": f"begins-with(a, '{'x' * 65_000}')",
    "a thousand patterns": "contains(a, " + ", ".join(f"'p{i}'" for i in range(1_000)) + ")",
    "many equals": "equals(a, " + ", ".join(map(str, range(5_000))) + ")",
    "negated equals": "!equals(a, " + ", ".join(map(str, range(5_000))) + ")",
    "tall": "!(" * 30 + "a == 1 && b == 1" + ")" * 30,
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_bomb_stays_small_and_right(text: str) -> None:
    """No filter takes more room than a small multiple of its text, and the answer is the reference's."""
    found = clauses(normal_form(parse(text)))
    assert sum(len(clause.direct) for clause in found) <= MAX_LEAVES
    index = ContentIndex.load([(7, text), (8, "b == 1")])
    assert index.size_bytes < 100 * len(text) + 100_000
    reference = compile_filter(parse(text))
    for event in ({"a": 1}, {"b": 1, "a0": 1, "d": 1}, {"a": "x" * 65_000}, {"a": "p7 x3xxy"}, {"a5": 5}, {}):
        assert (7 in index.match(event)) is (reference(event) is True)


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_bomb_in_the_delta_is_right_too(text: str) -> None:
    """Before it is packed it is decided by the closures."""
    index = ContentIndex()
    index.add(7, text)
    reference = compile_filter(parse(text))
    for event in ({"a": 1}, {"b": 1, "a0": 1, "d": 1}, {"a": "p7 x3xxy"}, {}):
        assert (7 in index.match(event)) is (reference(event) is True)


def test_more_patterns_than_allowed_are_refused() -> None:
    """Two hundred regular expressions in one filter are two hundred too many questions per event."""
    with pytest.raises(FilterError) as caught:
        ContentIndex().add(1, " || ".join(f"regex(a, 'x{i}')" for i in range(200)))
    assert caught.value.code == 2111
