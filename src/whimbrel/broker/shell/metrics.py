"""Metrics of a broker, in Prometheus' text format and as messages published under ``$SYS``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from whimbrel import __version__
from whimbrel.broker.broker import Broker
from whimbrel.broker.limits.counters import Counters
from whimbrel.broker.limits.figures import count, now, read_figures
from whimbrel.model.clock import US_PER_S
from whimbrel.mqtt.server import Phase

__all__ = [
    "FIGURES",
    "NO_LOG_FIGURES",
    "Gauges",
    "LogFigures",
    "connected_devices",
    "gauges",
    "prometheus",
    "system_values",
]

_MAX_LATE_SUBJECTS = 100
"""Most subjects for which missed deadlines are published under ``$SYS``: those with the most misses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFigures:
    """Metrics of the log on disk; gauges are None until the log keeper has run for the first time."""

    log_bytes: int | None = now("bytes of the log's segments", topic="log/bytes", place="log.bytes")
    log_oldest_seq: int | None = now(
        "the first record number that is in the log", topic="log/oldest", place="log.oldest_seq"
    )
    log_checkpoint_seq: int | None = now(
        "the record number of the newest checkpoint", topic="log/checkpoint", place="log.checkpoint_seq"
    )
    log_checkpoint_bytes: int | None = now(
        "bytes of the checkpoints", topic="log/checkpoint/bytes", place="log.checkpoint_bytes"
    )
    log_free_bytes: int | None = now("bytes free on the disk of the log", topic="log/disk/free", place="log.free_bytes")
    log_readers: int | None = now("registered readers of the log", topic="log/readers", place="log.readers")
    log_cut_bytes: int = count("bytes of segments that were removed")
    log_checkpoints: int = count("checkpoints that were written")
    log_readers_lost: int = count("readers that were too far behind and lost their place")


NO_LOG_FIGURES: Final = LogFigures()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """Gauges of a broker: metrics of its present state; the only total among them is ``learned_failures``."""

    clients_connected: int = now("clients that are connected", topic="clients/connected", place="clients.connected")
    clients: int = now("clients that have a session", topic="clients/total", place="clients.known")
    clients_slowed: int = now(
        "clients that are not read from now because of a rate limit", topic="clients/slowed", place="clients.slowed"
    )
    named_sessions: int = now("named sessions", place="sessions.named")
    subscriptions: int = now("subscriptions", topic="subscriptions/count", place="sessions.subscriptions")
    pattern_instructions: int = now("instructions of the patterns of all filters")
    filters_refused_today: int = now("filters of an older version that are beyond the limits of today")
    retained_messages: int = now(
        "topics with a retained message", topic="retained messages/count", place="retained.messages"
    )
    retained_bytes: int = now("bytes of the retained messages", place="retained.bytes")
    held_notifications: int = now(
        "notifications held for sessions", topic="store/messages/count", place="held.notifications"
    )
    held_bytes: int = now("bytes of the held notifications", topic="store/messages/bytes", place="held.bytes")
    memory_bytes: int = now(
        "bytes of everything that `limits.memory_bytes` counts", topic="memory/bytes", place="memory.bytes"
    )
    incoming_bytes: int = now("the part of `memory_bytes` that is in packets which are not complete")
    outgoing_bytes: int = now("the part of `memory_bytes` that waits to be sent")
    learned_devices: int = now("devices whose link quality the pipeline told")
    learned_subjects: int = now("subjects of the pipeline's replica plan")
    learned_failures: int = count("tables of the pipeline that could not be read")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ages:
    uptime_seconds: float = now("seconds since the start")
    learned_age_seconds: float | None = now("seconds since the pipeline wrote what was learned")


FIGURES: Final = (_Ages, Gauges, LogFigures, Counters)
"""All metrics of a broker."""


def connected_devices(broker: Broker) -> set[str]:
    """Return the client ids of the devices that are connected now."""
    return {link.client.id for link in broker.links if link.client is not None and link.machine.phase is Phase.OPEN}


def gauges(broker: Broker) -> Gauges:
    """Return the present values of the gauges of *broker*."""
    state, learned = broker.state, broker.feedback
    return Gauges(
        clients_connected=sum(1 for link in broker.links if link.machine.phase is Phase.OPEN),
        clients=len(state.clients),
        clients_slowed=broker.rates.slowed,
        named_sessions=state.hold.named_count,
        subscriptions=len(state.routes),
        pattern_instructions=state.routes.pattern_instructions,
        filters_refused_today=len(state.routes.refused_today),
        retained_messages=len(state.retained),
        retained_bytes=state.retained.size_bytes,
        held_notifications=len(state.held),
        held_bytes=state.held.size_bytes,
        memory_bytes=broker.memory.used,
        incoming_bytes=broker.memory.incoming,
        outgoing_bytes=broker.memory.outgoing,
        learned_devices=learned.devices,
        learned_subjects=learned.subjects,
        learned_failures=learned.failures,
    )


def system_values(broker: Broker, uptime_us: int, log: LogFigures = NO_LOG_FIGURES) -> dict[str, str]:
    """Return the messages to publish under ``$SYS``, by topic.

    Topics that other MQTT brokers publish too have the same names here.
    """
    totals: dict[str, int] = {}
    for _, value, figure in read_figures(gauges(broker), log, broker.counters):
        if figure.topic:
            totals[figure.topic] = totals.get(figure.topic, 0) + int(value)
    late = sorted(broker.late.items(), key=lambda each: -each[1])[:_MAX_LATE_SUBJECTS]
    totals |= {f"deadlines/missed/{subject}": times for subject, times in late}
    told = {"version": f"whimbrel {__version__}", "uptime": f"{uptime_us // US_PER_S} seconds"}
    told |= {topic: str(total) for topic, total in totals.items()}
    return {f"$SYS/broker/{topic}": said for topic, said in told.items()}


class _Collected:
    def __init__(self, broker: Broker, ages: _Ages, log: LogFigures) -> None:
        self._broker, self._ages, self._log = broker, ages, log

    def collect(self) -> Iterator[Metric]:
        for name, value, figure in read_figures(self._ages, gauges(self._broker), self._log, self._broker.counters):
            family = CounterMetricFamily if figure.is_counter else GaugeMetricFamily
            yield family(f"whimbrel_{name}", figure.about, value=value)


def prometheus(broker: Broker, uptime_us: int, now: int, log: LogFigures = NO_LOG_FIGURES) -> str:
    """Return all metrics in Prometheus' text format."""
    age_us = broker.feedback.age_us(now)
    learned_age_s = None if age_us is None else age_us / US_PER_S
    registry = CollectorRegistry(auto_describe=False)
    registry.register(
        _Collected(broker, _Ages(uptime_seconds=uptime_us / US_PER_S, learned_age_seconds=learned_age_s), log)
    )
    return generate_latest(registry).decode()
