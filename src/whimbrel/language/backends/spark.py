"""The Spark backend: a filter's tree becomes one Column, in which NULL is undefined.

The attributes are a column of the log's ``attributes``, or columns of any other DataFrame (``AttributeColumns``).
Rule: it agrees with ``python`` on every tree and notification, whatever ``spark.sql.ansi.enabled`` is; no row raises.
Rule: the only module of the language that imports pyspark.
Rule: in ``attributes``, each value has only the field of its type set (``attributes_to_column_value``).

A value is a few columns (``_Typed``), at most one of which is not NULL. A type that a term can never have gets no
column, so ``a == 'x'`` compares only strings. Spark's own operators are used if they mean the same and cannot raise:
``try_`` forms, bit operators, shifts.

An operation mentions its operands several times, so nested arithmetic, written out, would grow exponentially. Beyond
``_MAX_MENTIONS`` it becomes a program in postfix notation that one ``aggregate`` runs on a stack: linear in the size of
the tree and of constant depth. Rejected: a lambda over a one-element array per level. It is linear too, but Catalyst
resolves it level by level and fails before the 64 levels that the language allows.

Lower case, decomposition, wildcards and regular expressions run in Arrow workers with the reference's own functions:
Spark's ``lower`` follows another version of Unicode than Python's, and Java's regular expressions differ from RE2's.
"""

from __future__ import annotations

import functools
import operator
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias, cast

import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows

from whimbrel.errors import MissingDependencyError, UnsupportedNodeError
from whimbrel.language.ast import (
    And,
    Binary,
    BinaryOp,
    Compare,
    CompareOp,
    Convert,
    Equals,
    Literal,
    Name,
    Not,
    NumberFunction,
    Or,
    Pattern,
    PatternFunction,
    Predicate,
    Size,
    Test,
    TestFunction,
    Text,
    TextFunction,
    Unary,
    UnaryOp,
    Value,
    Xor,
)
from whimbrel.language.operators import INTEGER_TEXT, MAX_REAL_TEXT, REAL_TEXT, text
from whimbrel.language.pattern_cost import UNBOUNDED, longest_for, longest_searched
from whimbrel.language.patterns import byte_searcher
from whimbrel.language.rewrites import fold
from whimbrel.model.attributes import INT32_MAX, INT32_MIN, INT64_MIN, Attributes, AttributeType, Int64
from whimbrel.model.tables import ATTRIBUTES_TYPE, attributes_to_column_value

__all__ = ["AttributeColumns", "attribute_of_map", "to_column", "verdicts"]

_MAX_MENTIONS = 300
"""Most mentions of attributes and literals in arithmetic that is written out; a larger term becomes a program.

This many make about a thousand nodes of Catalyst, half a second to plan; a sum of five attributes has more. Below the
limit the written form is better: Spark computes common parts once, five to twenty times as fast as the program.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeColumns:
    """An attribute as columns: its type, and its value in the column of that type, with NULL in the others.

    None instead of a column means that the attribute never has a value of that type.
    """

    kind: Column
    """Number of the attribute's type (``AttributeType``); NULL in rows without the attribute."""
    integer: Column | None = None
    """Value of an int32 or int64, as bigint."""
    real: Column | None = None
    text: Column | None = None
    opaque: Column | None = None


Lookup: TypeAlias = Callable[[str], AttributeColumns | None]
"""Function that returns the columns of an attribute, by name; None if no row has the attribute."""


def attribute_of_map(attributes: Column, name: str) -> AttributeColumns:
    """Return the columns of one attribute of a column of type ``ATTRIBUTES_TYPE``."""
    entry = attributes[F.lit(name)]
    fields = {each: entry.getField(each) for each in ("real", "text", "opaque")}
    return AttributeColumns(kind=entry.getField("type"), integer=entry.getField("int"), **fields)


def to_column(tree: Predicate, attributes: Column | Lookup) -> Column:
    """Return the verdict of *tree* on *attributes*: true, false or NULL (undefined).

    *attributes* is a column of type ``ATTRIBUTES_TYPE``, or a function that returns the columns of each attribute.
    """
    folded = fold(tree)
    if isinstance(folded, bool):
        return F.lit(folded)
    lookup = functools.partial(attribute_of_map, attributes) if isinstance(attributes, Column) else attributes
    return _Translator(lookup, longest_searched(tree)).verdict(folded)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Integer:
    """The column of an int32 or int64 value; both are computed as bigint."""

    number: Column
    is_wide: Column  # whether it is an int64; arbitrary where number is NULL


