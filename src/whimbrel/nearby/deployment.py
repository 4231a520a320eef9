"""The deployment: numbers that all nodes of one place share, and what each of them may keep in memory.

Rule: cell size, period, hop bound, the time of one transmission and that of one step of a filter must be equal
everywhere. The cell size is in every
beacon, so that a node that was set up otherwise is noticed.
Rule: every table that strangers can fill has a bound here.
"""

from __future__ import annotations

from dataclasses import dataclass

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import real, whole
from whimbrel.model.clock import US_PER_S

__all__ = ["MAX_HOPS", "Deployment"]

MAX_HOPS = 32
_HOUR_US = 3_600 * US_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What the nodes of one deployment agree on; the defaults suit a town and a radio of some hundred metres."""

    cell_m: int = 500
    """The side of a cell of the finest level."""
    max_radius_m: float = 5_000.0
    """The largest area that may be announced, and that is believed."""
    period_us: int = US_PER_S
    """From beacon to beacon, and from join to join."""
    missed_periods: int = 3
    """A member or producer that is silent for so many periods is out."""
    max_hops: int = 8
    """The largest hop bound of an announcement."""
    airtime_us: int = 2_000
    """The longest time that one datagram takes; it is taken off the remaining time for each datagram of a frame."""
    slot_us: int = 500
    slots: int = 16
    """A node repeats a frame after 0 to ``slots - 1`` slots, fixed by its id and the frame's."""
    repair_us: int = 50_000
    """From one request for a missing event to the next."""
    filter_step_ns: int = 1_000
    """The longest time that one step of a content filter takes on the slowest node."""
    signed_age_us: int = 60 * US_PER_S
    """How old a signed frame may be where the clock is set, and how far clocks may differ."""
    max_speed_m_s: float = 100.0
    """A faster fix is no movement: heading and speed are unknown until the next."""
    max_frame_bytes: int = 1_200
    """Below the smallest packet that every IPv6 link carries whole (1,280 bytes), headers taken off."""
    max_groups: int = 256
    max_members: int = 100_000
    max_listed: int = 64
    """How many members a beacon lists; of larger views it tells the digest alone."""
    max_origins: int = 4_096
    max_queue: int = 1_024
    max_kept: int = 1_024
    max_missing: int = 32
    """How many missing events of one group are asked for at a time."""
    max_waiting: int = 1_024
    """How many events wait for the application."""
    max_sender_frames: int = 128
    """How many new beacons, joins and requests of one sender are looked at in a period."""
    max_sender_events: int = 1_024
    """How many new events of one sender are looked at in a period."""

    def __post_init__(self) -> None:
        whole("cell_m", self.cell_m, 50, 100_000)
        real("max_radius_m", self.max_radius_m, 1, 1_000_000)
        whole("period_us", self.period_us, 10_000, _HOUR_US)
        whole("missed_periods", self.missed_periods, 2, 100)
        whole("max_hops", self.max_hops, 0, MAX_HOPS)
        whole("airtime_us", self.airtime_us, 0, US_PER_S)
        whole("slot_us", self.slot_us, 0, US_PER_S)
        whole("slots", self.slots, 1, 1_024)
        whole("repair_us", self.repair_us, 1_000, _HOUR_US)
        whole("filter_step_ns", self.filter_step_ns, 1, 1_000_000)
        whole("signed_age_us", self.signed_age_us, US_PER_S, 24 * _HOUR_US)
        real("max_speed_m_s", self.max_speed_m_s, 1, 100_000)
        whole("max_frame_bytes", self.max_frame_bytes, 512, 65_000)
        for name in (
            "groups",
            "members",
            "origins",
            "queue",
            "kept",
            "missing",
            "waiting",
            "sender_frames",
            "sender_events",
        ):
            whole(f"max_{name}", getattr(self, f"max_{name}"), 1, 10_000_000)
        whole("max_listed", self.max_listed, 0, 128)
        if self.repair_us > self.period_us:
            raise InvalidValueError("repair_us", self.repair_us, f"at most the period of {self.period_us} µs")

    @property
    def silence_us(self) -> int:
        """How long a member or producer may be silent."""
        return self.missed_periods * self.period_us

    @property
    def longest_delay_us(self) -> int:
        """The longest that a node waits before it repeats a frame."""
        return (self.slots - 1) * self.slot_us
