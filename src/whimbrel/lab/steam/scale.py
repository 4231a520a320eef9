"""STEAM: scaling with entities at constant density and with the hour, and the nodes that change on a join (4.3)."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from whimbrel.lab.experiment import Experiment, Findings, Table
from whimbrel.lab.points import Row
from whimbrel.model.place import Point, distance_m
from whimbrel.nearby.group.relay import is_inside
from whimbrel.nearby.group.subscriptions import NearbySubscription
from whimbrel.nearby.node import Node
from whimbrel.sim.mobility.streets import StreetGrid
from whimbrel.sim.streets.city import FILTERS, City, make_city
from whimbrel.sim.streets.town import Town

__all__ = ["scale"]

_SIDES = (11, 16, 25, 35, 49)
"""Junctions per side of the city, for 1,000 to 20,000 entities."""
_VEHICLES = 6.7
"""Vehicles per junction at the usual hour."""
_HOURS = {"night": 0.1, "noon": 0.5, "usual": 1.0, "rush hour": 2.0}


def _city(side: int, *, share: float = 1.0, seconds: float = 4.0, is_parked: bool = False) -> City:
    vehicles = round(_VEHICLES * share * side * side)
    return City(grid=StreetGrid(blocks=side - 1), vehicles=vehicles, seconds=seconds, is_parked=is_parked, ambulances=1)


def _play(world: City, kind: str, name: str) -> Row:
    town, watcher = make_city(world)
    town.run(world.warmup_s)
    watcher.is_counting = True
    gc.collect()
    gc.freeze()  # otherwise Python's collector visits all residents repeatedly, and finds no garbage
    begun = time.process_time()
    town.run(world.seconds)
    core_s = time.process_time() - begun
    gc.unfreeze()
    sent, datagrams = (sum(each.values()) for each in (watcher.report.frames, watcher.report.datagrams))
    return {
        "kind": kind,
        "name": name,
        "entities": world.entities,
        "vehicles": world.vehicles,
        "sent": sent / world.entities / world.seconds,
        "datagrams": datagrams / world.entities / world.seconds,
        "core_us": core_s / world.entities / world.seconds * 1e6,
        "real_time": core_s / world.seconds,
        "changed": 0,
        "outside": 0,
        "furthest_m": 0.0,
        "core_s": core_s,
    }


def _state(node: Node) -> object:
    """Return the state of a node that a join may change: the views of its own groups, and of those it has joined."""
    own = [(subject, node.members(subject).digest) for subject in FILTERS if node.announces(subject)]
    return own, sorted((group, sorted(each.view)) for group, each in node.memberships().items())


def _join(side: int) -> Row:
    """Add one vehicle to a city of parked ones; count the nodes whose state differs three periods later."""
    begun = time.process_time()
    world = _city(side, is_parked=True)
    town, _ = make_city(world)
    town.run(6.0)
    before = [_state(each.node) for each in town.residents]
    middle = side // 2 * world.grid.block_m  # a junction
    newcomer = town.add("newcomer", Point(middle + 20, middle))
    for subject, text in FILTERS.items():
        newcomer.node.subscribe(NearbySubscription(subject=subject, filter_text=text))
    town.run(3.0)
    changed = [each for each, state in zip(town.residents, before, strict=False) if _state(each.node) != state]
    areas = [each.beacon.area for each in newcomer.node.memberships().values() if each.beacon is not None]
    return {
        "kind": "join",
        "name": str(side),
        "entities": world.entities,
        "vehicles": world.vehicles,
        "sent": 0.0,
        "datagrams": 0.0,
        "core_us": 0.0,
        "real_time": 0.0,
        "changed": len(changed),
        "outside": sum(not any(is_inside(area, each.node.motion.place) for area in areas) for each in changed),
        "furthest_m": max((_away_m(town, newcomer.index, each.index) for each in changed), default=0.0),
        "core_s": time.process_time() - begun,
    }


def _away_m(town: Town, one: int, other: int) -> float:
    here, there = (town.residents[each].node.motion.place for each in (one, other))
    assert here is not None
    assert there is not None
    return distance_m(here, there)


def scale(*, is_quick: bool = False) -> Experiment:
    """Return the experiment; a quick one has two small cities."""
    sides = (4, 6) if is_quick else _SIDES
    hours = {"night": 0.1, "usual": 1.0} if is_quick else _HOURS
    middle = 4 if is_quick else 11
    thousand, vehicles = (4, 100) if is_quick else (12, 1_000)

    def make() -> list[Row]:
        rows = [_play(_city(side), "size", f"{side} x {side}") for side in sides]
        rows += [_play(_city(middle, share=share), "hour", name) for name, share in hours.items()]
        rows.append(
            _play(replace(_city(thousand), vehicles=vehicles, seconds=8.0), "real time", f"{vehicles:,} vehicles")
        )
        return [*rows, *map(_join, sides[:3])]

    world = _city(middle)
    return Experiment(
        name="steam-scale",
        title="STEAM: messages and processor time for each entity, and the reach of a join",
        points=[],
        make=make,
        find=_find,
        plot=_plot,
        assumptions={
            "vehicles_per_junction": _VEHICLES,
            "block_m": world.grid.block_m,
            "radio_m": world.range_m,
            "hops": world.hops,
            "simulated_s": world.seconds,
            "garbage collector": "does not visit what was there before the measurement (gc.freeze)",
        },
    )


def _find(rows: Sequence[Row]) -> Findings:
    sizes, hours, timed, joins = (
        [row for row in rows if row["kind"] == kind] for kind in ("size", "hour", "real time", "join")
    )
    tables = [
        Table(
            title,
            (
                first,
                "entities",
                "messages/s for each",
                "datagrams/s for each",
                "µs of processor for each and s",
                "processor/real time",
            ),
            [
                (
                    row["name"],
                    f"{row['entities']:,}",
                    f"{row['sent']:.2f}",
                    f"{row['datagrams']:.1f}",
                    f"{row['core_us']:.0f}",
                    f"{row['real_time']:.2f}",
                )
                for row in found
            ],
        )
        for title, first, found in (
            ("One density", "junctions", sizes),
            ("Night to rush hour", "hour", hours),
            ("Faster than real time, on one core", "city", timed),
        )
    ]
    tables.append(
        Table(
            "One vehicle joins",
            ("junctions", "entities", "nodes that change", "outside the areas it came into", "the furthest, m"),
            [
                (
                    row["name"],
                    f"{row['entities']:,}",
                    str(row["changed"]),
                    str(row["outside"]),
                    f"{row['furthest_m']:.0f}",
                )
                for row in joins
            ],
        )
    )
    sent, cost = [row["sent"] for row in sizes], [row["core_us"] for row in sizes]
    claims = {
        "messages for each entity are within 5 % at any size": _spread(sent) <= 0.05,
        "processor time for each entity is within 30 %": _spread(cost) <= 0.30,
        f"{timed[0]['vehicles']:,} vehicles take less processor time than real time": timed[0]["real_time"] < 1,
        "a join changes state inside its areas only": all(row["changed"] and not row["outside"] for row in joins),
        "how many it changes does not grow with the city": joins[-1]["changed"] <= 2 * max(1, joins[0]["changed"]),
    }
    notes = [f"messages spread by {_spread(sent):.1%}, processor time by {_spread(cost):.1%} around their middle"]
    return Findings(tables=tables, claims=claims, notes=notes)


def _spread(values: Sequence[float]) -> float:
    """Return the distance of the extremes from their midpoint, as a share of the midpoint."""
    low, high = min(values), max(values)
    return (high - low) / (high + low) if high else 0.0


def _plot(rows: Sequence[Row], figure: Any) -> None:  # noqa: ANN401 # matplotlib's own
    left, right = figure.subplots(1, 2)
    sizes, hours = ([row for row in rows if row["kind"] == kind] for kind in ("size", "hour"))
    entities = [row["entities"] for row in sizes]
    left.plot(entities, [row["sent"] for row in sizes], marker="o", label="messages/s")
    left.plot(entities, [row["core_us"] / 100 for row in sizes], marker="s", label="100 µs of processor/s")
    left.set(xscale="log", ylim=(0, None), xlabel="entities, one density", ylabel="for each entity")
    left.legend()
    right.bar([row["name"] for row in hours], [row["sent"] for row in hours])
    right.set(ylabel="messages/s for each entity", title="night to rush hour")
