"""Tree to text: ``parse(print_filter(tree)) == tree`` for every tree that passes the static check.

Parentheses are written only where the tree needs them, and around what a ``!`` covers, where a reader does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from whimbrel.language.ast import (
    And,
    Binary,
    BinaryOp,
    Compare,
    Convert,
    Equals,
    Literal,
    Name,
    Node,
    Not,
    Or,
    Pattern,
    Size,
    Test,
    Text,
    Unary,
    UnaryOp,
    Xor,
)
from whimbrel.model.attributes import Int64

__all__ = ["print_filter", "print_name", "print_string"]

_OR, _XOR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _SHIFT, _BIT_OR, _BIT_XOR, _BIT_AND, _UNARY, _TERM = range(1, 14)
_BINARY: Mapping[BinaryOp, int] = {
    BinaryOp.ADD: _SUM,
    BinaryOp.SUBTRACT: _SUM,
    BinaryOp.MULTIPLY: _PRODUCT,
    BinaryOp.DIVIDE: _PRODUCT,
    BinaryOp.REMAINDER: _PRODUCT,
    BinaryOp.SHIFT_LEFT: _SHIFT,
    BinaryOp.SHIFT_RIGHT: _SHIFT,
    BinaryOp.SHIFT_RIGHT_LOGICAL: _SHIFT,
    BinaryOp.BIT_OR: _BIT_OR,
    BinaryOp.BIT_XOR: _BIT_XOR,
    BinaryOp.BIT_AND: _BIT_AND,
}
_LOGICAL: Mapping[type, tuple[str, int]] = {And: (" && ", _AND), Or: (" || ", _OR), Xor: (" ^^ ", _XOR)}
_NAME_START = re.compile(r"[A-Za-z_]")
_NAME_REST = re.compile(r"[A-Za-z0-9_\-.:/$#@]")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_\-.:/$#@]*")


def print_filter(node: Node) -> str:
    """Return the text of *node*."""
    return _print(node, 0)


def _print(node: Node, power: int) -> str:
    """Print *node* where something that binds with *power* surrounds it."""
    text, own = _term(node)
    return text if own >= power else f"({text})"


def _term(node: Node) -> tuple[str, int]:
    """Return the text of *node* without parentheses, and how tightly it binds."""
    match node:
        # the most common first: a million filters are printed when they are loaded
        case Name(name):
            return print_name(name), _TERM
        case Literal(value):
            if isinstance(value, str):
                return print_string(value), _TERM
            number = _print_number(value)
            return number, _UNARY if number.startswith("-") else _TERM
        case Compare(op, left, right):
            return f"{_print(left, _SUM)} {op} {_print(right, _SUM)}", _COMPARE
        case And(operands) | Or(operands) | Xor(operands):
            joint, own = _LOGICAL[type(node)]
            return joint.join(_print(operand, own + 1) for operand in operands), own
        case Not(Pattern() | Test() | Equals() | Not() as operand):
            return f"!{_print(operand, _NOT)}", _NOT
        case Not(operand):
            return f"!({_print(operand, 0)})", _NOT
        case Binary(op, left, right):
            own = _BINARY[op]
            return f"{_print(left, own)} {op} {_print(right, own + 1)}", own
        case Unary(UnaryOp.NEGATE, Literal(value)) if isinstance(value, int | float) and not _print_number(
            value
        ).startswith("-"):
            return f"-({_print_number(value)})", _UNARY  # -5 would read back as the literal
        case Unary(op, operand):
            return f"{op}{_print(operand, _UNARY)}", _UNARY
        case _:
            return _call(node), _TERM


def _call(node: Node) -> str:
    match node:
        case Test(function, name):
            return f"{function}({print_name(name.name)})"
        case Convert(function, name):
            return f"{function}({print_name(name.name)})"
        case Size(name):
            return f"size({print_name(name.name)})"
        case Text(function, operand):
            return f"{function}({_print(operand, 0)})"
        case Pattern(function, subject, patterns):
            return f"{function}({', '.join((_print(subject, 0), *map(print_string, patterns)))})"
        case Equals(subject, options):
            return f"equals({', '.join(_print(argument, 0) for argument in (subject, *options))})"
        case _:
            raise AssertionError(f"no such node: {node!r}")


def _print_number(value: float) -> str:
    if isinstance(value, Int64):
        return f"{int(value)}L"
    if isinstance(value, int):
        return str(value)
    digits = repr(value)  # the shortest that reads back as the same double
    if "." in digits:
        return digits
    mantissa, _, exponent = digits.partition("e")
    return f"{mantissa}.0e{exponent}"


def print_string(text: str) -> str:
    """Return *text* as a string literal."""
    quote = '"' if "'" in text and '"' not in text else "'"
    return quote + text.replace("\\", "\\\\").replace(quote, "\\" + quote) + quote


def print_name(name: str) -> str:
    """Return *name* as the language spells it, escaped where it must be."""
    if name in {"true", "false"}:
        return "\\" + name
    if _PLAIN_NAME.fullmatch(name):
        return name
    first = name[0] if _NAME_START.match(name) else "\\" + name[0]
    return first + "".join(c if _NAME_REST.match(c) else "\\" + c for c in name[1:])
