"""The tree of a filter: data only, knowing neither text nor backend.

Rule: a ``Predicate`` has a verdict (true, false or undefined), a ``Value`` has a value (or none); the two never
mix, so whatever can be built here can be evaluated.
Rule: ``&&``, ``||`` and ``^^`` hold any number of operands (two or more); arithmetic is binary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

__all__ = [
    "And",
    "Binary",
    "BinaryOp",
    "Compare",
    "CompareOp",
    "Convert",
    "Equals",
    "Literal",
    "Name",
    "Node",
    "Not",
    "NumberFunction",
    "Or",
    "Pattern",
    "PatternFunction",
    "Predicate",
    "Size",
    "Test",
    "TestFunction",
    "Text",
    "TextFunction",
    "Unary",
    "UnaryOp",
    "Value",
    "Xor",
    "children",
    "walk",
]


class CompareOp(StrEnum):
    """``!=`` is ``!(a == b)``, so undefined stays undefined."""

    EQ = "=="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="


class BinaryOp(StrEnum):
    """Arithmetic, then the integer-only operators."""

    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"
    REMAINDER = "%"
    SHIFT_LEFT = "<<"
    SHIFT_RIGHT = ">>"
    SHIFT_RIGHT_LOGICAL = ">>>"
    BIT_OR = "|"
    BIT_XOR = "^"
    BIT_AND = "&"


class UnaryOp(StrEnum):
    """``~`` is for integers only."""

    NEGATE = "-"
    PLUS = "+"
    INVERT = "~"


class TestFunction(StrEnum):
    """Questions about one attribute."""

    REQUIRE = "require"
    INT32 = "int32"
    INT64 = "int64"
    REAL64 = "real64"
    STRING = "string"
    OPAQUE = "opaque"
    NAN = "nan"


class PatternFunction(StrEnum):
    """Questions about a string; any of the patterns suffices."""

    BEGINS_WITH = "begins-with"
    ENDS_WITH = "ends-with"
    CONTAINS = "contains"
    WILDCARD = "wildcard"
    REGEX = "regex"


class TextFunction(StrEnum):
    """String to string."""

    FOLD_CASE = "fold-case"
    DECOMPOSE = "decompose"
    DECOMPOSE_COMPAT = "decompose-compat"


class NumberFunction(StrEnum):
    """Anything to a number."""

    TO_INT = "to-int"
    TO_REAL = "to-real"


class Value:
    """A term with a value: an integer, a real, a string, or none (undefined)."""

    __slots__ = ()


class Predicate:
    """A term with a verdict: true, false, or undefined."""

    __slots__ = ()


Node: TypeAlias = Value | Predicate


@dataclass(frozen=True, slots=True)
class Name(Value):
    """The value of an attribute; undefined where the notification has none of that name."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Literal(Value):
    """A constant: ``int`` (int32), ``Int64``, finite ``float`` or ``str``; the exact class tells the type."""

    value: int | float | str

    def __eq__(self, other: object) -> bool:
        # 5 and 5L, 0.0 and -0.0 are different literals though Python calls them equal.
        if not isinstance(other, Literal):
            return NotImplemented
        return type(self.value) is type(other.value) and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


@dataclass(frozen=True, slots=True)
class Unary(Value):
    """``- a``, ``+ a``, ``~ a``."""

    op: UnaryOp
    operand: Value


@dataclass(frozen=True, slots=True)
class Binary(Value):
    """``a + b`` and its kind."""

    op: BinaryOp
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Size(Value):
    """``size(name)``: characters of a string, bytes of an opaque."""

    name: Name


@dataclass(frozen=True, slots=True)
class Convert(Value):
    """``to-int(name)`` and ``to-real(name)``: the number that a string spells, or that the attribute is."""

    function: NumberFunction
    name: Name


@dataclass(frozen=True, slots=True)
class Text(Value):
    """``fold-case(x)`` and its kind."""

    function: TextFunction
    operand: Value


@dataclass(frozen=True, slots=True)
class Compare(Predicate):
    """``a == b`` and its kind."""

    op: CompareOp
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Equals(Predicate):
    """``equals(x, a, b, …)``: the disjunction of ``x == a``, ``x == b`` and so on."""

    subject: Value
    options: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Pattern(Predicate):
    """``contains(x, 'a', 'b', …)`` and its kind."""

    function: PatternFunction
    subject: Value
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Test(Predicate):
    """``require(name)``, a type test, or ``nan(name)``."""

    __test__ = False  # the name is the domain's; pytest must not collect it

    function: TestFunction
    name: Name


@dataclass(frozen=True, slots=True)
class Not(Predicate):
    """``! p``; undefined stays undefined."""

    operand: Predicate


@dataclass(frozen=True, slots=True)
class And(Predicate):
    """``p && q && …``: false if any is false, else undefined if any is undefined."""

    operands: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or(Predicate):
    """``p || q || …``: true if any is true, else undefined if any is undefined."""

    operands: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Xor(Predicate):
    """``p ^^ q ^^ …``: undefined if any is undefined, else true if an odd number is true."""

    operands: tuple[Predicate, ...]


def children(node: Node) -> tuple[Node, ...]:
    """Return the terms *node* is made of, left to right."""
    match node:
        case And(operands) | Or(operands) | Xor(operands):
            return operands
        case Not(operand) | Unary(_, operand) | Text(_, operand):
            return (operand,)
        case Compare(_, left, right) | Binary(_, left, right):
            return (left, right)
        case Equals(subject, options):
            return (subject, *options)
        case Pattern(_, subject, _):
            return (subject,)
        case Test(_, name) | Size(name) | Convert(_, name):
            return (name,)
        case _:
            return ()


def height(node: Node) -> int:
    """Return how many levels the tree of *node* has, counted as the parser does: a chain of ``&&`` counts once."""
    return 1 + max(map(height, children(node)), default=0)


def walk(node: Node) -> Iterator[Node]:
    """Yield *node* and every term below it."""
    pending = [node]
    while pending:
        found = pending.pop()
        yield found
        pending.extend(children(found))
