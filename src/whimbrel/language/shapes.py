"""Shapes: how a million filters are parsed in seconds.

Applications make filters from templates: the same words in the same order, other names and constants. The kinds of
a text's tokens are its *shape*. The first text of a shape goes through the parser and the static check; from the tree a
builder is made, and every later text of that shape is only cut into tokens and built.

Rule: a shape is kept only if nothing in it depends on the constants: no constant subterm (folding could make the
filter trivial) and no pattern to compile. Ranges of literals are checked each time.
Rule: whatever the fast way cannot do, it declines; the parser then decides and words the error. Both give the same
tree (a property test). All caches are bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from whimbrel.language.ast import (
    And,
    Binary,
    Compare,
    Equals,
    Literal,
    Name,
    Node,
    Not,
    Or,
    Pattern,
    PatternFunction,
    Predicate,
    Size,
    Test,
    Text,
    Unary,
    Value,
    Xor,
    children,
)
from whimbrel.language.functions import FUNCTIONS
from whimbrel.language.parser import Parser
from whimbrel.language.tokens import Kind, TokenError, kind_of, literal, name, tokenize

__all__ = ["ShapeCache"]

_MAX_TEXT = 2_048  # longer texts are rarely templates
_MAX_SHAPES = 4_096
_MAX_WORDS = 65_536
_MAX_WORD = 64

_T = TypeVar("_T")
_Build: TypeAlias = Callable[[list[str]], _T]
_COMPILED = frozenset((PatternFunction.REGEX, PatternFunction.WILDCARD))


class _Memo(dict[str, _T]):
    """Token to what it means; a bounded memory of a pure function, read at the speed of a dictionary."""

    def __init__(self, compute: Callable[[str], _T]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, token: str) -> _T:
        result = self._compute(token)
        if len(self) < _MAX_WORDS and len(token) <= _MAX_WORD:
            self[token] = result
        return result


def _shape_kind(token: str) -> str:
    return token if token in FUNCTIONS else kind_of(token)


_kinds = _Memo(_shape_kind)
_names = _Memo(name)
_literals = _Memo(lambda token: literal(token, kind_of(token)))


class ShapeCache:
    """Builders by shape."""

    def __init__(self) -> None:
        self._builders: dict[tuple[str, ...], _Build[Predicate]] = {}

    def build(self, text: str) -> Predicate | None:
        """Return the tree of *text* if its shape is known and its constants are in range, else None."""
        if len(text) > _MAX_TEXT or not (text.isascii() or _is_unicode(text)):
            return None
        tokens = tokenize(text)
        try:
            build = self._builders.get(tuple(map(_kinds.__getitem__, tokens)))
            return None if build is None else build(tokens)
        except TokenError:
            return None

    def learn(self, parser: Parser, tree: Predicate) -> None:
        """Remember the shape of the text that *parser* turned into *tree*, if it can be kept."""
        if len(parser.text) <= _MAX_TEXT and len(self._builders) < _MAX_SHAPES and _is_free_of_constants(tree):
            shape = tuple(map(_kinds.__getitem__, parser.tokens))
            self._builders[shape] = _Translator(parser).predicate(tree)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_free_of_constants(tree: Node) -> bool:
    """Tell whether no subterm is constant (then folding changes nothing) and no pattern needs compiling."""
    match tree:
        case Pattern(function, Name() | Text() as subject, _):
            return function not in _COMPILED and _is_free_of_constants(subject)
        case Equals(Literal(), _) | Pattern():
            return False
        case Compare(_, Literal(), Literal()) | Binary(_, Literal(), Literal()):
            return False
        case Unary(_, Literal()) | Text(_, Literal()):
            return False
        case _:
            return all(map(_is_free_of_constants, children(tree)))


class _Translator:
    """Turns a tree into a function that builds the same tree from other tokens of the same shape."""

    def __init__(self, parser: Parser) -> None:
        self._spans = parser.spans
        self._kinds = parser.kinds

    def predicate(self, node: Predicate) -> _Build[Predicate]:
        match node:
            case And(operands) | Or(operands) | Xor(operands):
                return self._logical(type(node), operands)
            case Not(operand):
                inner = self.predicate(operand)
                return lambda tokens: Not(inner(tokens))
            case Compare():
                return self._compare(node)
            case Equals(subject, options):
                value, values = self.value(subject), tuple(map(self.value, options))
                return lambda tokens: Equals(value(tokens), tuple(option(tokens) for option in values))
            case Pattern():
                return self._pattern(node)
            case Test(function, attribute):
                at = self._spans[id(attribute)][0]
                return lambda tokens: Test(function, _names[tokens[at]])
            case _:
                raise AssertionError(f"no such node: {node!r}")

    def value(self, node: Value) -> _Build[Value]:
        match node:
            case Name():
                at = self._spans[id(node)][0]
                return lambda tokens: _names[tokens[at]]
            case Literal():
                return self._literal(node)
            case Unary(sign, operand):
                inner = self.value(operand)
                return lambda tokens: Unary(sign, inner(tokens))
            case Binary(op, left, right):
                first, second = self.value(left), self.value(right)
                return lambda tokens: Binary(op, first(tokens), second(tokens))
            case Size(attribute):
                at = self._spans[id(attribute)][0]
                return lambda tokens: Size(_names[tokens[at]])
            case Text(function, operand):
                inner = self.value(operand)
                return lambda tokens: Text(function, inner(tokens))
            case _:
                raise AssertionError(f"no such node: {node!r}")

    def _logical(self, kind: type[And | Or | Xor], operands: tuple[Predicate, ...]) -> _Build[Predicate]:
        inner = tuple(map(self.predicate, operands))
        return lambda tokens: kind(tuple([build(tokens) for build in inner]))

    def _compare(self, node: Compare) -> _Build[Predicate]:
        op = node.op
        if isinstance(node.left, Name) and isinstance(node.right, Literal):
            at, (sign, place) = self._spans[id(node.left)][0], self._spans[id(node.right)]
            if sign == place:  # by far the most common leaf: a name, an operator, an unsigned constant
                return lambda tokens: Compare(op, _names[tokens[at]], _literals[tokens[place]])
        left, right = self.value(node.left), self.value(node.right)
        return lambda tokens: Compare(op, left(tokens), right(tokens))

    def _literal(self, node: Literal) -> _Build[Value]:
        sign, place = self._spans[id(node)]
        if sign == place:
            return lambda tokens: _literals[tokens[place]]
        kind = self._kinds[place]
        return lambda tokens: literal(tokens[place], kind, negative=True)

    def _pattern(self, node: Pattern) -> _Build[Predicate]:
        function, subject = node.function, self.value(node.subject)
        # The patterns are the only strings of the call behind its subject.
        start, end = self._spans[id(node.subject)][1] + 1, self._spans[id(node)][1]
        places = tuple(at for at in range(start, end) if self._kinds[at] == Kind.STRING)
        return lambda tokens: Pattern(function, subject(tokens), tuple(_text(tokens[at]) for at in places))


def _text(token: str) -> str:
    value = _literals[token].value
    assert isinstance(value, str)
    return value
