"""A second evaluator of filters, as naive as can be: numpy scalars, tables of cases, none of the package's semantics.

It shares nothing with src but the shape of the tree, so an error would have to be made twice.
"""

from __future__ import annotations

import re
import struct
import unicodedata
from typing import Any

import numpy as np

from whimbrel.language import ast
from whimbrel.model.attributes import Int64

_NUMBERS: dict[type, Any] = {int: np.int32, Int64: np.int64, float: np.float64}
_PYTHON: dict[type, Any] = {np.int32: int, np.int64: Int64, np.float64: float}


def verdict(tree: ast.Predicate, attributes: Any) -> bool | None:
    """Return the verdict of *tree*, by the book."""
    if isinstance(tree, ast.Not):
        return {True: False, False: True, None: None}[verdict(tree.operand, attributes)]
    if isinstance(tree, ast.And | ast.Or | ast.Xor):
        found = [verdict(operand, attributes) for operand in tree.operands]
        if isinstance(tree, ast.And):
            return False if False in found else None if None in found else True
        if isinstance(tree, ast.Or):
            return True if True in found else None if None in found else False
        return None if None in found else sum(map(bool, found)) % 2 == 1
    if isinstance(tree, ast.Compare):
        return _compare(str(tree.op), _value(tree.left, attributes), _value(tree.right, attributes))
    if isinstance(tree, ast.Equals):
        subject = _value(tree.subject, attributes)
        found = [_compare("==", subject, _value(option, attributes)) for option in tree.options]
        return True if True in found else None if None in found else False
    if isinstance(tree, ast.Pattern):
        text = _value(tree.subject, attributes)
        return any(_like(str(tree.function), text, p) for p in tree.patterns) if type(text) is str else None
    assert isinstance(tree, ast.Test)
    return _test(str(tree.function), attributes.get(tree.name.name))


def _test(function: str, value: Any) -> bool | None:
    if value is None:
        return None
    if function == "require":
        return True
    if function == "nan":
        return bool(np.isnan(value)) if type(value) is float else None
    return {int: "int32", Int64: "int64", float: "real64", str: "string", bytes: "opaque"}[type(value)] == function


def _number(function: str, value: Any) -> Any:
    if type(value) is str:
        digits = value.removeprefix("-") if value.startswith("-") else value.removeprefix("+")
        try:
            found: Any = int(value) if function == "to-int" else float(value)
        except ValueError:
            return None
        if not digits or set(digits) - set("0123456789.eE+-") or digits[0] not in ".0123456789":
            return None  # Python's readers also take spaces, underscores, other digits, nan and infinity
        if function == "to-real":
            return found if abs(found) < float("inf") else None
        return None if not -(2**63) <= found < 2**63 else found if -(2**31) <= found < 2**31 else Int64(found)
    if type(value) is bytes or value is None:
        return None
    if function == "to-real":
        return float(value)
    return None if type(value) is float else value


def _value(node: ast.Value, attributes: Any) -> Any:
    if isinstance(node, ast.Literal):
        return node.value
    if isinstance(node, ast.Name):
        return attributes.get(node.name)
    if isinstance(node, ast.Size):
        value = attributes.get(node.name.name)
        return len(value) if type(value) in {str, bytes} else None
    if isinstance(node, ast.Convert):
        return _number(node.function, attributes.get(node.name.name))
    if isinstance(node, ast.Text):
        value = _value(node.operand, attributes)
        return _text(str(node.function), value) if type(value) is str else None
    if isinstance(node, ast.Unary):
        value = _value(node.operand, attributes)
        if type(value) not in _NUMBERS or (node.op == "~" and type(value) is float):
            return None
        number = _NUMBERS[type(value)](value)
        with np.errstate(all="ignore"):
            result = {"-": np.negative, "+": np.positive, "~": np.invert}[str(node.op)](number)
        return type(value)(result)
    assert isinstance(node, ast.Binary)
    return _binary(str(node.op), _value(node.left, attributes), _value(node.right, attributes))


def _text(function: str, value: str) -> str:
    if function == "fold-case":
        return value.lower()
    return unicodedata.normalize("NFD" if function == "decompose" else "NFKD", value)


