"""The plan of retention: which segments go now, which readers lose their place, and whether a checkpoint is missing.

Rule: only whole closed segments go, the oldest first, and never beyond *limit*, the older of the last two checkpoints.
Rule: a reader that registered keeps what it has not read, up to ``reader_bytes``; then it loses its place. Where the
disk itself is nearly full, it loses it at once: a broker that cannot write serves no client.
Rule: a registration that was not renewed for ``reader_days`` counts no more.
Pure: what is on the disk, the free space and the time are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["Bounds", "ClosedSegment", "Plan", "Reader", "Reason", "is_checkpoint_due", "plan"]

US_PER_DAY = 86_400_000_000


class Reason(Enum):
    """Why a segment goes."""

    AGE = "older than retain_days"
    BYTES = "the log is larger than retain_bytes"
    FREE = "less of the disk is free than retain_free_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of a log is kept; 0 is no bound."""

    days: int = 0
    bytes: int = 0
    free_bytes: int = 0
    reader_bytes: int = 0
    """How many bytes of the log a reader may keep from being cut."""
    reader_days: int = 0
    """For how long a registration counts that is not renewed; 0 is for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedSegment:
    """A segment that does not grow any more."""

    first: int
    last: int
    size_bytes: int
    last_at: int
    """The time of its last record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A reader that registered, and up to which number it has read."""

    name: str
    seq: int
    renewed_at: int
    lost_at: int | None = None
    """The number up to which it had read when what follows was cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done."""

    segments: tuple[ClosedSegment, ...] = ()
    """Those that go, the oldest first."""
    reasons: tuple[Reason, ...] = ()
    """Why, each once."""
    lost: tuple[Reader, ...] = ()
    """Readers that lose their place by it."""
    expired: tuple[Reader, ...] = ()
    """Readers that did not renew their registration for too long."""
    held_by: tuple[str, ...] = ()
    """Readers for whose sake something stays that would go otherwise."""
    needs_checkpoint: bool = False
    """Whether more would go if there were a newer checkpoint."""
    is_short: bool = False
    """Whether the log still takes more than it may, or too little of the disk is free, when these are gone."""


def plan(
    segments: Sequence[ClosedSegment],
    *,
    other_bytes: int,
    free_bytes: int,
    limit: int,
    readers: Sequence[Reader],
    bounds: Bounds,
    now: int,
) -> Plan:
    """Return what goes of *segments*; *other_bytes* is what the open segment and the checkpoints take."""
    expired = tuple(each for each in readers if _is_expired(each, bounds, now))
    alive = [each for each in readers if each not in expired and each.lost_at is None]
    unread = {each: sum(one.size_bytes for one in segments if one.last > each.seq) for each in alive}
    total = other_bytes + sum(each.size_bytes for each in segments)
    going: list[ClosedSegment] = []
    reasons: list[Reason] = []
    lost: list[Reader] = []
    held_by: tuple[str, ...] = ()
    needs_checkpoint = False
    for segment in segments:
        reason = _reason(segment, total, free_bytes, bounds, now)
        if reason is None:
            break
        if segment.last > limit:
            needs_checkpoint = True
            break
        behind = [each for each in alive if each.seq < segment.last and each not in lost]
        holding = [each for each in behind if reason is not Reason.FREE and unread[each] <= bounds.reader_bytes]
        if holding:
            held_by = tuple(each.name for each in holding)
            break
        lost += behind
        going.append(segment)
        reasons += [reason] if reason not in reasons else []
        total -= segment.size_bytes
        free_bytes += segment.size_bytes
    return Plan(
        segments=tuple(going),
        reasons=tuple(reasons),
        lost=tuple(lost),
        expired=expired,
        held_by=held_by,
        needs_checkpoint=needs_checkpoint,
        is_short=_is_short(total, free_bytes, bounds),
    )


def is_checkpoint_due(closed_bytes: int, segment_count: int, checkpoint_bytes: int, *, is_needed: bool) -> bool:
    """Return whether a checkpoint is worth its bytes.

    *closed_bytes* and *segment_count* are of the closed segments that the newest checkpoint does not cover, and that
    checkpoint has *checkpoint_bytes*. So no more is written for checkpoints than for the log itself, unless one
    *is_needed* to cut more of the log: the second of two is, also where no further segment was closed.
    """
    return is_needed or (segment_count > 0 and closed_bytes >= checkpoint_bytes)


def _is_short(total: int, free_bytes: int, bounds: Bounds) -> bool:
    return free_bytes < bounds.free_bytes or (bounds.bytes > 0 and total > bounds.bytes)


def _reason(segment: ClosedSegment, total: int, free_bytes: int, bounds: Bounds, now: int) -> Reason | None:
    if bounds.free_bytes and free_bytes < bounds.free_bytes:
        return Reason.FREE
    if bounds.bytes and total > bounds.bytes:
        return Reason.BYTES
    if bounds.days and segment.last_at < now - bounds.days * US_PER_DAY:
        return Reason.AGE
    return None


def _is_expired(reader: Reader, bounds: Bounds, now: int) -> bool:
    return bool(bounds.reader_days) and reader.renewed_at < now - bounds.reader_days * US_PER_DAY
