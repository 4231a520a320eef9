"""Search of a string with many patterns: finds the regular expressions and wildcards of a column that match.

If there are many patterns, one pass looks for the literals (fixed strings) that they require. Then only the patterns
are run whose literals occur in the string, or that require none. Each pattern is run by itself: one automaton for a set
of patterns (``RE2::Set``) fails when it runs out of memory, reports that as "nothing found", and is slower than single
runs when it has many states.
Rule: the search is never much slower than running all patterns. All patterns are run if they are few, or if they are
not very many and the string is long.
Rule: a string may be too long for a pattern of its filter (``language.pattern_cost``). The pattern is undefined then,
which is reported as the bitwise complement of its number (``~number``).
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
"""With fewer patterns than this, all are run: a search for their literals would cost as much."""
_BYTES_EACH = 8
"""Bytes of the string per pattern above which all patterns are run, if they are fewer than ``_MANY``.

A search for literals then costs more than running patterns, most of which fail at once.
"""
_MANY = 512
"""Number of patterns from which on their literals are searched first, however long the string is."""


class ColumnPattern(NamedTuple):
    """A regular expression or wildcard, with its number in the index.

    *longest* is the most bytes that it may search.
    """

    number: int
    function: PatternFunction
    pattern: str
    longest: int


class ColumnPatterns:
    """All regular expressions and wildcards of one column, and the search of a string with them."""

    def __init__(self, patterns: Sequence[ColumnPattern], seed: int) -> None:
        ordered = sorted(patterns, key=lambda each: each.longest)
        self._numbers = [each.number for each in ordered]
        self._undefined = [~each.number for each in ordered]
        self._longest = np.array([each.longest for each in ordered], np.int64)
        self._searchers = [byte_searcher(each.function, each.pattern) for each in ordered]
        self._literals = _LiteralIndex(ordered, seed) if len(ordered) >= FEW else None

    def matching(self, data: bytes) -> list[int]:
        """Return the numbers of the patterns that match *data*.

        A pattern that may not run on so long a string is returned as ``~number``.
        """
        too_short = int(np.searchsorted(self._longest, len(data))) if len(data) > self._longest[0] else 0
        found = self._undefined[:too_short]
        searchers, numbers = self._searchers, self._numbers
        found += [numbers[place] for place in self.candidates(data, too_short) if searchers[place](data)]
        return found

    def candidates(self, data: bytes, first: int = 0) -> Sequence[int]:
        """Return the indexes of the patterns that must be run on *data*.

        The patterns are sorted by the longest string that each may run on; *first* is the first that may run on *data*.
        """
        count = len(self._numbers) - first
        if self._literals is None or count < FEW or (count < _MANY and len(data) > _BYTES_EACH * count):
            return range(first, len(self._numbers))
        places = self._literals.places(data)
        return [place for place in places if place >= first] if first else places


class _LiteralIndex:
    """Index from literals to the patterns that require them.

    A requirement is a set of literals of which one must occur. A pattern with several requirements is indexed by the
    rarest.
    """

    def __init__(self, patterns: Sequence[ColumnPattern], seed: int) -> None:
        required = [required_literals(regex_of(each.function, each.pattern)) for each in patterns]
        sharing = Counter(literal for each in required for requirement in each for literal in requirement)
        by_literal: dict[str, list[int]] = {}
        self._always: list[int] = []
        """Positions of the patterns that require no literal."""
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
    """Return the sort key of a requirement (literals of which one must occur): smaller if fewer patterns share it.

    Among equals, the requirement whose shortest literal is longest comes first.
    """
    return sum(sharing[literal] for literal in requirement), -min(map(len, requirement))


@njit(cache=True, nogil=True)
def _occurring(
    keys: Any, after: Any, pattern: Any, fail: Any, link: Any, seed: int, data: Any, size: int, count: int
) -> Any:
    """Return the numbers of the literals that occur in *data*."""
    numbers = np.arange(count).astype(np.int32)
    found = np.empty(count + 1, np.int32)
    marks = np.zeros(count + 1, np.int64)
    n = walk_through(keys, after, pattern, fail, link, seed, 0, data, 0, size, 1, marks, numbers, found, 0)
    return found[:n]
