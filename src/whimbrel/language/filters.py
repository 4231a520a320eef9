"""Filters: the language as its users meet it."""

from __future__ import annotations

from collections.abc import Mapping

from whimbrel.language.ast import Predicate, height
from whimbrel.language.backends.python import VerdictFunction, compile_filter
from whimbrel.language.budget import ADMITTED, STORED, PatternBounds, program
from whimbrel.language.check import StaticError, check
from whimbrel.language.codes import ErrorCode
from whimbrel.language.parser import MAX_HEIGHT, MAX_TEXT, Parser
from whimbrel.language.printer import print_filter
from whimbrel.language.rewrites import normal_form
from whimbrel.language.shapes import ShapeCache, Template
from whimbrel.model.attributes import Attributes, checked
from whimbrel.model.subscription import Subscription

__all__ = ["Filter", "can_be_read", "filter_of", "parse", "parse_stored", "recognise"]

_LEVELS = " (!~+-"
"""Characters of which every term but a leaf prints at least one: few of them, and the tree need not be walked."""
_shapes = ShapeCache()


def parse(text: str) -> Predicate:
    """Return the checked tree of *text*, or raise ``FilterError`` with its code and place."""
    return _read(text, ADMITTED)


def parse_stored(text: str) -> Predicate:
    """Return the tree of a *text* that was accepted once, maybe by a version that allowed costlier patterns.

    The indexes read filters so: whether one may come in is asked where it comes in, with ``parse``.
    """
    return _read(text, STORED)


def can_be_read(tree: Predicate, text: str) -> bool:
    """Return whether the parser accepts *text*, which is how *tree* is printed: it may be too long or too deep.

    For a tree that was joined from conditions that passed the static check. No parse is needed to know.
    """
    if len(text) > MAX_TEXT:
        return False
    return sum(map(text.count, _LEVELS)) < MAX_HEIGHT or height(tree) <= MAX_HEIGHT


def _read(text: str, bounds: PatternBounds) -> Predicate:
    known = _shapes.build(text)  # no shape has patterns that are compiled
    if known is not None:
        return known
    parser, tree = _parsed(text, bounds)
    _shapes.learn(parser, tree)
    return tree


def recognise(text: str) -> tuple[Template, list[str]] | None:
    """Return the template of *text*'s shape and its tokens if it has been parsed before and can be kept.

    For loading filters by the million: what the template says of the shape need not be found out again.
    """
    return _shapes.recognise(text)


def parse_without_shapes(text: str) -> Predicate:
    """Do what ``parse`` does the plain way: neither ask the cache of shapes nor add to it."""
    return _parsed(text)[1]


def _parsed(text: str, bounds: PatternBounds = ADMITTED) -> tuple[Parser, Predicate]:
    parser = Parser(text)
    try:
        tree = parser.parse()
        check(tree, bounds)
    except RecursionError:  # our bound is lower than Python's, unless the caller stands deep in a stack already
        raise parser.error(ErrorCode.NESTING, "nested too deeply for the stack it was read on", 0) from None
    except StaticError as error:
        raise parser.error(error.code, error.reason, *parser.spans[id(error.node)]) from None
    return parser, tree


class Filter:
    """A checked filter: its text, parsed once, and the tree and the verdict that are asked from then on.

    Two are equal if their texts are, and it is pickled as its text.

    >>> fever = Filter("temperature > 38.5 && begins-with(bed, 'ICU-')")
    >>> fever.matches({"temperature": 39.2, "bed": "ICU-4"})
    True
    """

    __slots__ = ("_verdict", "text", "tree")

    def __init__(self, text: str, *, is_stored: bool = False) -> None:
        """Read *text*; one that *is_stored* was accepted before, so today's bounds for patterns do not refuse it."""
        self.text = text
        self.tree = parse_stored(text) if is_stored else parse(text)
        self._verdict: VerdictFunction | None = None

    @property
    def verdict(self) -> VerdictFunction:
        """The function from attributes (already checked) to true, false, or None for undefined; compiled on demand."""
        if self._verdict is None:
            self._verdict = compile_filter(self.tree)
        return self._verdict

    @property
    def instructions(self) -> int:
        """How many instructions its regular expressions and wildcards have together."""
        return program(self.tree) if self._has_patterns else 0

    @property
    def refusal(self) -> str | None:
        """Why this version would not accept it as a new filter, or None; only patterns had other bounds before."""
        if self._has_patterns:
            try:
                check(self.tree, ADMITTED)
            except StaticError as error:
                return error.reason
        return None

    @property
    def _has_patterns(self) -> bool:
        return "regex" in self.text or "wildcard" in self.text

    def matches(self, values: Mapping[str, object] | Attributes) -> bool:
        """Tell whether *values* are selected: only a true verdict delivers."""
        return self.verdict(checked(values)) is True

    def normal(self) -> str:
        """Return the text of the normal form."""
        return print_filter(normal_form(self.tree))

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Filter) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[object, ...]:
        return _stored, (self.text,)

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"


def _stored(text: str) -> Filter:
    return Filter(text, is_stored=True)


def filter_of(subscription: Subscription) -> Filter | None:
    """Return the content filter of a subscription: the one that came with it, or else what its text says.

    Raise ``FilterError`` for a text that cannot be read.
    """
    if isinstance(subscription.parsed, Filter):
        return subscription.parsed
    return None if subscription.filter_text is None else Filter(subscription.filter_text, is_stored=True)
