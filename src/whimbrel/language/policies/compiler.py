"""The compiler of policies: turns a policy's tree once into nested Python functions, which then run without the tree.

Rule: it agrees with the naive interpreter in ``tests/reference`` on everything; a differential test compares them.
Local names become positions in a list, and blocks become tuples of functions with the steps that they count. The
commonest forms (an attribute of a local, a comparison with a constant) have special functions with fewer calls.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from whimbrel.language.ast import CompareOp
from whimbrel.language.operators import binary, unary
from whimbrel.language.policies import semantics, tree
from whimbrel.language.policies.bounds import own_steps, string_steps
from whimbrel.language.policies.tree import Block, Expression, Program, Scope, Statement
from whimbrel.language.policies.values import EMPTY, ORIGINAL, AnyValue, Message, Run, seconds, storable, truth

__all__ = ["Compiled", "compile_program"]

Compiled: TypeAlias = Callable[[Run], Message | None]
_Value: TypeAlias = Callable[[Run], AnyValue]
_Execution: TypeAlias = Callable[[Run], Any]
"""Compiled statement or block; it returns the result of the policy or function, or ``_RUNNING`` to continue."""

_RUNNING: Any = object()
_NEW = Message(is_original=False, changes={}, data=EMPTY)
_ARRIVED = Message(is_original=True, changes={}, data=ORIGINAL)


def compile_program(program: Program) -> Compiled:
    """Return the function that runs *program*, which must have been checked."""
    functions: dict[str, _Execution] = {}
    sizes: dict[str, int] = {}
    for function in program.functions:  # looked up by name at run time, so their order does not matter
        compiler = _Compiler(function.parameters, functions, sizes)
        functions[function.name] = compiler.block(function.body)
        sizes[function.name] = len(compiler.places)
    main = _Compiler((program.message,), functions, sizes)
    body = main.block(program.body)
    empty: list[AnyValue] = [None] * (len(main.places) - 1)

    def run_program(run: Run) -> Message | None:
        run.locals = [_ARRIVED, *empty]
        result = body(run)
        if result is _RUNNING:
            result = run.locals[0]
        return result if isinstance(result, Message) else None

    return run_program


def _segments(block: Block) -> Iterator[Block]:
    """Split *block* after each ``return`` and each ``if``, because these may end the policy or function."""
    begin = 0
    for end, statement in enumerate(block, start=1):
        if end == len(block) or isinstance(statement, tree.If | tree.Return):
            yield block[begin:end]
            begin = end


class _Compiler:
    """Compiles one scope of local names: the policy itself, or one of its functions."""

    def __init__(
        self, parameters: tuple[str, ...], functions: Mapping[str, _Execution], sizes: Mapping[str, int]
    ) -> None:
        self.places = {name: place for place, name in enumerate(parameters)}
        self._functions, self._sizes = functions, sizes

    def _place(self, name: str) -> int:
        return self.places.setdefault(name, len(self.places))

    # -- statements ----------------------------------------------------------------------------------------------------

    def block(self, block: Block) -> _Execution:
        if not block:
            return lambda _: _RUNNING
        segments = [self._segment(each) for each in _segments(block)]
        if len(segments) == 1:
            return segments[0]

        def several(run: Run) -> Any:  # noqa: ANN401
            for segment in segments:
                result = segment(run)
                if result is not _RUNNING:
                    return result
            return _RUNNING

        return several

    def _segment(self, block: Block) -> _Execution:
        """Compile statements of which only the last may return or branch, so that their steps are counted at once."""
        steps = sum(map(own_steps, block))
        spared = sum(map(string_steps, block))
        *before, last = map(self._statement, block)
        if spared:
            before.insert(0, _spare(spared))

        def execute(run: Run) -> Any:  # noqa: ANN401
            run.steps += steps
            for each in before:
                each(run)
            return last(run)

        return execute

    def _statement(self, statement: Statement) -> _Execution:  # one case per statement
        match statement:
            case tree.Assign(name, tree.Property(Scope.ANY, variable)):
                return _assign_variable(self._place(name), variable)
            case tree.Assign(name, node):
                return _assign(self._place(name), self._value(node))
            case tree.SetAttribute(target, name, node):
                return _set_attribute(self._place(target), name, self._value(node))
            case tree.SetData(target, node):
                return _set_data(self._place(target), self._value(node))
            case tree.SetProperty(scope, name, node):
                return _set_property(scope, name, self._value(node))
            case tree.RemoveProperty(name):
                return _set_property(Scope.ANY, name, lambda _: None)
            case tree.If(condition, then, otherwise):
                return _if(self._value(condition), self.block(then), self.block(otherwise))
            case tree.Return(node):
                return self._value(node)
            case tree.Evaluate(node):
                return _evaluate(self._value(node))

    # -- expressions ------------------------------------------------------------------------------------------

    def _value(self, node: Expression) -> _Value:  # one case per node
        match node:
            case tree.Constant(constant):
                return lambda _: constant
            case tree.Local(name):
                place = self._place(name)
                return lambda run: run.locals[place]
            case tree.Attribute(tree.Local(local), name):
                return _attribute(self._place(local), name)
            case tree.Property(Scope.DEVICE, name):
                return lambda run: run.device(name)
            case tree.Property(Scope.STATE, name):
                return lambda run: run.state(name)
            case tree.Property(_, name):
                return lambda run: run.variable(name)
            case tree.Now():
                return lambda run: seconds(run.now)
            case tree.NewMessage():
                return lambda _: _NEW
            case tree.Comparison(op, left, tree.Constant(constant)) if constant is not None:
                return _compare_constant(op, self._value(left), constant)
            case tree.Call(name, _):
                return self._call(name, tuple(map(self._value, tree.children(node))))
        values = tuple(map(self._value, tree.children(node)))
        match node:
            case tree.AllOf():
                return _all(values)
            case tree.AnyOf():
                return _any(values)
            case tree.OddOf():
                return _odd(values)
            case tree.Equal():
                subject, *options = values
                return lambda run: semantics.equal(run, subject(run), [option(run) for option in options])
            case tree.Compress(names=members):
                message, battery, display, network = values
                return lambda run: semantics.compress_message(
                    run, (message(run), battery(run), display(run), network(run)), members
                )
            case tree.Summarise(_, _, members, site):
                message, interval = values
                return lambda run: semantics.summarise(run, message(run), interval(run), members, site)
            case tree.Arithmetic(operator, _, _):
                return _arithmetic(operator, *values)
            case tree.Comparison(comparison, _, _):
                return _compare(comparison, *values)
        return self._of_one(node, values[0])

    def _of_one(self, node: Expression, operand: _Value) -> _Value:  # one case per node
        match node:
            case tree.Attribute(_, name):
                return lambda run: run.attribute(operand(run), name)
            case tree.Member(scope, name, _):
                return lambda run: semantics.is_member(run, scope, name, operand(run))
            case tree.IsNull():
                return lambda run: operand(run) is None
            case tree.Inverse():
                return _not(operand)
            case tree.TypeTest(test, _):
                return lambda run: semantics.type_test(test, operand(run))
            case tree.SizeOf():
                return lambda run: semantics.size_of(run, operand(run))
            case tree.NumberCall(number_function, _):
                return lambda run: semantics.number_value(number_function, operand(run))
            case tree.TextCall(text_function, _):
                return lambda run: semantics.text_value(run, text_function, operand(run))
            case tree.PatternCall(pattern_function, _, patterns):
                verdict = semantics.pattern_test(pattern_function, patterns)
                return lambda run: verdict(run, operand(run))
            case tree.DataOf():
                return lambda run: semantics.data_of(operand(run))
            case tree.Project(_, members):
                return lambda run: semantics.project_message(operand(run), members)
            case tree.Sign(sign, _):
                return _sign(sign, operand)
        raise AssertionError(node)  # all nodes are handled above

    def _call(self, name: str, arguments: tuple[_Value, ...]) -> _Value:
        functions, sizes = self._functions, self._sizes

        def value(run: Run) -> AnyValue:
            values = [argument(run) for argument in arguments]
            outer = run.locals
            run.locals = values + [None] * (sizes[name] - len(values))
            result = functions[name](run)
            run.locals = outer
            return None if result is _RUNNING else result

        return value


def _spare(steps: int) -> _Execution:
    """Return a function that adds *steps* to ``run.spared``, the number of steps that were counted but not needed.

    *steps* is the most that string functions may need, which is counted in advance. Each string function then subtracts
    the steps that it needed.
    """

    def execute(run: Run) -> Any:  # noqa: ANN401
        run.spared += steps

    return execute


def _assign_variable(place: int, name: str) -> _Execution:
    def execute(run: Run) -> Any:  # noqa: ANN401
        run.locals[place] = run.variable(name)
        return _RUNNING

    return execute


def _assign(place: int, value: _Value) -> _Execution:
    def execute(run: Run) -> Any:  # noqa: ANN401
        found = value(run)
        run.locals[place] = found
        return _RUNNING

    return execute


def _set_attribute(place: int, name: str, value: _Value) -> _Execution:
    def execute(run: Run) -> Any:  # noqa: ANN401
        new = storable(value(run))
        message = run.locals[place]
        if isinstance(message, Message):
            run.locals[place] = message.with_attribute(name, new)
        return _RUNNING

    return execute


def _set_data(place: int, value: _Value) -> _Execution:
    def execute(run: Run) -> Any:  # noqa: ANN401
        new = value(run)
        run.locals[place] = semantics.with_data(run.locals[place], new)
        return _RUNNING

    return execute


def _set_property(scope: Scope, name: str, value: _Value) -> _Execution:
    def execute(run: Run) -> Any:  # noqa: ANN401
        semantics.set_property(run, scope, name, value(run))
        return _RUNNING

    return execute


def _if(condition: _Value, then: _Execution, otherwise: _Execution) -> _Execution:
    def execute(run: Run) -> Any:  # noqa: ANN401
        verdict = condition(run)
        is_true = verdict is True or (verdict is not False and truth(verdict) is True)
        return then(run) if is_true else otherwise(run)

    return execute


def _evaluate(value: _Value) -> _Execution:
    def execute(run: Run) -> Any:  # noqa: ANN401
        value(run)
        return _RUNNING

    return execute


def _attribute(place: int, name: str) -> _Value:
    def value(run: Run) -> AnyValue:
        message = run.locals[place]
        return run.arrival.attributes.get(name) if message is _ARRIVED else run.attribute(message, name)

    return value


_ORDERED = {
    CompareOp.LT: operator.lt,
    CompareOp.LE: operator.le,
    CompareOp.GT: operator.gt,
    CompareOp.GE: operator.ge,
}


def _compare_constant(op: CompareOp, left: _Value, constant: Any) -> _Value:  # noqa: ANN401
    """Compare with a constant; two int32 values, or two finite reals, are ordered by Python's own operators."""
    kind = type(constant)
    order = _ORDERED.get(op) if kind is int or (kind is float and math.isfinite(constant)) else None

    def value(run: Run) -> AnyValue:
        a = left(run)
        if order is not None and type(a) is kind and a == a:  # noqa: PLR0124 # False for NaN
            return bool(order(a, constant))  # type: ignore[arg-type]  # two numbers
        return semantics.compare_values(run, op, a, constant)

    return value


