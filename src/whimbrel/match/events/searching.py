"""Searching: which of the regular expressions and wildcards of a column match a string.

Where there are many, their required literals are looked for first, all in one pass; a pattern is run if its literals
are there, or if it requires none. Each is run by itself: a set of patterns in one automaton (``RE2::Set``) fails where
memory ends, reports that as "nothing found", and is slower than single runs where its states are many.
Rule: never much slower than running all of them: few patterns, or a long string for not so many, are just run.
Rule: on a string that is too long for its filter (``language.budget``) a pattern is undefined, written as ~number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from whimbrel.language.ast import PatternFunction
from whimbrel.language.literals import Requirement, required_literals
from whimbrel.language.patterns import byte_searcher, regex_of
from whimbrel.match.kernels.compiled import njit
from whimbrel.match.kernels.tries import build_tries, walk_through

__all__ = ["FEW", "ColumnPattern", "ColumnPatterns"]

FEW = 32
"""So many patterns are run at once: looking for literals costs as much before the first byte."""
_BYTES_EACH = 8
"""So many bytes a pattern are cheaper to look through for literals than to run patterns on that fail at once."""
_MANY = 512
"""For so many patterns every byte is."""


class ColumnPattern(NamedTuple):
    """A regular expression or wildcard: its number in the index, and for how long a string it may be run."""

    number: int
    function: PatternFunction
    pattern: str
    longest: int


class ColumnPatterns:
    """The patterns of one column."""

    def __init__(self, patterns: Sequence[ColumnPattern], seed: int) -> None:
        ordered = sorted(patterns, key=lambda each: each.longest)
        self._numbers = [each.number for each in ordered]
        self._undefined = [~each.number for each in ordered]
        self._longest = np.array([each.longest for each in ordered], np.int64)
        self._searchers = [byte_searcher(each.function, each.pattern) for each in ordered]
        self._literals = _LiteralIndex(ordered, seed) if len(ordered) >= FEW else None

    def decided(self, data: bytes) -> list[int]:
        """Return the numbers of the patterns that match *data*, and ~number for each that *data* is too long for."""
        too_short = int(np.searchsorted(self._longest, len(data))) if len(data) > self._longest[0] else 0
        found = self._undefined[:too_short]
        searchers, numbers = self._searchers, self._numbers
        found += [numbers[place] for place in self.candidates(data, too_short) if searchers[place](data)]
        return found

    def candidates(self, data: bytes, first: int = 0) -> Sequence[int]:
        """Return the places, from *first* on, of the patterns that have to be run on *data*."""
        count = len(self._numbers) - first
        if self._literals is None or count < FEW or (count < _MANY and len(data) > _BYTES_EACH * count):
            return range(first, len(self._numbers))
        places = self._literals.places(data)
        return [place for place in places if place >= first] if first else places


class _LiteralIndex:
    """For each pattern the requirement that the fewest others share, and where its literals occur."""

    def __init__(self, patterns: Sequence[ColumnPattern], seed: int) -> None:
        required = [required_literals(regex_of(each.function, each.pattern)) for each in patterns]
        sharing = Counter(literal for each in required for requirement in each for literal in requirement)
        by_literal: dict[str, list[int]] = {}
        self._always: list[int] = []
        """Patterns that require nothing."""
        for place, requirements in enumerate(required):
            if not requirements:
                self._always.append(place)
                continue
            for literal in min(requirements, key=lambda each: _cost(each, sharing)):
                by_literal.setdefault(literal, []).append(place)
        self._places = list(by_literal.values())
        self._seed = seed
        self._tries = build_tries([(0, literal.encode(), False) for literal in by_literal], 1, seed)

    def places(self, data: bytes) -> list[int]:
        found = set(self._always)
        tries = self._tries
        text = np.frombuffer(data or b"\0", np.uint8)
        literals = _occurring(
            tries["key"], tries["next"], tries["pattern"], tries["fail"], tries["link"], self._seed,
            text, len(data), len(self._places),
        )  # fmt: skip
        for literal in literals.tolist():
            found.update(self._places[literal])
        return sorted(found)


def _cost(requirement: Requirement, sharing: Counter[str]) -> tuple[int, int]:
    """Rank a requirement: how many patterns will be candidates where it is met, then how short its literals are."""
    return sum(sharing[literal] for literal in requirement), -min(map(len, requirement))


@njit(cache=True, nogil=True)
def _occurring(
    keys: Any, after: Any, pattern: Any, fail: Any, link: Any, seed: int, data: Any, size: int, count: int
) -> Any:
    """Return the literals that occur in *data*."""
    numbers = np.arange(count).astype(np.int32)
    found = np.empty(count + 1, np.int32)
    marks = np.zeros(count + 1, np.int64)
    n = walk_through(keys, after, pattern, fail, link, seed, 0, data, 0, size, 1, marks, numbers, found, 0)
    return found[:n]
