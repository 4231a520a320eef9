"""The syntax tree of a policy: data only, independent of text and backends.

Rule: an ``Expression`` has a value: a scalar, a verdict, a message, data, or none (NULL, which is also undefined).
Rule: messages are values. A statement that sets an attribute of a message binds its name to a changed copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from whimbrel.language.ast import (
    BinaryOp,
    CompareOp,
    NumberFunction,
    PatternFunction,
    TestFunction,
    TextFunction,
    UnaryOp,
)
from whimbrel.model.attributes import Scalar

__all__ = [
    "AllOf",
    "AnyOf",
    "Arithmetic",
    "Assign",
    "Attribute",
    "Block",
    "Call",
    "Comparison",
    "Compress",
    "Constant",
    "DataOf",
    "Equal",
    "Evaluate",
    "Expression",
    "Function",
    "If",
    "Inverse",
    "IsNull",
    "Local",
    "Member",
    "NewMessage",
    "Now",
    "NumberCall",
    "OddOf",
    "PatternCall",
    "Program",
    "Project",
    "Property",
    "RemoveProperty",
    "Return",
    "Scope",
    "SetAttribute",
    "SetData",
    "SetProperty",
    "Sign",
    "SizeOf",
    "Statement",
    "Summarise",
    "TextCall",
    "TypeTest",
    "children",
    "expressions",
]


class Scope(Enum):
    """Group of variables in which a name is looked up: automatic, manual, or both."""

    ANY = "any"
    """The paper's ``getProperty``: the automatic variable of that name if there is one, else the manual variable."""
    DEVICE = "device"
    """Automatic variables: reported by the device."""
    STATE = "state"
    """Manual variables: set by the policy itself."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal, or NULL."""

    value: Scalar | None


@dataclass(frozen=True, slots=True)
class Local:
    """A local variable: the value last assigned to *name*, or NULL."""

    name: str


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of a message: ``m.pulse``, ``m['two words']``, ``m.getPulse()``."""

    message: Expression
    name: str


@dataclass(frozen=True, slots=True)
class Property:
    """A variable: ``device.Battery``, ``state.sent``, ``getProperty("Battery")``."""

    scope: Scope
    name: str


@dataclass(frozen=True, slots=True)
class Member:
    """``x in device.responsible``, ``isResponsible(x)``: whether the set contains *item*."""

    scope: Scope
    name: str
    item: Expression


@dataclass(frozen=True, slots=True)
class Sign:
    """A prefix operator: ``- a``, ``+ a``, ``~ a``."""

    op: UnaryOp
    operand: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An operator on two numbers, such as ``a + b``."""

    op: BinaryOp
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison, such as ``a == b``; undefined if an operand is undefined."""

    op: CompareOp
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class IsNull:
    """The test ``a == NULL``: true or false, never undefined."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class Inverse:
    """Negation: ``not a``; undefined stays undefined."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class AllOf:
    """Conjunction: ``a and b and …``."""

    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Disjunction: ``a or b or …``."""

    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class OddOf:
    """Exclusive or: ``a ^^ b ^^ …``, true if an odd number is true."""

    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class TypeTest:
    """A type test such as ``int32(a)``, or ``require(a)`` or ``nan(a)``."""

    function: TestFunction
    operand: Expression


@dataclass(frozen=True, slots=True)
class SizeOf:
    """``size(a)``: characters of a string, bytes of opaque data; of a message, bytes of its data unless transformed."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class NumberCall:
    """A conversion to a number: ``to-int(a)`` or ``to-real(a)``."""

    function: NumberFunction
    operand: Expression


@dataclass(frozen=True, slots=True)
class TextCall:
    """A string function, such as ``fold-case(a)``."""

    function: TextFunction
    operand: Expression


@dataclass(frozen=True, slots=True)
class PatternCall:
    """A string test, such as ``contains(a, 'x', …)``."""

    function: PatternFunction
    subject: Expression
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Equal:
    """``equals(a, b, c, …)``: whether *subject* equals any option."""

    subject: Expression
    options: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Now:
    """``getTime()``: the time at which the message is handed to the device, in whole seconds since 1970, as int64."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """``createMessage()``: a message without attributes and data."""


@dataclass(frozen=True, slots=True)
class DataOf:
    """``getData(m)``: the data of a message."""

    message: Expression


@dataclass(frozen=True, slots=True)
class Compress:
    """``compress(m, battery, displaySize, networkConnection, 'name', …)``: the message with a smaller body."""

    message: Expression
    battery: Expression
    display: Expression
    network: Expression
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Project:
    """``project(m, 'name', …)``: the message with only the named members of its JSON body."""

    message: Expression
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Summarise:
    """``summarise(m, seconds, 'name', …)``: NULL, or once in *seconds* a summary of the messages of a subject.

    *site* numbers the calls of ``summarise`` in a policy from 1, because each call has its own summaries.
    """

    message: Expression
    seconds: Expression
    names: tuple[str, ...]
    site: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one of the policy's own functions."""

    function: str
    arguments: tuple[Expression, ...]


