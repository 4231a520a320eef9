"""Parser of policies, from text to tree: a Pratt parser for expressions, and recursive descent for statements.

Rule: one grammar for two spellings. Figure 4 of the paper is read as it is printed: its first line ``arrived(…) :-``,
line numbers, type words, accessors and ``endif``. Our own form has braces, ``m.pulse``, ``device.Battery`` and
``state.sent``.
Rule: errors that only the whole policy can show (names, kinds, recursion, cost) are found by ``check``.
Rule: operators bind as in filters (``precedence``); ``in`` binds like a comparison, and neither chains.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import TypeVar

from whimbrel.errors import PolicyError
from whimbrel.language.ast import CompareOp, UnaryOp
from whimbrel.language.policies import tree
from whimbrel.language.policies.codes import PolicyCode
from whimbrel.language.policies.operations import OPERATIONS, member_name, scope_of
from whimbrel.language.policies.reading.calls import Calls
from whimbrel.language.policies.reading.tokens import END, Token, policy_code, tokenize
from whimbrel.language.policies.tree import Expression, Statement
from whimbrel.language.precedence import ARITHMETIC, COMPARE, COMPARISONS, NOT, POWERS, SIGNS, SUM, UNARY
from whimbrel.language.tokens import Kind, TokenError, literal

__all__ = ["MAX_NESTING", "Parser", "finish"]

MAX_NESTING = 64
"""Most levels of blocks, and most levels of expressions."""

_LOGICAL: Mapping[str, type[tree.AllOf | tree.AnyOf | tree.OddOf]] = {
    "||": tree.AnyOf,
    "^^": tree.OddOf,
    "&&": tree.AllOf,
}
_POWERS: Mapping[str, int] = {**POWERS, "in": COMPARE}
_TYPES = frozenset({"Message", "auto", "bool", "double", "float", "int", "long", "string"})
_NULL = tree.Constant(None)
_PIECE = 20
"""Number of functions and statements that are parsed before other work may run."""
_Result = TypeVar("_Result")


def finish(pieces: Generator[None, None, _Result]) -> _Result:
    """Run the generator *pieces* to its end, without other work between its parts; return its result."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            result: _Result = done.value
            return result