@dataclass(frozen=True, slots=True, kw_only=True)
class _Typed:
    """A value as Spark computes it: in each row, at most one of the columns integer, real and text is not NULL.

    None instead of a column means that the value never has that type. If all three are None, the value is always
    undefined or opaque.
    """

    integer: _Integer | None = None
    real: Column | None = None
    text: Column | None = None
    is_nonzero: bool = False  # a literal that is neither zero nor NaN
    mentions: int = 1  # approximate number of attributes and literals in the largest column

    @property
    def is_number(self) -> bool:
        return self.integer is not None or self.real is not None


_UNDEFINED = _Typed()
_Operation: TypeAlias = Unary | Binary
_Finish: TypeAlias = Callable[[Sequence[_Typed]], Column]


class _Translator:
    """Translates one filter's tree to columns; a term that occurs twice is translated once."""

    def __init__(self, lookup: Lookup, longest: int = UNBOUNDED) -> None:
        self._lookup, self._longest = lookup, longest
        self._entries: dict[str, AttributeColumns] = {}
        self._values: dict[Value, _Typed | None] = {}

    def verdict(self, tree: Predicate) -> Column:
        match tree:
            case And(operands):
                return _join_pairwise(operator.and_, map(self.verdict, operands))
            case Or(operands):
                return _join_pairwise(operator.or_, map(self.verdict, operands))
            case Xor(operands):
                return _join_pairwise(operator.ne, map(self.verdict, operands))
            case Not(operand):
                return ~self.verdict(operand)
            case Compare(op, left, right):
                return self._compute((left, right), lambda found: _compare(op, *found))
            case Equals(subject, options):
                return self._equals(subject, options)
            case Pattern(function, subject, patterns):
                longest = longest_for(tree, self._longest)
                return _matches(function, self._direct(subject).text, patterns, longest)
            case Test(function, name):
                return self._test(function, name)
            case _:
                raise UnsupportedNodeError("spark", type(tree).__name__)

    def _equals(self, subject: Value, options: Sequence[Value]) -> Column:
        if self._value(subject) is not None:
            compares = (Compare(CompareOp.EQ, subject, option) for option in options)
            return _join_pairwise(operator.or_, map(self.verdict, compares))
        # One program (see above) for all comparisons, so that the subject is computed once.
        return self._compute(
            (subject, *options),
            lambda found: _join_pairwise(operator.or_, (_compare(CompareOp.EQ, found[0], each) for each in found[1:])),
        )

    def _test(self, function: TestFunction, name: Name) -> Column:
        entry = self._entry(name.name)
        if function is TestFunction.REQUIRE:
            return F.when(entry.kind.isNotNull(), F.lit(True))
        if function is TestFunction.NAN:
            # In Spark NaN equals NaN; its isnan would return false for NULL.
            return _null_verdict() if entry.real is None else entry.real == F.lit(float("nan"))
        return entry.kind == F.lit(int(AttributeType[function.name]))

    def _entry(self, name: str) -> AttributeColumns:
        if name not in self._entries:
            self._entries[name] = self._lookup(name) or AttributeColumns(kind=F.lit(None).cast("tinyint"))
        return self._entries[name]

    # -- values ------------------------------------------------------------------------------------------------------

    def _direct(self, node: Value) -> _Typed:
        """Return the columns that compute *node*, which must not be arithmetic beyond ``_MAX_MENTIONS``."""
        value = self._value(node)
        return _UNDEFINED if value is None else value

    def _value(self, node: Value) -> _Typed | None:
        """Return the columns that compute *node*, or None for arithmetic beyond ``_MAX_MENTIONS``."""
        if node not in self._values:
            value = self._write_out(node)
            self._values[node] = value if value is not None and value.mentions <= _MAX_MENTIONS else None
        return self._values[node]

    def _write_out(self, node: Value) -> _Typed | None:
        match node:
            case Name(name):
                return self._attribute(name)
            case Literal(value):
                return _literal(value)
            case Size(Name(name)):
                return _size(self._entry(name))
            case Convert(function, Name(name)):
                return self._number(function, name)
            case Text(function, operand):
                found = self._direct(operand).text
                return _UNDEFINED if found is None else _Typed(text=_rewritten(function, found))
            case Unary(op, operand):
                inner = self._value(operand)
                return None if inner is None else _unary(op, inner)
            case Binary(op, left, right):
                a, b = self._value(left), self._value(right)
                return None if a is None or b is None else _binary(op, a, b)
            case _:
                raise UnsupportedNodeError("spark", type(node).__name__)

    def _attribute(self, name: str) -> _Typed:
        entry = self._entry(name)
        integer = None
        if entry.integer is not None:
            is_wide = entry.kind == F.lit(int(AttributeType.INT64))
            integer = _Integer(number=entry.integer, is_wide=is_wide)
        return _Typed(integer=integer, real=entry.real, text=entry.text)

    def _number(self, function: NumberFunction, name: str) -> _Typed:
        """Return an attribute as a number, or the number that is written in its string."""
        own = self._attribute(name)
        return _to_int(own) if function is NumberFunction.TO_INT else _to_real(own)

    # -- programs ----------------------------------------------------------------------------------------------------

    def _compute(self, nodes: Sequence[Value], finish: _Finish) -> Column:
        """Return *finish* applied to the values of *nodes*.

        Arithmetic with too many operands for one nested expression (``_MAX_MENTIONS``) is computed by a ``_Program``.
        """
        values = [self._value(node) for node in nodes]
        large = [node for node, value in zip(nodes, values, strict=True) if value is None]
        if not large:
            return finish([value for value in values if value is not None])

        def finish_all(stack: Column) -> Column:
            computed = (_unpack(F.get(stack, F.lit(place))) for place in range(len(large)))
            return finish([next(computed) if value is None else value for value in values])

        program = _Program(self._value)
        for node in large:
            program.append(node)
        return program.run(finish_all)


