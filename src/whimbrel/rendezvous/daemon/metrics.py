"""Metrics of a controller's daemon, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from whimbrel.rendezvous.daemon.reporting import BrokerReport
from whimbrel.rendezvous.nodes import ControllerNode

__all__ = ["Counted", "registry_of"]

_PREFIX = "whimbrel_rendezvous"


class Counted(Protocol):
    """The parts of a controller's daemon that the metrics read."""

    @property
    def facts(self) -> Mapping[str, int]:
        """Facts that were logged, by kind."""
        ...

    @property
    def troubles(self) -> Mapping[str, int]:
        """Errors of the radio, by kind."""
        ...

    @property
    def report(self) -> BrokerReport | None:
        """The report to the broker; None without one."""
        ...

    @property
    def node(self) -> ControllerNode:
        """The controller."""
        ...


class _Collector:
    """Reads a daemon when it is scraped."""

    def __init__(self, daemon: Counted) -> None:
        self._daemon = daemon

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        daemon = self._daemon
        sizes = GaugeMetricFamily(f"{_PREFIX}_size", "Entries in each table of the controller.", labels=["table"])
        for name, size in daemon.node.core.sizes().items():
            sizes.add_metric([name], size)
        yield sizes
        facts = CounterMetricFamily(f"{_PREFIX}_facts", "Facts that were logged, by kind.", labels=["kind"])
        for kind, count in dict(daemon.facts).items():
            facts.add_metric([kind], count)
        yield facts
        proofs = CounterMetricFamily(f"{_PREFIX}_refused_proofs", "Proofs of membership refused.", labels=["fault"])
        for fault, count in daemon.node.core.refused_proofs().items():
            proofs.add_metric([fault], count)
        yield proofs
        troubles = CounterMetricFamily(f"{_PREFIX}_troubles", "What went wrong with the radio.", labels=["error"])
        for error, count in dict(daemon.troubles).items():
            troubles.add_metric([error], count)
        yield troubles
        report = daemon.report
        if report is not None:
            yield GaugeMetricFamily(
                f"{_PREFIX}_broker_connected", "Whether the broker is connected.", value=float(report.is_connected)
            )
            yield GaugeMetricFamily(
                f"{_PREFIX}_broker_waiting", "Facts that wait for the broker.", value=report.waiting
            )
            yield CounterMetricFamily(f"{_PREFIX}_broker_sent", "Facts that the broker accepted.", value=report.sent)
            yield CounterMetricFamily(
                f"{_PREFIX}_broker_dropped", "Facts not reported: too many waited.", value=report.dropped
            )


def registry_of(daemon: Counted) -> CollectorRegistry:
    """Return a registry with the metrics of *daemon*."""
    registry = CollectorRegistry()
    registry.register(_Collector(daemon))
    return registry
