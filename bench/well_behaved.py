"""The well-behaved client: a publisher and a subscriber of QoS 1 at a steady pace, and a client that pings.

Rule: a message's time begins when it was due, not when it could be sent: a broker that stops reading does not stop
the clock.
Rule: the publisher honours the broker's Receive Maximum, as MQTT asks; what is due meanwhile waits in the client.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hostile_links import HostileLink, HostileLinks, connect, publish, subscribe
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V5, Connack, Pingreq, Pingresp, Puback, Publish, Suback
from whimbrel.mqtt.properties import Property

__all__ = ["USER", "Experience", "experience"]

USER = ("well-behaved", b"well-behaved")
"""The user name and the password, for brokers that ask."""
_TOPIC = "well/behaved"
_PING_S = 0.1
_WARM_UP = 20
_SETTLE_S = 60.0
"""How long the last message may take; one that comes later is lost."""
_MAX_IDS = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """How the client fared: times are seconds."""

    sent: int
    times: tuple[float, ...]
    """Of each message that arrived, from when it was due."""
    pings: tuple[float, ...]
    is_connected: bool
    """Whether the broker cut none of its connections."""

    @property
    def lost(self) -> int:
        """How many messages never arrived."""
        return self.sent - len(self.times)

    def time_of(self, part: float) -> float:
        """Return what *part* of the messages took at most; a lost one took for ever."""
        return _at(sorted(self.times), self.sent, part)

    def ping_of(self, part: float) -> float:
        """Return what *part* of the pings took at most."""
        return _at(sorted(self.pings), len(self.pings), part)


def _at(times: Sequence[float], count: int, part: float) -> float:
    place = min(int(count * part), count - 1)
    return times[place] if 0 <= place < len(times) else float("inf")


class _Pair:
    """Publisher, subscriber and pinging client; one loop, so that they cost little."""

    def __init__(self, port: int) -> None:
        self._links = HostileLinks()
        self.publisher, self.subscriber, self.pinger = (self._connected(port) for _ in range(3))
        self.subscriber.send(subscribe(_TOPIC, qos=1))
        self._wait(self.subscriber, Suback)
        self.due: deque[tuple[int, float]] = deque()
        self.due_at: dict[int, float] = {}
        self.in_flight = 0
        self.times: dict[int, float] = {}
        self.pinged_at: float | None = None
        self.pings: list[float] = []

    def _connected(self, port: int) -> HostileLink:
        name, password = USER
        link = self._links.open(port, connect(username=name, password=password))
        assert link is not None, "a socket"
        answer = self._wait(link, Connack)
        assert isinstance(answer, Connack)
        assert not answer.code, answer
        self.receive_maximum = answer.properties.integer(Property.RECEIVE_MAXIMUM) or _MAX_IDS
        return link

    def _wait(self, link: HostileLink, kind: type[Connack | Suback]) -> Connack | Suback:
        assert self._links.run_until(time.monotonic() + _SETTLE_S, lambda: bool(link.inbox) or link.is_closed)
        (answer,) = link.take()
        assert isinstance(answer, kind), answer
        return answer

    @property
    def is_connected(self) -> bool:
        return not any(link.is_closed for link in (self.publisher, self.subscriber, self.pinger))

    def turn(self, timeout_s: float) -> None:
        """Send what is due, receive what there is."""
        while self.due and self.in_flight < self.receive_maximum and not self.publisher.is_closed:
            number, _ = self.due.popleft()
            self.in_flight += 1
            self.publisher.send(publish(_TOPIC, b"%012d" % number + bytes(52), 1, number % _MAX_IDS + 1))
        self._links.turn(timeout_s)
        now = time.monotonic()
        self.in_flight -= sum(isinstance(packet, Puback) for packet in self.publisher.take())
        for packet in self.subscriber.take():
            if isinstance(packet, Publish):
                self.times.setdefault(int(packet.payload[:12]), now)
                self.subscriber.send(encode(Puback(packet.packet_id), V5))
        for packet in self.pinger.take():
            if isinstance(packet, Pingresp) and self.pinged_at is not None:
                self.pings.append(now - self.pinged_at)
                self.pinged_at = None

    def ping(self, now: float) -> None:
        """Ask for a PINGRESP unless one is due."""
        if self.pinged_at is None and not self.pinger.is_closed:
            self.pinged_at = now
            self.pinger.send(encode(Pingreq(), V5))

    def pass_on(self, first: int, count: int, per_second: float) -> dict[int, float]:
        """Send *count* messages at a steady pace and wait for them; return when each was due."""
        began, numbers = time.monotonic(), iter(range(first, first + count))
        due_at: dict[int, float] = {}
        next_ping, deadline = began, began + count / per_second + _SETTLE_S
        number = next(numbers, None)
        while self.is_connected and time.monotonic() < deadline:
            now = time.monotonic()
            while number is not None and began + (number - first) / per_second <= now:
                due_at[number] = began + (number - first) / per_second
                self.due.append((number, due_at[number]))
                number = next(numbers, None)
            if now >= next_ping and number is not None:
                self.ping(now)
                next_ping = now + _PING_S
            if number is None and not due_at.keys() - self.times.keys():
                break
            self.turn(0.002)
        return due_at


def experience(port: int, *, seconds: float, per_second: float, ready: Path) -> Experience:
    """Use the broker on *port* for *seconds*; the file *ready* is made when the first messages have arrived."""
    pair = _Pair(port)
    pair.pass_on(0, _WARM_UP, per_second)
    pair.pings.clear()
    ready.touch()
    count = int(seconds * per_second)
    due_at = pair.pass_on(_WARM_UP, count, per_second)
    waiting = () if pair.pinged_at is None else (time.monotonic() - pair.pinged_at,)
    return Experience(
        sent=count,
        times=tuple(pair.times[number] - at for number, at in due_at.items() if number in pair.times),
        pings=(*pair.pings, *waiting),
        is_connected=pair.is_connected,
    )