def _size(entry: AttributeColumns) -> _Typed:
    """Return the size of an attribute: the characters of a string, the bytes of an opaque value."""
    sizes = [F.length(column).cast("bigint") for column in (entry.text, entry.opaque) if column is not None]
    return _Typed(integer=_Integer(number=F.coalesce(*sizes), is_wide=F.lit(False))) if sizes else _UNDEFINED


def _to_int(own: _Typed) -> _Typed:
    """Return an integer attribute, or the integer that is written in a string attribute.

    The pattern does not end with ``$``, because in Java it also matches before a final newline.
    """
    if own.text is None:
        return _Typed(integer=own.integer, mentions=4)
    read = F.when(own.text.rlike(rf"\A{INTEGER_TEXT}\z"), own.text.try_cast("bigint"))
    is_wide = (read < F.lit(INT32_MIN)) | (read > F.lit(INT32_MAX))
    if own.integer is None:
        return _Typed(integer=_Integer(number=read, is_wide=is_wide), mentions=4)
    is_wide = F.when(own.integer.number.isNotNull(), own.integer.is_wide).otherwise(is_wide)
    return _Typed(integer=_Integer(number=F.coalesce(own.integer.number, read), is_wide=is_wide), mentions=4)


def _to_real(own: _Typed) -> _Typed:
    """Return a numeric attribute as a real, or the number that is written in a string attribute."""
    found = [] if own.real is None else [own.real]
    if own.integer is not None:
        found.append(own.integer.number.cast("double"))
    if own.text is not None:
        fits = own.text.rlike(rf"\A{REAL_TEXT}\z") & (F.length(own.text) <= F.lit(MAX_REAL_TEXT))
        read = F.when(fits, own.text.try_cast("double"))
        found.append(F.when(F.abs(read) < F.lit(float("inf")), read))
    return _Typed(real=F.coalesce(*found), mentions=4) if found else _UNDEFINED


# -- predicates ------------------------------------------------------------------------------------------------------


def _null_verdict() -> Column:
    return F.lit(None).cast("boolean")


