"""Replay: select the past notifications that a filter matches, with the same filter language as live subscriptions.

Rule: this is a pure transform that selects rows. ``spark.reading.read_table`` leaves out whole days before it.
"""

from __future__ import annotations

import re

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows

from whimbrel.language.backends.spark import to_column
from whimbrel.language.filters import parse
from whimbrel.match.topics import check_topic_filter

__all__ = ["replay", "subject_column"]


def replay(
    publications: DataFrame,
    *,
    filter_text: str | None = None,
    since: int | None = None,
    until: int | None = None,
    subject: str | None = None,
) -> DataFrame:
    """Return the *publications* that *filter_text* selects, published from *since* on and before *until*.

    *since* and *until* are in microseconds. *subject* is a subject filter with the wildcards + and #.

    in and out: the table ``publications``
    """
    found = publications
    if since is not None:
        found = found.where(F.col("published_at") >= F.timestamp_micros(F.lit(since)))
    if until is not None:
        found = found.where(F.col("published_at") < F.timestamp_micros(F.lit(until)))
    if subject is not None:
        found = found.where(subject_column(subject, F.col("subject")))
    if filter_text is not None:
        found = found.where(to_column(parse(filter_text), F.col("attributes")))
    return found


def subject_column(subject_filter: str, subject: Column) -> Column:
    """Return a boolean column: whether *subject_filter* matches *subject*, by the rules of ``match.topics``."""
    levels = check_topic_filter(subject_filter).split("/")
    plain = next((place for place, level in enumerate(levels) if level in {"+", "#"}), len(levels))
    if plain == len(levels):
        return subject == F.lit(subject_filter)
    # The literal prefix lets Parquet's statistics skip row groups; the pattern decides.
    pattern = "/".join("[^/]*" if level == "+" else _quote(level) for level in levels if level != "#")
    if levels[-1] == "#":
        pattern = pattern + "(/.*)?" if len(levels) > 1 else ".*"
    begins = "(?!\\$)" if plain == 0 else ""
    prefix = "/".join(levels[:plain])
    return subject.startswith(F.lit(prefix)) & F.rlike(subject, F.lit(f"(?s)\\A{begins}{pattern}\\z"))


def _quote(level: str) -> str:
    return re.sub(r"[^\w]", lambda found: f"\\x{{{ord(found[0]):x}}}", level)
