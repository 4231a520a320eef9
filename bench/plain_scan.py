# mypy: disallow-untyped-decorators=False
"""What the matcher would be without anchors: a loop in numba over the jump code of every entry.

It reads the same packed code as the matcher, only that no leaf was left out because an anchor had decided it. It gets
its fastest fair form: events are laid out by column and their patterns decided before the clock starts, equalities
stand first in every entry. It shares no code with the matcher's kernel, so that its answers are a check as well.
(The workloads have no NaN, no zeros of different sign and no regular expressions; neither has the scan.)

``count_tried`` and ``count_listed`` let the matcher's own kernel count its work: in a copy of the code every entry that
is run is accepted, whatever its leaves say.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba import njit

from whimbrel.language.ast import PatternFunction
from whimbrel.match.index.packed import PackedIndex
from whimbrel.match.index.packing import pack
from whimbrel.match.index.plans import Harvest, harvest
from whimbrel.match.kernels.arrays import Events
from whimbrel.match.kernels.layout import ACCEPT, CLOSURE, MULTI, REJECT, Op
from whimbrel.model.attributes import Attributes, type_of

__all__ = ["PlainScan", "ScanEvents", "count_listed", "count_tried"]

_Array: TypeAlias = "np.ndarray[Any, Any]"

_REAL_EQ, _STRING_EQ, _STRING_NE = int(Op.REAL_EQ), int(Op.STRING_EQ), int(Op.STRING_NE)
_PATTERN, _NOT_PATTERN = int(Op.PATTERN), int(Op.NOT_PATTERN)
_INT64, _REAL, _STRING = 2, 3, 4
# The answers of == != < <= > >= (four bits each) for: less, equal, greater.
_ANSWERS = sum(bits << (4 * op) for op, bits in enumerate((0b010, 0b101, 0b001, 0b011, 0b100, 0b110)))


class ScanEvents(NamedTuple):
    """Events by row and column; patterns by row and number."""

    kinds: _Array  # attribute type, 0 if missing
    numbers: _Array  # the integer, or the number of the string, -1 if no filter names it
    reals: _Array
    marks: _Array  # 1: the pattern matches


class PlainScan:
    """Filters, packed but scanned from the first to the last."""

    def __init__(self, filters: Iterable[tuple[int, str]]) -> None:
        found = Harvest()
        handles = 0
        for handle, text in filters:
            harvest(found, handle, text)
            handles = max(handles, handle + 1)
        if any(flags & CLOSURE for flags in found.clause_flags):
            raise ValueError("the scan has no closures to ask")
        found.option_drops = array("i", [-1]) * len(found.option_drops)  # no anchor decides any leaf
        self._code = pack(found, seed=1).code
        self._dictionary = found.dictionary
        self._seen = np.zeros(handles + 1, np.int64)

    def events(self, rows: Sequence[Attributes]) -> ScanEvents:
        """Lay *rows* out by column, and decide their patterns."""
        dictionary = self._dictionary
        names = [name for name, _ in dictionary.columns]
        shape = len(rows), len(dictionary.columns)
        events = ScanEvents(
            np.zeros(shape, np.uint8),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.float64),
            np.zeros((len(rows), len(dictionary.patterns) + 1), np.uint8),
        )
        for row, attributes in enumerate(rows):
            for name, value in attributes.items():
                column = dictionary.columns.get((name, ()))
                if column is None:
                    continue
                events.kinds[row, column] = int(type_of(value))
                if isinstance(value, str):
                    events.numbers[row, column] = dictionary.strings.get(value, -1)
                elif isinstance(value, int):
                    events.numbers[row, column] = value
                if isinstance(value, int | float):
                    events.reals[row, column] = value
            for number, (column, function, prefix, _) in enumerate(dictionary.patterns):
                if function != PatternFunction.BEGINS_WITH:
                    raise ValueError(f"the scan does not know {function}")
                events.marks[row, number] = str(attributes.get(names[column], "")).startswith(prefix)
        return events

    def match(self, events: ScanEvents) -> tuple[_Array, _Array]:
        """Return for each event how many filters match, and the sum of their handles."""
        counts, sums = _scan(self._code, self._seen, *events)
        return counts, sums


@njit(cache=True, nogil=True)
def _scan(  # noqa: PLR0917  # numba passes by position
    code: _Array, seen: _Array, kinds: _Array, numbers: _Array, reals: _Array, marks: _Array
) -> tuple[_Array, _Array]:
    constants = code.view(np.float64)
    counts, sums = np.zeros(kinds.shape[0], np.int64), np.zeros(kinds.shape[0], np.int64)
    seen[:] = -1
    for event in range(kinds.shape[0]):
        kind_of, number_of, real_of, mark_of = kinds[event], numbers[event], reals[event], marks[event]
        at = 0
        while at < code.size:
            header = code[at]
            step = 0
            while step < REJECT:
                place = at + 1 + 2 * step
                word = code[place]
                op, column = word & 0xFF, (word >> 8) & 0xFFFFFF
                kind = kind_of[column]
                holds = 0
                if op < _REAL_EQ and kind <= _INT64:
                    if kind > 0:
                        number, literal = number_of[column], code[place + 1]
                        holds = (_ANSWERS >> (4 * op + 1 + (number > literal) - (number < literal))) & 1
                elif op < _STRING_EQ:
                    if 0 < kind <= _REAL:
                        real = real_of[column]
                        bound = np.float64(code[place + 1]) if op < _REAL_EQ else constants[place + 1]
                        op = op if op < _REAL_EQ else op - _REAL_EQ
                        holds = (_ANSWERS >> (4 * op + 1 + (real > bound) - (real < bound))) & 1
                elif kind == _STRING:
                    if op in (_STRING_EQ, _STRING_NE):
                        holds = int((number_of[column] == code[place + 1]) == (op == _STRING_EQ))
                    elif op in (_PATTERN, _NOT_PATTERN):
                        holds = int((mark_of[code[place + 1]] == 1) == (op == _PATTERN))
                step = (word >> (48 - 16 * holds)) & 0xFFFF
            handle = header & 0xFFFFFFFF
            if step == ACCEPT and not ((header >> 48) & MULTI and seen[handle] == event):
                seen[handle] = event
                counts[event] += 1
                sums[event] += handle
            at += 1 + 2 * ((header >> 32) & 0xFFFF)
    return counts, sums


# -- candidates --------------------------------------------------------------------------------------------------------


def count_tried(index: PackedIndex, events: Events) -> int:
    """Return how many entries *index* runs for *events*."""
    return _accepted(index, index.arrays.lists, events)


def count_listed(index: PackedIndex, events: Events) -> int:
    """Return how many entries stand in the lists that *index* looks at; what is not tried the bitmaps rule out."""
    lists = index.arrays.lists.copy()
    lists[2::4] = -1  # no list has bitmaps
    return _accepted(index, lists, events)


def _accepted(index: PackedIndex, lists: _Array, events: Events) -> int:
    columns = {(name, how): column for name, found in index.encoder.columns.items() for column, how in found}
    code = index.arrays.code.copy()
    _accept_all(code)
    accepting = PackedIndex(index.arrays._replace(code=code, lists=lists), columns, {}, index.handles)
    return int(accepting.workspace().match(events)[0].size)


@njit(cache=True)
def _accept_all(code: _Array) -> None:
    """Make every leaf jump to ACCEPT, and every entry one of its own."""
    at = 0
    while at < code.size:
        leaves = (code[at] >> 32) & 0xFFFF
        code[at] &= 0xFFFFFFFFFFFF
        for leaf in range(leaves):
            code[at + 1 + 2 * leaf] |= np.int64(-1) << np.int64(32)
        at += 1 + 2 * leaves
