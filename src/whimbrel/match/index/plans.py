"""Plans: instructions that write the clauses of a filter as binary words of the packed index (``kernels.layout``).

Filters that differ only in names and constants have one *shape*. A plan is made once per shape and run for each filter
of it: it contains the jumps of every clause, and takes names and constants from the tokens of the filter's text. A
filter without a recognised shape gets a plan of its own, which contains its names and constants.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

from whimbrel.language.ast import Literal, Pattern, Predicate, walk
from whimbrel.language.filters import parse_stored, recognise
from whimbrel.language.pattern_cost import UNBOUNDED, longest_searched
from whimbrel.language.patterns import COMPILED
from whimbrel.language.rewrites import normal_form
from whimbrel.language.shapes import Template
from whimbrel.language.tokens import Kind, TokenError, kind_of, literal, name
from whimbrel.match.index.leaves import Clause, Formula, Leaf, clauses
from whimbrel.match.kernels.layout import ACCEPT, CLOSURE, MULTI, REJECT, Op

__all__ = [
    "NO_CONSTANT",
    "NUMERIC_EQ",
    "Dictionary",
    "Harvest",
    "Option",
    "Plan",
    "Step",
    "harvest",
    "plan_of",
    "read_alone",
]

_T = TypeVar("_T")
_EXACT = 1 << 53
"""Integers below this are exact as doubles, so that comparing doubles decides whether they are equal."""
NUMERIC_EQ = frozenset((Op.INT_EQ, Op.REAL_EQ))
NO_CONSTANT = frozenset((Op.PRESENT, Op.NAN, Op.NOT_NAN, Op.MAYBE))


class Option:
    """Kinds of anchors (conditions that find a clause): an equality, a pattern, a present attribute, two equalities."""

    EQUAL, PATTERN, PRESENT, PAIR = 0, 1, 2, 3


class Numbering(dict[_T, int]):
    """Numbers of things: reading a thing that has no number yet gives it the next."""

    def __missing__(self, thing: _T) -> int:
        found = self[thing] = len(self)
        return found


@dataclass(slots=True)
class Dictionary:
    """Numbers that the packed index gives to the columns, strings, equalities and patterns of its filters."""

    columns: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    strings: Numbering[str] = field(default_factory=Numbering[str])
    symbols: Numbering[tuple[int, int]] = field(default_factory=Numbering[tuple[int, int]])
    """Keys: (column << 1 | whether the constant is a string, bits of the constant)."""
    patterns: dict[tuple[int, str, str, int], int] = field(default_factory=dict)
    """Keys: (column, function, pattern, longest string in bytes on which the pattern is run)."""

    def column(self, attribute: str, derivation: tuple[str, ...]) -> int:
        """Return the number of a column (an attribute with the functions applied to it), a new one if it has none."""
        return self.columns.setdefault((attribute, derivation), len(self.columns))

    def pattern(self, column: int, function: str, pattern: str, longest: int) -> int:
        """Return the number of a pattern for *column*, a new number if it has none.

        The pattern is run on strings of up to *longest* bytes.
        """
        return self.patterns.setdefault((column, function, pattern, longest), len(self.patterns))


@dataclass(slots=True)
class Harvest:
    """The clauses of many filters in flat arrays, with the conditions by which each may be found (``Option``)."""

    dictionary: Dictionary = field(default_factory=Dictionary)
    words: array[int] = field(default_factory=lambda: array("q"))
    """The leaves (tests of one column), two 64-bit words each: op, column and jumps; then the constant."""
    clause_start: array[int] = field(default_factory=lambda: array("q"))
    clause_leaves: array[int] = field(default_factory=lambda: array("i"))
    clause_direct: array[int] = field(default_factory=lambda: array("i"))
    clause_handle: array[int] = field(default_factory=lambda: array("i"))
    clause_flags: array[int] = field(default_factory=lambda: array("i"))
    option_clause: array[int] = field(default_factory=lambda: array("i"))
    option_kind: array[int] = field(default_factory=lambda: array("b"))
    option_id: array[int] = field(default_factory=lambda: array("q"))
    option_drops: array[int] = field(default_factory=lambda: array("i"))
    """The leaf (test of the clause) that the anchor already proves true, so that it need not be run; or -1."""
    names: dict[tuple[str, ...], NameTokens] = field(default_factory=dict)
    """Cache: numbers of columns by the tokens of their names, per functions applied to the attribute."""
    numbers: tuple[NumberTokens, NumberTokens] = field(
        default_factory=lambda: (NumberTokens(negative=False), NumberTokens(negative=True))
    )
    """Cache: numeric constants by their tokens, without and with a minus sign."""
    texts: TextTokens = field(default_factory=lambda: TextTokens())  # noqa: PLW0108  # defined below
    """Cache: strings by their tokens."""

    @property
    def mark(self) -> tuple[int, int, int]:
        """The current end of the arrays, for ``take_back``."""
        return len(self.words), len(self.clause_start), len(self.option_clause)

    def take_back(self, mark: tuple[int, int, int]) -> None:
        """Undo all writes since *mark*."""
        words, clauses_, options = mark
        del self.words[words:]
        for column in (
            self.clause_start, self.clause_leaves, self.clause_direct, self.clause_handle, self.clause_flags
        ):  # fmt: skip
            del column[clauses_:]
        for column in (self.option_clause, self.option_kind, self.option_id, self.option_drops):
            del column[options:]

    def column_numbers(self, derivation: tuple[str, ...]) -> NameTokens:
        """Return the cache of the columns of attributes with the functions *derivation* applied to them."""
        known = self.names.get(derivation)
        if known is None:
            known = self.names[derivation] = NameTokens(self.dictionary, derivation)
        return known


class NameTokens(dict[str, int]):
    """Cache: the number of a column, by the token of its attribute's name."""

    def __init__(self, dictionary: Dictionary, derivation: tuple[str, ...]) -> None:
        super().__init__()
        self._dictionary, self._derivation = dictionary, derivation

    def __missing__(self, token: str) -> int:
        found = self[token] = self._dictionary.column(name(token).name, self._derivation)
        return found


