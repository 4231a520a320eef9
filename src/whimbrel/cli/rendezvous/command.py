"""``whimbrel rendezvous``: introduces devices without making them discoverable; with tools to try and inspect it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.options.connection import Connection, PasswordFile, Port, User, run
from whimbrel.cli.options.values import seconds_between
from whimbrel.cli.rendezvous import device, groups
from whimbrel.cli.rendezvous.air import air
from whimbrel.cli.rendezvous.controller import controller
from whimbrel.cli.rendezvous.demo import demo
from whimbrel.cli.rendezvous.status import status

if TYPE_CHECKING:  # other commands need not load the simulation
    from whimbrel.rendezvous.controller import Note
    from whimbrel.sim.hall import HallReport

__all__ = ["app"]

_START = "2004-05-26T09:00:00Z"
_TABLE_TRIALS = 5_000

app = typer.Typer(
    help="Introduce devices to each other without making them discoverable (Huang's controller).",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(groups.app, name="group")
app.add_typer(device.app, name="device")
app.command()(controller)
app.command()(air)
app.command()(demo)
app.command()(status)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="The same seed gives the same run.")]


@app.command()
def simulate(
    *,
    devices: Annotated[
        int,
        typer.Option(
            "--devices", metavar="N", min=2, max=260, help="How many come, in pairs: one seeks, one is sought."
        ),
    ] = 20,
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="TIME", parser=seconds_between(1, 86_400), help="How long the hall is open."),
    ] = 180,
    arrivals: Annotated[
        float,
        typer.Option(
            "--arrivals", metavar="TIME", parser=seconds_between(0, 86_400), help="All devices arrive within this time."
        ),
    ] = 60,
    friends: Annotated[
        bool, typer.Option("--friends", help="Publish to members of a group only; tokens are checked.")
    ] = False,
    discoverable: Annotated[
        bool, typer.Option("--discoverable", help="Publishers only turn inquiry scan on; the controller does the rest.")
    ] = False,
    dumb: Annotated[
        int,
        typer.Option(
            "--dumb", metavar="N", min=0, max=64, help="Bring N headsets and their phones, too, in either order."
        ),
    ] = 0,
    seed: Seed = 1,
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="DIR", help="Keep the controller's log there; see `whimbrel log show`."),
    ] = None,
    node: Annotated[
        str, typer.Option("--node", metavar="NODE", help="With --log: the controller's name there.")
    ] = "controller",
    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help="Publish to the broker there, under rendezvous/….")
    ] = None,
    port: Port = 1883,
    user: User = None,
    password_file: PasswordFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each fact and the summary as JSON, one per line.")
    ] = False,
) -> None:
    """Run a controller and devices over a simulated Bluetooth radio, and print the results.

    The devices come in pairs; an odd one is left out. One of a pair publishes its availability (with --discoverable,
    the controller does it), and the other seeks it by name. All of them sleep parked until the controller has a match.
    The radio has the standard's timing: inquiry trains, scan windows, back-off, beacons, seven active members. Minutes
    take a fraction of a second. With --log the controller's facts (opened, matched, notified, …) are stored as
    publications under rendezvous/…; they contain no keys and no tokens, and no address of a device that publishes only
    to friends. With --dumb there are headsets and phones, too; a headset can only page (call) the address of its phone.
    The controller answers for a phone that is away, and listens for one that sleeps; each such use of a phone's address
    is a fact, which `rendezvous status` shows. Exits 1 if a pair was not connected in time.

    Example: whimbrel rendezvous simulate --devices 50 --friends --log hall-log
    """
    from whimbrel.sim.hall import HallScenario, run_hall  # see above

    scenario = HallScenario(
        devices=devices,
        seconds=seconds,
        arrivals_s=arrivals,
        friends_only=friends,
        discoverable=discoverable,
        dumb=dumb,
        seed=seed,
    )
    report = run_hall(scenario)
    if log is not None:
        _keep(log, node, report)
    if host is not None:
        connection = Connection(host=host, port=port, user=user, password_file=password_file)
        _publish(connection, [note for note, _ in report.notes])
    _print_report(report, as_json=as_json)
    if report.connected < report.pairs or report.dumb_connected < report.dumb_pairs:
        raise typer.Exit(1)


@app.command()
def table(
    *,
    trials: Annotated[
        int, typer.Option("--trials", metavar="N", min=10, max=1_000_000, help="How many for each case.")
    ] = _TABLE_TRIALS,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Measure how long inquiry and paging take on the simulated radio, beside Table 2.1 of the thesis.

    The row "inquiry" is the mean over zero, one and two voice links, which the printed range covers.

    Example: whimbrel rendezvous table --trials 20000
    """
    from random import Random

    from whimbrel.rendezvous.radio.simulated.table import PRINTED, measure_table

    rows = measure_table(trials, Random(f"table {seed}"))
    if as_json:
        typer.echo(json.dumps([{**asdict(row), "printed": PRINTED.get(row.what)} for row in rows]))
        return
    heads = ("", "least s", "average s", "99.9% within s", "most s", "printed: least, average, most s")
    lines = [
        (
            row.what,
            f"{row.minimum_s:.5f}",
            f"{row.average_s:.2f}",
            f"{row.most_s:.2f}",
            f"{row.maximum_s:.2f}",
            PRINTED.get(row.what, "–"),
        )
        for row in rows
    ]
    _print_table((heads, *lines))
    typer.echo(f"{trials:,} trials of each case, seed {seed}")


