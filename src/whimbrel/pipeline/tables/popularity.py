"""``popularity``: number of subscribed sessions and of publications, per subject and window.

Rule: a subscription counts from its seq until it is changed or removed. A window counts the subscriptions that were in
force at its end. A subscription with a content filter counts too, although it is not for every notification. Each
session with a shared subscription (``$share``) counts, because it may get any notification of the share.

Publications are only counted, where they are read (``counts_of``), and the counts add up. ``Wishes`` then matches the
subjects of each window against a ``TopicIndex`` of the distinct filters, in numpy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from whimbrel.hold.private import asked_for
from whimbrel.match.topics import TopicIndex, is_topic_filter
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.clock import US_PER_S
from whimbrel.model.tables import TABLES, TIME_TYPE

__all__ = ["COUNT", "INTERVAL", "Wishes", "as_windows", "counts_of", "sum_counts"]

Numbers: TypeAlias = NDArray[np.integer[Any]]

COUNT = pa.schema([("window_start", pa.int64()), ("subject", pa.string()), ("publications", pa.int64())])
"""Schema of counts: number of publications per subject and window; ``window_start`` is in microseconds."""


def counts_of(publications: Any, window_us: int) -> Any:
    """Count publications per window and subject; return a table with the schema ``COUNT``.

    *publications* is an Arrow table or batch with published_at and subject.
    """
    rows = publications.select(["published_at", "subject"]).drop_null()
    micros = rows.column("published_at").cast(TIME_TYPE).cast(pa.int64()).to_numpy()
    windows = pa.array(micros - micros % window_us)
    named = pa.table({"window_start": windows, "subject": rows.column("subject")})
    grouped = named.group_by(["window_start", "subject"], use_threads=False).aggregate([([], "count_all")])
    return grouped.rename_columns(COUNT.names).cast(COUNT)


def sum_counts(counts: Iterable[Any]) -> Any:  # pyarrow.Tables
    """Return the sums of *counts*, tables with the schema ``COUNT``, per window and subject."""
    grouped = pa.concat_tables(counts).group_by(["window_start", "subject"], use_threads=False)
    return grouped.aggregate([("publications", "sum")]).rename_columns(COUNT.names).cast(COUNT)


def as_windows(counts: Any, window_us: int) -> Any:  # pyarrow.Tables
    """Return *counts*, a table with the schema ``COUNT``, in the form for ``Wishes.popularity_rows``."""
    begun = counts.column("window_start")
    times = {"window_start": begun.cast(TIME_TYPE), "window_end": pc.add(begun, window_us).cast(TIME_TYPE)}
    return pa.table({**times, "subject": counts.column("subject"), "publications": counts.column("publications")})


INTERVAL = pa.schema(
    [("session", pa.string()), ("subject_filter", pa.string()), ("began_at", TIME_TYPE), ("ended_at", TIME_TYPE)]
)
"""Schema of the times in force of subscriptions; ``ended_at`` is null if a subscription is still in force."""
_ANY = 0
"""Number that stands for a missing subject filter, which matches every subject."""
_NONE = -1
"""Number that stands for an invalid subject filter: it matches nothing, and its row is a dead letter."""


class Wishes:
    """Index of the times in force of subscriptions, to count the subscribers of subjects at the end of a window."""

    def __init__(self, intervals: Any) -> None:
        filters, people = (_encode(intervals.column(name)) for name in ("subject_filter", "session"))
        asked = [asked_for(text) for text in filters.dictionary.to_pylist()]
        numbers: dict[str | None, int] = {None: _ANY}
        self._index = TopicIndex()
        for text in asked:
            if text is not None and text not in numbers and is_topic_filter(text):
                numbers[text] = len(numbers)
                self._index.add(text, numbers[text])
        self._is_plain = np.array([text is not None and "+" not in text and "#" not in text for text in numbers])
        self._people = max(1, len(people.dictionary))
        number_of = np.array([numbers.get(text, _NONE) for text in asked], np.int64)
        began, ended = (intervals.column(name).cast(TIME_TYPE).cast(pa.int64()) for name in ("began_at", "ended_at"))
        self._filter, self._who = number_of[filters.indices.to_numpy()], people.indices.to_numpy()
        self._began, self._ended = began.to_numpy(), ended.fill_null(INT64_MAX).to_numpy()
        self._sessions = people.dictionary
        self._is_covered: Any = None

    def cover(self, sessions: Collection[str]) -> None:
        """Ignore the intervals of *sessions*, because a second, newer index has them (see ``popularity_rows``)."""
        covered = pc.is_in(self._sessions, pa.array(sorted(sessions), pa.string())).to_numpy(zero_copy_only=False)
        self._is_covered = covered[self._who]

    def popularity_rows(self, counted: Any, window_us: int, over: Wishes | None = None) -> Any:
        """Return the rows of ``popularity`` for *counted*, an Arrow table of publications per subject and window.

        *over* is the second index, which has the subscriptions of the sessions that are ignored here.
        """
        counts = counted.sort_by([("window_end", "ascending"), ("subject", "ascending")])
        subjects = _encode(counts.column("subject"))
        names, numbers = subjects.dictionary.to_pylist(), subjects.indices.to_numpy()
        matched = [self.match(names), *([] if over is None else [over.match(names)])]
        ends = counts.column("window_end").cast(TIME_TYPE).cast(pa.int64()).to_numpy()
        edges = [*(np.flatnonzero(np.diff(ends)) + 1).tolist(), len(ends)] if len(ends) else []
        subscribers = np.zeros(len(ends), np.int64)
        for begin, after in pairwise([0, *edges]):
            for each in matched:
                subscribers[begin:after] += each.subscribers(numbers[begin:after], int(ends[begin]))
        schema = TABLES["popularity"].schema
        columns = {
            **{name: counts.column(name) for name in ("window_start", "window_end", "subject", "publications")},
            "subscribers": pa.array(subscribers, pa.int64()),
            "rate_per_s": pc.divide(counts.column("publications").cast(pa.float64()), window_us / US_PER_S),
        }
        return pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema)

    def match(self, subjects: list[str]) -> _Matched:
        """Return the filters that match *subjects*, with their times in force."""
        rows, handles = self._index.match_many(subjects)
        filters = np.unique(np.append(handles, _ANY))
        is_wanted = np.zeros(len(self._is_plain) + 1, np.bool_)  # the last is for ``_NONE``
        is_wanted[filters] = True
        some = is_wanted[self._filter]
        if self._is_covered is not None:
            some &= ~self._is_covered
        chosen = np.flatnonzero(some)
        return _Matched(
            starts=np.searchsorted(rows, np.arange(len(subjects) + 1)),
            handles=np.searchsorted(filters, handles),
            is_plain=self._is_plain[filters],
            filters=np.searchsorted(filters, self._filter[chosen]),
            who=self._who[chosen].astype(np.int64),
            began=self._began[chosen],
            ended=self._ended[chosen],
            people=self._people,
        )


class _Matched(NamedTuple):
    """The filters that match some subjects, numbered from 0 (``_ANY``), and the times in force of subscriptions."""

    starts: Numbers
    """Where the filters of each subject begin in ``handles``."""
    handles: Numbers
    is_plain: Numbers
    """Per filter, whether it is without wildcards."""
    filters: Numbers
    """Filter of each subscription; ``who``, ``began`` and ``ended`` are its session and its time in force."""
    who: Numbers
    began: Numbers
    ended: Numbers
    people: int
    """Number of sessions."""

    def subscribers(self, subjects: Numbers, end: int) -> Numbers:
        """Count the sessions subscribed to each of *subjects* (numbers) at *end*, the exclusive end of a window."""
        is_in_force = (self.began < end) & (self.ended >= end)
        wishes = np.unique(self.filters[is_in_force] * self.people + self.who[is_in_force])
        filters, who = np.divmod(wishes, self.people)
        firsts, sizes = self.starts[subjects], np.diff(self.starts)[subjects]
        rows = np.repeat(np.arange(subjects.size), sizes)
        handles = self.handles[_ranges(firsts, sizes)]
        starts = np.searchsorted(filters, np.arange(self.is_plain.size + 1))
        return self._counts(subjects.size, rows, handles, starts, who)

    def _counts(self, count: int, rows: Numbers, handles: Numbers, starts: Numbers, who: Numbers) -> Numbers:
        """Count the distinct sessions of each row's filters.

        The sessions of a filter are a range of *who*, which begins at the filter's entry in *starts*. Subjects that
        match the same filters with wildcards are counted together. Many sessions may have a filter with a wildcard, and
        listing them for every subject would be far more work. A filter without wildcards is for one subject only.
        """
        is_seen = np.zeros(self.people, np.bool_)
        is_seen[who[: starts[_ANY + 1]]] = True
        all_devices = np.count_nonzero(is_seen)
        is_plain = self.is_plain[handles]
        own = np.full(count, _NONE, np.int64)
        own[rows[is_plain]] = handles[is_plain]
        subscribers = np.zeros(count, np.int64)
        for wildcards, members in _alike(count, rows[~is_plain], handles[~is_plain]):
            fresh: list[Numbers] = []
            for handle in wildcards:
                part = who[starts[handle] : starts[handle + 1]]
                fresh.append(part[~is_seen[part]])
                is_seen[fresh[-1]] = True
            subscribers[members] = all_devices + sum(len(part) for part in fresh)
            some = members[own[members] != _NONE]
            firsts, sizes = starts[own[some]], starts[own[some] + 1] - starts[own[some]]
            is_fresh = ~is_seen[who[_ranges(firsts, sizes)]]
            np.add.at(subscribers, np.repeat(some, sizes)[is_fresh], 1)
            for part in fresh:
                is_seen[part] = False
        return subscribers


def _ranges(firsts: Numbers, sizes: Numbers) -> Numbers:
    """Return the integers of several ranges, one range after the other."""
    return np.arange(sizes.sum()) + np.repeat(firsts - np.cumsum(sizes) + sizes, sizes)


def _alike(count: int, rows: Numbers, handles: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """Group the rows 0 to *count* - 1 by their sets of matching filters (handles); yield each set with its rows."""
    ends = np.searchsorted(rows, np.arange(count + 1)).tolist()
    alike: dict[bytes, list[int]] = {}
    for row, (begin, end) in enumerate(pairwise(ends)):
        alike.setdefault(handles[begin:end].tobytes(), []).append(row)
    for key, members in alike.items():
        yield np.frombuffer(key, handles.dtype), np.array(members)


def _encode(column: Any) -> Any:
    """Return a column dictionary-encoded, with null as a value of its own."""
    return column.combine_chunks().dictionary_encode("encode")
