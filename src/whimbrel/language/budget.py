"""The budget of patterns: what the regular expressions and wildcards of one filter may cost.

RE2 takes at most one step per compiled instruction and byte of the string; a step takes about 20 ns where its automaton
does not fit its memory, which a stranger can choose it not to. So instructions are bounded when a filter is accepted,
and instructions times bytes when it is asked: on a string that is too long for its filter a pattern is *undefined*.
Rule: steps are counted, never timed: every engine and every replay decides alike.
Rule: a filter in the log was accepted once. It is read within ``STORED``, whatever ``ADMITTED`` says today.
"""

from __future__ import annotations

from typing import NamedTuple

from whimbrel.language.ast import Name, Node, Pattern, walk
from whimbrel.language.patterns import program_size

__all__ = [
    "ADMITTED",
    "MAX_CONSTANT",
    "MAX_STEPS",
    "STORED",
    "UNBOUNDED",
    "PatternBounds",
    "longest_for",
    "longest_searched",
    "program",
]

MAX_STEPS = 1_000_000
"""Instructions times bytes of one filter on one notification."""
MAX_CONSTANT = 256
"""Bytes of a constant that a pattern is asked about; it is asked whenever the filter is read."""
UNBOUNDED = 1 << 31
"""For filters without regular expressions and wildcards: longer than any string."""


class PatternBounds(NamedTuple):
    """What a filter may have of regular expressions and wildcards."""

    instructions: int
    """Of one pattern."""
    positions: int
    """Of one pattern: places in it where a match can be. The sets of these are the states of its automaton."""
    patterns: int
    total_instructions: int
    """Of all patterns of a filter."""


ADMITTED = PatternBounds(instructions=2_500, positions=750, patterns=128, total_instructions=5_000)
"""Of a filter that is new."""
STORED = PatternBounds(instructions=5_000, positions=5_000, patterns=128, total_instructions=20_000)
"""Of a filter that some version accepted."""


def program(tree: Node) -> int:
    """Return how many instructions the patterns of *tree* (already checked) have together."""
    calls = (node for node in walk(tree) if isinstance(node, Pattern))
    return sum(program_size(call.function, pattern) for call in calls for pattern in call.patterns)


def longest_searched(tree: Node) -> int:
    """Return how many bytes a string may have for the patterns of the filter *tree* to be asked about it."""
    instructions = program(tree)
    return MAX_STEPS // instructions if instructions else UNBOUNDED


def longest_for(call: Pattern, longest: int) -> int:
    """Return how long a string may be for *call*, in a filter in which others may have *longest* bytes."""
    is_constant = not any(isinstance(node, Name) for node in walk(call.subject))
    return MAX_CONSTANT if is_constant else longest
