"""The figures of one simulation of Campus++: delays, spray time, replicas seen, messages, and what was lost.

Rule: a sample counts if it was published after the warm-up and a newer sample of its topic came before the end, because
only then is it certain which subscribers never retrieved it. A source that subscribes to its own topic does not count
as a subscriber of that sample.
Rule: a mean over retrievals alone flatters, so subscribers that never retrieved a sample are counted beside it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whimbrel.sim.campus.outcome import CampusOutcome
from whimbrel.sim.campus.scenario import Campus, World

__all__ = ["campus_report", "counted_samples", "delays"]


def counted_samples(campus: Campus, world: World) -> NDArray[np.bool_]:
    """Return a mask of the publications that count."""
    is_counted = np.zeros(len(world.publications), bool)
    last: dict[int, int] = {}
    for number, publication in enumerate(world.publications):
        before = last.get(publication.topic)
        if before is not None:
            is_counted[before] = world.publications[before].time_s >= campus.measured_from_s
        last[publication.topic] = number
    return is_counted


def delays(outcome: CampusOutcome, world: World, is_counted: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the delay of each retrieval of a sample that counts."""
    published_s = np.array([each.time_s for each in world.publications])
    kept = is_counted[outcome.sample] if len(outcome.sample) else np.zeros(0, bool)
    found: NDArray[np.float64] = outcome.delivered_s[kept] - published_s[outcome.sample[kept]]
    return found


def campus_report(outcome: CampusOutcome, campus: Campus, world: World) -> dict[str, float | int | None]:
    """Return the figures by name; a figure is None if nothing was retrieved or sprayed."""
    is_counted = counted_samples(campus, world)
    delay_s = delays(outcome, world, is_counted)
    kept = is_counted[outcome.sample] if len(outcome.sample) else np.zeros(0, bool)
    published_s = np.array([each.time_s for each in world.publications])
    spray_s = (outcome.sprayed_s - published_s)[is_counted]
    finished = spray_s[~np.isnan(spray_s)]
    subscribers = [set(each) for each in world.subscribers]
    wanted = sum(
        len(subscribers[each.topic]) - (each.publisher in subscribers[each.topic])
        for each, counts in zip(world.publications, is_counted, strict=True)
        if counts
    )
    lost = sum(outcome.counters[name] for name in ("displaced", "outdated", "no_place", "broken"))
    return {
        "created": int(is_counted.sum()),
        "delivered": len(delay_s),
        "delivery_prob": len(delay_s) / wanted if wanted else None,
        "delay_mean_s": _mean(delay_s),
        "delay_p50_s": _percentile(delay_s, 50),
        "delay_p95_s": _percentile(delay_s, 95),
        "never_retrieved": wanted - len(delay_s),
        "spray_time_s": _mean(finished),
        "spray_finished": len(finished) / len(spray_s) if len(spray_s) else None,
        "memory_used": sum(world.copies) / (world.nodes * campus.memory),
        "replicas_planned": sum(world.copies) / len(world.copies),
        "replicas_seen": _mean(outcome.replicas[kept].astype(np.float64)),
        "messages_sent": sum(outcome.counters[name] for name in ("hello", "request", "answer")),
        "hellos_sent": outcome.counters["hello"],
        "copies_lost": lost,
        "copies_replaced": outcome.counters["replaced"],
    }


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None


def _percentile(values: NDArray[np.float64], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None
