"""Watching: what a stream does, told after each batch, and how far it is behind the log.

Spark tells of each tick, the stream what a batch was, the log where it ends. ``told`` puts them together.
Rule: it observes and never disturbs: whatever cannot be read at the moment is told as it was the last time.
Rule: time is an argument of what decides; only the watch has a clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from whimbrel.errors import WhimbrelError
from whimbrel.hold.store.interface import NOTHING_APPLIED
from whimbrel.log.errors import NotALogError
from whimbrel.model.clock import US_PER_S
from whimbrel.pipeline.files.log_watch import LogWatch
from whimbrel.pipeline.files.snapshots import snapshot
from whimbrel.pipeline.stream.commits import Taken

__all__ = ["StreamWatch", "Told", "told"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A stream at one moment."""

    at: int
    """When that was, in microseconds."""
    taken: Taken | None
    """The last batch; None if there was none since the stream was started."""
    is_new: bool
    """Whether it was not told of before."""
    rows_per_s: float
    """How many rows of the log were read, since it was told of the last time."""
    lag: Mapping[str, int | None]
    """By node, how many numbers of the log are not in the tables; None if its log ends before what they have."""
    lag_s: float | None
    """How long the oldest of them may have waited; None if that is not known of a node."""

    @property
    def lag_facts(self) -> int:
        """How many numbers are not in the tables, of all nodes of which that is known."""
        return sum(behind or 0 for behind in self.lag.values())

    @property
    def unknown(self) -> list[str]:
        """The nodes whose lag is not known."""
        return [node for node, behind in self.lag.items() if behind is None]

    def line(self) -> str:
        """Return it in one line, for people."""
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
        """Return it for programs."""
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
        rate = {"rows_per_s": round(self.rows_per_s, 1)}
        return {
            "at": self.at,
            **batch,
            **rate,
            "lag": dict(self.lag),
            "lag_s": None if self.lag_s is None else round(self.lag_s, 3),
        }


def lag_text(records: int, time: str) -> str:
    """Return how far tables are behind the log, in words."""
    if not records:
        return "up to date"
    return f"{records:,} log record{'' if records == 1 else 's'} ({time}) behind"


def told(
    taken: Taken | None,
    last: Mapping[str, int],
    *,
    now: int,
    is_new: bool = False,
    rows_per_s: float = 0.0,
    caught_up_at: int | None = None,
) -> Told:
    """Put together the last batch and, by node, the *last* number of the log.

    The tables have waited since the newest fact in them, or since they were last known to have everything
    (*caught_up_at*), whichever is later: a log that was silent for an hour is not an hour ahead with its next fact.
    How far they are behind a node that is not there, or ends before what was read of it, is not known.
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
    """What is asked of a stream."""

    last: Taken | None
    listeners: list[Callable[[Taken], None]]


class StreamWatch(StreamingQueryListener):
    """Calls *seen* after each batch, and now and then when there is none, while the ``with`` block lasts.

    Spark and the stream call it in threads of their own; ``look`` may be called in any. Between two calls of Spark
    there may be many batches, of which the stream tells.
    """

    def __init__(
        self,
        spark: SparkSession,
        stream: Watched,
        log: Path,
        seen: Callable[[Told], None],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._session, self._stream, self._log, self._seen, self._clock = spark, stream, log.absolute(), seen, clock
        self._lock = threading.RLock()
        self._watch = LogWatch(self._log)
        self._last: dict[str, int] = {}
        self._batch: int | None = None
        self._batch_of_tick: int | None = None
        """The last one when Spark told of a tick the last time."""
        self._told_at: float | None = None
        self._caught_up_at: int | None = None
        self._rows_per_s = 0.0

    def __enter__(self) -> Self:
        self._stream.listeners.append(self._on_taken)
        self._session.streams.addListener(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self._session.streams.removeListener(self)
        self._stream.listeners.remove(self._on_taken)

    def look(self) -> Told:
        """Return how it is now; nothing is new by that."""
        with self._lock:
            return self._look(is_new=False)

    def onQueryStarted(self, event: object) -> None:  # noqa: N802 # Spark's name
        """Have nothing to tell yet."""

    def onQueryProgress(self, event: object) -> None:  # noqa: N802 # Spark's name
        """Tell of the tick that is over, in which there may have been nothing to do."""
        del event
        self._tell(is_tick=True)

    def onQueryIdle(self, event: object) -> None:  # noqa: N802 # Spark's name
        """Tell that nothing came."""
        del event
        self._tell(is_tick=True)

    def onQueryTerminated(self, event: object) -> None:  # noqa: N802 # Spark's name
        """Leave it to the code that awaits the query."""

    def _on_taken(self, taken: Taken) -> None:
        """Tell of each batch; a tick of Spark's may have many."""
        del taken
        self._tell(is_tick=False)

    def _tell(self, *, is_tick: bool) -> None:
        with self._lock:  # also while it is told: one at a time, and in order
            taken, now = self._stream.last, self._clock()
            is_new = taken is not None and taken.batch != self._batch
            is_idle = is_tick and (taken is None or taken.batch == self._batch_of_tick)
            if is_tick and taken is not None:
                self._batch_of_tick = taken.batch
            if taken is not None and is_new:
                passed_s = taken.took_s if self._told_at is None else max(now - self._told_at, taken.took_s)
                self._rows_per_s = taken.facts / max(passed_s, 0.001)
                self._batch = taken.batch
            elif is_idle:
                self._rows_per_s = 0.0
            if is_new or is_idle:
                self._told_at = now
            self._seen(self._look(is_new=is_new))

    def _look(self, *, is_new: bool) -> Told:
        try:
            self._last = snapshot(self._log, self._watch).last
        except NotALogError:  # it is gone
            self._last = {}
        except (OSError, WhimbrelError):  # an export moves what is looked at; the next look finds it
            pass
        now = int(self._clock() * US_PER_S)
        found = told(
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
