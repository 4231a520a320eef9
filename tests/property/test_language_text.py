"""Text to tree and back: any text, every tree."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import filters, trees

from whimbrel.errors import FilterError
from whimbrel.language.ast import And, Not, Predicate, height
from whimbrel.language.codes import ErrorCode
from whimbrel.language.filters import Filter, can_be_read, parse, parse_stored, parse_without_shapes
from whimbrel.language.parser import MAX_HEIGHT, MAX_TEXT
from whimbrel.language.printer import print_filter
from whimbrel.match.subjects import with_subject

_WORDS = st.sampled_from(
    "a b == != < <= > >= && || ^^ ! ( ) , + - * / % << >> >>> | ^ & ~ "
    "1 2L 0x1F 052 08 1.5 1.5e3 9999999999 true 'x' \"y\" "
    "'un \\ require size equals regex contains fold-case nan [ = . # é".split()
)
_NEARLY = st.lists(_WORDS, max_size=24).map(" ".join) | st.lists(_WORDS, max_size=24).map("".join)


def _parse_or_error(text: str) -> Predicate | FilterError:
    try:
        return parse(text)
    except FilterError as error:
        return error


@given(text=st.text() | st.text(st.characters()) | _NEARLY)
@example("\ud800 == 1")
@example("a == 1\n  && b == \n 'x")
@example("a == " + "9" * 5000)
def test_any_text_gives_a_filter_or_an_error_with_a_place_inside_it(text: str) -> None:
    """Whatever a stranger sends is answered, precisely, and never with a traceback."""
    outcome = _parse_or_error(text)
    if isinstance(outcome, FilterError):
        assert outcome.code in set(ErrorCode)
        assert 0 <= outcome.start <= outcome.end <= len(text)
        assert outcome.line <= text.count("\n") + 1
        assert 1 <= outcome.column <= len(text.split("\n")[outcome.line - 1]) + 1
        assert "^" in outcome.pointed().splitlines()[-1]


@given(tree=filters())
def test_a_printed_tree_parses_to_the_same_tree(tree: Predicate) -> None:
    """What we show, log and store can be read again without loss."""
    assert parse(print_filter(tree)) == tree
    assert repr(parse(print_filter(tree))) == repr(tree)


@given(tree=trees())
def test_a_printed_tree_is_refused_only_by_the_static_check(tree: Predicate) -> None:
    """The printer writes the grammar, also for trees that mean nothing."""
    outcome = _parse_or_error(print_filter(tree))
    assert outcome == tree or (isinstance(outcome, FilterError) and outcome.code == ErrorCode.TRIVIAL)


@given(text=_NEARLY, tree=filters())
def test_the_shape_cache_changes_nothing(text: str, tree: Predicate) -> None:
    """The fast way and the plain way agree: same tree, or same error at the same place."""
    for candidate in (text, print_filter(tree)):
        try:
            plain: Predicate | FilterError = parse_without_shapes(candidate)
        except FilterError as error:
            plain = error
        for _ in range(3):  # unknown, seen once, known
            assert repr(_parse_or_error(candidate)) == repr(plain)


@given(text=_NEARLY, cut=st.integers(0, 80))
def test_white_space_around_operators_never_matters(text: str, cut: int) -> None:
    """Ours is friendlier than Elvin here, and must be so everywhere."""
    padded = text[:cut] + text[cut:].replace("&&", " && ").replace("==", "\t==\r\n")
    outcome, again = _parse_or_error(text), _parse_or_error(padded)
    if isinstance(outcome, Predicate):
        assert again == outcome or "\\" in text or "'" in text or '"' in text


@given(filters(), st.sampled_from(["a", "ward/+/pulse", "#", "+", "a/" * 10 + "#"]))
def test_whether_a_joined_tree_can_be_read_is_known_without_parsing_it(tree: Predicate, topic_filter: str) -> None:
    """Subject and content are joined as trees; what the parser would say of the text is decided on the tree."""
    _check_joined(with_subject(topic_filter, tree))


@pytest.mark.parametrize("levels", range(MAX_HEIGHT - 4, MAX_HEIGHT + 2))
@pytest.mark.parametrize("leaf", ["-(-a) > 1", "require(a)", "contains(fold-case(a), 'x')", "a == -1", "size(a) > 1"])
def test_height_is_counted_as_the_parser_counts_it(levels: int, leaf: str) -> None:
    """At the bound, one level decides."""
    tree = parse(leaf)
    while height(tree) < levels:
        tree = Not(And((tree, tree))) if height(tree) < 8 else Not(tree)
    _check_joined(tree)
    _check_joined(with_subject("ward/+", tree))


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_a_joined_text_may_be_as_long_as_any(spare: int) -> None:
    """The parser counts characters, and so does the matcher."""
    length = len(print_filter(with_subject("ward/3", parse("a == ''"))))
    tree = with_subject("ward/3", parse(f"a == '{'x' * (MAX_TEXT - length + spare)}'"))
    assert len(print_filter(tree)) == MAX_TEXT + spare
    _check_joined(tree)


def _check_joined(tree: Predicate) -> None:
    text = print_filter(tree)
    try:
        is_read = parse_stored(text) == tree
    except FilterError:
        is_read = False
    assert can_be_read(tree, text) is is_read


def test_a_filter_is_its_text() -> None:
    """So it can stand in a set, and goes to another process as what was said."""
    one, other = Filter("a  > 1"), Filter("a > 1")
    assert one != other
    assert {one, Filter("a  > 1")} == {one}
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 # our own
    assert one != "a  > 1"
