"""Runs: handle simple publications of one client that follow each other, with the plan of their topic in hand.

They take the steps of ``publishing`` without those that cannot matter here: no key is read if there are none, and a
publication without properties that is not retained needs only checks of its topic, length, publisher and room
(``Admission``). Checks with one result for a whole run are made once, and its records are written together.
Rule: in any doubtful case the run ends: the next publication and all behind it take the steps one by one.
Rule: clients and log get the same with and without runs (tests/differential/test_broker_plans.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.deliver.plans import DeliveryPlan, Plans
from whimbrel.broker.publish.admission import Admission
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.waiting.commit_queue import CommitQueue, Pieces
from whimbrel.broker.wire.clients import Link, LiveClient
from whimbrel.broker.wire.sender import Sender
from whimbrel.log.compact import publication_bodies, publication_body
from whimbrel.model.notification import AT_LEAST_ONCE
from whimbrel.mqtt.packets import Publish
from whimbrel.mqtt.properties import NO_PROPERTIES
from whimbrel.node.publication import KeptNotification

__all__ = ["PublicationRuns"]

_PUBACK = b"\x40\x02"
_MAX_DELIVERIES = 250
"""Most deliveries of a run of QoS 1, if it has more than one publication; they are made in one turn."""
_MAX_UNCONFIRMED = 500
"""Most publications of a run of QoS 0."""

_Again: TypeAlias = Callable[[Link, LiveClient, KeptNotification, Publish], Pieces]
"""Function that finds the subscribers of a publication a second time, and passes it on."""


class _Given(NamedTuple):
    """The arguments of ``take``."""

    link: Link
    client: LiveClient
    packets: Sequence[Publish]
    matched: Sequence[Sequence[int]] | None
    now: int


class _Run(NamedTuple):
    """Publications of QoS 1 for one topic, which have their seqs and are accepted together."""

    plan: DeliveryPlan
    epoch: int
    """The version of the matching index for which the plan holds."""
    messages: Sequence[KeptNotification]
    packets: Sequence[Publish]


class PublicationRuns:
    """Handles runs of publications; *pump_ready* sends earlier deliveries first.

    *again* passes a publication on whose plan has changed since it was appended to the log.
    """

    def __init__(
        self,
        admission: Admission,
        commits: CommitQueue,
        state: BrokerState,
        sender: Sender,
        authorizer: Authorizer,
        plans: Plans,
        pump_ready: Callable[[int], None],
        again: _Again,
    ) -> None:
        self._admission, self._commits, self._state, self._again = admission, commits, state, again
        self._sender, self._authorizer, self._plans, self._pump_ready = sender, authorizer, plans, pump_ready
        self._most_bytes = admission.most_bytes
        self._most_qos = min(AT_LEAST_ONCE, admission.maximum_qos)
        self._tick, self._lapses = state.hold.tick, state.hold.tally.lapses

    def take(
        self,
        link: Link,
        client: LiveClient,
        packets: Sequence[Publish],
        matched: Sequence[Sequence[int]] | None,
        now: int,
    ) -> int:
        """Handle publications, from the first, while they qualify; return how many were handled.

        *matched* has, for each publication, the matching subscriptions with a content filter, as the matcher's indices
        (handles); None: there are no such subscriptions.
        """
        given = _Given(link, client, packets, matched, now)
        get_plan, most_bytes = self._plans.get, self._most_bytes
        is_guarded, may_publish = not self._authorizer.is_open, self._authorizer.may_publish
        at, count = 0, len(packets)
        while at < count:
            topic, payload, qos, retain, _, _, properties = packets[at]
            if retain or properties is not NO_PROPERTIES or len(payload) > most_bytes:
                break
            plan = get_plan(topic)
            if plan is None or (is_guarded and not may_publish(link, client.id, topic)):
                break
            end = self._take_confirmed(given, at, plan) if qos else self._take_unconfirmed(given, at, plan)
            if end == at:
                break
            at = end
        if at:
            self._sender.counters.received += at
            heap = self._lapses.heap
            if heap and heap[0][0] <= now and not self._commits.waiting:
                self._let_lapse(now)
        return at

    def _let_lapse(self, now: int) -> None:
        """End the notifications in the hold that have lapsed by the time *now*."""
        commands = self._tick(now)
        if commands:
            self._state.perform(commands, now)

    def _end_of_run(self, given: _Given, at: int, most: int) -> int:
        """Return the end of the publications from *at* on that are alike in all that matters here, at most *most*."""
        packets, matched, most_bytes = given.packets, given.matched, self._most_bytes
        first = packets[at]
        topic, qos = first.topic, first.qos
        end, last = at + 1, min(at + most, len(packets))
        while end < last:
            other, payload, other_qos, retain, _, _, properties = packets[end]
            if other != topic or other_qos != qos or retain or properties is not NO_PROPERTIES:
                break
            if len(payload) > most_bytes or (matched is not None and matched[end]):
                break
            end += 1
        return end

    # -- QoS 0 -------------------------------------------------------------------------------------------------------

    def _take_unconfirmed(self, given: _Given, at: int, plan: DeliveryPlan) -> int:
        """Handle publications of QoS 0 for the topic of *plan*, from *at* on; return the first that is not handled."""
        _, client, packets, matched, now = given
        commits, rest, others = self._commits, plan.rest, None
        handles = () if matched is None else matched[at]
        if commits.waiting or plan.confirms:
            return at
        if rest and (handles or self._admission.waiting_refusal(rest) is not None):
            return at
        if handles:
            others = self._plans.others(handles)
            if others is None:
                return at
        end = at + 1
        if end < len(packets) and not (rest or handles):
            end = self._end_of_run(given, at, _MAX_UNCONFIRMED)
        if not (self._admission.logs_unwanted or handles or plan or rest):
            self._sender.counters.unwanted += end - at
            return end
        if self._state.volatile.ready:
            self._pump_ready(now)
        seq, payload = commits.seq, packets[at].payload
        if end - at > 1:
            payloads = [each[1] for each in packets[at:end]]
            commits.append_bodies(publication_bodies(seq, now, (client.id_bytes, plan.subject), payloads, qos=0), now)
            plan.send(payloads, self._sender, others)
            return end
        record = publication_body(seq, now, client.id_bytes, plan.subject, payload)
        commits.append_body(record, now)
        received = plan.send((payload,), self._sender, others)
        if rest:
            topic = packets[at].topic
            message = KeptNotification(seq, client.id, topic, payload, qos=0, record=record, published_at=now)
            self._state.perform(self._state.node.publish(message, rest, received=received), now)
        return end

    # -- QoS 1 -------------------------------------------------------------------------------------------------------

    def _take_confirmed(self, given: _Given, at: int, plan: DeliveryPlan) -> int:
        """Handle publications of QoS 1 for the topic of *plan*, from *at* on; return the first that is not handled."""
        link, client, packets, matched, now = given
        receivers, topic, qos = len(plan.found), packets[at].topic, packets[at].qos
        if not receivers or plan.is_long or qos > self._most_qos or (matched is not None and matched[at]):
            return at
        room = link.machine.room_to_begin
        if room <= 0 or self._admission.room_refusal() is not None:
            return at
        must_sync = plan.must_sync()
        if (must_sync or plan.rest) and self._admission.waiting_refusal(plan.found) is not None:
            return at
        end = at + 1
        if end < len(packets):
            end = self._end_of_run(given, at, min(room, max(1, _MAX_DELIVERIES // receivers)))
        run = packets[at:end]
        commits, publisher = self._commits, client.id
        first, bodies = commits.seq, [each[1] for each in run]
        records = publication_bodies(first, now, (client.id_bytes, plan.subject), bodies, qos=qos)
        commits.append_bodies(records, now)
        messages = [
            KeptNotification(seq, publisher, topic, body, qos=qos, record=record, published_at=now)
            for seq, (body, record) in enumerate(zip(bodies, records, strict=True), start=first)
        ]
        link.machine.unanswered += len(run)
        accept = partial(self._accept, link, client, _Run(plan, self._state.routes.epoch, messages, run))
        commits.enter_run(first - 1, first + len(run) - 1, accept, is_owed=must_sync)
        return end

    def _accept(self, link: Link, client: LiveClient, run: _Run) -> Pieces | None:
        """Pass on publications that are accepted, and acknowledge them."""
        plan, epoch, messages, packets = run
        state, at = self._state, self._commits.last_at
        if epoch != state.routes.epoch:  # a subscription changed meanwhile, by a fact with a lower seq: match again
            return self._accepting(link, client, run)
        self._let_lapse(messages[0].published_at)
        plan.pass_on(messages, self._sender, at)
        if state.volatile.ready:
            self._pump_ready(at)
        machine = link.machine
        machine.unanswered = max(0, machine.unanswered - len(packets))
        if link.closing is None:
            self._sender.send(link, b"".join([_PUBACK + each[5].to_bytes(2) for each in packets]))
        return None

    def _accepting(self, link: Link, client: LiveClient, run: _Run) -> Pieces:
        """Pass publications on one by one, to the subscribers that match now."""
        for message, packet in zip(run.messages, run.packets, strict=True):
            yield from self._again(link, client, message, packet)
