"""The syntax tree of a filter: data only, independent of text and backends.

Rule: a ``Predicate`` has a verdict (true, false or undefined), a ``Value`` has a value (or none); the two never mix, so
any tree that can be built here can be evaluated.
Rule: ``&&``, ``||`` and ``^^`` take two or more operands; arithmetic is binary.
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
    """Comparison operators; ``!=`` is ``!(a == b)``, so undefined stays undefined."""

    EQ = "=="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="


class BinaryOp(StrEnum):
    """Arithmetic operators; the shifts, ``|``, ``^`` and ``&`` are for integers only."""

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
    """Prefix operators; ``~`` is for integers only."""

    NEGATE = "-"
    PLUS = "+"
    INVERT = "~"


class TestFunction(StrEnum):
    """Predicates over one attribute: whether it exists (``require``), has a type, or is NaN."""

    REQUIRE = "require"
    INT32 = "int32"
    INT64 = "int64"
    REAL64 = "real64"
    STRING = "string"
    OPAQUE = "opaque"
    NAN = "nan"


class PatternFunction(StrEnum):
    """Tests of a string against several patterns; the test is true if one pattern matches."""

    BEGINS_WITH = "begins-with"
    ENDS_WITH = "ends-with"
    CONTAINS = "contains"
    WILDCARD = "wildcard"
    REGEX = "regex"


class TextFunction(StrEnum):
    """Functions from string to string."""

    FOLD_CASE = "fold-case"
    DECOMPOSE = "decompose"
    DECOMPOSE_COMPAT = "decompose-compat"


class NumberFunction(StrEnum):
    """Functions that convert an attribute to a number."""

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
    """The value of an attribute; undefined if the notification has no attribute of that name."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Literal(Value):
    """A constant: ``int`` (int32), ``Int64``, finite ``float`` or ``str``; the exact class determines the type."""

    value: int | float | str

    def __eq__(self, other: object) -> bool:
        # 5 and 5L differ as literals, and so do 0.0 and -0.0, though Python calls them equal.
        if not isinstance(other, Literal):
            return NotImplemented
        return type(self.value) is type(other.value) and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


@dataclass(frozen=True, slots=True)
class Unary(Value):
    """A prefix operator: ``- a``, ``+ a``, ``~ a``."""

    op: UnaryOp
    operand: Value


@dataclass(frozen=True, slots=True)
class Binary(Value):
    """An operator on two numbers, such as ``a + b``."""

    op: BinaryOp
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Size(Value):
    """``size(name)``: characters of a string, bytes of an opaque."""

    name: Name


@dataclass(frozen=True, slots=True)
class Convert(Value):
    """``to-int(name)`` and ``to-real(name)``: the attribute as a number, or the number written in its string."""

    function: NumberFunction
    name: Name


@dataclass(frozen=True, slots=True)
class Text(Value):
    """A string function, such as ``fold-case(x)``."""

    function: TextFunction
    operand: Value


@dataclass(frozen=True, slots=True)
class Compare(Predicate):
    """A comparison, such as ``a == b``."""

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
    """A string test, such as ``contains(x, 'a', 'b', …)``."""

    function: PatternFunction
    subject: Value
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Test(Predicate):
    """A test whether an attribute exists (``require``), has a certain type (``int32``, …), or is NaN (``nan``)."""

    __test__ = False  # the language's own name; pytest must not collect it

    function: TestFunction
    name: Name


@dataclass(frozen=True, slots=True)
class Not(Predicate):
    """Negation: ``! p``; undefined stays undefined."""

    operand: Predicate


@dataclass(frozen=True, slots=True)
class And(Predicate):
    """Conjunction: ``p && q && …``, false if any is false, else undefined if any is undefined."""

    operands: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or(Predicate):
    """Disjunction: ``p || q || …``, true if any is true, else undefined if any is undefined."""

    operands: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Xor(Predicate):
    """Exclusive or: ``p ^^ q ^^ …``, undefined if any is undefined, else true if an odd number is true."""

    operands: tuple[Predicate, ...]


def children(node: Node) -> tuple[Node, ...]:
    """Return the direct subterms of *node*, left to right."""
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
    """Return the number of levels of *node*'s tree; as in the parser, a chain of ``&&`` is one level."""
    return 1 + max(map(height, children(node)), default=0)


def walk(node: Node) -> Iterator[Node]:
    """Yield *node* and every term below it."""
    pending = [node]
    while pending:
        found = pending.pop()
        yield found
        pending.extend(children(found))
