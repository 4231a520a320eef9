"""Parsing of calls in a policy: to functions of filters, operations of policies, and the policy's own functions."""

from __future__ import annotations

from typing import Protocol

from whimbrel.errors import PolicyError
from whimbrel.language.ast import NumberFunction, PatternFunction, TestFunction, TextFunction
from whimbrel.language.functions import FUNCTIONS
from whimbrel.language.functions import Function as FilterFunction
from whimbrel.language.policies import tree
from whimbrel.language.policies.codes import PolicyCode
from whimbrel.language.policies.operations import OPERATIONS, Operation, member_name
from whimbrel.language.policies.reading.tokens import Token
from whimbrel.language.policies.tree import Expression, Scope, Statement
from whimbrel.language.tokens import Kind

__all__ = ["Calls", "Tokens"]

_SEND = "sendWhenSuspended"
_STRING_FIRST = frozenset({"getProperty", "setProperty", "removeProperty"})


class Tokens(Protocol):
    """Typing protocol of the parser that ``Calls`` needs: its tokens, its expressions, the functions defined so far."""

    functions: dict[str, tuple[int, int]]
    sites: int

    def expression(self, power: int = 0) -> Expression:
        """Parse an expression whose operators all bind at least as tightly as *power*."""

    def peek(self) -> str:
        """Return the kind of the next token."""

    def take(self) -> Token:
        """Return the next token and advance."""

    def expect(self, kind: str, *, opened: Token | None = None) -> Token:
        """Consume a token of *kind*, or raise an error that names the token found instead."""

    def name(self, wanted: str) -> Token:
        """Consume a name and return it."""

    def string(self, wanted: str) -> str:
        """Consume a string that is not empty; return its value."""

    def text_ahead(self) -> str:
        """Return the text of the next token."""

    def string_value(self, token: Token) -> str:
        """Return the value of the string *token*."""

    def error(self, code: PolicyCode, reason: str, token: Token) -> PolicyError:
        """Return an error at *token*."""


