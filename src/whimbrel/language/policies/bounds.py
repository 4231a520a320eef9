"""Bounds: the highest cost of a policy, computed before it runs.

Rule: a statement counts all nodes of its expressions, whether or not ``and`` and ``or`` evaluate them. A run counts
the same for each statement that it executes (``own_steps``). So it never exceeds this bound, and need not test it.
Rule: compared characters of strings count at their maximum.
Rule: of an ``if``, the condition and the costlier branch count; of a call, the highest cost of its function. A chain of
n functions that each call the next one twice makes 2ⁿ steps: these are computed, not executed.
"""

from __future__ import annotations

from functools import cache

from whimbrel.language.ast import PatternFunction
from whimbrel.language.patterns import COMPILED
from whimbrel.language.policies import tree
from whimbrel.language.policies.limits import PolicyCost, PolicyLimits
from whimbrel.language.policies.semantics import (
    COMPARED_A_STEP,
    MAX_COMPARED_CHARS,
    MAX_FOLDED_CHARS,
    MAX_SEARCHED_CHARS,
    PATTERN_WORK,
    SEARCHED_A_STEP,
    SMART_LENGTH,
    WORK_A_STEP,
)
from whimbrel.language.policies.tree import Block, Expression, Program, Statement

__all__ = ["bound_of", "own_steps", "string_steps"]

# Measured, so that a step takes some tenths of a microsecond for any policy and notification, even hostile ones.
_SUMMARY_STEPS = 20
_ARITHMETIC_STEPS = 8
_SETTING_STEPS = 8
"""Steps of setting an attribute, which copies the attributes that were set before."""


def own_steps(statement: Statement) -> int:
    """Return the steps of *statement* itself: its expressions, without the bodies of functions and branches."""
    own = _SETTING_STEPS if isinstance(statement, tree.SetAttribute) else 1
    return own + sum(map(_steps, tree.expressions(statement)))


def string_steps(statement: Statement) -> int:
    """Return the part of ``own_steps`` that is for string functions.

    It is for the longest strings, so a run may need fewer.
    """
    return sum(map(_string_steps, tree.expressions(statement)))


def _string_steps(node: Expression) -> int:
    own = 0
    match node:
        case tree.PatternCall(function, _, _) if function in COMPILED or function is PatternFunction.CONTAINS:
            own = _node_steps(node)
        case tree.TextCall():
            own = _node_steps(node)
    return own + sum(map(_string_steps, tree.children(node)))


def _steps(node: Expression) -> int:
    return _node_steps(node) + sum(map(_steps, tree.children(node)))


def _node_steps(node: Expression) -> int:
    match node:
        case tree.PatternCall(function, _, patterns) if function in COMPILED:
            return 1 + PATTERN_WORK // WORK_A_STEP + len(patterns)
        case tree.PatternCall(PatternFunction.CONTAINS, _, patterns):
            searched = sum(min(len(pattern), SMART_LENGTH) for pattern in patterns) * MAX_SEARCHED_CHARS
            return 1 + len(patterns) + searched // SEARCHED_A_STEP
        case tree.PatternCall(_, _, patterns):
            return 1 + len(patterns)
        case tree.TextCall():
            return 1 + MAX_FOLDED_CHARS
        case tree.Arithmetic():
            return _ARITHMETIC_STEPS
        case tree.Summarise(_, _, names, _):
            return _SUMMARY_STEPS * (1 + len(names))
        case _:
            return 1


def _compared_chars(node: Expression) -> int:
    """Return the greatest number of characters that the comparisons in *node* and below it can read."""
    own = 0
    match node:
        case tree.Comparison(_, left, right):
            own = min(_longest(left), _longest(right))
        case tree.Equal(subject, options):
            own = sum(min(_longest(subject), _longest(option)) for option in options)
    return own + sum(map(_compared_chars, tree.children(node)))


def _longest(node: Expression) -> int:
    """Return the greatest length, in characters, that a string value of *node* can have in a comparison."""
    match node:
        case tree.Constant(value):
            return min(len(value), MAX_COMPARED_CHARS) if isinstance(value, str) else 0
        case tree.Local() | tree.Attribute() | tree.Property() | tree.Call() | tree.TextCall():
            return MAX_COMPARED_CHARS
        case _:
            return 0


def bound_of(program: Program, limits: PolicyLimits) -> PolicyCost:
    """Return the highest cost of *program*, which must have no recursion."""
    functions = {each.name: each for each in program.functions}
    # Compared characters, each a fraction of a step, are added up and rounded once, as in a run.

    @cache
    def of_function(name: str) -> PolicyCost:
        return _of_block(functions[name].body)

    def _of_block(block: Block) -> PolicyCost:
        total = PolicyCost()
        for statement in block:
            total = total.plus(PolicyCost(steps=own_steps(statement) * COMPARED_A_STEP))
            for each in tree.expressions(statement):
                total = total.plus(PolicyCost(steps=_compared_chars(each)))
                total = total.plus(_of_calls(each))
            if isinstance(statement, tree.If):
                total = total.plus(_of_block(statement.then).or_else(_of_block(statement.otherwise)))
        return total

    def _of_calls(node: Expression) -> PolicyCost:
        total = PolicyCost()
        match node:
            case tree.Call(name, _):
                total = of_function(name)
            case tree.Compress():
                total = PolicyCost(bytes=limits.body_bytes, pixels=limits.image_pixels)
            case tree.Project():
                total = PolicyCost(bytes=limits.body_bytes)
        for child in tree.children(node):
            total = total.plus(_of_calls(child))
        return total

    bound = _of_block(program.body)
    return bound._replace(steps=bound.steps // COMPARED_A_STEP)
