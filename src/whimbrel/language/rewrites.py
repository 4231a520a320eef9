"""Rewrites of a filter's tree that keep its verdict on every notification (shown by a property test for each).

The matcher and every backend may rely on ``normal_form``: no constant subterm that has a value, no ``equals`` over a
plain attribute, no ``Not`` except directly above a leaf, no ``&&`` under ``&&`` (nor ``||`` or ``^^`` under itself).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from whimbrel.language.ast import (
    And,
    Binary,
    Compare,
    CompareOp,
    Equals,
    Literal,
    Name,
    Not,
    Or,
    Pattern,
    Predicate,
    Text,
    Unary,
    Value,
    Xor,
)
from whimbrel.language.operators import binary, compare, text, unary
from whimbrel.language.pattern_cost import MAX_CONSTANT
from whimbrel.language.patterns import COMPILED, searcher
from whimbrel.model.attributes import Scalar

__all__ = ["expand_equals", "flatten", "fold", "normal_form", "push_not"]

_OPPOSITE: Mapping[CompareOp, CompareOp] = {
    CompareOp.EQ: CompareOp.NE,
    CompareOp.NE: CompareOp.EQ,
    CompareOp.LT: CompareOp.GE,
    CompareOp.GE: CompareOp.LT,
    CompareOp.GT: CompareOp.LE,
    CompareOp.LE: CompareOp.GT,
}


def normal_form(tree: Predicate) -> Predicate:
    """Return *tree*, which must have been checked, in normal form."""
    folded = fold(tree)
    assert not isinstance(folded, bool), "a constant filter does not pass the static check"
    return flatten(push_not(expand_equals(folded)))


# -- constant folding ------------------------------------------------------------------------------------------------


def fold(tree: Predicate) -> Predicate | bool:
    """Replace constant subterms by their values; a constant subterm that is undefined stays as it is."""
    match tree:
        case Not(operand):
            inner = fold(operand)
            return not inner if isinstance(inner, bool) else Not(inner)
        case And(operands):
            return _fold_junction(And, operands, deciding=False)
        case Or(operands):
            return _fold_junction(Or, operands, deciding=True)
        case Xor(operands):
            return _fold_xor(operands)
        case Compare(op, left, right):
            return _fold_compare(Compare(op, fold_value(left), fold_value(right)))
        case Equals(subject, options):
            return _fold_equals(fold_value(subject), tuple(map(fold_value, options)))
        case Pattern(function, subject, patterns):
            subject = fold_value(subject)
            if isinstance(subject, Literal) and isinstance(subject.value, str):
                constant = subject.value
                is_short = function not in COMPILED or len(constant.encode()) <= MAX_CONSTANT
                if is_short:  # on a longer constant a pattern is undefined (``pattern_cost``)
                    return any(searcher(function, pattern)(constant) for pattern in patterns)
            return Pattern(function, subject, patterns)
        case _:
            return tree


def _fold_junction(kind: type[And | Or], operands: Iterable[Predicate], *, deciding: bool) -> Predicate | bool:
    """Fold ``&&`` or ``||``: an operand that is the constant *deciding* decides the result.

    The other constant is left out.
    """
    folded = [fold(operand) for operand in operands]
    if any(operand is deciding for operand in folded):
        return deciding
    left = tuple(operand for operand in folded if not isinstance(operand, bool))
    if len(left) > 1:
        return kind(left)
    return left[0] if left else not deciding


def _fold_xor(operands: Iterable[Predicate]) -> Predicate | bool:
    folded = [fold(operand) for operand in operands]
    parity = folded.count(True) % 2 == 1
    left = tuple(operand for operand in folded if not isinstance(operand, bool))
    if not left:
        return parity
    rest = Xor(left) if len(left) > 1 else left[0]
    return Not(rest) if parity else rest


def _fold_compare(node: Compare) -> Predicate | bool:
    """Replace a comparison of two constants by its verdict, if it has one.

    The constants may be arithmetic; an infinite result has no literal, but can be compared.
    """
    left, right = _constant(node.left), _constant(node.right)
    verdict = None if left is None or right is None else compare(node.op, left, right)
    return node if verdict is None else verdict


def _constant(node: Value) -> Scalar | None:
    """Return the value of a literal or of arithmetic on literals; None for any other term, or if it has no value."""
    match node:
        case Literal(value):
            return value
        case Unary(op, operand):
            inner = _constant(operand)
            return None if inner is None else unary(op, inner)
        case Binary(op, left, right):
            first, second = _constant(left), _constant(right)
            return None if first is None or second is None else binary(op, first, second)
        case _:
            return None


def _fold_equals(subject: Value, options: tuple[Value, ...]) -> Predicate | bool:
    verdicts = [_fold_compare(Compare(CompareOp.EQ, subject, option)) for option in options]
    if any(verdict is True for verdict in verdicts):
        return True
    left = tuple(o for o, verdict in zip(options, verdicts, strict=True) if verdict is not False)
    return Equals(subject, left) if left else False


def fold_value(node: Value) -> Value:
    """Fold constant arithmetic inside a value; NaN and infinities have no literal and stay as written.

    An unchanged subterm stays the same object: the matcher uses the identity of a node to find its token in the text.
    """
    result: Scalar | None = None
    match node:
        case Unary(op, operand):
            inner = fold_value(operand)
            if isinstance(inner, Literal):
                result = unary(op, inner.value)
            node = node if inner is operand else Unary(op, inner)
        case Binary(op, left, right):
            first, second = fold_value(left), fold_value(right)
            if isinstance(first, Literal) and isinstance(second, Literal):
                result = binary(op, first.value, second.value)
            node = node if first is left and second is right else Binary(op, first, second)
        case Text(function, operand):
            inner = fold_value(operand)
            if isinstance(inner, Literal):
                result = text(function, inner.value)
            node = node if inner is operand else Text(function, inner)
    if result is None or isinstance(result, bytes) or (isinstance(result, float) and not math.isfinite(result)):
        return node
    return Literal(result)


# -- shape ------------------------------------------------------------------------------------------------------------


def expand_equals(tree: Predicate) -> Predicate:
    """Rewrite ``equals(x, a, b)`` as ``x == a || x == b`` if repeating x is cheap, that is, not arithmetic."""
    match tree:
        case Equals(Name() | Text() | Literal() as subject, options):
            compares = tuple(Compare(CompareOp.EQ, subject, option) for option in options)
            return Or(compares) if len(compares) > 1 else compares[0]
        case Not(operand):
            return Not(expand_equals(operand))
        case And(operands) | Or(operands) | Xor(operands):
            return type(tree)(tuple(map(expand_equals, operands)))
        case _:
            return tree


def push_not(tree: Predicate, *, negate: bool = False) -> Predicate:
    """Push ``!`` down to the leaves: a comparison becomes its opposite, any other leaf gets ``!`` directly above it."""
    match tree:
        case Not(operand):
            return push_not(operand, negate=not negate)
        case And(operands):
            inner = tuple(push_not(operand, negate=negate) for operand in operands)
            return Or(inner) if negate else And(inner)
        case Or(operands):
            inner = tuple(push_not(operand, negate=negate) for operand in operands)
            return And(inner) if negate else Or(inner)
        case Xor((first, *rest)):
            # Negating one operand negates the parity; undefined stays undefined either way.
            return Xor((push_not(first, negate=negate), *map(push_not, rest)))
        case Compare(op, left, right) if negate:
            return Compare(_OPPOSITE[op], left, right)
        case _:
            return Not(tree) if negate else tree


def flatten(tree: Predicate) -> Predicate:
    """Merge ``&&`` under ``&&``, ``||`` under ``||`` and ``^^`` under ``^^``; all three are associative."""
    match tree:
        case And(operands) | Or(operands) | Xor(operands):
            kind = type(tree)
            merged: list[Predicate] = []
            for operand in map(flatten, operands):
                merged.extend(operand.operands if isinstance(operand, kind) else (operand,))
            return kind(tuple(merged))
        case Not(operand):
            return Not(flatten(operand))
        case _:
            return tree
