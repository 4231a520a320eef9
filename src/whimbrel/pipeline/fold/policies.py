"""Policies in a worker: decisions of a log are checked, and where a log has none, they are made (SUBLIM, section 4).

The state that policies depend on is the node's, as in a broker (``node.policies``). Where a broker decided, each
decision is evaluated again with the state at its seq, and a difference is reported. Where no broker did (a log that
was generated or imported), the policies decide here, at each delivery.

Rule: counted limits are those of the node that decided, which the log does not have: a decision that a limit, a
time-out or a missing library ended is taken as it is, and an image is not made again by a library that may differ.
Rule: a notification's attributes are kept while it is held and the node has a policy, its body only if a policy that
was put before reads bodies. What was published before that, and what is retained, is not evaluated again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import cbor2

from whimbrel.language.policies.limits import DEFAULT_POLICY_LIMITS, PolicyLimits
from whimbrel.language.policies.policy import Policy
from whimbrel.language.policies.values import Arrival
from whimbrel.model.attributes import Attributes, Limits
from whimbrel.model.bounds import INT32_MAX, INT64_MAX
from whimbrel.model.facts import Decided, Outcome
from whimbrel.model.typed import from_typed, to_typed
from whimbrel.node.policies import Policies
from whimbrel.shape.asking import Delivery, ask, evaluate
from whimbrel.shape.bodies import BodyKind, kind_of
from whimbrel.shape.decision import Decision, finished
from whimbrel.shape.faults import Fault, TransformError
from whimbrel.shape.transforms import perform

__all__ = ["Content", "HandedOver", "KeptContent", "PolicyChecks", "attributes_bytes", "body_seen"]

_UNBOUNDED = PolicyLimits(**dict.fromkeys(PolicyLimits.__slots__, INT64_MAX))
_ANY_ATTRIBUTES = Limits(max_names=INT32_MAX, max_bytes=INT32_MAX, max_name_bytes=INT32_MAX)
_OWN_REASONS = frozenset({Fault.ATTRIBUTES.value, Fault.UNREADABLE.value})
"""Why a decision fails wherever it is made."""


class Content(NamedTuple):
    """What policies can see of a notification."""

    attributes: Attributes
    subject: str | None
    body_bytes: int
    body: bytes | None
    """None: it was not kept; b"" also if it is neither an image nor JSON nor CBOR."""
    publisher: str | None = None


def attributes_bytes(attributes: Attributes) -> bytes:
    """Return attributes as they are kept."""
    return cbor2.dumps(to_typed(attributes))


def body_seen(body: bytes) -> bytes:
    """Return what transforms may look at of a body: nothing, if it is neither an image nor JSON nor CBOR."""
    return b"" if kind_of(body) is BodyKind.OTHER else body


class KeptContent(NamedTuple):
    """What is kept of a notification that policies may see."""

    attributes: bytes
    body_bytes: int
    body: bytes | None
    publisher: str | None = None

    def read(self, subject: str | None) -> Content:
        """Return what a policy may see of it."""
        attributes = from_typed(cbor2.loads(self.attributes), limits=_ANY_ATTRIBUTES)
        return Content(attributes, subject, self.body_bytes, self.body, self.publisher)


class HandedOver(NamedTuple):
    """What policies decided about a hand-over."""

    outcome: Outcome
    body_hash: bytes | None = None
    """Of another body than the notification's own."""


_AS_IT_IS = HandedOver(Outcome.DELIVERED)


