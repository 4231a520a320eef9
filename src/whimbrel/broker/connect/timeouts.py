"""Timeouts: close connections that sent no CONNECT in time, or nothing for 1.5 × keep alive (MQTT 5, 3.1.2.10)."""

from __future__ import annotations

from collections.abc import Iterable

from whimbrel.broker.wire.clients import Link
from whimbrel.broker.wire.sender import Sender
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.server import Phase

__all__ = ["end_silent"]


def end_silent(links: Iterable[Link], sender: Sender, listened_us: int, *, connect_timeout_us: int) -> None:
    """Close connections that exceeded a timeout; for *listened_us* see ``Broker.end_silent``."""
    for link in links:
        if link.closing is not None:
            continue
        if link.opened_at is None:
            link.opened_at = listened_us
        if link.is_heard or link.is_unread:
            link.is_heard, link.heard_at = False, listened_us
        silent_us = listened_us - link.heard_at
        if link.machine.phase is not Phase.OPEN:
            is_late = listened_us - link.opened_at > connect_timeout_us
            if is_late and link.parked is None and not link.is_unread:
                sender.close(link, "no CONNECT in time")
        elif link.keep_alive_us and silent_us > link.keep_alive_us + link.keep_alive_us // 2:
            sender.fail(link, ReasonCode.KEEP_ALIVE_TIMEOUT, "nothing was heard for one and a half keep alives")
