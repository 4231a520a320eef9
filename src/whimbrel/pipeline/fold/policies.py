"""Policies in a worker: check the decisions of a log, or make them if the log has none (SUBLIM, section 4).

Policies depend on state of the node, as in a broker (``node.policies``). If a broker decided, each decision is
evaluated again with the state at its seq, and a difference is reported. If no broker decided (the log was generated or
imported), the policies decide here, at each delivery.

Rule: the log does not record the limits of the node that decided. So a decision that ended by a limit, a time-out or a
missing library is accepted unchecked. An image is not made again, because another version of the library may differ.
Rule: a notification's attributes are stored while it is held, if the node has a policy. Its body is stored only if a
policy that was put before it reads bodies. Earlier publications, and retained messages, are not evaluated again.
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
from whimbrel.shape.decision import Decision, finish
from whimbrel.shape.faults import Fault, TransformError
from whimbrel.shape.transforms import perform

__all__ = ["Content", "HandedOver", "KeptContent", "PolicyChecks", "attributes_bytes", "body_seen"]

_UNBOUNDED = PolicyLimits(**dict.fromkeys(PolicyLimits.__slots__, INT64_MAX))
_ANY_ATTRIBUTES = Limits(max_names=INT32_MAX, max_bytes=INT32_MAX, max_name_bytes=INT32_MAX)
_OWN_REASONS = frozenset({Fault.ATTRIBUTES.value, Fault.UNREADABLE.value})
"""Faults of a decision that do not depend on the node where it is made."""


class Content(NamedTuple):
    """Content of a notification that policies can read."""

    attributes: Attributes
    subject: str | None
    body_bytes: int
    body: bytes | None
    """The body; None if it was not stored, b"" if it is neither an image nor JSON nor CBOR."""
    publisher: str | None = None


def attributes_bytes(attributes: Attributes) -> bytes:
    """Encode attributes, with their types, as CBOR."""
    return cbor2.dumps(to_typed(attributes))


def body_seen(body: bytes) -> bytes:
    """Return *body* if transforms can read it (an image, JSON or CBOR), else b""."""
    return b"" if kind_of(body) is BodyKind.OTHER else body


class KeptContent(NamedTuple):
    """Encoded content of a notification, as it is stored for policies."""

    attributes: bytes
    body_bytes: int
    body: bytes | None
    publisher: str | None = None

    def read(self, subject: str | None) -> Content:
        """Decode the content for a policy; *subject* is an argument, because the content is stored without it."""
        attributes = from_typed(cbor2.loads(self.attributes), limits=_ANY_ATTRIBUTES)
        return Content(attributes, subject, self.body_bytes, self.body, self.publisher)


class HandedOver(NamedTuple):
    """Result of the policies for a hand-over (delivery attempt)."""

    outcome: Outcome
    body_hash: bytes | None = None
    """Hash of the body to deliver; None: the notification's own body."""


_AS_IT_IS = HandedOver(Outcome.DELIVERED)


class PolicyChecks:
    """Evaluator of a node's *policies*: makes decisions, or checks the decisions in the node's log."""

    def __init__(self, policies: Policies) -> None:
        self._policies, self.shape = policies, policies.shape
        self.needs_bodies = any(self.reads_bodies(each.text) for each in self.shape.policies.values())
        """Whether a policy that was put so far reads bodies."""

    @property
    def are_any(self) -> bool:
        """Whether any policy is in force."""
        return bool(self.shape.policies)

    def note_put(self, text: str | None) -> None:
        """Update ``needs_bodies`` for a change of policies; *text* is that of a policy that was put, else None."""
        if text is not None:
            self.needs_bodies = self.needs_bodies or self.reads_bodies(text)

    def reads_bodies(self, text: str) -> bool:
        """Return whether the policy with this *text* may read bodies."""
        policy = self._policies.agents.of(text)
        return policy is not None and policy.needs_bodies

    # -- a log without decisions -------------------------------------------------------------------------------------

    def decide(self, device: str, named: Sequence[str | None], content: Content | None, *, now: int) -> HandedOver:
        """Return the policies' result for a hand-over (delivery attempt) to *device*, and update the policies' state.

        *named* has the name of the policy of each subscription of the device that matched, or None.
        """
        outcome, chain = Outcome.DELIVERED, self.shape.find_policies(device, named)
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
            decision = _complete(made, limits)
            self.shape.change_variables(device, version.name, decision.changed, decision.removed)
            reason = None if decision.fault is None else decision.fault.value
            self.shape.count_failure(version.name, device, content.publisher, reason)
            if decision.outcome is Outcome.DELIVERED:
                return HandedOver(Outcome.DELIVERED, _hash_of(decision))
            outcome = Outcome.WITHHELD
        return HandedOver(outcome)

    # -- a log with decisions ----------------------------------------------------------------------------------------

    def difference(self, fact: Decided, content: Content | None, body_hash: bytes) -> str | None:
        """Return how the logged decision *fact* differs from the result of its policy here; None if they are equal.

        The policy is run with the state before the decision; *body_hash* is that of the notification's own body. A
        decision that is already part of the restored state is not checked.
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
            decision = _complete(decision, limits)
        for what, said, evaluated in _compared_values(fact, decision, content, body_hash, is_image=is_image):
            if said != evaluated and _canonical_bytes(said) != _canonical_bytes(evaluated):
                return f"decision {fact.seq} of policy {fact.policy} says {what} {said!r}; evaluated: {evaluated!r}"
        return None


def _compared_values(
    fact: Decided, decision: Decision, content: Content, own_hash: bytes, *, is_image: bool
) -> Iterator[tuple[str, object, object]]:
    """Yield a triple for each value to compare: its name, its value in the log, and the value evaluated here."""
    yield "read", dict(fact.read), dict(decision.read)
    if fact.reason is not None and (is_image or fact.reason not in _OWN_REASONS):
        yield "changed", [dict(fact.changed), sorted(fact.removed)], [{}, []]
        return
    yield "reason", fact.reason, None if decision.fault is None else decision.fault.value
    yield "outcome", fact.outcome.value, decision.outcome.value
    yield "changed", [dict(fact.changed), sorted(fact.removed)], [dict(decision.changed), sorted(decision.removed)]
    if fact.steps != decision.plain_steps:  # an older version counted only plain steps
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


def _canonical_bytes(value: object) -> bytes:
    """Return a value as canonical CBOR, in which NaN equals NaN."""
    return cbor2.dumps(value, canonical=True)


def _hash_of(decision: Decision) -> bytes | None:
    return None if decision.is_original else hashlib.sha256(decision.body).digest()


def _complete(decision: Decision, limits: PolicyLimits) -> Decision:
    """Return the decision with the transform that it asks for applied to the body, or with the transform's fault."""
    if decision.work is None:
        return decision
    try:
        return finish(decision, perform(decision.work, limits))
    except TransformError as error:
        return finish(decision, error.fault)
