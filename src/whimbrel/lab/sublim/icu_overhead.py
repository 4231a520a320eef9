"""SUBLIM, Figures 5, 8a and 8b: the costs of policies for a server, with and without malicious policies.

Each point has a real broker, real sockets, doctors in at most eight client processes, and one publisher. *Blind* is the
same broker with clients that have no policy. O is (D with policies - D blind) / D blind, where D is the time from the
first publication sent to the last reading received. At a fixed rate, O says little while nothing is saturated, and
other load on the machine changes every D. So the report also has processor time per hand-over, counts, and a saturated
run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from statistics import fmean
from typing import Any

from whimbrel.errors import InvalidValueError, MissingDependencyError
from whimbrel.lab.experiment import Experiment, Findings, Table
from whimbrel.lab.own_processes import OwnPoint
from whimbrel.lab.points import Row
from whimbrel.model.bounds import real, whole
from whimbrel.sim.ward.overhead.account_run import make_account
from whimbrel.sim.ward.overhead.overhead_run import MAX_PROCESSES, make_overhead

__all__ = ["FIGURES", "PAPER_8B", "overhead"]

FIGURES = ("5", "8a", "8b", "saturated", "account")
PAPER_8B: Mapping[tuple[int, int, int], float] = {
    (subscribers, rate, share): value
    for subscribers, rate, values in (
        (100, 120, (17.3, 14.6, 13.6)),
        (140, 120, (52.3, 51, 50.6)),
        (180, 120, (95.3, 93, 94.6)),
        (200, 120, (118, 116, 117)),
        (100, 240, (119.66, 118.8, 123.33)),
        (140, 240, (206.6, 204.44, 203.33)),
        (180, 240, (288.66, 290.55, 287.77)),
        (200, 240, (334.33, 328, 333.88)),
    )
    for share, value in zip((0, 5, 10), values, strict=True)
}
"""The paper's overhead in percent, by subscribers, messages per minute and percent of malicious agents."""
_SUBSCRIBERS_5, _RATES_5 = (20, 60, 100, 140, 180, 220), (30, 60, 120, 240)
_SUBSCRIBERS = (20, 60, 100, 140, 180, 200, 220)
_SUBSCRIBERS_8, _RATES_8, _SHARES = (100, 140, 180, 200), (120, 240), (0.05, 0.1)
_PATIENTS, _OWN = 20, 5
_REPEATED_FROM = (180, 120)
"""Subscribers and messages per minute from which a point is measured three times."""
_MAX_OVERHEAD, _MAX_CORE_RATIO, _LEAST_SATURATED = 0.10, 1.5, 0.5
_MAX_STATES = 12
_ENDS = ("delivered", "withheld", "expired")

_Settings = dict[str, Any]


def overhead(
    *,
    is_quick: bool = False,
    figure: str = "all",
    seconds: float | None = None,
    subscribers: Sequence[int] = (),
    rates: Sequence[int] = (),
    runs: int = 3,
) -> Experiment:
    """Return the experiment: all figures, or the named one; a quick one has ten doctors and lasts a second.

    With *subscribers* or *rates*, Figures 5 and 8b have only the points with one of these values.
    """
    if find_spec("PIL") is None:
        raise MissingDependencyError("electrocardiograms", "PIL", "run: pip install 'whimbrel[images]'")
    if figure not in (*FIGURES, "all"):
        raise InvalidValueError("--figure", figure, ", ".join((*FIGURES, "all")))
    for option, given, allowed in (("--subscribers", subscribers, _SUBSCRIBERS), ("--rates", rates, _RATES_5)):
        for each in given:
            if each not in allowed:
                raise InvalidValueError(option, each, ", ".join(map(str, allowed)))
    whole("--runs", runs, 1, 100)
    seconds = (1.0 if is_quick else 60.0) if seconds is None else real("--seconds", seconds, 1, 3_600)
    wanted = FIGURES if figure == "all" else (figure,)
    grid = _quick_grid() if is_quick else _grid(subscribers or _SUBSCRIBERS, rates or _RATES_5, runs)
    points = [
        OwnPoint(make=f"{make.__module__}:{make.__name__}", settings={**settings, "seconds": seconds})
        for name in wanted
        for settings in grid[name]
        for make in (make_account if name == "account" else make_overhead,)
    ]
    each_once = list({point.text: point for point in points}.values())
    return Experiment(
        name="icu-overhead" if figure == "all" else f"icu-overhead-{figure}",
        title="SUBLIM, Figures 5, 8a and 8b: what policies cost a server",
        points=[],
        own=each_once,
        at_once=1,
        find=_find,
        plot=_plot,
        assumptions={
            "patients": _PATIENTS if not is_quick else grid["5"][0]["patients"],
            "own patients of a doctor in the mix": _OWN if not is_quick else 1,
            "notification": "CBOR, 100 KB on average, each another one",
            "QoS": "0 to doctors (1 in the account), 1 from the publisher",
            "reports": "every 30 s",
            "client processes": f"at most {MAX_PROCESSES}",
            "seconds of a point": f"{seconds:g}",
            "runs of a point": 1
            if is_quick
            else f"{runs} from {_REPEATED_FROM[0]} subscribers and {_REPEATED_FROM[1]} a minute on, else 1",
        },
    )


