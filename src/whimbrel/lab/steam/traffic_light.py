"""STEAM, Figures 1 and 2: a car drives through the area of a traffic light, and then into that of the next one.

The paper's table is an example, not a measurement. The experiment must reproduce it cell for cell, with the real cores.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random
from typing import Any

from whimbrel.lab.experiment import Experiment, Findings, Table
from whimbrel.lab.points import Row
from whimbrel.model.place import Area, Point
from whimbrel.nearby.frames.values import Frame
from whimbrel.nearby.group.outputs import Deliver, Note, NoteKind
from whimbrel.nearby.group.subscriptions import NearbySubscription
from whimbrel.sim.streets.city import WORDS
from whimbrel.sim.streets.radio import BroadcastRadio
from whimbrel.sim.streets.town import Resident, Town

__all__ = ["PAPER", "traffic_light"]

_RADIUS_M = 150.0
_AHEAD_M = 60.0
"""Distance from a light to the centre of its area: a car just past the light still approaches the centre."""
_NEXT_M = 600.0
_STAGES = {"s1": -300.0, "s2": -80.0, "s3": 80.0, "s4": 340.0, "next light": _NEXT_M - 80}
"""Position of the car, in metres east of the light."""
PAPER = {
    "s1": ("match", "no match", "", "no", "no"),
    "s2": ("match", "match", "match", "yes", "yes"),
    "s3": ("match", "match", "no match", "yes", "no"),
    "s4": ("match", "no match", "", "no", "no"),
    "next light": ("match", "match", "match", "yes", "yes"),
}
"""Figure 2 and the sentence after it: the next light needs no new subscription."""


class _Watcher:
    """Records the notes of the car's node, and counts deliveries."""

    def __init__(self) -> None:
        self.kinds: list[NoteKind] = []
        self.delivered_now = 0

    def on_transmission(self, who: Resident, frame: Frame, *, datagrams: int, heard_by: int, now: int) -> None:
        """Ignore a transmission."""

    def on_note(self, who: Resident, note: Note, *, now: int) -> None:
        """Record a note of the car's node."""
        del now
        if who.node.name == "car":
            self.kinds.append(note.kind)

    def on_delivery(self, who: Resident, what: Deliver, *, now: int) -> None:
        """Count a delivery."""
        del who, what, now
        self.delivered_now += 1


def _drive() -> list[Row]:
    begun = time.process_time()
    watcher = _Watcher()
    radio = BroadcastRadio(range_m=400, random=Random(1))  # noqa: S311 # a made-up radio
    town = Town(radio=radio, vocabulary=WORDS, watcher=watcher, through_bytes=True)
    lights = {"light": town.add("light", Point(0, 0)), "next": town.add("next", Point(_NEXT_M, 0))}
    car = town.add("car", Point(-320, 0))
    car.node.subscribe(NearbySubscription(subject="traffic light", filter_text="approaching == 1"))
    areas: dict[str, Area] = {}
    for name, x_m in (("light", 0.0), ("next", _NEXT_M)):
        light = lights[name]
        areas[name] = Area(town.plane.place(Point(x_m + _AHEAD_M, 0)), _RADIUS_M)
        _, outputs = light.node.announce(
            "traffic light", radius_m=_RADIUS_M, centre=areas[name].centre, deadline_us=500_000, now=town.now
        )
        town.perform(light, outputs)
    rows = []
    for stage, x_m in _STAGES.items():
        for step in (-20.0, -10.0, 0.0):
            town.move(car, Point(x_m + step, 0))
            town.run(1)
        name = "next" if stage == "next light" else "light"
        light = lights[name]
        watcher.kinds.clear()
        watcher.delivered_now = 0
        _, outputs = light.node.publish("traffic light", {"status": "red"}, now=town.now)
        town.perform(light, outputs)
        town.run(0.4)
        assert car.node.motion.place is not None
        is_inside = areas[name].contains(car.node.motion.place)
        is_propagated = NoteKind.PROPAGATED in watcher.kinds
        content = "" if not is_propagated else "no match" if NoteKind.DISCARDED in watcher.kinds else "match"
        rows.append(
            {
                "stage": stage,
                "x_m": x_m,
                "subject": "match" if car.node.subscribes("traffic light") else "no match",
                "proximity": "match" if is_inside else "no match",
                "content": content,
                "propagated": "yes" if is_propagated else "no",
                "delivered": "yes" if watcher.delivered_now else "no",
                "core_s": 0.0,
            }
        )
    rows[0]["core_s"] = time.process_time() - begun
    return rows


def traffic_light(*, is_quick: bool = False) -> Experiment:
    """Return the experiment; it is always quick."""
    del is_quick
    return Experiment(
        name="steam-traffic-light",
        title="STEAM, Figures 1 and 2: the traffic light towards which I am driving",
        points=[],
        make=_drive,
        find=_find,
        plot=_plot,
        assumptions={
            "radius_m": _RADIUS_M,
            "centre_beyond_the_light_m": _AHEAD_M,
            "filter": "approaching == 1",
            "beacons_s": 1,
            "lights_apart_m": _NEXT_M,
        },
    )


_COLUMNS = ("subject", "proximity", "content", "propagated", "delivered")


def _find(rows: Sequence[Row]) -> Findings:
    cells = {row["stage"]: tuple(row[column] for column in _COLUMNS) for row in rows}
    table = Table("Matching of events against filters", ("stage", *_COLUMNS), [(each, *cells[each]) for each in cells])
    stages = [stage for stage in cells if stage != "next light"]
    claims = {
        "the table is the paper's, cell for cell": all(cells[stage] == PAPER[stage] for stage in stages),
        "events of the next light are delivered with no new subscription": cells["next light"] == PAPER["next light"],
    }
    return Findings(tables=[table], claims=claims)


def _plot(rows: Sequence[Row], figure: Any) -> None:  # noqa: ANN401 # matplotlib's own
    from matplotlib.patches import Circle

    axes = figure.subplots()
    axes.axhline(0, color="grey", linewidth=8, alpha=0.3)
    for x_m, name in ((0.0, "light"), (_NEXT_M, "next light")):
        axes.add_patch(Circle((x_m + _AHEAD_M, 0), _RADIUS_M, alpha=0.15, color="tab:blue"))
        axes.plot([x_m], [0], marker="s", color="tab:red")
        axes.annotate(name, (x_m, 14), ha="center")
    for row in rows:
        colour = "tab:green" if row["delivered"] == "yes" else "tab:orange" if row["propagated"] == "yes" else "grey"
        axes.plot([row["x_m"]], [0], marker=">", markersize=10, color=colour)
        axes.annotate(row["stage"], (row["x_m"], -24), ha="center")
    axes.set(xlim=(-360, 840), ylim=(-220, 220), xlabel="metres east of the light", aspect="equal")
    axes.set_title("green: delivered; orange: propagated and discarded; grey: not propagated")
