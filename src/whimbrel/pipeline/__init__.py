"""The data pipeline: the log, by the million, on Spark.

Rule: a table is a file, and its transform is ``DataFrame -> DataFrame``: no session, no path inside. What must be known
before the rows flow (the matchers, who shares a device) is small, and collected there.
Rule: ``sessions`` makes the only SparkSession we make; ``source`` works in anybody's.
"""

from __future__ import annotations

__all__ = ["TABLES_MADE"]

TABLES_MADE = ("matches", "deliveries", "latency", "popularity", "replicas", "link_quality", "dead_letters")
"""The tables this pipeline makes, in order: the later may read the earlier."""
