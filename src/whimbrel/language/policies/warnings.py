"""Warnings: parts of a policy that are allowed but probably a mistake; ``whimbrel policy explain`` shows them.

Rule: a policy with warnings is accepted. An example: an attribute may be a string, as an MQTT user property always is.
Its comparison with a number is then undefined, so that the ``else`` branch runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from whimbrel.language.policies import tree
from whimbrel.language.policies.check import statements, walk
from whimbrel.language.policies.operations import is_automatic
from whimbrel.language.policies.reading.parser import Parser
from whimbrel.language.policies.tree import Block, Expression, Program

__all__ = ["PolicyWarning", "warnings_of"]


class PolicyWarning(NamedTuple):
    """A probable mistake; line and column count from 1."""

    line: int
    column: int
    reason: str


def warnings_of(text: str) -> list[PolicyWarning]:
    """Return the warnings about an accepted policy, in the order of their positions."""
    parser = Parser(text)
    program = parser.parse()
    found = {parser.spans.get(id(node), (0, 0))[0]: name for node, name in _mixed_comparisons(program)}
    return [_warning(text, start, name) for start, name in sorted(found.items())]


def _warning(text: str, start: int, name: str) -> PolicyWarning:
    reason = f"{name} is a string if it is an MQTT user property, and then this is undefined; write to-int({name})"
    return PolicyWarning(text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start), reason)


def _mixed_comparisons(program: Program) -> Iterator[tuple[Expression, str]]:
    """Yield (comparison, attribute name) for each comparison of a number with an attribute that may be a string."""
    for body in (program.body, *(function.body for function in program.functions)):
        locals_ = _from_attributes(body)
        for node in walk(body):
            if isinstance(node, tree.Comparison):
                pairs = [(node.left, node.right), (node.right, node.left)]
            elif isinstance(node, tree.Equal):
                pairs = [(node.subject, option) for option in node.options]
            else:
                continue
            for one, other in pairs:
                name = _string_name(one, locals_)
                if name is not None and _is_number(other):
                    yield node, name
                    break


def _from_attributes(body: Block) -> frozenset[str]:
    """Return the names of the local variables to which an attribute of a message is assigned unchanged."""
    found = (each for each in statements(body) if isinstance(each, tree.Assign))
    return frozenset(each.name for each in found if isinstance(each.value, tree.Attribute))


def _string_name(node: Expression, locals_: frozenset[str]) -> str | None:
    match node:
        case tree.Attribute(tree.Local(message), name):
            return f"{message}.{name}" if name.isidentifier() else f"{message}['{name}']"
        case tree.Local(name) if name in locals_:
            return name
    return None


def _is_number(node: Expression) -> bool:
    match node:
        case tree.Constant(value):
            return isinstance(value, int | float)
        case tree.Property(_, name):
            return is_automatic(name)
        case tree.Arithmetic() | tree.Sign() | tree.NumberCall() | tree.SizeOf() | tree.Now():
            return True
    return False
