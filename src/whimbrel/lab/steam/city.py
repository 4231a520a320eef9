"""STEAM's scenarios in one city: signalled junctions, speed-limit signs, an ambulance, and vehicles (section 4).

The experiment counts events that are propagated, delivered, discarded and missed, and transmissions per event. It
compares STEAM with content filters at the producer, and with no proximity. All designs run the same cores over the same
radio, with vehicles as SUMO drove them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from whimbrel.lab.experiment import Experiment, Findings, Table
from whimbrel.lab.points import Row
from whimbrel.nearby.datagrams import MAX_DATAGRAMS
from whimbrel.sim.streets.city import City, Design, make_city
from whimbrel.sim.streets.filtering import FilteringTown

__all__ = ["city"]

_LOSSES = (0.0, 0.1, 0.3)
_BOUNDLESS_S = 10.0
"""Simulated seconds without proximity; few, because floods through the whole city take long to simulate."""


def _play(world: City) -> Row:
    begun = time.process_time()
    town, watcher = make_city(world)
    town.run(world.warmup_s)
    asked = _filters_asked(town.residents)
    verdicts = Counter(town.verdicts) if isinstance(town, FilteringTown) else Counter[str]()
    watcher.is_counting = watcher.is_weighing = True
    town.run(world.seconds)
    watcher.is_counting = False
    asked = _filters_asked(town.residents) - asked
    if isinstance(town, FilteringTown):
        verdicts = town.verdicts - verdicts
    town.run(1.0)  # only deliveries of events published before are still counted
    report, counts = watcher.report, watcher.report.counts
    return {
        "design": world.design.value,
        "loss": world.loss,
        "entities": world.entities,
        "published": counts["published"],
        "unheard": counts["unheard"],
        "propagated": counts["propagated"],
        "delivered": counts["delivered"],
        "discarded": counts["discarded"] + verdicts["not named"],
        "expired": counts["expired"],
        "missed": counts["missed"],
        "frames": dict(report.frames),
        "datagrams": dict(report.datagrams),
        "most_datagrams": report.most_datagrams,
        "bytes": dict(report.sizes),
        "joined": counts["joined"],
        "repaired": report.repaired,
        "caught_up": report.caught_up,
        "late": report.late,
        "latency_us": report.latency.percentile(99.9),
        "median_us": report.latency.percentile(50),
        "bound_us": report.bounds.percentile(50),
        "asked_at_producers": verdicts["asked"],
        "asked_at_consumers": asked,
        "wrong": verdicts["wrongly named"] + verdicts["wrongly left out"],
        "judged": verdicts["named"] + verdicts["not named"],
        "places": [(each.node.name.partition("-")[0], *town.radio.point(each.index)) for each in town.residents],
        "seconds": world.seconds,
        "core_s": time.process_time() - begun,
    }


def _filters_asked(residents: Sequence[Any]) -> int:
    return sum(each.node.counts["filters asked"] for each in residents)


def city(*, is_quick: bool = False) -> Experiment:
    """Return the experiment; a quick one has fewer vehicles and seconds."""
    world = City(vehicles=60, seconds=6.0, is_recorded=True) if is_quick else City(is_recorded=True)
    losses = (0.0, 0.3) if is_quick else _LOSSES
    boundless_s = 2.0 if is_quick else _BOUNDLESS_S
    cities = [
        *(replace(world, loss=loss) for loss in losses),
        replace(world, design=Design.PRODUCER_FILTERS),
        replace(world, design=Design.NO_PROXIMITY, seconds=boundless_s),
    ]
    return Experiment(
        name="steam-city",
        title="STEAM: a city of lights, signs, an ambulance and vehicles",
        points=[],
        make=lambda: [_play(each) for each in cities],
        find=_find,
        plot=_plot,
        assumptions={
            "vehicles": world.vehicles,
            "entities": world.entities,
            "block_m": world.grid.block_m,
            "areas off their producers by": f"{world.off_centre:.0%} of their radius",
            "radio_m": world.range_m,
            "hops": world.hops,
            "deadline_ms": world.deadline_us / 1e3,
            "simulated_s": world.seconds,
            "without proximity_s": boundless_s,
            "radio": "range and loss, no collisions",
            "trace": "SUMO's, our own network (sim/mobility/traffic.trace)",
        },
    )


def _find(rows: Sequence[Row]) -> Findings:
    steam = [row for row in rows if row["design"] == Design.STEAM.value]
    first = steam[0]
    filtering, boundless = (
        next(row for row in rows if row["design"] == design.value)
        for design in (Design.PRODUCER_FILTERS, Design.NO_PROXIMITY)
    )
    head = ("loss", "published", "unheard", "propagated", "delivered", "discarded", "expired", "missed")
    counted = [(f"{row['loss']:.0%}", *(f"{row[name]:,}" for name in head[1:])) for row in steam]
    beside = [first, filtering, boundless]
    tables = [
        Table("What became of the events", head, counted),
        Table(
            "For one event, without loss",
            (
                "",
                "transmissions",
                "datagrams",
                "receivers",
                "delivered",
                "filters at the producer",
                "at all consumers",
                "wrong verdicts",
            ),
            [
                (
                    row["design"],
                    f"{_each(row, row['frames'].get('event', 0)):.1f}",
                    f"{_each(row, row['datagrams'].get('event', 0)):.1f}",
                    f"{_each(row, row['propagated']):.1f}",
                    f"{_each(row, row['delivered']):.1f}",
                    f"{_each(row, row['asked_at_producers']):.1f}",
                    f"{_each(row, row['asked_at_consumers']):.1f}",
                    f"{row['wrong'] / row['judged']:.1%}" if row["judged"] else "0",
                )
                for row in beside
            ],
        ),
        Table(
            "The air, in bytes a second",
            ("", "events", "beacons", "joins", "requests", "all", "places of consumers/s"),
            [(row["design"], *_air(row)) for row in beside],
        ),
        Table(
            "Time, and the rest of the air",
            (
                "loss",
                "median ms",
                "99.9 % ms",
                "bound ms",
                "beyond it",
                "repaired",
                "caught up",
                "beacons/s",
                "joins/s",
                "datagrams/s",
                "most for a frame",
            ),
            [
                (
                    f"{row['loss']:.0%}",
                    f"{row['median_us'] / 1e3:.1f}",
                    f"{row['latency_us'] / 1e3:.1f}",
                    f"{row['bound_us'] / 1e3:.1f}",
                    f"{row['late']:,}",
                    f"{row['repaired']:,}",
                    f"{row['caught_up']:,}",
                    f"{row['frames']['beacon'] / row['seconds']:,.0f}",
                    f"{row['frames']['join'] / row['seconds']:,.0f}",
                    f"{sum(row['datagrams'].values()) / row['seconds']:,.0f}",
                    str(row["most_datagrams"]),
                )
                for row in steam
            ],
        ),
    ]
    on_air, flooded = (_each(row, row["frames"].get("event", 0)) for row in (first, boundless))
    claims = {
        "an event takes less than a tenth of the transmissions of a flood without proximity": on_air < flooded / 10,
        "a STEAM producer asks no filter, and each consumer only its own": not first["asked_at_producers"]
        and first["asked_at_consumers"] <= first["propagated"],
        "without loss nothing is missed by more than one in a hundred": first["missed"] + first["expired"]
        <= first["propagated"] / 100,
        f"no frame is more than {MAX_DATAGRAMS} datagrams": all(row["most_datagrams"] <= MAX_DATAGRAMS for row in rows),
        "the simulation is faster than real time": all(row["core_s"] < row["seconds"] for row in steam),
    }
    notes = [
        "all three were simulated; no proximity leaves out beacons and joins, and is a lower bound",
        "content filters at the producer need the place of a consumer in every join; it may have moved on since",
    ]
    return Findings(tables=tables, claims=claims, notes=notes)


def _each(row: Row, count: float) -> float:
    return count / max(1, int(row["published"]))


def _air(row: Row) -> tuple[str, ...]:
    kinds = ("event", "beacon", "join", "request")
    rates = [row["bytes"].get(kind, 0) / row["seconds"] for kind in kinds]
    places = row["frames"].get("join", 0) / row["seconds"] if row["asked_at_producers"] else 0
    return tuple(f"{rate:,.0f}" for rate in (*rates, sum(rates), places))


def _plot(rows: Sequence[Row], figure: Any) -> None:  # noqa: ANN401 # matplotlib's own
    from matplotlib.patches import Circle

    left, right = figure.subplots(1, 2, width_ratios=(3, 1))
    looks = {
        "light": ("s", "tab:red", 100.0),
        "sign": ("D", "tab:blue", 80.0),
        "ambulance": ("P", "tab:green", 150.0),
        "car": (".", "black", 0.0),
    }
    for kind, (marker, colour, radius_m) in looks.items():
        places = [(x, y) for name, x, y in rows[0]["places"] if name == kind]
        left.scatter(
            [x for x, _ in places], [y for _, y in places], marker=marker, color=colour, s=14, label=f"{kind}s"
        )
        for x, y in places if radius_m else ():
            off_m = 0.0 if kind == "ambulance" else City().off_centre * radius_m
            left.add_patch(Circle((x + off_m, y), radius_m, alpha=0.08, color=colour))
    left.set(xlabel="m", ylabel="m", aspect="equal", title="The city at the end, and where events are good")
    left.legend(loc="upper right", fontsize=7)
    beside = [rows[0], *(row for row in rows if row["design"] != Design.STEAM.value)]
    names = ["STEAM", "filters at\nproducer", "no\nproximity"]
    right.bar(names, [_each(row, row["frames"].get("event", 0)) for row in beside])
    right.set(yscale="log", title="transmissions\nfor one event")
    right.tick_params(labelsize=7)
