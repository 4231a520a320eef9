"""Prediction: the latency bound of events, stated at their announcement (4.3; T29).

The bound is (hop bound + 1 transmissions) x the bound of one hop + the bound of matching + the bound of dispatching.
A transmission is all datagrams of a frame, one after the other: one for each cell that the area touches, and as many
for relays where the frame is repeated. Hops and dispatching are measured as percentiles, hops separately for each
number of cells. Python and a radio give no hard real time: the percentile is part of the answer.

Matching is bounded by the step limit of the event type for its consumers' filters (4.3); a step takes at most
``filter_step_ns``. A producer's measurements of its own matching would not apply to its consumers.

A hop is measured without a common clock: from a node's own transmission until it hears a neighbour repeat the frame.
That is the neighbour's delay and two transmissions, so never less than the duration of the hop.

Assumptions, without which the bound does not hold: the frame was not lost on all paths within the hop bound (an event
that had to be requested comes later), the members stay inside and reachable, and nodes are not overloaded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from whimbrel.errors import InvalidInputError, InvalidValueError
from whimbrel.model.bounds import real, whole
from whimbrel.nearby.deployment import Deployment

__all__ = ["DeadlineTooShortError", "DurationHistogram", "LatencyBounds", "Prediction", "matching_us"]

_STEPS = 8
"""Buckets per doubling: a percentile read from them is at most 9 % too high."""
_BUCKETS = 48 * _STEPS
_LOOK_UP_US = 1_000
"""Longest time of a consumer's work on an event besides evaluating its filters."""


class DeadlineTooShortError(InvalidInputError):
    """A deadline is below the latency bound. Reaction: announce a longer one, or fewer hops."""

    def __init__(self, deadline_us: int, predicted_us: int, percentile: float) -> None:
        super().__init__(deadline_us, predicted_us, percentile)
        self.deadline_us, self.predicted_us, self.percentile = deadline_us, predicted_us, percentile

    def __str__(self) -> str:
        return (
            f"a deadline of {self.deadline_us / 1e3:g} ms; {self.percentile:g} % of events arrive within "
            f"{self.predicted_us / 1e3:g} ms, so allowed is that or more"
        )


class DurationHistogram:
    """Histogram of durations in microseconds, with exponential buckets and fixed memory."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.total = 0

    def add(self, duration_us: int) -> None:
        """Count one duration; a negative one counts as 0."""
        bucket = math.ceil(math.log2(duration_us) * _STEPS) + 1 if duration_us > 0 else 0
        self._counts[min(bucket, _BUCKETS - 1)] += 1
        self.total += 1

    def percentile(self, percentile: float) -> int:
        """Return a duration that at least *percentile* per cent of the counted ones did not exceed; 0 without any."""
        real("percentile", percentile, 0, 100)
        wanted, reached = math.ceil(self.total * percentile / 100), 0
        for bucket, count in enumerate(self._counts):
            reached += count
            if reached >= wanted and reached:
                return math.ceil(2 ** ((bucket - 1) / _STEPS)) if bucket else 0
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Latency bound of the events of an announcement, with its parts."""

    hops: int
    hop_us: int
    matching_us: int
    dispatch_us: int
    percentile: float

    @property
    def worst_us(self) -> int:
        """The bound, within which *percentile* per cent of the events are delivered."""
        return (self.hops + 1) * self.hop_us + self.matching_us + self.dispatch_us

    def check(self, deadline_us: int) -> None:
        """Raise ``DeadlineTooShortError`` if *deadline_us* is below the bound."""
        if deadline_us < self.worst_us:
            raise DeadlineTooShortError(deadline_us, self.worst_us, self.percentile)


def matching_us(steps: int, *, deployment: Deployment) -> int:
    """Return the longest time of a consumer to match an event: its own work, and the steps of its filters."""
    return _LOOK_UP_US + math.ceil(steps * deployment.filter_step_ns / 1_000)


class LatencyBounds:
    """Measured latencies of a node; with fewer than *enough*, bounds come from the deployment's settings."""

    __slots__ = ("_deployment", "_enough", "_hops", "dispatch", "percentile")

    def __init__(self, deployment: Deployment, *, percentile: float = 99.9, enough: int = 1_000) -> None:
        if not 0 < percentile < 100:
            raise InvalidValueError("percentile", percentile, "a number above 0 and below 100")
        self._deployment, self.percentile = deployment, float(percentile)
        self._enough = whole("enough", enough, 1, 1_000_000)
        self.dispatch = DurationHistogram()
        self._hops: dict[int, DurationHistogram] = {}
        """Durations of hops, per number of cells that the frame's area touches."""

    def add_hop(self, duration_us: int, *, cells: int) -> None:
        """Count one hop of a frame whose area touches *cells* cells."""
        self.hops(cells).add(duration_us)

    def hops(self, cells: int) -> DurationHistogram:
        """Return the measured hops of frames whose areas touch *cells* cells."""
        return self._hops.setdefault(cells, DurationHistogram())

    def predict(self, hops: int, *, cells: int, steps: int) -> Prediction:
        """Return the bound for events with at most *hops* hops, in an area that touches *cells* cells.

        *steps* is the most steps that the filters of a consumer take on one event.
        """
        datagrams = cells * (2 if hops else 1)
        assumed_us = self._deployment.longest_delay_us + 2 * datagrams * self._deployment.airtime_us
        return Prediction(
            hops=hops,
            hop_us=self._percentile_or(self.hops(cells), assumed_us),
            matching_us=matching_us(steps, deployment=self._deployment),
            dispatch_us=self._percentile_or(self.dispatch, 1_000),
            percentile=self.percentile,
        )

    def _percentile_or(self, found: DurationHistogram, assumed_us: int) -> int:
        return found.percentile(self.percentile) if found.total >= self._enough else assumed_us
