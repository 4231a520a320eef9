"""The stable error codes of policies: one data table, from which the docs page is made."""

from __future__ import annotations

from whimbrel.language.codes import OVERFLOW_TEXTS, PARSE_TEXTS, LanguageCode

__all__ = ["PolicyCode"]


class PolicyCode(LanguageCode):
    """Reason why a text is not a policy."""

    PARSE = 2201, *PARSE_TEXTS
    TOKEN = (2202, "invalid token", "A character or number that no rule allows.")
    UNTERMINATED = (2203, "unterminated", "Close the string with its quote, the comment with */.")
    FUNCTION = (
        2204,
        "unknown function",
        "Call a function of the language, one that the policy defines, or isX(value) for the set x.",
    )
    OVERFLOW = 2205, *OVERFLOW_TEXTS
    TYPE = (2206, "type mismatch", "The operand can never fit: a message, a value or data is wanted here.")
    ARGUMENTS = (2207, "wrong number of arguments", "The function wants more or fewer arguments.")
    PATTERN = (2208, "bad pattern", "The regular expression (RE2 syntax) or wildcard is wrong or too large.")
    NAME = (2209, "unknown or reserved name", "Assign a name before you read it; reserved names stay as they are.")
    READ_ONLY = (2210, "read-only", "Automatic variables are the device's own; a policy reads them only.")
    RECURSION = (2211, "recursion", "A function may not call itself, nor any that calls it.")
    NESTING = (2212, "nesting too deep", "Blocks, calls and operators may nest to a bounded depth.")
    LENGTH = (2213, "text too long", "A policy text has a bounded length.")
    COST = (2214, "cost too high", "The greatest number of steps, bytes or pixels exceeds the limit.")
    MISSING = (2215, "not installed", "compress needs the image library: pip install 'whimbrel[images]'.")
