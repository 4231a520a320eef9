"""Status of a running broker as a JSON object: its metrics, lags, recent rates and warnings.

``whimbrel status`` prints it, and on SIGUSR1 the broker writes it to standard error. ``status_text`` formats it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from whimbrel import __version__
from whimbrel.broker.limits.counters import Counters
from whimbrel.broker.limits.figures import figures_of, read_figures
from whimbrel.broker.settings.config import Config, constant_warnings
from whimbrel.broker.shell.disk.storage import Storage
from whimbrel.broker.shell.metrics import Gauges, LogFigures, gauges
from whimbrel.broker.shell.operate.exposure import exposures
from whimbrel.broker.shell.operate.reloading import Reloading
from whimbrel.broker.shell.running import Running, monotonic_us
from whimbrel.match.first_use import Kernels
from whimbrel.model.clock import US_PER_S

__all__ = ["RecentRates", "starting_status", "status"]

_RATES = tuple(name for name, figure in figures_of(Counters).items() if figure.has_rate)
_SPAN = 61
_NEARLY = 0.9
_SOON_S = 14 * 86_400


class _Sample(NamedTuple):
    at_us: int
    late_us: int
    counts: tuple[int, ...]


class RecentRates:
    """Rates of the counters in the last minute, from samples that are taken every second."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=_SPAN)

    def sample(self, counters: Counters, at_us: int, late_us: int) -> None:
        """Store the present values of *counters*; the sample at *at_us* was taken *late_us* later than planned."""
        counts = tuple(getattr(counters, name) for name in _RATES)
        self._samples.append(_Sample(at_us, late_us, counts))

    def per_second(self) -> dict[str, float]:
        """Return the growth of each counter per second, since the oldest sample."""
        if not self._samples:
            return dict.fromkeys(_RATES, 0.0)
        first, last = self._samples[0], self._samples[-1]
        span_s = max(last.at_us - first.at_us, US_PER_S) / US_PER_S
        grown = (late - early for early, late in zip(first.counts, last.counts, strict=True))
        return {name: round(each / span_s, 1) for name, each in zip(_RATES, grown, strict=True)}

    @property
    def worst_late_us(self) -> int:
        """Largest delay of the event loop in the last minute, in microseconds."""
        return max((each.late_us for each in self._samples), default=0)


def status(
    running: Running,
    ports: Mapping[str, int],
    storage: Storage,
    reloading: Reloading,
    kernels: Kernels,
    recent: RecentRates,
) -> dict[str, object]:
    """Return the status of a running broker, as values for JSON."""
    broker, config, files, log = running.broker, reloading.config, reloading.files, storage.log
    now = gauges(broker)
    placed = _by_place(now, storage.keeper.figures())
    last_seq, last = log.next_seq - 1, storage.keeper.totals.last
    return {
        "version": __version__,
        "node": config.node.name,
        "data": config.node.data,
        "pid": os.getpid(),
        "uptime_s": (monotonic_us() - running.started_us) // US_PER_S,
        "listening": dict(ports),
        **placed,
        "memory": {**placed["memory"], "limit": config.limits.memory_bytes},
        "per_second": recent.per_second(),
        "log": {"last_seq": last_seq, **placed.get("log", {})},
        "lag": {
            "not_durable": last_seq - log.durable_seq,
            "not_applied": last_seq - broker.applied,
            "view": max(last_seq - storage.applied, 0),
            "event_loop_ms": recent.worst_late_us // 1_000,
            "readers": {} if last is None else {each.name: max(last_seq - each.seq, 0) for each in last.readers},
        },
        "kernels": kernels.state,
        "users": len(files.users) if files.users else None,
        "rights": config.access.rights or None,
        "certificate_until": None if files.expires_at is None else _day(files.expires_at),
        "log_level": config.observe.log_level,
        "warnings": list(_warnings(running, config, storage, now, files.expires_at)),
    }


def starting_status(config: Config, ports: Mapping[str, int], reason: str | None) -> dict[str, object]:
    """Return the shorter status of a broker that is still starting; *reason* says why clients cannot connect yet."""
    return {
        "version": __version__,
        "node": config.node.name,
        "data": config.node.data,
        "pid": os.getpid(),
        "starting": reason,
        "listening": dict(ports),
    }


def _by_place(now: Gauges, log: LogFigures) -> dict[str, dict[str, float]]:
    """Return the metrics that appear in the status: for each section of the status, values by name."""
    sections: dict[str, dict[str, float]] = {}
    for _, value, figure in read_figures(now, log):
        section, _, name = figure.place.partition(".")
        if section:
            sections.setdefault(section, {})[name] = value
    return sections


def _warnings(running: Running, config: Config, storage: Storage, now: Gauges, expires_at: int | None) -> Iterator[str]:
    broker, limits, last = running.broker, config.limits, storage.keeper.totals.last
    if running.failure is not None:
        yield running.failure
    if broker.is_refusing:
        yield "the disk cannot be written to: publications, subscriptions and new connections are refused"
    elif not storage.space.takes_publications:
        yield "the disk is nearly full: publications are refused until there is room"
    if running.preparation.reason is not None:
        yield running.preparation.reason
    if running.too_few_files is not None:
        yield running.too_few_files
    yield from (each.text for each in exposures(config) if each.level == "warning")
    yield from constant_warnings(config)
    for name, most in (("memory_bytes", limits.memory_bytes), ("held_bytes", limits.held_bytes)):
        found = getattr(now, name)
        if most and found > _NEARLY * most:
            yield f"{name} is {found:,} of {most:,} (limits.{name}): beyond it nothing new is kept"
    if expires_at is not None and expires_at - time.time() < _SOON_S:
        is_over = expires_at < time.time()
        yield f"the certificate {'was' if is_over else 'is'} valid until {_day(expires_at)}"
    yield from () if last is None else last.troubles
    yield from (f"what the pipeline learned cannot be read: {each}" for each in broker.feedback.troubles)


def _day(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).date().isoformat()
