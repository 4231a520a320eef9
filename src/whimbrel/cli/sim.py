"""``whimbrel sim``: made-up worlds of people with radios, and what carrying from phone to phone does in them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from whimbrel.errors import InvalidValueError

if TYPE_CHECKING:  # numpy and numba need not be loaded for other commands
    from whimbrel.sim.campus.scenario import Campus
    from whimbrel.sim.contacts.table import Contacts

__all__ = ["app"]

app = typer.Typer(
    help="Simulate people who carry samples for each other: contacts, Campus++, unicast baselines.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_MOST_POSITIONS = 20_000_000

Nodes = Annotated[int, typer.Option("--nodes", metavar="N", help="How many nodes walk.")]
Area = Annotated[float, typer.Option("--area", metavar="METRES", help="The side of the square they walk in.")]
Speed = Annotated[float, typer.Option("--speed", metavar="M/S", help="How fast they walk.")]
Pause = Annotated[float, typer.Option("--pause", metavar="SECONDS", help="How long they pause at each point.")]
Range = Annotated[float, typer.Option("--range", metavar="METRES", help="How far their radios reach.")]
Seconds = Annotated[float, typer.Option("--seconds", metavar="N", help="How long it is simulated.")]
Seed = Annotated[int, typer.Option("--seed", help="Another seed, another walk; the same seed, the same bytes.")]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Contacts from a file in the format of the ONE, instead of a walk."),
]
RecordedWalks = Annotated[
    Path | None,
    typer.Option("--walks", metavar="FILE", help="Walks as recorded in rows of reports, as --positions writes them."),
]
Positions = Annotated[
    Path | None,
    typer.Option("--positions", metavar="FILE", help="Write the walk as rows of reports, for whimbrel log import."),
]
PositionsEvery = Annotated[
    float, typer.Option("--positions-every", metavar="SECONDS", help="How far apart those rows are.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@app.command()
def contacts(
    *,
    nodes: Nodes = 100,
    area: Area = 500.0,
    speed: Speed = 1.0,
    pause: Pause = 5.0,
    radio_range: Range = 50.0,
    seconds: Seconds = 500_000.0,
    seed: Seed = 1,
    trace: Trace = None,
    walks: RecordedWalks = None,
    positions: Positions = None,
    positions_every: PositionsEvery = 10.0,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Write the contacts in the format of the ONE.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let nodes walk at random and tell how often and how long they are in contact.

    Random waypoint from its stationary regime, contacts by exact crossing; the defaults are the world of Campus++.
    contact_rate_s: seconds from contact to contact of a pair. meeting_time_s: from a random instant to the next.

    Example: whimbrel sim contacts --seconds 100000 --seed 7 --json
    """
    from whimbrel.sim.contacts.statistics import contact_statistics
    from whimbrel.sim.contacts.traces import trace_lines

    source = _source(nodes, area, speed, pause, radio_range, seconds, seed, trace, walks)
    found, rate = _contacts(source, positions, positions_every)
    if write is not None:
        with write.open("w", encoding="utf-8") as file:
            file.writelines(trace_lines(found))
    _print(asdict(contact_statistics(found)) | {"sim_s_per_wall_s": rate(found.seconds)}, as_json=as_json)


