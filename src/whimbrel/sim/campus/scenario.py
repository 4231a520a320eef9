"""A scenario of Campus++: how many topics, who subscribes, who publishes when, and how many copies the plan gives.

The paper fixes nodes, memory, topics, workload and popularity (section 3.3). It leaves open how many subscribers a
topic has, how often it is published on, how often Hello is said and whether a transfer takes time: settings here, which
every report repeats.

Rule: same seed, same subscriptions and publications, whatever the workload and the allocation: figures compare plans,
not draws.
Rule: publications come in the order of (time, publisher, topic), which is the order of the samples' ids.
"""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass
from typing import Literal

from whimbrel.carry.hello import MAX_TOPIC, Sample
from whimbrel.carry.node import PLACES
from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import real, whole
from whimbrel.model.clock import US_PER_S
from whimbrel.model.replicas import TARGET, plan, unserved

__all__ = ["Allocation", "Campus", "Publication", "World", "share_by_power"]

Allocation = Literal["sqrt", "flat"]
_MAX_PUBLICATIONS = 20_000_000
_MAX_CELLS = 50_000_000
"""Nodes × topics, of each of which the simulator keeps some numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Campus:
    """The settings of one simulation; the paper says nothing of those from ``exponent`` on."""

    topics: int = 100
    memory: int = PLACES
    workload: float = TARGET
    """The part of all places that the copies of all topics take: ΣL / (nodes × memory)."""
    zipf_exponent: float = 0.0
    """How unequal popularity is: the i-th topic has subscribers in proportion to i to the minus this; 0: equal."""
    allocation: Allocation = "sqrt"
    """By formula (1), or the same number of copies for every topic."""
    exponent: float | None = None
    """Copies in proportion to subscribers to this power, beyond the paper; ``allocation`` says 0.5 or 0."""
    subscribers: float = 5.0
    """Subscribers of a topic, in the mean over topics."""
    interval_s: float = 4_000.0
    """Seconds between two publications on a topic, in the mean; they come as a Poisson process."""
    hello_s: float | None = None
    """The period of Hello; None: at the beginning of a contact and whenever the list changes during it."""
    transfer_s: float = 0.0
    """How long it takes from a request until its answer has come."""
    shows_retrieved: bool = False
    """Whether subscribers show what they have retrieved to other subscribers."""
    warmup_s: float | None = None
    """Samples published before this do not count in reports; None: two intervals."""

    def __post_init__(self) -> None:
        whole("topics", self.topics, 1, MAX_TOPIC)
        whole("memory", self.memory, 1, 10_000)
        real("workload", self.workload, 0, 1)
        real("zipf_exponent", self.zipf_exponent, 0, 10)
        real("subscribers", self.subscribers, 0, 1e6)
        real("interval_s", self.interval_s, 1e-3, 1e9)
        real("transfer_s", self.transfer_s, 0, 1e6)
        if self.hello_s is not None:
            real("hello_s", self.hello_s, 1e-3, 1e6)
        if self.warmup_s is not None:
            real("warmup_s", self.warmup_s, 0, 1e9)
        if self.exponent is not None:
            real("exponent", self.exponent, 0, 10)
        if self.allocation not in {"sqrt", "flat"}:
            raise InvalidValueError("allocation", self.allocation, "sqrt or flat")

    @property
    def measured_from_s(self) -> float:
        """The time from which on publications count."""
        return 2 * self.interval_s if self.warmup_s is None else self.warmup_s

    def assumptions(self) -> dict[str, object]:
        """Return every setting, for reports."""
        return asdict(self) | {"warmup_s": self.measured_from_s}

    def subscribers_of_topics(self, nodes: int) -> list[int]:
        """Return how many subscribers each topic has, the most popular first: at least one, at most all nodes."""
        weights = [(rank + 1) ** -self.zipf_exponent for rank in range(self.topics)]
        unit = self.subscribers * self.topics / math.fsum(weights)
        return [min(max(round(weight * unit), 1), nodes) for weight in weights]

    def copies(self, nodes: int) -> list[int]:
        """Return L of each topic; a workload that gives a topic less than one copy is refused."""
        counts = self.subscribers_of_topics(nodes)
        exponent = self.exponent if self.exponent is not None else 0.5 if self.allocation == "sqrt" else 0.0
        names = [f"{topic:05}" for topic in range(self.topics)]
        shares = share_by_power(counts, exponent)
        wanted = dict(zip(names, shares, strict=True))
        memory = {"nodes": nodes, "slots_per_node": self.memory}
        if beyond := unserved(wanted, **memory, target=self.workload):
            most = self.topics - len(beyond)
            raise InvalidValueError("topics", self.topics, f"at most {most}: {nodes} nodes of {self.memory} samples")
        found = plan(wanted, **memory, target=self.workload)
        return [found[name] for name in names]

    def world(self, *, nodes: int, seconds: float, seed: int) -> World:
        """Draw who subscribes and who publishes when."""
        if self.topics * seconds / self.interval_s > _MAX_PUBLICATIONS:
            raise InvalidValueError(
                "interval_s", self.interval_s, f"one that makes at most {_MAX_PUBLICATIONS} samples"
            )
        if nodes * self.topics > _MAX_CELLS:
            raise InvalidValueError("nodes × topics", nodes * self.topics, f"at most {_MAX_CELLS:,}")
        rng = random.Random(f"{seed}/subscriptions")
        subscribers = [sorted(rng.sample(range(nodes), count)) for count in self.subscribers_of_topics(nodes)]
        publications: list[Publication] = []
        for topic in range(self.topics):
            rng = random.Random(f"{seed}/publications/{topic}")
            now_s = rng.expovariate(1 / self.interval_s)
            while now_s < seconds:
                publications.append(Publication(round(now_s * US_PER_S), rng.randrange(nodes), topic))
                now_s += rng.expovariate(1 / self.interval_s)
        publications.sort(key=lambda each: (each.published_at, each.publisher, each.topic))
        copies = self.copies(nodes)
        return World(nodes=nodes, subscribers=subscribers, publications=publications, copies=copies)


@dataclass(frozen=True, slots=True)
class Publication:
    """A node publishes on a topic, at a time in microseconds from the beginning."""

    published_at: int
    publisher: int
    topic: int

    @property
    def time_s(self) -> float:
        """The same time in seconds."""
        return self.published_at / US_PER_S

    @property
    def sample(self) -> Sample:
        """What is published; its body does not matter here."""
        return Sample(topic=self.topic, published_at=self.published_at, publisher=self.publisher)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What was drawn: the subscribers of each topic, all publications in order, and L of each topic."""

    nodes: int
    subscribers: list[list[int]]
    publications: list[Publication]
    copies: list[int]


def share_by_power(counts: list[int], exponent: float) -> list[int]:
    """Return counts for the plan, which takes their square root, so that copies follow subscribers to *exponent*."""
    if exponent == 0.5:
        return counts
    return [round(1e12 * (count / max(counts)) ** (2 * exponent)) or 1 for count in counts]
