"""Events: the lines of the process' log about clients that come, go, are refused or slow; one line an event.

Levels: *info* is the life of clients, and what they asked for in vain; *warning* is for an operator to look at;
*debug* is what a port scanner causes as well.
Rule: no line has a password, a key or a body. Reasons name what was found where that is not one of these.
Rule: each kind of event has so many lines a second, and ten seconds' worth at once: a client cannot fill the disk by
being refused. How many were left out stands in the next line of that kind.
Rule: values are short, whatever a client sent.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from whimbrel.broker.wire.clients import Link
from whimbrel.model.clock import US_PER_S
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError

__all__ = ["Event", "EventLine", "EventLines", "shown_address"]

_BURST_S = 10
_LONGEST = 200
_PEER = re.compile(r"\('([^']*)', ([0-9]+)[,)]")


class Event(Enum):
    """What happened: the level of its line, and the line."""

    CONNECTED = "info", "connected"
    DISCONNECTED = "info", "disconnected"
    TAKEN_OVER = "info", "taken over"
    CLOSED = "debug", "closed before CONNECT"
    CONNECTION_REFUSED = "warning", "connection refused"
    SUBSCRIPTION_REFUSED = "info", "subscription refused"
    PUBLICATION_REFUSED = "info", "publication refused"
    REQUEST_REFUSED = "info", "request refused"
    QUOTA = "warning", "quota exceeded"
    SLOW_READER = "warning", "slow reader"


class EventLine(NamedTuple):
    """One line: its level, what happened, and to which client."""

    level: str
    text: str
    values: dict[str, object]


class EventLines:
    """The lines that are not written yet, at most *per_second* of each kind; 0 is any number."""

    def __init__(self, per_second: int = 0) -> None:
        self.per_second = per_second
        self._lines: list[EventLine] = []
        self._room: dict[Event, tuple[int, int]] = {}
        """By kind: how many lines there is room for, in millionths, and at which time that was so."""
        self._left_out: dict[Event, int] = {}

    def __bool__(self) -> bool:
        return bool(self._lines or self._left_out)

    def note(
        self, event: Event, link: Link, now: int, *, reason: str = "", code: int | None = None, **more: object
    ) -> None:
        """Have a line written about what happened on a link."""
        if not self._has_room(event, now):
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return
        values: dict[str, object] = {
            "client": None if link.client is None else link.client.id,
            "user": link.user,
            "address": shown_address(link.address),
        }
        values |= more
        if code is not None:
            values["code"] = f"0x{code:02X}"
        if reason:
            values["reason"] = reason
        short = {name: value[:_LONGEST] if isinstance(value, str) else value for name, value in values.items()}
        self._put(event, short)

    def refuse(self, event: Event, link: Link, now: int, code: int, reason: str, **more: object) -> None:
        """Have a line written about a refusal; one for a quota is an operator's business."""
        what = Event.QUOTA if code == ReasonCode.QUOTA_EXCEEDED else event
        said = {"refused": event.value[1].removesuffix(" refused")} if what is Event.QUOTA else {}
        self.note(what, link, now, reason=reason, code=code, **said, **more)

    def refuse_filter(self, link: Link, now: int, error: ProtocolError, topic_filter: str) -> None:
        """Have a line written about a subscription that is refused; the reason has the position in its filter."""
        self.refuse(Event.SUBSCRIPTION_REFUSED, link, now, error.code, error.reason, topic_filter=topic_filter)

    def take(self, now: int) -> list[EventLine]:
        """Return the lines since the last call, and for each kind that there is room for again how many are missing."""
        for event in [event for event in self._left_out if self._has_room(event, now)]:
            self._put(event, {})
        lines, self._lines = self._lines, []
        return lines

    def _put(self, event: Event, values: dict[str, object]) -> None:
        left_out = self._left_out.pop(event, 0)
        if left_out:
            values["left_out"] = left_out
        self._lines.append(EventLine(*event.value, values))

    def _has_room(self, event: Event, now: int) -> bool:
        """Take the room for one line, if there is some."""
        if not self.per_second:
            return True
        most = self.per_second * _BURST_S * US_PER_S
        room, at = self._room.get(event, (most, now))
        room = min(room + max(now - at, 0) * self.per_second, most)
        has_room = room >= US_PER_S
        self._room[event] = (room - US_PER_S if has_room else room), max(now, at)
        return has_room


def shown_address(address: str) -> str:
    """Return an address as operators write it: host:port, or [host]:port."""
    found = _PEER.match(address)
    if found is None:
        return address
    host, port = found.groups()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