@app.command()
def campus(
    *,
    nodes: Nodes = 100,
    area: Area = 500.0,
    speed: Speed = 1.0,
    pause: Pause = 5.0,
    radio_range: Range = 50.0,
    seconds: Seconds = 500_000.0,
    seed: Seed = 1,
    trace: Trace = None,
    walks: RecordedWalks = None,
    positions: Positions = None,
    positions_every: PositionsEvery = 10.0,
    memory: Annotated[int, typer.Option("--memory", metavar="N", help="Samples that a node has places for.")] = 10,
    topics: Annotated[int, typer.Option("--topics", metavar="N", help="How many topics are published on.")] = 100,
    workload: Annotated[
        float, typer.Option("--workload", metavar="SHARE", help="The part of all places that copies may take.")
    ] = 0.8,
    popularity: Annotated[
        str, typer.Option("--popularity", metavar="equal|zipf:A", help="How subscribers are shared among topics.")
    ] = "equal",
    allocation: Annotated[
        str, typer.Option("--allocation", metavar="sqrt|flat", help="Copies by the root of subscribers, or the same.")
    ] = "sqrt",
    subscribers: Annotated[
        float, typer.Option("--subscribers", metavar="N", help="Subscribers of a topic, in the mean.")
    ] = 5.0,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="Between two samples of a topic, in the mean.")
    ] = 4_000.0,
    hello: Annotated[
        str,
        typer.Option("--hello", metavar="change|SECONDS", help="Hello whenever a list changes, or with this period."),
    ] = "change",
    transfer: Annotated[
        float, typer.Option("--transfer", metavar="SECONDS", help="From a request until its answer has come.")
    ] = 0.0,
    warmup: Annotated[
        float | None,
        typer.Option(
            "--warmup", metavar="SECONDS", help="What is published before does not count; else two intervals."
        ),
    ] = None,
    show_retrieved: Annotated[
        bool, typer.Option("--show-retrieved", help="Subscribers show what they retrieved to other subscribers.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate Campus++: samples of topics are sprayed to L carriers, where subscribers retrieve them.

    L of each topic comes from the replica plan. Prints delays from publication to retrieval, how many were never
    retrieved, how long spraying took, the replicas that subscribers saw, messages and lost copies, and the assumptions.

    Example: whimbrel sim campus --topics 50 --workload 0.8 --popularity zipf:0.8 --json
    """
    from whimbrel.sim.campus.fast import simulate
    from whimbrel.sim.campus.report import campus_report

    settings = _campus(
        memory=memory,
        topics=topics,
        workload=workload,
        popularity=popularity,
        allocation=allocation,
        subscribers=subscribers,
        interval=interval,
        hello=hello,
        transfer=transfer,
        shows_retrieved=show_retrieved,
        warmup=warmup,
    )
    source = _source(nodes, area, speed, pause, radio_range, seconds, seed, trace, walks)
    if trace is None and walks is None:
        settings.copies(nodes)  # a plan that cannot be need not wait for contacts
    found, rate = _contacts(source, positions, positions_every)
    world = settings.world(nodes=found.nodes, seconds=found.seconds, seed=seed)
    with _progress("Simulating") as told:
        outcome = simulate(found, settings, world, on_progress=told)
    speed_up = rate(found.seconds)
    report = campus_report(outcome, settings, world) | {"sim_s_per_wall_s": speed_up}
    _print(report, as_json=as_json, assumptions=settings.assumptions())


@app.command()
def unicast(
    *,
    nodes: Nodes = 100,
    area: Area = 500.0,
    speed: Speed = 1.0,
    pause: Pause = 5.0,
    radio_range: Range = 50.0,
    seconds: Seconds = 500_000.0,
    seed: Seed = 1,
    trace: Trace = None,
    walks: RecordedWalks = None,
    positions: Positions = None,
    positions_every: PositionsEvery = 10.0,
    copies: Annotated[
        int, typer.Option("--copies", metavar="L", help="Copies of a message; 1 is direct delivery, 0 epidemic.")
    ] = 10,
    interval: Annotated[float, typer.Option("--interval", metavar="SECONDS", help="Between two new messages.")] = 30.0,
    message_bytes: Annotated[
        int, typer.Option("--message-bytes", metavar="BYTES", help="The size of a message; 0: transfers take no time.")
    ] = 0,
    rate_bytes: Annotated[
        float, typer.Option("--rate", metavar="BYTES/S", help="How fast a transfer is; a node has one at a time.")
    ] = 250_000.0,
    look: Annotated[
        float, typer.Option("--look", metavar="SECONDS", help="How often nodes look who is there; 0: at once.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Simulate messages from one node to one other: binary spray and wait, direct delivery, epidemic.

    Figures have the names of the ONE's MessageStatsReport. theory_s is the exact mean delay of a chain in which any two
    nodes meet after an exponential time of the measured mean; in contacts that cluster it is not met.

    Example: whimbrel sim unicast --range 10 --copies 5 --json
    """
    from whimbrel.sim.contacts.statistics import contact_statistics
    from whimbrel.sim.unicast.fast import fast_route
    from whimbrel.sim.unicast.report import message_stats
    from whimbrel.sim.unicast.scenario import Unicast
    from whimbrel.sim.unicast.theory import MOST_COPIES, spray_delay_s

    settings = Unicast(
        copies=copies, interval_s=interval, message_bytes=message_bytes, rate_bytes_s=rate_bytes, look_s=look
    )
    source = _source(nodes, area, speed, pause, radio_range, seconds, seed, trace, walks)
    found, rate = _contacts(source, positions, positions_every)
    parcels = settings.parcels(nodes=found.nodes, seconds=found.seconds, seed=seed)
    with _progress("Routing", is_known=False):
        outcome = fast_route(found, settings, parcels)
    speed_up = rate(found.seconds)
    meeting_s = contact_statistics(found).meeting_time_s
    is_known = meeting_s is not None and 1 <= copies <= MOST_COPIES
    theory_s = spray_delay_s(copies, nodes=found.nodes, meeting_s=meeting_s) if is_known and meeting_s else None
    report = message_stats(outcome, parcels) | {"theory_s": theory_s, "sim_s_per_wall_s": speed_up}
    _print(report, as_json=as_json, assumptions=settings.assumptions())


# -- what the three share --------------------------------------------------------------------------------------------


def _source(  # noqa: PLR0917 # the options of the commands, in their order
    nodes: int,
    area: float,
    speed: float,
    pause: float,
    radio_range: float,
    seconds: float,
    seed: int,
    trace: Path | None,
    walks: Path | None,
) -> object:
    if trace is not None and walks is not None:
        raise InvalidValueError("--trace", "with --walks", "one of the two")
    if trace is not None:
        return trace
    from whimbrel.sim.mobility.waypoint import RandomWaypoint
    from whimbrel.sim.worlds import RecordedWorld, WalkedWorld

    if walks is not None:
        return RecordedWorld(path=walks, range_m=radio_range)

    waypoint = RandomWaypoint(nodes=nodes, area_m=area, speed_m_s=speed, pause_s=pause)
    return WalkedWorld(waypoint=waypoint, range_m=radio_range, seconds=seconds, seed=seed)


def _contacts(source: object, positions: Path | None, every_s: float) -> tuple[Contacts, Callable[[float], float]]:
    """Return the contacts, and what tells simulated seconds per second from their making on."""
    from whimbrel.sim.mobility.positions import position_lines
    from whimbrel.sim.worlds import RecordedWorld, WalkedWorld, make_contacts, make_ready

    assert isinstance(source, Path | RecordedWorld | WalkedWorld)
    if positions is not None:
        _check_positions(source, every_s)
    with _progress("Preparing; the first time on a machine kernels are compiled", is_known=False):
        if isinstance(source, RecordedWorld):
            source.walks()  # see below
        if isinstance(source, Path):
            found, walks = make_contacts(source)  # a bad line need not wait for a compiler
            make_ready()
            begun = time.perf_counter()
        else:
            make_ready()
            begun = time.perf_counter()
            found, walks = make_contacts(source)
        took_s = time.perf_counter() - begun
    if positions is not None and walks is not None:
        with positions.open("w", encoding="utf-8") as file, _progress("Writing positions", is_known=False):
            file.writelines(position_lines(walks, every_s=every_s))
    begun = time.perf_counter()
    return found, lambda seconds: seconds / max(took_s + time.perf_counter() - begun, 1e-9)


def _check_positions(source: object, every_s: float) -> None:
    from whimbrel.sim.worlds import WalkedWorld

    if not isinstance(source, WalkedWorld):
        raise InvalidValueError("--positions", "with --trace or --walks", "a random walk")
    rows = source.waypoint.nodes * source.seconds / every_s if every_s > 0 else float("inf")
    if rows > _MOST_POSITIONS:
        allowed = f"what makes at most {_MOST_POSITIONS:,} rows of the walk"
        raise InvalidValueError("--positions-every", every_s, allowed)


def _campus(
    *,
    memory: int,
    topics: int,
    workload: float,
    popularity: str,
    allocation: str,
    subscribers: float,
    interval: float,
    hello: str,
    transfer: float,
    shows_retrieved: bool,
    warmup: float | None,
) -> Campus:
    from whimbrel.sim.campus.scenario import Campus

    if allocation not in {"sqrt", "flat"}:
        raise InvalidValueError("--allocation", allocation, "sqrt or flat")
    return Campus(
        memory=memory,
        topics=topics,
        workload=workload,
        zipf_exponent=_zipf_exponent(popularity),
        allocation="sqrt" if allocation == "sqrt" else "flat",
        subscribers=subscribers,
        interval_s=interval,
        hello_s=_hello_s(hello),
        transfer_s=transfer,
        shows_retrieved=shows_retrieved,
        warmup_s=warmup,
    )


def _zipf_exponent(text: str) -> float:
    name, _, number = text.partition(":")
    try:
        if text == "equal" or name == "zipf":
            return 0.0 if text == "equal" else float(number)
    except ValueError:
        pass
    raise InvalidValueError("--popularity", text, "equal, or zipf:A such as zipf:0.8")


def _hello_s(text: str) -> float | None:
    try:
        return None if text == "change" else float(text)
    except ValueError:
        raise InvalidValueError("--hello", text, "change, or a period in seconds") from None


@contextmanager
def _progress(doing: str, *, is_known: bool = True) -> Iterator[Callable[[float], None]]:
    """Show on a terminal what is done; yield what to tell the done share, from 0 to 1."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(doing, total=1.0 if is_known else None)
        yield lambda share: shown.update(task, completed=share)


def _print(report: Mapping[str, object], *, as_json: bool, assumptions: Mapping[str, object] | None = None) -> None:
    if as_json:
        rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in report.items()}
        typer.echo(json.dumps(rounded | ({} if assumptions is None else {"assumptions": assumptions})))
        return
    for name, value in report.items():
        typer.echo(f"{name:<22}{_shown(value):>16}")
    if assumptions is not None:
        told = ", ".join(f"{name} {_shown(value)}" for name, value in assumptions.items())
        typer.echo(f"assumed: {told}")


def _shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
