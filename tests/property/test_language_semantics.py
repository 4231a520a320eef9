"""The closures against a second evaluator, and every rewrite against the closures."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from naive import verdict as naive_verdict
from strategies import attributes, filters, trees

from whimbrel.language.ast import And, Compare, Equals, Not, Or, Predicate, Xor, children
from whimbrel.language.backends.python import compile_filter
from whimbrel.language.check import StaticError, check
from whimbrel.language.needs import needs
from whimbrel.language.rewrites import expand_equals, flatten, fold, normal_form, push_not
from whimbrel.language.trace import trace
from whimbrel.model.attributes import Attributes, type_of


@given(tree=trees(), event=attributes())
def test_the_closures_agree_with_a_naive_evaluator(tree: Predicate, event: Attributes) -> None:
    """The reference is right only if somebody who did not read it computes the same."""
    assert compile_filter(tree)(event) is naive_verdict(tree, event)


@pytest.mark.parametrize("rewrite", [expand_equals, push_not, flatten], ids=lambda rewrite: rewrite.__name__)
@given(tree=trees(), event=attributes())
def test_a_rewrite_keeps_the_verdict(
    rewrite: Callable[[Predicate], Predicate], tree: Predicate, event: Attributes
) -> None:
    """Backends see rewritten trees; people wrote the original."""
    assert compile_filter(rewrite(tree))(event) is compile_filter(tree)(event)


@given(tree=trees(), event=attributes())
def test_folding_keeps_the_verdict(tree: Predicate, event: Attributes) -> None:
    """A constant is the value its term has for every notification."""
    folded = fold(tree)
    verdict = folded if isinstance(folded, bool) else compile_filter(folded)(event)
    assert verdict is compile_filter(tree)(event)


@given(tree=filters(), event=attributes())
def test_the_normal_form_keeps_the_verdict_and_its_promises(tree: Predicate, event: Attributes) -> None:
    """The matcher builds its index on these promises."""
    normal = normal_form(tree)
    assert compile_filter(normal)(event) is compile_filter(tree)(event)
    assert _is_normal(normal)
    check(normal)


def _is_normal(tree: Predicate) -> bool:
    match tree:
        case Not(And() | Or() | Xor() | Not() | Compare()):
            return False
        case And(operands) | Or(operands) | Xor(operands):
            return all(type(operand) is not type(tree) and _is_normal(operand) for operand in operands)
        case _:
            return True


@given(tree=trees())
def test_rewrites_are_idempotent(tree: Predicate) -> None:
    """A second pass finds nothing left to do."""
    for rewrite in (expand_equals, push_not, flatten):
        once = rewrite(tree)
        assert rewrite(once) == once


@given(tree=trees())
def test_the_static_check_accepts_or_names_a_node_of_the_tree(tree: Predicate) -> None:
    """The error's place is found through its node."""
    try:
        check(tree)
    except StaticError as error:
        found = [tree]
        while found and not any(node is error.node for node in found):
            found = [child for node in found for child in children(node)]  # type: ignore[misc]  # nodes of both kinds
        assert found


@given(tree=filters(), event=attributes())
def test_what_a_filter_needs_is_what_it_needs(tree: Predicate, event: Attributes) -> None:
    """A notification that lacks a required attribute, or has all of them mistyped, is never selected."""
    if compile_filter(tree)(event) is True:
        for need in needs(tree):
            assert not need.is_required or need.name in event
        used = [need for need in needs(tree) if need.name in event]
        assert not needs(tree) or any(type_of(event[need.name]) in need.types for need in used)


@given(tree=filters(), event=attributes())
def test_a_trace_starts_with_the_verdict_and_shows_every_part(tree: Predicate, event: Attributes) -> None:
    """People are shown why; the why must be true."""
    shown = trace(tree, event)
    assert shown.verdict is compile_filter(tree)(event)
    parts = tree.operands if isinstance(tree, And | Or | Xor) else (tree.operand,) if isinstance(tree, Not) else ()
    assert [part.verdict for part in shown.parts] == [compile_filter(part)(event) for part in parts]


@given(tree=trees())
def test_equals_is_the_disjunction_of_its_comparisons(tree: Predicate) -> None:
    """No ``equals`` over a plain attribute survives its expansion."""
    pending = [expand_equals(tree)]
    while pending:
        node = pending.pop()
        assert not (isinstance(node, Equals) and not list(children(node.subject)))
        pending.extend(child for child in children(node) if isinstance(child, Predicate))
