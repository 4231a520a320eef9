"""A load to send through a broker, and the results of measuring it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from whimbrel.errors import InvalidValueError, WhimbrelError
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V5, V311, Publish

__all__ = ["MAX_IDS", "Idle", "Latency", "Load", "LoadError", "Throughput", "publications"]

MAX_IDS = 65_535
"""Number of packet identifiers, and so of QoS 1 publications that can be in flight."""


class LoadError(WhimbrelError):
    """A broker did not behave as the measurement needs. Reaction: check the broker, then measure again."""

    def __init__(self, found: object, wanted: str) -> None:
        super().__init__(found, wanted)
        self.found, self.wanted = found, wanted

    def __str__(self) -> str:
        return f"measuring a broker: found {self.found}, wanted {self.wanted}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A load: *count* publications in each round, whose bodies are sent in turn."""

    port: int
    host: str = "127.0.0.1"
    topic: str = "whimbrel/bench"
    bodies: tuple[bytes, ...] = (bytes(64),)
    count: int = 100_000
    qos: int = 0
    publishers: int = 1
    subscribers: int = 1
    filters: tuple[tuple[str, ...], ...] = ()
    """Content filters of each subscriber; with them, every publication must match exactly one subscriber."""
    window: int = 4_000
    """Most publications in flight."""
    is_stored: bool = False
    """Whether the sessions of the subscribers outlive their connections; they are ended after the measurement."""
    limit_s: float = 20.0
    """Longest time of sending; publications that are left then are not sent."""

    def __post_init__(self) -> None:
        if len({len(body) for body in self.bodies}) != 1:
            raise InvalidValueError("bodies", sorted({len(body) for body in self.bodies}), "bodies of one length")
        if self.qos not in {0, 1}:
            raise InvalidValueError("QoS", self.qos, "0 or 1")
        if not 0 < self.window <= MAX_IDS // 2:
            raise InvalidValueError("window", self.window, f"1 to {MAX_IDS // 2}")
        if self.filters and len(self.filters) != self.subscribers:
            raise InvalidValueError("filters", len(self.filters), f"{self.subscribers}, one for each subscriber")

    @property
    def version(self) -> int:
        """Version of MQTT that the load uses."""
        return V5 if self.filters else V311

    @property
    def copies(self) -> int:
        """Number of subscribers that receive each publication."""
        return min(1, self.subscribers) if self.filters else self.subscribers

    @property
    def size_bytes(self) -> int:
        """Length of a body in bytes."""
        return len(self.bodies[0])

    def encode(self, number: int) -> bytes:
        """Encode publication *number*, counted from 0; its packet identifier is *number* + 1."""
        body = self.bodies[number % len(self.bodies)]
        return encode(Publish(self.topic, body, self.qos, packet_id=number + 1 if self.qos else 0), self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Numbers sent and arrived, and the duration of each round."""

    sent: int
    expected: int
    """Expected deliveries, or acknowledgements if there are no subscribers."""
    arrived: int
    seconds: tuple[float, ...]
    broker_cpu_s: float | None
    generator_cpu_s: float

    @property
    def lost(self) -> int:
        """Number that did not arrive."""
        return self.expected - self.arrived

    @property
    def rate(self) -> float:
        """Arrivals per second, for the median duration of a round."""
        return self.arrived / len(self.seconds) / statistics.median(self.seconds)

    @property
    def cpu_us(self) -> float | None:
        """Processor time of the broker per arrival, in microseconds."""
        return None if self.broker_cpu_s is None or not self.arrived else self.broker_cpu_s / self.arrived * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Delivery times at a rate that the broker sustains easily."""

    rate: float
    expected: int
    arrived: int
    p50_us: float
    p99_us: float
    cpu_us: float | None = None
    """Processor time of the broker per arrival, in microseconds; None if it is unknown."""

    @property
    def lost(self) -> int:
        """Number that did not arrive."""
        return self.expected - self.arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Memory that a broker needs for idle clients."""

    connections: int
    answered: int
    """Number of connections that were still answered at the end."""
    before_bytes: int
    after_bytes: int


def publications(load: Load, block: int) -> list[bytes]:
    """Encode the publications of *load* in blocks of *block* packets, which are sent repeatedly.

    There are enough of them that a packet identifier is not reused before it was acknowledged.
    """
    needed = max(len(load.bodies), 2 * load.window if load.qos else 1)
    encoded = [load.encode(number) for number in range(-(-needed // block) * block)]
    return [b"".join(encoded[at : at + block]) for at in range(0, len(encoded), block)]
