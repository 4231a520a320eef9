"""Parser of filters, from text to tree: a Pratt parser over the tokens of one filter.

Rule: a finished tree is well formed: predicates where predicates belong, names and string literals where functions need
them. The types of operands are tested by ``check``.
Rule: the parser counts tokens; their positions in the text are computed only for an error.
Rule: operators bind as ``precedence`` defines.
"""

from __future__ import annotations

from collections.abc import Mapping

from whimbrel.errors import FilterError
from whimbrel.language.ast import (
    And,
    Binary,
    Compare,
    Convert,
    Equals,
    Literal,
    Name,
    Node,
    Not,
    NumberFunction,
    Or,
    Pattern,
    PatternFunction,
    Predicate,
    Size,
    Test,
    TestFunction,
    Text,
    TextFunction,
    Unary,
    UnaryOp,
    Value,
    Xor,
)
from whimbrel.language.codes import ErrorCode
from whimbrel.language.functions import FUNCTIONS, Function
from whimbrel.language.precedence import ARITHMETIC, COMPARISONS, NOT, POWERS, SIGNS, SUM, UNARY
from whimbrel.language.tokens import Kind, TokenError, check_text, kind_of, literal, locate, name, tokenize

__all__ = ["MAX_DEPTH", "MAX_HEIGHT", "MAX_TEXT", "Parser"]

MAX_TEXT = 65_536
"""Most characters of a filter text."""
MAX_HEIGHT = 64
"""Most levels of a tree; a chain of && || ^^ counts once."""
MAX_DEPTH = 2 * MAX_HEIGHT + 2
"""Most nested calls of the parser: a text needs at most two for each level of its tree, operator and parenthesis."""

_LOGICAL: Mapping[str, type[And | Or | Xor]] = {"||": Or, "^^": Xor, "&&": And}
_END = ""
_HINTS = {
    "and": "; write && for and",
    "or": "; write || for or",
    "not": "; write ! for not",
    ",": "; a real is written with a point, as in 38.5",
}


def _argument_count(arguments: int) -> str:
    return f"{arguments} argument{'' if arguments == 1 else 's'}"


