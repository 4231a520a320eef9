"""Our trees in the languages of our peers, so that both sides answer the same question about the same event.

Rule: an event is matched exactly if our verdict is true; undefined (an attribute is missing) is not a match, however
many NOTs stand above. Every benchmark checks that the peers agree before it believes their times.
Rule: a peer gets its fastest fair form: names unguarded where nothing can be missing, its compiled runner, its events
converted beforehand, its logging off.

rule-engine is two-valued and raises when null is ordered, so NOT is pushed to the leaves and, where attributes may be
missing, each leaf that needs it asks ``!= null`` first. CEL's errors are absorbed by ``||`` and ``&&`` exactly as our
undefined is (false && error is false), so a bare name will do; ``has()`` on a map was measured 2.5 times slower.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Protocol, TypeAlias

import celpy
import rule_engine
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError

from whimbrel.errors import UnsupportedNodeError
from whimbrel.language.ast import (
    And,
    Compare,
    CompareOp,
    Literal,
    Name,
    Not,
    Or,
    Pattern,
    PatternFunction,
    Predicate,
)
from whimbrel.model.attributes import Attributes

__all__ = ["Cel", "Peer", "PlainPython", "RuleEngine"]

Matcher: TypeAlias = Callable[[Any], bool]

_OPPOSITE = {
    CompareOp.EQ: CompareOp.NE,
    CompareOp.NE: CompareOp.EQ,
    CompareOp.LT: CompareOp.GE,
    CompareOp.GE: CompareOp.LT,
    CompareOp.GT: CompareOp.LE,
    CompareOp.LE: CompareOp.GT,
}


class Peer(Protocol):
    """Another engine for expressions."""

    name: str

    def translate(self, tree: Predicate) -> str:
        """Return *tree* in the peer's language."""

    def parse(self, text: str) -> object:
        """Return what the peer's parser makes of *text*."""

    def compile(self, text: str) -> Matcher:
        """Return the fastest function the peer has for *text*."""

    def event(self, attributes: Attributes) -> object:
        """Return *attributes* as the peer wants them."""


class RuleEngine:
    """The package rule-engine."""

    def __init__(self, *, may_miss: bool) -> None:
        self.name = "rule-engine"
        self._may_miss = may_miss
        self._context = rule_engine.Context(default_value=None)

    def translate(self, tree: Predicate) -> str:
        """Return *tree* with NOT at the leaves, each false where its attribute is missing."""
        return self._term(tree, is_positive=True)

    def parse(self, text: str) -> rule_engine.Rule:
        """Parse; a rule can be asked as it is."""
        return rule_engine.Rule(text, self._context)

    def compile(self, text: str) -> Matcher:
        """Return the rule's own method."""
        matches: Matcher = self.parse(text).matches
        return matches

    @staticmethod
    def event(attributes: Attributes) -> dict[str, object]:
        """Return a plain dict."""
        return dict(attributes)

    def _term(self, node: Predicate, *, is_positive: bool) -> str:
        match node:
            case Not(operand):
                return self._term(operand, is_positive=not is_positive)
            case And(operands) | Or(operands):
                joint = " and " if isinstance(node, And) is is_positive else " or "
                return f"({joint.join(self._term(operand, is_positive=is_positive) for operand in operands)})"
            case Compare(op, Name(name), Literal(value)):
                op = op if is_positive else _OPPOSITE[op]
                return self._guarded(name, f"{name} {op.value} {value!r}", needed=op is not CompareOp.EQ)
            case Pattern(PatternFunction.BEGINS_WITH, Name(name), (prefix,)):
                return self._guarded(
                    name, f"{'' if is_positive else 'not '}{name}.starts_with({prefix!r})", needed=True
                )
            case _:
                raise UnsupportedNodeError("rule-engine", type(node).__name__)

    def _guarded(self, name: str, leaf: str, *, needed: bool) -> str:
        return f"({name} != null and {leaf})" if needed and self._may_miss else leaf


class PlainPython:
    """What one would write by hand: a Python function for each filter, two-valued, on a plain dict.

    With NOT at the leaves and each leaf false where its attribute is missing it answers as we do, and is fifteen times
    as fast as the closures of our own language, which tell false from undefined.
    """

    _TOGETHER = 500  # functions compiled at a time

    def __init__(self, *, may_miss: bool) -> None:
        self.name = "closures"
        self._may_miss = may_miss

    def compile_all(self, trees: Iterable[Predicate]) -> list[Matcher]:
        """Return a function for each tree."""
        texts = (f"lambda e: {self._term(tree, is_positive=True)}" for tree in trees)
        found: list[Matcher] = []
        while some := list(islice(texts, self._TOGETHER)):
            found += eval(f"[{','.join(some)}]", {})  # noqa: S307  # made here of trees that were drawn here
        return found

    def _term(self, node: Predicate, *, is_positive: bool) -> str:
        match node:
            case Not(operand):
                return self._term(operand, is_positive=not is_positive)
            case And(operands) | Or(operands):
                joint = " and " if isinstance(node, And) is is_positive else " or "
                return f"({joint.join(self._term(operand, is_positive=is_positive) for operand in operands)})"
            case Compare(op, Name(name), Literal(value)):
                op = op if is_positive else _OPPOSITE[op]
                return self._guarded(name, f"e[{name!r}] {op.value} {value!r}")
            case Pattern(PatternFunction.BEGINS_WITH, Name(name), (prefix,)):
                return self._guarded(name, f"{'' if is_positive else 'not '}e[{name!r}].startswith({prefix!r})")
            case _:
                raise UnsupportedNodeError("plain Python", type(node).__name__)

    def _guarded(self, name: str, leaf: str) -> str:
        return f"({name!r} in e and {leaf})" if self._may_miss else leaf


class Cel:
    """The package cel-python, with the runner that compiles to Python (five times as fast as its interpreter)."""

    def __init__(self) -> None:
        self.name = "cel-python"
        # It logs every error of evaluation, which here is an everyday missing attribute.
        logging.getLogger("celpy").setLevel(logging.CRITICAL)
        self._environment = celpy.Environment(runner_class=celpy.CompiledRunner)

    def translate(self, tree: Predicate) -> str:
        """Return *tree* node by node."""
        match tree:
            case Not(operand):
                return f"!({self.translate(operand)})"
            case And(operands) | Or(operands):
                joint = " && " if isinstance(tree, And) else " || "
                return f"({joint.join(map(self.translate, operands))})"
            case Compare(op, Name(name), Literal(value)):
                return f"{name} {op.value} {value!r}"
            case Pattern(PatternFunction.BEGINS_WITH, Name(name), (prefix,)):
                return f"{name}.startsWith({prefix!r})"
            case _:
                raise UnsupportedNodeError("cel-python", type(tree).__name__)

    def parse(self, text: str) -> object:
        """Parse only; the program is made by ``compile``."""
        return self._environment.compile(text)

    def compile(self, text: str) -> Matcher:
        """Return a function for which an error, such as a missing attribute, is no match."""
        program = self._environment.program(self._environment.compile(text))

        def matches(event: Any) -> bool:  # the peer's own type of values
            try:
                return bool(program.evaluate(event))
            except CELEvalError:
                return False

        return matches

    @staticmethod
    def event(attributes: Attributes) -> dict[str, object]:
        """Return the values in the peer's own types."""
        return {name: json_to_cel(value) for name, value in attributes.items() if not isinstance(value, bytes)}
