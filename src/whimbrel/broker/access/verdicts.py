"""Verdicts: answers of the rights file that are remembered, because every delivery asks for one.

Rule: memory is bounded, by number and by the length of what is remembered. There are two generations: an answer that is
asked for moves to the younger one; when that is full, the older one is forgotten. So what is used often stays.
"""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Verdicts"]

_Question: TypeAlias = tuple[str | None, str, str]
"""User, client identifier, topic."""
_MAX_REMEMBERED = 50_000
_LONGEST = 512


class Verdicts:
    """Whether each of many may; at most about twice *most* answers are remembered."""

    __slots__ = ("_most", "_older", "recent")

    def __init__(self, most: int = _MAX_REMEMBERED) -> None:
        self._most = most
        self.recent: dict[_Question, bool] = {}
        """The younger generation; look here before you call ``get``, which takes longer than the look."""
        self._older: dict[_Question, bool] = {}

    def __len__(self) -> int:
        return len(self.recent) + len(self._older)

    def get(self, question: _Question) -> bool | None:
        """Return the answer if it is remembered."""
        found = self.recent.get(question)
        if found is None and (found := self._older.get(question)) is not None:
            self.put(question, found)
        return found

    def put(self, question: _Question, answer: bool) -> bool:  # noqa: FBT001 # the answer is what this is about
        """Remember *answer*, and return it; one to a question that is too long is not remembered."""
        if len(question[1]) + len(question[2]) <= _LONGEST:
            if len(self.recent) >= self._most:
                self._older, self.recent = self.recent, {}
            self.recent[question] = answer
        return answer

    def clear(self) -> None:
        """Forget everything: the rights are others now."""
        self.recent, self._older = {}, {}