def _compare(op: CompareOp, left: _Value, right: _Value) -> _Value:
    def value(run: Run) -> AnyValue:
        return semantics.compare_values(run, op, left(run), right(run))

    return value


def _arithmetic(op: Any, left: _Value, right: _Value) -> _Value:  # noqa: ANN401
    def value(run: Run) -> AnyValue:
        a, b = semantics.scalar(left(run)), semantics.scalar(right(run))
        return None if a is None or b is None else binary(op, a, b)

    return value


def _sign(op: Any, operand: _Value) -> _Value:  # noqa: ANN401
    def value(run: Run) -> AnyValue:
        a = semantics.scalar(operand(run))
        return None if a is None else unary(op, a)

    return value


def _not(operand: _Value) -> _Value:
    def value(run: Run) -> AnyValue:
        verdict = operand(run)
        if verdict is not True and verdict is not False:
            verdict = truth(verdict)
        return None if verdict is None else not verdict

    return value


def _all(operands: tuple[_Value, ...]) -> _Value:
    def value(run: Run) -> AnyValue:
        result: bool | None = True
        for operand in operands:
            verdict = operand(run)
            if verdict is not True and verdict is not False:
                verdict = truth(verdict)
            if verdict is False:
                return False
            if verdict is None:
                result = None
        return result

    return value


def _any(operands: tuple[_Value, ...]) -> _Value:
    def value(run: Run) -> AnyValue:
        result: bool | None = False
        for operand in operands:
            verdict = operand(run)
            if verdict is not True and verdict is not False:
                verdict = truth(verdict)
            if verdict is True:
                return True
            if verdict is None:
                result = None
        return result

    return value


def _odd(operands: tuple[_Value, ...]) -> _Value:
    def value(run: Run) -> AnyValue:
        result = False
        for operand in operands:
            verdict = truth(operand(run))
            if verdict is None:
                return None
            result ^= verdict
        return result

    return value
