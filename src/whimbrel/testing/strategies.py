"""Hypothesis strategies for filters and attributes (needs hypothesis, which Whimbrel itself does not).

The trees pass the static check; the attributes miss some names, mistype others and love edges, because that is where
three-valued logic, promotion and wrap-around show.
"""

from __future__ import annotations

from hypothesis import strategies as st

from whimbrel.language.ast import (
    And,
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Equals,
    Literal,
    Name,
    Not,
    Or,
    Pattern,
    PatternFunction,
    Predicate,
    Size,
    Test,
    TestFunction,
    Text,
    TextFunction,
    Unary,
    UnaryOp,
    Value,
    Xor,
)
from whimbrel.language.check import INTEGER_OPS, StaticError, check
from whimbrel.model.attributes import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, Attributes, Int64, Scalar

__all__ = ["attributes", "filters", "names", "scalars", "trees"]

NAMES = ("a", "b", "c", "d", "user-name", "two words", "true", "1st", "ünïcode")

_SMALL = st.integers(-4, 4)
_INT32 = st.one_of(_SMALL, st.sampled_from([INT32_MIN, INT32_MAX, 31, 32, 33, 64]), st.integers(INT32_MIN, INT32_MAX))
_INT64 = st.one_of(
    _SMALL, st.sampled_from([INT64_MIN, INT64_MAX, 2**53 + 1, INT32_MAX + 1]), st.integers(INT64_MIN, INT64_MAX)
).map(Int64)
_REAL = st.one_of(_SMALL.map(float), st.sampled_from([-0.0, 0.5, 2.0**53, 1e300]), st.floats())
_FINITE = _REAL.filter(lambda real: abs(real) <= 1.7e308)
_STRING = st.one_of(
    st.sampled_from(["", "a", "ab", "abc", "ABC", "foobar", "Á", "Á", "ß", "x\ny", "*", "[a]", "it's", '"\\'])
    # the rest of Unicode, lone surrogates aside
    | st.text(st.characters(codec="utf-8"), max_size=6)
)
_REGEXES = ("a", "^a", "b$", "a.c", "o+b", "[a-c]+", "(?i)abc", "^$", "x.y", "a|b")
_WILDCARDS = ("*", "?", "a*", "*b*", "a?c", "[a-c]*", "[^a]*", "\\*", "*bar", "x?y", "[]]")


def names() -> st.SearchStrategy[str]:
    """Return a few attribute names, some of which the language must escape."""
    return st.sampled_from(NAMES)


def scalars() -> st.SearchStrategy[Scalar]:
    """Return values of all five types, edges first."""
    return st.one_of(_INT32, _INT64, _REAL, _STRING, st.binary(max_size=3))


def attributes() -> st.SearchStrategy[Attributes]:
    """Return attributes for the names that ``trees`` speak of, some missing, some of an unexpected type."""
    return st.dictionaries(names(), scalars(), max_size=len(NAMES))


def filters() -> st.SearchStrategy[Predicate]:
    """Return trees that pass the static check."""
    return trees().filter(_passes)


def trees() -> st.SearchStrategy[Predicate]:
    """Return well-formed trees of any kind; a few are constant or too deep, and fail the static check."""
    return st.recursive(_leaves(), _compound, max_leaves=8)


def _passes(tree: Predicate) -> bool:
    try:
        check(tree)
    except StaticError:
        return False
    return True


def _compound(inner: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
    several = st.lists(inner, min_size=2, max_size=4).map(tuple)
    return st.one_of(st.builds(And, several), st.builds(Or, several), st.builds(Xor, several), st.builds(Not, inner))


def _leaves() -> st.SearchStrategy[Predicate]:
    numbers, strings, name = _numbers(), _strings(), st.builds(Name, names())
    comparison = st.sampled_from(CompareOp)
    plain = [PatternFunction.BEGINS_WITH, PatternFunction.ENDS_WITH, PatternFunction.CONTAINS]
    return st.one_of(
        st.builds(Compare, comparison, name, st.one_of(_literals(), name)),
        st.builds(Compare, comparison, numbers, numbers),
        st.builds(Compare, comparison, strings, strings),
        st.builds(Equals, name, st.lists(st.one_of(_literals(), name, numbers), min_size=1, max_size=3).map(tuple)),
        st.builds(Equals, strings, st.lists(strings, min_size=1, max_size=3).map(tuple)),
        st.builds(Pattern, st.sampled_from(plain), strings, _patterns(_STRING)),
        st.builds(Pattern, st.just(PatternFunction.REGEX), strings, _patterns(st.sampled_from(_REGEXES))),
        st.builds(Pattern, st.just(PatternFunction.WILDCARD), strings, _patterns(st.sampled_from(_WILDCARDS))),
        st.builds(Test, st.sampled_from(TestFunction), name),
    )


def _patterns(each: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(each, min_size=1, max_size=3).map(tuple)


def _literals() -> st.SearchStrategy[Literal]:
    return st.builds(Literal, st.one_of(_INT32, _INT64, _FINITE, _STRING))


def _numbers() -> st.SearchStrategy[Value]:
    """Numeric terms in which integers stay apart from reals where the static check wants them to."""
    name = st.builds(Name, names())
    integers = st.recursive(
        st.one_of(name, st.builds(Literal, st.one_of(_INT32, _INT64)), st.builds(Size, name)),
        lambda inner: st.one_of(
            st.builds(Unary, st.sampled_from(UnaryOp), inner),
            st.builds(Binary, st.sampled_from(BinaryOp), inner, inner),
        ),
        max_leaves=4,
    )
    signs = st.sampled_from([UnaryOp.NEGATE, UnaryOp.PLUS])
    arithmetic = st.sampled_from([op for op in BinaryOp if op not in INTEGER_OPS])
    return st.recursive(
        st.one_of(integers, st.builds(Literal, _FINITE)),
        lambda inner: st.one_of(st.builds(Unary, signs, inner), st.builds(Binary, arithmetic, inner, inner)),
        max_leaves=3,
    )


def _strings() -> st.SearchStrategy[Value]:
    return st.recursive(
        st.one_of(st.builds(Name, names()), st.builds(Literal, _STRING)),
        lambda inner: st.builds(Text, st.sampled_from(TextFunction), inner),
        max_leaves=2,
    )
