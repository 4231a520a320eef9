"""Prediction: how late an event can be, said when it is announced (4.3; T29).

The bound is (hop bound + 1 transmissions) x the bound of one hop + the bound of matching + the bound of dispatching.
A transmission is all datagrams of a frame, one after the other: one for each cell that the area touches, and as many
for relays where the frame is repeated. Hops and dispatching are measured as percentiles, hops apart for each number of
cells. Python and a radio give no hard real time: the percentile belongs to the answer.

Matching is bounded by what the event type allows its consumers' filters (4.3): they are counted in steps, each of which
takes ``filter_step_ns`` at most. What a producer measures of its own matching says nothing of its consumers.

A hop is measured without a common clock: from a node's own transmission to its hearing a neighbour repeat the frame.
That is the neighbour's delay and two transmissions, so never less than what the hop took.

Assumptions, outside of which the bound does not hold: the frame was not lost on all ways of at most the hop bound (an
event that had to be asked for comes later), the members stay inside and reachable, and nodes are not overloaded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from whimbrel.errors import InvalidInputError, InvalidValueError
from whimbrel.model.bounds import real, whole
from whimbrel.nearby.deployment import Deployment

__all__ = ["DeadlineTooShortError", "DurationHistogram", "LatencyBounds", "Prediction", "matching_us"]

_STEPS = 8
"""Buckets for each doubling: a bound read from them is at most 9 % too high."""
_BUCKETS = 48 * _STEPS
_LOOK_UP_US = 1_000
"""What a consumer does with an event besides asking its filters."""


class DeadlineTooShortError(InvalidInputError):
    """A deadline is below what can be promised. Reaction: announce a longer one, or fewer hops."""

    def __init__(self, deadline_us: int, predicted_us: int, percentile: float) -> None:
        super().__init__(deadline_us, predicted_us, percentile)
        self.deadline_us, self.predicted_us, self.percentile = deadline_us, predicted_us, percentile

    def __str__(self) -> str:
        return (
            f"a deadline of {self.deadline_us / 1e3:g} ms; {self.percentile:g} % of events arrive within "
            f"{self.predicted_us / 1e3:g} ms, so allowed is that or more"
        )


class DurationHistogram:
    """Durations in microseconds, counted in buckets that grow with them; the memory is fixed."""

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
        """Return a duration that at least *percentile* per cent of those counted did not exceed."""
        real("percentile", percentile, 0, 100)
        wanted, reached = math.ceil(self.total * percentile / 100), 0
        for bucket, count in enumerate(self._counts):
            reached += count
            if reached >= wanted and reached:
                return math.ceil(2 ** ((bucket - 1) / _STEPS)) if bucket else 0
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What can be promised of the events of an announcement."""

    hops: int
    hop_us: int
    matching_us: int
    dispatch_us: int
    percentile: float

    @property
    def worst_us(self) -> int:
        """The bound: this many per cent of the events are delivered within it."""
        return (self.hops + 1) * self.hop_us + self.matching_us + self.dispatch_us

    def check(self, deadline_us: int) -> None:
        """Raise ``DeadlineTooShortError`` if *deadline_us* is below the bound."""
        if deadline_us < self.worst_us:
            raise DeadlineTooShortError(deadline_us, self.worst_us, self.percentile)


def matching_us(steps: int, *, deployment: Deployment) -> int:
    """Return how long a consumer takes at most to match an event: its own work, and the steps of its filters."""
    return _LOOK_UP_US + math.ceil(steps * deployment.filter_step_ns / 1_000)


class LatencyBounds:
    """What a node has measured; until it has *enough*, it takes what its deployment is set to."""

    __slots__ = ("_deployment", "_enough", "_hops", "dispatch", "percentile")

    def __init__(self, deployment: Deployment, *, percentile: float = 99.9, enough: int = 1_000) -> None:
        if not 0 < percentile < 100:
            raise InvalidValueError("percentile", percentile, "a number above 0 and below 100")
        self._deployment, self.percentile = deployment, float(percentile)
        self._enough = whole("enough", enough, 1, 1_000_000)
        self.dispatch = DurationHistogram()
        self._hops: dict[int, DurationHistogram] = {}
        """By how many cells the area of the frame touched."""

    def add_hop(self, duration_us: int, *, cells: int) -> None:
        """Count one hop of a frame whose area touched so many cells."""
        self.hops(cells).add(duration_us)

    def hops(self, cells: int) -> DurationHistogram:
        """Return the hops that were measured of frames whose areas touched so many cells."""
        return self._hops.setdefault(cells, DurationHistogram())

    def predict(self, hops: int, *, cells: int, steps: int) -> Prediction:
        """Return the bound for events with this hop bound, in an area that touches so many cells.

        The filters of a consumer take so many *steps* at most on one event.
        """
        datagrams = cells * (2 if hops else 1)
        assumed_us = self._deployment.longest_delay_us + 2 * datagrams * self._deployment.airtime_us
        return Prediction(
            hops=hops,
            hop_us=self._measured(self.hops(cells), assumed_us),
            matching_us=matching_us(steps, deployment=self._deployment),
            dispatch_us=self._measured(self.dispatch, 1_000),
            percentile=self.percentile,
        )

    def _measured(self, found: DurationHistogram, assumed_us: int) -> int:
        return found.percentile(self.percentile) if found.total >= self._enough else assumed_us
