"""Shaping: the policy of a device or of its subscriptions decides about each delivery to it (SUBLIM, section 4).

Rule: every delivery to a device with a policy comes here on its way from ``DeliveryHandler``: held, live and retained
messages. Only the broker's own messages ($SYS, answers) are not decided about, since they are not notifications.
Rule: a decision is appended to the log before its bytes may leave: the shell writes to a link only when the log
contains the seq ``Link.after_seq``. At QoS 2 the bytes also wait for fsync.
Rule: a delivery is decided once. If it has a decision but no receipt, it is sent as decided, also after a crash.
Rule: a device waits only for its own transforms. While one runs, nothing else is sent to the device. So messages stay
in order, and the next policy sees the variables that the last one left.
Rule: a copy that needs no transform waits behind transforms for at most ``MAX_WAIT_US``; then the copies before it are
withheld with a time-out. The same happens if more than ``_MAX_LOOKED_AT`` copies wait.
Rule: a decision reflects the state at its seq and time. So the policy runs again when its transform is done. The result
counts if the policy still asks for the same transform; otherwise the new transform is made, a few times at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain as chained
from typing import NamedTuple

from whimbrel.broker.deliver.read_messages import ReadMessages
from whimbrel.broker.limits.work_budget import FREE_STEPS, StepBudget
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.wire.clients import Link, LiveClient, Outgoing
from whimbrel.hold.sessions import RETAINED
from whimbrel.language.policies.limits import PolicyLimits
from whimbrel.model.attributes import Attributes
from whimbrel.model.facts import Decided, Outcome
from whimbrel.model.notification import EXACTLY_ONCE, NotificationId
from whimbrel.mqtt.codes import PacketType
from whimbrel.mqtt.properties import decode_properties, passed_on
from whimbrel.node.publication import KeptNotification
from whimbrel.shape.asking import Asked, Delivery, ask
from whimbrel.shape.decision import SUSPENDED, Decision, decision_fact, finish
from whimbrel.shape.faults import Fault
from whimbrel.shape.state import PolicyVersion
from whimbrel.shape.transforms import Work

__all__ = ["LOOK_US", "MAX_WAIT_US", "PolicyHandler", "TransformJob"]

MAX_WAIT_US = 500_000
"""Longest time in microseconds that a copy without a transform waits behind others; one transform may take as long."""
LOOK_US = 100_000
"""Interval in microseconds at which the shell calls ``TransformJob.look`` for waiting copies."""
_MAX_LOOKED_AT = 1_024
"""Most waiting copies that are searched for the first that needs no transform; if more wait, the next counts as
one."""
_MAX_RUN = 4
"""Most pictures, and most other bodies, for which the search ``_first_plain`` runs the policy."""

_OF_DECISION = 40
"""Cost of one decision without its steps; the unit is the cost of sending one message."""
_MAX_TRIES = 3
"""Most transforms that are made for one delivery whose policy asks for a different one each time."""
_Chain = Sequence[PolicyVersion | None]
_STEPS_A_MESSAGE = 5
"""Policy steps that cost as much time as sending one message; one turn sends a thousand messages."""
_TOLD_AGAIN_US = 60_000_000
"""Shortest time in microseconds between two notices to a policy's owner that the same device is slowed."""
_MAX_TOLD = 10_000
_Slowed = Callable[[PolicyVersion, str, int, int], None]
_Suspended = Callable[[PolicyVersion, str, str | None, int], None]


class _Rest(NamedTuple):
    """A device whose deliveries pause until *until*, a time in microseconds."""

    client: LiveClient
    until: int


class TransformJob(NamedTuple):
    """A transform of a body that a decision waits for; the shell runs it, and calls ``then`` with its result."""

    shaping: PolicyHandler
    client: LiveClient
    link: Link
    out: Outgoing
    chain: _Chain
    """The policies still to be run; the first has decided, and only the transformed body is missing."""
    work: Work
    """The transform to run."""
    tries: int

    def then(self, result: object, now: int) -> None:
        """Handle the result of the transform: the transformed body, or a fault.

        None means that the transform is still running; then check if other messages have waited too long for it.
        """
        assert result is None or isinstance(result, bytes | Fault)
        if result is not None:
            self.shaping.on_transform_result(self, result, now)
        elif self.is_pending:
            self.shaping.look(self, now)

    def wait_from(self, now: int) -> None:
        """Count the waiting time of the other messages from *now* on, because no transform could run before."""
        self.link.shaping_since = now

    @property
    def is_pending(self) -> bool:
        """Whether the device still waits for the transformed body."""
        return self.link.shaping is self


