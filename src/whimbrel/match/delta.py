"""The delta: the few newest filters, found through plain dictionaries and decided by the closures.

It is small and lives only until the next repacking, so it favours being obviously right over being fast: a filter
hangs on one attribute of each of its clauses (and on the constant it must equal, where there is one), and whoever is
found is asked.
"""

from __future__ import annotations

from collections.abc import Iterator

from whimbrel.language.backends.python import VerdictFunction, compile_filter
from whimbrel.language.filters import parse
from whimbrel.language.rewrites import normal_form
from whimbrel.match.leaves import Clause, Op, clauses
from whimbrel.model.attributes import Attributes, Scalar

__all__ = ["Delta"]

_NUMERIC_EQ = frozenset((Op.INT_EQ, Op.REAL_EQ))


class Delta:
    """Filters under handles, added and removed one by one."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self._verdicts: dict[int, VerdictFunction] = {}
        self._anchors: dict[int, list[object]] = {}
        self._found: dict[object, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self.texts)

    def add(self, handle: int, text: str) -> None:
        """Add a filter; raise ``FilterError`` if *text* is none."""
        tree = parse(text)
        anchors = [_anchor(clause) for clause in clauses(normal_form(tree))]
        self._verdicts[handle] = compile_filter(tree)
        self.texts[handle] = text
        self._anchors[handle] = anchors
        for anchor in anchors:
            self._found.setdefault(anchor, {})[handle] = None

    def remove(self, handle: int) -> bool:
        """Remove a filter; return whether it was here."""
        if handle not in self.texts:
            return False
        del self.texts[handle], self._verdicts[handle]
        for anchor in self._anchors.pop(handle):
            sharing = self._found.get(anchor, {})
            sharing.pop(handle, None)
            if not sharing:
                self._found.pop(anchor, None)
        return True

    def match(self, attributes: Attributes) -> list[int]:
        """Return the handles of the filters that are true of *attributes*."""
        if not self.texts:
            return []
        candidates: dict[int, None] = {}
        for anchor in _shown(attributes):
            found = self._found.get(anchor)
            if found:
                candidates.update(found)
        return [handle for handle in list(candidates) if self._is_true(handle, attributes)]

    def _is_true(self, handle: int, attributes: Attributes) -> bool:
        verdict = self._verdicts.get(handle)  # None: removed by another thread a moment ago
        return verdict is not None and verdict(attributes) is True


def _anchor(clause: Clause) -> object:
    """Return what an event must show for the clause to be true: an attribute, or one with a value."""
    for leaf in clause.direct:
        if leaf.literal is not None and not leaf.derivation:
            if leaf.op is Op.STRING_EQ:
                return leaf.name.name, leaf.literal.value
            if leaf.op in _NUMERIC_EQ:
                return leaf.name.name, float(leaf.literal.value)
    return clause.direct[0].name.name


def _shown(attributes: Attributes) -> Iterator[object]:
    for name, value in attributes.items():
        yield name
        yield name, _comparable(value)


def _comparable(value: Scalar) -> Scalar:
    return float(value) if isinstance(value, int) else value
