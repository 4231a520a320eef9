"""Leaves and clauses: the form in which the packed index understands a filter.

A filter in normal form is true exactly if one of its *clauses* is true. A clause is a conjunction of *leaves* (tests of
one attribute) and of smaller formulas over leaves. Every leaf is false where the reference semantics is undefined.
Because ``!`` stands only at the leaves, two-valued evaluation then finds exactly the filters that the reference calls
true (shown by a property test).
Rule: every clause has at least one *direct* leaf, a member of the conjunction itself. So a clause can be true only if
the attribute of that leaf is present.
Rule: a term that no leaf can express (arithmetic, attribute against attribute) becomes ``Op.MAYBE``. That leaf is true
here, and the compiled filter decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, product
from typing import TypeAlias

from whimbrel.language.ast import (
    And,
    Compare,
    CompareOp,
    Convert,
    Equals,
    Literal,
    Name,
    Node,
    Not,
    Or,
    Pattern,
    PatternFunction,
    Predicate,
    Size,
    Test,
    TestFunction,
    Text,
    Value,
    Xor,
    children,
)
from whimbrel.language.rewrites import flatten, push_not
from whimbrel.match.kernels.layout import Op
from whimbrel.model.attributes import AttributeType

__all__ = ["Clause", "Formula", "Leaf", "Operand", "clauses"]

MAX_LEAVES = 4_096
"""Most leaves (tests) of one filter, all clauses together; larger filters are decided by their compiled form."""


_COMPARISON = {
    CompareOp.EQ: 0,
    CompareOp.NE: 1,
    CompareOp.LT: 2,
    CompareOp.LE: 3,
    CompareOp.GT: 4,
    CompareOp.GE: 5,
}
_MIRRORED = {
    CompareOp.EQ: CompareOp.EQ,
    CompareOp.NE: CompareOp.NE,
    CompareOp.LT: CompareOp.GT,
    CompareOp.LE: CompareOp.GE,
    CompareOp.GT: CompareOp.LT,
    CompareOp.GE: CompareOp.LE,
}
_PLAIN_PATTERNS = frozenset((PatternFunction.BEGINS_WITH, PatternFunction.ENDS_WITH, PatternFunction.CONTAINS))

Operand: TypeAlias = int | float | str | None
"""The constant of a leaf: a number, a string (literal or pattern), a type code, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One test of one column: an attribute, or a value derived from it by functions."""

    op: Op
    name: Name
    derivation: tuple[str, ...] = ()
    """Functions applied to the attribute, innermost first, such as fold-case, decompose, size or to-int."""
    literal: Literal | None = None
    """The constant as a node of the filter's tree, if it is one; ``plans`` finds the constant's token through it."""
    operand: Operand = None
    """The constant, if it is not a node of the filter's tree: a type code or a pattern."""
    function: PatternFunction | None = None
    pattern: tuple[Value, int] | None = None
    """First operand of the pattern call, and the pattern's number in the call; they lead ``plans`` to its token."""


Formula: TypeAlias = "Leaf | tuple[str, tuple[Formula, ...]]"
"""A boolean formula: a leaf, or ``("and" | "or", parts)``."""


@dataclass(frozen=True, slots=True)
class Clause:
    """A conjunction of the leaves (tests) *direct* and the compound formulas *rest*."""

    direct: tuple[Leaf, ...]
    rest: tuple[Formula, ...]


class _TooLargeError(Exception):
    """A filter is too large to be split into clauses; internal: its compiled form then decides whether it is true."""


_NEVER: Formula = ("or", ())
_ALWAYS: Formula = ("and", ())


def clauses(normal: Predicate, *, is_shape: bool = False) -> list[Clause]:
    """Return the clauses of a filter in *normal* form.

    If *is_shape*, the clauses are for all filters of one shape, which differ in names and constants. Two names that are
    equal in this filter may then differ in another.
    """
    try:
        found = _split(_formula(normal))
        if sum(_size(part) for clause in found for part in (*clause.direct, *clause.rest)) <= MAX_LEAVES:
            return found
    except _TooLargeError:
        pass
    # Too large to expand: one clause per attribute of which the filter needs at least one; the compiled filter decides.
    return [Clause((Leaf(op=Op.MAYBE, name=name),), ()) for name in _cover(normal, is_shape=is_shape).values()]


