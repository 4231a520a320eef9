"""Test vectors: lines of ``{"expr", "attrs", "expect"}``, with which any backend can be tested.

``attrs`` is in the typed form (``{"t": "int32", "v": 5}``); ``expect`` is true, false, undefined or error. Other keys
of a line, such as a note, are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from whimbrel.errors import (
    FilterError,
    InvalidInputError,
    InvalidValueError,
    MalformedBodyError,
    MalformedLineError,
    MissingDependencyError,
)
from whimbrel.language.ast import Predicate
from whimbrel.language.backends.python import compile_filter
from whimbrel.language.filters import parse
from whimbrel.language.trace import verdict_word
from whimbrel.model.attributes import Attributes
from whimbrel.model.json_body import read_json
from whimbrel.model.typed import from_typed

__all__ = ["BACKENDS", "Backend", "Failure", "Vector", "failures", "read_vectors"]

EXPECTATIONS = ("true", "false", "undefined", "error")

Backend: TypeAlias = Callable[[Sequence[tuple[Predicate, Attributes]]], Iterable[bool | None]]
"""Function that returns the verdict of each pair of tree and attributes; it gets all pairs, to run them as one job."""


def _python(cases: Sequence[tuple[Predicate, Attributes]]) -> Iterator[bool | None]:
    return (compile_filter(tree)(attributes) for tree, attributes in cases)


def _spark(cases: Sequence[tuple[Predicate, Attributes]]) -> Iterable[bool | None]:
    try:
        from whimbrel.language.backends.spark import verdicts  # Spark is an extra, and slow to start
    except ModuleNotFoundError as error:
        raise MissingDependencyError("the spark backend", str(error.name), "pip install 'whimbrel[spark]'") from None
    return verdicts(cases)


BACKENDS: Mapping[str, Backend] = {"python": _python, "spark": _spark}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """One test vector: a line of the file, with a filter, attributes, and the expected outcome."""

    line: int
    expr: str
    attributes: Attributes
    expect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A test vector whose outcome is not the expected one."""

    line: int
    expr: str
    expect: str
    got: str


def read_vectors(lines: Iterable[bytes], *, source: str) -> Iterator[Vector]:
    """Read vectors from *lines*; skip blank lines; raise ``MalformedLineError`` for a bad one."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _vector(line.rstrip(b"\r\n"), number, source)


def _vector(line: bytes, number: int, source: str) -> Vector:
    try:
        fields = read_json(line)
    except MalformedBodyError as error:
        raise MalformedLineError(source, number, error.column or 1, error.reason) from None
    except InvalidInputError as error:
        raise MalformedLineError(source, number, 1, str(error)) from None
    try:
        expr, expect, attrs = fields.get("expr"), fields.get("expect"), fields.get("attrs")
        if not isinstance(expr, str):
            raise InvalidValueError("expr", expr, "a string")
        if expect not in EXPECTATIONS:
            raise InvalidValueError("expect", expect, ", ".join(EXPECTATIONS))
        if not isinstance(attrs, dict):
            raise InvalidValueError("attrs", attrs, "an object of attributes")
        return Vector(line=number, expr=expr, attributes=from_typed(attrs), expect=str(expect))
    except InvalidValueError as error:
        raise MalformedLineError(source, number, _column(line, error), str(error)) from None


def _column(line: bytes, error: InvalidValueError) -> int:
    """Return the column in *line* of the key that *error* names, or 1 if *line* does not contain the key."""
    key = error.what.removeprefix("type of ").removeprefix("attribute ")
    return line.decode().find(f'"{key}"') + 1 or 1


def failures(vectors: Sequence[Vector], backend: Backend) -> list[Failure]:
    """Return a ``Failure`` for each test vector whose outcome, by our parser and *backend*, is not the expected one."""
    trees = [_tree(vector.expr) for vector in vectors]
    cases = [(tree, v.attributes) for tree, v in zip(trees, vectors, strict=True) if tree is not None]
    verdicts = iter(backend(cases))
    outcomes = ["error" if tree is None else verdict_word(next(verdicts)) for tree in trees]
    return [
        Failure(line=vector.line, expr=vector.expr, expect=vector.expect, got=got)
        for vector, got in zip(vectors, outcomes, strict=True)
        if got != vector.expect
    ]


def _tree(text: str) -> Predicate | None:
    try:
        return parse(text)
    except FilterError:
        return None
