"""Meters: a stream's metrics for Prometheus.

Rule: a metric whose value is unknown is left out.
Rule: counters count the reported batches. Lag is computed at each scrape, so that a batch that hangs is visible.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from whimbrel.pipeline.stream.watching import Told

__all__ = ["Meters"]

_SECONDS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256)


class Meters:
    """Prometheus collector of a stream's metrics; *look* returns the stream's current status."""

    def __init__(self, look: Callable[[], Told]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._facts = 0
        self._rows: Counter[str] = Counter()
        self._late: Counter[str] = Counter()
        self._matchers: Counter[str] = Counter()
        self._last_at: int | None = None
        self.registry = CollectorRegistry(auto_describe=False)
        help_text = "how long batches took"
        self._seconds = Histogram(
            "whimbrel_pipeline_batch_seconds", help_text, buckets=_SECONDS, registry=self.registry
        )
        self.registry.register(self)

    def take(self, told: Told) -> None:
        """Count the batch in the stream's status *told*, unless it was counted before."""
        if not told.is_new or told.taken is None:
            return
        with self._lock:
            self._facts += told.taken.facts
            self._rows.update(told.taken.rows)
            self._late.update(told.taken.late)
            self._matchers.update(told.taken.matchers._asdict())
            self._last_at = told.at
        self._seconds.observe(told.taken.took_s)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics except the histogram, which Prometheus' library collects itself."""
        told = self._look()
        with self._lock:
            facts, by_table, too_late, last_at = self._facts, dict(self._rows), dict(self._late), self._last_at
            by_source = dict(self._matchers)
        yield CounterMetricFamily("whimbrel_pipeline_facts", "facts taken from the log so far", value=facts)
        rows = CounterMetricFamily("whimbrel_pipeline_rows", "rows written so far", labels=["table"])
        for table, count in by_table.items():
            rows.add_metric([table], count)
        yield rows
        late = CounterMetricFamily(
            "whimbrel_pipeline_late", "what came too late to be counted so far", labels=["table"]
        )
        for table, count in too_late.items():
            late.add_metric([table], count)
        yield late
        matchers = CounterMetricFamily(
            "whimbrel_pipeline_matchers", "matchers that workers found on their disks or packed", labels=["source"]
        )
        for source, count in by_source.items():
            matchers.add_metric([source], count)
        yield matchers
        if told.taken is None:
            return
        lag = GaugeMetricFamily("whimbrel_pipeline_lag_facts", "facts of the log not in the tables", labels=["node"])
        for node, behind in told.lag.items():
            if behind is not None:
                lag.add_metric([node], behind)
        yield lag
        taken = told.taken
        gauges: dict[str, tuple[str, float]] = {
            "batch": ("the number of the last batch", taken.batch),
            "state_things": ("things remembered between batches", taken.state),
            "state_bytes": ("what these take on disk", taken.state_bytes),
        }
        if told.lag_s is not None:
            gauges["lag_seconds"] = ("how long the tables are behind the log", told.lag_s)
        if last_at is not None:
            gauges["last_batch_timestamp_seconds"] = ("when the last batch was over", last_at / 1e6)
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"whimbrel_pipeline_{name}", text, value=value)
