"""The workloads everything is measured on: seeded filters and events, lazily, as text or as trees.

U: ten attributes an event, all present; a filter has one or two equalities over 1,000 values, one or two ranges (half
of them one-sided, half intervals), and half of the filters one more predicate: a string equality, a prefix, a
difference or one more range.
B: general boolean expressions with OR and NOT; every attribute is missing with probability 0.2. A filter is one to
three alternatives, each an equality beside any expression, so that it selects and does not just let through.

The matcher is measured on wider ones, in which all ten attributes take 1,000 values and any may be compared:
U10: like U, but the equalities are spread over all ten attributes, two of them strings, and a range stands on an
attribute that the filter does not compare otherwise. As many filters as in U share an equality with an event (a
thousandth of those that have one), but they hang on ten lists instead of four: closer to the text, and harder.
ZIPF: like U10, but the values of events and the constants of equalities follow Zipf's law with exponent 1: the hottest
of 1,000 values is seen in 13 of 100 draws. Which values are hot is scattered, so that ranges select as they do in U10.
A: two or three ranges over ten numeric attributes and nothing else, each one-sided or an interval, a tenth of the
values wide on average: about one filter in 200 matches an event.
B3: like B, but of two to five leaves, as people write them (B has nine, and hardly two of its filters are alike). One
alternative in fifty has no equality, only two ranges as in A.

Rule: a filter is drawn once and spelt by a ``Spelling``, so texts and trees of one seed are the same filters:
``parse(text) == tree``, one by one.
Rule: nothing is kept; a million texts take seconds and the memory of one. Every stream has its own generator, named
after the seed, so drawing more of one changes no other.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from itertools import accumulate
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

__all__ = [
    "WORKLOAD_A",
    "WORKLOAD_B",
    "WORKLOAD_B3",
    "WORKLOAD_U",
    "WORKLOAD_U10",
    "WORKLOAD_ZIPF",
    "Form",
    "Workload",
]

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
_NUMBERS = ("ward", "bed", "device", "patient", "pulse", "steps", "signal", "temperature", "oxygen", "battery")
_TENTHS = "temperature"  # a real, in tenths
_WIDE_NUMBERS = 8  # of the ten wide attributes; the others are the strings
_NARROW = 0.2  # the widest of the ranges of A, as a part of all values
_RANGES_ONLY = 0.02  # of the alternatives of B3


class Form(Enum):
    """What the filters of a workload are made of."""

    CONJUNCTION = "U"
    GENERAL = "B"
    WIDE = "U10"
    RANGES = "A"
    COMPACT = "B3"


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
    form: Form
    missing: float = 0.0
    """The probability that an event lacks an attribute."""
    values: int = 1_000
    """How many values an equality chooses from; a few make matches frequent."""
    digits: int = 2
    """Decimals of a real constant; with many, no two filters share one."""
    levels: int | None = None
    """How many values a range attribute takes, if not all it can; a few make events meet the bounds exactly."""
    exponent: float = 0.0
    """Of the Zipf law that equalities and the values of events follow; 0: all values alike."""

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
        event = _event if self.form in {Form.CONJUNCTION, Form.GENERAL} else _wide_event
        for _ in range(count):
            values = event(rng.random, self)
            yield checked({name: value for name, value in values if rng.random() >= self.missing})

    def _filters(self, spelling: Spelling[_T], count: int, seed: int) -> Iterator[_T]:
        rng = random.Random(f"{self.name}/filters/{seed}")
        draw, wide = _Draw(rng.random, spelling, self), _WideDraw(rng.random, spelling, self)
        filter_of = {
            Form.CONJUNCTION: draw.conjunction,
            Form.GENERAL: draw.general,
            Form.WIDE: wide.conjunction,
            Form.RANGES: wide.ranges,
            Form.COMPACT: wide.compact,
        }[self.form]
        for _ in range(count):
            yield filter_of()


WORKLOAD_U = Workload(name="U", form=Form.CONJUNCTION)
WORKLOAD_B = Workload(name="B", form=Form.GENERAL, missing=_MISSING_IN_B)
WORKLOAD_U10 = Workload(name="U10", form=Form.WIDE)
WORKLOAD_ZIPF = Workload(name="ZIPF", form=Form.WIDE, exponent=1.0)
WORKLOAD_A = Workload(name="A", form=Form.RANGES)
WORKLOAD_B3 = Workload(name="B3", form=Form.COMPACT, missing=_MISSING_IN_B)


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


# -- the wide ones -----------------------------------------------------------------------------------------------------


@cache
def _law(values: int, exponent: float) -> list[float]:
    """Return the sums of the probabilities of the ranks."""
    weights = [(rank + 1) ** -exponent for rank in range(values)]
    total = sum(weights)
    return [up_to / total for up_to in accumulate(weights)]


def _number(draw: Callable[[], float], workload: Workload) -> int:
    """Draw one of the values, all alike or by Zipf's law; 379 scatters the hot ones among all."""
    if workload.exponent == 0.0:
        return int(draw() * workload.values)
    rank = bisect_right(_law(workload.values, workload.exponent), draw())
    return rank * 379 % workload.values


def _wide_value(attribute: int, number: int) -> int | float:
    return number / 10 if _NUMBERS[attribute] == _TENTHS else number


def _wide_event(draw: Callable[[], float], workload: Workload) -> Iterator[tuple[str, Scalar]]:
    numbers = len(_NUMBERS) if workload.form is Form.RANGES else _WIDE_NUMBERS
    for attribute in range(numbers):
        yield _NUMBERS[attribute], _wide_value(attribute, _number(draw, workload))
    for name in _STRINGS[: 10 - numbers]:
        yield name, _string(_number(draw, workload))