def _join_pairwise(join: Callable[[Any, Any], Any], operands: Iterable[Column]) -> Column:
    """Join *operands* as a balanced tree: 500 terms are nine levels deep; a chain would overflow Spark's stack."""
    level = list(operands)
    while len(level) > 1:
        pairs = [join(*level[at : at + 2]) for at in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


_ORDER: Mapping[CompareOp, Callable[[Any, Any], Any]] = {
    CompareOp.EQ: operator.eq,
    CompareOp.NE: operator.ne,
    CompareOp.LT: operator.lt,
    CompareOp.LE: operator.le,
    CompareOp.GT: operator.gt,
    CompareOp.GE: operator.ge,
}


def _compare(op: CompareOp, left: _Typed, right: _Typed) -> Column:
    """Return the verdict of a comparison; both values are compared as integers, as reals and as strings.

    At most one of these three results is not NULL.
    """
    parts: list[Column] = []
    if left.integer is not None and right.integer is not None:
        parts.append(_ORDER[op](left.integer.number, right.integer.number))
    if _may_meet_as_reals(left, right):
        both_may_be_zero = not (left.is_nonzero or right.is_nonzero)
        reals = (_without_nan(left, right), _without_nan(right, left))
        parts.append(_compare_reals(op, *reals, both_may_be_zero=both_may_be_zero))
    if left.text is not None and right.text is not None:
        parts.append(_ORDER[op](left.text, right.text))
    return F.coalesce(*parts) if parts else _null_verdict()


def _compare_reals(op: CompareOp, left: Column, right: Column, *, both_may_be_zero: bool) -> Column:
    if op not in {CompareOp.EQ, CompareOp.NE} or not both_may_be_zero:
        return cast("Column", _ORDER[op](left, right))
    # Zeros are equal if their signs are equal, which reciprocals reveal; Spark has no copysign, and its / raises.
    equal = (left == right) & ((left != F.lit(0.0)) | (_reciprocal(left) == _reciprocal(right)))
    return equal if op is CompareOp.EQ else ~equal


def _may_meet_as_reals(left: _Typed, right: _Typed) -> bool:
    return left.is_number and right.is_number and not (left.real is None and right.real is None)


def _as_real(value: _Typed, other: _Typed) -> Column:
    """Return the number *value* as a real, so that it can be compared or computed with *other*.

    The result is not used if both numbers are integers.
    """
    if value.integer is None or other.real is None:
        assert value.real is not None, "one of the two may be a real"
        return value.real
    as_real = value.integer.number.cast("double")
    return as_real if value.real is None else F.coalesce(value.real, as_real)


def _without_nan(value: _Typed, other: _Typed) -> Column:
    """Return *value* as a real, with NULL for NaN: Spark calls NaN equal to itself and greater than all else."""
    real = _as_real(value, other)
    return real if value.is_nonzero or value.real is None else F.nanvl(real, F.lit(None).cast("double"))


def _reciprocal(real: Column) -> Column:
    return F.pow(real, F.lit(-1.0))  # follows IEEE even at ±0.0, unlike Spark's /


def _matches(function: PatternFunction, subject: Column | None, patterns: Sequence[str], longest: int) -> Column:
    if subject is None:
        return _null_verdict()
    built_in = {
        PatternFunction.BEGINS_WITH: F.startswith,
        PatternFunction.ENDS_WITH: F.endswith,
        PatternFunction.CONTAINS: F.contains,
    }.get(function)
    if built_in is not None:
        return _join_pairwise(operator.or_, (built_in(subject, F.lit(pattern)) for pattern in patterns))

    def search(texts: pa.Array) -> pa.Array:
        searchers = [byte_searcher(function, pattern) for pattern in patterns]  # compiled once per worker

        def verdict(found: str) -> bool | None:
            data = found.encode()
            return any(search(data) for search in searchers) if len(data) <= longest else None

        return _each(texts, verdict, pa.bool_())

    return _arrow(search, "boolean", subject)


# -- text ------------------------------------------------------------------------------------------------------------


def _rewritten(function: TextFunction, operand: Column) -> Column:
    def rewrite(texts: pa.Array) -> pa.Array:
        return _each(texts, functools.partial(text, function), pa.string())

    return _arrow(rewrite, "string", operand)


def _each(texts: pa.Array, function: Callable[[str], object], kind: pa.DataType) -> pa.Array:
    return pa.array([None if found is None else function(found) for found in texts.to_pylist()], kind)


def _arrow(function: Callable[[pa.Array], pa.Array], returns: str, operand: Column) -> Column:
    wrapped = F.arrow_udf(function, returns)  # type: ignore[attr-defined]  # pyspark's stubs of F lack it
    return cast("Column", wrapped(operand))


# -- arithmetic ------------------------------------------------------------------------------------------------------

_REAL_OPS = frozenset(
    (BinaryOp.ADD, BinaryOp.SUBTRACT, BinaryOp.MULTIPLY, BinaryOp.DIVIDE, BinaryOp.REMAINDER),
)

_GROWTH = {BinaryOp.ADD: 2, BinaryOp.SUBTRACT: 2, BinaryOp.MULTIPLY: 2, BinaryOp.DIVIDE: 3}
"""Number of times that an integer operator repeats its operands in the Spark expression, if more than once."""


def _literal(value: float | str) -> _Typed:
    if isinstance(value, str):
        return _Typed(text=F.lit(value))
    if isinstance(value, int):
        # int(): an Int64 prints itself differently, and Java would get that text
        integer = _Integer(number=_bigint(int(value)), is_wide=F.lit(isinstance(value, Int64)))
        return _Typed(integer=integer, is_nonzero=value != 0)
    return _Typed(real=F.lit(value), is_nonzero=value != 0.0)


def _bigint(value: int) -> Column:
    return F.lit(value).cast("bigint")


def _unary(op: UnaryOp, operand: _Typed) -> _Typed:
    integer, real, growth = operand.integer, operand.real, 1
    if op is UnaryOp.NEGATE:
        real = None if real is None else -real
    elif op is UnaryOp.INVERT:
        real = None
    if integer is not None and op is not UnaryOp.PLUS:
        number = F.bitwise_not(integer.number) if op is UnaryOp.INVERT else _negate(integer.number)
        integer, growth = _wrap(number, integer.is_wide), 2
    return _Typed(integer=integer, real=real, mentions=growth * operand.mentions)


def _binary(op: BinaryOp, left: _Typed, right: _Typed) -> _Typed:
    integer, real, growth = None, None, 1
    if left.integer is not None and right.integer is not None:
        is_wide = left.integer.is_wide | right.integer.is_wide
        integer = _wrap(_integer(op, left.integer.number, right.integer.number, is_wide), is_wide)
        growth = _GROWTH.get(op, 1)
    if op in _REAL_OPS and _may_meet_as_reals(left, right):
        real = _real(op, _as_real(left, right), _as_real(right, left))
        if left.integer is None or right.integer is None:
            growth = 2 if op in {BinaryOp.DIVIDE, BinaryOp.REMAINDER} else 1
        elif left.real is not None and right.real is not None:
            real = F.when(left.integer.number.isNull() | right.integer.number.isNull(), real)
            growth += 2
    return _Typed(integer=integer, real=real, mentions=growth * (left.mentions + right.mentions))


def _wrap(number: Column, is_wide: Column) -> _Integer:
    """Reduce the result of an int32 operation to its low 32 bits, with their sign; an int64 stays as it is."""
    spare = F.when(is_wide, F.lit(0)).otherwise(F.lit(32))
    wrapped = F.call_function("shiftright", F.call_function("shiftleft", number, spare), spare)
    return _Integer(number=wrapped, is_wide=is_wide)


def _integer(op: BinaryOp, left: Column, right: Column, is_wide: Column) -> Column:
    """Return ``left op right`` in 64 bits; for an int32 only the low 32 bits are valid."""
    match op:
        case BinaryOp.ADD | BinaryOp.SUBTRACT:
            # If the sum overflows, flip the left's top bit: then it does not, and only the result's top bit is wrong.
            try_it = F.try_add if op is BinaryOp.ADD else F.try_subtract
            return F.coalesce(try_it(left, right), _flip_sign(try_it(_flip_sign(left), right)))
        case BinaryOp.MULTIPLY:
            return F.coalesce(F.try_multiply(left, right), _product(left, right))
        case BinaryOp.DIVIDE:
            # Never divide by 0 or -1: the first is undefined, the second is a negation that may wrap around.
            divisor = F.when(~right.isin(0, -1), right)
            return F.coalesce(F.call_function("div", left, divisor), F.when(right == F.lit(-1), _negate(left)))
        case BinaryOp.REMAINDER:
            return F.try_mod(left, right)
        case BinaryOp.SHIFT_LEFT:
            return F.call_function("shiftleft", left, _count(right, is_wide))
        case BinaryOp.SHIFT_RIGHT:
            return F.call_function("shiftright", left, _count(right, is_wide))
        case BinaryOp.SHIFT_RIGHT_LOGICAL:
            bits = left.bitwiseAND(F.when(is_wide, _bigint(-1)).otherwise(_bigint(0xFFFF_FFFF)))
            return F.call_function("shiftrightunsigned", bits, _count(right, is_wide))
        case BinaryOp.BIT_OR:
            return left.bitwiseOR(right)
        case BinaryOp.BIT_XOR:
            return left.bitwiseXOR(right)
        case BinaryOp.BIT_AND:
            return left.bitwiseAND(right)


def _negate(number: Column) -> Column:
    # Only INT64_MIN has no opposite; its negation wraps around to itself.
    return F.coalesce(F.try_subtract(_bigint(0), number), number)


def _flip_sign(number: Column) -> Column:
    return number.bitwiseXOR(_bigint(INT64_MIN))


def _product(left: Column, right: Column) -> Column:
    """Return the product modulo 2**64; its 127 bits fit a decimal(38)."""
    half, whole = F.lit(Decimal(1 << 63)), F.lit(Decimal(1 << 64))
    product = left.cast("decimal(19,0)") * right.cast("decimal(19,0)")
    return (F.pmod(product + half, whole) - half).cast("bigint")


def _count(right: Column, is_wide: Column) -> Column:
    return right.bitwiseAND(F.when(is_wide, _bigint(63)).otherwise(_bigint(31))).cast("int")


def _real(op: BinaryOp, left: Column, right: Column) -> Column:
    match op:
        case BinaryOp.ADD:
            return left + right
        case BinaryOp.SUBTRACT:
            return left - right
        case BinaryOp.MULTIPLY:
            return left * right
        case BinaryOp.DIVIDE:
            return F.coalesce(F.try_divide(left, right), left * _reciprocal(right))  # the second only if right is 0
        case _:
            return F.coalesce(F.try_mod(left, right), left * right * F.lit(float("nan")))  # likewise


# -- programs --------------------------------------------------------------------------------------------------------

_NUMBER = "struct<is_wide:boolean,int:bigint,real:double>"
_PUSH = 0


class _Program:
    """Arithmetic in postfix notation: a step pushes a number, or pops its operands from the stack and pushes a result.

    Each step has a code for its kind. One Spark expression interprets all steps. It contains each operator once,
    however often the arithmetic uses it; only the array of steps grows with the arithmetic.
    """

    def __init__(self, value: Callable[[Value], _Typed | None]) -> None:
        self._value = value
        self._steps: list[Column] = []
        self._codes: dict[tuple[type[_Operation], UnaryOp | BinaryOp], int] = {}  # "-" is an operator of both kinds
        self._made: dict[Value | int, Column] = {}  # steps by the number that they push, or by their code

    def append(self, node: Value) -> None:
        """Add the steps that leave the value of *node* on the stack."""
        value = self._value(node)
        match node:
            case _ if value is not None and value.mentions == 1:
                self._step(node, _PUSH, 0, value)
            case Unary(op, operand):
                self.append(operand)
                code = self._code(Unary, op)
                self._step(code, code, 1, _UNDEFINED)
            case Binary(op, left, right):
                self.append(left)
                self.append(right)
                code = self._code(Binary, op)
                self._step(code, code, 2, _UNDEFINED)

    def _code(self, kind: type[_Operation], op: UnaryOp | BinaryOp) -> int:
        return self._codes.setdefault((kind, op), len(self._codes) + 1)

    def _step(self, key: Value | int, code: int, takes: int, value: _Typed) -> None:
        if key not in self._made:
            columns = {"code": F.lit(code), "takes": F.lit(takes), "number": _pack(value)}
            self._made[key] = F.struct(*(column.alias(name) for name, column in columns.items()))
        self._steps.append(self._made[key])

    def run(self, finish: Callable[[Column], Column]) -> Column:
        """Return a column that runs all steps and applies *finish* to the stack after the last one."""
        empty = F.array().cast(f"array<{_NUMBER}>")
        return F.aggregate(F.array(*self._steps), empty, self._advance, finish)

    def _advance(self, stack: Column, step: Column) -> Column:
        left, right = (_unpack(F.try_element_at(stack, F.lit(place))) for place in (-2, -1))
        code = step.getField("code")
        number = F.when(code == F.lit(_PUSH), step.getField("number"))
        for (_, op), known in self._codes.items():
            result = _unary(op, right) if isinstance(op, UnaryOp) else _binary(op, left, right)
            number = number.when(code == F.lit(known), _pack(result))
        kept = F.slice(stack, F.lit(1), F.size(stack) - step.getField("takes"))
        return F.concat(kept, F.array(number))


def _pack(value: _Typed) -> Column:
    if not value.is_number:
        return F.lit(None).cast(_NUMBER)
    nothing = F.lit(None)
    is_wide, number = (nothing, nothing) if value.integer is None else (value.integer.is_wide, value.integer.number)
    return F.struct(is_wide, number, nothing if value.real is None else value.real).cast(_NUMBER)


def _unpack(number: Column) -> _Typed:
    integer = _Integer(number=number.getField("int"), is_wide=number.getField("is_wide"))
    return _Typed(integer=integer, real=number.getField("real"))


# -- vectors ---------------------------------------------------------------------------------------------------------

_TREES_A_SELECT = 50
"""Trees in one SELECT; with more, the code that Spark generates is too large for Java to compile well."""


def verdicts(cases: Sequence[tuple[Predicate, Attributes]]) -> list[bool | None]:
    """Return the verdict of every tree on its attributes, in one Spark job."""
    if not cases:
        return []
    spark = _session()
    chunks = (range(at, min(at + _TREES_A_SELECT, len(cases))) for at in range(0, len(cases), _TREES_A_SELECT))
    frames = (_verdict_frame(spark, chunk, cases) for chunk in chunks)
    rows = functools.reduce(DataFrame.union, frames).collect()
    found = {row["place"]: row["verdict"] for row in rows}
    return [found[place] for place in range(len(cases))]


def _verdict_frame(spark: SparkSession, chunk: range, cases: Sequence[tuple[Predicate, Attributes]]) -> DataFrame:
    """Return a DataFrame with the number and the verdict of each case in *chunk*.

    Each row computes the trees of all cases, because one plan for all of them is cheaper than many plans.
    """
    rows = pa.array([attributes_to_column_value(cases[place][1]) for place in chunk], ATTRIBUTES_TYPE)
    frame = spark.createDataFrame(pa.table({"place": pa.array(chunk, pa.int32()), "attributes": rows}))
    columns = [to_column(cases[place][0], F.col("attributes")) for place in chunk]
    own = F.get(F.array(*columns), F.col("place") - F.lit(chunk.start))
    return frame.select("place", own.alias("verdict"))


def _session() -> SparkSession:
    """Return the active session, or a small, silent one that lives as long as the process."""
    found = SparkSession.getActiveSession()
    if found is not None:
        return found
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers would run the first python3 on the PATH
    conf = SparkConf().setAll(
        [
            ("spark.master", "local[2]"),
            ("spark.app.name", "whimbrel"),
            ("spark.driver.bindAddress", "127.0.0.1"),  # no other machine takes part
            ("spark.driver.host", "127.0.0.1"),
            # The work takes a minute: Java's second compiler would cost more than it saves.
            ("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
            ("spark.log.level", "ERROR"),
            ("spark.python.sql.dataFrameDebugging.enabled", "false"),  # recording where columns are made costs time
            ("spark.sql.leafNodeDefaultParallelism", "1"),  # a few dozen rows are one task
            ("spark.sql.session.timeZone", "UTC"),
            ("spark.sql.shuffle.partitions", "1"),
            ("spark.ui.enabled", "false"),
            ("spark.ui.showConsoleProgress", "false"),
        ]
    )
    try:
        # Java writes to standard error before it reads log settings; a failure is raised as an exception anyway.
        gateway = launch_gateway(conf, {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL})  # type: ignore[no-untyped-call]  # pyspark's own
    except (PySparkRuntimeError, OSError):
        raise MissingDependencyError("Spark", "Java 17 or newer", "set JAVA_HOME if it is not on the PATH") from None
    return SparkSession(SparkContext(conf=conf, gateway=gateway))
