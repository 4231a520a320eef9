"""Decisions: the result of running a policy on a notification, the device's variables and the time (section 4.1).

Rule: the program runs synchronously, on the caller's thread, within its step limit. A transform that is not light is
returned as ``work``: the worker's result is added with ``finish``, and only then the decision is complete.
Rule: a decision that fails withholds, changes no variable, and says why; nothing is raised.
Rule: the decision is a fact. It is logged before the bytes leave, and a redelivery sends the logged decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from whimbrel.language.policies.limits import DEFAULT_POLICY_LIMITS, PolicyCost, PolicyLimits
from whimbrel.language.policies.policy import Policy
from whimbrel.language.policies.semantics import COMPARED_A_STEP
from whimbrel.language.policies.values import Arrival, Message, Run
from whimbrel.model.attributes import NO_ATTRIBUTES, Attributes, Scalar
from whimbrel.model.notification import Notification, NotificationId
from whimbrel.model.outcome import Outcome
from whimbrel.model.policies import Decided
from whimbrel.shape.bodies import digest_of, write_body
from whimbrel.shape.faults import Fault, TransformError
from whimbrel.shape.transforms import Work, cost_of, drop_needless, perform
from whimbrel.shape.variables import fit, variable_bytes

__all__ = ["MAX_SET_BYTES", "SUSPENDED", "Decision", "decide", "decide_on", "decision_fact", "finish"]


MAX_SET_BYTES = 65_536
"""Most bytes of names and values of the attributes that a policy sets: they are encoded on the broker's loop."""
_NOTHING = PolicyCost()


class Decision(NamedTuple):
    """Decision of a policy; *body* is final once ``work`` is done. A tuple, because each hand-over creates one."""

    outcome: Outcome
    fault: Fault | None = None
    body: bytes = b""
    is_original: bool = False
    """Whether the body is the notification's own."""
    work: Work | None = None
    attributes: Attributes | None = None
    """Attributes to hand over; None if they are the notification's own."""
    read: Attributes = NO_ATTRIBUTES
    changed: Attributes = NO_ATTRIBUTES
    removed: tuple[str, ...] = ()
    cost: PolicyCost = _NOTHING
    plain_steps: int = 0
    """Steps without those for compared characters, which older versions did not count."""
    steps_needed: int = 0
    """Steps that the run really took: *steps* without those charged for string functions but not needed."""


SUSPENDED = Decision(Outcome.WITHHELD, Fault.SUSPENDED)
"""The decision of a suspended policy, which is not run."""


def decide(
    policy: Policy,
    notification: Notification,
    automatic: Attributes,
    manual: Attributes,
    *,
    now: int,
    limits: PolicyLimits = DEFAULT_POLICY_LIMITS,
) -> Decision:
    """Run *policy* once for one device."""
    arrival = Arrival(notification.attributes, notification.subject or "", len(notification.body))
    return decide_on(policy, arrival, notification.body, automatic, manual, now=now, limits=limits)


def decide_on(
    policy: Policy,
    arrival: Arrival,
    body: bytes,
    automatic: Attributes,
    manual: Attributes,
    *,
    now: int,
    limits: PolicyLimits = DEFAULT_POLICY_LIMITS,
    takes_empty_for_none: bool = False,
) -> Decision:
    """Run *policy* on the known parts of a notification; a *body* that is not an image, JSON or CBOR may be b"".

    An older version treated an empty string in ``setData`` as no data: *takes_empty_for_none* reproduces its decisions.
    """
    run = Run(arrival, automatic, manual, now)
    try:
        message = policy.run(run)
        if run.changed and not fit(manual, run.changed, limits):
            return _fail(run, Fault.VARIABLES)
        if message is None:
            return _make_decision(run, Outcome.WITHHELD)
        return _shape(run, message, body, limits, takes_empty_for_none=takes_empty_for_none)
    except TransformError as error:
        return _fail(run, error.fault)
    except Exception:  # noqa: BLE001 # section 4.3: all exceptions are caught; one here is our defect, not the device's
        return _fail(run, Fault.ERROR)