# -- the formula -----------------------------------------------------------------------------------------------------


def _formula(node: Predicate) -> Formula:
    match node:
        case And(operands):
            return _join("and", map(_formula, operands))
        case Or(operands):
            return _join("or", map(_formula, operands))
        case Xor(operands):
            return _xor(operands)
        case Not(operand):
            return _leaf(operand, negated=True)
        case _:
            return _leaf(node, negated=False)


def _join(kind: str, parts: Iterable[Formula]) -> Formula:
    merged: list[Formula] = []
    absorbing, neutral = (_NEVER, _ALWAYS) if kind == "and" else (_ALWAYS, _NEVER)
    for part in parts:
        if part == absorbing:
            return absorbing
        if part == neutral:
            continue
        if isinstance(part, tuple) and part[0] == kind:
            merged.extend(part[1])
        else:
            merged.append(part)
    return merged[0] if len(merged) == 1 else (kind, tuple(merged))


def _xor(operands: tuple[Predicate, ...]) -> Formula:
    """Return an exclusive or as the disjunction of its true cases: an odd number of operands true, the others false."""
    if len(operands) > 3:
        raise _TooLargeError
    cases = []
    for signs in product((False, True), repeat=len(operands)):
        if (len(operands) - sum(signs)) % 2 == 1:
            parts = [flatten(push_not(operand, negate=sign)) for operand, sign in zip(operands, signs, strict=True)]
            cases.append(_join("and", map(_formula, parts)))
    formula = _join("or", cases)
    if _size(formula) > MAX_LEAVES:
        raise _TooLargeError
    return formula


def _leaf(node: Predicate, *, negated: bool) -> Formula:
    match node:
        case Compare(op, left, right):  # the normal form has no Not above a comparison
            return _compare(op, left, right, node)
        case Test(function, name):
            return _test(function, name, negated=negated)
        case Pattern(function, subject, patterns):
            column = _column(subject)
            if column is None:
                return _maybe(Not(node) if negated else node)
            parts = [
                _pattern(function, *column, (subject, number), pattern, negated=negated)
                for number, pattern in enumerate(patterns)
            ]
            return _join("and" if negated else "or", parts)
        case _:
            return _maybe(Not(node) if negated else node)


def _compare(op: CompareOp, left: Value, right: Value, node: Compare) -> Formula:
    if isinstance(left, Literal):
        op, left, right = _MIRRORED[op], right, left
    column = _column(left)
    if column is None or not isinstance(right, Literal):
        return _maybe(node)
    name, derivation = column
    if isinstance(right.value, str):
        if op not in {CompareOp.EQ, CompareOp.NE}:
            return _maybe(node)
        kind = Op.STRING_EQ if op is CompareOp.EQ else Op.STRING_NE
    else:
        first = Op.REAL_EQ if isinstance(right.value, float) else Op.INT_EQ
        kind = Op(first + _COMPARISON[op])
    return Leaf(op=kind, name=name, derivation=derivation, literal=right)


def _test(function: TestFunction, name: Name, *, negated: bool) -> Formula:
    if function is TestFunction.REQUIRE:
        return _NEVER if negated else Leaf(op=Op.PRESENT, name=name)
    if function is TestFunction.NAN:
        return Leaf(op=Op.NOT_NAN if negated else Op.NAN, name=name)
    kind = int(AttributeType[function.name])
    return Leaf(op=Op.TYPE_IS_NOT if negated else Op.TYPE_IS, name=name, operand=kind)


def _pattern(
    function: PatternFunction,
    name: Name,
    derivation: tuple[str, ...],
    place: tuple[Value, int],
    pattern: str,
    *,
    negated: bool,
) -> Formula:
    op = Op.NOT_PATTERN if negated else Op.PATTERN
    return Leaf(op=op, name=name, derivation=derivation, operand=pattern, function=function, pattern=place)