class Calls:
    """Parses calls for one parser, from the function's name to the closing parenthesis."""

    def __init__(self, parser: Tokens) -> None:
        self._parser = parser

    def declaration(self) -> bool:
        """Parse ``sendWhenSuspended();`` at the beginning; return False and consume nothing if it is absent."""
        parser = self._parser
        if parser.text_ahead() != _SEND or _SEND in parser.functions:
            return False
        parser.take()
        for kind in ("(", ")", ";"):
            parser.expect(kind)
        return True

    def statement(self) -> Statement | None:
        """Parse a call that is only allowed as a statement; before any other call, return None and consume nothing."""
        parser = self._parser
        operation = OPERATIONS.get(parser.text_ahead())
        if operation is None or not operation.is_statement:
            return None
        first = parser.take()
        opened = parser.expect("(")
        if operation.name == "setData":
            target = parser.name("the name of a message")
            parser.expect(",")
            value = parser.expression()
            parser.expect(")", opened=opened)
            return tree.SetData(target.text, value)
        name = parser.string(f"{operation.usage}: the name of a variable in quotes")
        if operation.name == "removeProperty":
            parser.expect(")", opened=opened)
            return tree.RemoveProperty(name)
        if parser.peek() == ")":
            raise parser.error(PolicyCode.ARGUMENTS, f"{operation.usage} wants 2 arguments, found 1", first)
        parser.expect(",")
        value = parser.expression()
        parser.expect(")", opened=opened)
        return tree.SetProperty(Scope.ANY, name, value)

    def expression(self) -> Expression:
        """Parse a call that has a value."""
        parser = self._parser
        first = parser.name("the name of a function")
        opened = parser.expect("(")
        name = first.text
        if name in parser.functions:
            return tree.Call(name, tuple(self._arguments(opened)))
        if name in OPERATIONS:
            return self._operation(OPERATIONS[name], first, opened)
        if name in FUNCTIONS:
            return self._filter_function(FUNCTIONS[name], first, opened)
        member = member_name(name, "is")
        if member is not None:
            arguments = self._arguments(opened)
            self._count(first, f"{name}(value)", 1, 1, len(arguments))
            return tree.Member(Scope.ANY, member, arguments[0])
        known = ", ".join([*parser.functions, *OPERATIONS, *FUNCTIONS])
        raise parser.error(PolicyCode.FUNCTION, f"there is no function {name[:40]}; there are {known}", first)

    def _operation(self, operation: Operation, first: Token, opened: Token) -> Expression:
        parser = self._parser
        if operation.is_statement:
            reason = f"{operation.usage} has no value; it is a statement of its own"
            raise parser.error(PolicyCode.TYPE, reason, first)
        if operation.name == "getProperty":
            name = parser.string(f"{operation.usage}: the name of a variable in quotes")
            parser.expect(")", opened=opened)
            return tree.Property(Scope.ANY, name)
        values, names = self._values_and_names(operation.least if operation.most is None else None, opened)
        usage, total = operation.usage, len(values) + len(names)
        match operation.name:
            case "compress":
                self._count(first, usage, operation.least, None, len(values))
                message, battery, display, network = values
                return tree.Compress(message, battery, display, network, names)
            case "project":
                self._count(first, usage, operation.least, None, total)
                return tree.Project(values[0], names)
            case "summarise":
                self._count(first, usage, operation.least, None, total)
                parser.sites += 1
                return tree.Summarise(values[0], values[1], names, parser.sites)
        self._count(first, usage, operation.least, operation.most, total)
        match operation.name:
            case "createMessage":
                return tree.NewMessage()
            case "getTime":
                return tree.Now()
            case _:
                return tree.DataOf(values[0])

    def _values_and_names(self, least: int | None, opened: Token) -> tuple[list[Expression], tuple[str, ...]]:
        """Parse the arguments of a call: values and, if the operation takes them, names in quotes after the values.

        *least* is the least number of arguments of an operation that takes names; None for any other function.
        """
        if least is None:
            return self._arguments(opened), ()
        few = {2: 1, 3: 2, 4: 4}[least]
        parser = self._parser
        values: list[Expression] = []
        names: list[str] = []
        while parser.peek() != ")" or values:
            if len(values) < few:
                values.append(parser.expression())
            else:
                names.append(parser.string("the name of a member in quotes"))
            if parser.peek() != ",":
                break
            parser.take()
        parser.expect(")", opened=opened)
        return values, tuple(dict.fromkeys(names))

    def _filter_function(self, function: FilterFunction, first: Token, opened: Token) -> Expression:
        kind = function.kind
        if isinstance(kind, PatternFunction):
            return self._pattern(function, kind, first, opened)
        arguments = self._arguments(opened)
        self._count(first, function.usage, function.least, function.most, len(arguments))
        match kind:
            case TestFunction():
                return tree.TypeTest(kind, arguments[0])
            case NumberFunction():
                return tree.NumberCall(kind, arguments[0])
            case TextFunction():
                return tree.TextCall(kind, arguments[0])
            case _ if function.name == "size":
                return tree.SizeOf(arguments[0])
            case _:
                return tree.Equal(arguments[0], tuple(arguments[1:]))

    def _pattern(self, function: FilterFunction, kind: PatternFunction, first: Token, opened: Token) -> Expression:
        parser = self._parser
        if parser.peek() == ")":
            self._count(first, function.usage, function.least, None, 0)
        subject = parser.expression()
        patterns: list[str] = []
        while parser.peek() == ",":
            parser.take()
            token = parser.take()
            if token.kind != Kind.STRING:
                raise parser.error(PolicyCode.TYPE, f"{function.usage} wants a string literal as pattern", token)
            patterns.append(parser.string_value(token))
        parser.expect(")", opened=opened)
        self._count(first, function.usage, function.least, None, 1 + len(patterns))
        return tree.PatternCall(kind, subject, tuple(patterns))

    def _arguments(self, opened: Token) -> list[Expression]:
        parser = self._parser
        arguments: list[Expression] = []
        while parser.peek() != ")" or arguments:
            arguments.append(parser.expression())
            if parser.peek() != ",":
                break
            parser.take()
        parser.expect(")", opened=opened)
        return arguments

    def _count(self, first: Token, usage: str, least: int, most: int | None, found: int) -> None:
        if least <= found and (most is None or found <= most):
            return
        wanted = f"at least {least}" if most is None else f"{least}" if least == most else f"{least} to {most}"
        reason = f"{usage} wants {wanted} argument{'' if wanted == '1' else 's'}, found {found}"
        raise self._parser.error(PolicyCode.ARGUMENTS, reason, first)
