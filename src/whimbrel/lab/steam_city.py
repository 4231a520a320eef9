"""STEAM's scenarios in one city: signalled junctions, speed-limit signs, an ambulance, and vehicles (section 4).

What is propagated, delivered and discarded, how many transmissions an event takes, and what is missed; beside content
filters at the producer and beside no proximity, both computed from the same run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from whimbrel.lab.experiment import Experiment, Findings, Table
from whimbrel.lab.points import Row
from whimbrel.sim.mobility.streets import StreetGrid
from whimbrel.sim.streets.city import FILTERS, City, make_city

__all__ = ["city"]

_LOSSES = (0.0, 0.1, 0.3)


def _play(world: City) -> Row:
    begun = time.process_time()
    town, watcher = make_city(world)
    town.run(world.warmup_s)
    watcher.is_counting = True
    town.run(world.seconds)
    watcher.is_counting = False
    town.run(1.0)
    report, counts = watcher.report, watcher.report.counts
    places = [(each.node.name.partition("-")[0], *town.radio.point(each.index)) for each in town.residents]
    filter_bytes = sum(map(len, FILTERS.values())) / len(FILTERS)
    return {
        "loss": world.loss,
        "entities": world.entities,
        "published": counts["published"],
        "unheard": counts["unheard"],
        "propagated": counts["propagated"],
        "delivered": counts["delivered"],
        "discarded": counts["discarded"],
        "expired": counts["expired"],
        "missed": counts["missed"],
        "transmissions": sum(report.frames.values()),
        "event_frames": report.event_frames,
        "beacon_frames": report.frames["beacon"],
        "join_frames": report.frames["join"],
        "requests": report.frames["request"],
        "joined": counts["joined"],
        "repaired": report.repaired,
        "caught_up": report.caught_up,
        "late": report.late,
        "latency_us": report.latency.percentile(99.9),
        "median_us": report.latency.percentile(50),
        "bound_us": report.bounds.percentile(50),
        "filter_bytes": round(counts["joined"] * filter_bytes),
        "places": places if not world.loss else [],
        "seconds": world.seconds,
        "core_s": time.process_time() - begun,
    }


def city(*, is_quick: bool = False) -> Experiment:
    """Return the experiment; a quick one is a village."""
    world = City(grid=StreetGrid(blocks=3), vehicles=40, seconds=8.0) if is_quick else City()
    losses = (0.0, 0.3) if is_quick else _LOSSES
    return Experiment(
        name="steam-city",
        title="STEAM: a city of lights, signs, an ambulance and vehicles",
        points=[],
        make=lambda: [_play(replace(world, loss=loss)) for loss in losses],
        find=_find,
        plot=_plot,
        assumptions={
            "vehicles": world.vehicles,
            "entities": world.entities,
            "block_m": world.grid.block_m,
            "radio_m": world.range_m,
            "hops": world.hops,
            "deadline_ms": world.deadline_us / 1e3,
            "simulated_s": world.seconds,
            "radio": "range and loss, no collisions",
            "trace": "our own, constant speeds on a grid of streets",
        },
    )


def _find(rows: Sequence[Row]) -> Findings:
    head = ("loss", "published", "unheard", "propagated", "delivered", "discarded", "expired", "missed")
    counted = [(f"{row['loss']:.0%}", *(f"{row[name]:,}" for name in head[1:])) for row in rows]
    first = rows[0]
    on_air = first["event_frames"] / max(1, first["published"] - first["unheard"])
    members = first["propagated"] / max(1, first["published"])
    beside = [
        ("STEAM", f"{on_air:.1f}", f"{members:.1f}", "0", "1", "0"),
        (
            "content filters at the producer",
            f"{on_air:.1f}",
            f"{first['delivered'] / max(1, first['published']):.1f}",
            f"{members:.1f}",
            "0",
            f"{first['filter_bytes'] / first['seconds']:,.0f}",
        ),
        ("no proximity", f"{first['entities']:,}", f"{first['entities']:,}", "0", "1", "0"),
    ]
    tables = [
        Table("What became of the events", head, counted),
        Table(
            "For one event",
            (
                "",
                "transmissions",
                "receivers",
                "filters at the producer",
                "at each consumer",
                "bytes/s of filters sent",
            ),
            beside,
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
                    f"{row['beacon_frames'] / row['seconds']:,.0f}",
                    f"{row['join_frames'] / row['seconds']:,.0f}",
                )
                for row in rows
            ],
        ),
    ]
    claims = {
        "an event takes less than a tenth of the transmissions of a flood without proximity": on_air
        < first["entities"] / 10,
        "without loss nothing is missed by more than one in a hundred": first["missed"] + first["expired"]
        <= first["propagated"] / 100,
        "the simulation is faster than real time": all(row["core_s"] < row["seconds"] for row in rows),
    }
    return Findings(
        tables=tables, claims=claims, notes=["no proximity is computed: a flood in which every node repeats"]
    )


def _plot(rows: Sequence[Row], figure: Any) -> None:  # noqa: ANN401 # matplotlib's own
    from matplotlib.patches import Circle

    axes = figure.subplots()
    looks = {
        "light": ("s", "tab:red", 100.0),
        "sign": ("D", "tab:blue", 80.0),
        "ambulance": ("P", "tab:green", 150.0),
        "car": (".", "black", 0.0),
    }
    for kind, (marker, colour, radius_m) in looks.items():
        places = [(x, y) for name, x, y in rows[0]["places"] if name == kind]
        axes.scatter(
            [x for x, _ in places], [y for _, y in places], marker=marker, color=colour, s=14, label=f"{kind}s"
        )
        for place in places if radius_m else ():
            axes.add_patch(Circle(place, radius_m, alpha=0.08, color=colour))
    axes.set(xlabel="m", ylabel="m", aspect="equal", title="The city at the end, and where events are good")
    axes.legend(loc="upper right", fontsize=7)
