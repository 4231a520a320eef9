"""The workloads everything is measured on: seeded filters and events, lazily, as text or as trees.

U: ten attributes an event, all present; a filter has one or two equalities over 1,000 values, one or two ranges (half
of them one-sided, half intervals), and half of the filters one more predicate: a string equality, a prefix, a
difference or one more range.
B: general boolean expressions with OR and NOT; every attribute is missing with probability 0.2. A filter is one to
three alternatives, each an equality beside any expression, so that it selects and does not just let through.

Rule: a filter is drawn once and spelt by a ``Spelling``, so texts and trees of one seed are the same filters:
``parse(text) == tree``, one by one.
Rule: nothing is kept; a million texts take seconds and the memory of one. Every stream has its own generator, named
after the seed, so drawing more of one changes no other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from whimbrel.language.ast import (
    And,
    Compare,
    CompareOp,
    Literal,
    Name,
    Not,
    Or,
    Pattern,
    PatternFunction,
    Predicate,
)
from whimbrel.model.attributes import Attributes, Scalar, checked

__all__ = ["WORKLOAD_B", "WORKLOAD_U", "Workload"]

_T = TypeVar("_T")

_KEYS = ("ward", "bed", "device", "patient")
_RANGES: tuple[tuple[str, float, float, bool], ...] = (  # name, least, most, whether it is a real
    ("pulse", 30, 220, False),
    ("steps", 0, 20_000, False),
    ("signal", -100, -20, False),
    ("temperature", 30.0, 45.0, True),
)
_STRINGS = ("unit", "model")
_WORDS = ("ICU", "ER", "OR", "NICU", "LAB", "GER", "PED", "ONC", "RAD", "CARD")
_MISSING_IN_B = 0.2


@dataclass(frozen=True, slots=True)
class Spelling(Generic[_T]):
    """How the parts of a filter are written down: as text, or as nodes of a tree."""

    compare: Callable[[str, CompareOp, int | float | str], _T]
    begins_with: Callable[[str, str], _T]
    every: Callable[[list[_T]], _T]
    some: Callable[[list[_T]], _T]
    inverse: Callable[[_T], _T]
    group: Callable[[_T], _T]


_TEXT: Spelling[str] = Spelling(
    compare=lambda name, op, value: f"{name} {op.value} {value!r}",
    begins_with=lambda name, prefix: f"begins-with({name}, '{prefix}')",
    every=" && ".join,
    some=" || ".join,
    inverse=lambda part: f"!({part})",
    group=lambda part: f"({part})",
)
_TREE: Spelling[Predicate] = Spelling(
    compare=lambda name, op, value: Compare(op, Name(name), Literal(value)),
    begins_with=lambda name, prefix: Pattern(PatternFunction.BEGINS_WITH, Name(name), (prefix,)),
    every=lambda parts: And(tuple(parts)),
    some=lambda parts: Or(tuple(parts)),
    inverse=Not,
    group=lambda part: part,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A family of filters and the events they are asked about."""

    name: str
    is_general: bool
    """Whether filters are general boolean expressions (B) rather than conjunctions (U)."""
    missing: float = 0.0
    """The probability that an event lacks an attribute."""
    values: int = 1_000
    """How many values an equality chooses from; a few make matches frequent."""
    digits: int = 2
    """Decimals of a real constant; with many, no two filters share one."""
    levels: int | None = None
    """How many values a range attribute takes, if not all it can; a few make events meet the bounds exactly."""

    def dense(self) -> Workload:
        """Return the same with so few values that matches and met bounds are frequent: to check, not to time."""
        return replace(self, values=3, levels=5)

    def texts(self, count: int, seed: int) -> Iterator[str]:
        """Yield the texts of *count* filters."""
        return self._filters(_TEXT, count, seed)

    def trees(self, count: int, seed: int) -> Iterator[Predicate]:
        """Yield the trees of the same filters that ``texts`` spells."""
        return self._filters(_TREE, count, seed)

    def events(self, count: int, seed: int) -> Iterator[Attributes]:
        """Yield *count* events, their attributes checked."""
        rng = random.Random(f"{self.name}/events/{seed}")
        for _ in range(count):
            values = _event(rng.random, self)
            yield checked({name: value for name, value in values if rng.random() >= self.missing})

    def _filters(self, spelling: Spelling[_T], count: int, seed: int) -> Iterator[_T]:
        rng = random.Random(f"{self.name}/filters/{seed}")
        draw = _Draw(rng.random, spelling, self)
        filter_of = draw.general if self.is_general else draw.conjunction
        for _ in range(count):
            yield filter_of()


WORKLOAD_U = Workload(name="U", is_general=False)
WORKLOAD_B = Workload(name="B", is_general=True, missing=_MISSING_IN_B)


