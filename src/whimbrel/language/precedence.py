"""Precedence: how tightly each operator binds, for both parsers and the printer.

Loosest first: ``||``, ``^^``, ``&&``, ``!``, comparison (does not chain), ``+ -``, ``* / %``, shifts, ``|``, ``^``,
``&``, unary ``- + ~``. Policies may also write ``or``, ``and`` and ``not``; ``in`` binds like a comparison.
"""

from __future__ import annotations

from collections.abc import Mapping

from whimbrel.language.ast import BinaryOp, CompareOp, UnaryOp

__all__ = [
    "AND",
    "ARITHMETIC",
    "BINARY",
    "COMPARE",
    "COMPARISONS",
    "LOGICAL",
    "NOT",
    "OR",
    "POWERS",
    "SIGNS",
    "SUM",
    "TERM",
    "UNARY",
    "XOR",
]

OR, XOR, AND, NOT, COMPARE, SUM, PRODUCT, SHIFT, BIT_OR, BIT_XOR, BIT_AND, UNARY, TERM = range(1, 14)
BINARY: Mapping[BinaryOp, int] = {
    BinaryOp.ADD: SUM,
    BinaryOp.SUBTRACT: SUM,
    BinaryOp.MULTIPLY: PRODUCT,
    BinaryOp.DIVIDE: PRODUCT,
    BinaryOp.REMAINDER: PRODUCT,
    BinaryOp.SHIFT_LEFT: SHIFT,
    BinaryOp.SHIFT_RIGHT: SHIFT,
    BinaryOp.SHIFT_RIGHT_LOGICAL: SHIFT,
    BinaryOp.BIT_OR: BIT_OR,
    BinaryOp.BIT_XOR: BIT_XOR,
    BinaryOp.BIT_AND: BIT_AND,
}
COMPARISONS: Mapping[str, CompareOp] = {op.value: op for op in CompareOp}
ARITHMETIC: Mapping[str, BinaryOp] = {op.value: op for op in BinaryOp}
SIGNS: Mapping[str, UnaryOp] = {op.value: op for op in UnaryOp}
LOGICAL: Mapping[str, int] = {"||": OR, "^^": XOR, "&&": AND}
POWERS: Mapping[str, int] = {
    **LOGICAL,
    **dict.fromkeys(COMPARISONS, COMPARE),
    **{op.value: power for op, power in BINARY.items()},
}
"""Binding power of each operator between two operands."""
