"""The cache of shapes: what it gives is what the plain parser gives, for every text and whatever came before.

Shapes must repeat for the cache to answer at all, so all texts of an example are made from one: the same operators,
with names, function names, keywords and literals in each other's places.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import filters

from whimbrel.errors import FilterError
from whimbrel.language import filters as filters_module
from whimbrel.language.ast import Not
from whimbrel.language.backends.python import compile_filter
from whimbrel.language.filters import parse, parse_without_shapes, recognise
from whimbrel.language.functions import FUNCTIONS
from whimbrel.language.printer import print_filter
from whimbrel.language.shapes import ShapeCache
from whimbrel.language.tokens import OPERATORS, Kind, tokenize
from whimbrel.match.index import shape_groups
from whimbrel.match.index.content import ContentIndex
from whimbrel.match.index.plans import Harvest, harvest
from whimbrel.model.attributes import Attributes

_NAMES = ("a", "b", "name", "integer", "long", "real", "\\string", "\\'x\\'", "truE")
_FUNCTIONS = ("string", "require", "size", "nan", "int32", "contains", "equals", "fold-case", "regex")
_NUMBERS = ("1", "2", "true", "false", "052", "2147483647", "2147483648", "9999999999")
_LONGS = ("1L", "9223372036854775807L", "9223372036854775808L")
_REALS = ("1.5", "0.0", "1.0e308", "1.0e400")
_STRINGS = ("'x'", "'string'", '"name"', "'it\\'s'", "''", "'a'")
_GROUPS = (_NAMES, _FUNCTIONS, _NUMBERS, _LONGS, _REALS, _STRINGS)
_SKELETONS = (
    "a == 1",
    "a == -1",
    "a == b",
    "1 < a",
    "string(a)",
    "string(string)",
    "size(a) > 1",
    "contains(a, 'x')",
    "contains(fold-case(a), 'x', 'y')",
    "equals(a, 1, 'x', b)",
    "a + 1 == b",
    "!require(a) || b == 1",
    "-a * 2 < 1.5 && b != 'x'",
    "(a == 1 ^^ a == 2 ^^ a == 3 ^^ a == 4) || (b == 1 ^^ b == 2 ^^ b == 3 ^^ b == 4)",
)
_EVENTS = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "name", "string", "'x'"]), st.sampled_from([1, 2, 1.5, "x", "string"])),
    max_size=4,
)


def _groups_of(token: str) -> Sequence[str]:
    """Return the words of *token*'s sort; an operator is alone."""
    if token in OPERATORS:
        return (token,)
    if token in FUNCTIONS:
        return _FUNCTIONS
    if token[0] in "'\"":
        return _STRINGS
    if token[0].isdigit():
        return _REALS if "." in token else _LONGS if token[-1] in "lL" else _NUMBERS
    return _NAMES


@st.composite
def _texts_of_one_skeleton(draw: st.DrawFn) -> list[str]:
    """Return texts that share their operators: mostly the same sort of word in each place, now and then another."""
    skeleton = tokenize(draw(st.sampled_from(_SKELETONS) | filters().map(print_filter)))
    same_sort = st.tuples(*(st.just(token) | st.sampled_from(_groups_of(token)) for token in skeleton))
    any_sort = st.tuples(
        *(
            st.just(token)
            if token in OPERATORS
            else st.just(token) | st.sampled_from(_groups_of(token)) | st.sampled_from(_GROUPS).flatmap(st.sampled_from)
            for token in skeleton
        )
    )
    texts = draw(st.lists(same_sort | any_sort, min_size=1, max_size=6))
    # Twice each: a shape is kept when it is seen again, and what was kept must answer the others.
    order = draw(st.permutations([*texts, *texts]))
    return [" ".join(words) for words in order]


@contextmanager
def _fresh_cache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters_module, "_shapes", ShapeCache())
        yield


def _outcome(read: Callable[[str], object], text: str) -> str:
    try:
        return repr(read(text))
    except FilterError as error:
        return repr(error)


