"""What is sent through a broker, and what came of it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from whimbrel.errors import InvalidValueError, WhimbrelError
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V5, V311, Publish

__all__ = ["MOST_IDS", "Idle", "Latency", "Load", "LoadError", "Throughput", "publications"]

MOST_IDS = 65_535
"""Packet identifiers, and so publications at QoS 1 that can be under way at a time."""


class LoadError(WhimbrelError):
    """A broker did not do what it must for being measured. Reaction: look at the broker, then measure again."""

    def __init__(self, found: object, wanted: str) -> None:
        super().__init__(found, wanted)
        self.found, self.wanted = found, wanted

    def __str__(self) -> str:
        return f"measuring a broker: found {self.found}, wanted {self.wanted}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent through a broker: *count* publications at a time, of bodies that are sent in turn."""

    port: int
    host: str = "127.0.0.1"
    topic: str = "whimbrel/bench"
    bodies: tuple[bytes, ...] = (bytes(64),)
    count: int = 100_000
    qos: int = 0
    publishers: int = 1
    subscribers: int = 1
    filters: tuple[tuple[str, ...], ...] = ()
    """The filters by content of each subscriber; with them, every publication must be for exactly one subscriber."""
    window: int = 4_000
    """How many may be under way at a time."""
    limit_s: float = 20.0
    """How long sending may take; what is not sent by then is not sent."""

    def __post_init__(self) -> None:
        if len({len(body) for body in self.bodies}) != 1:
            raise InvalidValueError("bodies", sorted({len(body) for body in self.bodies}), "bodies of one length")
        if self.qos not in {0, 1}:
            raise InvalidValueError("QoS", self.qos, "0 or 1")
        if not 0 < self.window <= MOST_IDS // 2:
            raise InvalidValueError("window", self.window, f"1 to {MOST_IDS // 2}")
        if self.filters and len(self.filters) != self.subscribers:
            raise InvalidValueError("filters", len(self.filters), f"{self.subscribers}, one for each subscriber")

    @property
    def version(self) -> int:
        """The version of MQTT that is spoken."""
        return V5 if self.filters else V311

    @property
    def copies(self) -> int:
        """How many subscribers every publication is for."""
        return min(1, self.subscribers) if self.filters else self.subscribers

    @property
    def size_bytes(self) -> int:
        """The length of a body."""
        return len(self.bodies[0])

    def encoded(self, number: int) -> bytes:
        """Return the publication of *number*, counted from 0; its packet identifier is one more."""
        body = self.bodies[number % len(self.bodies)]
        return encode(Publish(self.topic, body, self.qos, packet_id=number + 1 if self.qos else 0), self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """How many went through, and how long each round of them took."""

    sent: int
    expected: int
    """Deliveries, or acknowledgements where there are no subscribers."""
    arrived: int
    seconds: tuple[float, ...]
    broker_cpu_s: float | None
    generator_cpu_s: float

    @property
    def lost(self) -> int:
        """How many did not arrive."""
        return self.expected - self.arrived

    @property
    def rate(self) -> float:
        """How many arrived a second, in the median of the rounds."""
        return self.arrived / len(self.seconds) / statistics.median(self.seconds)

    @property
    def cpu_us(self) -> float | None:
        """How much of a processor the broker took for each that arrived."""
        return None if self.broker_cpu_s is None or not self.arrived else self.broker_cpu_s / self.arrived * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long publications were on their way, at a rate the broker is not strained by."""

    rate: float
    expected: int
    arrived: int
    p50_us: float
    p99_us: float

    @property
    def lost(self) -> int:
        """How many did not arrive."""
        return self.expected - self.arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """What a broker takes for clients that say nothing."""

    connections: int
    answered: int
    """How many of them it still answered in the end."""
    before_bytes: int
    after_bytes: int


def publications(load: Load, block: int) -> list[bytes]:
    """Return the publications of *load* as they are written, *block* packets at a time, to be sent again and again.

    There are so many that a packet identifier does not come again before it was answered.
    """
    needed = max(len(load.bodies), 2 * load.window if load.qos else 1)
    encoded = [load.encoded(number) for number in range(-(-needed // block) * block)]
    return [b"".join(encoded[at : at + block]) for at in range(0, len(encoded), block)]
