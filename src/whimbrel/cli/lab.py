"""``whimbrel lab``: reproduces the papers' tables and figures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from whimbrel.cli.process.spark import session

if TYPE_CHECKING:  # other commands need not load Spark and plots
    from whimbrel.lab.experiment import Experiment, Result

__all__ = ["app"]

app = typer.Typer(
    help="Make the papers' tables and figures again; sweeps run on Spark, and points already made are not made again.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Quick = Annotated[bool, typer.Option("--quick", help="Small sizes: shows that it runs, and little else.")]
Out = Annotated[
    Path,
    typer.Option("--out", metavar="DIR", help="Where the points, the plot and the table are kept; made if need be."),
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Where Spark runs, e.g. spark://host:7077; this machine by default."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@app.command("campus-figure-2a")
def campus_figure_2a(
    *, quick: Quick = False, out: Out = Path("lab"), master: Master = None, as_json: AsJson = False
) -> None:
    """Campus++: mean delivery delay against used memory, for 100, 70, 50 and 20 equally popular topics.

    In the paper the delay falls, is lowest at 80 % and rises again, because spraying (handing out copies) finds no free
    memory.

    Example: whimbrel lab campus-figure-2a --quick --out lab
    """
    from whimbrel.lab.campus_figure_2a import figure_2a

    _run(lambda _: figure_2a(is_quick=quick), out, master=master, as_json=as_json)


@app.command("campus-figure-2b")
def campus_figure_2b(
    *, quick: Quick = False, out: Out = Path("lab"), master: Master = None, as_json: AsJson = False
) -> None:
    """Campus++: mean delivery delay with copies by the square root of subscribers, and with equal copies per topic.

    100 topics with popularity by Zipf 0.8, workload 80 %. The wait phase alone predicts a fall of 21 %.

    Example: whimbrel lab campus-figure-2b --quick --out lab
    """
    from whimbrel.lab.campus_figure_2b import figure_2b

    _run(lambda _: figure_2b(is_quick=quick), out, master=master, as_json=as_json)


@app.command("campus-trace")
def campus_trace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Contacts in the format of the ONE.")],
    *,
    topics: Annotated[int, typer.Option("--topics", metavar="N", min=1, help="How many topics, Zipf 0.8.")] = 20,
    quick: Quick = False,
    out: Out = Path("lab"),
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Campus++ on your own contact trace: delay against used memory, with copies by subscribers and equal copies.

    Example: whimbrel lab campus-trace conference.trace --out lab
    """
    from whimbrel.lab.campus_trace import trace_experiment

    trace_experiment(file, topics=topics, is_quick=quick)  # find errors in the trace before Spark starts

    def made(shipped: str) -> Experiment:
        return trace_experiment(file, shipped=shipped, topics=topics, is_quick=quick)

    _run(made, out, master=master, as_json=as_json, ship=file)


@app.command("campus-optimum")
def campus_optimum(
    *, quick: Quick = False, out: Out = Path("lab"), master: Master = None, as_json: AsJson = False
) -> None:
    """Beyond Campus++: exponent and workload with the least delay, when spraying takes time.

    The delay is the mean from publication to delivery. Spraying is handing out copies. A topic gets copies in
    proportion to its subscribers to the power of the exponent.
    The workload is the share of memory that copies may fill.

    Example: whimbrel lab campus-optimum --quick --out lab
    """
    from whimbrel.lab.campus_optimum import optimum

    _run(lambda _: optimum(is_quick=quick), out, master=master, as_json=as_json)


@app.command("steam-traffic-light")
def steam_traffic_light(*, quick: Quick = False, out: Out = Path("lab"), as_json: AsJson = False) -> None:
    """STEAM, Figures 1 and 2: a car drives through the area of a traffic light; compares the table with the paper's.

    Example: whimbrel lab steam-traffic-light --out lab
    """
    from whimbrel.lab.steam.traffic_light import traffic_light

    _run_here(traffic_light(is_quick=quick), out, as_json=as_json)


@app.command("steam-filters")
def steam_filters(*, quick: Quick = False, out: Out = Path("lab"), as_json: AsJson = False) -> None:
    """STEAM, Figure 3: content filters at the producer, and at 1 to 10,000 consumers; a lookup among a million.

    Example: whimbrel lab steam-filters --quick --out lab
    """
    from whimbrel.lab.steam.filters import filters

    _run_here(filters(is_quick=quick), out, as_json=as_json)


