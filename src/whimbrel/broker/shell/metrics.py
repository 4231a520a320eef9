"""Metrics: the broker's numbers as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from whimbrel import __version__
from whimbrel.broker.broker import Broker
from whimbrel.mqtt.server import Phase

__all__ = ["LogFigures", "connected", "gauges", "prometheus", "system_values"]

_SYS = {
    "log_bytes": "bytes",
    "log_oldest_seq": "oldest",
    "log_checkpoint_seq": "checkpoint",
    "log_checkpoint_bytes": "checkpoint/bytes",
    "log_free_bytes": "disk/free",
    "log_readers": "readers",
}
"""The names of the log's gauges under ``$SYS/broker/log``."""


_MOST_LATE = 100
"""Of how many subjects missed deadlines are told, those with the most."""


class LogFigures(NamedTuple):
    """What is known of the log on disk: what there is now, and what was done so far."""

    gauges: Mapping[str, int]
    counters: Mapping[str, int]


NO_FIGURES = LogFigures({}, {})


def connected(broker: Broker) -> set[str]:
    """Return the devices that are here now."""
    return {link.client.id for link in broker.links if link.client is not None and link.machine.phase is Phase.OPEN}


def gauges(broker: Broker) -> dict[str, int]:
    """Return what there is now."""
    return {
        "clients_connected": sum(1 for link in broker.links if link.machine.phase is Phase.OPEN),
        "clients": len(broker.state.clients),
        "clients_slowed": broker.rates.slowed,
        "named_sessions": broker.state.hold.named_count,
        "subscriptions": len(broker.state.routes),
        "pattern_instructions": broker.state.routes.pattern_instructions,
        "filters_refused_today": len(broker.state.routes.refused_today),
        "retained_messages": len(broker.state.retained),
        "retained_bytes": broker.state.retained.size_bytes,
        "held_notifications": len(broker.state.held),
        "held_bytes": broker.state.held.size_bytes,
        "memory_bytes": broker.memory.used,
        "incoming_bytes": broker.memory.incoming,
        "outgoing_bytes": broker.memory.outgoing,
        "learned_devices": broker.feedback.devices,
        "learned_subjects": broker.feedback.subjects,
    }


def system_values(broker: Broker, uptime_us: int, log: LogFigures = NO_FIGURES) -> dict[str, str]:
    """Return what is published under ``$SYS``; the names that other brokers have too are theirs."""
    counters, now = broker.counters, gauges(broker)
    late = sorted(broker.late.items(), key=lambda each: -each[1])[:_MOST_LATE]
    told = {f"$SYS/broker/deadlines/missed/{subject}": str(count) for subject, count in late}
    told |= {f"$SYS/broker/log/{_SYS[name]}": str(value) for name, value in log.gauges.items()}
    return told | {
        "$SYS/broker/version": f"whimbrel {__version__}",
        "$SYS/broker/uptime": f"{uptime_us // 1_000_000} seconds",
        "$SYS/broker/clients/connected": str(now["clients_connected"]),
        "$SYS/broker/clients/total": str(now["clients"]),
        "$SYS/broker/clients/slowed": str(now["clients_slowed"]),
        "$SYS/broker/pauses/rate": str(counters.rate_pauses),
        "$SYS/broker/subscriptions/count": str(now["subscriptions"]),
        "$SYS/broker/retained messages/count": str(now["retained_messages"]),
        "$SYS/broker/store/messages/count": str(now["held_notifications"]),
        "$SYS/broker/store/messages/bytes": str(now["held_bytes"]),
        "$SYS/broker/memory/bytes": str(now["memory_bytes"]),
        "$SYS/broker/deadlines/missed": str(counters.missed_deadlines),
        "$SYS/broker/messages/received": str(counters.received),
        "$SYS/broker/messages/sent": str(counters.sent),
        "$SYS/broker/publish/messages/dropped": str(counters.dropped + counters.displaced),
        "$SYS/broker/bytes/received": str(counters.bytes_received),
        "$SYS/broker/bytes/sent": str(counters.bytes_sent),
    }


class _Collected:
    def __init__(self, broker: Broker, uptime_us: int, now: int, log: LogFigures) -> None:
        self._broker, self._uptime_us, self._now, self._log = broker, uptime_us, now, log

    def _gauges(self) -> dict[str, int]:
        return {**gauges(self._broker), **self._log.gauges}

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("whimbrel_uptime_seconds", "since the start", value=self._uptime_us / 1e6)
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(f"whimbrel_{name}", name.replace("_", " ") + " now", value=value)
        learned = self._broker.feedback
        yield CounterMetricFamily(
            "whimbrel_learned_failures", "tables of the pipeline that could not be read, so far", value=learned.failures
        )
        age_us = learned.age_us(self._now)
        if age_us is not None:
            about = "since the pipeline wrote what was learned"
            yield GaugeMetricFamily("whimbrel_learned_age_seconds", about, value=age_us / 1e6)
        for name, value in self._log.counters.items():
            yield CounterMetricFamily(f"whimbrel_{name}", name.replace("_", " ") + " so far", value=value)
        for each in fields(self._broker.counters):
            value = getattr(self._broker.counters, each.name)
            yield CounterMetricFamily(f"whimbrel_{each.name}", each.name.replace("_", " ") + " so far", value=value)


def prometheus(broker: Broker, uptime_us: int, now: int, log: LogFigures = NO_FIGURES) -> str:
    """Return all metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(broker, uptime_us, now, log))
    return generate_latest(registry).decode()
