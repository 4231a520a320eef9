"""The reference: a policy's tree, walked statement by statement, written to be obviously right.

Rule: the compiled form must agree with this one on every policy and every arrival, in outcome, variables and steps.
"""

from __future__ import annotations

from typing import Any

from whimbrel.language.operators import binary, unary
from whimbrel.language.policies import semantics, tree
from whimbrel.language.policies.bounds import own_steps, string_steps
from whimbrel.language.policies.tree import Block, Expression, Program, Scope, Statement
from whimbrel.language.policies.values import (
    EMPTY,
    ORIGINAL,
    AnyValue,
    Message,
    Run,
    seconds,
    storable,
    truth,
)

__all__ = ["interpret"]

_RUNNING: Any = object()
"""What a statement answers that does not return."""


def interpret(program: Program, run: Run) -> Message | None:
    """Run *program* once; return the message to send, or None. A policy that reaches its end sends what arrived."""
    interpreter = _Interpreter(program, run)
    arrived = Message(is_original=True, changes={}, data=ORIGINAL)
    names: dict[str, AnyValue] = {program.message: arrived}
    result = interpreter.block(program.body, names)
    if result is _RUNNING:
        result = names[program.message]
    return result if isinstance(result, Message) else None


class _Interpreter:
    def __init__(self, program: Program, run: Run) -> None:
        self._functions = {each.name: each for each in program.functions}
        self._run = run

    def block(self, block: Block, names: dict[str, AnyValue]) -> AnyValue:
        for statement in block:
            self._run.steps += own_steps(statement)
            self._run.spared += string_steps(statement)
            result = self._statement(statement, names)
            if result is not _RUNNING:
                return result
        return _RUNNING  # type: ignore[no-any-return]  # a mark of its own kind

    def _statement(self, statement: Statement, names: dict[str, AnyValue]) -> AnyValue:
        match statement:
            case tree.Assign(name, value):
                names[name] = self._value(value, names)
            case tree.SetAttribute(target, name, value):
                found, new = names.get(target), storable(self._value(value, names))
                if isinstance(found, Message):
                    names[target] = found.with_attribute(name, new)
            case tree.SetData(target, value):
                names[target] = semantics.with_data(names.get(target), self._value(value, names))
            case tree.SetProperty(scope, name, value):
                semantics.set_property(self._run, scope, name, self._value(value, names))
            case tree.RemoveProperty(name):
                semantics.set_property(self._run, Scope.ANY, name, None)
            case tree.If(condition, then, otherwise):
                is_true = truth(self._value(condition, names)) is True
                return self.block(then if is_true else otherwise, names)
            case tree.Return(value):
                return self._value(value, names)
            case tree.Evaluate(value):
                self._value(value, names)
        return _RUNNING  # type: ignore[no-any-return]

    def _value(self, node: Expression, names: dict[str, AnyValue]) -> AnyValue:  # one case a node
        run = self._run
        match node:
            case tree.Constant(value):
                return value
            case tree.Local(name):
                return names.get(name)
            case tree.AllOf() | tree.AnyOf() | tree.OddOf():
                return self._logical(node, names)
            case tree.Property(Scope.DEVICE, name):
                return run.device(name)
            case tree.Property(Scope.STATE, name):
                return run.state(name)
            case tree.Property(_, name):
                return run.variable(name)
            case tree.Now():
                return seconds(run.now)
            case tree.NewMessage():
                return Message(is_original=False, changes={}, data=EMPTY)
        values = [self._value(each, names) for each in tree.children(node)]
        match node:
            case tree.Attribute(_, name):
                return run.attribute(values[0], name)
            case tree.Member(scope, name, _):
                return semantics.is_member(run, scope, name, values[0])
            case tree.IsNull():
                return values[0] is None
            case tree.Inverse():
                verdict = truth(values[0])
                return None if verdict is None else not verdict
            case tree.TypeTest(function, _):
                return semantics.type_test(function, values[0])
            case tree.SizeOf():
                return semantics.size_of(run, values[0])
            case tree.NumberCall(number_function, _):
                return semantics.number_value(number_function, values[0])
            case tree.TextCall(text_function, _):
                return semantics.text_value(run, text_function, values[0])
            case tree.PatternCall(pattern_function, _, patterns):
                return semantics.pattern_test(pattern_function, patterns)(run, values[0])
            case tree.Equal():
                return semantics.equal(run, values[0], values[1:])
            case tree.DataOf():
                return semantics.data_of(values[0])
            case tree.Compress(names=members):
                return semantics.compress_message(run, values, members)
            case tree.Project(_, members):
                return semantics.project_message(values[0], members)
            case tree.Summarise(_, _, members, site):
                return semantics.summarise(run, values[0], values[1], members, site)
            case tree.Call(name, _):
                return self._call(name, values)
            case tree.Sign(sign, _):
                operand = semantics.scalar(values[0])
                return None if operand is None else unary(sign, operand)
            case tree.Comparison(comparison, _, _):
                return semantics.compare_values(run, comparison, *values)
        left, right = map(semantics.scalar, values)
        return None if left is None or right is None else binary(node.op, left, right)

    def _logical(self, node: tree.AllOf | tree.AnyOf | tree.OddOf, names: dict[str, AnyValue]) -> bool | None:
        """Evaluate from the left, no further than needed: a later operand may summarise."""
        result: bool | None = isinstance(node, tree.AllOf)
        for operand in node.operands:
            verdict = truth(self._value(operand, names))
            if isinstance(node, tree.OddOf):
                if verdict is None:
                    return None
                result = result is not verdict
            elif verdict is None:
                result = None
            elif verdict is isinstance(node, tree.AnyOf):
                return verdict
        return result

    def _call(self, name: str, values: list[AnyValue]) -> AnyValue:
        function = self._functions[name]
        result = self.block(function.body, dict(zip(function.parameters, values, strict=True)))
        return None if result is _RUNNING else result
