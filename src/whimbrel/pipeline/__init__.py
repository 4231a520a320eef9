"""The data pipeline: the log, by the million, on Spark.

| room | what is in it; each imports only rooms above it |
|---|---|
| ``files`` | the log as it is read and judged; Delta tables as they are written |
| ``subscriptions`` | when each was in force; the packed matchers |
| ``fold`` | events through a node's core; contacts |
| ``spark`` | the session, the log as a DataFrame, progress |
| ``tables`` | one file a table |
| ``unit`` | the unit of work: a span of a node's log becomes rows |
| ``batch`` | tables of a whole log |
| ``stream`` | tables that follow a log |
| ``doctor`` | what is wrong, and what to do about it |

Rule: what depends on the order of facts is folded by the unit, once for both. A table that does not is a file of
``tables``, with a transform ``DataFrame -> DataFrame``: no session, no path inside.
Rule: ``spark_session`` makes the only SparkSession we make; ``source`` works in any session.
"""

from __future__ import annotations

__all__ = ["TABLES_MADE"]

TABLES_MADE = (
    *("matches", "deliveries", "latency", "popularity", "replicas", "link_quality", "contacts", "meetings"),
    "dead_letters",
)
"""The tables this pipeline makes, in order: the later may read the earlier."""
