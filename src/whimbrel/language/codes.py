"""The stable error codes of the language: one data table, from which the enum's texts and the docs page are made.

2101 to 2112 are Elvin 4's; 2113 is ours.
"""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType

__all__ = ["ErrorCode"]


class ErrorCode(IntEnum):
    """Why a text is not a filter; the number never changes, the sentence may."""

    PARSE = 2101
    TOKEN = 2102
    UNTERMINATED = 2103
    FUNCTION = 2104
    OVERFLOW = 2105
    TYPE = 2106
    TOO_FEW = 2107
    TOO_MANY = 2108
    REGEX = 2109
    TRIVIAL = 2110
    REGEX_COMPLEXITY = 2111
    NESTING = 2112
    LENGTH = 2113

    @property
    def summary(self) -> str:
        """The code in a few words."""
        return _TEXTS[self][0]

    @property
    def help(self) -> str:
        """What to do about it."""
        return _TEXTS[self][1]


_TEXTS = MappingProxyType(
    {
        ErrorCode.PARSE: (
            "parse error",
            "The words are right but their order is not; the caret shows the first that does not fit.",
        ),
        ErrorCode.TOKEN: (
            "invalid token",
            "A character or number that no rule allows; in a name, escape it with a backslash.",
        ),
        ErrorCode.UNTERMINATED: (
            "unterminated string",
            "Close the string with the quote it was opened with; \\' stands for a quote inside.",
        ),
        ErrorCode.FUNCTION: (
            "unknown function",
            "Only the functions of the language may stand before a parenthesis.",
        ),
        ErrorCode.OVERFLOW: (
            "overflow",
            "Literals are signed: 32 bits, or 64 with the suffix L; reals are IEEE doubles.",
        ),
        ErrorCode.TYPE: (
            "type mismatch",
            "The operands can never fit: the expression could not be true for any notification.",
        ),
        ErrorCode.TOO_FEW: (
            "too few arguments",
            "The function wants more arguments.",
        ),
        ErrorCode.TOO_MANY: (
            "too many arguments",
            "The function wants fewer arguments.",
        ),
        ErrorCode.REGEX: (
            "bad pattern",
            "The regular expression (RE2 syntax) or wildcard cannot be read.",
        ),
        ErrorCode.TRIVIAL: (
            "trivial expression",
            "The whole expression is a constant, so it selects everything or nothing.",
        ),
        ErrorCode.REGEX_COMPLEXITY: (
            "pattern too complex",
            "Patterns are bounded in length, compiled size and number per filter.",
        ),
        ErrorCode.NESTING: (
            "nesting too deep",
            "Parentheses, functions and operators may nest to a bounded depth.",
        ),
        ErrorCode.LENGTH: (
            "text too long",
            "A filter text has a bounded length.",
        ),
    }
)
