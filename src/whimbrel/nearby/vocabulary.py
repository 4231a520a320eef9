"""The vocabulary: event types and the types of their parameters, shared by producers and consumers (STEAM, 4.3).

Rule: an event or a filter that does not fit its type is refused where it is made.
Rule: a type has a limit of the steps of a consumer's filters on one event. Producers' latency bounds use it, so it is
part of the type (4.3: "an upper bound on the computation time for the content filter for each specific subject").
Rule: types are compared by a fingerprint that every beacon carries; two vocabularies with different types of one name
contradict each other, and a node does not join such a group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from whimbrel.errors import InvalidInputError, InvalidValueError, Phrase
from whimbrel.language.ast import Convert, Node, Pattern, Predicate, Text, walk
from whimbrel.language.filters import Filter
from whimbrel.language.needs import needs
from whimbrel.language.pattern_cost import longest_searched, program
from whimbrel.model.attributes import (
    Attributes,
    AttributeType,
    FrozenAttributes,
    Int64,
    Limits,
    Scalar,
    checked,
    type_of,
)
from whimbrel.model.bounds import name, whole

__all__ = [
    "FINGERPRINT_BYTES",
    "MAX_FILTER_STEPS",
    "MAX_TYPE_BYTES",
    "OWN_ATTRIBUTES",
    "EventType",
    "FilterTooCostlyError",
    "UnknownTypeError",
    "Vocabulary",
    "filter_steps",
]

MAX_TYPE_BYTES = 128
MAX_FILTER_STEPS = 20_000
"""Default limit of filter steps of an event type."""
FINGERPRINT_BYTES = 8
_MAX_TYPES, _MAX_PARAMETERS = 1_024, 64
_LIMITS = Limits(max_names=_MAX_PARAMETERS, max_bytes=4_096, max_name_bytes=128)
_LONGEST_TEXT = 1_024
"""Most bytes of a text in an event: a longer one does not fit a frame of the usual size."""
_TEXT_STEPS = _LONGEST_TEXT // 4
"""Steps of a function from text to text: the slowest takes 60 µs for the longest text, at up to 1 µs per step."""
_CONVERT_STEPS = 4

OWN_ATTRIBUTES: Mapping[str, AttributeType] = {
    "distance_m": AttributeType.REAL64,
    "approaching": AttributeType.INT32,
    "heading_difference": AttributeType.REAL64,
    "speed": AttributeType.REAL64,
}
"""Attributes that a consumer adds for its filters; they replace parameters with the same names."""

_INTEGERS = frozenset({AttributeType.INT32, AttributeType.INT64})
_NUMBERS = _INTEGERS | {AttributeType.REAL64}


class UnknownTypeError(InvalidInputError):
    """An event type is not in the vocabulary of this node."""

    def __init__(self, subject: str, known: tuple[str, ...]) -> None:
        super().__init__(subject, known)
        self.subject, self.known = subject, known

    def __str__(self) -> str:
        return f"event type {self.subject!r} is not in the vocabulary; it has {', '.join(self.known) or 'none'}"


class FilterTooCostlyError(InvalidInputError):
    """A content filter takes more steps than its event type allows (4.3: an upper bound for each subject)."""

    def __init__(self, subject: str, steps: int, allowed: int) -> None:
        super().__init__(subject, steps, allowed)
        self.subject, self.steps, self.allowed = subject, steps, allowed

    def __str__(self) -> str:
        return f"a filter of {self.steps} steps; events of type {self.subject!r} allow {self.allowed}"


def filter_steps(tree: Predicate) -> int:
    """Return the most steps that *tree* takes on one event: its nodes, and patterns and texts byte by byte.

    The count is made before any event comes. It bounds the work because the language has no loops.
    """
    longest = min(longest_searched(tree), _LONGEST_TEXT)
    return sum(map(_steps_of, walk(tree))) + program(tree) * longest


def _steps_of(node: Node) -> int:
    match node:
        case Pattern():
            return 1 + len(node.patterns) * _LONGEST_TEXT
        case Text():
            return 1 + _TEXT_STEPS
        case Convert():
            return 1 + _CONVERT_STEPS
    return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EventType:
    """One type of event: its name, the types of its parameters, and the step limit of content filters."""

    name: str
    parameters: Mapping[str, AttributeType]
    max_filter_steps: int = MAX_FILTER_STEPS
    """Most steps that all filters of one consumer together may take on one event."""
    fingerprint: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        name("event type", self.name, max_bytes=MAX_TYPE_BYTES)
        whole("max_filter_steps", self.max_filter_steps, 1, 1_000_000)
        if len(self.parameters) > _MAX_PARAMETERS:
            raise InvalidValueError(f"parameters of {self.name}", len(self.parameters), f"at most {_MAX_PARAMETERS}")
        for parameter in self.parameters:
            name(f"parameter of {self.name}", parameter, max_bytes=_LIMITS.max_name_bytes)
        rows = [
            self.name,
            f"{self.max_filter_steps}",
            *(f"{each}\0{kind.word}" for each, kind in sorted(self.parameters.items())),
        ]
        digest = hashlib.blake2s("\0\0".join(rows).encode(), digest_size=FINGERPRINT_BYTES).digest()
        object.__setattr__(self, "fingerprint", digest)

    def check(self, values: Mapping[str, object]) -> Attributes:
        """Return *values* as the attributes of an event of this type, or raise ``InvalidValueError``."""
        found = checked(values, limits=_LIMITS)
        for parameter in self.parameters:
            if parameter not in found:
                raise InvalidValueError(
                    f"event of type {self.name}", Phrase(f"no {parameter}"), ", ".join(self.parameters)
                )
        return FrozenAttributes({each: self._check_type(each, value) for each, value in found.items()})

    def _check_type(self, parameter: str, value: Scalar) -> Scalar:
        wanted = self.parameters.get(parameter)
        if wanted is None:
            allowed = ", ".join(self.parameters) or "none"
            raise InvalidValueError(f"parameter of an event of type {self.name}", parameter, allowed)
        kind = type_of(value)
        if kind is wanted:
            size = len(value.encode()) if isinstance(value, str) else len(value) if isinstance(value, bytes) else 0
            if size > _LONGEST_TEXT:
                what = f"{parameter} of an event of type {self.name}"
                raise InvalidValueError(what, Phrase(f"{size} bytes"), f"at most {_LONGEST_TEXT} bytes")
            return value
        if wanted is AttributeType.INT64 and kind is AttributeType.INT32:
            return Int64(value)
        if wanted is AttributeType.REAL64 and kind in _INTEGERS:
            return float(value)
        raise InvalidValueError(f"{parameter} of an event of type {self.name}", kind.word, wanted.word)

    def check_filter(self, text: str) -> Filter:
        """Parse *text* as a content filter; raise if it does not fit this type or exceeds its step limit."""
        found = Filter(text)
        for need in needs(found.tree):
            declared = OWN_ATTRIBUTES.get(need.name, self.parameters.get(need.name))
            if declared is None:
                allowed = ", ".join(dict.fromkeys((*self.parameters, *OWN_ATTRIBUTES)))
                raise InvalidValueError(f"attribute in a filter of type {self.name}", need.name, allowed)
            if declared not in need.types and not (declared in _NUMBERS and need.types & _NUMBERS):
                wanted = ", ".join(sorted(kind.word for kind in need.types)) or "nothing that could be true"
                raise InvalidValueError(f"{need.name} in a filter of type {self.name}", wanted, declared.word)
        steps = filter_steps(found.tree)
        if steps > self.max_filter_steps:
            raise FilterTooCostlyError(self.name, steps, self.max_filter_steps)
        return found


def _type_of(subject: str, found: object) -> EventType:
    """Return the event type *subject* from its entry in a vocabulary file."""
    words = {kind.word: kind for kind in AttributeType}
    parameters, bound = found, MAX_FILTER_STEPS
    if isinstance(found, Mapping) and isinstance(found.get("parameters"), Mapping):
        parameters, bound = found["parameters"], found.get("max_filter_steps", MAX_FILTER_STEPS)
        for unknown in found.keys() - {"parameters", "max_filter_steps"}:
            raise InvalidValueError(f"event type {subject}", unknown, "parameters and max_filter_steps")
    if not isinstance(parameters, Mapping):
        raise InvalidValueError(f"event type {subject}", parameters, "parameters and the words of their types")
    for parameter, word in parameters.items():
        if not isinstance(word, str) or word not in words:
            raise InvalidValueError(f"{parameter} of {subject}", word, ", ".join(words))
    kinds = {each: words[word] for each, word in parameters.items()}
    return EventType(name=subject, parameters=kinds, max_filter_steps=bound)


class Vocabulary:
    """The event types that a node knows, by name."""

    def __init__(self, types: Iterable[EventType] = ()) -> None:
        self._types: dict[str, EventType] = {}
        for each in types:
            if len(self._types) >= _MAX_TYPES:
                raise InvalidValueError("event types", Phrase(f"more than {_MAX_TYPES}"), f"at most {_MAX_TYPES}")
            if self._types.setdefault(each.name, each) != each:
                raise InvalidValueError("vocabulary", Phrase(f"{each.name} twice"), "one meaning for each name")

    @classmethod
    def of(cls, tree: Mapping[str, object]) -> Self:
        """Return the vocabulary in *tree*: for each event type its parameters and the words of their types.

        The entry of a type with a step limit has ``parameters`` and ``max_filter_steps`` instead.
        """
        return cls(_type_of(subject, found) for subject, found in tree.items())

    def __getitem__(self, subject: str) -> EventType:
        found = self._types.get(subject)
        if found is None:
            raise UnknownTypeError(subject, tuple(self._types))
        return found

    def __contains__(self, subject: object) -> bool:
        return subject in self._types

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the event types."""
        return tuple(self._types)

    def contradicts(self, subject: str, fingerprint: bytes) -> bool:
        """Return whether this vocabulary has *subject* with another fingerprint than *fingerprint*."""
        found = self._types.get(subject)
        return found is not None and found.fingerprint != fingerprint
