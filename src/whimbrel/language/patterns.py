"""Regular expressions and wildcards from strangers: compiled by RE2, in linear time and bounded memory.

Rule: the only module that imports re2.
Rule: a pattern has at most ``MAX_PATTERN_CHARS``. Its automaton may use ``_MAX_MEMORY`` bytes; with more, RE2 falls
back to a slower matcher that needs no more memory. ``pattern_cost`` bounds the cost of patterns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import re2

from whimbrel.language.allowance import CHEAP_STEPS, current_allowance
from whimbrel.language.ast import PatternFunction
from whimbrel.language.codes import ErrorCode

__all__ = [
    "COMPILED",
    "MAX_PATTERN_CHARS",
    "PatternError",
    "Searcher",
    "byte_searcher",
    "position_count",
    "program_size",
    "regex_of",
    "searcher",
]

COMPILED = frozenset((PatternFunction.REGEX, PatternFunction.WILDCARD))
"""The functions whose patterns RE2 compiles; the others are plain strings."""
MAX_PATTERN_CHARS = 4_096
_MAX_MEMORY = 512 << 10
_NOT_FOUND = -1

Searcher: TypeAlias = Callable[[str], bool]
ByteSearcher: TypeAlias = Callable[[bytes], bool]


class PatternError(ValueError):
    """A pattern is not usable; internal: the parser turns it into a ``FilterError`` with a position."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason


def searcher(function: PatternFunction, pattern: str) -> Searcher:
    """Return a function that tests a string with *pattern* as the pattern function *function* does.

    Raise ``PatternError`` for a bad pattern.
    """
    match function:
        case PatternFunction.BEGINS_WITH:
            return lambda text: text.startswith(pattern)
        case PatternFunction.ENDS_WITH:
            return lambda text: text.endswith(pattern)
        case PatternFunction.CONTAINS:
            return lambda text: pattern in text
        case _:
            search = byte_searcher(function, pattern)
            return lambda text: search(text.encode())


def byte_searcher(function: PatternFunction, pattern: str) -> ByteSearcher:
    """Return a function that tests UTF-8 bytes with *pattern*, as *function* (one of ``COMPILED``) does.

    Raise ``PatternError`` for a bad pattern.
    """
    # Call RE2 directly: only the verdict is needed, and the module's classes take ten times as long as a short search.
    compiled = _compiled(regex_of(function, pattern))
    match_at = compiled._regexp.Match  # noqa: SLF001
    anchor = re2._Anchor.UNANCHORED if function is PatternFunction.REGEX else re2._Anchor.ANCHOR_BOTH  # noqa: SLF001
    cheap_bytes, key = CHEAP_STEPS // max(1, compiled.programsize), (function, pattern)

    def is_found(data: bytes) -> bool:
        return bool(match_at(anchor, data, 0, len(data))[0][0] != _NOT_FOUND)

    def search(data: bytes) -> bool:
        if len(data) <= cheap_bytes:
            return bool(match_at(anchor, data, 0, len(data))[0][0] != _NOT_FOUND)
        allowance = current_allowance()
        return is_found(data) if allowance is None else allowance.verdict_of(key, data, is_found)

    return search


def program_size(function: PatternFunction, pattern: str) -> int:
    """Return the number of instructions of the compiled *pattern* (0 for plain strings), or raise ``PatternError``."""
    return int(_compiled(regex_of(function, pattern)).programsize) if function in COMPILED else 0


def position_count(function: PatternFunction, pattern: str) -> int:
    """Return the number of positions in *pattern* that a match in progress can have reached; 0 for a plain string.

    A state of the automaton is a set of such positions.
    """
    return sum(_compiled(regex_of(function, pattern)).programfanout) if function in COMPILED else 0


def regex_of(function: PatternFunction, pattern: str) -> str:
    """Return *pattern* of *function*, one of ``COMPILED``, as a regular expression."""
    return pattern if function is PatternFunction.REGEX else _wildcard_as_regex(pattern)


def _options() -> re2.Options:
    options = re2.Options()
    options.dot_nl = True  # in the language, the dot matches a newline
    options.log_errors = False  # the author of the pattern gets the reason, not stderr
    options.never_capture = True  # a verdict needs no groups
    options.max_mem = _MAX_MEMORY
    return options


@lru_cache(maxsize=4_096)
def _compiled(regex: str) -> re2._Regexp:
    if len(regex) > MAX_PATTERN_CHARS:
        raise PatternError(
            ErrorCode.REGEX_COMPLEXITY,
            f"a pattern of {len(regex)} characters; at most {MAX_PATTERN_CHARS} are allowed",
        )
    try:
        return re2.compile(regex, _options())
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error.args[0])
        too_large = "too large" in reason or "too big" in reason
        raise PatternError(ErrorCode.REGEX_COMPLEXITY if too_large else ErrorCode.REGEX, reason) from None


def _wildcard_as_regex(pattern: str) -> str:
    r"""Translate ``* ? [a-z] [^a-z] \\c``; every other character stands for itself."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "*":
            parts.append(".*")
        elif character == "?":
            parts.append(".")
        elif character == "[":
            regex, at = _class_as_regex(pattern, at)
            parts.append(regex)
            continue
        elif character == "\\":
            at += 1
            if at == len(pattern):
                raise PatternError(ErrorCode.REGEX, "the wildcard ends in a backslash that escapes nothing")
            parts.append(re2.escape(pattern[at]))
        else:
            parts.append(re2.escape(character))
        at += 1
    return "".join(parts)


def _class_as_regex(pattern: str, start: int) -> tuple[str, int]:
    """Translate the character class (``[...]``) of a wildcard that opens at *start* to a regular expression.

    Return the regular expression, and the position after the class.
    """
    at = start + 1
    negated = pattern.startswith("^", at)
    at += negated
    members: list[str] = []
    while at < len(pattern) and (pattern[at] != "]" or not members):
        low, at = _class_member(pattern, at)
        high = low
        if pattern.startswith("-", at) and at + 1 < len(pattern) and pattern[at + 1] != "]":
            high, at = _class_member(pattern, at + 1)
        if high < low:
            raise PatternError(ErrorCode.REGEX, f"the range {low}-{high} in a wildcard runs backwards")
        members.append(f"\\x{{{ord(low):x}}}-\\x{{{ord(high):x}}}")
    if at >= len(pattern):
        raise PatternError(ErrorCode.REGEX, "a '[' in a wildcard has no ']'; write \\[ for the character")
    return f"[{'^' if negated else ''}{''.join(members)}]", at + 1


def _class_member(pattern: str, at: int) -> tuple[str, int]:
    if pattern[at] == "\\" and at + 1 < len(pattern):
        at += 1
    return pattern[at], at + 1
