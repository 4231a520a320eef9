"""The state of the demo at one moment: all values that its page and lines show, so that drawing needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from whimbrel.cli.demo.tallies import Latency

__all__ = ["Bar", "Bed", "DemoSnapshot", "Owner", "PipelineView", "Why"]


@dataclass(frozen=True, slots=True)
class Bar:
    """A subject, and a number to draw as a bar."""

    subject: str
    number: int
    told: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView:
    """Progress and results of the pipeline."""

    doing: str = "starting Spark …"
    """Current activity before the first results and after the last ones; else empty."""
    batch: int = -1
    facts: int = 0
    """Number of facts in the last batch."""
    took_s: float = 0.0
    behind: int = 0
    """Number of seqs in the log that are not in the tables."""
    behind_s: float = 0.0
    """Age of the newest fact in the tables, in seconds; 0 if the tables are up to date."""
    state: int = 0
    """Number of entries in the stream's state."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Number of rows, per table."""
    latency: Latency = field(default_factory=Latency)
    expired: int = 0
    """Notifications that expired unseen, in all windows."""
    popularity: tuple[Bar, ...] = ()
    replicas: tuple[Bar, ...] = ()
    away: Mapping[str, int] = field(default_factory=dict)
    """Number of held notifications, per absent device."""


@dataclass(frozen=True, slots=True)
class Bed:
    """The last vital signs of a bed."""

    pulse: int
    oxygen: int | None
    """Oxygen saturation in percent; None if no clip was worn."""

    @property
    def is_racing(self) -> bool:
        """Whether the pulse is so high that the nurse wants to be notified."""
        return self.pulse > 105

    @property
    def is_short_of_breath(self) -> bool:
        """Whether the oxygen saturation is so low that the nurse wants to be notified."""
        return self.oxygen is not None and self.oxygen < 94


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A person with a shared session, or a device without one, for whom notifications are held."""

    name: str
    here: tuple[str, ...]
    away: tuple[str, ...]
    held: int
    """Number of notifications held for the absent devices together."""


@dataclass(frozen=True, slots=True)
class Why:
    """A delivery, and the reason for it."""

    clock: str
    device: str
    subject: str
    reason: str
    waited_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSnapshot:
    """The state of the demo at one moment."""

    phase: str
    elapsed_s: float
    busy_s: float
    """Seconds for which the ward has been busy with the pipeline following."""
    seconds: float
    """Planned length of the busy phase, in seconds."""
    devices: int
    present: int
    published: int
    received: int
    published_per_s: tuple[int, ...]
    """Publications in each of the last seconds, the oldest first."""
    received_per_s: tuple[int, ...]
    latency: Latency
    longest_held_us: int
    owners: tuple[Owner, ...]
    """Sorted by the number of held notifications, the highest first."""
    why: tuple[Why, ...]
    pipeline: PipelineView
    beds: Mapping[str, Bed] = field(default_factory=dict)
    """Last vital signs, per bed."""
    batteries: Mapping[str, int] = field(default_factory=dict)
    """Battery charge in percent, per badge."""