class PolicyHandler:
    """Decides about deliveries with policies.

    *send* and *withhold* carry out a decision, *go_on* sends the messages behind it, and *go_on_later* sends them in a
    later turn.
    """

    def __init__(
        self,
        commits: CommitQueue,
        state: BrokerState,
        limits: PolicyLimits,
        steps_per_second: int = 0,
        *,
        send: Callable[[LiveClient, Link, Outgoing, int], None],
        withhold: Callable[[LiveClient, Outgoing, int], None],
        go_on: Callable[[LiveClient, int], object],
        go_on_later: Callable[[LiveClient], None],
    ) -> None:
        self._commits, self._state, self._limits = commits, state, limits
        self._decisions = state.decisions
        self._budget = StepBudget(steps_per_second)
        self._resting: dict[Link, _Rest] = {}
        """Devices that pause because their policies took too many steps."""
        self._send, self._withhold, self._go_on, self._go_on_later = send, withhold, go_on, go_on_later
        self._steps = 0
        """Steps of all decisions so far; the difference of two readings gives the steps of one."""
        self.jobs: deque[TransformJob] = deque()
        """Transforms for the shell to run."""
        self._messages = ReadMessages()
        self.on_suspended: _Suspended = lambda _version, _device, _publisher, _now: None
        """Notifies the owner of a policy that it is suspended for a device and publisher."""
        self.on_slowed: _Slowed = lambda _version, _device, _steps, _now: None
        """Notifies the owner of a policy that a device pauses, with the number of steps that caused it."""
        self._slowed: dict[str, int] = {}
        """Per device, when the owner of its policy was last notified that it pauses."""

    def is_for(self, client: LiveClient, out: Outgoing) -> bool:
        """Return whether policies decide about a delivery, or have decided about it before."""
        if not out.terms or not out.message.seq or out.is_decided:
            return False
        if self._decisions.find_decisions(client.id, out.message.seq):
            return True
        return self._decisions.are_any and bool(self._chain(client, out))

    def is_next(self, client: LiveClient) -> bool:
        """Return whether policies decide about the next message for a client."""
        waiting = client.live or client.queue
        return self._decisions.are_any and bool(waiting) and self.is_for(client, waiting[0])

    def _chain(self, client: LiveClient, out: Outgoing) -> _Chain:
        terms = out.terms if len(out.terms) == 1 else sorted(out.terms, key=lambda each: each.session)
        return self._decisions.shape.find_policies(client.id, [name for each in terms for name in each.policies])

    def begin(self, client: LiveClient, link: Link, out: Outgoing, now: int) -> int:
        """Decide about a delivery that may be sent now, and carry it out; return the cost.

        The unit is the cost of sending one message.
        """
        before = self._steps
        self._begin(client, link, out, self._commits.now(now))
        return _OF_DECISION + (self._steps - before) // _STEPS_A_MESSAGE

    def wake(self, now: int) -> list[LiveClient]:
        """Return the devices whose pause is over."""
        over = [link for link, rest in self._resting.items() if rest.until <= now or link.closing is not None]
        woken = [(link, self._resting.pop(link)) for link in over]
        for link, rest in woken:
            if link.shaping is rest:
                link.shaping = None
        return [rest.client for link, rest in woken if rest.client.link is link]

    def _count(self, client: LiveClient, version: PolicyVersion | None, decision: Decision, now: int) -> None:
        """Count a decision's steps; if a device's policies took too many, pause it and notify the policy's owner."""
        steps = decision.steps_needed
        self._steps += steps
        if steps <= FREE_STEPS:
            return
        until, link = self._budget.spend(client.id, steps, now), client.link
        if until is not None and link is not None and link.shaping is None:
            link.shaping = self._resting[link] = _Rest(client, until)
            if version is not None and now - self._slowed.get(client.id, -_TOLD_AGAIN_US) >= _TOLD_AGAIN_US:
                if len(self._slowed) >= _MAX_TOLD:
                    self._slowed.clear()
                self._slowed[client.id] = now
                self.on_slowed(version, client.id, steps, now)

    def _begin(self, client: LiveClient, link: Link, out: Outgoing, now: int) -> None:
        known = () if out.via is RETAINED else self._decisions.find_decisions(client.id, out.message.seq)
        delivered = next((fact for fact in known if fact.outcome is Outcome.DELIVERED), None)
        if delivered is not None:
            self._hand_over(client, link, out, delivered)
            return
        asked = {fact.policy for fact in known}
        chain = [version for version in self._chain(client, out) if version is None or version.name not in asked]
        if asked and not chain:
            self._withhold(client, out, now)
        else:
            self._ask(client, link, out, chain, now)

    def _ask(
        self,
        client: LiveClient,
        link: Link,
        out: Outgoing,
        chain: _Chain,
        now: int,
        *,
        made: tuple[TransformJob, bytes | Fault] | None = None,
    ) -> None:
        """Run the remaining policies in their order, until a policy decides to send the message.

        *made* is a finished transform and its result. It is used if the first of these policies still asks for that
        transform.
        """
        for at, (version, answer, sends_original) in enumerate(self._answers(client, out, chain, now)):
            if sends_original or version is None:
                self._pass(client, link, out)
                return
            if answer is None:
                self._append(client, out, version, SUSPENDED, now)
                made = None
                continue
            decision = answer
            self._count(client, version, decision, now)
            if decision.work is not None and made is not None:
                decision = _with_body(decision, *made)
            if decision.work is not None and self._is_late(client, link, now):
                decision = finish(decision, Fault.TIME_OUT)
            if decision.work is not None:
                if link.shaping_since is None:
                    link.shaping_since = now
                tries = 1 if made is None else made[0].tries + 1
                link.shaping = job = TransformJob(self, client, link, out, chain[at:], decision.work, tries)
                self.jobs.append(job)
                return
            made = None
            fact = self._append(client, out, version, decision, now)
            if fact.outcome is Outcome.DELIVERED:
                self._hand_over(client, link, out, fact, body=decision.body)
                return
        self._withhold(client, out, now)

    def _answers(self, client: LiveClient, out: Outgoing, chain: _Chain, now: int) -> Iterator[Asked]:
        """Run the policies *chain* on a message in order; each sees the device state at the moment when it runs."""
        message, decisions = out.message, self._decisions
        found = self._messages.read(message)
        delivery = Delivery(client.id, message.publisher, found.arrival, found.body)
        return ask(decisions.shape, decisions.agents, chain, delivery, now=now, limits=self._limits)

    def on_transform_result(self, job: TransformJob, result: bytes | Fault, now: int) -> None:
        """Handle the result of a transform."""
        client, link, out = job.client, job.link, job.out
        if link.shaping is not job:
            return
        link.shaping = None
        if client.link is not link or link.closing is not None:
            return  # the connection is gone; the hold will deliver the message again
        now = self._commits.now(now)
        if self._chain(client, out)[-len(job.chain) :] != tuple(job.chain):  # the policies changed meanwhile
            self.begin(client, link, out, now)
        else:
            self._ask(client, link, out, job.chain, now, made=(job, result))
        self._go_on(client, now)
        if link.shaping is None:
            link.shaping_since = None

    def look(self, job: TransformJob, now: int) -> None:
        """Withhold the copy of a message that *job* transforms, if other copies have waited too long behind it."""
        now = self._commits.now(now)
        if self._is_late(job.client, job.link, now):
            self.on_transform_result(job, Fault.TIME_OUT, now)

    def _is_late(self, client: LiveClient, link: Link, now: int) -> bool:
        """Return whether a copy that needs no transform has waited too long behind copies that do."""
        if link.shaping_since is None or now - link.shaping_since < MAX_WAIT_US - LOOK_US:
            return False
        first = self._first_plain(client, now)
        if first is None:
            return False
        return now - max(link.shaping_since, first.published_at) >= MAX_WAIT_US - LOOK_US

    def _first_plain(self, client: LiveClient, now: int) -> KeptNotification | None:
        """Return the first waiting message that needs no transform, within the limits of the search."""
        runs = {True: 0, False: 0}
        for place, out in enumerate(chained(client.live, client.queue)):
            if place == _MAX_LOOKED_AT:
                return out.message
            found = self._messages.read(out.message)
            if not found.may_need_work or not self.is_for(client, out):
                return out.message
            if runs[found.is_picture] < _MAX_RUN:
                runs[found.is_picture] += 1
                if not self._needs_work(client, out, now):
                    return out.message
        return None

    def _needs_work(self, client: LiveClient, out: Outgoing, now: int) -> bool:
        """Return whether the first policy that decides about a copy asks for a transform of its body."""
        asked = next(self._answers(client, out, self._chain(client, out), now), None)
        if asked is None or asked.decision is None:
            return False
        self._count(client, asked.version, asked.decision, now)
        return asked.decision.work is not None

    def _append(
        self,
        client: LiveClient,
        out: Outgoing,
        version: PolicyVersion,
        decision: Decision,
        now: int,
    ) -> Decided:
        """Append a decision to the log, and apply it."""
        commits, publisher = self._commits, out.message.publisher
        fact = decision_fact(
            decision,
            NotificationId(commits.node, out.message.seq),
            node=commits.node,
            seq=commits.seq,
            now=now,
            session=out.terms[0].session,
            device=client.id,
            policy=version.name,
            policy_seq=version.seq,
            is_kept=out.qos > 0,
            publisher=publisher,
        )
        commits.append(fact)
        if decision.fault is None:
            self._state.note(fact)
            return fact
        shape = self._decisions.shape
        was_suspended = shape.is_suspended(version.name, client.id, publisher)
        self._state.note(fact)
        if not was_suspended and shape.is_suspended(version.name, client.id, publisher):
            self.on_suspended(version, client.id, publisher, now)
        return fact

    def _hand_over(
        self, client: LiveClient, link: Link, out: Outgoing, fact: Decided, *, body: bytes | None = None
    ) -> None:
        """Send a delivery as decided, with *body* if it was decided just now, otherwise with the stored result."""
        original, is_new = out.message, body is not None
        payload = self._messages.read(original).body
        if body is None:
            body = payload if fact.body is None else fact.body
        message = original
        if body != payload or fact.attributes is not None:
            message = _reshape(original, body, fact.attributes)
        out = out._replace(message=message, is_decided=True)
        link.after_seq = max(link.after_seq, fact.seq)
        self._send_in_turn(client, link, out, of=fact.seq if is_new and out.qos == EXACTLY_ONCE else None)

    def _pass(self, client: LiveClient, link: Link, out: Outgoing) -> None:
        """Send a message unchanged."""
        self._send_in_turn(client, link, out._replace(is_decided=True), of=None)

    def send_behind(self, client: LiveClient, link: Link, out: Outgoing) -> None:
        """Send a message without a policy, in order behind messages that were decided and not sent yet."""
        self._send_in_turn(client, link, out, of=None)

    def _send_in_turn(self, client: LiveClient, link: Link, out: Outgoing, *, of: int | None) -> None:
        """Send a message once all earlier facts are accepted; if given, the decision with the seq *of* must be durable.

        Until then the message takes room in the connection's buffer, as if it were already written.
        """
        size = len(out.message.payload)
        send = partial(self._send_now, client, link, out, size)
        link.unsent += 1
        link.unsent_bytes += size
        link.room -= size
        if of is None:
            self._commits.then(send)
        else:
            self._commits.enter_appended(of, send, is_owed=True)

    def _send_now(self, client: LiveClient, link: Link, out: Outgoing, size: int) -> None:
        was_full = link.room <= 0
        link.unsent -= 1
        link.unsent_bytes -= size
        if client.link is link and link.closing is None:
            if not link.is_choked:
                link.room += size
            self._send(client, link, out, self._commits.last_at)
            if was_full and link.room > 0:  # perhaps nothing was written, so no other event would resume sending
                self._go_on_later(client)


def _with_body(decision: Decision, job: TransformJob, result: bytes | Fault) -> Decision:
    """Return *decision* with the transform's result, if the decision still wants that transform."""
    assert decision.work is not None
    if isinstance(result, Fault) or decision.work.is_equal(job.work):
        return finish(decision, result)
    return finish(decision, Fault.TIME_OUT) if job.tries >= _MAX_TRIES else decision


def _reshape(message: KeptNotification, payload: bytes, attributes: Attributes | None) -> KeptNotification:
    """Return a notification as a policy changed it: another *payload*, and other *attributes* unless None.

    User properties are attributes too: a property whose value is no longer among the attributes is removed.
    """
    properties = message.properties
    if attributes is not None and properties:
        found = decode_properties(properties, PacketType.PUBLISH)
        kept = tuple((name, value) for name, value in found.user if attributes.get(name) == value)
        properties = passed_on(found.with_user(kept))
    return message.with_payload(payload, properties)
