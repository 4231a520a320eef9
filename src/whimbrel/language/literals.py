r"""Required literals: strings of which one must occur in anything that a regular expression matches.

A search with many patterns looks for their literals first, all in one pass, and runs only the patterns whose literals
occur.
Rule: a requirement may be missed, but is never wrong. This module knows the common syntax of RE2, and assumes that
everything else (``(?i)``, ``\Q…\E``, octal escapes, deep nesting) requires no literal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

__all__ = ["Requirement", "required_literals"]

Requirement: TypeAlias = frozenset[str]
"""Strings of which at least one must occur in every match."""

_MAX_DEPTH = 32
_MAX_OPTIONS = 32
"""Most strings of one requirement."""
_MAX_CHARS = 128
"""Most characters of a literal; a longer one is cut, since a part of a required string is required too."""
_REPEAT = re.compile(r"([*+?]|\{([0-9]+)(?:,[0-9]*)?\})\??")
_GROUP = re.compile(r"\((?:\?(?:P?<\w+>|([imsU-]*)([:)])))?")
_ONE_CHARACTER = frozenset("dDwWsSbBAzCnrtfva")
"""Letters that, after a backslash, stand for a class, a position or a control character, and not for themselves."""


class _UnknownError(Exception):
    """The expression has syntax that this module does not know."""


def required_literals(regex: str) -> tuple[Requirement, ...]:
    r"""Return the requirements of *regex*, which RE2 has compiled: a match contains one string of each.

    >>> [sorted(each) for each in required_literals(r"^bed-(\d+|icu|er)/temp.*high")]
    [['bed-'], ['/temp'], ['high']]
    """
    try:
        return _Reader(regex).requirements()
    except _UnknownError:
        return ()


class _Reader:
    def __init__(self, regex: str) -> None:
        self._regex, self._at, self._depth = regex, 0, 0

    def requirements(self) -> tuple[Requirement, ...]:
        found = self._alternatives()
        if self._at < len(self._regex):
            raise _UnknownError
        return found

    def _alternatives(self) -> tuple[Requirement, ...]:
        """Read ``a|b|c`` up to the end or the closing parenthesis; return the requirements (literals) of all of it."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _UnknownError
        branches = [self._sequence()]
        while self._regex.startswith("|", self._at):
            self._at += 1
            branches.append(self._sequence())
        self._depth -= 1
        if len(branches) == 1:
            return branches[0]
        if not all(branches):
            return ()
        options = frozenset().union(*(max(branch, key=_worth) for branch in branches))
        return (options,) if len(options) <= _MAX_OPTIONS else ()

    def _sequence(self) -> tuple[Requirement, ...]:
        found: list[Requirement] = []
        run = ""
        while self._at < len(self._regex) and self._regex[self._at] not in "|)":
            literal, inner = self._term()
            least = self._least()
            if literal is not None and least is None:
                run += literal
                continue
            if literal is not None and least:  # at least once, and the next literal need not follow directly
                run += literal
            if run:
                found.append(frozenset((run[:_MAX_CHARS],)))
            run = ""
            if least != 0:
                found += inner
        if run:
            found.append(frozenset((run[:_MAX_CHARS],)))
        return tuple(found)

    def _least(self) -> int | None:
        """Read the repetition of a term; return its least number of occurrences, or None if it is not repeated."""
        repeat = _REPEAT.match(self._regex, self._at)
        if repeat is None:
            return None
        self._at = repeat.end()
        return int(repeat[2]) if repeat[2] else int(repeat[1] == "+")

    def _term(self) -> tuple[str | None, Sequence[Requirement]]:
        """Read one term.

        Return the character that it stands for, or None, and the requirements (literals) of a group.
        """
        character = self._regex[self._at]
        if character == "(":
            return None, self._group()
        if character == "[":
            self._class()
            return None, ()
        if character == "\\":
            return self._escape(), ()
        self._at += 1
        return (None if character in ".^$" else character), ()

    def _group(self) -> Sequence[Requirement]:
        opening = _GROUP.match(self._regex, self._at)
        if opening is None or "i" in (opening[1] or ""):
            raise _UnknownError
        self._at = opening.end()
        if opening[2] == ")":  # flags for the rest of the group
            if _REPEAT.match(self._regex, self._at):  # RE2 repeats the term before the flags
                raise _UnknownError
            return ()
        if opening[0] == "(" and self._regex.startswith("?", self._at):
            raise _UnknownError
        found = self._alternatives()
        if not self._regex.startswith(")", self._at):
            raise _UnknownError
        self._at += 1
        return found

    def _class(self) -> None:
        at = self._at + 1
        at += self._regex.startswith("^", at)
        first = at
        while at < len(self._regex) and (self._regex[at] != "]" or at == first):
            if self._regex.startswith("[:", at):
                end = self._regex.find(":]", at)
                if end < 0:
                    raise _UnknownError
                at = end + 2
            else:
                at += 2 if self._regex[at] == "\\" else 1
        if at >= len(self._regex):
            raise _UnknownError
        self._at = at + 1

    def _escape(self) -> str | None:
        """Read a backslash and its escape sequence.

        Return the one character that it stands for, or None if that may vary.
        """
        escaped = self._regex[self._at + 1 : self._at + 2]
        self._at += 2
        if escaped in {"p", "P", "x"}:
            if self._regex.startswith("{", self._at):
                self._at = self._regex.find("}", self._at) + 1
                if not self._at:
                    raise _UnknownError
            else:
                self._at += 2 if escaped == "x" else 1
            return None
        if escaped in _ONE_CHARACTER:
            return None
        if escaped.isascii() and escaped.isprintable() and escaped and not escaped.isalnum() and escaped != "_":
            return escaped
        raise _UnknownError


def _worth(requirement: Requirement) -> tuple[int, int]:
    return min(map(len, requirement)), -len(requirement)
