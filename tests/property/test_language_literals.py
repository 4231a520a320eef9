"""Required literals: whatever a pattern matches has one of each requirement in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import REGEXES, WILDCARDS

from whimbrel.language.ast import PatternFunction
from whimbrel.language.literals import required_literals
from whimbrel.language.patterns import PatternError, regex_of, searcher

PIECES = st.sampled_from(
    [
        *"abxyz-/.^$|()[]{}*+?\\é ",
        *("ab", "(?:", "(?i)", "(?i:", "(?P<n>", "(?<n>", "(?s)", "(?-i)", "(?", "(a|b)", "(ab|)", "(ab)?", "(ab)+"),
        *(r"\d", r"\pL", r"\p{Lu}", r"\x61", r"\x{62}", r"\Qa.b\E", r"\101", r"\b", r"\A", r"\z", r"\.", r"\_", r"\n"),
        *(r"\C", r"\-", "[ab]", "[^a]", "[]a]", "[[:alpha:]]", "[a-c]", "{2}", "{0}", "{0,3}", "{2,}", "{,3}", "{02}"),
        *("*?", "+?", "??"),
    ]
)
PATTERNS = st.one_of(st.lists(PIECES, max_size=8).map("".join), st.sampled_from(REGEXES))
TEXTS = st.text(st.sampled_from("abcxyzABKs-/.{}02,3é _\n"), max_size=12)
LIKES = st.one_of(st.sampled_from(WILDCARDS), TEXTS, st.text(st.sampled_from("ab*?[]^-\\"), max_size=8))


@given(pattern=PATTERNS, texts=st.lists(TEXTS, min_size=1, max_size=20))
def test_what_a_regex_matches_has_its_literals(pattern: str, texts: list[str]) -> None:
    """A requirement that is wrong would hide a match."""
    try:
        search = searcher(PatternFunction.REGEX, pattern)
    except PatternError:
        return
    required = required_literals(pattern)
    for text in texts:
        if search(text):
            assert all(any(literal in text for literal in each) for each in required)


@given(
    pattern=st.one_of(st.sampled_from(WILDCARDS), TEXTS, st.text(st.sampled_from("ab*?[]^-\\"), max_size=8)),
    data=st.data(),
)
def test_what_a_wildcard_matches_has_its_literals(pattern: str, data: st.DataObject) -> None:
    """Texts are made from the wildcard, so that many match."""
    try:
        search = searcher(PatternFunction.WILDCARD, pattern)
    except PatternError:
        return
    filled = "".join(data.draw(TEXTS) if each == "*" else "b" if each == "?" else each for each in pattern)
    required = required_literals(regex_of(PatternFunction.WILDCARD, pattern))
    if search(filled):
        assert all(any(literal in filled for literal in each) for each in required)


@pytest.mark.parametrize(
    ("pattern", "required"),
    [
        ("sensor-[0-9]+-alarm", [{"sensor-"}, {"-alarm"}]),
        ("error|warning", [{"error", "warning"}]),
        ("ab+c", [{"ab"}, {"c"}]),
        ("ab*c", [{"a"}, {"c"}]),
        ("a(?:bc|d(ef)?)g", [{"a"}, {"bc", "d"}, {"g"}]),
        (r"^\d{4}\.txt$", [{".txt"}]),
        ("(?i)error", []),
        ("(?s)error", [{"error"}]),
        ("z(?s){0,3}", []),
        ("(abc)?", []),
        ("(abc){2,3}", [{"abc"}]),
        ("(abc){0,3}", []),
        ("a||b", []),
        ("[abc]", []),
        ("(" * 40 + "a" + ")" * 40, []),
    ],
)  # fmt: skip
def test_literals_that_are_found(pattern: str, required: list[set[str]]) -> None:
    """The reader finds what ordinary patterns require."""
    assert [set(each) for each in required_literals(pattern)] == required
