"""Filters: the language as its users meet it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from whimbrel.errors import FilterError
from whimbrel.language.ast import Predicate
from whimbrel.language.backends.python import compile_filter
from whimbrel.language.budget import ADMITTED, STORED, PatternBounds
from whimbrel.language.check import StaticError, check
from whimbrel.language.codes import ErrorCode
from whimbrel.language.parser import Parser
from whimbrel.language.printer import print_filter
from whimbrel.language.rewrites import normal_form
from whimbrel.language.shapes import ShapeCache, Template
from whimbrel.model.attributes import Attributes, checked

__all__ = ["Filter", "parse", "parse_stored", "recognise"]

_LONG = 512
_shapes = ShapeCache()


def parse(text: str) -> Predicate:
    """Return the checked tree of *text*, or raise ``FilterError`` with its code and place."""
    return _read_long(text, ADMITTED) if len(text) > _LONG else _read(text, ADMITTED)


def parse_stored(text: str) -> Predicate:
    """Return the tree of a *text* that was accepted once, maybe by a version that allowed costlier patterns.

    The indexes read filters so: whether one may come in is asked where it comes in, with ``parse``.
    """
    if len(text) <= _LONG:
        return _read(text, STORED)
    try:
        return _read_long(text, ADMITTED)  # it was most probably read so a moment ago
    except FilterError:
        return _read_long(text, STORED)


@lru_cache(maxsize=16)
def _read_long(text: str, bounds: PatternBounds) -> Predicate:
    """Parse a long text once where it is asked about several times in a row: checked, counted, indexed."""
    return _read(text, bounds)


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
    """A checked filter, ready to be asked.

    >>> fever = Filter("temperature > 38.5 && begins-with(bed, 'ICU-')")
    >>> fever.matches({"temperature": 39.2, "bed": "ICU-4"})
    True
    """

    __slots__ = ("text", "tree", "verdict")

    def __init__(self, text: str, *, is_stored: bool = False) -> None:
        """Read *text*; one that *is_stored* was accepted before, so today's bounds for patterns do not refuse it."""
        self.text = text
        self.tree = parse_stored(text) if is_stored else parse(text)
        self.verdict = compile_filter(self.tree)
        """Attributes (already checked) to true, false, or None for undefined."""

    def matches(self, values: Mapping[str, object] | Attributes) -> bool:
        """Tell whether *values* are selected: only a true verdict delivers."""
        return self.verdict(checked(values)) is True

    def normal(self) -> str:
        """Return the text of the normal form."""
        return print_filter(normal_form(self.tree))

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"
