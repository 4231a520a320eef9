"""Static check: finds errors in a policy before any notification arrives.

Rule: it refuses only names that are never assigned, values whose type never fits, wrong numbers of arguments, bad
patterns, recursion, assignments to automatic variables and to names reserved for summaries, and what may exceed a limit
(cost, nesting, patterns, attributes that are set).
Rule: a policy that begins as in the SUBLIM paper, with ``arrived(Message m, State s) :-``, may call ``setProperty`` and
``removeProperty`` for automatic variables, too; as in the paper, these calls have no effect.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from enum import Enum

from whimbrel.errors import PolicyError
from whimbrel.language.pattern_cost import ADMITTED
from whimbrel.language.patterns import PatternError, position_count, program_size
from whimbrel.language.policies import tree
from whimbrel.language.policies.bounds import bound_of
from whimbrel.language.policies.codes import PolicyCode
from whimbrel.language.policies.limits import PolicyCost, PolicyLimits
from whimbrel.language.policies.operations import is_automatic
from whimbrel.language.policies.reading.parser import Parser
from whimbrel.language.policies.summaries import PREFIX
from whimbrel.language.policies.tree import Block, Expression, Program, Statement

__all__ = ["MAX_FRAMES", "MAX_SET_ATTRIBUTES", "checking", "statements", "walk"]

MAX_SET_ATTRIBUTES = 128
"""Most different attributes that a policy may set; each setting copies those before it."""
MAX_FRAMES = 192
"""Most nested blocks, expressions and calls of one run, together; each takes a few of Python's stack frames."""


class _Kind(Enum):
    ANY = "anything"
    VALUE = "a value"
    NUMBER = "a number"
    STRING = "a string"
    MESSAGE = "a message"
    DATA = "data"


_VALUES = frozenset({_Kind.VALUE, _Kind.NUMBER, _Kind.STRING})


def checking(program: Program, parser: Parser, limits: PolicyLimits) -> Generator[None, None, PolicyCost]:
    """Return the highest cost of *program*, or raise ``PolicyError`` for the first error that is found.

    This is a generator, which yields after each part of the work, so that other work can run.
    """
    checker = _Checker(program, parser)
    checker.check_names()
    yield
    checker.check_calls()
    for name, parameters, body in checker.scopes:
        yield
        checker.check_kinds(name, parameters, body)
    yield
    bound = bound_of(program, limits)
    for what in ("steps", "bytes", "pixels"):
        found, allowed = getattr(bound, what), getattr(limits, what)
        if found > allowed:
            shown = f"{found}" if found < 10**30 else f"a number of {found.bit_length()} bits of"
            reason = f"it can cost {shown} {what}; at most {allowed} are allowed"
            raise PolicyError(PolicyCode.COST, reason, parser.text, 0, len(parser.text))
    return bound


def statements(block: Block) -> Iterator[Statement]:
    """Yield each statement of *block* and of its nested blocks."""
    for statement in block:
        yield statement
        if isinstance(statement, tree.If):
            yield from statements(statement.then)
            yield from statements(statement.otherwise)


def walk(block: Block) -> Iterator[Expression]:
    """Yield each expression of *block* and all expressions below it."""
    pending = [each for statement in statements(block) for each in tree.expressions(statement)]
    while pending:
        found = pending.pop()
        yield found
        pending.extend(tree.children(found))


