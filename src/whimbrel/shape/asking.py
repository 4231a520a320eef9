"""Evaluation of the policies of a delivery, one after the other, until one sends something (SUBLIM, section 4).

These functions have three callers: the broker when it delivers, a pipeline worker where a log has no decisions, and the
check of a log's decisions, which evaluates each of them again.
Rule: a policy that is suspended for a device and publisher withholds, unless its text calls ``sendWhenSuspended()``.
Rule: a policy sees the state of the moment in which it is evaluated, so a caller applies one decision before it
evaluates the next policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from whimbrel.language.policies.limits import PolicyLimits
from whimbrel.language.policies.policy import Policy
from whimbrel.language.policies.values import Arrival
from whimbrel.shape.agents import Agents
from whimbrel.shape.decision import Decision, decide_on
from whimbrel.shape.state import PolicyVersion, ShapeState

__all__ = ["Asked", "Delivery", "ask", "evaluate"]


class Delivery(NamedTuple):
    """A notification from *publisher* to *device*, before its policies have decided."""

    device: str
    publisher: str | None
    arrival: Arrival
    body: bytes


class Asked(NamedTuple):
    """The answer of one policy."""

    version: PolicyVersion | None
    """None: a subscription without a policy."""
    decision: Decision | None
    """None if no policy was run: there is none, it cannot be parsed, or it is suspended."""
    sends_original: bool
    """Only without a decision: whether the notification is sent unchanged; if false, this policy withholds it."""


def ask(
    state: ShapeState,
    agents: Agents,
    chain: Sequence[PolicyVersion | None],
    delivery: Delivery,
    *,
    now: int,
    limits: PolicyLimits,
) -> Iterator[Asked]:
    """Evaluate the policies of a *chain* (``ShapeState.asked``) in order, yielding each answer.

    An answer without a decision that sends ends the chain; after a decision that sends, the caller stops.
    """
    for version in chain:
        policy = None if version is None else agents.of(version.text)
        if version is None or policy is None:
            yield Asked(version, None, sends_original=True)
            return
        if state.is_suspended(version.name, delivery.device, delivery.publisher):
            yield Asked(version, None, sends_original=policy.sends_when_suspended)
            if policy.sends_when_suspended:
                return
            continue
        yield Asked(
            version, evaluate(state, policy, version.name, delivery, now=now, limits=limits), sends_original=False
        )


def evaluate(
    state: ShapeState,
    policy: Policy,
    name: str,
    delivery: Delivery,
    *,
    now: int,
    limits: PolicyLimits,
    takes_empty_for_none: bool = False,
) -> Decision:
    """Return the decision of a policy about a delivery, with the current state; its variables are those of *name*."""
    device = delivery.device
    return decide_on(
        policy,
        delivery.arrival,
        delivery.body,
        state.automatic(device),
        state.manual(device, name),
        now=now,
        limits=limits,
        takes_empty_for_none=takes_empty_for_none,
    )
