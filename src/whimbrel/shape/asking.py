"""Asking the policies of a delivery, one after the other, until one sends something (SUBLIM, section 4).

The broker asks as it delivers, a worker where a log has no decisions, and the check of a log's decisions evaluates one
of them again: all with these functions.
Rule: a policy that is suspended for a device and publisher withholds, unless its text says that it then sends.
Rule: the state that a policy sees is that of the moment in which it is asked, so a caller applies what one decided
before it asks the next.
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
    """A notification of *publisher* for *device*, about which policies decide."""

    device: str
    publisher: str | None
    arrival: Arrival
    body: bytes


class Asked(NamedTuple):
    """The answer of one policy."""

    version: PolicyVersion | None
    """None: a subscription without a policy."""
    decision: Decision | None
    """None if the policy was not run: there is none, it cannot be read, or it is suspended."""
    sends_original: bool
    """Without a decision: what arrived is sent; else it is withheld as far as this policy goes."""


def ask(
    state: ShapeState,
    agents: Agents,
    chain: Sequence[PolicyVersion | None],
    delivery: Delivery,
    *,
    now: int,
    limits: PolicyLimits,
) -> Iterator[Asked]:
    """Yield the answers of the policies of a *chain* (``ShapeState.asked``), in order; the first that sends is last."""
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
