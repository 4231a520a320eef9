"""Reports: device state that devices report, stored for the policies that decide what they receive (SUBLIM, 6.2).

A device publishes an object of JSON to ``$whimbrel/report``: battery, display, received, place. The report is a fact of
the log, not a notification.
Rule: the broker knows the reporting device from the connection and the time from its own clock. It also counts the sent
messages: every PUBLISH due to the device since its last report, over all connections of the session. This includes
messages that wait for its receive window, and messages dropped because its buffer was full, so that the quality of a
slow link falls; messages that a policy withheld do not count. A new session counts from its beginning. For the first
report after a restart the count is unknown.
Rule: at QoS 1 and 2 a report is durable before it is acknowledged.
Rule: a report with nothing but a place only moves the device (``moves``); the count of sent messages continues.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from whimbrel.broker.publish.publication_keys import check_unlocked
from whimbrel.broker.publish.publishing import PublishHandler
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.wire.clients import Link, LiveClient
from whimbrel.broker.wire.sender import Sender
from whimbrel.errors import InvalidInputError
from whimbrel.model.device import DeviceState
from whimbrel.model.facts import Reported
from whimbrel.model.notification import AT_LEAST_ONCE
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import Publish, Pubrec
from whimbrel.node.memory import PLACE_BYTES

__all__ = ["Reports"]

_FORM = "a report is an object of JSON with battery, display, received and place, each if known"
_LONGEST_REASON = 1_000


class Reports:
    """Handles the reports of devices."""

    def __init__(self, commits: CommitQueue, state: BrokerState, sender: Sender, publishing: PublishHandler) -> None:
        self._commits, self._state, self._sender, self._publishing = commits, state, sender, publishing

    def handle(self, link: Link, client: LiveClient, packet: Publish, now: int) -> None:
        """Record a report made at *now*; at QoS 1 and 2 its PUBLISH already counts against the receive maximum."""
        refusal = self._publishing.admission.report_refusal(link, client, packet)
        if refusal is not None:
            self._publishing.answers.refuse(link, client, packet, *refusal)
            return
        sent = None if client.reported_sent is None else max(0, client.sent - client.reported_sent)
        try:
            check_unlocked(packet, link.keyring, is_ours=link.is_ours)
        except ProtocolError as error:
            self._publishing.answers.refuse(link, client, packet, error.code, error.reason)
            return
        try:
            state = DeviceState.from_report(packet.payload, device=client.id, now=now, sent=sent)
        except InvalidInputError as error:
            self._sender.counters.bad_reports += 1
            reason = f"{_FORM}; {error}"[:_LONGEST_REASON]
            self._publishing.answers.refuse(link, client, packet, ReasonCode.PAYLOAD_FORMAT_INVALID, reason)
            return
        if state.is_move:  # it has no count of received messages, so the count of sent ones continues
            state = replace(state, sent=None)
        else:
            client.reported_sent = client.sent
        if (grows := self._growth(state)) > 0:
            full = self._state.memory.refusal(grows, is_lasting=True)
            if full is not None:
                self._publishing.answers.refuse(link, client, packet, *full)
                return
        if packet.qos > AT_LEAST_ONCE:
            client.receiving.add(packet.packet_id)
        fact = Reported(node=self._commits.node, seq=self._commits.seq, state=state)
        self._commits.enter(fact, partial(self._apply, link, client, packet, fact), is_owed=packet.qos > 0)
        self._state.note(fact)

    def _growth(self, report: DeviceState) -> int:
        """Return about how many more bytes of memory a report takes than the stored state of its device."""
        is_new_place = report.place is not None and report.device not in self._state.hold.places
        return self._state.decisions.shape.growth(report.device, report.members) + is_new_place * PLACE_BYTES

    def _apply(self, link: Link, client: LiveClient, packet: Publish, fact: Reported) -> None:
        self._state.apply(fact)
        self._sender.counters.reports += 1
        if packet.qos == AT_LEAST_ONCE:
            self._publishing.answers.acknowledge(link, packet.packet_id, True)  # the broker counts as its subscriber
        elif packet.qos:
            client.receiving.discard(packet.packet_id)
            client.remember_answer(packet.packet_id)  # until a restart, this id marks the same publication
            if client.link is link:
                self._sender.say(link, Pubrec(packet.packet_id))
