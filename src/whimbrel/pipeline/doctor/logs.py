"""Checks of a log: its format, its nodes, and whether the end of each node's log can be read.

Rule: only the last segment of each node is read, so that the check is quick; ``whimbrel log verify`` reads everything.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import NamedTuple

from whimbrel.errors import WhimbrelError
from whimbrel.log import layout
from whimbrel.log.checkpoints.folder import opened
from whimbrel.log.checkpoints.waiting import Waiting
from whimbrel.log.errors import CorruptLogError
from whimbrel.log.keeping.readers import lost_readers
from whimbrel.log.reader import named_header
from whimbrel.log.segments import Scan, is_proven_later, is_torn_creation
from whimbrel.model.rows import COLUMNS
from whimbrel.pipeline.doctor.check import Check, failure, ok, warning, with_noun

__all__ = ["Extent", "examine_log", "extents"]

_VERIFY = "run: whimbrel log verify DIR, which says what is damaged and where"
_SHOWN = 8
_MAX_CHECKPOINT_BYTES = 256 << 20
"""Size above which a checkpoint is not read, in bytes, so that the check is quick."""


class Extent(NamedTuple):
    """Range of the seqs that a node's log has."""

    first: int
    """The first seq."""
    last: int
    """The last seq that is proven durable."""
    unproven: int
    """Number of facts after ``last``, which a crash may still cut from the log."""


def examine_log(log: Path) -> list[Check]:
    """Check a log: its format, and the first ``_SHOWN`` of its nodes in detail."""
    try:
        layout.check_format(log)
    except (WhimbrelError, OSError) as error:
        remedy = "name the directory of a log: that of `whimbrel serve --data`, or what `log import` made"
        return [failure("log", str(error), "a log that this version can read", remedy)]
    checks = [ok("log", f"format {layout.FORMAT}", "a log that this version can read")]
    found, damaged = extents(log)
    checks += [failure(f"log of {node}", told, "a segment that can be read", _VERIFY) for node, told in damaged.items()]
    if not found and not damaged:
        remedy = "start a broker on it, or import facts: whimbrel log import DIR FILE.jsonl"
        checks.append(warning("nodes", "none: the log is empty", "at least one", remedy))
    checks += [_node(node, extent, _hole(log, node)) for node, extent in list(found.items())[:_SHOWN]]
    checks += [each for node in list(found)[:_SHOWN] for each in _readers(log, node)]
    checks += [each for node in list(found)[:_SHOWN] for each in _absent(log, node)]
    if len(found) > _SHOWN:
        checks.append(ok("nodes", f"{with_noun(len(found) - _SHOWN, 'node')} more, all readable"))
    return checks


def _node(node: str, extent: Extent, hole: tuple[int, int] | None) -> Check:
    name = f"log of {node}"
    if hole is not None:
        found = f"numbers {hole[0]} to {hole[1]} are neither in Parquet nor in a segment"
        return failure(name, found, "every number once", _VERIFY)
    tail = f", {with_noun(extent.unproven, 'fact')} after it not yet safe from a crash" if extent.unproven else ""
    return ok(name, f"numbers {extent.first} to {extent.last}{tail}", "a proven end")


def _readers(log: Path, node: str) -> list[Check]:
    """Return a warning for each reader that was so far behind that records were cut before it read them."""
    begin = next((first for first, _ in layout.segments(log, node)), 0)
    remedy = "let it read more often, or raise log.retain_reader_bytes; what was cut is in no segment any more"
    return [
        warning(
            f"reader {each.name} of {node}",
            f"lost its place: it had read to {each.seq}, and the log begins with {begin}",
            "a reader that keeps up",
            remedy,
        )
        for each in lost_readers(log, node)
    ]


def _absent(log: Path, node: str) -> list[Check]:
    """Report the session without present devices that holds most notifications, in the newest valid checkpoint."""
    for seq, path in reversed(layout.checkpoints(log, node)):
        waiting = Waiting()
        try:
            if path.stat().st_size > _MAX_CHECKPOINT_BYTES:
                return []
            with opened(path, node, seq) as reader:
                deque(waiting.count_each(reader.rows()), maxlen=0)
        except (WhimbrelError, OSError):
            continue  # the checkpoint before it may be valid
        return [_absence(node, seq, path.stat().st_size, waiting.absent())] if waiting.absent() else []
    return []


def _absence(node: str, seq: int, size: int, absent: list[tuple[str, int]]) -> Check:
    name, count = absent[0]
    found = (
        f"{name} holds {with_noun(count, 'notification')} for devices that are all away, more than any other of "
        f"{with_noun(len(absent), 'such session')}; the checkpoint of number {seq} has {size:,} bytes"
    )
    return ok(f"absent sessions of {node}", found, "bounded by ttl and max of each subscription")


def extents(log: Path) -> tuple[dict[str, Extent], dict[str, str]]:
    """Return two dicts by node: the range of its seqs or, if its last segment cannot be read, the error."""
    found: dict[str, Extent] = {}
    damaged: dict[str, str] = {}
    for node in layout.nodes(log):
        try:
            extent = _extent(log, node)
        except (WhimbrelError, OSError) as error:
            damaged[node] = str(error)
        else:
            if extent is not None:
                found[node] = extent
    return found, damaged


def _extent(log: Path, node: str) -> Extent | None:
    parts = [part for table in COLUMNS for part in layout.parts(log, table) if part.node == node]
    live = layout.segments(log, node)
    firsts = [part.first for part in parts] + [first for first, _ in live[:1]]
    if not firsts:
        return None
    if not live:
        return Extent(min(firsts), max(part.last for part in parts), 0)
    first, path = live[-1]
    if is_torn_creation(path):
        return Extent(min(firsts), first - 1, 0)
    with path.open("rb") as stream:
        header = named_header(stream, path, node, first)
        scan = Scan(stream, header)
        deque(scan, maxlen=0)
        if scan.trouble is not None and is_proven_later(stream, header, scan.end, scan.next_seq):
            raise CorruptLogError(path, scan.end, scan.trouble)
    return Extent(min(firsts), scan.proven, scan.next_seq - 1 - scan.proven)


def _hole(log: Path, node: str) -> tuple[int, int] | None:
    """Return the range of seqs that are missing between the last exported seq and the oldest segment, or None."""
    live = layout.segments(log, node)
    exported = layout.exported_seq(log, node)
    has_parts = any(part.node == node for table in COLUMNS for part in layout.parts(log, table))
    return (exported + 1, live[0][0] - 1) if live and has_parts and exported + 1 < live[0][0] else None
