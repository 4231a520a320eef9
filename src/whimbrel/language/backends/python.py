"""The reference backend: a filter's tree becomes nested Python functions, written to be obviously right.

Rule: every other backend (index, Spark) must agree with this one on every tree and every notification.
Rule: a value function returns a scalar or None (undefined); a predicate function returns True, False or None.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from whimbrel.errors import UnsupportedNodeError
from whimbrel.language.ast import (
    And,
    Binary,
    Compare,
    CompareOp,
    Convert,
    Equals,
    Literal,
    Name,
    Not,
    Or,
    Pattern,
    Predicate,
    Size,
    Test,
    TestFunction,
    Text,
    Unary,
    Value,
    Xor,
)
from whimbrel.language.operators import binary, compare, number, text, unary
from whimbrel.language.pattern_cost import longest_for, longest_searched
from whimbrel.language.patterns import COMPILED, byte_searcher, searcher
from whimbrel.model.attributes import Attributes, Scalar, type_of

__all__ = ["ValueFunction", "VerdictFunction", "compile_filter", "compile_value"]

VerdictFunction: TypeAlias = Callable[[Attributes], bool | None]
ValueFunction: TypeAlias = Callable[[Attributes], Scalar | None]


def compile_filter(tree: Predicate, *, longest: int | None = None) -> VerdictFunction:
    """Return the function that computes the verdict of *tree* (True, False or None: undefined) on attributes.

    *longest* is the longest string, in bytes, on which its regular expressions and wildcards run. It must be given if
    *tree* is only a part of a filter, because it depends on all patterns of the filter.
    """
    return _compile(tree, longest_searched(tree) if longest is None else longest)


def _compile(tree: Predicate, longest: int) -> VerdictFunction:
    match tree:
        case And(operands):
            return _and(tuple(_compile(operand, longest) for operand in operands))
        case Or(operands):
            return _or(tuple(_compile(operand, longest) for operand in operands))
        case Xor(operands):
            return _xor(tuple(_compile(operand, longest) for operand in operands))
        case Not(operand):
            return _not(_compile(operand, longest))
        case Compare(op, Name(name), Literal(value)):  # the most common node: one object for the collector, not a dozen
            return partial(_compare_attribute, op, name, value)
        case Compare(op, left, right):
            return _compare(op, compile_value(left), compile_value(right))
        case Equals(subject, options):
            return _equals(compile_value(subject), tuple(map(compile_value, options)))
        case Pattern(function) if function in COMPILED:
            return _compiled_pattern(tree, longest_for(tree, longest))
        case Pattern():
            return _pattern(tree)
        case Test(function, name):
            return _test(function, name.name)
        case _:
            raise UnsupportedNodeError("python", type(tree).__name__)


def compile_value(node: Value) -> ValueFunction:
    """Return the function that computes the value of *node* on attributes."""
    match node:
        case Name(name):
            return lambda attributes: attributes.get(name)
        case Literal(value):
            return lambda _: value
        case Unary(op, operand):
            return _apply(partial(unary, op), compile_value(operand))
        case Text(function, operand):
            return _apply(partial(text, function), compile_value(operand))
        case Convert(function, attribute):
            return _apply(partial(number, function), compile_value(attribute))
        case Size(attribute):
            return _apply(_size, compile_value(attribute))
        case Binary():
            return _binary(node)
        case _:
            raise UnsupportedNodeError("python", type(node).__name__)


def _apply(function: Callable[[Scalar], Scalar | None], operand: ValueFunction) -> ValueFunction:
    """Return a function that applies *function* to the operand's value, and returns None for an undefined operand."""

    def value(attributes: Attributes) -> Scalar | None:
        found = operand(attributes)
        return None if found is None else function(found)

    return value


def _size(value: Scalar) -> Scalar | None:
    return len(value) if isinstance(value, str | bytes) else None


def _binary(node: Binary) -> ValueFunction:
    op, left, right = node.op, compile_value(node.left), compile_value(node.right)

    def value(attributes: Attributes) -> Scalar | None:
        a, b = left(attributes), right(attributes)
        return None if a is None or b is None else binary(op, a, b)

    return value


def _and(operands: tuple[VerdictFunction, ...]) -> VerdictFunction:
    def verdict(attributes: Attributes) -> bool | None:
        result: bool | None = True
        for operand in operands:
            found = operand(attributes)
            if found is False:
                return False
            if found is None:
                result = None
        return result

    return verdict


def _or(operands: tuple[VerdictFunction, ...]) -> VerdictFunction:
    def verdict(attributes: Attributes) -> bool | None:
        result: bool | None = False
        for operand in operands:
            found = operand(attributes)
            if found is True:
                return True
            if found is None:
                result = None
        return result

    return verdict


def _xor(operands: tuple[VerdictFunction, ...]) -> VerdictFunction:
    def verdict(attributes: Attributes) -> bool | None:
        result = False
        for operand in operands:
            found = operand(attributes)
            if found is None:
                return None
            result ^= found
        return result

    return verdict


def _not(operand: VerdictFunction) -> VerdictFunction:
    def verdict(attributes: Attributes) -> bool | None:
        found = operand(attributes)
        return None if found is None else not found

    return verdict


def _compare_attribute(op: CompareOp, name: str, constant: Scalar, attributes: Attributes) -> bool | None:
    value = attributes.get(name)
    return None if value is None else compare(op, value, constant)


def _compare(op: CompareOp, left: ValueFunction, right: ValueFunction) -> VerdictFunction:
    def verdict(attributes: Attributes) -> bool | None:
        a, b = left(attributes), right(attributes)
        return None if a is None or b is None else compare(op, a, b)

    return verdict


def _equals(subject: ValueFunction, options: tuple[ValueFunction, ...]) -> VerdictFunction:
    """Return a function for ``equals``: whether the subject, which is computed once, equals at least one option."""

    def verdict(attributes: Attributes) -> bool | None:
        value = subject(attributes)
        comparisons = tuple(_compare(CompareOp.EQ, lambda _: value, option) for option in options)
        return _or(comparisons)(attributes)

    return verdict


def _pattern(node: Pattern) -> VerdictFunction:
    subject = compile_value(node.subject)
    searchers = tuple(searcher(node.function, pattern) for pattern in node.patterns)

    def verdict(attributes: Attributes) -> bool | None:
        value = subject(attributes)
        return any(search(value) for search in searchers) if isinstance(value, str) else None

    return verdict


def _compiled_pattern(node: Pattern, longest: int) -> VerdictFunction:
    """Return a function that computes the verdict of a pattern test by RE2; undefined for a string that is too long."""
    subject = compile_value(node.subject)
    searchers = tuple(byte_searcher(node.function, pattern) for pattern in node.patterns)

    def verdict(attributes: Attributes) -> bool | None:
        value = subject(attributes)
        if not isinstance(value, str) or len(value) > longest:
            return None
        data = value.encode()
        return any(search(data) for search in searchers) if len(data) <= longest else None

    return verdict


def _test(function: TestFunction, name: str) -> VerdictFunction:
    def verdict(attributes: Attributes) -> bool | None:
        value = attributes.get(name)
        if value is None:
            return None
        if function is TestFunction.REQUIRE:
            return True
        if function is TestFunction.NAN:
            return math.isnan(value) if isinstance(value, float) else None
        return type_of(value).word == function

    return verdict
