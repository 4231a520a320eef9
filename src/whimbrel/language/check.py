"""Static check: finds errors in a filter before any notification arrives.

Rule: it refuses only filters that could never be true: strings compared with numbers, reals in integer operators,
patterns that do not compile, and expressions that are constant; and patterns that cost too much.
"""

from __future__ import annotations

from enum import Enum

from whimbrel.language.ast import (
    Binary,
    BinaryOp,
    Compare,
    Convert,
    Equals,
    Literal,
    Name,
    Node,
    NumberFunction,
    Pattern,
    Predicate,
    Size,
    Text,
    Unary,
    UnaryOp,
    Value,
    children,
)
from whimbrel.language.codes import ErrorCode
from whimbrel.language.pattern_cost import ADMITTED, PatternBounds
from whimbrel.language.patterns import PatternError, position_count, program_size
from whimbrel.language.rewrites import fold

__all__ = [
    "INTEGER_OPS",
    "StaticError",
    "ValueKind",
    "check",
    "value_kind",
]

INTEGER_OPS = frozenset(BinaryOp) - {
    BinaryOp.ADD,
    BinaryOp.SUBTRACT,
    BinaryOp.MULTIPLY,
    BinaryOp.DIVIDE,
    BinaryOp.REMAINDER,
}


class ValueKind(Enum):
    """Kind of a value, as far as it is known before evaluation; the value may also be undefined."""

    ANY = "anything"
    NUMBER = "a number"
    INTEGER = "an integer"
    REAL = "a real"
    STRING = "a string"


_INTEGERS = frozenset((ValueKind.ANY, ValueKind.NUMBER, ValueKind.INTEGER))
_NUMBERS = _INTEGERS | {ValueKind.REAL}


class StaticError(ValueError):
    """A node of the tree is not acceptable; internal: ``parse`` turns this error into a ``FilterError``."""

    def __init__(self, code: ErrorCode, reason: str, node: Node) -> None:
        super().__init__(code, reason, node)
        self.code, self.reason, self.node = code, reason, node


def check(tree: Predicate, bounds: PatternBounds = ADMITTED) -> None:
    """Raise ``StaticError`` for the first part of *tree* that can never work, or if it costs more than *bounds*."""
    _Checker(bounds).visit(tree)
    folded = fold(tree)
    if isinstance(folded, bool):
        verdict = "always true" if folded else "never true"
        raise StaticError(ErrorCode.TRIVIAL, f"the whole expression is constant: {verdict}", tree)
    if not _has_name(folded):
        raise StaticError(ErrorCode.TRIVIAL, "the whole expression is constant: always undefined", tree)


def value_kind(node: Value) -> ValueKind:
    """Return the kind of the value of *node*; raise ``StaticError`` if an operand never has a type that fits."""
    match node:
        case Literal(value):
            if isinstance(value, str):
                return ValueKind.STRING
            return ValueKind.REAL if isinstance(value, float) else ValueKind.INTEGER
        case Size() | Convert(NumberFunction.TO_INT):
            return ValueKind.INTEGER
        case Convert():
            return ValueKind.REAL
        case Text():
            return ValueKind.STRING
        case Unary(op, operand):
            kind = _fits(operand, op, _INTEGERS if op is UnaryOp.INVERT else _NUMBERS)
            if op is UnaryOp.INVERT:
                return ValueKind.INTEGER
            return ValueKind.NUMBER if kind is ValueKind.ANY else kind
        case Binary(op, left, right):
            allowed = _INTEGERS if op in INTEGER_OPS else _NUMBERS
            kinds = {_fits(left, op, allowed), _fits(right, op, allowed)}
            if op in INTEGER_OPS or kinds == {ValueKind.INTEGER}:
                return ValueKind.INTEGER
            return ValueKind.REAL if ValueKind.REAL in kinds else ValueKind.NUMBER
        case _:
            return ValueKind.ANY


def _fits(operand: Value, op: BinaryOp | UnaryOp, allowed: frozenset[ValueKind]) -> ValueKind:
    kind = value_kind(operand)
    if kind in allowed:
        return kind
    wanted = "integers" if allowed is _INTEGERS else "numbers"
    raise StaticError(ErrorCode.TYPE, f"{op} works on {wanted}; this is {kind.value}", operand)


def _has_name(node: Node) -> bool:
    return isinstance(node, Name) or any(map(_has_name, children(node)))


class _Checker:
    """Checks a tree in one walk and counts its patterns."""

    def __init__(self, bounds: PatternBounds) -> None:
        self.bounds = bounds
        self.patterns = 0
        self.program = 0

    def visit(self, node: Node) -> None:
        match node:
            case Compare(op, left, right):
                self._comparable(op, left, right, node)
            case Equals(subject, options):
                for option in options:
                    self._comparable("==", subject, option, option)
            case Pattern():
                self._compiles(node)
        for child in children(node):
            if isinstance(child, Predicate):
                self.visit(child)

    def _comparable(self, op: str, left: Value, right: Value, place: Node) -> None:
        kinds = (value_kind(left), value_kind(right))
        if ValueKind.ANY not in kinds and kinds.count(ValueKind.STRING) == 1:
            reason = f"{op} compares {kinds[0].value} with {kinds[1].value}, which is never true"
            raise StaticError(ErrorCode.TYPE, reason, place)

    def _compiles(self, node: Pattern) -> None:
        for pattern in node.patterns:
            try:
                size = program_size(node.function, pattern)
                positions = position_count(node.function, pattern)
            except PatternError as error:
                raise StaticError(error.code, error.reason, node) from None
            if size > self.bounds.instructions or positions > self.bounds.positions:
                reason = (
                    f"a pattern of {size} compiled instructions and {positions} positions; "
                    f"at most {self.bounds.instructions} and {self.bounds.positions} are allowed"
                )
                raise StaticError(ErrorCode.REGEX_COMPLEXITY, reason, node)
            self.patterns += size > 0
            self.program += size
        if self.patterns > self.bounds.patterns or self.program > self.bounds.total_instructions:
            reason = (
                f"{self.patterns} patterns of {self.program} compiled instructions in one filter; "
                f"at most {self.bounds.patterns} and {self.bounds.total_instructions} are allowed"
            )
            raise StaticError(ErrorCode.REGEX_COMPLEXITY, reason, node)
