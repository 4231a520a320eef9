"""Truncation plan: decide which segments to remove now, and which readers lose unread records by it.

Rule: only whole closed segments are removed, the oldest first, and never after *limit*, the seq of the older of the
last two checkpoints.
Rule: a registered reader keeps unread segments from being removed, up to ``reader_bytes``. A reader that is further
behind loses unread records. If the disk is nearly full, any reader does: a broker that cannot write serves no client.
Rule: a registration that was not renewed for ``reader_days`` is ignored.
Rule: the plan is pure: the segments, the free space and the time are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["Bounds", "ClosedSegment", "Plan", "Reader", "Reason", "is_checkpoint_due", "plan"]

US_PER_DAY = 86_400_000_000


class Reason(Enum):
    """Reason why a segment is removed."""

    AGE = "older than retain_days"
    BYTES = "the log is larger than retain_bytes"
    FREE = "less of the disk is free than retain_free_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of how much of a log is kept; 0 means no limit."""

    days: int = 0
    bytes: int = 0
    free_bytes: int = 0
    reader_bytes: int = 0
    """Most unread bytes that a reader may keep from being removed."""
    reader_days: int = 0
    """Days after which a registration that is not renewed expires; 0 means never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedSegment:
    """A segment to which no record is appended any more."""

    first: int
    last: int
    size_bytes: int
    last_at: int
    """The time of its last record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A registered reader, with the last seq that it has read."""

    name: str
    seq: int
    renewed_at: int
    lost_at: int | None = None
    """The last seq that it had read when records after it were cut; None if it lost no records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The segments to remove, with the reasons and the effect on readers."""

    segments: tuple[ClosedSegment, ...] = ()
    """Segments to remove, the oldest first."""
    reasons: tuple[Reason, ...] = ()
    """Reasons why segments are removed, each once."""
    lost: tuple[Reader, ...] = ()
    """Readers that lose unread records."""
    expired: tuple[Reader, ...] = ()
    """Readers whose registration has expired."""
    held_by: tuple[str, ...] = ()
    """Names of the readers that keep the next segment from being removed."""
    needs_checkpoint: bool = False
    """Whether the next segment stays only because no checkpoint covers it yet."""
    is_short: bool = False
    """Whether the log is still too large, or too little of the disk is free, after the removal."""


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
    """Decide which closed *segments* to remove; *other_bytes* is the size of the open one and of the checkpoints."""
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
    """Return whether a new checkpoint is worth its size.

    *closed_bytes* and *segment_count* describe the closed segments that the newest checkpoint does not cover;
    *checkpoint_bytes* is the size of that checkpoint. So checkpoints never write more bytes than the log itself, unless
    one *is_needed* to cut more of the log. The second of two checkpoints is needed even if no segment was closed since.
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