def _event(draw: Callable[[], float], workload: Workload) -> Iterator[tuple[str, Scalar]]:
    for key in _KEYS:
        yield key, int(draw() * workload.values)
    for span, (name, *_) in enumerate(_RANGES):
        yield name, _value(span, draw(), workload)
    for name in _STRINGS:
        yield name, _string(int(draw() * workload.values))


def _value(span: int, part: float, workload: Workload) -> int | float:
    """Return the value that lies *part* (0 to 1) of the way through a range."""
    _, least, most, is_real = _RANGES[span]
    if workload.levels is not None:
        part = int(part * workload.levels) / workload.levels
    value = least + part * (most - least)
    return round(value, workload.digits) if is_real else int(value)


def _string(number: int) -> str:
    return f"{_WORDS[number % 10]}-{number // 10:02d}"


class _Draw(Generic[_T]):
    """Draws filters; ``int(random() * n)`` throughout, because ``randrange`` takes five times as long."""

    def __init__(self, draw: Callable[[], float], spelling: Spelling[_T], workload: Workload) -> None:
        self._random, self._spelling, self._workload, self._values = draw, spelling, workload, workload.values

    def conjunction(self) -> _T:
        """Draw a filter of workload U."""
        draw = self._random
        key, span = int(draw() * 4), int(draw() * 4)
        parts = [self._equality(key)]
        if draw() < 0.5:
            parts.append(self._equality((key + 1 + int(draw() * 3)) % 4))
        self._range(span, parts)
        if draw() < 0.5:
            span += 1 + int(draw() * 2)
            self._range(span % 4, parts)
        if draw() < 0.5:
            self._extra((span + 1) % 4, parts)
        return self._spelling.every(parts)

    def general(self) -> _T:
        """Draw a filter of workload B."""
        alternatives = [self._alternative() for _ in range(1 + int(self._random() * 3))]
        return alternatives[0] if len(alternatives) == 1 else self._spelling.some(alternatives)

    def _alternative(self) -> _T:
        parts = [self._equality(int(self._random() * 4)), self._expression(2)]
        if self._random() < 0.3:
            parts.append(self._expression(1))
        return self._spelling.every(parts)

    def _expression(self, depth: int) -> _T:
        """Draw a leaf, a negation or a disjunction, to stand inside a conjunction."""
        kind = self._random()
        if depth == 0 or kind < 0.4:
            return self._leaf()
        spelling = self._spelling
        if kind < 0.6:
            return spelling.inverse(self._term(depth - 1))
        return spelling.group(spelling.some([self._term(depth - 1), self._term(depth - 1)]))

    def _term(self, depth: int) -> _T:
        """Draw a leaf or a conjunction, to stand inside a negation or a disjunction."""
        if self._random() < 0.5:
            return self._leaf()
        return self._spelling.every([self._leaf(), self._expression(depth)])

    def _leaf(self) -> _T:
        kind = self._random()
        if kind < 0.4:
            return self._equality(int(self._random() * 4))
        parts: list[_T] = []
        if kind < 0.8:
            self._side(int(self._random() * 4), parts)
        else:
            self._extra(0, parts)
        return parts[0]

    def _equality(self, key: int) -> _T:
        return self._spelling.compare(_KEYS[key], CompareOp.EQ, int(self._random() * self._values))

    def _range(self, span: int, parts: list[_T]) -> None:
        """Add one side of a range, or an interval of up to half its width."""
        draw = self._random
        if draw() < 0.5:
            self._side(span, parts)
            return
        low = draw()
        high = min(1.0, low + draw() / 2)
        name, compare = _RANGES[span][0], self._spelling.compare
        parts.append(compare(name, CompareOp.GE, _value(span, low, self._workload)))
        parts.append(compare(name, CompareOp.LE, _value(span, high, self._workload)))

    def _side(self, span: int, parts: list[_T]) -> None:
        op = CompareOp.GT if self._random() < 0.5 else CompareOp.LT
        parts.append(self._spelling.compare(_RANGES[span][0], op, _value(span, self._random(), self._workload)))

    def _extra(self, span: int, parts: list[_T]) -> None:
        """Add a string equality, a prefix, a difference or one side of a range, a quarter each."""
        kind = int(self._random() * 4)
        if kind == 3:
            self._side(span, parts)
            return
        name = _STRINGS[int(self._random() * 2)]
        value = _string(int(self._random() * self._values))
        if kind == 0:
            parts.append(self._spelling.compare(name, CompareOp.EQ, value))
        elif kind == 1:  # 'ICU-' or 'ICU-0': a tenth or a hundredth of all
            parts.append(self._spelling.begins_with(name, value[: value.index("-") + 1 + (value[-1] < "5")]))
        else:
            parts.append(self._spelling.compare(name, CompareOp.NE, value))
