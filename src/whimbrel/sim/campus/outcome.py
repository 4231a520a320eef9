"""What came of a simulation of Campus++, event by event, and the recorder that gathers it from the reference.

The kernel fills the same record; that the two are equal is what the differential test says.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whimbrel.carry.hello import Answer
from whimbrel.carry.node import Deliver, Drop, Loss, Step, StoreSample
from whimbrel.sim.campus.scenario import Publication, World

__all__ = ["CampusOutcome", "Recorder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CampusOutcome:
    """Retrievals in the order of time, when each sample had its L copies, messages and lost copies."""

    delivered_s: NDArray[np.float64]
    subscriber: NDArray[np.int32]
    sample: NDArray[np.int32]
    """The number of its publication."""
    replicas: NDArray[np.int32]
    """How many nodes stored the sample when it was retrieved."""
    sprayed_s: NDArray[np.float64]
    """When the last of the L copies of each sample was stored; not a number: never."""
    counters: dict[str, int]


class Recorder:
    """A report that keeps what the kernel keeps."""

    def __init__(self, world: World) -> None:
        self._number = {each.sample: number for number, each in enumerate(world.publications)}
        self._limit = [world.copies[each.topic] for each in world.publications]
        self._delivered: list[tuple[float, int, int, int]] = []
        self._holders: Counter[int] = Counter()
        self._stores: Counter[int] = Counter()
        self._sprayed_s = np.full(len(world.publications), np.nan)
        self._counters: Counter[str] = Counter()

    def published(self, publication: Publication, copies: int, *, now: float) -> None:
        """Count nothing: the source's own copy is stored."""

    def done(self, node: int, step: Step, *, now: float) -> None:
        """Take note of what a carrier did."""
        match step:
            case Deliver(sample):
                number = self._number[sample]
                self._delivered.append((now, node, number, self._holders[number]))
            case StoreSample(sample):
                number = self._number[sample]
                self._holders[number] += 1
                self._stores[number] += 1
                if self._stores[number] == self._limit[number]:
                    self._sprayed_s[number] = now
            case Drop(sample, copies, loss):
                self._counters[loss.name.lower()] += copies
                if loss in {Loss.REPLACED, Loss.DISPLACED}:
                    self._holders[self._number[sample]] -= 1

    def sent(self, message: str, *, now: float) -> None:
        """Count a message."""
        del now
        self._counters[message] += 1

    def lost(self, answer: Answer, *, now: float) -> None:
        """Count the copies that were on their way."""
        del now
        self._counters["broken"] += answer.copies

    def outcome(self) -> CampusOutcome:
        """Return what was recorded."""
        names = ("hello", "request", "answer", "replaced", "displaced", "outdated", "no_place", "broken")
        columns = list(zip(*self._delivered, strict=True)) or [(), (), (), ()]
        return CampusOutcome(
            delivered_s=np.array(columns[0], np.float64),
            subscriber=np.array(columns[1], np.int32),
            sample=np.array(columns[2], np.int32),
            replicas=np.array(columns[3], np.int32),
            sprayed_s=self._sprayed_s,
            counters={name: self._counters[name] for name in names},
        )
