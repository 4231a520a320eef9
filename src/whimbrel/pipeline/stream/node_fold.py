"""One node's share of a batch, in a worker: turn a range of its seqs into data files, and into counts for time windows.

The node's state is stored in objects (``state.objects``). A worker's memory is only a cache of states: it is used for
the state that has the same name, and is bounded.

Rule: a span (this range of seqs) is processed in pieces (chunks), so memory is bounded even if the span is large.
Rule: after a failure nothing stays in the cache.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbor2

from whimbrel.hold.store.interface import NOTHING_APPLIED
from whimbrel.log.incarnation import incarnation
from whimbrel.log.reader import LogPlace
from whimbrel.pipeline.files.dead_letters import missing_letters
from whimbrel.pipeline.files.spans import SpanReader
from whimbrel.pipeline.fold.garbage import pause_collection
from whimbrel.pipeline.fold.start_state import seen_start_state
from whimbrel.pipeline.stream.job import Job, NodeReport, Span, check_log, named_trouble
from whimbrel.pipeline.stream.state.batch_record import LostLogError, LostStateError
from whimbrel.pipeline.stream.state.blob_store import Blobs, BlobStore
from whimbrel.pipeline.stream.state.cache import states
from whimbrel.pipeline.stream.state.cached_share import CachedShare
from whimbrel.pipeline.unit.made import WorkerOutput
from whimbrel.pipeline.unit.matchers import Matchers
from whimbrel.pipeline.unit.node_share import LogMark
from whimbrel.pipeline.unit.take import take
from whimbrel.pipeline.unit.tallies import Tallies

__all__ = ["fold_node"]


@dataclass(slots=True)
class _Kept(CachedShare):
    matchers: Matchers
    reader: SpanReader

    def forget(self) -> None:
        self.matchers.forget()


def fold_node(
    job: Job, node: str, span: Span, blobs: Blobs, *, places: Iterable[LogPlace] = ()
) -> Iterator[WorkerOutput]:
    """Apply a span (range of seqs) to the state of a node, which is stored in *blobs*; yield the output.

    *places* are known places of records in the node's segments.

    Once all output was yielded, *blobs* have the state at the end of the span.
    """
    key = job.key(node)
    cached = states.take(key, blobs.head().version)
    if isinstance(cached, _Kept):
        kept = cached
        kept.store.follow(blobs)
    else:
        kept = _restore(job, node, blobs, places)
    log, applied = Path(job.log), kept.store.applied
    if applied != span.first - 1:
        raise LostStateError(f"node {node}", f"number {applied}", f"number {span.first - 1}")
    begun = None
    if applied != NOTHING_APPLIED:
        check_log(job, kept.reader, kept.state.mark, applied)
    else:
        with named_trouble(log, node, span):
            begun = seen_start_state(log, node, span.missing, last=span.last, patience=job.patience)
    if begun is not None:
        if begun.seq > span.last:  # the log was cut after the batch began
            raise LostLogError(node, span.last)
        span = span._replace(first=begun.seq + 1)
        kept.store.replace(begun.seq, dict(begun.rows))
        kept = _restore(job, node, blobs, places)
    files, tallies = job.files(node), Tallies(node)
    uses = kept.matchers.files.uses
    now = time.time_ns() // 1_000
    yield from files.add("dead_letters", missing_letters(span.missing, now).to_batches())
    if begun is not None:
        yield from tallies.add(intervals=kept.state.in_force.intervals())
    options: dict[str, Any] = {"window_us": job.plan.window_us, "now": now, "missing": span.missing}
    taken = take(kept.reader, span.first, span.last, kept.state, kept.matchers, **options)
    with named_trouble(log, node, span):
        for piece in pause_collection(taken):
            for table, batches in piece.rows.items():
                yield from files.add(table, batches)
            parts = {"counts": piece.counts, "tally": piece.tally, "intervals": piece.intervals}
            yield from tallies.add(**parts, meetings=piece.meetings)
    yield from files.end()
    yield from tallies.end()
    kept.state.mark = LogMark(incarnation(log, node), kept.reader.digest)
    kept.state.commit(span.last)
    report = NodeReport(
        first=span.first,
        last=span.last,
        nodes=span.nodes,
        last_at=None if kept.state.last_at is None else min(kept.state.last_at, span.now),
        oldest_at=kept.state.oldest_at,
        size=kept.state.size,
        size_bytes=kept.store.size_bytes,
        is_cached=cached is not None,
        notes=tuple(map(str, span.missing)),
        away={"": kept.state.away()} if job.tells_away else None,
        now=span.now,
        incarnation=kept.state.mark.incarnation,
        digest=kept.state.mark.digest,
        matchers=kept.matchers.files.uses.since(uses),
        state=kept.store.head.version,
        dropped=tuple(blobs.dropped),
        place=kept.reader.last_place,
    )
    states.put(key, kept)
    yield WorkerOutput("node", node, None, 0, cbor2.dumps(report))


def _restore(job: Job, node: str, blobs: Blobs, places: Iterable[LogPlace]) -> _Kept:
    store = BlobStore(blobs)
    return _Kept(store, job.share(node, store, contact=job.contact), Matchers(), job.reader(node, places=places))