class PolicyChecks:
    """Decides by the *policies* of a node, and checks what its log says that they decided."""

    def __init__(self, policies: Policies) -> None:
        self._policies, self.shape = policies, policies.shape
        self.needs_bodies = any(self.reads_bodies(each.text) for each in self.shape.policies.values())
        """Whether any policy that was put reads bodies."""

    @property
    def are_any(self) -> bool:
        """Whether there is any policy."""
        return bool(self.shape.policies)

    def note_put(self, text: str | None) -> None:
        """Note that a policy with this *text* was put; None: it was removed, or a device chose one."""
        if text is not None:
            self.needs_bodies = self.needs_bodies or self.reads_bodies(text)

    def reads_bodies(self, text: str) -> bool:
        """Return whether the policy *text* may look at bodies."""
        policy = self._policies.agents.of(text)
        return policy is not None and policy.needs_bodies

    # -- a log without decisions -------------------------------------------------------------------------------------

    def decide(self, device: str, named: Sequence[str | None], content: Content | None, *, now: int) -> HandedOver:
        """Decide about a hand-over for subscriptions that name policies, and take in what was decided."""
        outcome, chain = Outcome.DELIVERED, self.shape.asked(device, named)
        if content is None:
            return _AS_IT_IS
        delivery, limits = _delivery(device, content), DEFAULT_POLICY_LIMITS
        for version, made, sends_original in ask(
            self.shape, self._policies.agents, chain, delivery, now=now, limits=limits
        ):
            if sends_original or version is None:
                return _AS_IT_IS
            if made is None:
                outcome = Outcome.WITHHELD
                continue
            decision = _completed(made, limits)
            self.shape.change_variables(device, version.name, decision.changed, decision.removed)
            reason = None if decision.fault is None else decision.fault.value
            self.shape.count_failure(version.name, device, content.publisher, reason)
            if decision.outcome is Outcome.DELIVERED:
                return HandedOver(Outcome.DELIVERED, _hash_of(decision))
            outcome = Outcome.WITHHELD
        return HandedOver(outcome)

    # -- a log with decisions ----------------------------------------------------------------------------------------

    def difference(self, fact: Decided, content: Content | None, body_hash: bytes) -> str | None:
        """Return how *fact* differs from what its policy decides with the state before it; None if it does not.

        *body_hash* is that of the notification's own body. A decision that is in the state already is not checked.
        """
        if fact.seq <= self._policies.seq:
            return None
        version = self.shape.policies.get(fact.policy)
        if version is None or version.seq != fact.policy_seq:
            found = "none" if version is None else f"version {version.seq}"
            return f"decision {fact.seq} is of version {fact.policy_seq} of policy {fact.policy}; {found} is in force"
        if fact.reason == Fault.SUSPENDED.value:
            if self.shape.is_suspended(fact.policy, fact.device, fact.publisher):
                return None
            return f"decision {fact.seq} says that policy {fact.policy} is suspended; it is not suspended"
        policy = self._policies.agents.of(version.text)
        if policy is None or content is None or (content.body is None and policy.needs_bodies):
            return None
        difference = self._difference(policy, fact, content, body_hash)
        if difference is not None and policy.sets_data:
            older = self._difference(policy, fact, content, body_hash, takes_empty_for_none=True)
            return None if older is None else difference
        return difference

    def _difference(
        self, policy: Policy, fact: Decided, content: Content, body_hash: bytes, *, takes_empty_for_none: bool = False
    ) -> str | None:
        limits = _UNBOUNDED
        decision = evaluate(
            self.shape,
            policy,
            fact.policy,
            _delivery(fact.device, content),
            now=fact.decided_at,
            limits=limits,
            takes_empty_for_none=takes_empty_for_none,
        )
        is_image = decision.work is not None and decision.work.makes_pictures
        if not is_image:
            decision = _completed(decision, limits)
        for what, said, evaluated in _compared(fact, decision, content, body_hash, is_image=is_image):
            if said != evaluated and _written(said) != _written(evaluated):
                return f"decision {fact.seq} of policy {fact.policy} says {what} {said!r}; evaluated: {evaluated!r}"
        return None


def _compared(
    fact: Decided, decision: Decision, content: Content, own_hash: bytes, *, is_image: bool
) -> Iterator[tuple[str, object, object]]:
    """Yield what is compared: its name, what the log says, and what was evaluated."""
    yield "read", dict(fact.read), dict(decision.read)
    if fact.reason is not None and (is_image or fact.reason not in _OWN_REASONS):
        yield "changed", [dict(fact.changed), sorted(fact.removed)], [{}, []]
        return
    yield "reason", fact.reason, None if decision.fault is None else decision.fault.value
    yield "outcome", fact.outcome.value, decision.outcome.value
    yield "changed", [dict(fact.changed), sorted(fact.removed)], [dict(decision.changed), sorted(decision.removed)]
    if fact.steps != decision.plain_steps:  # as an older version counted
        yield "steps", fact.steps, decision.cost.steps
    if fact.outcome is not Outcome.DELIVERED:
        return
    attributes = None if fact.attributes is None else dict(fact.attributes)
    yield "attributes", attributes, None if decision.attributes is None else dict(decision.attributes)
    if not is_image:
        yield "body_hash", fact.body_hash, _hash_of(decision) or own_hash
        yield "body_bytes", fact.body_bytes, content.body_bytes if decision.is_original else len(decision.body)


def _delivery(device: str, content: Content) -> Delivery:
    arrival = Arrival(content.attributes, content.subject or "", content.body_bytes)
    return Delivery(device, content.publisher, arrival, content.body or b"")


def _written(value: object) -> bytes:
    """Return a value as bytes: a number that is none equals itself so."""
    return cbor2.dumps(value, canonical=True)


def _hash_of(decision: Decision) -> bytes | None:
    return None if decision.is_original else hashlib.sha256(decision.body).digest()


def _completed(decision: Decision, limits: PolicyLimits) -> Decision:
    """Return a decision with the body that it waits for."""
    if decision.work is None:
        return decision
    try:
        return finished(decision, perform(decision.work, limits))
    except TransformError as error:
        return finished(decision, error.fault)