class TextTokens(dict[str, str]):
    """Cache: the string that a token denotes."""

    def __missing__(self, token: str) -> str:
        text = literal(token, Kind.STRING).value
        assert isinstance(text, str)
        self[token] = text
        return text


class NumberTokens(dict[str, int]):
    """Cache: the row of a numeric constant in the arrays of this object, by the constant's token."""

    def __init__(self, *, negative: bool) -> None:
        super().__init__()
        self._is_negative = negative
        self.constants = array("q")
        """The constant as a word: an integer, or the bits of a double."""
        self.doubles = array("q")
        """The bits of the constant as a double."""
        self.decides = array("b")
        """Whether equal bits prove that an attribute equals the constant."""

    def __missing__(self, token: str) -> int:
        value = literal(token, kind_of(token), negative=self._is_negative).value
        assert isinstance(value, int | float)
        constant, key, decides = _number_constant(value)
        self.constants.append(constant)
        self.doubles.append(key)
        self.decides.append(decides)
        found = self[token] = len(self.doubles) - 1
        return found


def harvest(into: Harvest, handle: int, text: str) -> None:
    """Append the clauses of the filter *text* under *handle*; raise ``FilterError`` if *text* is not a filter."""
    known = recognise(text)
    if known is None:
        read_alone(into, handle, text)
        return
    template, tokens = known
    mark = into.mark
    try:
        plan_of(template).emit(into, handle, tokens)
    except TokenError:  # a constant is out of range: undo the writes, and parse the text for the proper error
        into.take_back(mark)
        parse_stored(text)
        raise


def read_alone(into: Harvest, handle: int, text: str) -> None:
    """Parse the filter *text*, whose shape is not known, and append its clauses as ``harvest`` does."""
    tree = parse_stored(text)
    Plan(normal_form(tree), None, longest_searched(tree)).emit(into, handle, ())


@cache
def plan_of(template: Template) -> Plan:
    """Return the plan for all filters of the shape that *template* has."""
    return Plan(normal_form(template.tree), template, UNBOUNDED)  # patterns that need RE2 never have a shape


def bits_of(real: float) -> int:
    """Return the bits of a double as a signed integer."""
    bits: int = struct.unpack("<q", struct.pack("<d", real))[0]
    return bits