@app.command()
def parameters(*, as_json: AsJson = False) -> None:
    """Print every parameter of the controller, its value and the reason for it (5.3 of the thesis).

    Example: whimbrel rendezvous parameters
    """
    from whimbrel.rendezvous.controller.parameters import Parameters

    rows = list(Parameters().explain())
    if as_json:
        found = [{"name": name, "value": value, "reason": reason} for name, value, reason in rows]
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    width = max(len(name) for name, _, _ in rows)
    for name, value, reason in rows:
        typer.echo(f"{name.ljust(width)}  {value}\n{' ' * width}    {reason}")


@app.command()
def states(
    *,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print two Mermaid diagrams instead of a table.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the states of a subscriber and of a publisher, and the transitions between them (Figure 4-6).

    Example: whimbrel rendezvous states --mermaid
    """
    from whimbrel.rendezvous.device.states import PUBLISHER, SUBSCRIBER, diagram

    tables = {"subscriber": SUBSCRIBER, "publisher": PUBLISHER}
    if mermaid:
        typer.echo("\n\n".join(diagram(each) for each in tables.values()))
        return
    rows = [
        (who, state.value, step.value, following.value)
        for who, each in tables.items()
        for (state, step), following in each.items()
    ]
    if as_json:
        typer.echo(json.dumps([dict(zip(("device", "state", "step", "next"), row, strict=True)) for row in rows]))
        return
    _print_table((("device", "state", "step", "next state"), *rows))


@app.command()
def match(
    publication: Annotated[
        str,
        typer.Argument(metavar="PUBLICATION", help='As JSON: {"address": …, "name": …, "class": …, "groups": […]}.'),
    ],
    subscription: Annotated[
        str,
        typer.Argument(metavar="SUBSCRIPTION", help="Subscription as JSON; a missing or null member matches anything."),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Print whether a publication answers a subscription, attribute by attribute; exit 1 if it does not.

    Address, name and class must be equal (ignoring case) or left open by the subscription. Groups are names here: a
    publication with groups is open only to members of one of them, and a controller would ask both devices for proofs.
    The clock offset does not matter.

    Example: whimbrel rendezvous match '{"address": "00:1A:7D:DA:71:0B", "name": "Bob"}' '{"name": "BOB"}'
    """
    from whimbrel.rendezvous.explain import explain, read_event

    lines = explain(read_event("PUBLICATION", publication), read_event("SUBSCRIPTION", subscription))
    is_match = all(line.is_consistent for line in lines)
    if as_json:
        shown = [{"attribute": line.attribute, "consistent": line.is_consistent, "why": line.why} for line in lines]
        typer.echo(json.dumps({"match": is_match, "attributes": shown}, ensure_ascii=False))
    else:
        typer.echo("match" if is_match else "no match")
        for line in lines:
            typer.echo(f"  {'yes' if line.is_consistent else 'no '}  {line.attribute}: {line.why}")
    if not is_match:
        raise typer.Exit(1)


# -- work ------------------------------------------------------------------------------------------------------------


def _keep(directory: Path, node: str, report: HallReport) -> None:
    from whimbrel.log.writer import LogWriter
    from whimbrel.model.clock import parse_time
    from whimbrel.rendezvous.journal import NoteLog

    start = parse_time(_START)  # a simulation has no date; the thesis's date makes logs of equal runs equal
    with ExitStack() as stack:
        kept = stack.enter_context(NoteLog(LogWriter(directory, node)))
        for note, now in report.notes:
            kept.append(note, start + now)
        kept.sync()


def _publish(connection: Connection, notes: Sequence[Note]) -> None:
    from whimbrel.rendezvous.journal import publish_notes

    client = connection.client("")

    async def send() -> None:
        async with client:
            await publish_notes(client, notes)

    run(send())


# -- output ----------------------------------------------------------------------------------------------------------


def _print_report(report: HallReport, *, as_json: bool) -> None:
    from whimbrel.rendezvous.journal import attributes_of, subject_of

    waits = sorted(report.waits_s)
    summary = {
        "pairs": report.pairs,
        "connected": report.connected,
        "dumb_pairs": report.dumb_pairs,
        "dumb_connected": report.dumb_connected,
        "wait_average_s": round(statistics.fmean(waits), 2) if waits else None,
        "wait_most_s": round(waits[-1], 2) if waits else None,
        "collisions": report.collisions,
        "facts": report.counts,
        "refused_proofs": report.refused_proofs,
    }
    if as_json:
        for note, now in report.notes:
            fact = {"at_s": now / 1e6, "subject": subject_of(note), **attributes_of(note)}
            typer.echo(json.dumps(fact, ensure_ascii=False))
        typer.echo(json.dumps(summary))
        return
    typer.echo(f"{report.connected} of {report.pairs} pairs connected")
    if report.dumb_pairs:
        typer.echo(f"{report.dumb_connected} of {report.dumb_pairs} headsets connected to their phones")
    if waits:
        typer.echo(
            f"from the arrival of the second to the connection: {summary['wait_average_s']} s on average, "
            f"{summary['wait_most_s']} s at most"
        )
    typer.echo("  ".join(f"{name} {count}" for name, count in report.counts.items() if count))


def _print_table(lines: Sequence[Sequence[str]]) -> None:
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    for line in lines:
        typer.echo("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip())
