"""Answers to requests: an object of JSON for the requesting client, and the acknowledgement of its publication.

Rule: a client that has disconnected gets no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from whimbrel.broker.requests.session_requests import Request
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.wire.clients import Link, LiveClient
from whimbrel.broker.wire.events import Event
from whimbrel.broker.wire.json_answers import send_answer
from whimbrel.broker.wire.sender import Sender
from whimbrel.model.notification import AT_LEAST_ONCE
from whimbrel.mqtt.codes import CODES_IN, PacketType, ReasonCode
from whimbrel.mqtt.packets import V5, Puback, Publish, Pubrec
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property

__all__ = ["Answers", "Asked"]


class Asked(NamedTuple):
    """A request, its PUBLISH packet, and the client that sent it."""

    link: Link
    client: LiveClient
    packet: Publish
    request: Request

    @property
    def is_here(self) -> bool:
        """Whether the requesting client is still connected."""
        return self.link.closing is None and self.client.link is self.link


class Answers:
    """Sends answers to requests through *sender*, stamped with the time of the last log record."""

    def __init__(self, commits: CommitQueue, sender: Sender) -> None:
        self._commits, self._sender = commits, sender

    def answer(self, asked: Asked, members: Mapping[str, object]) -> None:
        """Answer that the request succeeded."""
        if asked.is_here:
            self._acknowledge(asked, ReasonCode.SUCCESS, "")
            self._say(asked, {"ok": True, **members})

    def refuse(self, asked: Asked, code: ReasonCode, reason: str) -> None:
        """Answer that the request failed, and why."""
        if asked.is_here:
            if code is ReasonCode.SERVER_BUSY:  # only CONNACK may carry this code
                code = ReasonCode.QUOTA_EXCEEDED
            topic = asked.packet.topic
            self._sender.events.refuse(Event.REQUEST_REFUSED, asked.link, asked.link.last_at, code, reason, topic=topic)
            self._acknowledge(asked, code, reason)
            self._say(asked, {"ok": False, "code": int(code), "reason": reason})

    def _say(self, asked: Asked, members: Mapping[str, object]) -> None:
        tree = {"request": asked.request.verb, "id": asked.request.id, **members}
        send_answer(self._sender, asked.link, asked.packet, tree, self._commits.last_at)

    def _acknowledge(self, asked: Asked, code: ReasonCode, reason: str) -> None:
        """Acknowledge the PUBLISH that carried the request; an acknowledgement of 3.1.1 cannot express a refusal."""
        link, client, packet = asked.link, asked.client, asked.packet
        if not packet.qos:
            return
        kind, identifier = (Puback if packet.qos == AT_LEAST_ONCE else Pubrec), packet.packet_id
        is_v5 = link.machine.version == V5
        place = PacketType.PUBACK if packet.qos == AT_LEAST_ONCE else PacketType.PUBREC
        if not is_v5:
            code = ReasonCode.SUCCESS
        elif code not in CODES_IN[place]:
            code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        client.receiving.discard(identifier)
        if packet.qos == AT_LEAST_ONCE or code.is_error:
            link.machine.publication_ends()
        else:
            client.remember_answer(identifier)
        told = Properties({Property.REASON_STRING: reason}) if is_v5 and reason else NO_PROPERTIES
        self._sender.say(link, kind(identifier, code, told))
