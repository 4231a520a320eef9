"""The data pipeline: compute tables from logs of millions of facts, on Spark.

| folder | content; each folder imports only folders above it |
|---|---|
| ``files`` | reading and validating the log; writing Delta tables |
| ``subscriptions`` | when each subscription was in force; the packed matchers |
| ``fold`` | replaying events in order to compute a node's state (a fold); contacts |
| ``columnar`` | the same for plain sessions, over flat tables: a fast twin of the hold, for batch runs |
| ``spark`` | the Spark session, progress bars |
| ``tables`` | one file per output table |
| ``unit`` | the unit of work: turn a span (range of seqs) of one node's log into rows of tables |
| ``batch`` | batch runs: tables of a whole log |
| ``stream`` | streams: tables that follow a growing log |
| ``doctor`` | checks of machine, session, logs and streams, with advice |

Rule: batch and stream make each row with the same code: rows that depend on the order of facts in the unit, tables of
windows from sums that the unit makes. A file of ``tables`` contains no session and no path.
Rule: ``spark_session`` creates the only SparkSession of this package; ``source`` works in any session.
"""

from __future__ import annotations

__all__ = ["TABLES_MADE"]

TABLES_MADE = (
    *("matches", "deliveries", "latency", "popularity", "replicas", "link_quality", "contacts", "meetings"),
    "dead_letters",
)
"""Output tables of the pipeline, in the order in which they are made: a table may be computed from earlier ones."""