def _grid(subscribers: Sequence[int], rates: Sequence[int], runs: int) -> dict[str, list[_Settings]]:
    """Return the settings of every point, by figure, for the given *subscribers* and *rates*."""
    each_all = {"own": _PATIENTS, "patients": _PATIENTS}
    mix = {"own": _OWN, "patients": _PATIENTS}
    blind, full = {"policy": "blind", **each_all}, {"policy": "stateful", **each_all}
    figure_5: list[_Settings] = []
    for doctors in (*_SUBSCRIBERS_5, 200):
        for rate in _RATES_5 if doctors != 200 else _RATES_8:  # 200 are those of Figure 8b
            for kind in (blind, full, {"policy": "stateful", **mix}):
                figure_5 += _runs(doctors, rate, kind, runs)
    figure_8b: list[_Settings] = []
    for doctors in _SUBSCRIBERS_8:
        for rate in _RATES_8:
            for kind in (blind, full, *({**full, "malicious": share} for share in _SHARES)):
                figure_8b += _runs(doctors, rate, kind, runs)
    figure_8b += _runs(200, 240, {**full, "malicious": 0.1, "is_failing": True}, 1)
    figure_5, figure_8b = (
        [each for each in points if each["doctors"] in subscribers and each["per_minute"] in rates]
        for points in (figure_5, figure_8b)
    )
    endless = {**full, "per_minute": 240.0, "is_limited": False}
    figure_8a = [{**endless, "doctors": doctors, "malicious": share} for doctors in (100, 200) for share in _SHARES]
    served = {"doctors": 200, "states": "served", **each_all}
    saturated = [
        {**served, "policy": "blind", "per_minute": 0.0},
        {**served, "policy": "unshaped", "per_minute": 0.0},
        {**served, "policy": "stateful", "per_minute": 0.0, "repeats_bodies": True, "pictures": 1},
        {**served, "policy": "stateful", "per_minute": 0.0},
        {**served, "policy": "blind", "per_minute": 240.0},
        {**served, "policy": "unshaped", "per_minute": 240.0},
        {**served, "policy": "stateful", "per_minute": 240.0},
    ]
    account = [{"doctors": 200, "per_minute": 240.0, **mix}]
    return {"5": figure_5, "8a": figure_8a, "8b": figure_8b, "saturated": saturated, "account": account}


def _quick_grid() -> dict[str, list[_Settings]]:
    few = {"doctors": 10, "per_minute": 240.0, "own": 2, "patients": 2, "pictures": 1, "processes": 1, "report_s": 0.5}
    small = {**few, "doctors": 6, "states": "served"}
    return {
        "5": [{**few, "policy": "blind"}, {**few, "policy": "stateful"}],
        "8a": [{**few, "policy": "stateful", "malicious": 0.1, "is_limited": False}],
        "8b": [
            {**few, "policy": "blind"},
            {**few, "policy": "stateful"},
            {**few, "policy": "stateful", "malicious": 0.1, "steps_per_second": 2_000},
        ],
        # A comparison is left out: a second on a busy machine decides nothing.
        "saturated": [{**small, "policy": "stateful", "per_minute": 0.0, "repeats_bodies": True}],
        "account": [{**few, "own": 1}],
    }