class _Checker:
    def __init__(self, program: Program, parser: Parser) -> None:
        self._program, self._parser = program, parser
        self._functions = {each.name: each for each in program.functions}
        self.scopes: list[tuple[str, tuple[str, ...], Block]] = [("", (program.message,), program.body)]
        self.scopes += [(each.name, each.parameters, each.body) for each in program.functions]
        self._local_kinds: dict[tuple[str, str], _Kind] = {}
        self._instructions = 0

    def _error(self, code: PolicyCode, reason: str, node: object) -> PolicyError:
        start, end = self._parser.spans.get(id(node), (0, len(self._parser.text)))
        return PolicyError(code, reason, self._parser.text, start, end)

    # -- names ----------------------------------------------------------------------------------------------------

    def check_names(self) -> None:
        for scope, parameters, body in self.scopes:
            assigned = {each.name for each in statements(body) if isinstance(each, tree.Assign)}
            known = assigned | {*parameters}
            for statement in statements(body):
                self._check_target(statement, known)
            for node in walk(body):
                if isinstance(node, tree.Local) and node.name not in known:
                    where = f"in {scope}" if scope else "here"
                    reason = f"{node.name[:40]} is never assigned {where}; an attribute is m.{node.name[:40]}"
                    raise self._error(PolicyCode.NAME, reason, node)
        changed = [
            each for _, _, body in self.scopes for each in statements(body) if isinstance(each, tree.SetAttribute)
        ]
        if len({each.name for each in changed}) > MAX_SET_ATTRIBUTES:
            reason = f"it sets more than the {MAX_SET_ATTRIBUTES} attributes allowed"
            raise self._error(PolicyCode.COST, reason, changed[-1])

    def _check_target(self, statement: Statement, known: set[str]) -> None:
        if isinstance(statement, tree.SetAttribute | tree.SetData) and statement.message not in known:
            reason = f"{statement.message[:40]} is never assigned; make a message with createMessage() first"
            raise self._error(PolicyCode.NAME, reason, statement)
        if not isinstance(statement, tree.SetProperty | tree.RemoveProperty):
            return
        if statement.name.startswith(PREFIX):
            raise self._error(PolicyCode.NAME, f"names that begin with {PREFIX} are kept for summaries", statement)
        is_any = isinstance(statement, tree.RemoveProperty) or statement.scope is tree.Scope.ANY
        if is_any and not self._program.is_printed and is_automatic(statement.name):
            reason = f"{statement.name} is an automatic variable, which a policy can only read"
            raise self._error(PolicyCode.READ_ONLY, reason, statement)

    # -- calls ----------------------------------------------------------------------------------------------------

    def check_calls(self) -> None:
        for _, _, body in self.scopes:
            for node in walk(body):
                if isinstance(node, tree.Call):
                    wanted, found = len(self._functions[node.function].parameters), len(node.arguments)
                    if wanted != found:
                        reason = f"{node.function} wants {wanted} argument{'' if wanted == 1 else 's'}, found {found}"
                        raise self._error(PolicyCode.ARGUMENTS, reason, node)
                elif isinstance(node, tree.PatternCall):
                    self._check_pattern(node)
        frames: dict[str, int] = {}
        for function in self._program.functions:
            self._frames_of(function.name, frames, [])
        if self._frames(self._program.body, frames) > MAX_FRAMES:
            reason = f"calls and blocks nest deeper than the {MAX_FRAMES} levels allowed"
            raise self._error(PolicyCode.NESTING, reason, self._program)

    def _frames_of(self, name: str, frames: dict[str, int], path: list[str]) -> None:
        """Compute how deep the function *name* nests; refuse recursion, and nesting too deep for Python's stack."""
        if name in frames:
            return
        function = self._functions[name]
        if name in path:
            chain = " calls ".join([*path[path.index(name) :][:8], name])
            raise self._error(PolicyCode.RECURSION, f"{chain}; functions may not call themselves", function)
        if len(path) > MAX_FRAMES:
            raise self._error(PolicyCode.NESTING, f"calls nest deeper than the {MAX_FRAMES} levels allowed", function)
        for node in walk(function.body):
            if isinstance(node, tree.Call):
                self._frames_of(node.function, frames, [*path, name])
        frames[name] = self._frames(function.body, frames)
        if frames[name] > MAX_FRAMES:
            raise self._error(PolicyCode.NESTING, f"calls nest deeper than the {MAX_FRAMES} levels allowed", function)

    def _frames(self, block: Block, frames: dict[str, int]) -> int:
        deepest = 0
        for statement in block:
            for each in tree.expressions(statement):
                deepest = max(deepest, self._expression_frames(each, frames))
            if isinstance(statement, tree.If):
                inner = max(self._frames(statement.then, frames), self._frames(statement.otherwise, frames))
                deepest = max(deepest, inner)
        return 1 + deepest

    def _expression_frames(self, node: Expression, frames: dict[str, int]) -> int:
        below = max((self._expression_frames(each, frames) for each in tree.children(node)), default=0)
        if isinstance(node, tree.Call):
            below = max(below, frames[node.function])
        return 1 + below

    def _check_pattern(self, node: tree.PatternCall) -> None:
        for pattern in node.patterns:
            try:
                size = program_size(node.function, pattern)
                positions = position_count(node.function, pattern)
            except PatternError as error:
                raise self._error(PolicyCode.PATTERN, error.reason, node) from None
            if size > ADMITTED.instructions or positions > ADMITTED.positions:
                reason = (
                    f"a pattern of {size} compiled instructions and {positions} positions; "
                    f"at most {ADMITTED.instructions} and {ADMITTED.positions} are allowed"
                )
                raise self._error(PolicyCode.PATTERN, reason, node)
            self._instructions += size
            if self._instructions > ADMITTED.total_instructions:
                reason = f"the patterns have more than {ADMITTED.total_instructions} compiled instructions together"
                raise self._error(PolicyCode.PATTERN, reason, node)

    # -- kinds ----------------------------------------------------------------------------------------------------

    def check_kinds(self, scope: str, parameters: tuple[str, ...], body: Block) -> None:
        """Refuse operands whose type never fits; a local has a type if all its assignments have that type."""
        found: dict[str, set[_Kind]] = {name: {_Kind.ANY} for name in parameters}
        for statement in statements(body):
            if isinstance(statement, tree.Assign) and statement.value != tree.Constant(None):
                found.setdefault(statement.name, set()).add(_literal_kind(statement.value))
        for name, kinds in found.items():
            self._local_kinds[scope, name] = kinds.pop() if len(kinds) == 1 else _Kind.ANY
        for statement in statements(body):
            self._check_statement(scope, statement)
        for node in walk(body):
            self._check_node(scope, node)

    def _check_statement(self, scope: str, statement: Statement) -> None:
        match statement:
            case tree.Return(value) if not scope and value != tree.Constant(None):
                self._must_be(scope, value, {_Kind.MESSAGE}, "a policy returns a message or NULL")
            case tree.SetAttribute(_, _, value) | tree.SetProperty(_, _, value):
                self._must_be(scope, value, _VALUES, "attributes and variables have values")
            case tree.SetData(_, value):
                self._must_be(scope, value, {_Kind.DATA, _Kind.STRING, _Kind.VALUE}, "data is getData(m) or a string")
            case tree.If(condition, _, _):
                self._must_be(scope, condition, _VALUES - {_Kind.STRING}, "a condition is a comparison or a test")

    def _check_node(self, scope: str, node: Expression) -> None:
        match node:
            case tree.Attribute(message, _) | tree.DataOf(message) | tree.Project(message, _):
                self._must_be(scope, message, {_Kind.MESSAGE}, "a message is wanted here")
            case tree.Compress() | tree.Summarise():
                message, *values = tree.children(node)
                self._must_be(scope, message, {_Kind.MESSAGE}, "a message is wanted here")
                for value in values:
                    self._must_be(scope, value, {_Kind.NUMBER, _Kind.VALUE}, "a number is wanted here")
            case tree.Arithmetic() | tree.Sign():
                for each in tree.children(node):
                    self._must_be(scope, each, {_Kind.NUMBER, _Kind.VALUE}, f"{node.op} works on numbers")
            case tree.Comparison(op, left, right):
                for each in (left, right):
                    self._must_be(scope, each, _VALUES, f"{op} compares values")
                kinds = {self._kind(scope, left), self._kind(scope, right)}
                if kinds == {_Kind.STRING, _Kind.NUMBER}:
                    reason = f"{op} compares a string with a number, which is never true"
                    raise self._error(PolicyCode.TYPE, reason, node)
            case tree.AllOf() | tree.AnyOf() | tree.OddOf() | tree.Inverse():
                for each in tree.children(node):
                    self._must_be(scope, each, _VALUES - {_Kind.STRING}, "a comparison or a test is wanted here")
            case _:
                pass

    def _must_be(self, scope: str, node: Expression, allowed: set[_Kind] | frozenset[_Kind], why: str) -> None:
        kind = self._kind(scope, node)
        if kind is not _Kind.ANY and kind not in allowed:
            raise self._error(PolicyCode.TYPE, f"{why}; this is {kind.value}", node)

    def _kind(self, scope: str, node: Expression) -> _Kind:
        if isinstance(node, tree.Local):
            return self._local_kinds.get((scope, node.name), _Kind.ANY)
        return _literal_kind(node)


def _literal_kind(node: Expression) -> _Kind:
    """Return the type of the value of *node* (unless NULL); locals and calls count as any type."""
    match node:
        case tree.Constant(value):
            return _Kind.ANY if value is None else _Kind.STRING if isinstance(value, str) else _Kind.NUMBER
        case tree.Local() | tree.Call():
            return _Kind.ANY
        case tree.NewMessage() | tree.Compress() | tree.Project() | tree.Summarise():
            return _Kind.MESSAGE
        case tree.DataOf():
            return _Kind.DATA
        case tree.TextCall():
            return _Kind.STRING
        case tree.Attribute() | tree.Property():
            return _Kind.VALUE
        case _:
            return _Kind.NUMBER
