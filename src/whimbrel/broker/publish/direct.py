"""The direct path: handle many simple publications at once, which need neither the hold nor an fsync.

It follows the steps of ``publishing`` without those that cannot matter here: no key is read if there are none, and a
publication without properties that is not retained needs only checks of its topic, length, publisher and room
(``Admission``). A publication that no session could need after a crash is acknowledged at once.
Rule: in any doubtful case the direct path stops: that publication and all behind it take the full path.
Rule: clients and log get the same with and without it (tests/differential/test_broker_direct_recipients.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.deliver.direct_recipients import DirectRecipientsCache
from whimbrel.broker.publish.admission import Admission
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.wire.clients import Link, LiveClient
from whimbrel.broker.wire.sender import Sender
from whimbrel.log.compact import publication_body
from whimbrel.model.notification import AT_LEAST_ONCE
from whimbrel.mqtt.packets import Publish
from whimbrel.mqtt.properties import NO_PROPERTIES
from whimbrel.node.publication import KeptNotification

__all__ = ["DirectPath"]

_PUBACK = b"\x40\x02"


class DirectPath:
    """Passes publications on past the hold (queues of all sessions); *pump_ready* sends earlier deliveries first."""

    def __init__(
        self,
        admission: Admission,
        commits: CommitQueue,
        state: BrokerState,
        sender: Sender,
        authorizer: Authorizer,
        lanes: DirectRecipientsCache,
        pump_ready: Callable[[int], None],
    ) -> None:
        self._admission, self._commits, self._state = admission, commits, state
        self._sender, self._authorizer, self._lanes, self._pump_ready = sender, authorizer, lanes, pump_ready
        self._most_bytes = admission.most_bytes
        self._most_qos = min(AT_LEAST_ONCE, admission.maximum_qos)

    def pass_on(
        self, link: Link, client: LiveClient, packets: Sequence[Publish], matched: Iterable[Sequence[int]], now: int
    ) -> int:
        """Pass on publications, from the first, while they qualify; return how many were passed on.

        *matched* has, for each publication, the matching subscriptions with a content filter, as the matcher's indices
        (handles). All steps are written out in one loop, because a broker spends most of its time here.
        """
        commits, lanes, publisher, sender = self._commits, self._lanes, client.id_bytes, self._sender
        append, waiting, ready, seq = commits.append_body, commits.waiting, self._state.volatile.ready, commits.seq
        passed = unwanted = most = 0  # most: highest QoS for which there is room; 0 until the room is checked
        may_publish, is_guarded = self._authorizer.may_publish, not self._authorizer.is_open
        for (topic, payload, qos, retain, _, identifier, properties), handles in zip(packets, matched, strict=False):
            if retain or properties is not NO_PROPERTIES or waiting or len(payload) > self._most_bytes:
                break
            if qos > most:
                if most or not self._has_room(link):
                    break
                most = self._most_qos
                if qos > most:
                    break
            lane = lanes.get(topic)
            if lane is None or lane.confirms or (qos and (handles or not lane or lane.is_long or lane.is_owed)):
                break
            rest = lane.rest
            if rest and (qos or handles or self._admission.waiting_refusal(rest) is not None):
                break
            if is_guarded and not may_publish(link, client.id, topic):
                break
            others = None
            if handles:
                others = lanes.others(handles)
                if others is None:
                    break
            if not (self._admission.logs_unwanted or qos or handles or lane or rest):
                unwanted += 1
                passed += 1
                continue
            if ready and not qos:
                self._pump_ready(now)
                seq = commits.seq
            body = publication_body(seq, now, publisher, lane.subject, payload, qos=qos)
            append(body, now)
            if qos:
                lane.pass_on(
                    KeptNotification(seq, client.id, topic, payload, qos=qos, record=body, published_at=now),
                    sender,
                    ready,
                    now,
                )
                link.out.append(_PUBACK + identifier.to_bytes(2))
            else:
                received = lane.send(payload, sender, others)
                if rest:
                    message = KeptNotification(seq, client.id, topic, payload, qos=0, record=body, published_at=now)
                    self._state.perform(self._state.node.publish(message, rest, received=received), now)
            seq += 1
            passed += 1
        if passed:
            sender.counters.received += passed
            sender.counters.unwanted += unwanted
            sender.touch(link)
            self._state.tick(now)
        return passed

    def _has_room(self, link: Link) -> bool:
        """Return whether memory and the client's receive maximum allow one more QoS 1 publication."""
        return self._admission.room_refusal() is None and link.machine.may_begin