def _runs(doctors: int, rate: int, settings: _Settings, runs: int) -> list[_Settings]:
    """Return the settings of a point once, or *runs* times if it is large enough to be repeated."""
    is_repeated = doctors >= _REPEATED_FROM[0] and rate >= _REPEATED_FROM[1]
    point = {"doctors": doctors, "per_minute": float(rate), **settings}
    return [{**point, "run": run} for run in range(1, runs + 1 if is_repeated else 2)]


# -- findings ----------------------------------------------------------------------------------------------------------

_KINDS = ("blind", "all", "mix")


def _find(rows: Sequence[Row]) -> Findings:
    measured = [row for row in rows if "account" not in row]
    paced = [row for row in measured if row["per_minute"] and row["is_limited"] and row["states"] == "mixed"]
    tables: list[Table] = []
    claims: dict[str, bool] = {}
    notes: list[str] = []
    places = sorted({(row["doctors"], row["per_minute"]) for row in paced})
    if paced:
        tables += [_overheads(paced, places), _core_times(paced, places)]
    bad = [row for row in paced if row["malicious"]]
    if bad:
        _find_malicious(paced, bad, tables, claims)
    unlimited = [row for row in measured if not row["is_limited"]]
    if unlimited:
        tables.append(_unlimited_table(unlimited))
        claims["without its limit one endless policy stops the broker for everybody"] = all(
            not row["delivered_honest"] for row in unlimited
        )
    shared = [row for row in measured if row["per_minute"] and row.get("transforms")]
    if shared:
        most = max(row["transforms"] / row["published"] for row in shared)
        claims[f"doctors in twelve states cost at most {_MAX_STATES} compressions a notification"] = most <= _MAX_STATES
        notes.append(f"at most {most:.2f} compressions a notification, counted by the broker")
    _find_saturated(measured, tables, claims)
    for row in rows:
        if "account" in row:
            tables.append(_account(row))
            claims["the account of every notification closes after kill -9"] = _closes(row)
    loads = [load for row in measured for load in row["load"]]
    if loads:
        notes.append(f"load average of the machine while this was measured: {min(loads):.1f} to {max(loads):.1f}")
    return Findings(tables=tables, claims=claims, notes=notes)


def _find_malicious(paced: Sequence[Row], bad: Sequence[Row], tables: list[Table], claims: dict[str, bool]) -> None:
    tables.append(_malicious(paced, bad))
    top = max((row["doctors"], row["per_minute"]) for row in bad)
    shares = sorted({row["malicious"] for row in bad} | {0.0})
    found = [_overhead(paced, *top, share=share) for share in shares]
    claims[
        f"at {top[0]} subscribers and {top[1]:g} a minute O of the honest is at most {_MAX_OVERHEAD:.0%} with "
        f"{', '.join(f'{share:.0%}' for share in shares)} malicious"
    ] = all(each is not None and each <= _MAX_OVERHEAD for each in found)
    claims["no honest doctor's p99 more than doubles with malicious policies"] = all(
        _p99_growth(paced, row) <= 2 for row in bad
    )
    claims["every malicious policy is slowed or suspended, and its owner told"] = all(
        told.get("slowed") or told.get("suspended") for row in bad for told in row["told"].values()
    )
    claims["the log says why"] = all(row["warnings"] >= row["malicious_doctors"] for row in bad)
    failing = [row for row in bad if row["is_failing"]]
    if failing:
        claims["suspended doctors receive nothing by it"] = not any(row["delivered_malicious"] for row in failing)


def _of(rows: Iterable[Row], doctors: int, rate: float, kind: str, share: float = 0.0) -> list[Row]:
    """Return the runs of one point."""
    return [
        row
        for row in rows
        if (row["doctors"], row["per_minute"], row["malicious"]) == (doctors, rate, share)
        and _kind(row) == kind
        and not row["is_failing"]
    ]


def _kind(row: Row) -> str:
    if row["policy"] == "blind":
        return "blind"
    return "all" if row["own"] == row["patients"] else "mix"


def _overhead(rows: Sequence[Row], doctors: int, rate: float, kind: str = "all", *, share: float = 0.0) -> float | None:
    """Return O of the honest doctors, or None if it was not measured."""
    blind, full = _of(rows, doctors, rate, "blind"), _of(rows, doctors, rate, kind, share)
    if not blind or not full:
        return None
    base = fmean(row["duration_honest_s"] for row in blind)
    return fmean(row["duration_honest_s"] for row in full) / base - 1