@dataclass(frozen=True, slots=True)
class Step:
    """One leaf (test) of a plan: its first binary word without the column, and the tokens of its name and constant."""

    op: Op
    word: int
    derivation: tuple[str, ...]
    name_token: int  # position among the filter's tokens; -1: ``fixed_name``
    fixed_name: str
    constant_token: int  # position among the filter's tokens; -1: ``fixed_constant``
    is_negative: bool
    fixed_constant: int | float | str | None
    function: str
    longest: int
    """Longest string, in bytes, on which a pattern is run."""


class Plan:
    """Instructions to write a filter of one shape.

    The patterns that RE2 decides run on strings of up to *longest* bytes.
    """

    def __init__(self, normal: Predicate, template: Template | None, longest: int) -> None:
        self._template, self._longest = template, longest
        self._pattern_places = {} if template is None else _pattern_places(template)
        found = clauses(normal, is_shape=template is not None)
        self.clauses = [self._compile(clause) for clause in found]
        self.multi = MULTI if len(found) > 1 else 0
        self.unread = () if template is None else self._constants_not_read(template)
        """Constants in the text that no step reads, as token, kind and sign; their ranges are still checked."""

    def _constants_not_read(self, template: Template) -> tuple[tuple[int, str, bool], ...]:
        read = {step.constant_token for steps, _, _ in self.clauses for step in steps}
        literals = [node for node in walk(template.tree) if isinstance(node, Literal)]
        places = ((template.place(node), template.is_negative(node)) for node in literals)
        return tuple((place, template.kind(place), negative) for place, negative in places if place not in read)

    def _compile(self, clause: Clause) -> tuple[tuple[Step, ...], int, int]:
        """Return the steps (tests) of a clause, the number that it requires unconditionally, and ``CLOSURE`` or 0.

        ``CLOSURE`` means that the compiled filter must decide.
        """
        formula: Formula = ("and", (*clause.direct, *clause.rest))
        leaves: list[tuple[Leaf, int, int]] = []
        _lay_out(formula, 0, ACCEPT, REJECT, leaves)
        steps = tuple(self._step(leaf, if_true, if_false) for leaf, if_true, if_false in leaves)
        flags = CLOSURE if any(step.op is Op.MAYBE for step in steps) else 0
        return steps, len(clause.direct), flags

    def _step(self, leaf: Leaf, if_true: int, if_false: int) -> Step:
        word = int(leaf.op) | if_true << 32 | if_false << 48
        template = self._template
        constant = leaf.literal.value if leaf.literal is not None else leaf.operand
        token = -1
        if template is not None and leaf.literal is not None:
            token = template.place(leaf.literal)
        elif template is not None and leaf.pattern is not None:
            subject, number = leaf.pattern
            token = self._pattern_places[id(subject)][number]
        return Step(
            op=leaf.op,
            word=word - (1 << 64) if word >= 1 << 63 else word,
            derivation=leaf.derivation,
            name_token=-1 if template is None else template.place(leaf.name),
            fixed_name=leaf.name.name,
            constant_token=token,
            is_negative=template is not None and leaf.literal is not None and template.is_negative(leaf.literal),
            fixed_constant=constant,
            function="" if leaf.function is None else str(leaf.function),
            longest=self._longest if leaf.function in COMPILED else UNBOUNDED,
        )

    def emit(self, into: Harvest, handle: int, tokens: Sequence[str]) -> None:
        """Append the clauses of one filter to the arrays of *into*.

        Raise ``TokenError`` for a constant out of range.
        """
        for place, kind, is_negative in self.unread:
            literal(tokens[place], kind, negative=is_negative)
        words = into.words
        for steps, direct, flags in self.clauses:
            clause = len(into.clause_start)
            into.clause_start.append(len(words) // 2)
            into.clause_leaves.append(len(steps))
            into.clause_direct.append(direct)
            into.clause_handle.append(handle)
            into.clause_flags.append(flags | self.multi)
            for number, step in enumerate(steps):
                column = _column(into, step, tokens)
                words.append(step.word + (column << 8))
                anchor = _constant(into, step, tokens, column)
                if number < direct:
                    _offer(into, clause, number, step.op, column, anchor)


def _lay_out(formula: Formula, at: int, if_true: int, if_false: int, leaves: list[tuple[Leaf, int, int]]) -> None:
    """Append the leaves (tests) of *formula* to *leaves*, each with its two jump targets: if true, and if false.

    The first of them has the number *at*.
    """
    if isinstance(formula, Leaf):
        leaves.append((formula, if_true, if_false))
        return
    kind, parts = formula
    for number, part in enumerate(parts):
        after = at + _leaf_count(part)
        if number == len(parts) - 1:
            _lay_out(part, at, if_true, if_false, leaves)
        elif kind == "and":
            _lay_out(part, at, after, if_false, leaves)
        else:
            _lay_out(part, at, if_true, after, leaves)
        at = after


def _leaf_count(formula: Formula) -> int:
    return 1 if isinstance(formula, Leaf) else sum(map(_leaf_count, formula[1]))


def _pattern_places(template: Template) -> dict[int, tuple[int, ...]]:
    """Return the positions of the patterns of each pattern call (such as ``begins-with``) among the filter's tokens.

    The key is the ``id`` of the call's first operand, a node of the tree that rewrites preserve.
    """
    patterns = (node for node in walk(template.tree) if isinstance(node, Pattern))
    return {id(node.subject): template.pattern_places(node) for node in patterns}


def _column(into: Harvest, step: Step, tokens: Sequence[str]) -> int:
    if step.name_token < 0:
        return into.dictionary.column(step.fixed_name, step.derivation)
    return into.column_numbers(step.derivation)[tokens[step.name_token]]


def _constant(into: Harvest, step: Step, tokens: Sequence[str], column: int) -> tuple[int, int, bool] | None:
    """Write the constant of a leaf (test) of a clause; return the leaf as an anchor, or None if it cannot be one.

    An anchor has a kind (``Option``), a number, and whether it proves the leaf true.
    """
    op = step.op
    if op < Op.STRING_EQ:
        constant, key, decides = _number(into, step, tokens)
        into.words.append(constant)
        if op in NUMERIC_EQ:
            return Option.EQUAL, into.dictionary.symbols[column << 1, key], decides
        return None
    if op in NO_CONSTANT:
        into.words.append(0)
        return None
    if op in {Op.TYPE_IS, Op.TYPE_IS_NOT}:
        assert isinstance(step.fixed_constant, int)
        into.words.append(step.fixed_constant)
        return None
    text = _text(into, step, tokens)
    if op in {Op.PATTERN, Op.NOT_PATTERN}:
        pattern = into.dictionary.pattern(column, step.function, text, step.longest)
        into.words.append(pattern)
        return (Option.PATTERN, pattern, True) if op is Op.PATTERN else None
    string = into.dictionary.strings[text]
    into.words.append(string)
    return (Option.EQUAL, into.dictionary.symbols[column << 1 | 1, string], True) if op is Op.STRING_EQ else None


def _number(into: Harvest, step: Step, tokens: Sequence[str]) -> tuple[int, int, bool]:
    if step.constant_token < 0:
        assert isinstance(step.fixed_constant, int | float)
        return _number_constant(step.fixed_constant)
    known = into.numbers[step.is_negative]
    row = known[tokens[step.constant_token]]
    return known.constants[row], known.doubles[row], bool(known.decides[row])


def _number_constant(value: float) -> tuple[int, int, bool]:
    bits = bits_of(float(value))
    if isinstance(value, int):
        return int(value), bits, abs(value) < _EXACT
    return bits, bits, True


def _text(into: Harvest, step: Step, tokens: Sequence[str]) -> str:
    if step.constant_token >= 0:
        return into.texts[tokens[step.constant_token]]
    assert isinstance(step.fixed_constant, str)
    return step.fixed_constant


def _offer(into: Harvest, clause: int, number: int, op: Op, column: int, anchor: tuple[int, int, bool] | None) -> None:
    """Record a condition by which the clause may be found: *anchor*, else the presence of the leaf's column."""
    if anchor is not None:
        kind, identity, decides = anchor
        into.option_clause.append(clause)
        into.option_kind.append(kind)
        into.option_id.append(identity)
        into.option_drops.append(number if decides else -1)
    else:
        into.option_clause.append(clause)
        into.option_kind.append(Option.PRESENT)
        into.option_id.append(column)
        into.option_drops.append(number if op is Op.PRESENT else -1)