class Parser:
    """Parses one policy, once; afterwards ``spans`` has the position of each node in the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.spans: dict[int, tuple[int, int]] = {}
        """First character and end of each node, by ``id(node)``; valid as long as the tree exists."""
        self.functions: dict[str, tuple[int, int]] = {}
        """Position of each of the policy's own functions."""
        self.sites = 0
        self._tokens: list[Token] = []
        self._heights: dict[int, int] = {}
        self._keep: list[object] = []  # nodes, so that no id is reused
        self._at = 0
        self._depth = 0
        self._message, self._state = "m", ""
        self._calls = Calls(self)

    def parse(self) -> tree.Program:
        """Return the tree of the text, or raise ``PolicyError``."""
        return finish(self.parsing())

    def parsing(self) -> Generator[None, None, tree.Program]:
        """Parse as ``parse`` does, but yield after every few statements so that other work can run."""
        self._tokens = tokenize(self.text)
        yield
        for here, after in zip(self._tokens, self._tokens[1:], strict=False):
            if here.kind == "function" and after.kind == Kind.NAME:
                self._define(after)
        is_printed = self._head()
        self._skip_label()
        sends = self._calls.declaration()
        functions: list[tree.Function] = []
        body: list[Statement] = []
        while self._skip_label() != END:
            if self.peek() == "function":
                functions.append(self._function())
            else:
                body += self._statement()
            if (len(functions) + len(body)) % _PIECE == 0:
                yield
        made = tree.Program(message=self._message, body=tuple(body), functions=tuple(functions), is_printed=is_printed)
        return replace(made, sends_when_suspended=True) if sends else made

    # -- the head, functions and blocks ------------------------------------------------------------------------------

    def _define(self, name: Token) -> None:
        if name.text in self.functions or name.text in OPERATIONS or self.is_reserved(name.text):
            reason = f"{name.text} is a function already; functions have names of their own"
            raise self.error(PolicyCode.NAME, reason, name)
        self.functions[name.text] = (name.start, name.end)

    def _head(self) -> bool:
        """Read ``arrived(Message m, State s) :-``; return whether the text begins with it."""
        if [token.text for token in self._tokens[:3]] != ["arrived", "(", "Message"]:
            return False
        self._at = 3
        self._message = self.name("the name of the message").text
        self.expect(",")
        if self.name("the word State").text != "State":
            raise self.unexpected_error("the word State", back=1)
        self._state = self.name("the name of the state").text
        self.expect(")")
        self.expect(":-")
        return True

    def _function(self) -> tree.Function:
        first = self.take()
        name = self.name("the name of the function")
        self.expect("(")
        parameters: list[str] = []
        while self.peek() != ")":
            parameter = self._new_name("the name of a parameter")
            if parameter.text in parameters:
                raise self.error(PolicyCode.NAME, f"the parameter {parameter.text} stands here twice", parameter)
            parameters.append(parameter.text)
            if self.peek() != ",":
                break
            self.take()
        self.expect(")")
        made = tree.Function(name=name.text, parameters=tuple(parameters), body=self._braces())
        self.place(made, first.start)
        return made

    def _braces(self) -> tree.Block:
        opened = self.expect("{")
        statements: list[Statement] = []
        while self._skip_label() != "}":
            if self.peek() == END:
                raise self.error(PolicyCode.PARSE, "this '{' is never closed", opened)
            statements += self._statement()
        self.take()
        return tuple(statements)

    def _skip_label(self) -> str:
        """Skip a line number such as ``25.``; return the kind of the next token."""
        if self.peek() == Kind.INTEGER and self._tokens[self._at + 1].kind == "." and self._token().text.isdigit():
            self._at += 2
        return self.peek()

    # -- statements --------------------------------------------------------------------------------------------------

    def _statement(self) -> tuple[Statement, ...]:
        """Parse one statement; return an empty tuple for a lone semicolon."""
        self._deeper()
        first = self._token()
        match first.kind:
            case ";":
                self.take()
                self._depth -= 1
                return ()
            case "if":
                made: Statement = self._if()
            case "return":
                self.take()
                made = tree.Return(tree.Constant(None) if self.peek() == ";" else self.expression())
                self._end(made)
            case Kind.NAME:
                made = self._assignment() or self._evaluation()
                self._end(made)
            case _:
                raise self.unexpected_error("a statement")
        self.place(made, first.start)
        self._depth -= 1
        return (made,)

    def _end(self, made: Statement) -> None:
        if self.peek() != ";":
            wanted = "an operator or ';'" if not isinstance(made, tree.RemoveProperty) else "';'"
            raise self.unexpected_error(wanted)
        self.take()

    def _if(self) -> tree.If:
        opened = self.take()
        condition = self.expression()
        if self.peek() == "{":
            then = self._braces()
            otherwise: tree.Block = ()
            if self._skip_label() == "else":
                self.take()
                otherwise = self._statement() if self.peek() == "if" else self._braces()
            return tree.If(condition, then, otherwise)
        then = self._until(opened, {"else", "endif"})
        otherwise = ()
        if self.take().kind == "else":
            otherwise = self._until(opened, {"endif"})
            self.take()
        if self.peek() == ";":
            self.take()
        return tree.If(condition, then, otherwise)

    def _until(self, opened: Token, ends: set[str]) -> tree.Block:
        statements: list[Statement] = []
        while self._skip_label() not in ends:
            if self.peek() == END:
                raise self.error(PolicyCode.PARSE, "this 'if' has no endif; or put its block in braces", opened)
            statements += self._statement()
        return tuple(statements)

    def _assignment(self) -> Statement | None:
        """Parse an assignment or a setter; return None for anything else.

        These are ``name = …``, ``m.name = …``, ``state.name = …`` and ``m.setName(…)``. A type may precede the first
        name, and ``['any text']`` may replace ``.name``. Raise ``PolicyError`` for ``device.name = …`` and for names
        that are reserved.
        """
        begin, first = self._at, self.take()
        if first.text in _TYPES and self.peek() == Kind.NAME:
            first = self.take()
        is_dotted = self.peek() in {".", "["}
        path = self._path()
        if self.peek() == "=" and (path is None) == (not is_dotted):
            self.take()
            return self._assign(first, path, self.expression())
        if path is not None and self.peek() == "(":
            name = member_name(path, "set")
            if name is not None and first.text != self._state:
                return self._setter(first, name, path)
        self._at = begin
        return None

    def _assign(self, first: Token, path: str | None, value: Expression) -> Statement:
        scope = scope_of(first.text)
        if path is None:
            self._must_be_free(first)
            return tree.Assign(first.text, value)
        if scope is tree.Scope.DEVICE:
            reason = f"device.{path} is an automatic variable; a policy sets those of state alone"
            raise self.error(PolicyCode.READ_ONLY, reason, first)
        if scope is not None:
            return tree.SetProperty(scope, path, value)
        return tree.SetAttribute(first.text, path, value)

    def _setter(self, first: Token, name: str, path: str) -> Statement:
        self._must_be_free(first)
        self.expect("(")
        value = self.expression()
        self.expect(")")
        return tree.SetData(first.text, value) if path == "setData" else tree.SetAttribute(first.text, name, value)

    def _evaluation(self) -> Statement:
        """Parse a call as a statement: of an operation such as ``setProperty(…)``, or of the policy's own functions."""
        first = self._token()
        if first.text == self._state:
            self.take()
            self.expect(".")
        statement = self._calls.statement()
        if statement is not None:
            return statement
        value = self.expression()
        if not isinstance(value, tree.Call | tree.Summarise):
            reason = "a value that is not used; a statement assigns, calls, tests or returns"
            raise self.error(PolicyCode.PARSE, reason, first)
        return tree.Evaluate(value)

    # -- expressions -------------------------------------------------------------------------------------------------

    def expression(self, power: int = 0) -> Expression:
        """Parse an expression whose operators all bind at least as tightly as *power*."""
        self._deeper()
        start = self._token().start
        left = self._prefix(power)
        while True:
            operator = self.peek()
            binding = _POWERS.get(operator)
            if binding is None or binding < power:
                break
            if operator in _LOGICAL:
                operands = [left]
                while self.peek() == operator:
                    self.take()
                    operands.append(self.expression(binding + 1))
                left = _LOGICAL[operator](tuple(operands))
            elif binding == COMPARE:
                left = self._comparison(left)
            else:
                self.take()
                left = tree.Arithmetic(ARITHMETIC[operator], left, self.expression(binding + 1))
            self.place(left, start)
        self._depth -= 1
        return left

    def _comparison(self, left: Expression) -> Expression:
        operator = self.take()
        if operator.kind == "in":
            made: Expression = self._membership(left)
        else:
            made = self._compare(operator, left, self.expression(SUM))
        if _POWERS.get(self.peek()) == COMPARE:
            raise self.error(PolicyCode.PARSE, "comparisons do not chain; join two with 'and'", self._token())
        return made

    def _compare(self, operator: Token, left: Expression, right: Expression) -> Expression:
        op = COMPARISONS[operator.kind]
        if _NULL not in (left, right):
            return tree.Comparison(op, left, right)
        if op not in {CompareOp.EQ, CompareOp.NE}:
            raise self.error(PolicyCode.TYPE, "NULL has no order; compare it with == or !=", operator)
        null: Expression = tree.IsNull(left if right == _NULL else right)
        if op is CompareOp.EQ:
            return null
        self.place(null, operator.start)
        return tree.Inverse(null)

    def _membership(self, item: Expression) -> tree.Member:
        word = self.name("a set: device.name or state.name")
        scope, path = scope_of(word.text), self._path()
        if scope is None or path is None:
            raise self.error(PolicyCode.TYPE, "a set is device.name or state.name", word)
        return tree.Member(scope, path, item)

    def _prefix(self, power: int) -> Expression:
        first = self._token()
        made: Expression
        if first.kind == "!":
            if power > NOT:
                raise self.error(PolicyCode.PARSE, "not covers a whole comparison; put it in parentheses here", first)
            self.take()
            made = tree.Inverse(self.expression(NOT))
        elif first.kind in SIGNS:
            self.take()
            made = self._sign(first)
        elif first.kind == "(":
            self.take()
            made = self.expression()
            self.expect(")", opened=first)
            return made
        elif first.kind in Kind.LITERALS:
            made = self._literal(negative=False)
        elif first.kind == "NULL":
            self.take()
            made = tree.Constant(None)
        elif first.kind == Kind.NAME:
            made = self._name_term()
        else:
            raise self.unexpected_error("a name, a literal, a call or '('")
        self.place(made, first.start)
        return made

    def _sign(self, sign: Token) -> Expression:
        if sign.kind == UnaryOp.NEGATE and self.peek() in Kind.LITERALS - {Kind.STRING}:
            return self._literal(negative=True)  # -2147483648 is one literal: its digits alone would overflow
        return tree.Sign(SIGNS[sign.kind], self.expression(UNARY))

    def _literal(self, *, negative: bool) -> tree.Constant:
        token = self.take()
        try:
            return tree.Constant(literal(token.text, token.kind, negative=negative).value)
        except TokenError as error:
            raise self.error(policy_code(error), error.reason, token) from None

    def _name_term(self) -> Expression:
        """Parse a term that begins with a name: a local, attribute, variable, call, or an accessor of the paper."""
        first = self._token()
        if self._tokens[self._at + 1].kind == "(":
            return self._calls.expression()
        self.take()
        if first.text == self._state:
            self.expect(".")
            return self._calls.expression()
        scope, path = scope_of(first.text), self._path()
        if scope is not None:
            if path is None:
                raise self.unexpected_error(f"a dot and the name of a variable behind {first.text}")
            return tree.Property(scope, path)
        local = tree.Local(first.text)
        self.place(local, first.start)
        if path is None:
            return local
        if self.peek() != "(":
            return tree.Attribute(local, path)
        name = member_name(path, "get")
        if name is None:
            reason = f"a message has no operation {path[:40]}; read an attribute with getName() or {first.text}.name"
            raise self.error(PolicyCode.FUNCTION, reason, first)
        self.take()
        self.expect(")")
        return tree.DataOf(local) if path == "getData" else tree.Attribute(local, name)

    def _path(self) -> str | None:
        """Parse ``.a.b`` or ``['any text']`` after a name; return None if there is neither."""
        if self.peek() == "[":
            opened = self.take()
            name = self.string("the name in quotes")
            self.expect("]", opened=opened)
            return name
        parts: list[str] = []
        while self.peek() == ".":
            self.take()
            if not self._token().text[:1].isidentifier():
                raise self.unexpected_error("a name behind the dot")
            parts.append(self.take().text)
        return ".".join(parts) if parts else None

    # -- the small tools, which ``calls`` uses too --------------------------------------------------------------------

    def _token(self) -> Token:
        return self._tokens[self._at]

    def peek(self) -> str:
        """Return the kind of the next token."""
        return self._tokens[self._at].kind

    def take(self) -> Token:
        """Return the next token and advance; the end token is never passed."""
        token = self._tokens[self._at]
        self._at += token.kind != END
        return token

    def expect(self, kind: str, *, opened: Token | None = None) -> Token:
        """Consume a token of *kind*, or raise an error that names the token found instead."""
        if self.peek() == kind:
            return self.take()
        if opened is not None and self.peek() == END:
            raise self.error(PolicyCode.PARSE, f"this '{opened.text}' is never closed", opened)
        raise self.unexpected_error(f"'{kind}'" if kind != ")" else "an operator, ',' or ')'")

    def name(self, wanted: str) -> Token:
        """Consume a name and return it."""
        if self.peek() != Kind.NAME:
            raise self.unexpected_error(wanted)
        return self.take()

    def string(self, wanted: str) -> str:
        """Consume a string that is not empty; return its value."""
        if self.peek() != Kind.STRING:
            raise self.unexpected_error(wanted)
        token = self.take()
        value = self.string_value(token)
        if not value or value[0] == "\0" or len(value.encode()) > 1_024:
            raise self.error(PolicyCode.NAME, "a name has 1 to 1024 bytes, the first not U+0000", token)
        return value

    def text_ahead(self) -> str:
        """Return the text of the next token."""
        return self._tokens[self._at].text

    def string_value(self, token: Token) -> str:
        """Return the value of the string *token*."""
        return str(literal(token.text, token.kind).value)

    def is_reserved(self, word: str) -> bool:
        """Return whether *word* is reserved and cannot name a local."""
        return scope_of(word) is not None or word == self._state

    def _new_name(self, wanted: str) -> Token:
        token = self.name(wanted)
        self._must_be_free(token)
        return token

    def _must_be_free(self, token: Token) -> None:
        if self.is_reserved(token.text):
            raise self.error(PolicyCode.NAME, f"{token.text} is reserved for variables; take another name", token)

    def place(self, node: object, start: int) -> None:
        """Record the position of *node*, which was parsed just now, and how many levels of expressions it has."""
        self._keep.append(node)
        self.spans.setdefault(id(node), (start, self._tokens[max(self._at - 1, 0)].end))
        if isinstance(node, Expression):
            height = 1 + max((self._heights.get(id(each), 1) for each in tree.children(node)), default=0)
            self._heights[id(node)] = height
            if height > MAX_NESTING:
                raise self._too_deep()

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > 2 * MAX_NESTING:
            raise self._too_deep()

    def _too_deep(self) -> PolicyError:
        reason = f"nested too deeply; blocks and expressions may have {MAX_NESTING} levels"
        return self.error(PolicyCode.NESTING, reason, self._token())

    def unexpected_error(self, allowed: str, *, back: int = 0) -> PolicyError:
        """Return the error for a next token other than *allowed*."""
        token = self._tokens[self._at - back]
        found = "the end" if token.kind == END else f"'{token.text[:40]}'"
        hint = "; to compare, write ==" if token.kind == "=" else ""
        return self.error(PolicyCode.PARSE, f"found {found}, expected {allowed}{hint}", token)

    def error(self, code: PolicyCode, reason: str, token: Token) -> PolicyError:
        """Return an error at *token*."""
        return PolicyError(code, reason, self.text, token.start, token.end)
