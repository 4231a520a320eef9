"""The public interface for Spark users: our tables as DataFrames, and our filters over any DataFrame.

>>> from whimbrel.spark import filter, matches, table  # doctest: +SKIP
>>> late = table(spark, "/srv/live", "deliveries").where("outcome = 'expired'")  # doctest: +SKIP
>>> vitals.where(filter("pulse > 120 && spo2 < 92", vitals))  # doctest: +SKIP
>>> matches({"fever": "temperature > 38.5", "shock": "pulse > 130"}, vitals)  # doctest: +SKIP

Rule: a filter means the same here as in the broker: a NULL is an absent attribute, and a condition on it is undefined.
"""

from __future__ import annotations

from whimbrel.spark.filter_columns import filter_column as filter  # noqa: A004 # `whimbrel.spark.filter` reads well
from whimbrel.spark.filter_matches import matches
from whimbrel.spark.tables import table

__all__ = ["filter", "matches", "table"]
