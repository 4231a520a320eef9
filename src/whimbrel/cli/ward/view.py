"""What the demo's page and lines show, as values: drawing needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from whimbrel.cli.ward.tallies import Latency

__all__ = ["Bar", "Bed", "Owner", "PipelineView", "View", "Why"]


@dataclass(frozen=True, slots=True)
class Bar:
    """A subject, and a number that is drawn."""

    subject: str
    number: int
    told: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView:
    """How far the pipeline is, and what it knows."""

    doing: str = "starting Spark …"
    """What it does, where there is nothing to show yet, or no more."""
    batch: int = -1
    facts: int = 0
    """Of the last batch."""
    took_s: float = 0.0
    behind: int = 0
    """How many numbers the log has that the tables have not,"""
    behind_s: float = 0.0
    """and how old the newest fact in the tables is."""
    state: int = 0
    """How many things it remembers."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """By table, how many there are."""
    latency: Latency = field(default_factory=Latency)
    expired: int = 0
    """Notifications that expired unseen, in all windows."""
    popularity: tuple[Bar, ...] = ()
    replicas: tuple[Bar, ...] = ()
    away: Mapping[str, int] = field(default_factory=dict)
    """By device that is away, how many notifications wait for it."""


@dataclass(frozen=True, slots=True)
class Bed:
    """The vital signs that a bed said last."""

    pulse: int
    oxygen: int | None
    """None: no clip was worn."""

    @property
    def is_racing(self) -> bool:
        """Whether the pulse is one that the nurse asked to be told of."""
        return self.pulse > 105

    @property
    def is_short_of_breath(self) -> bool:
        """Whether the oxygen is."""
        return self.oxygen is not None and self.oxygen < 94


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A person, or a device on its own, that notifications are held for."""

    name: str
    here: tuple[str, ...]
    away: tuple[str, ...]
    held: int
    """For those who are away, all together."""


@dataclass(frozen=True, slots=True)
class Why:
    """A delivery, and why it was made."""

    clock: str
    device: str
    subject: str
    reason: str
    waited_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One moment of the demo."""

    phase: str
    elapsed_s: float
    busy_s: float
    """How long the ward has been busy with the pipeline following,"""
    seconds: float
    """and how long it is to be."""
    devices: int
    present: int
    published: int
    received: int
    published_per_s: tuple[int, ...]
    """Of the last seconds, the oldest first."""
    received_per_s: tuple[int, ...]
    latency: Latency
    longest_held_us: int
    owners: tuple[Owner, ...]
    """Those that most is held for first."""
    why: tuple[Why, ...]
    pipeline: PipelineView
    beds: Mapping[str, Bed] = field(default_factory=dict)
    """By bed, what its monitor said last."""
    batteries: Mapping[str, int] = field(default_factory=dict)
    """By badge, how full its battery is, in percent."""