def _shape(
    run: Run, message: Message, body: bytes, limits: PolicyLimits, *, takes_empty_for_none: bool = False
) -> Decision:
    data, changes = message.data, message.changes
    attributes = None
    if sum(variable_bytes(name, value) for name, value in changes.items() if value is not None) > MAX_SET_BYTES:
        raise TransformError(Fault.ATTRIBUTES)
    if changes or not message.is_original:
        attributes = _attributes(run.arrival.attributes if message.is_original else {}, changes)
    source = body if data.is_original else data.text
    if source is None or (takes_empty_for_none and not source and not data.is_original):
        sent = run.arrival.attributes if message.is_original and not takes_empty_for_none else {}
        source, changes = write_body(sent if attributes is None else attributes), {}
    elif isinstance(source, str):
        source = source.encode()
    work = drop_needless(Work(source, data.transforms, changes)) if data.transforms or changes else None
    if work is None:
        return _make_decision(run, Outcome.DELIVERED, source, attributes, is_original=data.is_original)
    cost = cost_of(work, limits)
    made = _make_decision(
        run, Outcome.DELIVERED, source, attributes, is_original=data.is_original, work=work, cost=cost
    )
    return finish(made, _perform(work, limits)) if work.is_light else made


def _perform(work: Work, limits: PolicyLimits) -> bytes | Fault:
    """Perform light work and return the new body, or the fault; any exception is the body's fault, as in a worker."""
    try:
        return perform(work, limits)
    except TransformError as error:
        return error.fault
    except Exception:  # noqa: BLE001 # a body from outside is to blame, not the policy
        return Fault.UNREADABLE


def _attributes(original: Attributes, changes: Mapping[str, Scalar | None]) -> Attributes:
    return {name: value for name, value in {**original, **changes}.items() if value is not None}


def _make_decision(
    run: Run,
    outcome: Outcome,
    body: bytes = b"",
    attributes: Attributes | None = None,
    *,
    is_original: bool = False,
    work: Work | None = None,
    cost: PolicyCost = _NOTHING,
) -> Decision:
    """Return the decision with the variables that the run read and changed, and its step counts."""
    steps, compared = run.steps, run.compared // COMPARED_A_STEP
    needs = steps - run.spared + compared
    counted = PolicyCost(steps + compared, cost.bytes, cost.pixels)
    changes = run.changed
    if not changes:
        return Decision(
            outcome, None, body, is_original, work, attributes, run.read, NO_ATTRIBUTES, (), counted, steps, needs
        )
    changed = {name: value for name, value in changes.items() if value is not None}
    removed = tuple(name for name, value in changes.items() if value is None)
    return Decision(
        outcome, None, body, is_original, work, attributes, run.read, changed, removed, counted, steps, needs
    )


def _fail(run: Run, fault: Fault) -> Decision:
    compared = run.compared // COMPARED_A_STEP
    return Decision(
        outcome=Outcome.WITHHELD,
        fault=fault,
        read=run.read,
        cost=PolicyCost(run.steps + compared),
        plain_steps=run.steps,
        steps_needed=run.steps - run.spared + compared,
    )


def finish(decision: Decision, result: bytes | Fault) -> Decision:
    """Return *decision* with the result of its work: the body, or a fault, which is never one of the policy."""
    if isinstance(result, Fault):
        result = Fault.DECODER if result.is_of_policy else result
        return decision._replace(
            outcome=Outcome.WITHHELD,
            fault=result,
            body=b"",
            is_original=False,
            work=None,
            attributes=None,
            changed=NO_ATTRIBUTES,
            removed=(),
        )
    source = b"" if decision.work is None else decision.work.body
    return decision._replace(body=result, work=None, is_original=decision.is_original and result == source)


def decision_fact(
    decision: Decision,
    notification: NotificationId,
    *,
    node: str,
    seq: int,
    now: int,
    session: str,
    device: str,
    policy: str,
    policy_seq: int,
    is_kept: bool,
    publisher: str | None = None,
) -> Decided:
    """Return the log fact of a complete *decision*; *is_kept* stores the body, since it may have to be sent again."""
    is_sent = decision.outcome is Outcome.DELIVERED
    return Decided(
        node=node,
        seq=seq,
        decided_at=now,
        session=session,
        device=device,
        notification=notification,
        policy_seq=policy_seq,
        policy=policy,
        outcome=decision.outcome,
        reason=None if decision.fault is None else decision.fault.value,
        body_hash=digest_of(decision.body) if is_sent else None,
        body_bytes=len(decision.body) if is_sent else None,
        body=decision.body if is_sent and is_kept and not decision.is_original else None,
        attributes=decision.attributes if is_sent else None,
        read=decision.read,
        changed=decision.changed,
        removed=decision.removed,
        steps=decision.cost.steps,
        bytes_read=decision.cost.bytes,
        pixels_read=decision.cost.pixels,
        publisher=publisher,
    )
