"""The error for a file that is not a valid packed index."""

from __future__ import annotations

from whimbrel.errors import InvalidInputError, InvalidValueError

__all__ = ["DAMAGE", "CorruptIndexError"]

DAMAGE = (KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, InvalidValueError)
"""Exceptions that the code which reads an index may raise for a file that is not valid."""


class CorruptIndexError(InvalidInputError):
    """A file is not a packed index, or is not complete. Reaction: rebuild the index."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; build the index anew"
