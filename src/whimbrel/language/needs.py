"""Needs: the attributes that a filter needs before it can be true; for users, for quench, and for the index."""

from __future__ import annotations

from dataclasses import dataclass

from whimbrel.language.ast import (
    And,
    Binary,
    Compare,
    Convert,
    Equals,
    Name,
    Node,
    Not,
    Or,
    Pattern,
    Predicate,
    Size,
    Test,
    TestFunction,
    Text,
    Unary,
    UnaryOp,
    Value,
    Xor,
    children,
)
from whimbrel.language.check import INTEGER_OPS, ValueKind, value_kind
from whimbrel.language.rewrites import normal_form
from whimbrel.model.attributes import AttributeType

__all__ = ["Need", "names", "needs"]

_INTEGERS = frozenset((AttributeType.INT32, AttributeType.INT64))
_NUMBERS = _INTEGERS | {AttributeType.REAL64}
_NAN = frozenset((AttributeType.REAL64,))
_STRING = frozenset((AttributeType.STRING,))
_ALL = frozenset(AttributeType)
_COMPARABLE = _NUMBERS | _STRING


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One attribute that a filter uses, with the types for which a condition on it can be true."""

    name: str
    is_required: bool
    """Whether the filter is never true without this attribute."""
    types: frozenset[AttributeType]
    """Attribute types with which at least one condition on the attribute can be true."""


def needs(tree: Predicate) -> list[Need]:
    """Return the attributes that *tree* uses, in the order of their first use."""
    normal = normal_form(tree)
    types: dict[str, frozenset[AttributeType]] = {}
    _collect(normal, types)
    required = _required_names(normal)
    return [Need(name=name, is_required=name in required, types=found) for name, found in types.items()]


def names(node: Node) -> frozenset[str]:
    """Return all attribute names in *node*."""
    if isinstance(node, Name):
        return frozenset((node.name,))
    return frozenset().union(*map(names, children(node)))


def _required_names(tree: Predicate) -> frozenset[str]:
    """Return the names of the attributes without which *tree* is never true; ``!`` must stand only at its leaves."""
    match tree:
        case And(operands):
            return frozenset().union(*map(_required_names, operands))
        case Or(operands):
            return frozenset.intersection(*map(_required_names, operands))
        case Equals(subject, options):
            return names(subject) | frozenset.intersection(*map(names, options))
        case Not(Equals() as operand):
            return names(operand)
        case _:  # a comparison, test, pattern or ``^^`` is undefined if one of its attributes is missing
            return names(tree)


def _collect(node: Predicate, types: dict[str, frozenset[AttributeType]], *, inside_xor: bool = False) -> None:
    match node:
        case Test(function, name):
            _add(name.name, _test_types(function, either=inside_xor), types)
        case Not(Test(function, name)):
            _add(name.name, _test_types(function, either=inside_xor, negated=True), types)
        case Compare(_, left, right):
            _collect_compared(left, right, types)
        case Equals(subject, options):
            for option in options:
                _collect_compared(subject, option, types)
        case Pattern(_, subject, _):
            _collect_value(subject, _STRING, types)
        case _:
            for child in children(node):
                if isinstance(child, Predicate):
                    _collect(child, types, inside_xor=inside_xor or isinstance(node, Xor))


def _collect_compared(left: Value, right: Value, types: dict[str, frozenset[AttributeType]]) -> None:
    _collect_value(left, _compared_with(right), types)
    _collect_value(right, _compared_with(left), types)


def _collect_value(node: Value, wanted: frozenset[AttributeType], types: dict[str, frozenset[AttributeType]]) -> None:
    match node:
        case Name(name):
            _add(name, wanted, types)
        case Convert(_, name):
            _add(name.name, _STRING | _NUMBERS, types)
        case Size(name):
            _add(name.name, _STRING | {AttributeType.OPAQUE}, types)
        case Text(_, operand):
            _collect_value(operand, _STRING, types)
        case Unary(op, operand):
            _collect_value(operand, _INTEGERS if op is UnaryOp.INVERT else _NUMBERS, types)
        case Binary(op, left, right):
            operand_types = _INTEGERS if op in INTEGER_OPS else _NUMBERS
            _collect_value(left, operand_types, types)
            _collect_value(right, operand_types, types)


def _compared_with(other: Value) -> frozenset[AttributeType]:
    match value_kind(other):
        case ValueKind.STRING:
            return _STRING
        case ValueKind.ANY:
            return _COMPARABLE
        case _:
            return _NUMBERS


def _test_types(function: TestFunction, *, either: bool, negated: bool = False) -> frozenset[AttributeType]:
    """Return the types of an attribute for which a type test, negated or not, is true.

    With *either* (inside ``^^``), return also those for which the test is false.
    """
    if function is TestFunction.NAN:
        return _NAN
    if function is TestFunction.REQUIRE:
        return _ALL if either or not negated else frozenset()
    asked = frozenset((AttributeType[function.name],))
    return _ALL if either else _ALL - asked if negated else asked


def _add(name: str, found: frozenset[AttributeType], types: dict[str, frozenset[AttributeType]]) -> None:
    types[name] = types.get(name, frozenset()) | found
