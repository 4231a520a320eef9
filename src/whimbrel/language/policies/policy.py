"""Policies: the public interface of the policy language."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from whimbrel.errors import PolicyError
from whimbrel.language.policies import tree
from whimbrel.language.policies.check import checking, statements, walk
from whimbrel.language.policies.codes import PolicyCode
from whimbrel.language.policies.compiler import compile_program
from whimbrel.language.policies.limits import DEFAULT_POLICY_LIMITS, PolicyCost, PolicyLimits
from whimbrel.language.policies.reading.parser import Parser, finish
from whimbrel.language.policies.tree import Block, Expression, Program, Statement

__all__ = ["Policy", "parse_policy"]


def parse_policy(text: str, limits: PolicyLimits = DEFAULT_POLICY_LIMITS) -> tuple[Program, PolicyCost]:
    """Return the checked tree of *text* and its highest cost, or raise ``PolicyError`` with code and position."""
    return finish(_parsing(text, limits))


def _parsing(text: str, limits: PolicyLimits) -> Generator[None, None, tuple[Program, PolicyCost]]:
    parser = Parser(text)
    try:
        program = yield from parser.parsing()
        yield
        bound = yield from checking(program, parser, limits)
    except RecursionError:  # our bounds are lower than Python's, unless the caller is deep in its stack already
        reason = "nested too deeply for the stack it was read on"
        raise PolicyError(PolicyCode.NESTING, reason, text, 0, len(text)) from None
    return program, bound


class Policy:
    """A checked policy, compiled once.

    >>> policy = Policy("if (m.pulse > 50) { return NULL; } return m;")
    >>> policy.bound
    PolicyCost(steps=9, bytes=0, pixels=0)
    """

    __slots__ = ("bound", "program", "run", "text")

    def __init__(self, text: str, *, limits: PolicyLimits = DEFAULT_POLICY_LIMITS) -> None:
        self.text = text
        self.program, self.bound = parse_policy(text, limits)
        self.run = compile_program(self.program)
        """Function from a ``Run`` to the message to send, or None."""

    @classmethod
    def reading(cls, text: str, limits: PolicyLimits) -> Generator[None, None, Policy]:
        """Parse and compile a policy, yielding after each part of the work; a long text takes about 30 ms in all."""
        program, bound = yield from _parsing(text, limits)
        yield
        policy = cls.__new__(cls)
        policy.text, policy.program, policy.bound, policy.run = text, program, bound, compile_program(program)
        return policy

    @property
    def sends_when_suspended(self) -> bool:
        """Whether notifications are sent unchanged while the policy is suspended, by ``sendWhenSuspended();``."""
        return self.program.sends_when_suspended

    @property
    def needs_images(self) -> bool:
        """Whether the policy may call ``compress``, which needs the image library."""
        return any(isinstance(node, tree.Compress) for node in self._expressions())

    @property
    def needs_bodies(self) -> bool:
        """Whether the policy needs the body itself and not only its length, because it may transform or rewrite it."""
        if any(isinstance(node, tree.Compress | tree.Project) for node in self._expressions()):
            return True
        return any(isinstance(each, tree.SetAttribute | tree.SetData) for each in self._statements())

    @property
    def sets_data(self) -> bool:
        """Whether the policy may set the data of a message."""
        return any(isinstance(each, tree.SetData) for each in self._statements())

    @property
    def attributes(self) -> frozenset[str]:
        """Attributes that the policy may read."""
        found = {node.name for node in self._expressions() if isinstance(node, tree.Attribute)}
        for node in self._expressions():
            if isinstance(node, tree.Summarise):
                found.update(node.names)
        return frozenset(found)

    @property
    def reads(self) -> frozenset[str]:
        """Names of the variables that the policy may read.

        For each set, such as ``device.responsible``, the name is ``responsible.*``.
        """
        found = {node.name for node in self._expressions() if isinstance(node, tree.Property)}
        found |= {f"{node.name}.*" for node in self._expressions() if isinstance(node, tree.Member)}
        return frozenset(found)

    @property
    def writes(self) -> frozenset[str]:
        """Manual variables that the policy may set or remove."""
        kinds = (tree.SetProperty, tree.RemoveProperty)
        return frozenset(each.name for each in self._statements() if isinstance(each, kinds))

    def _blocks(self) -> Iterable[Block]:
        return [self.program.body, *(function.body for function in self.program.functions)]

    def _expressions(self) -> Iterable[Expression]:
        return (node for block in self._blocks() for node in walk(block))

    def _statements(self) -> Iterable[Statement]:
        return (each for block in self._blocks() for each in statements(block))

    def __repr__(self) -> str:
        return f"Policy({self.text!r})"