@given(texts=_texts_of_one_skeleton())
@example(["a == string", "b == string", "bed == 'ICU-4'"])
@example(["a == 'x'", "a == 'x'", "a == string"])
@example(["contains(a, 'x')", "contains(a, 'y')", "contains(a, string)"])
@example(["string(a)", "string(b)", "'x'(a)"])
def test_what_the_cache_gives_is_what_the_plain_parser_gives(texts: list[str]) -> None:
    """One client's filter must not change what another's means, nor make a filter of a text that is none."""
    with _fresh_cache():
        for text in texts:
            assert _outcome(parse, text) == _outcome(parse_without_shapes, text)


@given(texts=_texts_of_one_skeleton(), events=_EVENTS)
@example(["a + 1 == b", "a + 1 == b", "a + 9999999999 == b"], [{"a": 1}])
@example(
    [
        "(a == 1 ^^ a == 2 ^^ a == 3 ^^ a == 4) || (a == 1 ^^ a == 2 ^^ a == 3 ^^ a == 4)",
        "(b == 1 ^^ b == 2 ^^ b == 3 ^^ b == 4) || (b == 1 ^^ b == 2 ^^ b == 3 ^^ b == 4)",
        "(a == 1 ^^ a == 2 ^^ a == 3 ^^ a == 4) || (b == 1 ^^ b == 2 ^^ b == 3 ^^ b == 4)",
    ],
    [{"a": 1}, {"b": 1}],
)
def test_an_index_of_repeated_shapes_agrees_with_the_plain_parser(texts: list[str], events: list[Attributes]) -> None:
    """Plans and anchors are made once a shape; what they leave out of one text they must not leave out of another."""
    with _fresh_cache():
        packed, delta, wanted = [], ContentIndex(), {}
        for handle, text in enumerate(texts):
            outcome = _outcome(parse_without_shapes, text)
            is_refused = outcome.startswith("FilterError")
            assert _outcome(partial(harvest, Harvest(), handle), text) == (outcome if is_refused else "None")
            if is_refused:
                continue
            packed.append((handle, text))
            delta.add(handle, text)
            wanted[handle] = compile_filter(parse_without_shapes(text))
        indexes = [delta]
        for few in (1, sys.maxsize):  # by columns, and filter by filter
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(shape_groups, "FEW", few)
                indexes.append(ContentIndex.load(packed))
                if len(packed) < len(texts):
                    with pytest.raises(FilterError):
                        ContentIndex.load(enumerate(texts))
        for event in events:
            truth = sorted(handle for handle, verdict in wanted.items() if verdict(event) is True)
            assert all(sorted(index.match(event)) == truth for index in indexes)


def test_the_cache_is_asked_at_all() -> None:
    """Else the tests here would compare the parser with itself."""
    with _fresh_cache():
        for text in ("a == 'x'", "b == 'y'"):
            parse(text)
        assert recognise("c == 'z'") is not None
        assert recognise("c == string") is None


@pytest.mark.parametrize("kind", [Kind.NAME, *sorted(Kind.LITERALS)])
def test_no_kind_is_spelled_like_a_token(kind: str) -> None:
    """A function's name and an operator are kinds of their own, so the others must never be words of a text."""
    assert tokenize(kind) != [kind]


def test_a_known_shape_read_deep_in_a_stack_is_a_filter_or_an_error() -> None:
    """The cache builds trees by recursion: where the stack ends it declines, and the parser words the error."""
    text = "!(" * 20 + "a == 1 && b == 1" + ")" * 20
    for _ in range(3):
        parse(text)

    def read_below(frames: int) -> str:
        return _outcome(lambda given: type(parse(given)), text) if frames == 0 else read_below(frames - 1)

    room = sys.getrecursionlimit() - len(inspect.stack(0))
    outcomes = {read_below(room - left).partition("(")[0] for left in range(20, 200)}
    assert outcomes == {repr(Not), "FilterError"}
