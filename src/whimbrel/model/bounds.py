"""Bounds: checks of the fields of a value, made when the value is built.

Rule: each check returns the value, or raises ``InvalidValueError`` that names the field, what was found and what is
allowed.
Rule: text is measured in bytes of UTF-8, because the wire and the disk count bytes.
"""

from __future__ import annotations

import math
import re

from whimbrel.errors import InvalidValueError

__all__ = [
    "FIRST_TIME",
    "INT32_MAX",
    "INT32_MIN",
    "INT64_MAX",
    "INT64_MIN",
    "LAST_TIME",
    "MAX_NAME_BYTES",
    "check_time",
    "flag",
    "instant",
    "name",
    "node_name",
    "real",
    "text",
    "utf8_size",
    "whole",
]

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
FIRST_TIME, LAST_TIME = -62_135_596_800_000_000, 253_402_300_799_999_999
"""First and last microsecond of the years 1 to 9999; a fact's time must have a date, under which the fact is filed."""

MAX_NAME_BYTES = 1_024


def utf8_size(what: str, value: str) -> int:
    """Return the size of *value* in bytes of UTF-8; refuse lone surrogates, which have no encoding."""
    if value.isascii():
        return len(value)
    try:
        return len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidValueError(what, value, "Unicode without lone surrogates") from error


def text(what: str, value: object, *, max_bytes: int) -> str:
    """Return *value* if it is a string of at most *max_bytes*, without U+0000."""
    if type(value) is str and value.isascii() and len(value) <= max_bytes and "\0" not in value:
        return value  # the usual case: a restart checks hundreds of thousands
    if not isinstance(value, str):
        raise InvalidValueError(what, value, "a string")
    if utf8_size(what, value) > max_bytes:
        raise InvalidValueError(what, value, f"at most {max_bytes} bytes of UTF-8")
    if "\0" in value:
        raise InvalidValueError(what, value, "text without U+0000")
    return value


def name(what: str, value: object, *, max_bytes: int = MAX_NAME_BYTES) -> str:
    """Return *value* if it is text of at least one character, as for names of devices and sessions."""
    if value == "":
        raise InvalidValueError(what, value, "a string of at least one character")
    return text(what, value, max_bytes=max_bytes)


def whole(what: str, value: object, low: int, high: int) -> int:
    """Return *value* if it is an integer from *low* to *high*; refuse booleans."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidValueError(what, value, f"an integer from {low} to {high}")
    return value


def flag(what: str, value: object) -> bool:
    """Return *value* if it is a boolean; refuse numbers such as 1."""
    if not isinstance(value, bool):
        raise InvalidValueError(what, value, "true or false")
    return value


def check_time(what: str, value: object) -> int:
    """Return *value* if it is the time of a fact: microseconds UTC in the years 1 to 9999."""
    if type(value) is int and FIRST_TIME <= value <= LAST_TIME:
        return value
    raise InvalidValueError(what, value, "microseconds UTC in the years 1 to 9999")


def instant(what: str, value: object) -> int:
    """Return *value* if it is a time: microseconds UTC in 64 bits."""
    return whole(what, value, INT64_MIN, INT64_MAX)


def real(what: str, value: object, low: float, high: float) -> float:
    """Return *value* as a float if it is a finite number from *low* to *high*; refuse booleans."""
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        number = float(value)
        if math.isfinite(number):
            return number
    raise InvalidValueError(what, value, f"a number from {low:.12g} to {high:.12g}")


def node_name(value: object) -> None:
    """Raise ``InvalidValueError`` unless *value* is a valid name of a node."""
    if not isinstance(value, str) or not _NODE.fullmatch(value):
        allowed = "1 to 64 letters, digits, '.', '_' and '-', the first a letter or digit"
        raise InvalidValueError("node", value, allowed)
