"""Usage of a radio: how long it was in each state, and what it sent; the energy of a device is computed from it.

Rule: a radio may be in several states at once: it listens for inquiries while its connection is parked. The time of
each state is counted separately, from its start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

__all__ = ["RadioState", "Usage"]


class RadioState(Enum):
    """States in which a radio draws more than its idle power."""

    INQUIRY = "inquiry"
    PAGE = "page"
    INQUIRY_SCAN = "inquiry scan"
    PAGE_SCAN = "page scan"
    MASTER = "active master"
    SLAVE = "active slave"
    PARKED = "parked"


@dataclass(slots=True)
class Usage:
    """Times in states and counts of packets of one radio, up to *since*."""

    since: int
    states: frozenset[RadioState] = frozenset()
    times_us: dict[RadioState, int] = field(default_factory=dict)
    answers: int = 0
    """Number of inquiries that the radio answered with its FHS packet."""
    sent_bytes: int = 0
    received_bytes: int = 0
    sent_packets: int = 0
    received_packets: int = 0

    def change(self, now: int, **are_on: bool) -> None:
        """Begin or end states from *now* on, each named as in ``RadioState``."""
        self.advance(now)
        changed = {RadioState[name.upper()]: is_on for name, is_on in are_on.items()}
        kept = {state for state in self.states if changed.get(state, True)}
        self.states = frozenset(kept | {state for state, is_on in changed.items() if is_on})

    def advance(self, now: int) -> None:
        """Add the time up to *now* to the states that are on."""
        passed, self.since = max(0, now - self.since), max(now, self.since)
        if passed:
            for state in self.states:
                self.times_us[state] = self.times_us.get(state, 0) + passed

    def seconds(self, state: RadioState) -> float:
        """Return for how many seconds the radio was in *state*."""
        return self.times_us.get(state, 0) / 1_000_000

    def figures(self) -> dict[str, float]:
        """Return seconds by state, and counts by name, as ``rendezvous.energy`` takes them."""
        counts = ("answers", "sent_packets", "received_packets", "sent_bytes", "received_bytes")
        return {state.value: self.seconds(state) for state in RadioState} | {
            name: float(getattr(self, name)) for name in counts
        }