def _range(rows: Sequence[Row], doctors: int, rate: float, kind: str = "all", share: float = 0.0) -> str:
    """Return O as text, with the range of its runs if there are several."""
    mean = _overhead(rows, doctors, rate, kind, share=share)
    if mean is None:
        return "–"
    full = _of(rows, doctors, rate, kind, share)
    base = fmean(row["duration_honest_s"] for row in _of(rows, doctors, rate, "blind"))
    each = [row["duration_honest_s"] / base - 1 for row in full]
    return f"{mean:.1%}" if len(each) == 1 else f"{mean:.1%} ({min(each):.1%} to {max(each):.1%})"


def _overheads(rows: Sequence[Row], places: Sequence[tuple[int, float]]) -> Table:
    head = ("subscribers, messages a minute", "O, all patients are own", "O, the mix", "hand-overs blind", "all", "mix")
    found = []
    for doctors, rate in places:
        counts = [_of(rows, doctors, rate, kind) for kind in _KINDS]
        delivered = [f"{fmean(row['delivered'] for row in some):,.0f}" if some else "–" for some in counts]
        overheads = (_range(rows, doctors, rate), _range(rows, doctors, rate, "mix"))
        found.append((f"{doctors}, {rate:g}", *overheads, *delivered))
    return Table("Figure 5: overhead", head, found)


def _core_times(rows: Sequence[Row], places: Sequence[tuple[int, float]]) -> Table:
    head = (
        "subscribers, messages a minute",
        "blind, µs a hand-over",
        "all, µs a hand-over",
        "all, µs a decision",
        "compressions a notification",
        "ms of a compression",
        "p99 blind, ms",
        "p99 all, ms",
    )
    found = []
    for doctors, rate in places:
        blind, full = _of(rows, doctors, rate, "blind"), _of(rows, doctors, rate, "all")
        if blind and full:
            decided = sum(sum(row["decisions"].values()) for row in full)
            made = sum(row["transforms"] for row in full)
            found.append(
                (
                    f"{doctors}, {rate:g}",
                    _us_each(blind),
                    _us_each(full),
                    f"{1e6 * sum(row['broker_core_s'] for row in full) / decided:,.0f}" if decided else "–",
                    f"{made / sum(row['published'] for row in full):.1f}",
                    f"{1e3 * sum(row['workers_core_s'] for row in full) / made:.1f}" if made else "–",
                    f"{fmean(row['p99_ms'] for row in blind):,.0f}",
                    f"{fmean(row['p99_ms'] for row in full):,.0f}",
                )
            )
    return Table("Processor time of the broker, transforms apart", head, found)


def _us_each(rows: Sequence[Row]) -> str:
    delivered = sum(row["delivered"] for row in rows)
    return f"{1e6 * sum(row['broker_core_s'] for row in rows) / delivered:,.0f}" if delivered else "–"


def _malicious(rows: Sequence[Row], bad: Sequence[Row]) -> Table:
    head = (
        "subscribers, messages a minute, malicious",
        "O of the honest",
        "the paper",
        "hand-overs honest",
        "malicious",
        "largest growth of an honest p99",
        "told",
    )
    found = []
    for row in bad:
        doctors, rate, share = row["doctors"], row["per_minute"], row["malicious"]
        honest = _range(rows, doctors, rate, share=share)
        told = sum(bool(each) for each in row["told"].values())
        paper = PAPER_8B.get((doctors, round(rate), round(100 * share)))
        found.append(
            (
                f"{doctors}, {rate:g}, {share:.0%}{' that fail' if row['is_failing'] else ''}",
                honest,
                "–" if paper is None else f"{paper:g} %",
                f"{row['delivered_honest']:,}",
                f"{row['delivered_malicious']:,}",
                f"{_p99_growth(rows, row):.2f}",
                f"{told} of {row['malicious_doctors']}",
            )
        )
    return Table("Figure 8b: malicious policies, as the broker accepts them", head, found)


def _p99_growth(rows: Sequence[Row], row: Row) -> float:
    """Return the largest ratio of an honest doctor's p99 to its p99 without malicious policies; 0 if unknown."""
    base = _of(rows, row["doctors"], row["per_minute"], "all")
    growths = [
        value / fmean(each["p99_ms_of_each"][name] for each in base)
        for name, value in row["p99_ms_of_each"].items()
        if base and all(each["p99_ms_of_each"].get(name) for each in base)
    ]
    return max(growths, default=0.0)


