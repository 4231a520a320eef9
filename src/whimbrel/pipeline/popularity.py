"""``popularity``: per subject and window, how many sessions want it and how much of it there is.

Rule: a subscription counts from its number on until it is changed or removed, as everywhere; a window asks what was in
force at its end. One with a content filter counts: it is interested in the subject, if not in every notification.

Subject filters with wildcards cannot be joined on. The distinct filters meet the counted subjects in one Arrow worker
that holds a ``TopicIndex``; both are few, and publications themselves are only counted, by Spark, in one scan.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows

from whimbrel.match.topics import TopicIndex, is_topic_filter
from whimbrel.model.bounds import INT64_MAX, whole
from whimbrel.model.facts import SessionChange
from whimbrel.model.subscription import InterestChange

__all__ = ["popularity"]

_US_PER_S = 1_000_000
_ANY = ""
"""Stands for a subject filter that is null: any subject. No subject filter is empty."""
_COUNTED = "subject string, window_start timestamp, window_end timestamp, publications bigint"


def popularity(
    publications: DataFrame, interests: DataFrame, sessions: DataFrame | None = None, *, window_us: int
) -> DataFrame:
    """Count publications and subscribers of each subject in windows of *window_us* that have any publication.

    in:  the tables ``publications``, ``interests`` and, if sessions are ever deleted, ``sessions``
    out: the table ``popularity``
    """
    whole("window_us", window_us, 1, INT64_MAX)
    counted = _counted(publications.where(F.col("subject").isNotNull()), window_us)
    spells = _spells(interests, sessions).withColumn("wanted", F.coalesce("subject_filter", F.lit(_ANY)))
    asked = _asked(counted, spells.select("wanted").distinct())
    found = (
        asked.join(spells, (F.col("asking") == F.col("wanted")) & _is_in_force(), "left")
        .groupBy("window_start", "window_end", "subject", "publications")
        .agg(F.countDistinct("session").alias("subscribers"))
    )
    rate = (F.col("publications") / F.lit(window_us / _US_PER_S)).alias("rate_per_s")
    return found.select("window_start", "window_end", "subject", "subscribers", "publications", rate)


def _counted(publications: DataFrame, window_us: int) -> DataFrame:
    window = F.window("published_at", f"{window_us} microseconds")
    return (
        publications.groupBy("subject", window.alias("window"))
        .agg(F.count(F.lit(1)).alias("publications"))
        .select(
            "subject",
            F.col("window.start").alias("window_start"),
            F.col("window.end").alias("window_end"),
            "publications",
        )
    )


def _spells(interests: DataFrame, sessions: DataFrame | None) -> DataFrame:
    """Return when each subscription was in force: from ``changed_at`` on, until ``ended_at`` if ever."""
    changes = Window.partitionBy("node", "session", "subject_filter", "name").orderBy("seq")
    again = F.lead("changed_at").over(changes).alias("ended_at")
    spells = interests.select("node", "seq", "session", "subject_filter", "change", "changed_at", again)
    spells = spells.where(F.col("change") != InterestChange.REMOVED.value)
    if sessions is None:
        return spells
    deleted = sessions.where(F.col("change") == SessionChange.DELETED.value).select(
        "node", "session", F.col("seq").alias("deleted_seq"), F.col("changed_at").alias("deleted_at")
    )
    # A session that is gone has no subscriptions; one of the same name begins anew.
    same = ["node", "session", "seq", "subject_filter", "changed_at"]
    ends = spells.join(deleted, ["node", "session"]).where(F.col("seq") < F.col("deleted_seq"))
    ends = ends.groupBy("node", "seq").agg(F.min("deleted_at").alias("deleted_at"))
    ended = F.least("ended_at", "deleted_at").alias("ended_at")  # which passes over nulls
    return spells.join(ends, ["node", "seq"], "left").select(*same, ended)


def _is_in_force() -> Column:
    """Facts before the end, which is no part of the window itself."""
    is_over = F.col("ended_at") < F.col("window_end")
    return (F.col("changed_at") < F.col("window_end")) & ~F.coalesce(is_over, F.lit(False))


def _asked(counted: DataFrame, filters: DataFrame) -> DataFrame:
    """Return each row of *counted* with each of *filters* that admits its subject, and once with none."""
    everything = F.lit(0).alias("together")
    schema = f"{_COUNTED}, asking string"
    return counted.groupBy(everything).cogroup(filters.groupBy(everything)).applyInArrow(_admitted, schema)


def _admitted(counted: Any, filters: Any) -> Any:
    # What is no topic filter admits nothing, and is somebody else's dead letter.
    known = filters.column("wanted").to_pylist()
    wanted = [text for text in known if is_topic_filter(text)]
    index = TopicIndex()
    for handle, text in enumerate(wanted):
        index.add(text, handle)
    found = index.match_many(counted.column("subject").to_pylist())
    every = pa.array(range(counted.num_rows), pa.int64())
    rows = [every, pa.array(found.rows, pa.int64())]
    asking = [pa.nulls(len(every), pa.string()), pa.array(wanted, pa.string()).take(pa.array(found.handles))]
    if _ANY in known:
        rows.append(every)
        asking.append(pa.repeat(_ANY, len(every)))
    return counted.take(pa.concat_arrays(rows)).append_column("asking", pa.concat_arrays(asking))
