"""Shaping: the policy of a device, or of its subscriptions, decides about each hand-over (SUBLIM, section 4).

Rule: every hand-over to a device with a policy comes here, on its way from ``Delivering``: what is held, what is live
and what is retained. Only what the broker says of itself ($SYS, answers) is no notification, and is not decided about.
Rule: a decision is appended to the log before its bytes may leave: the shell does not write to a link before the log
has what ``Link.after_seq`` says. At QoS 2 the bytes wait for fsync as well.
Rule: a hand-over is decided once. One that was decided and has no receipt is sent as it was decided, after a crash too.
Rule: a device waits for its own transforms only; while one is made, nothing else is sent to it, so that all comes in
order and the next program finds the variables as the last one left them.
Rule: a copy that needs no transform waits behind such bodies for ``MAX_WAIT_US`` at most; then those before it are
withheld as taking too long. So are they where more copies wait than are looked at.
Rule: a decision is that of the state at its number, and of its time. So a program runs once more when its body is made,
and the body counts if it is still the one that is asked for; else it is made anew, a few times at most.
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
from whimbrel.shape.decision import SUSPENDED, Decision, decided, finished
from whimbrel.shape.faults import Fault
from whimbrel.shape.state import PolicyVersion
from whimbrel.shape.transforms import Work

__all__ = ["LOOK_US", "MAX_WAIT_US", "Shaping", "TransformJob"]

MAX_WAIT_US = 500_000
"""How long a copy without a transform waits behind others, in microseconds: as long as one transform may take."""
LOOK_US = 100_000
"""How often the shell lets ``TransformJob.look`` see whether one waits for so long."""
_MAX_LOOKED_AT = 1_024
"""Copies that wait, of which the first without a transform is found; if more wait, there may be one among these."""
_MAX_RUN = 4
"""Of these, pictures for which the policy has to run for that, and as many other bodies."""

_OF_DECISION = 40
"""As how many messages a decision counts, beside its steps."""
_MAX_TRIES = 3
"""How often a body is made for a hand-over that asks for another one each time."""
_Chain = Sequence[PolicyVersion | None]
_STEPS_A_MESSAGE = 5
"""As so many steps of a decision as a message counts, of which one turn sends a thousand."""
_TOLD_AGAIN_US = 60_000_000
"""For how long the owner of a slowed policy is not told again, for each device."""
_MAX_TOLD = 10_000
_Slowed = Callable[[PolicyVersion, str, int, int], None]
_Suspended = Callable[[PolicyVersion, str, str | None, int], None]


class _Rest(NamedTuple):
    """A device that waits until it may decide again, in microseconds."""

    client: LiveClient
    until: int


class TransformJob(NamedTuple):
    """A body that a decision waits for; the shell makes it, and calls ``then`` with what came of it."""

    shaping: Shaping
    client: LiveClient
    link: Link
    out: Outgoing
    chain: _Chain
    """The policies that are still to be asked; the first has decided, but for its body."""
    work: Work
    """What is to be made."""
    tries: int

    def then(self, result: object, now: int) -> None:
        """Take in the body, or the fault; if there is none yet (None), see whether others may wait for it longer."""
        assert result is None or isinstance(result, bytes | Fault)
        if result is not None:
            self.shaping.made(self, result, now)
        elif self.is_pending:
            self.shaping.look(self, now)

    def wait_from(self, now: int) -> None:
        """Count from *now* on how long other copies wait: bodies could not be made before."""
        self.link.shaping_since = now

    @property
    def is_pending(self) -> bool:
        """Whether its device waits for the body."""
        return self.link.shaping is self


class Shaping:
    """Decides about hand-overs; *send* and *withhold* do what was decided, and *go_on* sends what comes after it."""

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
        """Devices whose policies took more steps than they may, and wait."""
        self._send, self._withhold, self._go_on, self._go_on_later = send, withhold, go_on, go_on_later
        self._steps = 0
        """Steps of all decisions, to tell those of one."""
        self.jobs: deque[TransformJob] = deque()
        """What the shell is to make."""
        self._messages = ReadMessages()
        self.on_suspended: _Suspended = lambda _version, _device, _publisher, _now: None
        """Tells the owner of a policy for which device and publisher it is suspended."""
        self.on_slowed: _Slowed = lambda _version, _device, _steps, _now: None
        """Tells the owner of a policy which device waits because of how many steps."""
        self._slowed: dict[str, int] = {}
        """When the owner was last told that a device waits."""

    def is_for(self, client: LiveClient, out: Outgoing) -> bool:
        """Tell whether a hand-over is decided about, or was before."""
        if not out.terms or not out.message.seq or out.is_decided:
            return False
        if self._decisions.kept(client.id, out.message.seq):
            return True
        return self._decisions.are_any and bool(self._chain(client, out))

    def is_next(self, client: LiveClient) -> bool:
        """Tell whether what is to be sent to a client next is decided about."""
        waiting = client.live or client.queue
        return self._decisions.are_any and bool(waiting) and self.is_for(client, waiting[0])

    def _chain(self, client: LiveClient, out: Outgoing) -> _Chain:
        terms = out.terms if len(out.terms) == 1 else sorted(out.terms, key=lambda each: each.session)
        return self._decisions.shape.asked(client.id, [name for each in terms for name in each.policies])

    def begin(self, client: LiveClient, link: Link, out: Outgoing, now: int) -> int:
        """Decide about a hand-over that may be sent now, and do what was decided; return how many messages it took."""
        before = self._steps
        self._begin(client, link, out, self._commits.now(now))
        return _OF_DECISION + (self._steps - before) // _STEPS_A_MESSAGE

    def wake(self, now: int) -> list[LiveClient]:
        """Return the devices that have waited for long enough because of their steps."""
        over = [link for link, rest in self._resting.items() if rest.until <= now or link.closing is not None]
        woken = [(link, self._resting.pop(link)) for link in over]
        for link, rest in woken:
            if link.shaping is rest:
                link.shaping = None
        return [rest.client for link, rest in woken if rest.client.link is link]

    def _count(self, client: LiveClient, version: PolicyVersion | None, decision: Decision, now: int) -> None:
        """Count the steps of a decision; a device whose policies took too many waits, and the owner is told."""
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
        known = () if out.via is RETAINED else self._decisions.kept(client.id, out.message.seq)
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
        """Ask the policies that are left, one after the other, until one sends something.

        What was *made* for the first of them before counts if it is what that asks for now.
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
                decision = finished(decision, Fault.TIME_OUT)
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
        """Ask the policies of a *chain* about a copy, each with the state of the moment in which it is asked."""
        message, decisions = out.message, self._decisions
        found = self._messages.read(message)
        delivery = Delivery(client.id, message.publisher, found.arrival, found.body)
        return ask(decisions.shape, decisions.agents, chain, delivery, now=now, limits=self._limits)

    def made(self, job: TransformJob, result: bytes | Fault, now: int) -> None:
        """Take in what came of a transform."""
        client, link, out = job.client, job.link, job.out
        if link.shaping is not job:
            return
        link.shaping = None
        if client.link is not link or link.closing is not None:
            return  # the hold has it still
        now = self._commits.now(now)
        if self._chain(client, out)[-len(job.chain) :] != tuple(job.chain):  # another policy decides now
            self.begin(client, link, out, now)
        else:
            self._ask(client, link, out, job.chain, now, made=(job, result))
        self._go_on(client, now)
        if link.shaping is None:
            link.shaping_since = None

    def look(self, job: TransformJob, now: int) -> None:
        """Withhold the copy of a *job* that others have waited for long enough."""
        now = self._commits.now(now)
        if self._is_late(job.client, job.link, now):
            self.made(job, Fault.TIME_OUT, now)

    def _is_late(self, client: LiveClient, link: Link, now: int) -> bool:
        """Return whether a copy that needs no transform has waited for long enough behind those that do."""
        if link.shaping_since is None or now - link.shaping_since < MAX_WAIT_US - LOOK_US:
            return False
        first = self._first_plain(client, now)
        if first is None:
            return False
        return now - max(link.shaping_since, first.published_at) >= MAX_WAIT_US - LOOK_US

    def _first_plain(self, client: LiveClient, now: int) -> KeptNotification | None:
        """Return the first message that waits for a client and needs no transform, as far as may be looked."""
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
        """Return whether the policy that is asked first about a copy wants a transform of it."""
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
        """Write a decision down, and take it in."""
        commits, publisher = self._commits, out.message.publisher
        fact = decided(
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
        """Send what was decided: *body*, if it was decided just now; else what was kept of it."""
        original, is_new = out.message, body is not None
        payload = self._messages.read(original).body
        if body is None:
            body = payload if fact.body is None else fact.body
        message = original
        if body != payload or fact.attributes is not None:
            message = _shaped(original, body, fact.attributes)
        out = out._replace(message=message, is_decided=True)
        link.after_seq = max(link.after_seq, fact.seq)
        self._send_in_turn(client, link, out, of=fact.seq if is_new and out.qos == EXACTLY_ONCE else None)

    def _pass(self, client: LiveClient, link: Link, out: Outgoing) -> None:
        """Send what arrived, as it is."""
        self._send_in_turn(client, link, out._replace(is_decided=True), of=None)

    def send_behind(self, client: LiveClient, link: Link, out: Outgoing) -> None:
        """Send what nothing is decided about behind what was decided before and is not sent yet."""
        self._send_in_turn(client, link, out, of=None)

    def _send_in_turn(self, client: LiveClient, link: Link, out: Outgoing, *, of: int | None) -> None:
        """Send when everything before is accepted; *of* is the decision just appended that must be durable first.

        Until then it takes room in the connection, as if it were written already.
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
            if was_full and link.room > 0:  # nothing may have been written, so nobody else asks for more
                self._go_on_later(client)


def _with_body(decision: Decision, job: TransformJob, result: bytes | Fault) -> Decision:
    """Return *decision* with what was made for it, if that is what it asks for."""
    assert decision.work is not None
    if isinstance(result, Fault) or decision.work.is_equal(job.work):
        return finished(decision, result)
    return finished(decision, Fault.TIME_OUT) if job.tries >= _MAX_TRIES else decision


def _shaped(message: KeptNotification, payload: bytes, attributes: Attributes | None) -> KeptNotification:
    """Return what a policy made of a notification: another *payload*, and other *attributes* unless None.

    User properties are attributes too: one whose value is not among them any more does not travel.
    """
    properties = message.properties
    if attributes is not None and properties:
        found = decode_properties(properties, PacketType.PUBLISH)
        kept = tuple((name, value) for name, value in found.user if attributes.get(name) == value)
        properties = passed_on(found.with_user(kept))
    return message.with_payload(payload, properties)
