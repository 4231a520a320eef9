"""Encoding of events (rows of attributes) as the flat arrays that the kernel reads.

Each value of a *column* becomes one *item*. A column is an attribute that filters use, or a value derived from one.
Events come from bodies, mappings of attributes or an Arrow column.
Rule: values derived from an attribute (``fold-case``, ``size``) are computed here, and so are the matches of regular
expressions and wildcards, by RE2. A batch does this once per distinct string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from whimbrel.language.ast import NumberFunction, PatternFunction, TextFunction
from whimbrel.language.operators import number as number_value
from whimbrel.language.operators import text as text_value
from whimbrel.language.patterns import COMPILED
from whimbrel.match.events.bodies import Bodies
from whimbrel.match.events.objects import Names, read_objects
from whimbrel.match.events.searching import ColumnPattern, ColumnPatterns
from whimbrel.match.kernels.arrays import Events
from whimbrel.model.attributes import Attributes, AttributeType, Int64, Scalar

if TYPE_CHECKING:
    from whimbrel.match.events.columns import (
        AttributeColumn,
    )  # it loads pyarrow, which matching one event does not need

__all__ = ["Encoder", "join_events"]

_TYPES = {int: 1, Int64: 2, float: 3, str: 4, bytes: 5}
_CONVERSIONS = frozenset(NumberFunction)
_INT64, _REAL = int(AttributeType.INT64), int(AttributeType.REAL64)
_STRING = int(AttributeType.STRING)
_OPAQUE = int(AttributeType.OPAQUE)
_NONE_GIVEN = np.zeros(0, np.int64)
_NO_PATTERNS = np.zeros(0, np.int32)


class Encoder:
    """Encodes events for one packed index; a column is an attribute, or a value derived from one, that filters use."""

    def __init__(
        self,
        columns: Mapping[tuple[str, tuple[str, ...]], int],
        patterns: Mapping[tuple[int, str, str, int], int],
        *,
        seed: int,
    ) -> None:
        self.width = len(columns) + 1
        self.columns: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
        for (name, derivation), column in columns.items():
            self.columns.setdefault(name, []).append((column, derivation))
        self.plain = {name: found[0][0] for name, found in self.columns.items() if [d for _, d in found] == [()]}
        decided: dict[int, list[ColumnPattern]] = {}
        for (column, function, pattern, longest), number in patterns.items():
            if function in COMPILED:
                found = ColumnPattern(number, PatternFunction(function), pattern, longest)
                decided.setdefault(column, []).append(found)
        self.decided = {column: ColumnPatterns(each, seed) for column, each in decided.items()}
        """Regular expressions and wildcards, which RE2 decides, by column."""
        self._is_simple = not self.decided and len(self.plain) == len(self.columns)
        self._seed = seed
        self._names: Names | None = None
        """Hash table of the attribute names; made when bodies are first encoded."""

    def bodies(self, bodies: Bodies) -> Events:
        """Encode the bodies of publications; the kernel parses the simple ones, and Python the others.

        Python parses all bodies if RE2 must decide a pattern.
        """
        if self.decided:
            return self.rows(bodies)
        names = self._names
        if names is None:
            derived = [name for name in self.columns if name not in self.plain]
            names = self._names = Names(self.plain, derived, self._seed)
        texts = bodies.texts()
        text = np.frombuffer(b"".join(texts) or b"\0", np.uint8)
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        room, hard = len(texts) * names.most, np.zeros(len(texts), np.uint8)
        items = Events(
            row_start=np.empty(len(texts) + 1, np.int64),
            column=np.empty(room, np.int32),
            kind=np.empty(room, np.uint8),
            integer=np.empty(room, np.int64),
            real=np.empty(room, np.float64),
            text_start=np.empty(room, np.int64),
            text_end=np.empty(room, np.int64),
            text=text,
            given_start=_NONE_GIVEN,
            given=_NO_PATTERNS,
        )
        read_objects(text, ends, *names.arrays, self._seed, *items[:7], hard, names.asks_value)
        if bodies.given:
            hard[list(bodies.given)] = 1
        return self._with_hard(items, bodies, np.flatnonzero(hard)) if hard.any() else items

    def _with_hard(self, items: Events, bodies: Bodies, rows: Any) -> Events:
        """Add the items of the bodies in *rows*, which the kernel could not parse; Python parses them."""
        chosen = np.full(len(bodies), -1, np.int64)
        chosen[rows] = np.arange(rows.size)
        return join_events(items, self.rows([bodies[row] for row in rows.tolist()]), chosen)

    def rows(self, rows: Sequence[Attributes]) -> Events:
        """Encode *rows*, a sequence of mappings of attributes, into the flat arrays that the kernel reads."""
        items = _Items()
        starts = [0]
        for attributes in rows:
            for name, value in attributes.items():
                column = self.plain.get(name)
                if column is not None:
                    items.add(column, value)
                elif name in self.columns:
                    for number, derivation in self.columns[name]:
                        derived = value if not derivation else _derive(value, derivation)
                        if derived is not None:
                            items.add(number, derived)
            starts.append(len(items.column))
        return items.events(starts, self.decided)

    def arrow(self, attributes: AttributeColumn) -> Events:
        """Encode an Arrow column of attributes into the flat arrays that the kernel reads."""
        plain = np.array([self._base(name) for name in attributes.distinct] or [-1], np.int32)
        names = attributes.names
        base = {
            "column": plain[names] if names.size else np.zeros(0, np.int32),
            "kind": attributes.kinds,
            "integer": attributes.integers,
            "real": attributes.reals,
            "text_start": attributes.text_starts,
            "text_end": attributes.text_ends,
        }
        starts, data = attributes.starts, attributes.text_bytes
        if self._is_simple:
            return Events(row_start=starts, text=data, given_start=_NONE_GIVEN, given=_NO_PATTERNS, **base)
        return self._with_derived(base, attributes)

    def _base(self, name: str) -> int:
        return next((column for column, derivation in self.columns.get(name, []) if not derivation), -1)

    def _with_derived(self, base: dict[str, Any], attributes: AttributeColumn) -> Events:
        """Add the values derived from attributes (such as ``fold-case``) as further items.

        Return all items, sorted by event.
        """
        starts, data, names = attributes.starts, attributes.text_bytes, attributes.names
        extra = _Items()
        rows = np.repeat(np.arange(starts.size - 1), np.diff(starts))
        extra_rows: list[int] = []
        for code, name in enumerate(attributes.distinct):
            derived = [(column, d) for column, d in self.columns.get(name, []) if d]
            if not derived:
                continue
            takes_numbers = any(function in _CONVERSIONS for _, each in derived for function in each)
            at = np.flatnonzero((names == code) & (base["kind"] >= (0 if takes_numbers else _STRING)))
            memo: dict[str | bytes, list[Scalar | None]] = {}
            strings, blobs = attributes.texts.take(at).to_pylist(), attributes.opaques.take(at).to_pylist()
            for item, string, blob in zip(at.tolist(), strings, blobs, strict=True):
                row, kind = rows[item], int(base["kind"][item])
                if kind < _STRING:
                    whole, real = int(base["integer"][item]), float(base["real"][item])
                    value: Scalar = real if kind == _REAL else Int64(whole) if kind == _INT64 else whole
                    results = [_derive(value, derivation) for _, derivation in derived]
                else:
                    text = string if kind == _STRING else blob
                    if text not in memo:
                        memo[text] = [_derive(text, derivation) for _, derivation in derived]
                    results = memo[text]
                for (column, _), result in zip(derived, results, strict=True):
                    if result is not None:
                        extra.add(column, result)
                        extra_rows.append(int(row))
        added = extra.events([0, len(extra.column)], {})
        all_rows = np.concatenate([rows, np.array(extra_rows, np.int64)])
        order = np.argsort(all_rows, kind="stable")
        shift = data.size
        joined = {
            "column": np.concatenate([base["column"], added.column])[order],
            "kind": np.concatenate([base["kind"], added.kind])[order],
            "integer": np.concatenate([base["integer"], added.integer])[order],
            "real": np.concatenate([base["real"], added.real])[order],
            "text_start": np.concatenate([base["text_start"], added.text_start + shift])[order],
            "text_end": np.concatenate([base["text_end"], added.text_end + shift])[order],
        }
        text = np.concatenate([data, added.text])
        row_start = np.zeros(starts.size, np.int64)
        np.cumsum(np.bincount(all_rows, minlength=starts.size - 1), out=row_start[1:])
        given_start, given = self._decide(joined, text)
        return Events(row_start=row_start, text=text, given_start=given_start, given=given, **joined)

    def _decide(self, items: dict[str, Any], text: Any) -> tuple[Any, Any]:
        """Return, for each item, the RE2 patterns that match its string, as ``given_start`` and ``given`` (``Events``).

        Each distinct string of a column is searched once.
        """
        if not self.decided:
            return _NONE_GIVEN, _NO_PATTERNS
        buffer = text.tobytes()
        found: list[list[int]] = [[] for _ in range(items["column"].size)]
        for column, patterns in self.decided.items():
            memo: dict[bytes, list[int]] = {}
            for item in np.flatnonzero((items["column"] == column) & (items["kind"] == _STRING)):
                key = buffer[items["text_start"][item] : items["text_end"][item]]
                if key not in memo:
                    memo[key] = patterns.matching(key)
                found[item] = memo[key]
        return _flat(found)


def join_events(events: Events, others: Events, chosen: Any) -> Events:
    """Return *events* with more items: row ``chosen[row]`` of *others* is appended to each row (-1: nothing is)."""
    own = np.diff(events.row_start)
    theirs = np.append(np.diff(others.row_start), 0)[chosen]  # -1 takes the zero at the end
    row_start = np.zeros(own.size + 1, np.int64)
    np.cumsum(own + theirs, out=row_start[1:])
    to_own = _ranges(row_start[:-1], own)
    to_other = _ranges(row_start[:-1] + own, theirs)
    from_own = _ranges(events.row_start[:-1], own)
    from_other = _ranges(others.row_start[chosen[theirs > 0]], theirs[theirs > 0])

    def merge(mine: Any, other: Any) -> Any:
        result = np.empty(to_own.size + to_other.size, mine.dtype)
        result[to_own] = mine[from_own]
        result[to_other] = other[from_other]
        return result

    shift = events.text.size
    given_start, given = _NONE_GIVEN, _NO_PATTERNS
    if events.given_start.size:
        counts = merge(np.diff(events.given_start), np.zeros(others.column.size, np.int64))
        given_start = np.zeros(counts.size + 1, np.int64)
        np.cumsum(counts, out=given_start[1:])
        given = events.given
    return Events(
        row_start=row_start,
        column=merge(events.column, others.column),
        kind=merge(events.kind, others.kind),
        integer=merge(events.integer, others.integer),
        real=merge(events.real, others.real),
        text_start=merge(events.text_start, others.text_start + shift),
        text_end=merge(events.text_end, others.text_end + shift),
        text=np.concatenate([events.text, others.text]),
        given_start=given_start,
        given=given,
    )


def _ranges(starts: Any, counts: Any) -> Any:
    """Return the ranges ``starts[i]``, ``starts[i] + 1``, … of ``counts[i]`` numbers each, joined in one array."""
    total = int(counts.sum())
    before = np.cumsum(counts) - counts
    return np.arange(total) - np.repeat(before, counts) + np.repeat(starts, counts)


class _Items:
    """Builder of ``Events`` that collects items in lists before they become arrays."""

    def __init__(self) -> None:
        self.column: list[int] = []
        self.kind: list[int] = []
        self.integer: list[int] = []
        self.real: list[float] = []
        self.text: list[str] = []

    def add(self, column: int, value: Scalar) -> None:
        kind = _TYPES[type(value)]
        self.column.append(column)
        self.kind.append(kind)
        if kind < 3:
            self.integer.append(value)  # type: ignore[arg-type]  # the kind says so
            self.real.append(0.0)
            self.text.append("")
        elif kind == 3:
            self.integer.append(0)
            self.real.append(value)  # type: ignore[arg-type]  # the kind says so
            self.text.append("")
        else:
            self.integer.append(0)
            self.real.append(0.0)
            self.text.append(value if kind == _STRING else "")  # type: ignore[arg-type]  # the kind says so

    def events(self, starts: Sequence[int], decided: Mapping[int, ColumnPatterns]) -> Events:
        texts = [text.encode() for text in self.text]
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        given_start, given = _NONE_GIVEN, _NO_PATTERNS
        if decided:
            given_start, given = _flat(
                [
                    decided[column].matching(text) if kind == _STRING and column in decided else []
                    for column, kind, text in zip(self.column, self.kind, texts, strict=True)
                ]
            )
        return Events(
            row_start=np.array(starts, np.int64),
            column=np.array(self.column, np.int32),
            kind=np.array(self.kind, np.uint8),
            integer=np.array(self.integer, np.int64),
            real=np.array(self.real, np.float64),
            text_start=ends - np.array([len(text) for text in texts], np.int64),
            text_end=ends,
            text=np.frombuffer(b"".join(texts) or b"\0", np.uint8),
            given_start=given_start,
            given=given,
        )


def _derive(value: Scalar, derivation: tuple[str, ...]) -> Scalar | None:
    """Apply a chain of functions to *value* and return the result.

    Return None if one of the functions is undefined for its operand.
    """
    found: Scalar | None = value
    for function in derivation:
        if found is None:
            return None
        if function == "size":
            found = len(found) if isinstance(found, str | bytes) else None
        elif function in _CONVERSIONS:
            found = number_value(NumberFunction(function), found)
        else:
            found = text_value(TextFunction(function), found)
    return found


def _flat(lists: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    starts = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(each) for each in lists], out=starts[1:])
    return starts, np.array([number for each in lists for number in each], np.int32)
