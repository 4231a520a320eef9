"""Watching: report the progress of a stream after each batch, with its lag behind the log.

The stream reports each batch, and from time to time that there is nothing new; the log has its last seqs.
``compute_status`` combines them.
Rule: watching never disturbs the stream: if the log cannot be read now, the last known end is reported.
Rule: functions that compute the report get the time as an argument; only ``StreamWatch`` has a clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from whimbrel.errors import WhimbrelError
from whimbrel.hold.store.interface import NOTHING_APPLIED
from whimbrel.log.errors import NotALogError
from whimbrel.model.clock import US_PER_S
from whimbrel.pipeline.files.log_watch import LogWatch
from whimbrel.pipeline.files.snapshots import snapshot
from whimbrel.pipeline.stream.commits import BatchSummary

__all__ = ["StreamWatch", "Told", "compute_status"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Status of a stream at one moment."""

    at: int
    """Time of the status, in microseconds."""
    taken: BatchSummary | None
    """The last batch; None if there was none since the stream was started."""
    is_new: bool
    """Whether the last batch was not reported before."""
    rows_per_s: float
    """Facts of the log that the last batch processed, per second since the report before it."""
    lag: Mapping[str, int | None]
    """Number of seqs that are in the log but not in the tables, per node; None if the log ends before the tables."""
    lag_s: float | None
    """Longest time, in seconds, that a fact may have waited to get into the tables; None if a node's lag is unknown."""

    @property
    def lag_facts(self) -> int:
        """Number of seqs that are not in the tables, of all nodes whose lag is known."""
        return sum(behind or 0 for behind in self.lag.values())

    @property
    def unknown(self) -> list[str]:
        """The nodes whose lag is unknown."""
        return [node for node, behind in self.lag.items() if behind is None]

    def line(self) -> str:
        """Return the status as one line of text."""
        taken = self.taken
        if taken is None:
            return "no batch yet"
        words = [
            f"batch {taken.batch}",
            f"{self.rows_per_s:,.0f} rows/s",
            self._lag_text(),
            f"{taken.state:,} remembered, {_size(taken.state_bytes)}",
        ]
        return " · ".join([*words, *taken.notes])

    def _lag_text(self) -> str:
        if self.unknown:
            return f"lag not known: the log of {', '.join(self.unknown)} ends before what was read of it"
        return lag_text(self.lag_facts, _duration(self.lag_s or 0.0))

    def as_json(self) -> dict[str, Any]:
        """Return the status as values that JSON can hold."""
        taken = self.taken
        batch: dict[str, Any] = {}
        if taken is not None:
            names = (
                "batch",
                "facts",
                "rows",
                "applied",
                "newest_at",
                "state",
                "state_bytes",
                "took_s",
                "notes",
                "late",
            )
            batch = {name: getattr(taken, name) for name in names}
            batch["took_s"], batch["notes"] = round(taken.took_s, 3), list(taken.notes)
            batch["late"] = dict(taken.late)
            batch["matchers"] = taken.matchers._asdict()
        rate = {"rows_per_s": round(self.rows_per_s, 1)}
        return {
            "at": self.at,
            **batch,
            **rate,
            "lag": dict(self.lag),
            "lag_s": None if self.lag_s is None else round(self.lag_s, 3),
        }


def lag_text(records: int, time: str) -> str:
    """Return the lag of the tables behind the log, as text."""
    if not records:
        return "up to date"
    return f"{records:,} log record{'' if records == 1 else 's'} ({time}) behind"


def compute_status(
    taken: BatchSummary | None,
    last: Mapping[str, int],
    *,
    now: int,
    is_new: bool = False,
    rows_per_s: float = 0.0,
    caught_up_at: int | None = None,
) -> Told:
    """Compute the status from the last batch and the *last* seq of each node's log.

    The lag in seconds counts from the newest fact in the tables, or from the time when the tables last had everything
    (*caught_up_at*), whichever is later. So after an hour without facts, the next fact does not show an hour of lag.
    The lag of a node is unknown if its log is missing, or ends before the last seq in the tables.
    """
    lag: dict[str, int | None] = {}
    lag_s: float | None = 0.0
    if taken is not None:
        nodes = sorted(last.keys() | taken.applied.keys())
        behind = {node: last.get(node, -1) - taken.applied.get(node, NOTHING_APPLIED) for node in nodes}
        lag = {node: count if count >= 0 else None for node, count in behind.items()}
        if None in lag.values():
            lag_s = None
        elif any(lag.values()):
            since = taken.newest_at if caught_up_at is None else max(taken.newest_at, caught_up_at)
            lag_s = max((now - since) / US_PER_S, 0.0)
    return Told(at=now, taken=taken, is_new=is_new, rows_per_s=rows_per_s, lag=lag, lag_s=lag_s)


class Watched(Protocol):
    """Protocol: the attributes of a stream that a watch needs."""

    last: BatchSummary | None
    listeners: list[Callable[[BatchSummary], None]]
    idle_listeners: list[Callable[[], None]]


class StreamWatch:
    """Context manager that calls *seen* with the status after each batch, and from time to time without a batch.

    The stream calls the watch from its own thread; ``look`` may be called from any thread.
    """

    def __init__(
        self,
        stream: Watched,
        log: Path,
        seen: Callable[[Told], None],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._stream, self._log, self._seen, self._clock = stream, log.absolute(), seen, clock
        self._lock = threading.RLock()
        self._watch = LogWatch(self._log)
        self._last: dict[str, int] = {}
        self._batch: int | None = None
        self._told_at: float | None = None
        self._caught_up_at: int | None = None
        self._rows_per_s = 0.0

    def __enter__(self) -> Self:
        self._stream.listeners.append(self._on_taken)
        self._stream.idle_listeners.append(self._tell)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self._stream.idle_listeners.remove(self._tell)
        self._stream.listeners.remove(self._on_taken)

    def look(self) -> Told:
        """Return the current status; this does not mark a batch as reported."""
        with self._lock:
            return self._look(is_new=False)

    def _on_taken(self, taken: BatchSummary) -> None:
        """Report the status after a batch."""
        del taken
        self._tell()

    def _tell(self) -> None:
        with self._lock:  # held during the call of *seen*: one report at a time, in order
            taken, now = self._stream.last, self._clock()
            is_new = taken is not None and taken.batch != self._batch
            if taken is not None and is_new:
                passed_s = taken.took_s if self._told_at is None else max(now - self._told_at, taken.took_s)
                self._rows_per_s = taken.facts / max(passed_s, 0.001)
                self._batch = taken.batch
            else:
                self._rows_per_s = 0.0
            self._told_at = now
            self._seen(self._look(is_new=is_new))

    def _look(self, *, is_new: bool) -> Told:
        try:
            self._last = snapshot(self._log, self._watch).last
        except NotALogError:  # the log was removed
            self._last = {}
        except (OSError, WhimbrelError):  # an export moves files meanwhile; the next look finds them
            pass
        now = int(self._clock() * US_PER_S)
        found = compute_status(
            self._stream.last,
            self._last,
            now=now,
            is_new=is_new,
            rows_per_s=self._rows_per_s,
            caught_up_at=self._caught_up_at,
        )
        if found.taken is not None and not found.lag_facts and not found.unknown:
            self._caught_up_at = now
        return found


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    for unit, length in (("min", 60), ("h", 3_600)):
        if seconds < 100 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:,.0f} d"


def _size(size_bytes: int) -> str:
    if size_bytes < 1_000_000:
        return f"{size_bytes / 1_000:,.0f} KB"
    return f"{size_bytes / 1_000_000:,.1f} MB"
