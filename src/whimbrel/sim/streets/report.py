"""The counts of a simulated city: events, frames and bytes on the air, and delays of events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from whimbrel.nearby.frames.values import Event, Frame, GroupId, Join
from whimbrel.nearby.group.outputs import Deliver, Note, NoteKind
from whimbrel.nearby.prediction import DurationHistogram
from whimbrel.sim.streets.town import Resident, Town

__all__ = ["CityReport", "CityWatcher"]

_COUNTED = {NoteKind.MISSED, NoteKind.MEMBER_MISSED, NoteKind.MEMBER_EXPIRED}
"""Kinds of notes that carry a number of events."""


@dataclass(slots=True)
class CityReport:
    """Counts from the end of the warm-up."""

    counts: Counter[str] = field(default_factory=Counter)
    latency: DurationHistogram = field(default_factory=DurationHistogram)
    late: int = 0
    """Events delivered later than the bound of their producer."""
    repaired: int = 0
    """Events delivered after a request, which the bound does not cover."""
    caught_up: int = 0
    """Events delivered to a vehicle that joined after the publication: the latest event, while still valid."""
    bounds: DurationHistogram = field(default_factory=DurationHistogram)
    """Delay bounds that the producers promised, one for each event."""
    frames: Counter[str] = field(default_factory=Counter)
    """Transmissions, by kind of frame."""
    datagrams: Counter[str] = field(default_factory=Counter)
    """Datagrams that these transmissions need on a real link, by kind of frame."""
    most_datagrams: int = 0
    """Largest number of datagrams of one frame."""
    sizes: Counter[str] = field(default_factory=Counter)
    """Bytes of these transmissions by kind of frame, if ``CityWatcher.is_weighing``."""
    touched: set[str] = field(default_factory=set)


class CityWatcher:
    """Counts events and transmissions for the report."""

    def __init__(self, town: Callable[[], Town]) -> None:
        self.report = CityReport()
        self.published: dict[tuple[str, int], tuple[int, int]] = {}
        """Time of each counted event, and the bound of its producer."""
        self.is_counting = False
        self.is_weighing = False
        """Whether bytes are counted too: encoding every frame takes longer than simulating it."""
        self._town = town
        self._joined_at: dict[tuple[str, GroupId], int] = {}

    def publish(self, event: Event | None, bound_us: int, *, now: int) -> None:
        """Record a publication and its promised bound; *event* is None if no consumer matched."""
        if not self.is_counting:
            return
        self.report.counts["published"] += 1
        if event is None:
            self.report.counts["unheard"] += 1
            return
        self.report.bounds.add(bound_us)
        self.published[event.origin, event.seq] = (now, bound_us)

    def on_transmission(self, who: Resident, frame: Frame, *, datagrams: int, heard_by: int, now: int) -> None:
        """Count a transmission."""
        del who, heard_by, now
        if not self.is_counting:
            return
        kind = "join" if isinstance(frame, Join) else type(frame).__name__.lower()
        self.report.frames[kind] += 1
        self.report.datagrams[kind] += datagrams
        self.report.most_datagrams = max(self.report.most_datagrams, datagrams)
        if self.is_weighing:
            self.report.sizes[kind] += self._town().size_of(frame)

    def on_note(self, who: Resident, note: Note, *, now: int) -> None:
        """Count a note of a node."""
        if note.kind is NoteKind.JOINED:
            self._joined_at[who.node.name, note.group] = now
        if self.is_counting:
            self.report.counts[note.kind.value] += note.count if note.kind in _COUNTED else 1
            self.report.touched.add(who.node.name)

    def on_delivery(self, who: Resident, what: Deliver, *, now: int) -> None:
        """Count a delivery, and its delay in true time."""
        at, bound_us = self.published.get((what.event.origin, what.event.seq), (None, 0))
        if at is None:
            return
        self.report.counts["delivered"] += 1
        if self._joined_at.get((who.node.name, what.event.group), at) > at:
            self.report.caught_up += 1
            return
        self.report.latency.add(now - at)
        # A requested event left its sender with 0 hops; a flooded one arrives with its first hop count or fewer.
        is_repaired = what.event.hops == 0 and now - at >= self._town().deployment.repair_us
        self.report.repaired += is_repaired
        self.report.late += now - at > bound_us and not is_repaired
