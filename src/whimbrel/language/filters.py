"""Filters: the public interface of the filter language."""

from __future__ import annotations

from collections.abc import Mapping

from whimbrel.language.ast import Predicate, height
from whimbrel.language.backends.python import VerdictFunction, compile_filter
from whimbrel.language.check import StaticError, check
from whimbrel.language.codes import ErrorCode
from whimbrel.language.parser import MAX_HEIGHT, MAX_TEXT, Parser
from whimbrel.language.pattern_cost import ADMITTED, STORED, PatternBounds, program
from whimbrel.language.printer import print_filter
from whimbrel.language.rewrites import normal_form
from whimbrel.language.shapes import ShapeCache, Template
from whimbrel.model.attributes import Attributes, checked
from whimbrel.model.subscription import Subscription

__all__ = ["Filter", "can_be_read", "filter_of", "is_surely_readable", "parse", "parse_stored", "recognise"]

_LEVELS = " (!~+-"
"""Characters of which every level of a tree prints at least one; a text with few of them cannot be too deep."""
_shapes = ShapeCache()


def parse(text: str) -> Predicate:
    """Return the checked tree of *text*; raise ``FilterError`` with code and position if it is not a filter."""
    return _read(text, ADMITTED)


def parse_stored(text: str) -> Predicate:
    """Return the tree of a *text* that was accepted before, maybe by a version that allowed costlier patterns.

    The indexes use this function. A new filter must be accepted with ``parse`` first.
    """
    return _read(text, STORED)


def can_be_read(tree: Predicate, text: str) -> bool:
    """Return False if *text*, the printed form of *tree*, is too long or nests too deep for the parser.

    The tree must be joined from parts that were checked before; nothing is parsed.
    """
    return is_surely_readable(text) or (len(text) <= MAX_TEXT and height(tree) <= MAX_HEIGHT)


def is_surely_readable(text: str) -> bool:
    """Return True only if a *text* joined from filters that were checked before is short and flat enough to parse."""
    return len(text) <= MAX_TEXT and sum(map(text.count, _LEVELS)) < MAX_HEIGHT


def _read(text: str, bounds: PatternBounds) -> Predicate:
    known = _shapes.build(text)  # a shape never has patterns that need RE2
    if known is not None:
        return known
    parser, tree = _parse(text, bounds)
    _shapes.learn(parser, tree)
    return tree


def recognise(text: str) -> tuple[Template, list[str]] | None:
    """Return the template (parsed form) of the shape of *text*, with the tokens of *text*.

    Return None if the shape is unknown. Filters of one shape differ only in names and constants. So millions of filters
    are loaded without analysing each.
    """
    return _shapes.recognise(text)


def parse_without_shapes(text: str) -> Predicate:
    """Parse as ``parse`` does, but without the cache of filters of the same shape (``shapes``)."""
    return _parse(text)[1]


def _parse(text: str, bounds: PatternBounds = ADMITTED) -> tuple[Parser, Predicate]:
    parser = Parser(text)
    try:
        tree = parser.parse()
        check(tree, bounds)
    except RecursionError:  # our bound is lower than Python's, unless the caller is deep in its stack already
        raise parser.error(ErrorCode.NESTING, "nested too deeply for the stack it was read on", 0) from None
    except StaticError as error:
        raise parser.error(error.code, error.reason, *parser.spans[id(error.node)]) from None
    return parser, tree


class Filter:
    """A checked filter: its text, which is parsed once, its tree, and its compiled verdict.

    Two filters are equal if their texts are equal; a filter is pickled as its text.

    >>> fever = Filter("temperature > 38.5 && begins-with(bed, 'ICU-')")
    >>> fever.matches({"temperature": 39.2, "bed": "ICU-4"})
    True
    """

    __slots__ = ("_verdict", "text", "tree")

    def __init__(self, text: str, *, is_stored: bool = False) -> None:
        """Parse *text*; with *is_stored*, the text was accepted before, so today's bounds for patterns do not apply."""
        self.text = text
        self.tree = parse_stored(text) if is_stored else parse(text)
        self._verdict: VerdictFunction | None = None

    @property
    def verdict(self) -> VerdictFunction:
        """Function from (checked) attributes to true, false, or None for undefined; compiled at first use."""
        if self._verdict is None:
            self._verdict = compile_filter(self.tree)
        return self._verdict

    @property
    def instructions(self) -> int:
        """Number of compiled instructions in the filter's regular expressions and wildcards."""
        return program(self.tree) if self._has_patterns else 0

    @property
    def refusal(self) -> str | None:
        """Reason why this version would refuse the text as a new filter, or None.

        Only bounds for patterns can be a reason.
        """
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
        """Return whether the filter is true of the attributes *values*; False if it is false or undefined."""
        return self.verdict(checked(values)) is True

    def normal(self) -> str:
        """Return the filter's normal form as text."""
        return print_filter(normal_form(self.tree))

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Filter) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self.text,)

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"


def _restore(text: str) -> Filter:
    return Filter(text, is_stored=True)


def filter_of(subscription: Subscription) -> Filter | None:
    """Return the content filter of a subscription, already parsed or from its text; None if it has none.

    Raise ``FilterError`` for a text that is not valid as a stored filter.
    """
    if isinstance(subscription.parsed, Filter):
        return subscription.parsed
    return None if subscription.filter_text is None else Filter(subscription.filter_text, is_stored=True)
