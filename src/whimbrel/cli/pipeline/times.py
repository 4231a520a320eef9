"""Times in options of ``whimbrel pipeline``: a duration, a date, or ISO 8601."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from whimbrel.errors import InvalidValueError
from whimbrel.model.clock import parse_time

if TYPE_CHECKING:  # pyspark takes a second to load, and its Java ten to start
    from pyspark.sql import SparkSession

    from whimbrel.pipeline.batch.intervals import Interval

__all__ = ["check_moment", "duration", "instant", "interval", "moment"]

_UNITS_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_AGO = re.compile(r"([0-9]{1,6})([smhd])")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def duration(option: str, text: str) -> int:
    """Parse a duration such as 15m into microseconds."""
    found = _AGO.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise InvalidValueError(option, text, "a number and s, m, h or d, such as 15m")
    return int(found[1]) * _UNITS_US[found[2]]


def instant(option: str, text: str, others: str = "a date") -> int:
    """Parse a date or ISO 8601 into microseconds UTC."""
    try:
        return parse_time(f"{text}T00:00:00Z" if _DAY.fullmatch(text) else text)
    except InvalidValueError:
        raise InvalidValueError(option, text, f"{others}, or ISO 8601 such as 2026-01-05T09:30:00Z") from None


def check_moment(option: str, text: str | None) -> None:
    """Refuse an invalid time before Spark is started."""
    if text is not None and _AGO.fullmatch(text) is None:
        instant(option, text, "a time such as 24h, a date")


def interval(spark: SparkSession, log: Path, since: str | None, until: str | None) -> Interval | None:
    """Return the interval between two moments, or None if neither is given."""
    if since is None and until is None:
        return None
    from whimbrel.pipeline.batch.intervals import Interval

    begin, end = (moment(spark, log, name, text) for name, text in (("--since", since), ("--until", until)))
    return Interval(since=begin, until=end)


def moment(spark: SparkSession, log: Path, option: str, text: str | None) -> int | None:
    """Parse *text* into microseconds UTC; 24h means that long before the last notification of the log."""
    ago = None if text is None else _AGO.fullmatch(text)
    if text is None or ago is None:
        return None if text is None else instant(option, text)
    from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows

    from whimbrel.pipeline.files.snapshots import last_date
    from whimbrel.pipeline.spark.reading import read_table

    day = last_date(log, "publications")
    since = None if day is None else int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000
    last = read_table(spark, log, "publications", since=since).agg(F.unix_micros(F.max("published_at"))).collect()[0][0]
    return None if last is None else int(last) - int(ago[1]) * _UNITS_US[ago[2]]
