"""SUBLIM, Figure 6 (as the text names it): readings that a doctor receives, and receives in time, over a varying link.

Real sockets, a real broker and a link with real delays, in real time: a relay that paces and buffers or, if this
process may use it, ``tc`` between two network namespaces. *In time* means before the patient's next reading. Besides
the two policies of the paper, one of ours is measured: the stateful policy with a memory of the link.
``NetworkConnection`` covers one interval between two reports, so the paper's policy forgets a bad link as soon as
smaller pictures have emptied it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from whimbrel.errors import InvalidValueError, MissingDependencyError
from whimbrel.lab.experiment import Experiment, Findings, Table
from whimbrel.lab.own_processes import OwnPoint
from whimbrel.lab.points import Row
from whimbrel.sim.ward.day_policies import DayPolicy
from whimbrel.sim.ward.link_day import LinkDay, make_link_day
from whimbrel.sim.ward.slow_links import QUEUE_BYTES, why_not_shaped

__all__ = ["LINK_CHOICES", "bandwidth"]

LINK_CHOICES = ("relay", "tc", "both")
_RATES = (20, 40, 60, 80, 100, 120)
_COMPARED = (60, 120)
"""Rates at which both kinds of link are measured."""
_PERIODS_S = (5.0, 15.0, 30.0, 60.0)
_POLICIES = (DayPolicy.STATELESS, DayPolicy.STATEFUL, DayPolicy.REMEMBERING)
_KERNELS_OWN = {"send_buffer_bytes": 262_144, "kernel_unsent_bytes": 0}
"""Settings from before the broker could limit the unsent bytes in the kernel."""
_READING_BITS = 8 * 100_000
_LEAST_GAIN = 0.15
_COMPRESSED_BYTES = 90_000
"""Readings smaller than this were compressed."""


def bandwidth(*, is_quick: bool = False, link: str = "both") -> Experiment:
    """Return the experiment; a quick one has three points of a few seconds, over the relay."""
    if find_spec("PIL") is None:
        raise MissingDependencyError("electrocardiograms", "PIL", "run: pip install 'whimbrel[images]'")
    if link not in LINK_CHOICES:
        raise InvalidValueError("--link", link, ", ".join(LINK_CHOICES))
    missing = None if link == "relay" or (is_quick and link != "tc") else why_not_shaped()
    if link == "tc" and missing is not None:
        raise InvalidValueError("--link", f"tc: {missing}", "relay")
    base: dict[str, Any] = {"seconds": 300.0, "redrawn_s": 5.0, "report_s": 30.0, "pictures": 24}
    rates: Sequence[int] = _RATES
    if is_quick:
        rates, base = (120,), {"seconds": 9.0, "redrawn_s": 1.0, "report_s": 1.5, "pictures": 3}
    first = "tc" if link == "tc" else "relay"

    def point(policy: DayPolicy, rate: int, **changed: Any) -> OwnPoint:  # noqa: ANN401 # settings, as JSON has them
        settings = {"policy": policy.value, "per_minute": float(rate), "link": first, **base, **changed}
        return OwnPoint(make=f"{make_link_day.__module__}:{make_link_day.__name__}", settings=settings)

    points = [point(policy, rate) for rate in rates for policy in _POLICIES]
    if not is_quick:
        points += [point(policy, rates[-1], redrawn_s=each) for each in _PERIODS_S[1:] for policy in _POLICIES]
        if link == "both" and missing is None:
            points += [point(policy, rate, link="tc") for rate in _COMPARED for policy in _POLICIES]
        points += [point(policy, rates[-1], **_KERNELS_OWN) for policy in _POLICIES]
    day = LinkDay()
    return Experiment(
        name="icu-bandwidth",
        title="SUBLIM, Figure 6: what a doctor receives in time over a link that changes",
        points=[],
        own=points,
        at_once=4 * (os.cpu_count() or 1),
        find=_find,
        plot=_plot,
        assumptions={
            "link": f"drawn between 300 kb/s and 3 Mb/s, by default every {base['redrawn_s']:g} s",
            "seconds": base["seconds"],
            "reports": f"every {base['report_s']:g} s",
            "QoS": 0,
            "before the link": f"{QUEUE_BYTES:,} bytes in the link, {day.kernel_unsent_bytes:,} unsent in the kernel, "
            f"{day.send_buffer_bytes:,} in the broker",
            "display": "as large as the picture",
            "battery": "full",
        }
        | ({} if missing is None else {"left out": missing}),
    )


class _Place(NamedTuple):
    """One point of a figure: the same link and rate under each policy."""

    stateless: Row
    stateful: Row
    remembering: Row


def _find(rows: Sequence[Row]) -> Findings:
    places = [_Place(*rows[at : at + len(_POLICIES)]) for at in range(0, len(rows), len(_POLICIES))]
    first = rows[0]
    usual = [each for each in places if each.stateless["kernel_unsent_bytes"] == first["kernel_unsent_bytes"]]
    figure = [each for each in usual if _link_of(each) == _link_of(places[0])]
    swept = [each for each in usual if each.stateless["link"] == first["link"] and each not in figure]
    other = [each for each in usual if each.stateless["link"] != first["link"]]
    unbounded = [each for each in places if each not in usual]
    last = figure[-1]
    enough = [each for each in figure if each.stateless["per_minute"] >= 60]
    top = f"{last.stateless['per_minute']:g} a minute"
    claims = {
        "P_ICU's share in time exceeds the stateless one at every rate from 60 on": all(
            _gain(each, each.stateful) > 0 for each in enough
        ),
        "with a memory of the link it does so at every rate from 60 on": all(
            _gain(each, each.remembering) > 0 for each in enough
        ),
        f"P_ICU by {_LEAST_GAIN:.0%} of what is published at {top}": _gain(last, last.stateful) >= _LEAST_GAIN,
        f"with a memory of the link by {_LEAST_GAIN:.0%} at {top}": _gain(last, last.remembering) >= _LEAST_GAIN,
        "NetworkConnection falls, and compression follows": all(
            _is_followed(each) for each in (last.stateful, last.remembering)
        ),
    }
    if other:
        claims["the same direction over tc and over the relay"] = all(
            _gain(each, each.remembering) > 0 for each in other
        )
    tables = [Table(f"Received, and received in time, over the {first['link']}", _HEAD, _shares(figure))]
    if swept:
        tables.append(Table(f"The link drawn anew at {top}", _HEAD, _shares([last, *swept])))
    if other:
        tables.append(Table(f"Over {other[0].stateless['link']}", _HEAD, _shares(other)))
    if unbounded:
        tables.append(Table("Where the kernel keeps as much as it likes", _HEAD, _shares(unbounded)))
    for name, row in (("P_ICU", last.stateful), ("P_ICU with a memory of the link", last.remembering)):
        tables.append(Table(f"{name} over time, {top}", _OVER_TIME, _series(row)))
    return Findings(tables=tables, claims=claims)


_OVER_TIME = ("until, s", "NetworkConnection reported then", "mean bytes of a reading", "received")


def _link_of(place: _Place) -> tuple[str, float]:
    return place.stateless["link"], place.stateless["redrawn_s"]


def _series(row: Row) -> list[tuple[str, ...]]:
    return [
        (
            f"{each['at_s']:g}",
            _connection(each["network_connection"]),
            f"{each['mean_bytes']:,.0f}",
            f"{each['received']}",
        )
        for each in row["series"]
    ]


_HEAD = (
    "messages a minute, link drawn every",
    "the link's ceiling",
    "received stateless",
    "P_ICU",
    "remembering",
    "in time stateless",
    "P_ICU",
    "remembering",
    "gain of P_ICU in points",
    "of remembering",
)


def _shares(places: Sequence[_Place]) -> list[tuple[str, ...]]:
    return [
        (
            f"{place.stateless['per_minute']:g}, {place.stateless['redrawn_s']:g} s",
            f"{min(1.0, place.stateless['mean_rate'] / (place.stateless['per_minute'] / 60 * _READING_BITS)):.0%}",
            *(f"{_share(row, what):.0%}" for what in ("received", "in_time") for row in place),
            f"{100 * _gain(place, place.stateful):+.0f}",
            f"{100 * _gain(place, place.remembering):+.0f}",
        )
        for place in places
    ]


def _share(row: Row, what: str) -> float:
    return float(row[what] / row["published"])


def _gain(place: _Place, row: Row) -> float:
    return _share(row, "in_time") - _share(place.stateless, "in_time")


def _connection(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2f}"


def _is_followed(row: Row) -> bool:
    """Return whether a low NetworkConnection was reported and smaller readings followed."""
    series = row["series"]
    return any(
        before["network_connection"] is not None
        and before["network_connection"] < 0.9
        and any(0 < each["mean_bytes"] < _COMPRESSED_BYTES for each in series[number + 1 :])
        for number, before in enumerate(series)
    )


def _plot(rows: Sequence[Row], figure: Any) -> None:  # noqa: ANN401 # matplotlib's own
    axes = figure.subplots()
    link, period_s = rows[0]["link"], rows[0]["redrawn_s"]
    unsent = rows[0]["kernel_unsent_bytes"]
    own = [
        row for row in rows if (row["link"], row["redrawn_s"], row["kernel_unsent_bytes"]) == (link, period_s, unsent)
    ]
    for what, style in (("in_time", "-"), ("received", ":")):
        for policy, colour in (("stateless", "tab:orange"), ("stateful", "tab:blue"), ("remembering", "tab:green")):
            found = [row for row in own if row["policy"] == policy]
            shares = [100 * _share(row, what) for row in found]
            label = f"{policy}, {what.replace('_', ' ')}"
            axes.plot([row["per_minute"] for row in found], shares, style, color=colour, marker="o", label=label)
    axes.set(xlabel="messages a minute", ylabel="% of what is published", ylim=(0, 105))
    axes.legend()
