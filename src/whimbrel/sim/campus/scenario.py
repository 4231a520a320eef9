"""A scenario of Campus++: number of topics, subscribers, publications, and the copies that the replica plan gives.

The paper fixes nodes, memory, topics, workload and popularity (section 3.3). It leaves open the number of subscribers
of a topic, the interval of its publications, the period of Hello, and whether a transfer takes time. These are settings
here, and every report repeats them.

Rule: the same seed gives the same subscriptions and publications for every workload and allocation, so that figures
compare plans, not random draws.
Rule: publications are ordered by (time, publisher, topic), which is the order of the samples' ids.
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
from whimbrel.model.replicas import TARGET, find_unserved, plan

__all__ = ["Allocation", "Campus", "Publication", "World", "share_by_power"]

Allocation = Literal["sqrt", "flat"]
_MAX_PUBLICATIONS = 20_000_000
_MAX_CELLS = 50_000_000
"""Limit of nodes × topics; the simulator keeps several numbers for each such pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Campus:
    """The settings of one simulation; the paper does not fix those from ``exponent`` on."""

    topics: int = 100
    memory: int = PLACES
    workload: float = TARGET
    """Part of all buffer slots that the copies of all topics fill: ΣL / (nodes × memory)."""
    zipf_exponent: float = 0.0
    """Inequality of popularity: the i-th topic has subscribers in proportion to 1 / i to this power; 0: all equal."""
    allocation: Allocation = "sqrt"
    """``sqrt``: copies by formula (1); ``flat``: the same number of copies for every topic."""
    exponent: float | None = None
    """Copies in proportion to subscribers to this power, beyond the paper; None: 0.5 for ``sqrt``, 0 for ``flat``."""
    subscribers: float = 5.0
    """Mean number of subscribers of a topic."""
    interval_s: float = 4_000.0
    """Mean seconds between two publications on a topic; they form a Poisson process."""
    hello_s: float | None = None
    """The period of Hello; None: at the start of a contact and after each change of the list during it."""
    transfer_s: float = 0.0
    """Seconds from a request until its answer arrives."""
    shows_retrieved: bool = False
    """Whether subscribers show retrieved samples to other subscribers."""
    warmup_s: float | None = None
    """Reports ignore samples published before this time; None: two intervals."""

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
        """Time from which publications count."""
        return 2 * self.interval_s if self.warmup_s is None else self.warmup_s

    def assumptions(self) -> dict[str, object]:
        """Return every setting with its value, for reports."""
        return asdict(self) | {"warmup_s": self.measured_from_s}

    def subscribers_of_topics(self, nodes: int) -> list[int]:
        """Return the number of subscribers of each topic, most popular first: at least one, at most all nodes."""
        weights = [(rank + 1) ** -self.zipf_exponent for rank in range(self.topics)]
        unit = self.subscribers * self.topics / math.fsum(weights)
        return [min(max(round(weight * unit), 1), nodes) for weight in weights]

    def copies(self, nodes: int) -> list[int]:
        """Return L, the number of copies, of each topic; refuse a workload that leaves a topic without a copy."""
        counts = self.subscribers_of_topics(nodes)
        exponent = self.exponent if self.exponent is not None else 0.5 if self.allocation == "sqrt" else 0.0
        names = [f"{topic:05}" for topic in range(self.topics)]
        shares = share_by_power(counts, exponent)
        wanted = dict(zip(names, shares, strict=True))
        memory = {"nodes": nodes, "slots_per_node": self.memory}
        if beyond := find_unserved(wanted, **memory, target=self.workload):
            most = self.topics - len(beyond)
            raise InvalidValueError("topics", self.topics, f"at most {most}: {nodes} nodes of {self.memory} samples")
        found = plan(wanted, **memory, target=self.workload)
        return [found[name] for name in names]

    def world(self, *, nodes: int, seconds: float, seed: int) -> World:
        """Draw the subscribers of each topic, and the time and publisher of each publication."""
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
    """One publication of a node on a topic; the time is in microseconds from the start."""

    published_at: int
    publisher: int
    topic: int

    @property
    def time_s(self) -> float:
        """Time of the publication in seconds."""
        return self.published_at / US_PER_S

    @property
    def sample(self) -> Sample:
        """The published sample; the simulation ignores its body."""
        return Sample(topic=self.topic, published_at=self.published_at, publisher=self.publisher)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The random draw: the subscribers of each topic, all publications in order, and L of each topic."""

    nodes: int
    subscribers: list[list[int]]
    publications: list[Publication]
    copies: list[int]


def share_by_power(counts: list[int], exponent: float) -> list[int]:
    """Rescale counts so that the plan, which takes square roots, gives copies in proportion to count ** *exponent*."""
    if exponent == 0.5:
        return counts
    return [round(1e12 * (count / max(counts)) ** (2 * exponent)) or 1 for count in counts]
