"""Sources of contacts: a random waypoint world, recorded walks, or a contact trace.

Rule: kernels are compiled or loaded before a measurement starts, so that only the simulation is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import real
from whimbrel.sim.contacts.table import Contacts
from whimbrel.sim.mobility.recorded import read_walks
from whimbrel.sim.mobility.walks import Walks
from whimbrel.sim.mobility.waypoint import RandomWaypoint

__all__ = ["MAX_EVENTS", "RecordedWorld", "WalkedWorld", "make_contacts", "make_ready"]

MAX_EVENTS = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedWorld:
    """A random waypoint world with radios; the defaults are the paper's (Campus++, section 3.3)."""

    waypoint: RandomWaypoint = field(default_factory=RandomWaypoint)
    range_m: float = 50.0
    seconds: float = 500_000.0
    seed: int = 1

    def __post_init__(self) -> None:
        self.waypoint.check_range(self.range_m)
        legs = self.waypoint.nodes * self.seconds * self.waypoint.speed_m_s / self.waypoint.area_m
        pairs = self.waypoint.nodes**2 / 2
        contacts = pairs * 4 * self.range_m * self.waypoint.speed_m_s / self.waypoint.area_m**2 * self.seconds
        if max(legs, contacts) > MAX_EVENTS:
            allowed = f"about {MAX_EVENTS:,}, which fit into memory: simulate fewer nodes or seconds"
            raise InvalidValueError("contacts or legs to be expected", round(max(legs, contacts)), allowed)

    def walks(self) -> Walks:
        """Generate the walks of the nodes."""
        return self.waypoint.walks(self.seconds, seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedWorld:
    """Recorded walks, in JSON lines of ``reports``, of nodes with radios."""

    path: Path
    range_m: float = 50.0

    def __post_init__(self) -> None:
        real("range_m", self.range_m, 1e-3, 1e7)

    def walks(self) -> Walks:
        """Read the walks of the devices."""
        return read_walks(self.path)


def make_contacts(source: WalkedWorld | RecordedWorld | Path) -> tuple[Contacts, Walks | None]:
    """Return the contacts and walks of a world; a trace has contacts only, so its walks are None."""
    if isinstance(source, Path):
        from whimbrel.sim.contacts.traces import read_trace

        return read_trace(source).contacts, None
    from whimbrel.sim.kernels.crossings import fast_contacts_of  # numba takes a second to load

    walks = source.walks()
    return fast_contacts_of(walks, range_m=source.range_m), walks


def make_ready() -> None:
    """Compile the kernels, or load the cached ones."""
    from whimbrel.sim.campus.fast import simulate
    from whimbrel.sim.campus.scenario import Campus
    from whimbrel.sim.kernels.crossings import fast_contacts_of
    from whimbrel.sim.unicast.fast import fast_route
    from whimbrel.sim.unicast.scenario import Unicast

    walks = RandomWaypoint(nodes=3, area_m=60).walks(100, seed=1)
    fast_contacts_of(walks, range_m=20, is_grid=True)
    contacts = fast_contacts_of(walks, range_m=20, is_grid=False)
    campus, unicast = Campus(topics=1, subscribers=1, interval_s=20), Unicast(copies=2)
    simulate(contacts, campus, campus.world(nodes=3, seconds=100, seed=1))
    fast_route(contacts, unicast, unicast.parcels(nodes=3, seconds=100, seed=1))
