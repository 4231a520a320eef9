"""JSON bodies: bytes from outside to a tree of plain Python values.

Rule: any bytes give a tree or ``MalformedBodyError``; size and depth are checked before parsing.
Rule: stricter than Python's reader: only UTF-8, no NaN or Infinity, no number beyond real64, no name twice in one
object, and an object at the top.
"""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn

from whimbrel.errors import MalformedBodyError
from whimbrel.model.attributes import DEFAULT_LIMITS, Limits
from whimbrel.model.bounds import INT64_MAX, INT64_MIN

__all__ = ["read_json"]

_FORM = "JSON"
_MAX_INT64_TEXT = 20  # a sign and nineteen digits
# A string or a bracket. The closing quote is optional, so that an unterminated string is scanned only once.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def read_json(data: bytes | str, *, limits: Limits = DEFAULT_LIMITS) -> dict[str, object]:
    """Return the JSON object in *data*; integers beyond int64 become floats."""
    text = _decode(data, limits)
    _check_depth(text, limits)
    try:
        tree: object = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise MalformedBodyError(_FORM, error.msg, error.lineno, error.colno) from None
    except RecursionError:  # only if the caller's own stack is nearly full
        raise MalformedBodyError(_FORM, "nested too deeply for the stack it was read on") from None
    if not isinstance(tree, dict):
        raise MalformedBodyError(_FORM, f"found {_kind(tree)} on top, allowed is an object")
    return tree


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise MalformedBodyError(_FORM, "lone surrogate", *_place(text, error.start)) from None


def _decode(data: bytes | str, limits: Limits) -> str:
    if isinstance(data, str):
        data = _encode(data)
    if len(data) > limits.max_bytes:
        raise MalformedBodyError(_FORM, f"found {len(data)} bytes, allowed are {limits.max_bytes}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedBodyError(_FORM, f"not UTF-8: {error.reason}", offset=error.start) from None


def _check_depth(text: str, limits: Limits) -> None:
    if text.count("{") + text.count("[") <= limits.max_depth:
        return
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        first = text[token.start()]
        depth += (first in "{[") - (first in "}]")
        if depth > limits.max_depth:
            reason = f"nested deeper than the {limits.max_depth} levels allowed"
            raise MalformedBodyError(_FORM, reason, *_place(text, token.start()))


def _place(text: str, position: int) -> tuple[int, int]:
    """Return line and column of *position*, both counted from 1."""
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for name, value in pairs:
        if name in members:
            raise MalformedBodyError(_FORM, f"found the name {name[:80]!r} twice in one object")
        members[name] = value
    return members


def _whole(text: str) -> int | float:
    if len(text) <= _MAX_INT64_TEXT and INT64_MIN <= (number := int(text)) <= INT64_MAX:
        return number
    return _real(text)


def _real(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise MalformedBodyError(_FORM, f"found the number {text[:40]}, allowed is what a real64 can hold")
    return number


def _constant(text: str) -> NoReturn:
    raise MalformedBodyError(_FORM, f"found {text}, which JSON does not have")


def _kind(tree: object) -> str:
    if isinstance(tree, list):
        return "an array"
    if isinstance(tree, str):
        return "a string"
    return "null" if tree is None else "a boolean" if isinstance(tree, bool) else "a number"


_DECODER = json.JSONDecoder(object_pairs_hook=_members, parse_int=_whole, parse_float=_real, parse_constant=_constant)
