"""The words of a policy text: the lexer mode in which ``-`` and ``.`` are operators.

Rule: comments are ``/* … */``, and ``// …`` to the end of the line; white space is the same as in filters.
Rule: numbers and strings are the same as in filters. A function with a hyphen in its name is one word only before
``(``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from whimbrel.errors import PolicyError
from whimbrel.language.functions import FUNCTIONS
from whimbrel.language.policies.codes import PolicyCode
from whimbrel.language.tokens import LONG_OPERATORS, STRING, Kind, TokenError, check_text, kind_of

__all__ = ["END", "KEYWORDS", "MAX_TEXT", "Token", "policy_code", "tokenize"]

MAX_TEXT = 16_384
"""Most characters of a policy text."""
END = "the end"
KEYWORDS = frozenset("if else endif return function and or not in NULL true false".split())
_WORD_OPERATORS = {"and": "&&", "or": "||", "not": "!"}
_BOOLEANS = frozenset({"true", "false"})
_HYPHENATED = "|".join(name for name in FUNCTIONS if "-" in name)
_TOKEN = re.compile(
    rf"""
      (?P<skip>[ \t\r\n]+ | /\*.*?\*/ | //[^\n]*)
    | (?P<open>/\*)
    | (?P<word>(?:{_HYPHENATED})(?=[ \t\r\n]*\() | [A-Za-z_][A-Za-z0-9_]*)
    | (?P<number>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_]) | [0-9][A-Za-z0-9_]*)
    | (?P<string>{STRING})
    | (?P<operator>:- | {LONG_OPERATORS} | [-+*/%|^&~!<>=(){{}}\[\],;:.])
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """One word: its kind (an operator or keyword is its own kind), its text, and its position."""

    kind: str
    text: str
    start: int
    end: int


def tokenize(text: str) -> list[Token]:
    """Return the tokens of *text*, the last of kind ``END``; or raise ``PolicyError``."""
    try:
        check_text(text, "policy", MAX_TEXT)
    except TokenError as error:
        raise PolicyError(policy_code(error), error.reason, text, *error.span) from None
    tokens = [
        Token(_kind(text, found), found[0], *found.span())
        for found in _TOKEN.finditer(text)
        if found.lastgroup != "skip"
    ]
    tokens.append(Token(END, "", len(text), len(text)))
    return tokens


def _kind(text: str, found: re.Match[str]) -> str:
    word, start, end = found[0], found.start(), found.end()
    match found.lastgroup:
        case "word":
            if word in _BOOLEANS:
                return Kind.INTEGER
            return _WORD_OPERATORS.get(word, word if word in KEYWORDS else Kind.NAME)
        case "operator":
            return word
        case "open":
            raise PolicyError(PolicyCode.UNTERMINATED, "this comment is never closed; write */", text, start, len(text))
        case "other" if word not in "'\"":
            shown = word if word.isprintable() else f"the character U+{ord(word):04X}"
            reason = f"{shown} is not allowed here; inside quotes it is fine"
            raise PolicyError(PolicyCode.TOKEN, reason, text, start, end)
    try:  # a number, a string, or a quote that is never closed
        return kind_of(word)
    except TokenError as error:
        code = policy_code(error)
        raise PolicyError(
            code, error.reason, text, start, len(text) if code is PolicyCode.UNTERMINATED else end
        ) from None


def policy_code(error: TokenError) -> PolicyCode:
    """Return the policy error code with the same name as the filter error code in *error*."""
    return PolicyCode[error.code.name]
