"""SUBLIM, Figure 7 (as the text names it): how long a doctor's battery lasts, stateless and stateful.

One doctor, one patient, and a constant link. The paper measured a handheld computer; ours is a model of one
(``sim/ward/energy``), and its assumed constants are varied. The result says where the saving is below the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from whimbrel.errors import MissingDependencyError
from whimbrel.lab.experiment import Experiment, Findings, Table
from whimbrel.lab.own_processes import OwnPoint
from whimbrel.lab.points import Row
from whimbrel.sim.ward.battery_day import make_life
from whimbrel.sim.ward.day_policies import DayPolicy
from whimbrel.sim.ward.electrocardiogram import HEIGHT_PX, WIDTH_PX
from whimbrel.sim.ward.energy import SOURCES, Energy

__all__ = ["battery"]

PAPER = 0.31
"""Longest extension of a device's life in the paper, as a share (6.3)."""
_RATES = (20, 40, 60, 80, 100, 120)
_HANDHELD = (240, 320)
_WHOLE = (WIDTH_PX, HEIGHT_PX)
_POLICIES = (DayPolicy.STATELESS, DayPolicy.STATEFUL)
_SWEPT_RATE = 60
_SWEPT: dict[str, dict[str, Any]] = {
    "as in the figure": {},
    "the display shows the whole picture": {"display": _WHOLE},
    "the card sleeps between beacons (0.05 W)": {"radio_w": 0.05},
    "the card sleeps, whole picture": {"radio_w": 0.05, "display": _WHOLE},
    "decoding takes a third": {"decode_cycles_per_pixel": 50.0},
    "decoding takes three times as long": {"decode_cycles_per_pixel": 450.0},
    "decoding and showing cost nothing": {"decode_cycles_per_pixel": 0.0, "show_cycles_per_pixel": 0.0},
    "receiving costs nothing": {"receive_j_per_byte": 0.0, "receive_j_per_packet": 0.0, "send_j_per_packet": 0.0},
    "half the capacity": {"capacity_wh": None},
}
"""Variations at one rate; a capacity of None means half the capacity."""


def battery(*, is_quick: bool = False) -> Experiment:
    """Return the experiment; a quick one has a fiftieth of the capacity, and few points."""
    if find_spec("PIL") is None:
        raise MissingDependencyError("electrocardiograms", "PIL", "run: pip install 'whimbrel[images]'")
    capacity_wh = Energy().capacity_wh / (50 if is_quick else 1)
    rates = (20, 120) if is_quick else _RATES
    swept = dict(list(_SWEPT.items())[:2]) if is_quick else _SWEPT
    swept_rate = rates[-1] if is_quick else _SWEPT_RATE  # a quick one already has a point there

    def point(policy: DayPolicy, rate: float, **changed: Any) -> OwnPoint:  # noqa: ANN401 # settings, as JSON has them
        settings: dict[str, Any] = {"display": _HANDHELD, "pictures": 4 if is_quick else 24} | changed
        if settings.setdefault("capacity_wh", capacity_wh) is None:
            settings["capacity_wh"] = capacity_wh / 2
        settings["display"] = list(settings["display"])
        return OwnPoint(
            make=f"{make_life.__module__}:{make_life.__name__}",
            settings={"policy": policy.value, "per_minute": float(rate), **settings},
        )

    points = [point(DayPolicy.BLIND, 0)]
    points += [point(policy, rate) for rate in rates for policy in _POLICIES]
    points += [point(policy, swept_rate, **changed) for changed in swept.values() for policy in _POLICIES]
    energy = Energy(capacity_wh=capacity_wh)

    def find(rows: Sequence[Row]) -> Findings:
        return _find(rows, rates=rates, swept=list(swept), energy=energy)

    return Experiment(
        name="icu-battery",
        title="SUBLIM, Figure 7: the life of a doctor's battery, stateless and stateful",
        points=[],
        own=points,
        find=find,
        plot=_plot,
        assumptions={
            "doctors": 1,
            "patients": 1,
            "picture": f"{WIDTH_PX} x {HEIGHT_PX}, 100 KB on average",
            "display": f"{_HANDHELD[0]} x {_HANDHELD[1]}",
            "reports": "every 30 s",
            "QoS": 0,
            "link": "constant, loses nothing",
            "swept at": f"{swept_rate} a minute",
        },
    )