def _promoted(left: Any, right: Any) -> Any:
    for kind in (float, Int64, int):
        if kind in {type(left), type(right)}:
            with np.errstate(all="ignore"):
                return _NUMBERS[kind](left), _NUMBERS[kind](right)
    raise AssertionError


def _binary(op: str, left: Any, right: Any) -> Any:
    if type(left) not in _NUMBERS or type(right) not in _NUMBERS:
        return None
    left, right = _promoted(left, right)
    kind = type(left)
    with np.errstate(all="ignore"):
        if op in {"+", "-", "*"}:
            result = {"+": np.add, "-": np.subtract, "*": np.multiply}[op](left, right)
        elif kind is np.float64:
            if op not in {"/", "%"}:
                return None
            result = np.divide(left, right) if op == "/" else np.fmod(left, right)
        elif op in {"/", "%"}:
            if right == 0:
                return None
            quotient = -left if right == -1 else kind(int(np.trunc(_exact_quotient(left, right))))
            result = quotient if op == "/" else left - quotient * right
        else:
            result = _bits(op, left, right)
    return _PYTHON[kind](kind(result))


def _exact_quotient(left: Any, right: Any) -> int:
    whole, rest = divmod(int(left), int(right))
    return whole + (1 if rest and whole < 0 else 0)


def _bits(op: str, left: Any, right: Any) -> Any:
    kind = type(left)
    width = left.dtype.itemsize * 8
    unsigned: Any = {32: np.uint32, 64: np.uint64}[width]
    count = int(right) & (width - 1)
    if op == ">>>":
        return np.right_shift(left.view(unsigned), unsigned(count)).view(kind)
    if op in {"<<", ">>"}:
        shifts: Any = {"<<": np.left_shift, ">>": np.right_shift}
        return shifts[op](left, kind(count))
    masks: Any = {"|": np.bitwise_or, "^": np.bitwise_xor, "&": np.bitwise_and}
    return masks[op](left, right)


def _compare(op: str, left: Any, right: Any) -> bool | None:
    if type(left) is str and type(right) is str:
        # UTF-32 in big-endian order compares as code points do
        left, right = left.encode("utf-32-be"), right.encode("utf-32-be")
        equal = left == right
    elif type(left) in _NUMBERS and type(right) in _NUMBERS:
        left, right = _promoted(left, right)
        if np.isnan(left) or np.isnan(right):
            return None
        equal = _same_bits(left, right)
    else:
        return None
    order = {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}
    return bool(({"==": equal, "!=": not equal} | order)[op])


def _same_bits(left: Any, right: Any) -> bool:
    if type(left) is np.float64:
        return struct.pack("d", left) == struct.pack("d", right)
    return bool(left == right)


def _like(function: str, text: str, pattern: str) -> bool:
    if function == "regex":
        # Python's $ also matches before a final newline; the language's does not
        return re.search(pattern.replace("$", r"\Z"), text, re.DOTALL) is not None
    if function == "wildcard":
        return _glob(pattern, text)
    return {
        "begins-with": text[: len(pattern)] == pattern,
        "ends-with": text[len(text) - len(pattern) :] == pattern if len(text) >= len(pattern) else False,
        "contains": any(text[i : i + len(pattern)] == pattern for i in range(len(text) + 1)),
    }[function]


def _glob(pattern: str, text: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(_glob(pattern[1:], text[i:]) for i in range(len(text) + 1))
    if not text:
        return False
    if pattern[0] == "?":
        return _glob(pattern[1:], text[1:])
    if pattern[0] == "\\":
        return text[0] == pattern[1] and _glob(pattern[2:], text[1:])
    if pattern[0] == "[":
        end = pattern.index("]", 3 if pattern[1] == "^" else 2)
        inside = pattern[1:end]
        wanted = re.match("[" + inside.replace("\\", "\\\\").replace("]", "\\]") + "]", text[0], re.DOTALL) is not None
        return wanted and _glob(pattern[end + 1 :], text[1:])
    return text[0] == pattern[0] and _glob(pattern[1:], text[1:])
