"""How long a device that wants to be found is exposed, with our controller and with plain Bluetooth (scenario)."""

from __future__ import annotations

from statistics import fmean

from measure import Check, Grid, Report
from whimbrel.sim.exposure import ExposureRun, Way, measure_exposure

__all__ = ["run"]

_GAPS_S = (0, 10, 60, 600)
_WAYS = tuple(Way)


def run(*, quick: bool) -> Report:
    """Measure everything; *quick* only proves that it runs and that the results are right."""
    gaps, seeds = (_GAPS_S[1:3], 2) if quick else (_GAPS_S, 40)
    report = Report("rendezvous_exposure", packages=("whimbrel",))
    found: dict[tuple[Way, int], list[ExposureRun]] = {
        (way, gap): [measure_exposure(way, gap_s=gap, seed=seed) for seed in range(seeds)]
        for way in _WAYS
        for gap in gaps
    }
    headings = ("the second comes after, s", *(way.value for way in _WAYS))
    for title, field in (
        ("Discoverable, seconds", "discoverable_s"),
        ("Connectable, seconds", "connectable_s"),
        ("From the second's arrival to the connection, seconds", "wait_s"),
    ):
        rows: tuple[tuple[str | float | None, ...], ...] = tuple(
            (f"{gap}", *(_mean(found[way, gap], field) for way in _WAYS)) for gap in gaps
        )
        report.grids.append(Grid(title, headings, rows))
    published = [each for (way, _), runs in found.items() if way in {Way.PARKED, Way.RELEASED} for each in runs]
    longest = max(gaps)
    report.checks += [
        Check("every pair meets", all(each.wait_s is not None for runs in found.values() for each in runs)),
        Check("no published device is ever discoverable", all(each.discoverable_s == 0 for each in published)),
        Check(
            "a device that the controller finds hides within 15 s",
            all(each.discoverable_s < 15 for each in found[Way.FOUND, longest]),
        ),
        Check(
            "with park, a published device is connectable for less than 12 s, whenever the second comes",
            all(each.connectable_s < 12 for gap in gaps for each in found[Way.PARKED, gap]),
        ),
        Check(
            "without park it is connectable as long as plain Bluetooth, and never discoverable",
            all(each.connectable_s > longest - 20 for each in found[Way.RELEASED, longest]),
        ),
    ]
    report.notes += [
        f"Means of {seeds} pairs each on the simulated radio, seeds from 0; exposure of the one that came first.",
        "Plain Bluetooth: the first is discoverable and connectable, the second inquires, and pages what it hears.",
    ]
    return report


def _mean(runs: list[ExposureRun], field: str) -> float:
    return fmean(getattr(each, field) or 0.0 for each in runs)