def _find(rows: Sequence[Row], *, rates: Sequence[int], swept: Sequence[str], energy: Energy) -> Findings:
    alone, figure, sweep = rows[0], _pairs(rows[1 : 1 + 2 * len(rates)]), _pairs(rows[1 + 2 * len(rates) :])
    lives = [
        (
            f"{rate}",
            _hours(alone),
            _hours(stateless),
            _hours(stateful),
            f"{_gain(stateless, stateful):.0%}",
            f"{stateless['bytes'] / stateless['life_s'] / 1e3:,.1f}",
            f"{stateful['bytes'] / stateful['life_s'] / 1e3:,.1f}",
        )
        for rate, (stateless, stateful) in zip(rates, figure, strict=True)
    ]
    head = ("messages a minute", "none, h", "stateless, h", "stateful, h", "longer by", "KB/s stateless", "stateful")
    varied = [
        (
            name,
            _hours(stateless),
            _hours(stateful),
            f"{_gain(stateless, stateful):.0%}",
            _describe_gain(stateless, stateful),
        )
        for name, (stateless, stateful) in zip(swept, sweep, strict=True)
    ]
    used = [
        (f"{rate}, {row['policy']}", *(f"{row['used_j'][what] / sum(row['used_j'].values()):.1%}" for what in _USES))
        for rate, pair in zip(rates, figure, strict=True)
        for row in pair
    ]
    constants = [(name, f"{getattr(energy, name):g}", source) for name, source in SOURCES.items()]
    gains = [_gain(*pair) for pair in figure]
    return Findings(
        tables=[
            Table("Time to empty", head, lives),
            Table(
                "What is assumed, varied",
                ("what", "stateless, h", "stateful, h", "longer by", "the paper's 31 %"),
                varied,
            ),
            Table("Where the energy goes", ("messages a minute", *_USES), used),
            Table("The constants", ("constant", "value", "where it is from"), constants),
        ],
        claims={
            "the battery lasts longest where nothing is published": all(
                alone["life_s"] >= row["life_s"] for pair in figure for row in pair
            ),
            "the stateful policy lasts longer than the stateless one at every rate": all(gain > 0 for gain in gains),
            "the more is published, the more the stateful policy saves": gains == sorted(gains),
            f"up to {PAPER:.0%} longer is reached for the stated constants": max(gains) >= PAPER,
        },
        notes=[
            f"at most {max(gains):.0%} longer in the figure (the paper: up to {PAPER:.0%}), at least {min(gains):.0%}",
            _DISPLAY_NOTE,
        ],
    )


_DISPLAY_NOTE = (
    "the stateful policy fits pictures to the display at any charge; on a display as large as the picture it saves "
    "nothing until a quarter of the charge is gone"
)
_USES = ("idle", "radio", "pictures", "reports")


def _pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    return list(zip(rows[::2], rows[1::2], strict=True))


def _gain(stateless: Row, stateful: Row) -> float:
    return float(stateful["life_s"] / stateless["life_s"] - 1)


def _describe_gain(stateless: Row, stateful: Row) -> str:
    return "reached" if _gain(stateless, stateful) >= PAPER else "not reached"


def _hours(row: Row) -> str:
    return f"{row['life_s'] / 3_600:.2f}"


def _plot(rows: Sequence[Row], figure: Any) -> None:  # noqa: ANN401 # matplotlib's own
    axes = figure.subplots()
    alone = rows[0]["life_s"] / 3_600
    axes.axhline(alone, color="grey", linestyle="--", label="no messages")
    first: dict[str, dict[float, float]] = {"stateless": {}, "stateful": {}}
    for row in rows[1:]:
        first[row["policy"]].setdefault(row["per_minute"], row["life_s"] / 3_600)
    for policy, lives in first.items():
        rates = sorted(lives)
        axes.plot(rates, [lives[rate] for rate in rates], marker="o", label=policy)
    axes.set(xlabel="messages a minute", ylabel="time to empty, hours", ylim=(0, None))
    axes.legend()
