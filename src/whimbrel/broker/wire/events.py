"""Client events in the process log, one line each: connected, disconnected, refused, slow reader and so on.

Levels: *info* for the life of a client and its refused subscriptions, publications and requests; *warning* for events
that an operator should look at; *debug* for events that a port scanner causes as well.
Rule: no line contains a password, a key or a body. Reasons quote other values that were refused.
Rule: lines are rate-limited for each kind of event: *per_second* lines, with a burst of ten seconds' worth. So a client
cannot fill the disk by being refused. The next line of that kind has the count of lines left out.
Rule: values are cut to 200 characters, whatever a client sent.
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
    """A kind of event: the level and the text of its log line."""

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
    """One line: its level, the event's text, and values that identify the client and the reason."""

    level: str
    text: str
    values: dict[str, object]


class EventLines:
    """The lines not written yet, at most *per_second* for each kind of event; 0 means no limit."""

    def __init__(self, per_second: int = 0) -> None:
        self.per_second = per_second
        self.lines: list[EventLine] = []
        self._room: dict[Event, tuple[int, int]] = {}
        """Per kind of event, how many lines the limit still allows, in millionths of a line, and as of which time."""
        self.left_out: dict[Event, int] = {}

    def __bool__(self) -> bool:
        return bool(self.lines or self.left_out)

    def note(
        self, event: Event, link: Link, now: int, *, reason: str = "", code: int | None = None, **more: object
    ) -> None:
        """Add a line about an event on a connection, or count the line as left out if the limit is reached."""
        if not self._has_room(event, now):
            self.left_out[event] = self.left_out.get(event, 0) + 1
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
        """Add a line about a refusal; a refusal because of a quota is logged as a warning to the operator."""
        what = Event.QUOTA if code == ReasonCode.QUOTA_EXCEEDED else event
        said = {"refused": event.value[1].removesuffix(" refused")} if what is Event.QUOTA else {}
        self.note(what, link, now, reason=reason, code=code, **said, **more)

    def refuse_filter(self, link: Link, now: int, error: ProtocolError, topic_filter: str) -> None:
        """Add a line about a refused subscription; the reason contains the position of the error in its filter."""
        self.refuse(Event.SUBSCRIPTION_REFUSED, link, now, error.code, error.reason, topic_filter=topic_filter)

    def take(self, now: int) -> list[EventLine]:
        """Return the lines since the last call.

        For each kind of event that was over its rate limit and may be logged again, add a line with the count of lines
        left out.
        """
        for event in [event for event in self.left_out if self._has_room(event, now)]:
            self._put(event, {})
        lines = self.lines[:]
        self.lines.clear()
        return lines

    def _put(self, event: Event, values: dict[str, object]) -> None:
        left_out = self.left_out.pop(event, 0)
        if left_out:
            values["left_out"] = left_out
        self.lines.append(EventLine(*event.value, values))

    def _has_room(self, event: Event, now: int) -> bool:
        """Return whether the limit allows another line, and if so, use it up."""
        if not self.per_second:
            return True
        most = self.per_second * _BURST_S * US_PER_S
        room, at = self._room.get(event, (most, now))
        room = min(room + max(now - at, 0) * self.per_second, most)
        has_room = room >= US_PER_S
        self._room[event] = (room - US_PER_S if has_room else room), max(now, at)
        return has_room


def shown_address(address: str) -> str:
    """Return an address as operators write it: ``host:port``, or ``[host]:port`` for IPv6."""
    found = _PEER.match(address)
    if found is None:
        return address
    host, port = found.groups()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
