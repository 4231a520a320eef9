"""Acknowledge publications with PUBACK, PUBREC and PUBCOMP, or refuse them with a reason (MQTT 5, 3.4 to 3.7)."""

from __future__ import annotations

from functools import partial

from whimbrel.broker.limits.memory import NoRoom
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.wire.clients import Link, LiveClient
from whimbrel.broker.wire.events import Event
from whimbrel.broker.wire.sender import Sender
from whimbrel.broker.wire.stalled_publications import StalledPublications
from whimbrel.model.facts import PresenceChange, PresenceChanged
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, Puback, Pubcomp, Publish, Pubrec
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property

__all__ = ["PublicationAnswers"]

_PUBACK, _PUBREC, _PUBCOMP = b"\x40\x02", b"\x50\x02", b"\x70\x02"
_NO_SUBSCRIBERS = b"\x10"
_SAID_BY_CONNACK = (ReasonCode.QOS_NOT_SUPPORTED, ReasonCode.RETAIN_NOT_SUPPORTED)
"""Codes for things that CONNACK forbade; doing one is a protocol error (MQTT 5, 3.2.2.3.4 and 3.2.2.3.5)."""


class PublicationAnswers:
    """Sends acknowledgements to publishers; a packet id of QoS 2 is freed only after the log has recorded that."""

    def __init__(self, commits: CommitQueue, state: BrokerState, sender: Sender) -> None:
        self._commits, self._state, self._sender = commits, state, sender

    def refuse(self, link: Link, client: LiveClient, packet: Publish, code: ReasonCode, reason: str) -> None:
        """Refuse a publication; MQTT 3.1.1 has no packet for this.

        If the reason is a lack of room, publications of 3.1.1 wait for it instead (``stalled``).
        """
        if packet.qos and isinstance(reason, NoRoom) and link.machine.version != V5:
            link.machine.publication_ends()
            link.stalled = StalledPublications(reason)
            return
        self._sender.counters.refused += 1
        self._sender.events.refuse(Event.PUBLICATION_REFUSED, link, link.last_at, code, reason, topic=packet.topic)
        if code in _SAID_BY_CONNACK:
            self._sender.fail(link, code, reason)
            return
        if not packet.qos:
            return
        identifier = packet.packet_id
        if link.machine.version == V5:
            link.machine.publication_ends()
            kind = Puback if packet.qos == 1 else Pubrec
            self._sender.say(link, kind(identifier, code, Properties({Property.REASON_STRING: reason})))
        elif code is ReasonCode.QUOTA_EXCEEDED:
            self._sender.close(link, reason)  # an acknowledgement would be wrong, and without one the client would wait
        elif packet.qos == 1:
            link.machine.publication_ends()
            self._sender.send(link, _PUBACK + identifier.to_bytes(2))
        else:
            client.remember_answer(identifier)
            self._sender.send(link, _PUBREC + identifier.to_bytes(2))

    def acknowledge(self, link: Link, identifier: int, is_wanted: bool) -> None:  # noqa: FBT001 # an answer's only word
        """Acknowledge an accepted QoS 1 publication with PUBACK."""
        machine = link.machine
        machine.publication_ends()
        if link.closing is not None:
            return
        if is_wanted or machine.version != V5:
            self._sender.send(link, _PUBACK + identifier.to_bytes(2))
        else:
            self._sender.send(link, b"\x40\x03" + identifier.to_bytes(2) + _NO_SUBSCRIBERS)

    def confirm(self, link: Link, client: LiveClient, identifier: int, is_wanted: bool) -> None:  # noqa: FBT001 # as above
        """Answer an accepted QoS 2 publication with PUBREC."""
        client.receiving.discard(identifier)
        if client.link is not link:
            return
        if is_wanted or link.machine.version != V5:
            self._sender.send(link, _PUBREC + identifier.to_bytes(2))
        else:
            self._sender.send(link, b"\x50\x03" + identifier.to_bytes(2) + _NO_SUBSCRIBERS)

    def on_pubrel(self, link: Link, client: LiveClient, identifier: int, now: int) -> None:
        """Handle PUBREL: free the packet id of a QoS 2 publication and answer with PUBCOMP.

        For an accepted publication this is recorded first: if the id were still in use after a crash, the next
        publication with it would be taken for a duplicate.
        """
        if identifier in client.asked:
            client.forget_answer(identifier)
            link.machine.publication_ends()
            self._sender.send(link, _PUBCOMP + identifier.to_bytes(2))
            return
        if identifier not in client.received:
            code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            not_found = encode(Pubcomp(identifier, code, NO_PROPERTIES), V5)
            is_v5 = link.machine.version == V5
            self._sender.send(link, not_found if is_v5 else _PUBCOMP + identifier.to_bytes(2))
            return
        fact = PresenceChanged(
            node=self._commits.node,
            seq=self._commits.seq,
            changed_at=self._commits.now(now),
            device=client.id,
            change=PresenceChange.RELEASED,
            packet_id=identifier,
        )
        self._commits.enter(fact, partial(self._complete, link, fact, identifier), is_owed=client.is_persistent)

    def _complete(self, link: Link, fact: PresenceChanged, identifier: int) -> None:
        self._state.apply(fact)
        link.machine.publication_ends()
        if link.closing is None:
            self._sender.send(link, _PUBCOMP + identifier.to_bytes(2))