Expression: TypeAlias = (
    Constant
    | Local
    | Attribute
    | Property
    | Member
    | Sign
    | Arithmetic
    | Comparison
    | IsNull
    | Inverse
    | AllOf
    | AnyOf
    | OddOf
    | TypeTest
    | SizeOf
    | NumberCall
    | TextCall
    | PatternCall
    | Equal
    | Now
    | NewMessage
    | DataOf
    | Compress
    | Project
    | Summarise
    | Call
)


@dataclass(frozen=True, slots=True)
class Assign:
    """An assignment to a local: ``name = value;``."""

    name: str
    value: Expression


@dataclass(frozen=True, slots=True)
class SetAttribute:
    """An assignment to an attribute, ``m.pulse = value;`` or ``m.setPulse(value);``; NULL removes the attribute."""

    message: str
    name: str
    value: Expression


@dataclass(frozen=True, slots=True)
class SetData:
    """``setData(m, data);``: replaces the data of a message."""

    message: str
    value: Expression


@dataclass(frozen=True, slots=True)
class SetProperty:
    """Setting a manual variable: ``state.sent = value;``, ``setProperty("sent", value);``; NULL removes it."""

    scope: Scope
    name: str
    value: Expression


@dataclass(frozen=True, slots=True)
class RemoveProperty:
    """``removeProperty("sent");``: removes a manual variable."""

    name: str


@dataclass(frozen=True, slots=True)
class If:
    """A conditional; if the condition is undefined, *otherwise* runs."""

    condition: Expression
    then: Block
    otherwise: Block


@dataclass(frozen=True, slots=True)
class Return:
    """``return value;``: ends the policy or function."""

    value: Expression


@dataclass(frozen=True, slots=True)
class Evaluate:
    """A call as a statement, whose value is not used."""

    value: Expression


Statement: TypeAlias = Assign | SetAttribute | SetData | SetProperty | RemoveProperty | If | Return | Evaluate
Block: TypeAlias = tuple[Statement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One of the policy's own functions."""

    name: str
    parameters: tuple[str, ...]
    body: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A whole policy; *message* is the name of the notification that arrived."""

    message: str
    body: Block
    functions: tuple[Function, ...] = ()
    is_printed: bool = False
    """Whether the policy has the paper's head ``arrived(Message m, State s) :-``."""
    sends_when_suspended: bool = False
    """Whether the policy begins with ``sendWhenSuspended();``."""


def children(node: Expression) -> tuple[Expression, ...]:
    """Return the direct subexpressions of *node*, left to right."""
    match node:
        case Attribute(operand, _) | Sign(_, operand) | IsNull(operand) | Inverse(operand) | TypeTest(_, operand):
            return (operand,)
        case (
            SizeOf(operand)
            | NumberCall(_, operand)
            | TextCall(_, operand)
            | PatternCall(_, operand, _)
            | DataOf(operand)
        ):
            return (operand,)
        case Project(operand, _) | Member(_, _, operand):
            return (operand,)
        case Arithmetic(_, left, right) | Comparison(_, left, right) | Summarise(left, right, _, _):
            return (left, right)
        case AllOf(operands) | AnyOf(operands) | OddOf(operands) | Call(_, operands):
            return operands
        case Equal(subject, options):
            return (subject, *options)
        case Compress(message, battery, display, network, _):
            return (message, battery, display, network)
        case _:
            return ()


def expressions(statement: Statement) -> tuple[Expression, ...]:
    """Return the expressions that *statement* evaluates itself; for an ``If`` only the condition."""
    match statement:
        case RemoveProperty():
            return ()
        case If(condition, _, _):
            return (condition,)
        case _:
            return (statement.value,)
