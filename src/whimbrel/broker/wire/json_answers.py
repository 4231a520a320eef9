"""Send JSON answers to the requests of clients."""

from __future__ import annotations

import json
from collections.abc import Mapping

from whimbrel.broker.wire.clients import Link
from whimbrel.broker.wire.notices import ANSWERS
from whimbrel.broker.wire.sender import Sender
from whimbrel.mqtt.packets import V5, Publish
from whimbrel.mqtt.properties import Properties, Property, passed_on
from whimbrel.node.publication import KeptNotification

__all__ = ["send_answer"]


def send_answer(sender: Sender, link: Link, packet: Publish, tree: Mapping[str, object], now: int) -> None:
    """Answer the request *packet* with *tree*, on its response topic; for 3.1.1, on the topic of all answers."""
    if link.closing is not None:
        return
    topic, onward = ANSWERS, b""
    if link.machine.version == V5:
        wanted = packet.properties.text(Property.RESPONSE_TOPIC)
        if not wanted:
            return
        told: dict[Property, object] = {Property.CONTENT_TYPE: "application/json"}
        correlation = packet.properties.binary(Property.CORRELATION_DATA)
        if correlation is not None:
            told[Property.CORRELATION_DATA] = correlation
        topic, onward = wanted, passed_on(Properties(told))
    body = json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    sender.live(link, KeptNotification.live(topic, body, properties=onward), (), now, retain=False)
