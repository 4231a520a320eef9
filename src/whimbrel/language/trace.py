"""Explanation of a verdict: the verdict of every part of a filter on one notification."""

from __future__ import annotations

from dataclasses import dataclass

from whimbrel.language.ast import And, Not, Or, Predicate, Xor
from whimbrel.language.backends.python import compile_filter
from whimbrel.language.needs import names
from whimbrel.language.pattern_cost import longest_searched
from whimbrel.language.printer import print_filter
from whimbrel.model.attributes import Attributes, Scalar

__all__ = ["Trace", "reasons", "trace", "verdict_word"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Verdict of one part of a filter, with the attributes that it used (None: missing), and the parts below it."""

    part: str
    verdict: bool | None
    seen: tuple[tuple[str, Scalar | None], ...]
    parts: tuple[Trace, ...]


def trace(tree: Predicate, attributes: Attributes) -> Trace:
    """Return the verdict of *tree* and, below it, of each operand of ``&& || ^^ !``."""
    return _trace(tree, attributes, longest_searched(tree))


def _trace(tree: Predicate, attributes: Attributes, longest: int) -> Trace:
    match tree:
        case And(operands) | Or(operands) | Xor(operands):
            parts = tuple(_trace(operand, attributes, longest) for operand in operands)
            seen: tuple[tuple[str, Scalar | None], ...] = ()
        case Not(operand):
            parts, seen = (_trace(operand, attributes, longest),), ()
        case _:
            parts, seen = (), tuple((name, attributes.get(name)) for name in sorted(names(tree)))
    verdict = compile_filter(tree, longest=longest)(attributes)
    return Trace(part=print_filter(tree), verdict=verdict, seen=seen, parts=parts)


def verdict_word(verdict: bool | None) -> str:  # noqa: FBT001  # a verdict is the subject here, not a switch
    """Return the language's word for *verdict*."""
    return "undefined" if verdict is None else "true" if verdict else "false"


def reasons(shown: Trace) -> list[Trace]:
    """Return the leaves of the trace that explain the verdict of its root.

    At each level, follow the parts with the same verdict; if none has it, follow all parts.
    """
    if not shown.parts:
        return [shown]
    deciding = [part for part in shown.parts if part.verdict is shown.verdict] or list(shown.parts)
    return [reason for part in deciding for reason in reasons(part)]
