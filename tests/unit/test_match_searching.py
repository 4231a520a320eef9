"""Searching: how many patterns are run on a string, of many that a column has."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from whimbrel.language.ast import PatternFunction
from whimbrel.language.pattern_cost import UNBOUNDED
from whimbrel.language.patterns import searcher
from whimbrel.match.events.searching import ColumnPattern, ColumnPatterns

MANY = 5_000
ORDINARY: dict[str, Callable[[int], str]] = {
    "a name and a number": lambda n: f"^sensor-{n}-[a-z]+$",
    "the same beginning": lambda n: f"^building/[0-9]+/room-{n}$",
    "two words": lambda n: f"item{n}.*(open|closed)",
    "a choice": lambda n: f"(unit|part) {n}: [0-9]+",
}
EVENTS = ["sensor-7-alarm", "building/12/room-40", "item77 is closed", "part 12: 4", "", "nothing of this", "x" * 5_000]


def _patterns(make: Callable[[int], str], count: int = MANY, longest: int = UNBOUNDED) -> ColumnPatterns:
    made = (ColumnPattern(n, PatternFunction.REGEX, make(n), longest) for n in range(count))
    return ColumnPatterns(list(made), seed=7)


@pytest.mark.parametrize("make", ORDINARY.values(), ids=ORDINARY)
def test_of_many_ordinary_patterns_few_are_run(make: Callable[[int], str]) -> None:
    """5,000 patterns cost 50 ms a publication when each was run; now those whose literals are there."""
    patterns = _patterns(make)
    alone = [searcher(PatternFunction.REGEX, make(n)) for n in range(MANY)]
    for event in EVENTS:
        assert len(patterns.candidates(event.encode())) <= 16
        wanted = [n for n in range(MANY) if alone[n](event)]
        assert patterns.matching(event.encode()) == wanted


def test_patterns_without_literals_are_run() -> None:
    """Each by itself; nothing is ever answered for them without running them."""
    patterns = _patterns(lambda n: f"^[a-z]{{{1 + n % 7}}}[0-9]{{{1 + n // 7 % 100}}}$", 1_000)
    assert len(patterns.candidates(b"ab123")) == 1_000
    assert patterns.matching(b"ab123") == [n for n in range(1_000) if 1 + n % 7 == 2 and 1 + n // 7 % 100 == 3]


def test_few_patterns_are_just_run() -> None:
    """Looking for literals would cost more than it saves."""
    assert len(_patterns(lambda n: f"x{n}y", 8).candidates(b"abc")) == 8
    assert len(_patterns(lambda n: f"x{n}y", 64).candidates(b"abc")) == 0
    assert len(_patterns(lambda n: f"x{n}y", 64).candidates(b"abc" * 1_000)) == 64


def test_strings_that_are_too_long_leave_patterns_undefined() -> None:
    """Each pattern has the bound of its filter."""
    rng = random.Random(1)
    bounds = [rng.randrange(1, 20) for _ in range(100)]
    made = [ColumnPattern(n, PatternFunction.REGEX, f"{n % 10}a*b", bound) for n, bound in enumerate(bounds)]
    patterns = ColumnPatterns(made, seed=7)
    for event in (b"7ab", b"5aaaaaaab", b"x" * 19, b"3b" * 10, b""):
        found = patterns.matching(event)
        assert {~number for number in found if number < 0} == {n for n in range(100) if bounds[n] < len(event)}
        asked = [each for each in made if each.longest >= len(event)]
        matched = [each.number for each in asked if searcher(each.function, each.pattern)(event.decode())]
        assert sorted(number for number in found if number >= 0) == matched
