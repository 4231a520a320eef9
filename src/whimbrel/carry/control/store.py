"""Control data at a node: the segments in force and the key statements, beside the places for samples.

Rule: control data takes no place of a sample. Hellos list it, and neighbours request it, like samples.
"""

from __future__ import annotations

from collections.abc import Iterable

from whimbrel.carry.control.keys import KEY_PUBLISHER, KeyRing
from whimbrel.carry.control.segments import BUILT_IN_TOPIC, ControlData, ControlReceiver
from whimbrel.carry.hello import Entry, Sample, SampleId

__all__ = ["ControlStore"]


class ControlStore:
    """The control data and the keys of a node."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.ring = KeyRing(keys)
        self._receiver = ControlReceiver(self.ring)

    @property
    def in_force(self) -> ControlData | None:
        """The control data in force, or None."""
        return self._receiver.in_force

    @property
    def ignored(self) -> dict[str, int]:
        """Number of segments, statements and announcements that were ignored, by reason."""
        return dict(sorted(self._receiver.counts.items()))

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Key statements, then segments: a restarted node knows a key before it reads what that key signed."""
        return (*self.ring.statements, *self._receiver.samples)

    def is_valid(self, *, now: int) -> bool:
        """Return whether control data is in force and its key still counts."""
        return self.in_force is not None and self._receiver.is_valid(now=now)

    def entries(self, *, now: int) -> list[Entry]:
        """Return entries for a Hello: key statements, and the control data if its key still counts."""
        samples = self.samples if self.is_valid(now=now) else self.ring.statements
        return [Entry(BUILT_IN_TOPIC, each.id, has_copies=False) for each in samples]

    def find(self, sample_id: SampleId) -> Sample | None:
        """Return the stored sample of the built-in topic with this id, or None."""
        return next((each for each in self.samples if each.id == sample_id), None)

    def wants(self, sample_id: SampleId, *, now: int) -> bool:
        """Return whether the sample of the built-in topic with this id would be kept."""
        if sample_id.publisher == KEY_PUBLISHER:
            return self.ring.wants(sample_id)
        return self._receiver.wants(sample_id, now=now)

    def hear(self, sample_id: SampleId) -> None:
        """Count the announcement of control data that is older than the version in force."""
        if sample_id.publisher != KEY_PUBLISHER:
            self._receiver.hear(sample_id)

    def receive(self, sample: Sample, *, now: int) -> ControlData | None:
        """Store a sample of the built-in topic; return the control data that it brings into force, or None."""
        if sample.publisher == KEY_PUBLISHER:
            if not self.ring.receive(sample):
                self._receiver.counts["forged"] += 1
            return None
        return self._receiver.receive(sample, now=now)
