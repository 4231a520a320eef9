"""The deployment: settings that all nodes of one place share, and the bounds of each node's memory.

Rule: cell size, period, hop bound, the time of one transmission and that of one filter step must be equal everywhere.
The cell size is in every beacon, so that a node with other settings is noticed.
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
    """Settings of one deployment, equal on all nodes; the defaults suit a town and a radio of some hundred metres."""

    cell_m: int = 500
    """Side of a cell of the finest level."""
    max_radius_m: float = 5_000.0
    """Largest radius of an area that may be announced, and that receivers accept."""
    period_us: int = US_PER_S
    """Interval of beacons, and of joins."""
    missed_periods: int = 3
    """Periods without a frame after which a member or producer is removed."""
    max_hops: int = 8
    """Largest hop bound of an announcement."""
    airtime_us: int = 2_000
    """Longest transmission time of one datagram; subtracted from the remaining time for each datagram of a frame."""
    slot_us: int = 500
    slots: int = 16
    """Number of slots: a node repeats a frame after 0 to ``slots - 1`` of them, fixed by its id and the frame's."""
    repair_us: int = 50_000
    """Interval of requests for a missing event."""
    filter_step_ns: int = 1_000
    """Longest time of one step of a content filter on the slowest node."""
    signed_age_us: int = 60 * US_PER_S
    """Most age of a signed frame at a node whose clock is set, and most difference of clocks."""
    max_speed_m_s: float = 100.0
    """A fix that implies a higher speed is a jump: heading and speed stay unknown until the next fix."""
    max_frame_bytes: int = 1_200
    """Largest frame: the smallest MTU of IPv6 (1,280 bytes) without headers."""
    max_groups: int = 256
    max_members: int = 100_000
    max_listed: int = 64
    """Most members in a beacon; for a larger view it has the digest alone."""
    max_origins: int = 4_096
    max_queue: int = 1_024
    max_kept: int = 1_024
    max_missing: int = 32
    """Most missing events of one group that are requested at a time."""
    max_waiting: int = 1_024
    """Most events in the queue to the application."""
    max_sender_frames: int = 128
    """Most new beacons, joins, requests and objections of one sender that are processed in a period."""
    max_sender_events: int = 1_024
    """Most new events of one sender that are processed in a period."""

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
        """Time without a frame after which a member or producer is removed."""
        return self.missed_periods * self.period_us

    @property
    def longest_delay_us(self) -> int:
        """Longest delay before a node repeats a frame."""
        return (self.slots - 1) * self.slot_us