def _unlimited_table(rows: Sequence[Row]) -> Table:
    head = ("subscribers, malicious", "published", "accepted", "hand-overs to honest doctors", "broker's core seconds")
    found = [
        (
            f"{row['doctors']}, {row['malicious']:.0%}",
            f"{row['published']}",
            f"{row['accepted']}",
            f"{row['delivered_honest']}",
            f"{row['broker_core_s']:.1f}",
        )
        for row in rows
    ]
    return Table("Figure 8a: malicious policies without the limit of steps", head, found)


def _find_saturated(rows: Sequence[Row], tables: list[Table], claims: dict[str, bool]) -> None:
    saturated = [row for row in rows if not row["per_minute"]]
    head = ("what", "deliveries a second", "of blind", "µs of the broker a delivery", "of blind", "compressions")
    for title, some in (
        ("Saturated: messages as fast as the slowest doctor takes them", saturated),
        ("Every copy delivered, paced", [row for row in rows if row["per_minute"] and row["states"] == "served"]),
    ):
        blind = next((row for row in some if row["policy"] == "blind"), None)
        if blind is None:
            continue
        found = [
            (
                _WHAT[row["policy"]] + (", bodies already made" if row["repeats_bodies"] else ""),
                f"{_rate(row):,.0f}",
                f"{_rate(row) / _rate(blind):.0%}",
                f"{_each_us(row):,.0f}",
                f"{_each_us(row) / _each_us(blind):.2f} times",
                f"{row['transforms']:,}",
            )
            for row in some
        ]
        tables.append(Table(title, head, found))
        for row in some:
            if row["policy"] == "unshaped" and row["per_minute"]:
                claims[f"without transforms a hand-over costs at most {_MAX_CORE_RATIO:g} times the blind one"] = (
                    _each_us(row) <= _MAX_CORE_RATIO * _each_us(blind)
                )
            if row["repeats_bodies"]:
                claims["saturated, with bodies already made, at least half of the blind deliveries a second"] = _rate(
                    row
                ) >= _LEAST_SATURATED * _rate(blind)


_WHAT = {"blind": "blind", "unshaped": "P_ICU that sends what arrived", "stateful": "P_ICU"}


def _rate(row: Row) -> float:
    return float(row["delivered"] / max(row["duration_s"], 1e-9))


def _each_us(row: Row) -> float:
    return float(1e6 * max(row["broker_core_s"], 1e-3) / max(row["delivered"], 1))


def _account(row: Row) -> Table:
    told = row["account"]
    rows = [(outcome, f"{told.get(outcome, 0):,}") for outcome in sorted({*told, *_ENDS})]
    rows += [
        ("of the expired, without a receipt", f"{row.get('expired_without_receipt', 0):,}"),
        ("copies that were due", f"{row['due']:,}"),
        ("received again", f"{row['repeated']:,}"),
        ("of these marked as sent again", f"{row.get('marked', 0):,}"),
        ("notifications published twice", f"{row.get('published_twice', 0):,}"),
        ("copies that do not fit", f"{row['unaccounted']:,}"),
        *((each, "") for each in row.get("wrong", ())),
    ]
    return Table(f"The account of {row['published']} notifications after kill -9", ("what", "copies"), rows)


def _closes(row: Row) -> bool:
    told = row["account"]
    return set(told) <= set(_ENDS) and sum(told.values()) == row["due"] and not row["unaccounted"]


def _plot(rows: Sequence[Row], figure: Any) -> None:  # noqa: ANN401 # matplotlib's own
    axes = figure.subplots()
    paced = [row for row in rows if "account" not in row and row["per_minute"] and row["states"] == "mixed"]
    for rate in sorted({row["per_minute"] for row in paced}):
        for kind, style in (("all", "-"), ("mix", ":")):
            line = [
                (doctors, 100 * found)
                for doctors in sorted({row["doctors"] for row in paced})
                if (found := _overhead(paced, doctors, rate, kind)) is not None
            ]
            if line:
                axes.plot(*zip(*line, strict=True), style, marker="o", label=f"{rate:g} a minute, {kind}")
    axes.set(xlabel="subscribers", ylabel="overhead, %")
    if axes.lines:
        axes.legend()
