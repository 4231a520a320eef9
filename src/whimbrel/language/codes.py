"""The stable error codes of the language: one data table, from which the enum's texts and the docs page are made.

2101 to 2112 are Elvin 4's; 2113 is ours (an Elvin router says the same by closing the connection).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

__all__ = ["ErrorCode"]


class ErrorCode(IntEnum):
    """Why a text is not a filter; the number never changes, the sentence may."""

    summary: str
    help: str

    def __new__(cls, number: int, summary: str, help_: str) -> Self:
        """Make a member that is its number and carries its texts."""
        member = int.__new__(cls, number)
        member._value_ = number
        member.summary, member.help = summary, help_
        return member

    PARSE = (
        2101,
        "parse error",
        "The words are right but their order is not; the caret shows the first that does not fit.",
    )
    TOKEN = (
        2102,
        "invalid token",
        "A character or number that no rule allows; in a name, escape it with a backslash.",
    )
    UNTERMINATED = (
        2103,
        "unterminated string",
        "Close the string with the quote it was opened with; \\' stands for a quote inside.",
    )
    FUNCTION = 2104, "unknown function", "Only the functions of the language may stand before a parenthesis."
    OVERFLOW = (
        2105,
        "overflow",
        "Literals are signed: 32 bits, or 64 with the suffix L; reals are IEEE doubles.",
    )
    TYPE = (
        2106,
        "type mismatch",
        "The operands can never fit: the expression could not be true for any notification.",
    )
    TOO_FEW = 2107, "too few arguments", "The function wants more arguments."
    TOO_MANY = 2108, "too many arguments", "The function wants fewer arguments."
    REGEX = 2109, "bad pattern", "The regular expression (RE2 syntax) or wildcard cannot be read."
    TRIVIAL = (
        2110,
        "trivial expression",
        "The whole expression is a constant, so it selects everything or nothing.",
    )
    REGEX_COMPLEXITY = (
        2111,
        "pattern too complex",
        "Patterns are bounded in length, compiled size and number per filter.",
    )
    NESTING = 2112, "nesting too deep", "Parentheses, functions and operators may nest to a bounded depth."
    LENGTH = 2113, "text too long", "A filter text has a bounded length."