class _WideDraw(Generic[_T]):
    """Draws filters over ten attributes: eight numbers and two strings (or ten numbers, for ``ranges``)."""

    def __init__(self, draw: Callable[[], float], spelling: Spelling[_T], workload: Workload) -> None:
        self._random, self._spelling, self._workload, self._values = draw, spelling, workload, workload.values

    def conjunction(self) -> _T:
        """Draw a filter of U10 or ZIPF."""
        draw = self._random
        used: set[int] = set()
        parts = [self._equality(self._other(used, 10))]
        if draw() < 0.5:
            parts.append(self._equality(self._other(used, 10)))
        self._range(self._other(used, _WIDE_NUMBERS), parts)
        if draw() < 0.5:
            self._range(self._other(used, _WIDE_NUMBERS), parts)
        if draw() < 0.5:
            parts.append(self._extra(used))
        return self._spelling.every(parts)

    def ranges(self) -> _T:
        """Draw a filter of A."""
        used: set[int] = set()
        parts: list[_T] = []
        for _ in range(2 + int(self._random() * 2)):
            self._narrow(self._other(used, 10), parts)
        return self._spelling.every(parts)

    def compact(self) -> _T:
        """Draw a filter of B3."""
        if self._random() < 0.5:
            return self._alternative(1 + int(self._random() * 3))
        return self._spelling.some([self._alternative(1), self._alternative(1 + int(self._random() * 2))])

    def _alternative(self, leaves: int) -> _T:
        """Draw an equality beside an expression of so many leaves; or, rarely, ranges alone."""
        used: set[int] = set()
        parts: list[_T] = []
        if self._random() < _RANGES_ONLY:
            self._narrow(self._other(used, _WIDE_NUMBERS), parts)
            self._narrow(self._other(used, _WIDE_NUMBERS), parts)
        else:
            parts += [self._equality(self._other(used, 10)), self._expression(leaves, used)]
        return self._spelling.every(parts)

    def _expression(self, leaves: int, used: set[int]) -> _T:
        """Draw a leaf, a negation or a disjunction, to stand inside a conjunction."""
        spelling, kind = self._spelling, self._random()
        if leaves == 1:
            return self._leaf(used) if kind < 0.7 else spelling.inverse(self._leaf(used))
        rest = self._leaf(used) if leaves == 2 else spelling.every([self._leaf(used), self._leaf(used)])
        if kind < 0.7:
            return spelling.group(spelling.some([self._leaf(used), rest]))
        return spelling.inverse(spelling.some([self._leaf(used), rest]))

    def _leaf(self, used: set[int]) -> _T:
        """Draw a comparison with an attribute that is not in *used*."""
        kind = self._random()
        if kind < 0.4:
            return self._equality(self._other(set(used), 10))
        return self._side(self._other(set(used), _WIDE_NUMBERS)) if kind < 0.8 else self._extra(set(used))

    def _other(self, used: set[int], of: int) -> int:
        """Draw one of the first *of* attributes that is not in *used*, and add it there."""
        attribute = int(self._random() * of)
        while attribute in used:
            attribute = (attribute + 1) % of
        used.add(attribute)
        return attribute

    def _equality(self, attribute: int) -> _T:
        number = _number(self._random, self._workload)
        if attribute < _WIDE_NUMBERS:
            return self._compare(attribute, CompareOp.EQ, number)
        return self._spelling.compare(_STRINGS[attribute - _WIDE_NUMBERS], CompareOp.EQ, _string(number))

    def _compare(self, attribute: int, op: CompareOp, number: int) -> _T:
        return self._spelling.compare(_NUMBERS[attribute], op, _wide_value(attribute, number))

    def _side(self, attribute: int) -> _T:
        op = CompareOp.GT if self._random() < 0.5 else CompareOp.LT
        return self._compare(attribute, op, int(self._random() * self._values))

    def _range(self, attribute: int, parts: list[_T]) -> None:
        """Add one side of a range, or an interval of up to half its width."""
        if self._random() < 0.5:
            parts.append(self._side(attribute))
        else:
            low = self._random()
            self._interval(attribute, low, min(1.0, low + self._random() / 2), parts)

    def _narrow(self, attribute: int, parts: list[_T]) -> None:
        """Add one side of a range or an interval, of a tenth of the values on average."""
        width, kind = self._random() * _NARROW, self._random()
        if kind < 0.25:
            parts.append(self._compare(attribute, CompareOp.LT, int(width * self._values)))
        elif kind < 0.5:
            parts.append(self._compare(attribute, CompareOp.GE, int((1 - width) * self._values)))
        else:
            low = self._random() * (1 - width)
            self._interval(attribute, low, low + width, parts)

    def _interval(self, attribute: int, low: float, high: float, parts: list[_T]) -> None:
        parts.append(self._compare(attribute, CompareOp.GE, int(low * self._values)))
        parts.append(self._compare(attribute, CompareOp.LE, int(high * self._values)))

    def _extra(self, used: set[int]) -> _T:
        """Draw a string equality, a prefix, a difference or one side of a range, a quarter each."""
        kind = int(self._random() * 4)
        if kind == 3 or used >= {_WIDE_NUMBERS, _WIDE_NUMBERS + 1}:
            return self._side(self._other(used, _WIDE_NUMBERS))
        string = int(self._random() * 2)
        if _WIDE_NUMBERS + string in used:
            string = 1 - string
        if kind == 0:
            return self._equality(_WIDE_NUMBERS + string)
        name, value = _STRINGS[string], _string(_number(self._random, self._workload))
        if kind == 1:  # 'ICU-' or 'ICU-0': a tenth or a hundredth of all
            return self._spelling.begins_with(name, value[: value.index("-") + 1 + (value[-1] < "5")])
        return self._spelling.compare(name, CompareOp.NE, value)
