"""Cost of patterns: the most that the regular expressions and wildcards of one filter may cost.

RE2 takes at most one step per compiled instruction and byte of the string. A step takes about 20 ns if the automaton
exceeds its memory, which a stranger can bring about. So the instructions are bounded when a filter is accepted, and the
instructions times bytes when it is evaluated: on a string that is too long for its filter, a pattern is *undefined*.
Rule: steps are counted, never timed, so that every engine and every replay decide alike.
Rule: a filter in the log was accepted once. It is read within ``STORED``, whatever ``ADMITTED`` is today.
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
"""Most steps (instructions times bytes) of one filter on one notification."""
MAX_CONSTANT = 256
"""Longest constant, in bytes, on which a pattern runs; it runs each time that the filter is read."""
UNBOUNDED = 1 << 31
"""Limit for filters without regular expressions and wildcards: longer than any string."""


class PatternBounds(NamedTuple):
    """Bounds of the regular expressions and wildcards of one filter."""

    instructions: int
    """Most compiled instructions of one pattern."""
    positions: int
    """Most positions in one pattern at which a match can be; each state of its automaton is a set of positions."""
    patterns: int
    total_instructions: int
    """Most compiled instructions of all patterns of a filter."""


ADMITTED = PatternBounds(instructions=2_500, positions=750, patterns=128, total_instructions=5_000)
"""Bounds of a new filter."""
STORED = PatternBounds(instructions=5_000, positions=5_000, patterns=128, total_instructions=20_000)
"""Bounds of a filter that this or an earlier version accepted."""


def program(tree: Node) -> int:
    """Return the number of instructions in all patterns of *tree*, which must have been checked."""
    calls = (node for node in walk(tree) if isinstance(node, Pattern))
    return sum(program_size(call.function, pattern) for call in calls for pattern in call.patterns)


def longest_searched(tree: Node) -> int:
    """Return the length in bytes of the longest string on which the patterns of the filter *tree* run."""
    instructions = program(tree)
    return MAX_STEPS // instructions if instructions else UNBOUNDED


def longest_for(call: Pattern, longest: int) -> int:
    """Return the longest string, in bytes, on which *call* runs; *longest* is that of the patterns of its filter.

    A call on a constant has its own limit.
    """
    is_constant = not any(isinstance(node, Name) for node in walk(call.subject))
    return MAX_CONSTANT if is_constant else longest