@app.command("steam-city")
def steam_city(*, quick: Quick = False, out: Out = Path("lab"), as_json: AsJson = False) -> None:
    """STEAM: lights, signs, an ambulance and hundreds of vehicles: propagated, delivered, discarded, missed.

    Example: whimbrel lab steam-city --quick --out lab
    """
    from whimbrel.lab.steam.city import city

    _run_here(city(is_quick=quick), out, as_json=as_json)


@app.command("steam-scale")
def steam_scale(*, quick: Quick = False, out: Out = Path("lab"), as_json: AsJson = False) -> None:
    """STEAM: messages and processor time for each of 1,000 to 20,000 entities, and how far a join has effects.

    Example: whimbrel lab steam-scale --quick --out lab
    """
    from whimbrel.lab.steam.scale import scale

    _run_here(scale(is_quick=quick), out, as_json=as_json)


@app.command("icu-battery")
def icu_battery(*, quick: Quick = False, out: Out = Path("lab"), as_json: AsJson = False) -> None:
    """SUBLIM, Figure 7: how long a doctor's battery lasts without messages, stateless and stateful.

    A model of the paper's device beside the broker's core, on a clock that is moved by hand; the model's assumptions
    are varied. Each point has a process of its own, and an interrupt keeps finished points.

    Example: whimbrel lab icu-battery --quick --out lab
    """
    from whimbrel.lab.sublim.icu_battery import battery

    _run_here(battery(is_quick=quick), out, as_json=as_json)


@app.command("icu-bandwidth")
def icu_bandwidth(
    *,
    link: Annotated[
        str, typer.Option("--link", metavar="KIND", help="relay, tc (as root), or both: tc at two rates.")
    ] = "both",
    quick: Quick = False,
    out: Out = Path("lab"),
    as_json: AsJson = False,
) -> None:
    """SUBLIM, Figure 6: how much a doctor receives, and receives in time, over a link that changes.

    In real time, with a broker for each point: a relay in user space paces a connection, or tc does between two network
    namespaces. Points mostly wait, so several run at once; an interrupt keeps finished points.

    Example: whimbrel lab icu-bandwidth --quick --out lab
    """
    from whimbrel.lab.sublim.icu_bandwidth import bandwidth

    _run_here(bandwidth(is_quick=quick, link=link), out, as_json=as_json)


@app.command("icu-overhead")
def icu_overhead(
    *,
    figure: Annotated[
        str, typer.Option("--figure", metavar="NAME", help="5, 8a, 8b, saturated, account, or all.")
    ] = "all",
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", metavar="S", help="Seconds that are published in a point; 60 if not given."),
    ] = None,
    subscribers: Annotated[
        list[int] | None,
        typer.Option("--subscribers", metavar="N", help="Only points of Figures 5 and 8b with N of them; repeatable."),
    ] = None,
    rates: Annotated[
        list[int] | None,
        typer.Option("--rates", metavar="N", help="Only points with N messages per minute; repeatable."),
    ] = None,
    runs: Annotated[int, typer.Option("--runs", metavar="N", help="Runs of each point that is repeated.")] = 3,
    quick: Quick = False,
    out: Out = Path("lab"),
    as_json: AsJson = False,
) -> None:
    """SUBLIM, Figures 5, 8a and 8b: what policies cost a server, with and without malicious ones among them.

    In real time, with a broker and up to eight processes of doctors for each point, one point after the other; a full
    run takes hours. An interrupt keeps finished points.

    Example: whimbrel lab icu-overhead --quick --out lab
    """
    from whimbrel.lab.sublim.icu_overhead import overhead

    experiment = overhead(
        is_quick=quick, figure=figure, seconds=seconds, subscribers=subscribers or (), rates=rates or (), runs=runs
    )
    _run_here(experiment, out, as_json=as_json)


