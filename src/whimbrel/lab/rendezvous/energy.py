"""Energy of discovery: two devices, a room of phones, and a target that never arrives (Huang, 5.1).

The thesis argues without numbers: a controller costs more if both devices are present, and less if they arrive one
after the other. Here each case is simulated, and the use of the radios is multiplied by powers from named sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from whimbrel.lab.experiment import Experiment, Findings
from whimbrel.lab.own_processes import OwnPoint
from whimbrel.lab.rendezvous.energy_findings import EVERY_S, GAPS_S, PHONES, Plan, find
from whimbrel.lab.rendezvous.energy_plot import plot
from whimbrel.lab.rendezvous.points import make_point
from whimbrel.lab.spark_sweep import Row
from whimbrel.rendezvous.energy import INPUTS
from whimbrel.sim.rendezvous import caches, pairs, rooms
from whimbrel.sim.rendezvous.pairs import First, System

__all__ = ["energy"]

_HOUR_S = 3_600.0
_SEEDS, _ROOM_SEEDS = 12, 4
_QUICK = Plan(gaps_s=(0, 60, 600), phones=(2, 6), every_s=(30.0,))


def energy(*, is_quick: bool = False) -> Experiment:
    """Return the experiment; a quick one has three gaps, two rooms, and few seeds."""
    plan = _QUICK if is_quick else Plan(gaps_s=GAPS_S, phones=PHONES, every_s=EVERY_S)
    seeds, room_seeds = (3, 2) if is_quick else (_SEEDS, _ROOM_SEEDS)
    waits_s = 600.0 if is_quick else _HOUR_S
    points = [
        *(each for seed in range(seeds) for gap_s in plan.gaps_s for each in _pairs(plan, gap_s, seed)),
        *(each for seed in range(room_seeds) for phones in plan.phones for each in _rooms(plan, phones, seed)),
        *(each for seed in range(room_seeds) for each in _waiting(plan, waits_s, seed)),
        *(_caches(seed, removed, members) for seed in range(room_seeds) for removed in _BOTH for members in _BOTH),
    ]

    def find_all(rows: Sequence[Row]) -> Findings:
        return find(rows, plan)

    return Experiment(
        name="rendezvous-energy",
        title="Huang, 5.1: the energy of discovery, plain and through a controller",
        points=[],
        own=points,
        is_swept=True,
        find=find_all,
        plot=partial(plot, plan=plan),
        assumptions={
            "seeds of a pair": seeds,
            "seeds of a room": room_seeds,
            "a phone of a room": "is available for 10 minutes; all come within 5; every other one seeks its partner",
            "a target that never comes": f"is sought for {waits_s:,.0f} s",
            **{name: f"{each.value:g} {each.unit} ({each.source})" for name, each in INPUTS.items()},
        },
    )


_BOTH = (True, False)


def _pairs(plan: Plan, gap_s: float, seed: int) -> list[OwnPoint]:
    found = []
    for is_whole in _BOTH:
        for first in First:
            case = {"first": first.value, "gap_s": float(gap_s), "seed": seed, "is_whole": is_whole}
            # A seeker that arrives second finds the other device with its first inquiry, so its interval does not
            # matter.
            every = plan.every_s if first is First.SEEKER else (plan.middle_s,)
            found += [make_point(pairs.play_pair, system=System.PLAIN.value, every_s=each, **case) for each in every]
            found += [make_point(pairs.play_pair, system=each.value, **case) for each in System if each != System.PLAIN]
    return found


def _rooms(plan: Plan, phones: int, seed: int) -> list[OwnPoint]:
    found = []
    for is_whole in _BOTH:
        case = {"phones": phones, "seed": seed, "is_whole": is_whole}
        found += [make_point(rooms.play_room, system=System.PLAIN.value, every_s=each, **case) for each in plan.every_s]
        found += [make_point(rooms.play_room, system=each.value, **case) for each in System if each != System.PLAIN]
    return found


def _waiting(plan: Plan, seconds: float, seed: int) -> list[OwnPoint]:
    case = {"seconds": seconds, "seed": seed}
    found = [make_point(pairs.play_waiting, system=System.PLAIN.value, every_s=each, **case) for each in plan.every_s]
    for system in (System.PARK, System.RELEASE):
        found += [make_point(pairs.play_waiting, system=system.value, is_whole=is_whole, **case) for is_whole in _BOTH]
    return found


def _caches(seed: int, has_removed: bool, has_members: bool) -> OwnPoint:  # noqa: FBT001 # both by position, once
    return make_point(caches.play_caches, has_removed=has_removed, has_members=has_members, seed=seed)
