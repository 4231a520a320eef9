"""Load: events per second, waiting time, one queue and two, priorities, 7 to 255 devices (Huang, 5.4.2 and 5.4.3).

The thesis expects that waiting grows *dramatically* with devices and traffic, that two queues help, and that priorities
matter, but could not test it. Here the real core serves a crowd. The processor time of a look-up is assumed and varied,
because the thesis names no machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from whimbrel.lab.confidence import Estimate, estimate
from whimbrel.lab.experiment import Experiment, Findings, Table
from whimbrel.lab.rendezvous.points import make_point
from whimbrel.lab.spark_sweep import Row
from whimbrel.rendezvous.radio.simulated.air import BEACON_US
from whimbrel.sim.rendezvous import crowd, storms
from whimbrel.sim.rendezvous.storms import Priority

__all__ = ["load"]

_PAIRS_AT_ONCE = 3
"""Pairs that can be notified at a time: a piconet has seven active slots, and one is kept free for a new device."""


@dataclass(frozen=True, slots=True)
class _Plan:
    devices: Sequence[int]
    think_s: Sequence[float]
    look_up_us: Sequence[int]
    storm: Sequence[int]
    seconds: float
    seeds: int


_FULL = _Plan((7, 15, 31, 63, 127, 255), (5.0, 1.0), (10_000, 100_000), (20, 100, 250), 30.0, 4)
_QUICK = _Plan((7, 63), (5.0, 1.0), (100_000,), (100,), 20.0, 2)


def load(*, is_quick: bool = False) -> Experiment:
    """Return the experiment; a quick one has two sizes."""
    plan = _QUICK if is_quick else _FULL
    points = [
        make_point(
            crowd.play_crowd,
            devices=devices,
            think_s=think,
            look_up_us=look_up,
            has_two_queues=has_two,
            is_matching=is_matching,
            seconds=plan.seconds,
            seed=seed,
        )
        for is_matching in (True, False)
        for devices in plan.devices
        for think in plan.think_s
        for look_up in plan.look_up_us
        for has_two in (False, True)
        for seed in range(plan.seeds)
    ]
    points += [
        make_point(storms.play_storm, priority=priority.value, devices=devices, seed=seed)
        for priority in Priority
        for devices in plan.storm
        for seed in range(2 * plan.seeds)
    ]
    points += [make_point(storms.play_removals, is_removal_first=each, devices=100) for each in (True, False)]
    return Experiment(
        name="rendezvous-load",
        title="Huang, 5.4.2 and 5.4.3: waiting at a controller, with one queue and two",
        points=[],
        own=points,
        is_swept=True,
        find=partial(_find, plan=plan),
        plot=partial(_plot, plan=plan),
        assumptions={
            "seeds": plan.seeds,
            "a look-up takes, ms (assumed, varied)": ", ".join(f"{each / 1_000:g}" for each in plan.look_up_us),
            "acting on an event takes, ms (assumed)": 1,
            "a flush in a storm takes, ms (assumed)": 10,
            "devices think for, s": ", ".join(f"{each:g}" for each in plan.think_s),
            "beacon, ms": BEACON_US / 1_000,
            "the radio": "is left out but for the beacon at which a parked device is woken",
            "a storm": "half of the devices leave within a second, in which the others subscribe to them",
        },
    )


def _cases(rows: Sequence[Row], *, is_matching: bool) -> dict[tuple[int, float, int, bool], list[Row]]:
    found: dict[tuple[int, float, int, bool], list[Row]] = {}
    for row in sorted(rows, key=lambda each: each["seed"]):
        if row["kind"] == "crowd" and row["is_matching"] is is_matching:
            key = row["devices"], row["think_s"], row["look_up_us"], row["has_two_queues"]
            found.setdefault(key, []).append(row)
    return found


def _find(rows: Sequence[Row], *, plan: _Plan) -> Findings:
    tables = [_crowd_table(rows, plan, is_matching=each) for each in (True, False)]
    tables += [_storm_table(rows, plan), _removal_table(rows)]
    return Findings(tables=tables, claims=_claims(rows, plan), notes=_notes(rows, plan))


def _of(rows: Sequence[Row], name: str) -> Estimate:
    return estimate([row[name] for row in rows])


def _difference(one: Sequence[Row], two: Sequence[Row]) -> Estimate:
    return estimate([other["wait_s"] - each["wait_s"] for each, other in zip(one, two, strict=True)])


def _is_different(difference: Estimate) -> bool:
    return abs(difference.mean) > difference.margin


def _crowd_table(rows: Sequence[Row], plan: _Plan, *, is_matching: bool) -> Table:
    cases, lines = _cases(rows, is_matching=is_matching), []
    for look_up in plan.look_up_us:
        for think in plan.think_s:
            for devices in plan.devices:
                one, two = (cases[devices, think, look_up, has_two] for has_two in (False, True))
                difference = _difference(one, two)
                lines.append(
                    (
                        f"{look_up / 1_000:g}",
                        f"{think:g}",
                        str(devices),
                        f"{_of(one, 'events_per_s').mean:.1f}",
                        f"{_of(two, 'events_per_s').mean:.1f}",
                        str(_of(one, "wait_s")),
                        str(_of(two, "wait_s")),
                        f"{_of(one, 'wait_p95_s').mean:.2f}",
                        f"{_of(two, 'wait_p95_s').mean:.2f}",
                        f"{difference.mean:+.3f} ± {difference.margin:.3f}" if _is_different(difference) else "none",
                    )
                )
    heads = (
        "look-up, ms",
        "think, s",
        "devices",
        "events/s, one queue",
        "events/s, two",
        "wait s, one queue",
        "wait s, two",
        "95 % within s, one queue",
        "95 % within s, two",
        "two less one, s",
    )
    title = "Every event is matched: seats and beacons limit" if is_matching else "No event is matched: look-ups limit"
    return Table(title, heads, lines)


def _storm_table(rows: Sequence[Row], plan: _Plan) -> Table:
    lines = []
    for priority in Priority:
        for devices in plan.storm:
            found = _storms(rows, priority, devices)
            lines.append(
                (
                    priority.value,
                    str(devices),
                    str(_of(found, "matched")),
                    str(_of(found, "wasted")),
                    str(_of(found, "wait_s")),
                    str(_of(found, "wait_max_s")),
                )
            )
    heads = ("priority", "devices", "matches", "with a device that was gone", "wait s", "longest wait s")
    return Table("A storm of disconnections beside subscriptions (5.4.2)", heads, lines)


def _storms(rows: Sequence[Row], priority: Priority, devices: int) -> list[Row]:
    found = [row for row in rows if row["kind"] == "storm" and row["priority"] == priority.value]
    return sorted((row for row in found if row["devices"] == devices), key=lambda row: row["seed"])


def _removal_table(rows: Sequence[Row]) -> Table:
    words = {True: "removal before expiry (5.4.2)", False: "expiry before removal"}
    lines = [
        (words[row["is_removal_first"]], str(row["removed"]), str(row["expired"]), str(row["refused"]))
        for row in rows
        if row["kind"] == "removals"
    ]
    heads = ("", "told: removed", "told: expired", "refused")
    return Table("Subscriptions that their devices remove in the instant in which they expire", heads, lines)


def _claims(rows: Sequence[Row], plan: _Plan) -> dict[str, bool]:
    matched, unmatched = _cases(rows, is_matching=True), _cases(rows, is_matching=False)
    most = max(row["matches_per_s"] for found in matched.values() for row in found)
    limit = _PAIRS_AT_ONCE / (BEACON_US / 1e6)
    heaviest = max(plan.devices), min(plan.think_s), max(plan.look_up_us)
    lightest = min(plan.devices), max(plan.think_s), min(plan.look_up_us)
    worse = [
        key
        for cases in (matched, unmatched)
        for key, found in cases.items()
        if not key[-1]
        and (gap := _difference(found, cases[(*key[:-1], True)])).mean - gap.margin > 0.05 * _of(found, "wait_s").mean
    ]
    wasted = {each: sum(row["wasted"] for n in plan.storm for row in _storms(rows, each, n)) for each in Priority}
    largest = max(plan.storm)
    waits = {each: _of(_storms(rows, each, largest), "wait_s").mean for each in Priority}
    removals = {row["is_removal_first"]: row for row in rows if row["kind"] == "removals"}

    def differs(cases: dict[tuple[int, float, int, bool], list[Row]], key: tuple[int, float, int]) -> bool:
        return _is_different(_difference(cases[(*key, False)], cases[(*key, True)]))

    return {
        "waiting grows with devices and traffic (5.4.2)": _of(matched[(*heaviest, False)], "wait_s").mean
        > 10 * _of(matched[(*lightest, False)], "wait_s").mean,
        "two queues wait less where look-ups limit: the largest crowd, no matches": differs(unmatched, heaviest)
        and _difference(unmatched[(*heaviest, False)], unmatched[(*heaviest, True)]).mean < 0,
        "two queues never wait longer than one by more than 5 % and the uncertainty": not worse,
        f"seats and beacons limit matches: never more than {limit:.1f} pairs a second": most <= limit * 1.05,
        "with disconnections first no match is with a device that was gone": wasted[Priority.FIRST] == 0,
        "in the order of arrival some are": wasted[Priority.FAIR] > 0,
        "all disconnections at once make subscriptions wait longer than bounded ones": waits[Priority.UNBOUNDED]
        > waits[Priority.FIRST],
        "an explicit removal comes before an expiry of the same instant": removals[True]["expired"] == 0
        and removals[False]["expired"] > 0,
    }


def _notes(rows: Sequence[Row], plan: _Plan) -> list[str]:
    notes = []
    for is_matching, words in ((True, "every event is matched"), (False, "no event is matched")):
        cases = _cases(rows, is_matching=is_matching)
        first = [
            f"{look_up / 1_000:g} ms: {found[0]} devices that think for {found[1]:g} s"
            if found
            else f"{look_up / 1_000:g} ms: nowhere"
            for look_up in plan.look_up_us
            for found in [_first_difference(cases, plan, look_up)]
        ]
        notes.append(f"where {words}, two queues first wait less than one, by look-up time: {'; '.join(first)}")
    return notes


def _first_difference(
    cases: dict[tuple[int, float, int, bool], list[Row]], plan: _Plan, look_up: int
) -> tuple[int, float] | None:
    for devices in plan.devices:
        for think in plan.think_s:
            one, two = (cases[devices, think, look_up, has_two] for has_two in (False, True))
            difference = _difference(one, two)
            if _is_different(difference) and difference.mean < -0.05 * _of(one, "wait_s").mean:
                return devices, think
    return None


def _plot(rows: Sequence[Row], figure: Any, *, plan: _Plan) -> None:  # noqa: ANN401 # matplotlib's own
    figure.set_size_inches(12, 5)
    all_axes = figure.subplots(1, 3)
    think = min(plan.think_s)
    for axes, is_matching in zip(all_axes, (True, False), strict=False):
        cases = _cases(rows, is_matching=is_matching)
        for number, look_up in enumerate(plan.look_up_us):
            for has_two in (False, True):
                found = [_of(cases[devices, think, look_up, has_two], "wait_s") for devices in plan.devices]
                axes.errorbar(
                    plan.devices,
                    [each.mean for each in found],
                    yerr=[each.margin for each in found],
                    color=f"C{number}",
                    linestyle="--" if has_two else "-",
                    marker="o",
                    label=f"{'two queues' if has_two else 'one queue'}, look-up {look_up / 1_000:g} ms",
                )
        told = "every event is matched" if is_matching else "no event is matched"
        axes.set(xscale="log", yscale="log", xlabel="devices", ylabel="wait to be processed, s", title=told)
        axes.legend(fontsize=6)
    storm = all_axes[2]
    for priority in Priority:
        found = [_of(_storms(rows, priority, devices), "wait_s") for devices in plan.storm]
        storm.errorbar(
            plan.storm,
            [each.mean for each in found],
            yerr=[each.margin for each in found],
            marker="o",
            label=priority.value,
        )
    storm.set(xlabel="devices", ylabel="wait of subscriptions, s", title="a storm of disconnections")
    storm.legend(fontsize=6)