@app.command("rendezvous-energy")
def rendezvous_energy(
    *, quick: Quick = False, out: Out = Path("lab"), master: Master = None, as_json: AsJson = False
) -> None:
    """Huang's thesis, 5.1: joules of discovery, plain and with a controller: pairs, rooms, a target that never comes.

    Computes the least gap between arrivals, and the least number of phones, at which a controller saves energy: with
    and without park mode, for inquiries of 10.24 s and for inquiries that end with the target's answer. Also how much
    more energy a controller costs when both devices are present. The plot shows where it costs more. The report names
    the sources of all powers.

    Example: whimbrel lab rendezvous-energy --quick --out lab
    """
    from whimbrel.lab.rendezvous.energy import energy

    _run(lambda _: energy(is_quick=quick), out, master=master, as_json=as_json)


@app.command("rendezvous-load")
def rendezvous_load(
    *, quick: Quick = False, out: Out = Path("lab"), master: Master = None, as_json: AsJson = False
) -> None:
    """Huang's thesis, 5.4.2 and 5.4.3: waiting time by event rate, with one queue and two, for 7 to 255 devices.

    Also measures priorities: matching while many devices disconnect at once, with and without the order of 5.4.2.

    Example: whimbrel lab rendezvous-load --quick --out lab
    """
    from whimbrel.lab.rendezvous.load import load

    _run(lambda _: load(is_quick=quick), out, master=master, as_json=as_json)


@app.command("rendezvous-attacks")
def rendezvous_attacks(
    *, quick: Quick = False, out: Out = Path("lab"), master: Master = None, as_json: AsJson = False
) -> None:
    """Huang's thesis, 2.1.4: bluejacking, bluesnarfing, trackers and token thieves, with a controller and without.

    Each attacker acts on the simulated radio, with a controller and with plain Bluetooth: how long a device is exposed,
    and how often the attacker succeeds.

    Example: whimbrel lab rendezvous-attacks --quick --out lab
    """
    from whimbrel.lab.rendezvous.attacks import attacks

    _run(lambda _: attacks(is_quick=quick), out, master=master, as_json=as_json)


@app.command("rendezvous-dumb")
def rendezvous_dumb(
    *, quick: Quick = False, out: Out = Path("lab"), master: Master = None, as_json: AsJson = False
) -> None:
    """Huang's thesis, 5.4.4: a headset and its phone, either of them first, with and without a controller.

    The controller stands in for the phone until the phone arrives or wakes. Measures the energy of both devices, the
    time to their connection, and how soon the controller hears a page (connection request) of the headset: it knows the
    phone's clock only if the phone came first.

    Example: whimbrel lab rendezvous-dumb --quick --out lab
    """
    from whimbrel.lab.rendezvous.dumb import dumb

    _run(lambda _: dumb(is_quick=quick), out, master=master, as_json=as_json)


def _run_here(experiment: Experiment, out: Path, *, as_json: bool) -> None:
    """Run an experiment without Spark: in this process, or in one process per point."""
    from whimbrel.lab.experiment import run
    from whimbrel.lab.own_processes import check_writable

    begun = time.perf_counter()
    check_writable(out)
    with _progress(experiment.name) as told:
        result = run(None, experiment, out, on_progress=told)
    _show(experiment, result, out, took_s=time.perf_counter() - begun, as_json=as_json)


def _run(
    made: Callable[[str], Experiment], out: Path, *, master: str | None, as_json: bool, ship: Path | None = None
) -> None:
    begun = time.perf_counter()
    with session(master) as spark:
        from whimbrel.lab.experiment import run
        from whimbrel.pipeline.spark.spark_session import send_file

        experiment = made("" if ship is None else send_file(spark, ship.absolute()))
        with _progress(experiment.name) as told:
            result = run(spark, experiment, out, on_progress=told)
    _show(experiment, result, out, took_s=time.perf_counter() - begun, as_json=as_json)


def _show(experiment: Experiment, result: Result, out: Path, *, took_s: float, as_json: bool) -> None:
    if as_json:
        found = {
            "name": result.name,
            "points": result.points,
            "seconds": round(took_s, 1),
            "core_s": round(result.core_s, 1),
            "plot": str(result.plot),
            "claims": result.findings.claims,
            "notes": result.findings.notes,
            "tables": [{"title": each.title, "head": each.head, "rows": each.rows} for each in result.findings.tables],
            "assumptions": dict(experiment.assumptions),
        }
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    typer.echo(result.text)
    typer.echo(f"{took_s:,.1f} s; plot, table and points are in {out}")


@contextmanager
def _progress(doing: str) -> Iterator[Callable[[int, int], None]]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _done, _total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(doing, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
