"""Matches that are broken off and begun again find what they would have found at once."""

from __future__ import annotations

import random
from functools import partial
from itertools import count

import pytest

from whimbrel.language.allowance import CHEAP_STEPS, Allowance, OutOfAllowanceError, current_allowance
from whimbrel.language.filters import Filter
from whimbrel.match.matcher import Interest, Matcher

PATTERNS = [f"(x|y)*x(x|y){{{number}}}z?$" for number in range(30, 60)]
TEXTS = ["".join(random.Random(seed).choices("xyz", k=300)) for seed in range(6)]


def allowance(searches: int = 1) -> Allowance:
    """Return one that is spent after so many searches."""
    return Allowance(count().__next__, searches)


def matcher(*, is_packed: bool) -> Matcher:
    """Return an index of all patterns."""
    matcher = Matcher()
    for number, pattern in enumerate(PATTERNS):
        matcher.add(str(number), Interest(filter_text=f"regex(a, '{pattern}')", subject_filter="s/#"))
    if is_packed:
        matcher.content.repack()
    return matcher


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("searches", [1, 7, 1_000])
def test_attempts_find_what_one_match_finds(searches: int, *, is_packed: bool) -> None:
    """However often it is broken off, and whether the filters are packed or not."""
    index = matcher(is_packed=is_packed)
    for text in TEXTS:
        asked = allowance(searches)
        attempts = asked.attempting(partial(index.match_parts, "s/a", {"a": text}))
        turns = 0
        while True:
            try:
                next(attempts)
            except StopIteration as done:
                found = done.value
                break
            turns += 1
        assert sorted(found) == sorted(index.match_parts("s/a", {"a": text}))
        assert turns == -(-len(PATTERNS) // searches) - 1


def test_an_index_that_changes_meanwhile_is_asked_as_it_is_at_the_end() -> None:
    """A verdict belongs to a pattern, not to a place in the index."""
    index = matcher(is_packed=False)
    attempts = allowance().attempting(lambda: index.match_parts("s/a", {"a": TEXTS[0]}))
    next(attempts)
    index.remove("3")
    index.content.repack()
    index.add("late", Interest(filter_text="regex(a, '^(x|y|z)*$')", subject_filter="s/#"))
    found: list[int] = []
    while not found:
        try:
            next(attempts)
        except StopIteration as done:
            found = done.value
    assert sorted(found) == sorted(index.match_parts("s/a", {"a": TEXTS[0]}))


def test_what_cannot_take_long_is_not_counted() -> None:
    """Short searches are made at once, however many."""
    short = Filter("regex(a, 'x')")
    asked = allowance()
    for _ in range(100):
        assert asked.attempt(lambda: short.matches({"a": "xyz"}))
    assert len("xyz") * 100 < CHEAP_STEPS


def test_a_spent_allowance_is_as_good_as_new_once_it_is_renewed() -> None:
    """Each turn has its own."""
    dear = Filter(f"regex(a, '{PATTERNS[0]}')")
    asked = allowance()
    asked.attempt(lambda: dear.matches({"a": TEXTS[0]}))
    with pytest.raises(OutOfAllowanceError):
        asked.attempt(lambda: dear.matches({"a": TEXTS[1]}))
    asked.renew()
    asked.attempt(lambda: dear.matches({"a": TEXTS[1]}))


def test_outside_an_attempt_nothing_is_counted() -> None:
    """Whatever matches without an allowance is never broken off."""
    with pytest.raises(OutOfAllowanceError):
        allowance().attempt(lambda: [Filter(f"regex(a, '{each}')").matches({"a": TEXTS[0]}) for each in PATTERNS])
    assert current_allowance() is None
    assert [Filter(f"regex(a, '{each}')").matches({"a": TEXTS[0]}) for each in PATTERNS]
