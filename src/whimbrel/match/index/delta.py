"""The delta: the newest filters, found through plain dictionaries and evaluated as compiled Python functions.

The delta is small and lives only until the next repacking, so simplicity matters more than speed. A filter is true if
one of its *clauses* (conjunctions) is. Each clause is found by one *anchor*: an attribute that it uses, with the
constant that the attribute must equal, if there is one. Every filter found is then evaluated.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from functools import cache
from typing import NamedTuple, TypeVar, cast

from whimbrel.language.ast import Compare, CompareOp, Literal, Name, Pattern, Predicate, walk
from whimbrel.language.backends.python import VerdictFunction, compile_filter
from whimbrel.language.filters import parse_stored, recognise
from whimbrel.language.rewrites import normal_form
from whimbrel.language.shapes import Template
from whimbrel.language.tokens import literal
from whimbrel.language.tokens import name as name_of
from whimbrel.match.index.leaves import Clause, clauses
from whimbrel.match.kernels.layout import Op
from whimbrel.model.attributes import Attributes, Scalar

__all__ = ["Delta", "ReadFilter", "anchors_of", "reading", "run_to_end", "shared_anchor"]

_Result = TypeVar("_Result")

_LONG = 256
"""Longest filter, in characters, that is compiled at its first event.

Longer filters, and those with parentheses (as all calls have), take long to compile: this is done when they are added.
"""
_EQUALITIES = frozenset((Op.INT_EQ, Op.REAL_EQ, Op.STRING_EQ))


class ReadFilter(NamedTuple):
    """A filter prepared for the delta: the part of adding a filter that takes long and depends on its text alone."""

    text: str
    tree: Predicate
    anchors: list[object]
    patterns: int
    verdict: VerdictFunction | None
    """The compiled filter; None: it is compiled when it is first evaluated."""


def reading(
    text: str, tree: Predicate | None = None, anchors: list[object] | None = None
) -> Generator[None, None, ReadFilter]:
    """Prepare a filter for ``Delta.add``, and return it; yield after each step that may take some milliseconds.

    *tree* is the parsed *text*, and *anchors* (conditions that find its clauses) are the result of ``anchors_of``;
    without them, both are computed. Raise ``FilterError`` if *text* is not a filter.
    """
    if tree is None:
        tree = parse_stored(text)
        yield
    if anchors is None:
        anchors = anchors_of(text, tree)
        yield
    patterns, verdict = 0, None
    if "(" in text:
        patterns = sum(len(node.patterns) for node in walk(tree) if isinstance(node, Pattern))
    if "(" in text or len(text) > _LONG:  # the client that adds the filter waits for it, not a publication
        verdict = compile_filter(tree)
    return ReadFilter(text, tree, anchors, patterns, verdict)


class Delta:
    """The newest filters, by handle (number); they are added and removed one by one."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self._verdicts: dict[int, VerdictFunction] = {}
        self._trees: dict[int, Predicate] = {}
        """Syntax trees of the filters that are not compiled yet, because they were never evaluated."""
        self._anchors: dict[int, list[object]] = {}
        self._found: dict[object, dict[int, None]] = {}
        self.patterns = 0
        """Number of patterns added: here each scans a string by itself; a packed index scans it once for all."""

    def __len__(self) -> int:
        return len(self.texts)

    def add(self, handle: int, text: str, read: ReadFilter | None = None) -> None:
        """Add a filter; raise ``FilterError`` if *text* is not a filter.

        *read* is the result of ``reading``, if it is known.
        """
        if read is None or read.text != text:
            read = run_to_end(reading(text))
        self.texts[handle] = text
        self.patterns += read.patterns
        if read.verdict is None:
            self._trees[handle] = read.tree
        else:
            self._verdicts[handle] = read.verdict
        self._anchors[handle] = read.anchors
        for anchor in read.anchors:
            self._found.setdefault(anchor, {})[handle] = None

    def remove(self, handle: int) -> bool:
        """Remove a filter; return whether this delta (index of new filters) had it."""
        if handle not in self.texts:
            return False
        del self.texts[handle]
        self._verdicts.pop(handle, None)
        self._trees.pop(handle, None)
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
        for anchor in _comparable_items(attributes):
            found = self._found.get(anchor)
            if found:
                candidates.update(found)
        return [handle for handle in list(candidates) if self._is_true(handle, attributes)]

    def _is_true(self, handle: int, attributes: Attributes) -> bool:
        verdict = self._verdicts.get(handle)
        if verdict is None:  # compiled only now, because most filters are packed before they are ever evaluated
            tree = self._trees.pop(handle, None)
            if tree is None:  # the filter was removed, or another thread is compiling it
                text = self.texts.get(handle)
                if text is None:
                    return False
                tree = parse_stored(text)
            verdict = self._verdicts[handle] = compile_filter(tree)
        return verdict(attributes) is True


def run_to_end(work: Generator[None, None, _Result]) -> _Result:
    """Run the generator *work* to its end at once; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return cast("_Result", done.value)


def shared_anchor(conditions: Iterable[Predicate]) -> object | None:
    """Return the attribute and constant of the first equality among *conditions*; None if they have no equality.

    An event without that value cannot fulfil all conditions, so one anchor finds every filter that requires them.
    """
    for each in conditions:
        match each:
            case Compare(CompareOp.EQ, Name() as name, Literal(value)):
                return _anchor(name, value)
    return None


def anchors_of(text: str, tree: Predicate) -> list[object]:
    """Return one anchor per clause: the attribute, or attribute and value, without which the clause cannot be true."""
    known = recognise(text)
    if known is None:
        found = map(_anchor_leaf, clauses(normal_form(tree)))
        return [_anchor(name, None if constant is None else constant.value) for name, constant in found]
    template, tokens = known
    return [
        _anchor(name_of(tokens[at]), None if place < 0 else literal(tokens[place], kind, negative=negative).value)
        for at, place, kind, negative in _anchor_places(template)
    ]


@cache
def _anchor_places(template: Template) -> list[tuple[int, int, str, bool]]:
    """Return where the anchors of a filter are among its tokens.

    This is the same for all filters of one shape (they differ only in names and constants). For each anchor: the token
    of the name, the token of the constant (or -1), and the constant's kind and sign.
    """
    found = []
    for name, constant in map(_anchor_leaf, clauses(normal_form(template.tree), is_shape=True)):
        at = template.place(name)
        if constant is None:
            found.append((at, -1, "", False))
        else:
            place = template.place(constant)
            found.append((at, place, template.kind(place), template.is_negative(constant)))
    return found


def _anchor_leaf(clause: Clause) -> tuple[Name, Literal | None]:
    """Return the attribute that a clause is found by, and the constant that it must equal, if there is one."""
    for leaf in clause.direct:
        if leaf.literal is not None and not leaf.derivation and leaf.op in _EQUALITIES:
            return leaf.name, leaf.literal
    return clause.direct[0].name, None


def _anchor(name: Name, constant: Scalar | None) -> object:
    return name.name if constant is None else (name.name, _comparable(constant))


def _comparable_items(attributes: Attributes) -> Iterator[object]:
    for name, value in attributes.items():
        yield name
        yield name, _comparable(value)


def _comparable(value: Scalar) -> Scalar:
    return float(value) if isinstance(value, int) else value
