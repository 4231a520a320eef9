"""Shape groups: the clauses of many filters of one shape, written to a ``Harvest`` column by column.

An index of many filters has few shapes. ``Plan.emit`` writes one filter, leaf by leaf; here each leaf of a plan is
written for all filters of the group at once, so that most of the work is a look-up in a dictionary per token.
Rule: the result is the same as with ``plans.harvest`` for each filter, except for the order of the clauses and the
numbers of columns, strings and tests; ``packing`` sorts by handle. ``FEW`` is the switch between the two.
Rule: memory is bounded: a group is written when it is large, and all groups when many filters wait.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from whimbrel.language.filters import parse_stored, recognise
from whimbrel.language.shapes import Template
from whimbrel.language.tokens import TokenError, literal
from whimbrel.match.index.plans import NO_CONSTANT, NUMERIC_EQ, Harvest, Option, Plan, Step, plan_of, read_alone
from whimbrel.match.kernels.layout import Op

__all__ = ["FEW", "ShapeGroups"]

FEW = 8
"""Groups of fewer filters are written filter by filter, which costs less for them."""
_LARGE, _MOST = 2_048, 65_536
"""Number of filters from which on a group is written, and from which on all groups are."""


class ShapeGroups:
    """Filters that wait for being written to a harvest, grouped by shape."""

    def __init__(self, into: Harvest) -> None:
        self._into = into
        self._groups: dict[Template, tuple[list[int], list[str], list[str]]] = {}
        """Handles, texts and tokens of the waiting filters, per shape; each filter has the same number of tokens."""
        self._waiting = 0

    def add(self, handle: int, text: str) -> None:
        """Add the filter *text* under *handle*; raise ``FilterError`` if a filter of its group is invalid."""
        known = recognise(text)
        if known is None:
            read_alone(self._into, handle, text)
            return
        template, tokens = known
        group = self._groups.get(template)
        if group is None:
            group = self._groups[template] = ([], [], [])
        group[0].append(handle)
        group[1].append(text)
        group[2].extend(tokens)
        self._waiting += 1
        if len(group[0]) >= _LARGE:
            self._write(template)
        elif self._waiting >= _MOST:
            self.end()

    def end(self) -> None:
        """Write all filters that wait; raise ``FilterError`` if one of them is invalid."""
        while self._groups:
            self._write(next(iter(self._groups)))

    def _write(self, template: Template) -> None:
        handles, texts, tokens = self._groups.pop(template)
        width = len(tokens) // len(handles)
        self._waiting -= len(handles)
        plan, mark = plan_of(template), self._into.mark
        try:
            if len(handles) < FEW:
                for number, handle in enumerate(handles):
                    plan.emit(self._into, handle, tokens[number * width : (number + 1) * width])
            else:
                _write_columns(self._into, plan, handles, [tokens[place::width] for place in range(width)])
        except TokenError:  # a constant is out of range: undo the writes, and parse the texts for the proper error
            self._into.take_back(mark)
            for text in texts:
                parse_stored(text)
            raise


def _write_columns(into: Harvest, plan: Plan, handles: list[int], tokens: Sequence[Sequence[str]]) -> None:
    """Write the filters *handles* of one shape; *tokens* has, for each place in their texts, the tokens of all."""
    for place, kind, is_negative in plan.unread:
        for token in set(tokens[place]):
            literal(token, kind, negative=is_negative)
    count = len(handles)
    for steps, direct, flags in plan.clauses:
        words = np.empty((count, 2 * len(steps)), np.int64)
        first = len(into.clause_start)
        clauses = np.arange(first, first + count, dtype=np.int32)
        for number, step in enumerate(steps):
            columns = _columns(into, step, tokens, count)
            words[:, 2 * number] = (columns << 8) + step.word
            constants, anchor = _constants(into, step, tokens, columns)
            words[:, 2 * number + 1] = constants
            if number < direct:
                _offer(into, clauses, number, step.op, columns, anchor)
        starts = len(into.words) // 2 + len(steps) * np.arange(count)
        _extend(into.words, words)
        _extend(into.clause_start, starts)
        _extend(into.clause_leaves, np.full(count, len(steps)))
        _extend(into.clause_direct, np.full(count, direct))
        _extend(into.clause_handle, np.array(handles))
        _extend(into.clause_flags, np.full(count, flags | plan.multi))


def _extend(into: array[int], values: Any) -> None:
    into.frombytes(np.ascontiguousarray(values, np.dtype(into.typecode)).data.cast("B"))


def _columns(into: Harvest, step: Step, tokens: Sequence[Sequence[str]], count: int) -> Any:
    known = into.column_numbers(step.derivation)
    return np.fromiter(map(known.__getitem__, tokens[step.name_token]), np.int64, count)


def _constants(
    into: Harvest, step: Step, tokens: Sequence[Sequence[str]], columns: Any
) -> tuple[Any, tuple[int, Any, Any] | None]:
    """Return the constants of one leaf of all filters, and the leaf as an anchor, or None if it cannot be one.

    An anchor has a kind (``Option``), a number per filter, and whether it proves the leaf true, per filter.
    """
    op, dictionary = step.op, into.dictionary
    if op < Op.STRING_EQ:
        known = into.numbers[step.is_negative]
        rows = np.fromiter(map(known.__getitem__, tokens[step.constant_token]), np.int64, columns.size)
        constants = np.frombuffer(known.constants, np.int64)[rows]
        if op not in NUMERIC_EQ:
            return constants, None
        symbols = _symbols(into, columns << 1, np.frombuffer(known.doubles, np.int64)[rows])
        return constants, (Option.EQUAL, symbols, np.frombuffer(known.decides, np.int8)[rows] != 0)
    if op in NO_CONSTANT:
        return 0, None
    if op in {Op.TYPE_IS, Op.TYPE_IS_NOT}:
        return step.fixed_constant, None
    texts = tokens[step.constant_token]
    if op in {Op.PATTERN, Op.NOT_PATTERN}:
        found = (
            dictionary.pattern(column, step.function, into.texts[token], step.longest)
            for column, token in zip(columns.tolist(), texts, strict=True)
        )
        patterns = np.fromiter(found, np.int64, columns.size)
        return patterns, (Option.PATTERN, patterns, True) if op is Op.PATTERN else None
    strings = np.fromiter((dictionary.strings[into.texts[token]] for token in texts), np.int64, columns.size)
    if op is not Op.STRING_EQ:
        return strings, None
    return strings, (Option.EQUAL, _symbols(into, columns << 1 | 1, strings), True)


def _symbols(into: Harvest, tagged: Any, bits: Any) -> Any:
    pairs = zip(tagged.tolist(), bits.tolist(), strict=True)
    return np.fromiter(map(into.dictionary.symbols.__getitem__, pairs), np.int64, tagged.size)


def _offer(into: Harvest, clauses: Any, number: int, op: Op, columns: Any, anchor: tuple[int, Any, Any] | None) -> None:
    """Record a condition by which each clause may be found: *anchor*, else the presence of the leaf's column."""
    kind, identity, decides = (Option.PRESENT, columns, op is Op.PRESENT) if anchor is None else anchor
    _extend(into.option_clause, clauses)
    _extend(into.option_kind, np.full(clauses.size, kind))
    _extend(into.option_id, identity)
    _extend(into.option_drops, np.where(decides, number, -1) * np.ones(clauses.size, np.int64))
