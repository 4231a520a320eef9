"""Windows: a stream's state of the time windows that may still change, and of the subscriptions in force.

The state consists of sums (counts, histograms), so it does not matter how the log was divided into batches.
Rule: a window is final once every node's time has passed its end (``watermark``). For latency, no notification that was
published in it may be held any more, either. A final window is removed from the state; its rows stay in the tables.
Rule: a node's time never counts as later than the driver's (``node_fold``). So a node whose clock is ahead does not
make windows final too early.
Rule: windows wait for an idle node at most ``lateness_us``. A fact that comes after its window was final is reported,
in the notes of the batch and as a dead letter; nothing is dropped silently.
Rule: the size of the state depends on the windows that are not final, the subjects in them, and the subscriptions.
Histograms are read from the store only when they change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import cbor2
import numpy as np
import pyarrow as pa

from whimbrel.hold.private import asked_for
from whimbrel.hold.store.interface import RowStore
from whimbrel.hold.touched_rows import Key, TouchedRows
from whimbrel.match.topics import TopicIndex, is_topic_filter
from whimbrel.model.bounds import INT64_MAX, INT64_MIN
from whimbrel.model.census import CensusTotals
from whimbrel.model.clock import format_time
from whimbrel.model.tables import TIME_TYPE
from whimbrel.pipeline.files.delta import by_window
from whimbrel.pipeline.fold.contact_fold import Meeting
from whimbrel.pipeline.tables.censuses import LoggedCensus
from whimbrel.pipeline.tables.latency import TALLY, measure
from whimbrel.pipeline.tables.popularity import INTERVAL, Wishes
from whimbrel.pipeline.tables.replicas import silent, window_end

__all__ = ["Late", "Windows", "watermark"]

_COUNT, _TALLY, _INTERVAL, _LATEST, _FINAL, _NODE = "count", "tally", "interval", "latest", "final", "node"
_MEETING, _CENSUS = "meeting", "census"
SMALL = 8
"""Least ratio of the subscriptions of all sessions to those of changed sessions; below it, rebuild the index."""
_COUNTED = pa.schema(
    [
        ("subject", pa.string()),
        ("window_start", TIME_TYPE),
        ("window_end", TIME_TYPE),
        ("publications", pa.int64()),
    ]
)


class Late(NamedTuple):
    """Number of facts that came after their window was final, for one table, window (its begin) and subject."""

    table: str
    window: int
    subject: str
    number: int

    def __str__(self) -> str:
        return (
            f"{self.table}: found {self.number} of {self.subject} for the window from {format_time(self.window)}, "
            f"allowed is what comes before that is final"
        )


def watermark(times: Mapping[str, int | None], *, lateness_us: int) -> int:
    """Return the time that all nodes have passed, in microseconds.

    *times* has the time of each node's last fact, None for a node without facts. Nodes are waited for at most
    *lateness_us*.
    """
    known = [at for at in times.values() if at is not None]
    if not known:
        return INT64_MIN
    least = min(known) if len(known) == len(times) else INT64_MIN
    return max(least, max(known) - lateness_us)


class Windows:
    """The windows that are not final; *store* has the state of the last commit."""

    def __init__(self, store: RowStore, *, window_us: int, horizon_us: int) -> None:
        self._store, self._window_us, self._horizon_us = store, window_us, horizon_us
        self._counts: dict[int, dict[str, int]] = {}
        self._tallied: dict[int, set[str]] = {}
        """Subjects that have a latency histogram, per window."""
        self._tallies: dict[tuple[int, str], dict[int, int]] = {}
        """Latency histograms that were changed in this batch (count per bucket), by window and subject."""
        self._intervals: dict[tuple[str, int], tuple[str, str | None, int, int | None]] = {}
        """Session, subject filter, begin and end (None: still in force) of each subscription, by node and seq."""
        self._ended: dict[tuple[str, int], int] = {}
        """End of each subscription's interval that has ended, by node and seq."""
        self._nodes: dict[str, tuple[int | None, int]] = {}
        """Time of the last fact, and publication time of the oldest held notification, per node."""
        self.latest: dict[str, tuple[int, int]] = {}
        """End of the subject's last window, and number of subscribers in it, per subject."""
        self._final = (INT64_MIN, INT64_MIN)
        """Times up to which windows of popularity and of latency are final."""
        self._of_session: dict[str, set[tuple[str, int]]] = {}
        """Node and seq of the subscriptions of each session: the keys of ``_intervals``."""
        self._changed: set[str] = set()
        """Sessions that have changed since ``_wishes`` was built."""
        self._wishes_size = 0
        self._over: Wishes | None = None
        self._is_over_stale = False
        self._wishes: Wishes | None = None
        """Index of the subscription intervals of all sessions; building it reads every subscription."""
        self._touched = TouchedRows(
            {
                _COUNT: lambda window, subject: self._counts.get(window, {}).get(subject),
                _TALLY: lambda window, subject: self._tallies.get((window, subject)),
                _INTERVAL: lambda node, seq: self._intervals.get((node, seq)),
                _LATEST: self.latest.get,
                _NODE: self._nodes.get,
                _MEETING: lambda low, high: self.meetings.get((low, high)),
                _CENSUS: self._census_row,
            }
        )
        self.meetings: dict[tuple[str, str], Meeting] = {}
        """Sums over the contacts of each pair of devices."""
        self.has_met = False
        """Whether a contact has ended in this batch."""
        self._census: LoggedCensus | None = None
        self._changed_filters: dict[str | None, int] = {}
        """Subject filters of the subscriptions that changed in this batch, with the time of the change."""
        self._counted_now: set[tuple[int, str]] = set()
        for key, value in store.rows():
            self._restore(key, cbor2.loads(value))

    def _restore(self, key: Key, value: Any) -> None:
        kind, *rest = key
        whose: list[Any] = rest
        match kind:
            case "count":
                self._counts.setdefault(whose[0], {})[whose[1]] = value
            case "tally":
                self._tallied.setdefault(whose[0], set()).add(whose[1])
            case "interval":
                self._put((whose[0], whose[1]), tuple(value))
            case "node":
                self._nodes[whose[0]] = tuple(value)
            case "meeting":
                self.meetings[whose[0], whose[1]] = Meeting(*value)
            case "latest":
                self.latest[whose[0]] = tuple(value)
            case "census":
                at, node, seq, nodes, places, subscribers = value
                totals = CensusTotals(nodes=nodes, places=places, subscribers=subscribers)
                self._census = LoggedCensus(at, node, seq, totals)
            case _:
                self._final = tuple(value)

    @property
    def applied(self) -> int:
        """Number of the last batch in the committed state."""
        return self._store.applied

    @property
    def size(self) -> int:
        """Number of items in the state: counts, histograms, intervals, subjects and pairs."""
        windows = sum(map(len, self._counts.values())) + sum(map(len, self._tallied.values()))
        return windows + len(self._intervals) + len(self.latest) + len(self.meetings)

    @property
    def first_open(self) -> int:
        """Begin of the first window that may still change, of popularity or latency; ``INT64_MAX`` if there is none."""
        return min([*self._counts, *self._tallied], default=INT64_MAX)

    # -- adding ------------------------------------------------------------------------------------------------------

    def count(self, rows: Iterable[tuple[int, str, int]]) -> list[Late]:
        """Add numbers of publications per window and subject; return the facts that came too late."""
        late = []
        for window, subject, count in rows:
            if window + self._window_us <= self._final[0]:
                late.append(Late("popularity", window, subject, count))
                continue
            counts = self._counts.setdefault(window, {})
            counts[subject] = counts.get(subject, 0) + count
            self._counted_now.add((window, subject))
            self._touched.touch((_COUNT, window, subject))
        return late

    def tally(self, rows: Any) -> list[Late]:  # a pyarrow.Table of TALLY
        """Add latency histograms per window and subject; return the facts that came too late."""
        late = []
        columns = [rows.column("window_start").cast(pa.int64()), *(rows.column(name) for name in TALLY.names[1:])]
        for window, subject, what, count in zip(*(column.to_pylist() for column in columns), strict=True):
            if window + self._window_us <= self._final[1]:
                late.append(Late("latency", window, subject, count))
                continue
            tally = self._tally(window, subject)
            tally[what] = tally.get(what, 0) + count
            self._touched.touch((_TALLY, window, subject))
        return late

    def _tally(self, window: int, subject: str) -> dict[int, int]:
        found = self._tallies.get((window, subject))
        if found is None:
            subjects = self._tallied.setdefault(window, set())
            value = self._store.get((_TALLY, window, subject)) if subject in subjects else None
            found = self._tallies[(window, subject)] = {} if value is None else dict(cbor2.loads(value))
            subjects.add(subject)
        return found

    def change(self, intervals: Any) -> None:  # a pyarrow.Table
        """Add the intervals of subscriptions that were added, changed or removed."""
        times = [
            intervals.column(name).cast(TIME_TYPE).cast(pa.int64()).to_pylist() for name in ("began_at", "ended_at")
        ]
        names = [intervals.column(name).to_pylist() for name in ("node", "interest_seq", "session", "subject_filter")]
        for node, seq, session, subject_filter, began, until in zip(*names, *times, strict=True):
            known = self._intervals.get((node, seq))
            found = (session, subject_filter, began, until)
            if known != found and (known is None or known[3] is None):  # an interval that has ended never continues
                self._changed.add(session)
                self._is_over_stale = True
                since = began if known is None or until is None else until
                self._changed_filters[subject_filter] = min(since, self._changed_filters.get(subject_filter, since))
                self._put((node, seq), found)
                self._touched.touch((_INTERVAL, node, seq))

    def _put(self, key: tuple[str, int], interval: tuple[str, str | None, int, int | None]) -> None:
        self._intervals[key] = interval
        self._of_session.setdefault(interval[0], set()).add(key)
        if interval[3] is not None:
            self._ended[key] = interval[3]

    def meet(self, sums: Iterable[tuple[tuple[str, str], Meeting]]) -> None:
        """Add sums over contacts that ended, per pair of devices."""
        for pair, each in sums:
            self.meetings[pair] = self.meetings.get(pair, Meeting()).plus(each)
            self._touched.touch((_MEETING, *pair))
            self.has_met = True

    def take_census(self, found: LoggedCensus) -> None:
        """Use the *found* census of a campus for the replica plan, unless a later census is known."""
        if self._census is None or found[:3] > self._census[:3]:
            self._census = found
            self._touched.touch((_CENSUS,))

    def _census_row(self) -> list[Any] | None:
        if self._census is None:
            return None
        at, node, seq, totals = self._census
        return [at, node, seq, totals.nodes, totals.places, dict(totals.subscribers)]

    def hear(self, node: str, last_at: int | None, oldest_at: int) -> None:
        """Record the time of a node's last fact, and the publication time of its oldest held notification."""
        self._nodes[node] = (last_at, oldest_at)
        self._touched.touch((_NODE, node))

    # -- tables ------------------------------------------------------------------------------------------------------

    def popularity(self) -> dict[int, Any]:  # pyarrow.Tables
        """Return the rows of ``popularity`` that this batch may have changed: a table per begin of a window."""
        counted_now = (each for each in self._counted_now if each[0] in self._counts)
        wanted = sorted({*counted_now, *self._rows_of_changes()})
        if not wanted:
            return {}
        rows = [
            (subject, window, window + self._window_us, self._counts[window][subject]) for window, subject in wanted
        ]
        counted = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=_COUNTED.names)
        wishes, over = self._layers()
        found = wishes.popularity_rows(counted.cast(_COUNTED), self._window_us, over)
        for subject, end, subscribers in zip(
            found.column("subject").to_pylist(),
            found.column("window_end").cast(pa.int64()).to_pylist(),
            found.column("subscribers").to_pylist(),
            strict=True,
        ):
            before = self.latest.get(subject)
            if before is None or (end >= before[0] and before != (end, subscribers)):
                self.latest[subject] = (end, subscribers)
                self._touched.touch((_LATEST, subject))
        return by_window(found)

    def _rows_of_changes(self) -> Iterator[tuple[int, str]]:
        """Yield the windows and subjects whose number of subscribers may have changed in this batch."""
        patterns = TopicIndex()
        times: list[int] = []
        for text, since in self._changed_filters.items():
            asked = asked_for(text)
            if asked is None:
                for window, counts in self._ending_after(since):
                    yield from ((window, subject) for subject in counts)
            elif "+" in asked or "#" in asked:
                if is_topic_filter(asked):
                    patterns.add(asked, len(times))
                    times.append(since)
            else:
                yield from ((window, asked) for window, counts in self._ending_after(since) if asked in counts)
        if not times:
            return
        for window, counts in self._ending_after(min(times)):
            subjects = list(counts)
            rows, handles = patterns.match_many(subjects)
            later = np.array(times)[handles] < window + self._window_us
            yield from ((window, subjects[row]) for row in np.unique(rows[later]).tolist())

    def _ending_after(self, at: int) -> Iterator[tuple[int, dict[str, int]]]:
        """Yield the windows that end after *at*, with the publications of each subject."""
        return ((window, counts) for window, counts in self._counts.items() if window + self._window_us > at)

    def _layers(self) -> tuple[Wishes, Wishes | None]:
        """Return the index of the subscription intervals in two layers: all sessions, and sessions that changed since.

        Building the first layer reads every subscription, and in a large fleet a device subscribes in nearly every
        batch. So it is rebuilt only when the second layer has grown too large.
        """
        changed = [key for session in self._changed for key in self._of_session.get(session, ())]
        if self._wishes is None or SMALL * max(len(changed), len(self._changed)) > self._wishes_size:
            self._wishes, self._over = Wishes(_table(self._intervals.values())), None
            self._wishes_size = len(self._intervals)
            self._changed.clear()
        elif self._is_over_stale:
            self._wishes.cover(self._changed)
            self._over = Wishes(_table(self._intervals[key] for key in changed))
        self._is_over_stale = False
        return self._wishes, self._over

    def latency(self) -> dict[int, Any]:  # of pyarrow.Tables
        """Return the new rows of ``latency``: a table per begin of a window."""
        rows = [
            (window, subject, what, count)
            for (window, subject), tally in self._tallies.items()
            for what, count in tally.items()
        ]
        if not rows:
            return {}
        columns = zip(zip(*rows, strict=True), TALLY, strict=True)
        table = pa.table([pa.array(column).cast(f.type) for column, f in columns], schema=TALLY)
        return by_window(measure(table, window_us=self._window_us))

    @property
    def census(self) -> CensusTotals | None:
        """The last census of a campus, if there was one."""
        return None if self._census is None else self._census.totals

    @property
    def subscribers(self) -> dict[str, int] | None:
        """Number of subscribers in each subject's last window; None if this batch changed no number, and no census."""
        if not any(key[0] in {_LATEST, _CENSUS} for key in self._touched):
            return None
        return {subject: subscribers for subject, (_, subscribers) in self.latest.items()}

    # -- the passage of time -----------------------------------------------------------------------------------------

    def forget(self, *, now: int = INT64_MAX) -> None:
        """Remove subjects without publications for longer than the plan's horizon; *now* is the driver's time."""
        newest = window_end(now, self._window_us)
        for subject in silent(self.latest, newest_at=newest, horizon_us=self._horizon_us):
            del self.latest[subject]
            self._touched.touch((_LATEST, subject))

    def watermark(self, nodes: int, *, lateness_us: int) -> int:
        """Return the time that all *nodes* (their number) have passed; nodes that never reported count as idle."""
        times: dict[str, int | None] = {node: last_at for node, (last_at, _) in self._nodes.items()}
        silent_nodes = {f"$silent{number}": None for number in range(nodes - len(times))}
        return watermark(times | silent_nodes, lateness_us=lateness_us)

    def advance(self, mark: int) -> None:
        """Make the windows final that end by the watermark *mark*.

        Windows of ``latency`` also wait until no notification published in them is held.
        """
        oldest_at = min((oldest for _, oldest in self._nodes.values()), default=INT64_MAX)
        self._final = (max(self._final[0], mark), max(self._final[1], min(mark, oldest_at)))
        for window in [window for window in self._counts if window + self._window_us <= self._final[0]]:
            for subject in self._counts.pop(window):
                self._touched.touch((_COUNT, window, subject))
        for window in [window for window in self._tallied if window + self._window_us <= self._final[1]]:
            for subject in self._tallied.pop(window):
                self._tallies.pop((window, subject), None)
                self._touched.touch((_TALLY, window, subject))
        if self._final[0] > INT64_MIN:
            first_end = self._final[0] - self._final[0] % self._window_us + self._window_us
            for key in [key for key, until in self._ended.items() if until < first_end]:
                session = self._intervals.pop(key)[0]
                del self._ended[key]
                self._of_session[session].discard(key)
                if not self._of_session[session]:
                    del self._of_session[session]
                self._touched.touch((_INTERVAL, *key))

    def commit(self, batch: int) -> None:
        """Commit the state to the store, as the state after *batch*."""
        put, drop = self._touched.rows()
        put[(_FINAL,)] = cbor2.dumps(list(self._final))
        self._store.commit(batch, put, drop)
        self._touched.clear()
        self._tallies.clear()
        self._counted_now.clear()
        self._changed_filters.clear()
        self.has_met = False

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def _table(intervals: Iterable[tuple[Any, ...]]) -> Any:  # a pyarrow.Table
    columns: list[Any] = list(zip(*intervals, strict=True)) or [()] * len(INTERVAL)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, INTERVAL, strict=True)]
    return pa.table(arrays, schema=INTERVAL)
