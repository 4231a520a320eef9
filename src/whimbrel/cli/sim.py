"""``whimbrel sim``: simulated worlds of people with radios, who carry samples (messages) from phone to phone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from whimbrel.cli.options.groups import with_option_groups
from whimbrel.cli.options.values import read_seconds
from whimbrel.cli.options.worlds import WorldOptions, make_contacts_of, show_progress
from whimbrel.errors import InvalidValueError

__all__ = ["app"]

app = typer.Typer(
    help="Simulate people who carry samples for each other: contacts, Campus++, unicast baselines.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@app.command()
@with_option_groups()
def contacts(
    world: WorldOptions,
    *,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Write the contacts in the format of the ONE.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate nodes that walk at random, and print how often and how long they are in contact.

    The model is random waypoint, started in its stationary distribution; times of contacts are exact, not sampled. The
    defaults are the world of Campus++. contact_rate_s: seconds from contact to contact of a pair. meeting_time_s: from
    a random instant to the next contact.

    Example: whimbrel sim contacts --seconds 100000 --seed 7 --json
    """
    from whimbrel.sim.contacts.statistics import contact_statistics
    from whimbrel.sim.contacts.traces import trace_lines

    found, rate = make_contacts_of(world)
    if write is not None:
        with write.open("w", encoding="utf-8") as file:
            file.writelines(trace_lines(found))
    _print(asdict(contact_statistics(found)) | {"sim_s_per_wall_s": rate(found.seconds)}, as_json=as_json)


@app.command()
@with_option_groups()
def campus(
    world: WorldOptions,
    *,
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
        float,
        typer.Option(
            "--interval", metavar="TIME", parser=read_seconds, help="Between two samples of a topic, in the mean."
        ),
    ] = 4_000.0,
    hello: Annotated[
        str,
        typer.Option("--hello", metavar="change|TIME", help="Hello whenever a list changes, or with this period."),
    ] = "change",
    transfer: Annotated[
        float,
        typer.Option(
            "--transfer", metavar="TIME", parser=read_seconds, help="From a request until its answer has come."
        ),
    ] = 0.0,
    warmup: Annotated[
        float | None,
        typer.Option(
            "--warmup",
            metavar="TIME",
            parser=read_seconds,
            help="Publications before TIME do not count; default: two intervals.",
        ),
    ] = None,
    show_retrieved: Annotated[
        bool, typer.Option("--show-retrieved", help="Subscribers show what they retrieved to other subscribers.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate Campus++: samples of topics are sprayed to L carriers, from which subscribers retrieve them.

    L of each topic comes from the replica plan. Prints delays from publication to retrieval, how many were never
    retrieved, how long spraying took, the replicas that subscribers saw, messages and lost copies, and the assumptions.

    Example: whimbrel sim campus --topics 50 --workload 0.8 --popularity zipf:0.8 --json
    """
    from whimbrel.sim.campus.fast import simulate
    from whimbrel.sim.campus.report import campus_report
    from whimbrel.sim.campus.scenario import Campus

    if allocation not in {"sqrt", "flat"}:
        raise InvalidValueError("--allocation", allocation, "sqrt or flat")
    settings = Campus(
        memory=memory,
        topics=topics,
        workload=workload,
        zipf_exponent=_zipf_exponent(popularity),
        allocation="sqrt" if allocation == "sqrt" else "flat",
        subscribers=subscribers,
        interval_s=interval,
        hello_s=_hello_s(hello),
        transfer_s=transfer,
        shows_retrieved=show_retrieved,
        warmup_s=warmup,
    )
    if world.is_walked:
        settings.copies(world.nodes)  # refuse an impossible plan before making contacts
    found, rate = make_contacts_of(world)
    drawn = settings.world(nodes=found.nodes, seconds=found.seconds, seed=world.seed)
    with show_progress("Simulating") as told:
        outcome = simulate(found, settings, drawn, on_progress=told)
    speed_up = rate(found.seconds)
    report = campus_report(outcome, settings, drawn) | {"sim_s_per_wall_s": speed_up}
    _print(report, as_json=as_json, assumptions=settings.assumptions())


@app.command()
@with_option_groups()
def unicast(
    world: WorldOptions,
    *,
    copies: Annotated[
        int, typer.Option("--copies", metavar="L", help="Copies of a message; 1 is direct delivery, 0 epidemic.")
    ] = 10,
    interval: Annotated[
        float, typer.Option("--interval", metavar="TIME", parser=read_seconds, help="Between two new messages.")
    ] = 30.0,
    message_bytes: Annotated[
        int, typer.Option("--message-bytes", metavar="BYTES", help="The size of a message; 0: transfers take no time.")
    ] = 0,
    rate_bytes: Annotated[
        float, typer.Option("--rate", metavar="BYTES/S", help="How fast a transfer is; a node has one at a time.")
    ] = 250_000.0,
    look: Annotated[
        float,
        typer.Option(
            "--look", metavar="TIME", parser=read_seconds, help="How often nodes look who is there; 0: at once."
        ),
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Simulate messages from one node to another: binary spray and wait, direct delivery, epidemic.

    Figures have the names of the ONE's MessageStatsReport. theory_s is the exact mean delay of a chain in which any two
    nodes meet after an exponential time with the measured mean; contacts that cluster deviate from it.

    Example: whimbrel sim unicast --range 10 --copies 5 --json
    """
    from whimbrel.sim.contacts.statistics import contact_statistics
    from whimbrel.sim.unicast.fast import fast_route
    from whimbrel.sim.unicast.report import message_stats
    from whimbrel.sim.unicast.scenario import Unicast
    from whimbrel.sim.unicast.theory import MAX_COPIES, spray_delay_s

    settings = Unicast(
        copies=copies, interval_s=interval, message_bytes=message_bytes, rate_bytes_s=rate_bytes, look_s=look
    )
    found, rate = make_contacts_of(world)
    parcels = settings.parcels(nodes=found.nodes, seconds=found.seconds, seed=world.seed)
    with show_progress("Routing", is_known=False):
        outcome = fast_route(found, settings, parcels)
    speed_up = rate(found.seconds)
    meeting_s = contact_statistics(found).meeting_time_s
    is_known = meeting_s is not None and 1 <= copies <= MAX_COPIES
    theory_s = spray_delay_s(copies, nodes=found.nodes, meeting_s=meeting_s) if is_known and meeting_s else None
    report = message_stats(outcome, parcels) | {"theory_s": theory_s, "sim_s_per_wall_s": speed_up}
    _print(report, as_json=as_json, assumptions=settings.assumptions())


# -- what is read and printed -----------------------------------------------------------------------------------------


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
        return None if text == "change" else read_seconds(text)
    except typer.BadParameter:
        raise InvalidValueError("--hello", text, "change, or a period such as 90s or 15m") from None


def _print(report: Mapping[str, object], *, as_json: bool, assumptions: Mapping[str, object] | None = None) -> None:
    if as_json:
        rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in report.items()}
        typer.echo(json.dumps(rounded | ({} if assumptions is None else {"assumptions": assumptions})))
        return
    for name, value in report.items():
        typer.echo(f"{name:<22}{_format(value):>16}")
    if assumptions is not None:
        told = ", ".join(f"{name} {_format(value)}" for name, value in assumptions.items())
        typer.echo(f"assumed: {told}")


def _format(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
