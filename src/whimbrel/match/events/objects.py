# mypy: disable-error-code="arg-type, assignment, no-any-return, no-untyped-call, unreachable"
# (numba infers the types inside a kernel; mypy cannot know them)
"""A kernel that parses flat JSON objects straight into the arrays of ``Events``, without mappings of attributes.

``model.codecs.attributes_of`` defines which attributes a body has. ``read_objects`` is its fast twin for nearly all
bodies: a short, flat JSON object in ASCII.
Rule: a body is *hard* and left to ``attributes_of`` if anything about it is in doubt: escapes, nesting, CBOR, a name
that occurs twice, numbers that a double or an int32 does not hold exactly. A body that is not an object is also hard if
a filter uses the attribute ``value``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from whimbrel.match.kernels.compiled import njit
from whimbrel.match.kernels.hash_table import find_text, hash_bytes, table_of_texts
from whimbrel.model.attributes import INT32_MAX, INT32_MIN

__all__ = ["Names", "read_objects"]

_LONGEST = 1_024
_MAX_NAMES = 64
_MAX_DIGITS = 18
"""Most digits of a number that is read here; any number of 18 digits fits an int64."""
_EXACT = 1 << 53
_MAX_TENS = 22
_TENS = np.array([10.0**power for power in range(_MAX_TENS + 1)])
"""The powers of ten that are exact as doubles, so that multiplying or dividing by one rounds only once."""
_INT32, _REAL, _STRING = 1, 3, 4
_QUOTE, _BACKSLASH, _OPEN, _CLOSE, _COLON, _COMMA = b'"\\{}:,'
_MINUS, _PLUS, _POINT, _ZERO, _NINE, _SMALL_E, _LARGE_E = b"-+.09eE"
_SPACE, _TAB, _LINE, _RETURN = b" \t\n\r"
_TRUE, _NULL = b"tn"
_WORDS, _WORD_ENDS = np.frombuffer(b"truefalsenull", np.uint8), np.array([4, 9, 13])
_DELETE = 0x7F
_MAP_FIRST, _MAP_LAST = 0xA0, 0xBF  # the first byte of a CBOR map
_UNKNOWN, _DERIVED = -1, -2


class Names:
    """Hash table of the attribute names that filters use; Python must parse a body with a name in *derived*."""

    def __init__(self, columns: Mapping[str, int], derived: Sequence[str], seed: int) -> None:
        texts = [name.encode() for name in (*columns, *derived)]
        starts = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=starts[1:])
        data = np.frombuffer(b"".join(texts) + b"\0", np.uint8)
        numbers = np.array([*columns.values(), *(_DERIVED for _ in derived)], np.int32)
        self.arrays = (table_of_texts(starts, data, seed), starts, data, numbers)
        """Arguments of ``read_objects``: the hash table of name numbers, the names (two arrays), and their columns."""
        self.asks_value = "value" in columns or "value" in derived
        """Whether a filter uses ``value``, the attribute of a body that is not an object, which Python then parses."""
        self.most = min(len(columns), _MAX_NAMES)
        """Most attributes of one body that filters can use."""


@njit(cache=True)
def _after_space(text: Any, at: int, end: int) -> int:
    while at < end and (text[at] == _SPACE or text[at] == _TAB or text[at] == _LINE or text[at] == _RETURN):
        at += 1
    return at


@njit(cache=True)
def _end_of_string(text: Any, at: int, end: int) -> int:
    """Return the position of the quote that ends a string of plain ASCII, or -1."""
    while at < end:
        byte = text[at]
        if byte == _QUOTE:
            return at
        if byte < _SPACE or byte == _BACKSLASH or byte > _DELETE:
            return -1
        at += 1
    return -1


@njit(cache=True)
def _after_word(text: Any, at: int, end: int) -> int:
    """Return the position after the ``true``, ``false`` or ``null`` that begins at *at*, or -1 if none of them does."""
    begin = 0
    for stop in _WORD_ENDS:
        same = 0
        while same < stop - begin and at + same < end and text[at + same] == _WORDS[begin + same]:
            same += 1
        if same == stop - begin:
            return at + same
        begin = stop
    return -1


@njit(cache=True)
def _after_digits(text: Any, at: int, end: int) -> int:
    while at < end and _ZERO <= text[at] <= _NINE:
        at += 1
    return at


@njit(cache=True)
def _number(text: Any, at: int, end: int) -> tuple[int, int, int, float]:
    """Parse a number.

    Return the position after it (-1: Python must parse this body), its type, and it as int and as double.
    """
    is_negative = text[at] == _MINUS
    if is_negative:
        at += 1
    start, mantissa, exponent, places = at, 0, 0, 0
    stop = _after_digits(text, at, end)
    if stop == start or (text[start] == _ZERO and stop > start + 1):
        return -1, 0, 0, 0.0
    for i in range(start, min(stop, start + _MAX_DIGITS)):
        mantissa = mantissa * 10 + (np.int64(text[i]) - _ZERO)
    digits = stop - start
    at, is_real = stop, False
    if at < end and text[at] == _POINT:
        is_real = True
        stop = _after_digits(text, at + 1, end)
        places = stop - at - 1
        if places == 0:
            return -1, 0, 0, 0.0
        digits += places
        for i in range(at + 1, min(stop, at + 1 + _MAX_DIGITS)):
            mantissa = mantissa * 10 + (np.int64(text[i]) - _ZERO)
        at = stop
    if digits > _MAX_DIGITS:
        return -1, 0, 0, 0.0
    if at < end and (text[at] == _SMALL_E or text[at] == _LARGE_E):
        is_real = True
        at += 1
        is_small = at < end and text[at] == _MINUS
        if at < end and (is_small or text[at] == _PLUS):
            at += 1
        stop = _after_digits(text, at, end)
        if stop == at or stop > at + 2:
            return -1, 0, 0, 0.0
        for i in range(at, stop):
            exponent = exponent * 10 + (np.int64(text[i]) - _ZERO)
        if is_small:
            exponent = -exponent
        at = stop
    exponent -= places
    if not is_real:
        whole = -mantissa if is_negative else mantissa
        if whole < INT32_MIN or whole > INT32_MAX:
            return -1, 0, 0, 0.0
        return at, _INT32, whole, 0.0
    if mantissa > _EXACT or exponent > _MAX_TENS or exponent < -_MAX_TENS:
        return -1, 0, 0, 0.0
    real = np.float64(mantissa)
    real = real * _TENS[exponent] if exponent >= 0 else real / _TENS[-exponent]
    return at, _REAL, 0, -real if is_negative else real


@njit(cache=True)
def read_objects(
    text: Any,
    ends: Any,
    table: Any,
    starts: Any,
    data: Any,
    columns: Any,
    seed: int,
    row_start: Any,
    column: Any,
    kind: Any,
    integer: Any,
    real: Any,
    text_start: Any,
    text_end: Any,
    hard: Any,
    asks_value: bool,  # noqa: FBT001 # numba's kernels have no keyword-only arguments
) -> None:
    """Parse the bodies in *text*, which end at *ends*; write their attributes, and mark the bodies left to Python."""
    known = np.empty(_MAX_NAMES, np.int64)  # the hashes of the names of this body so far
    n = 0
    begin = 0
    for row in range(ends.size):
        end = ends[row]
        row_start[row] = n
        names = 0
        is_read = False
        at = _after_space(text, begin, end)
        if at == end or text[at] != _OPEN:  # not a JSON object: only the attribute ``value``, unless it is CBOR
            is_read = begin == end or (not asks_value and (text[begin] < _MAP_FIRST or text[begin] > _MAP_LAST))
        elif end - begin <= _LONGEST:
            at = _after_space(text, at + 1, end)
            if at < end and text[at] == _CLOSE:
                is_read = _after_space(text, at + 1, end) == end
                at = end
            while at < end and names < _MAX_NAMES and text[at] == _QUOTE:
                start, stop = at + 1, _end_of_string(text, at + 1, end)
                if stop <= start:
                    break
                hashed = hash_bytes(text, start, stop, seed)
                is_new = True
                for i in range(names):
                    is_new = is_new and known[i] != hashed
                known[names] = hashed
                names += 1
                found = find_text(table, starts, data, text, start, stop, hashed)
                number = columns[found] if found >= 0 else _UNKNOWN
                at = _after_space(text, stop + 1, end)
                if not is_new or number == _DERIVED or at == end or text[at] != _COLON:
                    break
                at = _after_space(text, at + 1, end)
                if at == end:
                    break
                which, whole, fraction = _INT32, 0, 0.0
                start = stop = 0
                first = text[at]
                if first == _QUOTE:
                    which, start, stop = _STRING, at + 1, _end_of_string(text, at + 1, end)
                    at = stop if stop < 0 else stop + 1
                elif first == _MINUS or _ZERO <= first <= _NINE:
                    at, which, whole, fraction = _number(text, at, end)
                else:
                    at = _after_word(text, at, end)
                    whole = 1 if first == _TRUE else 0
                    if first == _NULL:
                        number = _UNKNOWN  # nulls are skipped
                if at < 0:
                    break
                if number >= 0:
                    column[n], kind[n], integer[n], real[n] = number, which, whole, fraction
                    text_start[n], text_end[n] = start, stop
                    n += 1
                at = _after_space(text, at, end)
                if at == end or (text[at] != _COMMA and text[at] != _CLOSE):
                    break
                if text[at] == _CLOSE:
                    is_read = _after_space(text, at + 1, end) == end
                    break
                at = _after_space(text, at + 1, end)
        if not is_read:
            n = row_start[row]
            hard[row] = 1
        begin = end
    row_start[ends.size] = n
