"""The stable error codes of texts: one data table for each language, from which the docs pages are made.

2101 to 2112 are Elvin 4's codes; 2113 is ours. The codes of policies are in ``policies.codes``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

__all__ = ["OVERFLOW_TEXTS", "PARSE_TEXTS", "ErrorCode", "LanguageCode"]

PARSE_TEXTS = (
    "parse error",
    "The words are right but their order is not; the caret shows the first that does not fit.",
)
OVERFLOW_TEXTS = ("overflow", "Literals are signed: 32 bits, or 64 with the suffix L; reals are IEEE doubles.")
"""Summaries and advice of errors that filters and policies have in common."""


class LanguageCode(IntEnum):
    """Reason why a text is not valid in a language; the number never changes, the sentences may."""

    _value_: int
    summary: str
    """The error in a few words."""
    help: str
    """Advice to the author of the text."""

    def __new__(cls, number: int, summary: str = "", advice: str = "") -> Self:
        """Make a member of the enum.

        The texts have defaults only because type checkers also see lookups by number here.
        """
        code = int.__new__(cls, number)
        code._value_, code.summary, code.help = number, summary, advice
        return code


class ErrorCode(LanguageCode):
    """Why a text is not a filter."""

    PARSE = 2101, *PARSE_TEXTS
    TOKEN = (2102, "invalid token", "A character or number that no rule allows; in a name, escape it with a backslash.")
    UNTERMINATED = (
        2103,
        "unterminated string",
        "Close the string with the quote it was opened with; \\' stands for a quote inside.",
    )
    FUNCTION = (2104, "unknown function", "Only the functions of the language may stand before a parenthesis.")
    OVERFLOW = 2105, *OVERFLOW_TEXTS
    TYPE = (2106, "type mismatch", "The operands can never fit: the expression could not be true for any notification.")
    TOO_FEW = (2107, "too few arguments", "The function wants more arguments.")
    TOO_MANY = (2108, "too many arguments", "The function wants fewer arguments.")
    REGEX = (2109, "bad pattern", "The regular expression (RE2 syntax) or wildcard cannot be read.")
    TRIVIAL = (2110, "trivial expression", "The whole expression is a constant, so it selects everything or nothing.")
    REGEX_COMPLEXITY = (
        2111,
        "pattern too complex",
        "Patterns are bounded in length, compiled size and number per filter.",
    )
    NESTING = (2112, "nesting too deep", "Parentheses, functions and operators may nest to a bounded depth.")
    LENGTH = (2113, "text too long", "A filter text has a bounded length.")
