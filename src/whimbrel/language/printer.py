"""Printer of filters, from tree to text: ``parse(print_filter(tree)) == tree`` for every tree that ``check`` accepts.

Parentheses are written only where the tree needs them, and around the operand of ``!`` to help readers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from whimbrel.language.ast import (
    And,
    Binary,
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
from whimbrel.language.precedence import AND, BINARY, COMPARE, NOT, OR, SUM, TERM, UNARY, XOR
from whimbrel.model.attributes import Int64

__all__ = ["print_filter", "print_name", "print_operand", "print_string"]

_LOGICAL: Mapping[type, tuple[str, int]] = {And: (" && ", AND), Or: (" || ", OR), Xor: (" ^^ ", XOR)}
_NAME_START = re.compile(r"[A-Za-z_]")
_NAME_REST = re.compile(r"[A-Za-z0-9_\-.:/$#@]")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_\-.:/$#@]*")


def print_filter(node: Node) -> str:
    """Return the text of *node*."""
    return _print(node, 0)


def print_operand(node: Node) -> str:
    """Return the text of *node* as an operand of ``&&``, in parentheses if needed."""
    return _print(node, AND + 1)


def _print(node: Node, power: int) -> str:
    """Return the text of *node* as an operand of an operator with binding power *power*, in parentheses if needed."""
    text, own = _term(node)
    return text if own >= power else f"({text})"


def _term(node: Node) -> tuple[str, int]:
    """Return the text of *node* without parentheses, and its binding power."""
    match node:
        # The commonest nodes come first: a million filters are printed when they are loaded.
        case Name(name):
            return print_name(name), TERM
        case Literal(value):
            if isinstance(value, str):
                return print_string(value), TERM
            number = _print_number(value)
            return number, UNARY if number.startswith("-") else TERM
        case Compare(op, left, right):
            return f"{_print(left, SUM)} {op} {_print(right, SUM)}", COMPARE
        case And(operands) | Or(operands) | Xor(operands):
            joint, own = _LOGICAL[type(node)]
            return joint.join(_print(operand, own + 1) for operand in operands), own
        case Not(Pattern() | Test() | Equals() | Not() as operand):
            return f"!{_print(operand, NOT)}", NOT
        case Not(operand):
            return f"!({_print(operand, 0)})", NOT
        case Binary(op, left, right):
            own = BINARY[op]
            return f"{_print(left, own)} {op} {_print(right, own + 1)}", own
        case Unary(UnaryOp.NEGATE, Literal(value)) if isinstance(value, int | float) and not _print_number(
            value
        ).startswith("-"):
            return f"-({_print_number(value)})", UNARY  # -5 would be read as a literal
        case Unary(op, operand):
            return f"{op}{_print(operand, UNARY)}", UNARY
        case _:
            return _call(node), TERM


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
    digits = repr(value)  # the shortest text that is read as the same double
    if "." in digits:
        return digits
    mantissa, _, exponent = digits.partition("e")
    return f"{mantissa}.0e{exponent}"


def print_string(text: str) -> str:
    """Return *text* as a string literal."""
    quote = '"' if "'" in text and '"' not in text else "'"
    return quote + text.replace("\\", "\\\\").replace(quote, "\\" + quote) + quote


@lru_cache(maxsize=4_096)
def print_name(name: str) -> str:
    """Return *name* as text of the language, escaped where necessary."""
    if name in {"true", "false"}:
        return "\\" + name
    if _PLAIN_NAME.fullmatch(name):
        return name
    first = name[0] if _NAME_START.match(name) else "\\" + name[0]
    return first + "".join(c if _NAME_REST.match(c) else "\\" + c for c in name[1:])
