"""What is raised for a file that is no packed index."""

from __future__ import annotations

from whimbrel.errors import InvalidInputError, InvalidValueError

__all__ = ["DAMAGE", "CorruptIndexError"]

DAMAGE = (KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, InvalidValueError)
"""What reading a file raises that is no packed index, or has other numbers than it should."""


class CorruptIndexError(InvalidInputError):
    """A file is not a packed index, or not a whole one. Reaction: build it anew."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; build the index anew"
