"""The stable error codes of policies: one data table, from which the enum's texts and the docs page are made."""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType

__all__ = ["PolicyCode"]


class PolicyCode(IntEnum):
    """Why a text is not a policy; the number never changes, the sentence may."""

    PARSE = 2201
    TOKEN = 2202
    UNTERMINATED = 2203
    FUNCTION = 2204
    OVERFLOW = 2205
    TYPE = 2206
    ARGUMENTS = 2207
    PATTERN = 2208
    NAME = 2209
    READ_ONLY = 2210
    RECURSION = 2211
    NESTING = 2212
    LENGTH = 2213
    COST = 2214
    MISSING = 2215

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
        PolicyCode.PARSE: (
            "parse error",
            "The words are right but their order is not; the caret shows the first that does not fit.",
        ),
        PolicyCode.TOKEN: ("invalid token", "A character or number that no rule allows."),
        PolicyCode.UNTERMINATED: ("unterminated", "Close the string with its quote, the comment with */."),
        PolicyCode.FUNCTION: (
            "unknown function",
            "Call a function of the language, one that the policy defines, or isX(value) for the set x.",
        ),
        PolicyCode.OVERFLOW: (
            "overflow",
            "Literals are signed: 32 bits, or 64 with the suffix L; reals are IEEE doubles.",
        ),
        PolicyCode.TYPE: ("type mismatch", "The operand can never fit: a message, a value or data is wanted here."),
        PolicyCode.ARGUMENTS: ("wrong number of arguments", "The function wants more or fewer arguments."),
        PolicyCode.PATTERN: ("bad pattern", "The regular expression (RE2 syntax) or wildcard is wrong or too large."),
        PolicyCode.NAME: (
            "unknown or reserved name",
            "Assign a name before you read it; reserved names stay as they are.",
        ),
        PolicyCode.READ_ONLY: ("read-only", "Automatic variables are the device's own; a policy reads them only."),
        PolicyCode.RECURSION: ("recursion", "A function may not call itself, nor any that calls it."),
        PolicyCode.NESTING: ("nesting too deep", "Blocks, calls and operators may nest to a bounded depth."),
        PolicyCode.LENGTH: ("text too long", "A policy text has a bounded length."),
        PolicyCode.COST: ("cost too high", "The greatest number of steps, bytes or pixels exceeds the limit."),
        PolicyCode.MISSING: ("not installed", "compress needs the image library: pip install 'whimbrel[images]'."),
    }
)
