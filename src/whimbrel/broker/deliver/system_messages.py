"""System messages: the broker's own values under ``$SYS``, retained, at QoS 0, and not part of the log."""

from __future__ import annotations

from collections.abc import Mapping

from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.wire.gate import Gate
from whimbrel.broker.wire.sender import Sender
from whimbrel.hold.private import client_of
from whimbrel.node.publication import KeptNotification

__all__ = ["publish_system_messages"]


def publish_system_messages(
    state: BrokerState, gate: Gate, sender: Sender, values: Mapping[str, str], now: int
) -> None:
    """Retain *values* by topic, and send them to the connected clients that subscribe to them.

    An empty value removes the retained message of its topic, as an empty body does for every publisher (3.3.1.3).
    """
    for topic, value in values.items():
        message = KeptNotification.live(topic, value.encode(), retain=True)
        if value:
            state.volatile.system.put(message)
        else:
            state.volatile.system.remove(topic)
        for session, identities in state.routes.by_subject(topic):
            client = state.clients.get(client_of(session) or "")
            link = None if client is None else client.link
            if client is None or link is None:
                continue
            if gate.refusal(link, client.id, message, now) is None:
                identifiers = state.terms.get(session, identities, client.id).identifiers
                sender.news(link, message, identifiers, now)
