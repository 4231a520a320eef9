"""The outcome of a simulation of Campus++, event by event, and the recorder that collects it.

The recorder is a report of the reference simulator. The kernel fills the same record; a differential test asserts that
both are equal.
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
    """Retrievals in the order of time, the time at which each sample had its L copies, messages, and lost copies."""

    delivered_s: NDArray[np.float64]
    subscriber: NDArray[np.int32]
    sample: NDArray[np.int32]
    """Position of the sample's publication in the world's list."""
    replicas: NDArray[np.int32]
    """Number of nodes that stored the sample when it was retrieved."""
    sprayed_s: NDArray[np.float64]
    """Time at which the last of a sample's L copies was stored; NaN if it never was."""
    counters: dict[str, int]


class Recorder:
    """A report that records the same figures as the kernel, from the reference simulator."""

    def __init__(self, world: World) -> None:
        self._number = {each.sample: number for number, each in enumerate(world.publications)}
        self._limit = [world.copies[each.topic] for each in world.publications]
        self._delivered: list[tuple[float, int, int, int]] = []
        self._holders: Counter[int] = Counter()
        self._stores: Counter[int] = Counter()
        self._sprayed_s = np.full(len(world.publications), np.nan)
        self._counters: Counter[str] = Counter()

    def published(self, publication: Publication, copies: int, *, now: float) -> None:
        """Ignore a publication: the source's own copy is counted when it is stored."""

    def done(self, node: int, step: Step, *, now: float) -> None:
        """Record a step of a carrier."""
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
        """Count the copies of an answer that was lost when its contact ended."""
        del now
        self._counters["broken"] += answer.copies

    def outcome(self) -> CampusOutcome:
        """Return the recorded outcome."""
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
