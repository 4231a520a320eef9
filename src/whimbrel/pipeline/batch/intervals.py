"""Intervals: limit a batch run to the rows of a range of times, for backfills.

Rule: a run writes those rows of a full run whose time (``TIME_COLUMNS``) is within the interval. Earlier facts are read
too, because subscriptions and sessions depend on them. So are later facts that affect rows within the interval.
Rule: a time window (of ``latency`` or ``popularity``) belongs to the interval that contains its begin, and is written
whole.
Rule: ``replicas`` and ``dead_letters`` are about a whole log, and are always made from all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.log.layout import date_of
from whimbrel.model.bounds import INT64_MAX, INT64_MIN, LAST_TIME
from whimbrel.model.clock import format_time
from whimbrel.pipeline.files.delta import TIME_COLUMNS

__all__ = ["Interval", "has_intervals"]

_OF_ALL = "dead_letters"


def has_intervals(table: str) -> bool:
    """Return whether a run can write only the rows of an interval of *table*: each row must have a time."""
    return table in TIME_COLUMNS and table != _OF_ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A range of times in microseconds, from *since* on and before *until*; None means no bound."""

    since: int | None = None
    until: int | None = None

    def __post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.since >= self.until:
            since, until = format_time(self.since), format_time(self.until)
            raise InvalidValueError("interval", Phrase(f"{since} to {until}"), "one that begins before it ends")

    def within(self, batch: Any, table: str) -> Any:
        """Return the rows of an Arrow batch of *table* whose time is within the interval."""
        times = batch.column(TIME_COLUMNS[table]).cast(pa.int64())
        since, until = INT64_MIN if self.since is None else self.since, INT64_MAX if self.until is None else self.until
        return batch.filter(pc.and_(pc.greater_equal(times, since), pc.less(times, until)))

    def days(self, *, later_us: int = 0) -> tuple[date, date]:
        """Return the first and last date of the interval; its end is first moved *later_us* microseconds later."""
        since = date.min if self.since is None else date_of(self.since)
        until = date.max if self.until is None else date_of(min(self.until + later_us, LAST_TIME))
        return since, until

    def __str__(self) -> str:
        since = "the beginning" if self.since is None else format_time(self.since)
        return f"from {since} " + ("on" if self.until is None else f"to before {format_time(self.until)}")
