"""Shapes: parse a million filters in seconds.

Applications make filters from templates: the same words in the same order, with other names and constants. The kinds of
a text's tokens are its *shape*. The first text of a shape goes through the parser and the static check. Its tree is
turned into a builder; every later text of that shape is only split into tokens and built.
Rule: a shape is cached only if nothing in it depends on the constants: no constant subterm (folding could make the
filter trivial) and no pattern that RE2 compiles. Ranges of literals are checked each time.
Rule: two texts of one shape differ only in names and constants. A function's name is part of the shape, wherever it
stands: it may also name an attribute.
Rule: a text that a builder cannot handle goes to the parser, which also words the error. Both give the same tree (shown
by a property test). All caches are bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias, TypeVar

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
    walk,
)
from whimbrel.language.functions import FUNCTIONS
from whimbrel.language.parser import Parser
from whimbrel.language.tokens import Kind, TokenError, kind_of, literal, name, tokenize

__all__ = ["ShapeCache", "Template"]

_MAX_TEXT = 2_048  # longer texts are rarely templates
_MAX_SHAPES = 4_096
_MAX_SIGHTED = 65_536
_MAX_WORDS = 65_536
_MAX_WORD = 64

_T = TypeVar("_T")
_Build: TypeAlias = Callable[[list[str]], _T]
_COMPILED = frozenset((PatternFunction.REGEX, PatternFunction.WILDCARD))


class _Memo(dict[str, _T]):
    """Bounded cache of a pure function of one token; a cached result is read as fast as a key of a dictionary."""

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


class Template:
    """The first text of a shape: its tree, and the token positions of its names and constants."""

    def __init__(self, parser: Parser, tree: Predicate) -> None:
        self.tree = tree
        self._kinds = parser.kinds
        self._spans = {id(node): parser.spans[id(node)] for node in walk(tree)}
        self.build = _Translator(self).predicate(tree)
        """Function that builds the tree of another text of this shape from its tokens."""

    def place(self, node: Node) -> int:
        """Return the index, among the tokens, of a name or of a literal without its sign."""
        return self._spans[id(node)][1]

    def is_negative(self, node: Literal) -> bool:
        """Return whether a literal has a minus sign."""
        first, last = self._spans[id(node)]
        return first != last

    def kind(self, place: int) -> str:
        """Return the kind of the token with the index *place*."""
        return self._kinds[place]

    def pattern_places(self, node: Pattern) -> tuple[int, ...]:
        """Return the indexes of the tokens that are a call's patterns: the only strings after the call's subject."""
        start, end = self._spans[id(node.subject)][1] + 1, self._spans[id(node)][1]
        return tuple(at for at in range(start, end) if self._kinds[at] == Kind.STRING)


class ShapeCache:
    """Cache of templates (parsed first texts) by shape; a shape is a filter's text without its names and constants."""

    def __init__(self) -> None:
        self._templates: dict[tuple[str, ...], Template] = {}
        self._sighted: set[int] = set()
        """Hashes of shapes seen once: a template costs as much as parsing, and most shapes never come a second time."""

    def build(self, text: str) -> Predicate | None:
        """Return the tree of *text* if its shape has a template and its constants are in range, else None."""
        known = self.recognise(text)
        if known is None:
            return None
        template, tokens = known
        try:
            return template.build(tokens)
        except (TokenError, RecursionError):  # the caller may be deep in its stack
            return None

    def recognise(self, text: str) -> tuple[Template, list[str]] | None:
        """Return the template of *text* and its tokens, if its shape has a template; constants are not checked."""
        if len(text) > _MAX_TEXT or not (text.isascii() or _is_unicode(text)):
            return None
        tokens = tokenize(text)
        try:
            template = self._templates.get(tuple(map(_kinds.__getitem__, tokens)))
        except TokenError:
            return None
        return None if template is None else (template, tokens)

    def learn(self, parser: Parser, tree: Predicate) -> None:
        """Record the shape of a text parsed to *tree*; from its second occurrence on, keep a template if possible."""
        with suppress(RecursionError):  # the caller may be deep in its stack; a later text can make the template
            self._learn(parser, tree)

    def _learn(self, parser: Parser, tree: Predicate) -> None:
        if len(parser.text) > _MAX_TEXT or len(self._templates) >= _MAX_SHAPES:
            return
        shape = tuple(map(_kinds.__getitem__, parser.tokens))
        sighting = hash(shape)  # a hash collision costs one needless template
        if sighting not in self._sighted:
            if len(self._sighted) >= _MAX_SIGHTED:
                self._sighted.clear()
            self._sighted.add(sighting)
        elif _is_free_of_constants(tree):
            self._templates[shape] = Template(parser, tree)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_free_of_constants(tree: Node) -> bool:
    """Return whether a shape can be cached: no subterm is constant, so that none is folded, and none needs RE2."""
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
    """Turns the tree of a template into a function that builds such a tree from the tokens of another filter."""

    def __init__(self, template: Template) -> None:
        self._template = template

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
                at = self._template.place(attribute)
                return lambda tokens: Test(function, _names[tokens[at]])
            case _:
                raise AssertionError(f"no such node: {node!r}")

    def value(self, node: Value) -> _Build[Value]:
        match node:
            case Name():
                at = self._template.place(node)
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
                at = self._template.place(attribute)
                return lambda tokens: Size(_names[tokens[at]])
            case Convert(conversion, attribute):
                at = self._template.place(attribute)
                return lambda tokens: Convert(conversion, _names[tokens[at]])
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
            at, place = self._template.place(node.left), self._template.place(node.right)
            if not self._template.is_negative(
                node.right
            ):  # by far the most common leaf: a name, an operator, an unsigned constant
                return lambda tokens: Compare(op, _names[tokens[at]], _literals[tokens[place]])
        left, right = self.value(node.left), self.value(node.right)
        return lambda tokens: Compare(op, left(tokens), right(tokens))

    def _literal(self, node: Literal) -> _Build[Value]:
        place = self._template.place(node)
        if not self._template.is_negative(node):
            return lambda tokens: _literals[tokens[place]]
        kind = self._template.kind(place)
        return lambda tokens: literal(tokens[place], kind, negative=True)

    def _pattern(self, node: Pattern) -> _Build[Predicate]:
        function, subject = node.function, self.value(node.subject)
        places = self._template.pattern_places(node)
        return lambda tokens: Pattern(function, subject(tokens), tuple(_text(tokens[at]) for at in places))


def _text(token: str) -> str:
    value = _literals[token].value
    assert isinstance(value, str)
    return value