def _column(node: Value) -> tuple[Name, tuple[str, ...]] | None:
    """Return the attribute of a term and the functions applied to it, innermost first.

    Return None if the term is anything else.
    """
    derivation: list[str] = []
    while isinstance(node, Text):
        derivation.insert(0, str(node.function))
        node = node.operand
    if isinstance(node, Size):
        return node.name, ("size",)
    if isinstance(node, Convert):
        return node.name, (str(node.function),)
    return (node, tuple(derivation)) if isinstance(node, Name) else None


def _maybe(node: Predicate) -> Formula:
    """Return a leaf for a condition that the compiled filter must decide: true if its first attribute is present."""
    name = next(_names(node), None)
    return _NEVER if name is None else Leaf(op=Op.MAYBE, name=name)


def _names(node: Node) -> Iterator[Name]:
    if isinstance(node, Equals):
        yield from _names(node.subject)  # it may equal any one option, so no attribute in an option must be present
    elif isinstance(node, Name):
        yield node
    else:
        for child in children(node):
            yield from _names(child)


# -- the clauses -----------------------------------------------------------------------------------------------------


def _split(formula: Formula) -> list[Clause]:
    if isinstance(formula, Leaf):
        return [Clause((formula,), ())]
    kind, parts = formula
    if kind == "or":
        return [clause for part in parts for clause in _split(part)]
    direct = tuple(part for part in parts if isinstance(part, Leaf))
    rest = tuple(part for part in parts if not isinstance(part, Leaf))
    spread = None if any(map(_is_selective, direct)) else _to_spread(rest, needed=not direct)
    if spread is None:
        return [Clause(tuple(sorted(direct, key=_rank)), rest)]
    others = tuple(part for part in parts if part is not spread)
    if len(spread[1]) * sum(map(_size, others)) > MAX_LEAVES:
        raise _TooLargeError
    return [clause for option in spread[1] for clause in _split(_join("and", (option, *others)))]


def _to_spread(rest: tuple[Formula, ...], *, needed: bool) -> tuple[str, tuple[Formula, ...]] | None:
    """Return the disjunction to expand, so that each of its options becomes a clause; None if none should be expanded.

    Take a disjunction whose options all have an equality or a pattern, by which the index can find each clause.
    Otherwise take the smallest, if *needed* because the clause has no direct leaf.
    """
    options = [part for part in rest if isinstance(part, tuple)]
    for part in options:
        if all(_has_selective(option) for option in part[1]):
            return part
    return min(options, key=_size) if needed and options else None


def _is_selective(leaf: Leaf) -> bool:
    return leaf.op in {Op.INT_EQ, Op.REAL_EQ, Op.STRING_EQ, Op.PATTERN}


def _has_selective(formula: Formula) -> bool:
    if isinstance(formula, Leaf):
        return _is_selective(formula)
    kind, parts = formula
    return all(map(_has_selective, parts)) if kind == "or" else any(map(_has_selective, parts))


def _rank(leaf: Leaf) -> int:
    """Return the sort key of a leaf: cheap and selective leaves are tested first."""
    return 0 if leaf.op in {Op.INT_EQ, Op.REAL_EQ, Op.STRING_EQ} else 2 if leaf.op is Op.MAYBE else 1


def _size(formula: Formula) -> int:
    return 1 if isinstance(formula, Leaf) else sum(map(_size, formula[1]))


def _cover(node: Predicate, *, is_shape: bool) -> dict[object, Name]:
    """Return attribute names of which at least one is present whenever *node* is true.

    Equal names are listed once. If *is_shape*, each occurrence is listed: another filter of the same shape may have
    different names there.
    """
    found: Iterable[Name]
    match node:
        case Or(operands):
            found = [name for operand in operands for name in _cover(operand, is_shape=is_shape).values()]
        case And(operands):
            return min((_cover(operand, is_shape=is_shape) for operand in operands), key=len)
        case Xor((first, *_)):
            found = _names(first)  # a true Xor has defined operands, so one name of the first operand is present
        case _:
            found = islice(_names(node), 1)
    return {id(name) if is_shape else name: name for name in found}