class Parser:
    """Parses one filter, once; afterwards ``tokens``, ``kinds`` and ``spans`` describe its text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        self.kinds: list[str] = []
        self.spans: dict[int, tuple[int, int]] = {}
        """First and last token of each node, by ``id(node)``; valid as long as the tree exists."""
        self._at = 0
        self._depth = 0
        self._height = 0  # height of the node parsed last
        self._first = 0  # first token of that node

    def parse(self) -> Predicate:
        """Return the tree of the text, or raise ``FilterError``."""
        self._read_tokens()
        tree = self._expression(0)
        if self._at < len(self.kinds):
            raise self._unexpected_error("an operator or the end")
        return self._predicate(tree, 0, len(self.kinds) - 1)

    def error(self, code: ErrorCode, reason: str, first: int, last: int | None = None) -> FilterError:
        """Return an error at the tokens *first* to *last*; a number beyond the last token means the end of the text."""
        places = locate(self.text)
        if first >= len(places):
            return FilterError(code, reason, self.text, len(self.text), len(self.text))
        return FilterError(code, reason, self.text, places[first][0], places[first if last is None else last][1])

    def _read_tokens(self) -> None:
        try:
            check_text(self.text, "filter", MAX_TEXT)
        except TokenError as error:
            raise FilterError(error.code, error.reason, self.text, *error.span) from None
        self.tokens = tokenize(self.text)
        for index, token in enumerate(self.tokens):
            try:
                self.kinds.append(kind_of(token))
            except TokenError as error:
                last = len(self.tokens) - 1 if error.code is ErrorCode.UNTERMINATED else index
                raise self.error(error.code, error.reason, index, last) from None

    # -- expressions ---------------------------------------------------------------------------------------------

    def _expression(self, power: int) -> Node:
        """Parse an expression whose operators all bind at least as tightly as *power*."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._too_deep(self._at)
        left = self._prefix(power)
        first, height = self._first, self._height
        while True:
            operator = self._peek()
            binding = POWERS.get(operator)
            if binding is None or binding < power:
                break
            at = self._at
            if operator in _LOGICAL:
                left, height = self._logical(operator, binding, left, first, height)
            elif operator in COMPARISONS:
                left, height = self._comparison(operator, left, first, height)
            else:
                self._at += 1
                right = self._value(self._expression(binding + 1), self._first, self._at - 1)
                left = Binary(ARITHMETIC[operator], self._value(left, first, at - 1), right)
                height = max(height, self._height)
            height += 1
            if height > MAX_HEIGHT:
                raise self._too_deep(at)
            self._built(left, first)
        self._first, self._height = first, height
        self._depth -= 1
        return left

    def _logical(self, operator: str, binding: int, left: Node, first: int, height: int) -> tuple[Node, int]:
        operands = [self._predicate(left, first, self._at - 1)]
        while self._peek() == operator:
            self._at += 1
            right = self._expression(binding + 1)
            operands.append(self._predicate(right, self._first, self._at - 1))
            height = max(height, self._height)
        return _LOGICAL[operator](tuple(operands)), height

    def _comparison(self, operator: str, left: Node, first: int, height: int) -> tuple[Node, int]:
        at = self._at
        self._at += 1
        right = self._value(self._expression(SUM), self._first, self._at - 1)
        compare = Compare(COMPARISONS[operator], self._value(left, first, at - 1), right)
        if self._peek() in COMPARISONS:
            raise self.error(ErrorCode.PARSE, "comparisons do not chain; join two with &&", self._at)
        return compare, max(height, self._height)

    def _prefix(self, power: int) -> Node:
        """Parse a term: a literal, name, call, parenthesis, or a prefix operator with its operand."""
        first = self._at
        token = self._peek()
        if token == "!":
            node: Node = self._negation(power)
        elif token in SIGNS:
            node = self._sign(token)
        elif token == "(":
            self._at += 1
            node = self._expression(0)
            self._expect(")", opened=first)
            self._first = first
            return node
        elif token in Kind.LITERALS:
            node = self._literal(first, negative=False)
        elif token == Kind.NAME:
            node = self._name_or_call()
        else:
            raise self._unexpected_error("a name, a literal, a function or '('")
        self._first = first
        self._built(node, first)
        return node

    def _negation(self, power: int) -> Not:
        first = self._at
        if power > NOT:
            raise self.error(ErrorCode.PARSE, "! covers a whole comparison; put it in parentheses here", first)
        self._at += 1
        operand = self._expression(NOT)
        self._grow(first)
        return Not(self._predicate(operand, first + 1, self._at - 1))

    def _sign(self, token: str) -> Value:
        first = self._at
        self._at += 1
        if token == UnaryOp.NEGATE and self._peek() in Kind.LITERALS - {Kind.STRING}:
            # -2147483648 is one literal: its digits alone would overflow.
            return self._literal(self._at, negative=True)
        operand = self._expression(UNARY)
        self._grow(first)
        return Unary(SIGNS[token], self._value(operand, first + 1, self._at - 1))

    def _literal(self, at: int, *, negative: bool) -> Literal:
        self._at = at + 1
        self._height = 1
        try:
            return literal(self.tokens[at], self.kinds[at], negative=negative)
        except TokenError as error:
            raise self.error(error.code, error.reason, at - negative, at) from None

    # -- names and functions -------------------------------------------------------------------------------------

    def _name_or_call(self) -> Node:
        first = self._at
        self._at += 1
        self._height = 1
        if self._peek() != "(":
            return name(self.tokens[first])
        function = FUNCTIONS.get(self.tokens[first])
        if function is None:
            allowed = ", ".join(FUNCTIONS)
            reason = f"there is no function {self.tokens[first][:40]}; there are {allowed}"
            raise self.error(ErrorCode.FUNCTION, reason, first)
        return self._call(function, first)

    def _call(self, function: Function, first: int) -> Node:
        arguments, spans, height = self._arguments(first + 1)
        wanted = (
            f"{function.usage} wants {'at least ' if function.most is None else ''}{_argument_count(function.least)}"
        )
        if len(arguments) < function.least:
            raise self.error(ErrorCode.TOO_FEW, f"{wanted}, found {len(arguments)}", first, self._at - 1)
        if function.most is not None and len(arguments) > function.most:
            last = spans[-1][1]
            raise self.error(ErrorCode.TOO_MANY, f"{wanted}, found {len(arguments)}", spans[function.most][0], last)
        self._height = height
        self._grow(first)
        values = [self._value(argument, *span) for argument, span in zip(arguments, spans, strict=True)]
        match function.kind:
            case TestFunction() as kind:
                return Test(kind, self._must_be_name(values[0], function, spans[0]))
            case TextFunction() as kind:
                return Text(kind, self._must_be_text(values[0], function, spans[0]))
            case PatternFunction() as kind:
                subject = self._must_be_text(values[0], function, spans[0])
                patterns = zip(values[1:], spans[1:], strict=True)
                return Pattern(kind, subject, tuple(self._must_be_pattern(v, function, s) for v, s in patterns))
            case NumberFunction() as kind:
                return Convert(kind, self._must_be_name(values[0], function, spans[0]))
            case None if function.name == "size":
                return Size(self._must_be_name(values[0], function, spans[0]))
            case None:
                return Equals(values[0], tuple(values[1:]))

    def _arguments(self, opened: int) -> tuple[list[Node], list[tuple[int, int]], int]:
        self._at = opened + 1
        arguments: list[Node] = []
        spans: list[tuple[int, int]] = []
        height = 0
        while self._peek() != ")" or arguments:
            arguments.append(self._expression(0))
            spans.append((self._first, self._at - 1))
            height = max(height, self._height)
            if self._peek() != ",":
                break
            self._at += 1
        self._expect(")", opened=opened)
        return arguments, spans, height

    def _must_be_name(self, node: Value, function: Function, span: tuple[int, int]) -> Name:
        if isinstance(node, Name):
            return node
        raise self.error(ErrorCode.TYPE, f"{function.usage} wants the name of an attribute here", *span)

    def _must_be_text(self, node: Value, function: Function, span: tuple[int, int]) -> Value:
        if isinstance(node, Name | Text) or (isinstance(node, Literal) and isinstance(node.value, str)):
            return node
        reason = f"{function.usage} wants a name, a string or a string function here"
        raise self.error(ErrorCode.TYPE, reason, *span)

    def _must_be_pattern(self, node: Value, function: Function, span: tuple[int, int]) -> str:
        if isinstance(node, Literal) and isinstance(node.value, str):
            return node.value
        raise self.error(ErrorCode.TYPE, f"{function.usage} wants a string literal as pattern", *span)

    # -- the small tools -----------------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self.kinds[self._at] if self._at < len(self.kinds) else _END

    def _expect(self, kind: str, *, opened: int) -> None:
        if self._peek() == kind:
            self._at += 1
            return
        if self._peek() == _END:
            raise self.error(ErrorCode.PARSE, "this '(' is never closed", opened)
        raise self._unexpected_error("an operator or ')'")

    def _unexpected_error(self, allowed: str) -> FilterError:
        if self._at >= len(self.tokens):
            return self.error(ErrorCode.PARSE, f"found the end, expected {allowed}", self._at)
        found = self.tokens[self._at][:40]
        hint = _HINTS.get(found.lower(), "")
        return self.error(ErrorCode.PARSE, f"found '{found}', expected {allowed}{hint}", self._at)

    def _grow(self, at: int) -> None:
        """Count one more level for the expression that starts at token *at*; raise an error if it nests too deep."""
        self._height += 1
        if self._height > MAX_HEIGHT:
            raise self._too_deep(at)

    def _too_deep(self, at: int) -> FilterError:
        reason = f"nested too deeply; the tree may have {MAX_HEIGHT} levels, the text fewer than {MAX_DEPTH}"
        return self.error(ErrorCode.NESTING, reason, at)

    def _predicate(self, node: Node, first: int, last: int) -> Predicate:
        if isinstance(node, Predicate):
            return node
        hint = f"; to ask whether it is there, write require({node.name})" if isinstance(node, Name) else ""
        raise self.error(ErrorCode.TYPE, f"a comparison or a test is wanted here, not a value{hint}", first, last)

    def _value(self, node: Node, first: int, last: int) -> Value:
        if isinstance(node, Value):
            return node
        raise self.error(ErrorCode.TYPE, "a value is wanted here, not a comparison or a test", first, last)

    def _built(self, node: Node, first: int) -> None:
        self.spans[id(node)] = (first, self._at - 1)
