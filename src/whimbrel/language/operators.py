"""The meaning of the operators on plain values; the only module that defines promotion, wrap-around and undefined.

Rule: ``None`` is undefined. Operands are promoted int32 < int64 < real64 before the operation, the result has the
promoted type, and integers wrap around.
Rule: strings compare only with strings, by code point; opaque values compare with nothing.
"""

from __future__ import annotations

import math
import operator
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from whimbrel.language.ast import BinaryOp, CompareOp, NumberFunction, TextFunction, UnaryOp
from whimbrel.model.attributes import Int64, Scalar, integer
from whimbrel.model.bounds import INT64_MAX, INT64_MIN

__all__ = ["INTEGER_TEXT", "MAX_REAL_TEXT", "REAL_TEXT", "Number", "binary", "compare", "number", "text", "unary"]

Number: TypeAlias = int | float
_NUMBERS = (int, float)  # a tuple for isinstance; a union would be created on each call

_ORDER: Mapping[CompareOp, Callable[[Any, Any], bool]] = {
    CompareOp.LT: operator.lt,
    CompareOp.LE: operator.le,
    CompareOp.GT: operator.gt,
    CompareOp.GE: operator.ge,
}


INTEGER_TEXT = "[+-]?[0-9]{1,19}"
REAL_TEXT = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
MAX_REAL_TEXT = 64
"""Forms of strings that are numbers, and the most characters of a real; spaces are not allowed."""
_INTEGER, _REAL = re.compile(INTEGER_TEXT), re.compile(REAL_TEXT)


def compare(op: CompareOp, left: Scalar, right: Scalar) -> bool | None:
    """Return the verdict of ``left op right``."""
    if isinstance(left, str) and isinstance(right, str):
        return _in_order(op, left, right, equal=left == right)
    if not isinstance(left, _NUMBERS) or not isinstance(right, _NUMBERS):
        return None
    if isinstance(left, int) and isinstance(right, int):
        return _in_order(op, left, right, equal=left == right)
    # float() promotes: an int64 beyond 2**53 loses its last digits here, as in Elvin.
    left, right = float(left), float(right)
    if math.isnan(left) or math.isnan(right):
        return None
    # Elvin: two reals are equal if sign, mantissa and exponent are equal, so -0.0 is not 0.0; yet neither is less.
    equal = left == right and math.copysign(1.0, left) == math.copysign(1.0, right)
    return _in_order(op, left, right, equal=equal)


def _in_order(op: CompareOp, left: Scalar, right: Scalar, *, equal: bool) -> bool:
    if op is CompareOp.EQ:
        return equal
    if op is CompareOp.NE:
        return not equal
    return _ORDER[op](left, right)


def binary(op: BinaryOp, left: Scalar, right: Scalar) -> Number | None:
    """Return the value of ``left op right``."""
    if not isinstance(left, _NUMBERS) or not isinstance(right, _NUMBERS):
        return None
    if isinstance(left, float) or isinstance(right, float):
        return _real(op, float(left), float(right))
    bits = 64 if isinstance(left, Int64) or isinstance(right, Int64) else 32
    result = _integer(op, int(left), int(right), bits)
    return None if result is None else _wrap(result, bits)


def unary(op: UnaryOp, operand: Scalar) -> Number | None:
    """Return the value of ``op operand``."""
    if not isinstance(operand, _NUMBERS):
        return None
    if op is UnaryOp.PLUS:
        return operand
    if isinstance(operand, float):
        return -operand if op is UnaryOp.NEGATE else None
    bits = 64 if isinstance(operand, Int64) else 32
    return _wrap(-int(operand) if op is UnaryOp.NEGATE else ~int(operand), bits)


def text(function: TextFunction, operand: Scalar) -> str | None:
    """Return the value of ``function(operand)``."""
    if not isinstance(operand, str):
        return None
    match function:
        case TextFunction.FOLD_CASE:
            return operand.lower()
        case TextFunction.DECOMPOSE:
            return unicodedata.normalize("NFD", operand)
        case TextFunction.DECOMPOSE_COMPAT:
            return unicodedata.normalize("NFKD", operand)


def number(function: NumberFunction, operand: Scalar) -> Number | None:
    """Return the value of ``function(operand)``; a string must contain a number that the result's type can hold."""
    match function, operand:
        case NumberFunction.TO_INT, int():
            return operand
        case NumberFunction.TO_INT, str() if _INTEGER.fullmatch(operand):
            found = int(operand)
            return integer(found) if INT64_MIN <= found <= INT64_MAX else None
        case NumberFunction.TO_REAL, int() | float():
            return float(operand)
        case NumberFunction.TO_REAL, str() if len(operand) <= MAX_REAL_TEXT and _REAL.fullmatch(operand):
            real = float(operand)
            return real if math.isfinite(real) else None
    return None


def _wrap(number: int, bits: int) -> int:
    half = 1 << (bits - 1)
    number = ((number + half) & ((1 << bits) - 1)) - half
    return Int64(number) if bits == 64 else number


def _integer(op: BinaryOp, left: int, right: int, bits: int) -> int | None:
    match op:
        case BinaryOp.ADD:
            return left + right
        case BinaryOp.SUBTRACT:
            return left - right
        case BinaryOp.MULTIPLY:
            return left * right
        case BinaryOp.DIVIDE | BinaryOp.REMAINDER:
            if right == 0:
                return None
            quotient = abs(left) // abs(right)  # toward zero; Python's // goes down
            if (left < 0) != (right < 0):
                quotient = -quotient
            return quotient if op is BinaryOp.DIVIDE else left - quotient * right
        case BinaryOp.SHIFT_LEFT:
            return left << right % bits
        case BinaryOp.SHIFT_RIGHT:
            return left >> right % bits
        case BinaryOp.SHIFT_RIGHT_LOGICAL:
            return (left & ((1 << bits) - 1)) >> right % bits
        case BinaryOp.BIT_OR:
            return left | right
        case BinaryOp.BIT_XOR:
            return left ^ right
        case BinaryOp.BIT_AND:
            return left & right


def _real(op: BinaryOp, left: float, right: float) -> float | None:
    match op:
        case BinaryOp.ADD:
            return left + right
        case BinaryOp.SUBTRACT:
            return left - right
        case BinaryOp.MULTIPLY:
            return left * right
        case BinaryOp.DIVIDE if right != 0.0:
            return left / right
        case BinaryOp.DIVIDE:
            if left == 0.0 or math.isnan(left):
                return math.nan
            return math.copysign(math.inf, left) * math.copysign(1.0, right)
        case BinaryOp.REMAINDER if right == 0.0 or math.isinf(left):
            return math.nan  # as C's fmod returns; Python's raises
        case BinaryOp.REMAINDER:
            return math.fmod(left, right)
        case _:
            return None  # shifts and bitwise operators are for integers
