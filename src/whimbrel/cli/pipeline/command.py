"""``whimbrel pipeline``: the log by the million, on Spark."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from whimbrel.cli.options.values import read_folder, read_log
from whimbrel.cli.pipeline.batch import run_once
from whimbrel.cli.pipeline.doctor import doctor
from whimbrel.cli.pipeline.run_options import (
    AssumeReceipts,
    AvailableNow,
    Checkpoint,
    Continuous,
    Every,
    FactsPerBatch,
    Keep,
    Lateness,
    MetricsHost,
    MetricsPort,
    Nice,
    Nodes,
    Out,
    RangeM,
    ReplicasFor,
    SampleBytes,
    Since,
    Slots,
    Stale,
    Tables,
    Until,
    Window,
)
from whimbrel.cli.pipeline.times import check_moment, duration, instant, moment
from whimbrel.cli.pipeline.upkeep import compact, vacuum
from whimbrel.cli.process.niceness import give_way
from whimbrel.cli.process.spark import session, watched
from whimbrel.errors import InvalidValueError
from whimbrel.pipeline import TABLES_MADE

__all__ = ["app"]

app = typer.Typer(
    help="Work on whole logs with Spark: make one, derive tables from it, once or for ever, and look at them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_OF_WHOLE_LOGS = ("meetings", "replicas", "dead_letters")
"""Tables that a run for an interval leaves as they are, unless they are named: they are about a whole log."""

Log = Annotated[
    Path, typer.Option("--log", metavar="DIR", parser=read_log, help="The directory of the log, or a broker's --data.")
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Where Spark runs, e.g. spark://host:7077; this machine by default."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1_000_000, help="How many rows at most.")]


@app.command()
def generate(
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", parser=read_folder, help="Where to write the log; made if need be.")
    ],
    world: Annotated[str, typer.Option("--world", help="What it is the log of: ward, campus or city.")] = "ward",
    events: Annotated[int, typer.Option("--events", metavar="N", help="How many facts, all nodes together.")] = 100_000,
    devices: Annotated[
        int | None,
        typer.Option("--devices", metavar="N", help="Devices that come and go; the world has a usual number."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Another seed, another log; the same seed, the same log.")] = 1,
    nodes: Annotated[str, typer.Option("--nodes", metavar="A,B", help="The nodes that wrote it, by name.")] = "node-1",
    start: Annotated[
        str, typer.Option("--start", metavar="TIME", help="When it begins: ISO 8601, or a date.")
    ] = "2026-01-05",
    hours: Annotated[int, typer.Option("--hours", metavar="N", help="How long it lasts.")] = 24,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Make a log of any size, from a seed, for tests and trials.

    A hospital ward (vital signs, alarms, nurses with phone and desk), a campus (topics with popularity by Zipf) or a
    city (cars, lights and hazards with a place and a radius, and people who move). Sessions, devices and subscriptions
    come and go along the log as they would in reality.

    Example: whimbrel pipeline generate --world campus --events 1000000 --out campus-log
    """
    with session(master) as spark:
        from whimbrel.sim.logs.generate import Recipe
        from whimbrel.sim.logs.generate import generate as make

        recipe = Recipe(
            world=world,
            events=events,
            seed=seed,
            devices=devices,
            nodes=tuple(nodes.split(",")),
            start=instant("--start", start),
            hours=hours,
        )
        begun = time.perf_counter()
        with watched(spark, f"Making the {world}") as _:
            counts = make(spark, recipe, out)
        took_s = time.perf_counter() - begun
    if as_json:
        result = {"log": str(out), "rows": counts, "seconds": round(took_s, 3), "events_per_s": round(events / took_s)}
        typer.echo(json.dumps(result))
        return
    for table, rows in counts.items():
        typer.echo(f"{table:<14}{rows:>14,}")
    typer.echo(f"{events:,} facts in {took_s:.1f} s, {events / took_s:,.0f} a second, in {out}")
    typer.echo(f"Next: whimbrel pipeline run --log {out} --out {out}-tables")


@app.command()
def run(
    *,
    log: Log,
    out: Out,
    tables: Tables = None,
    window: Window = "1h",
    since: Since = None,
    until: Until = None,
    nodes: Nodes = None,
    slots: Slots = None,
    replicas_for: ReplicasFor = "#",
    sample_bytes: SampleBytes = 100,
    range_m: RangeM = 50.0,
    stale: Stale = "2m",
    continuous: Continuous = False,
    available_now: AvailableNow = False,
    every: Every = None,
    checkpoint: Checkpoint = None,
    facts_per_batch: FactsPerBatch = None,
    lateness: Lateness = None,
    keep: Keep = None,
    assume_receipts: AssumeReceipts = None,
    nice: Nice = None,
    metrics_port: MetricsPort = -1,
    metrics_host: MetricsHost = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Derive tables from a log: who wanted what, what became of it, what is popular, and more.

    Rows of the log that cannot be right go to dead_letters with a reason; nothing is dropped silently. Show the
    resulting tables with: whimbrel pipeline show.

    With --since and --until only rows of that time are written, and replace the tables' rows of that time: a backfill.
    Earlier facts are taken into account, so that the rows equal those of a run over the whole log; they are read from
    the nearest checkpoint on, which an export has for each day. Tables about a whole log are left as they are:
    contacts, meetings, replicas and dead_letters; --tables may name them, and then all of the log is read.

    With --continuous the tables follow a log that a broker writes, until the command is stopped (Ctrl-C or SIGTERM),
    and continue from there when it is started again. With --json each batch is a line.

    Example: whimbrel pipeline run --log ward-log --out ward-tables --tables matches,popularity

    Example: whimbrel pipeline run --log ward-log --out ward-tables --since 2026-01-05 --until 2026-01-06

    Example: whimbrel pipeline run --log whimbrel-data --out live-tables --continuous --every 2s
    """
    from whimbrel.log.layout import check_format

    for option, text in (("--since", since), ("--until", until)):
        if text is not None and (continuous or available_now):
            raise InvalidValueError(option, text, "a run without a stream", f"{option}: a stream writes all rows")
        check_moment(option, text)
    _refuse_strays(
        {"--every": every},
        {
            "--checkpoint": checkpoint,
            "--facts-per-batch": facts_per_batch,
            "--lateness": lateness,
            "--keep": keep,
            "--metrics-port": None if metrics_port < 0 else metrics_port,
            "--metrics-host": metrics_host,
        },
        continuous=continuous,
        available_now=available_now,
    )
    if metrics_host is not None and metrics_port < 0:
        raise InvalidValueError("--metrics-host", metrics_host, "with a port", "--metrics-host needs --metrics-port")
    wanted = _tables(tables, is_interval=since is not None or until is not None)
    plan = {
        "window_us": duration("--window", window),
        "nodes": nodes or 100,
        "slots_per_node": slots or 10,
        "takes_census": nodes is None and slots is None,
        "replicas_for": replicas_for,
        "sample_bytes": sample_bytes,
        "range_m": range_m,
        "stale_us": duration("--stale", stale),
        "assume_receipts": assume_receipts,
    }
    of_stream = {
        "tables": () if tables is None else tuple(wanted),
        "lateness_us": duration("--lateness", lateness or "1d"),
    }
    if keep is not None:
        of_stream["keep_us"] = duration("--keep", keep)
    if facts_per_batch is not None:
        of_stream["facts_per_batch"] = facts_per_batch
    every_us = None if available_now else duration("--every", every or "2s")
    check_format(log)  # find a wrong path before Spark starts
    if not continuous and not available_now:
        give_way(nice or 0)  # child processes inherit the niceness
        run_once(log, out, wanted, plan, (since, until), master=master, as_json=as_json)
        return
    if master is not None and master.startswith("sc://"):
        from whimbrel.pipeline.spark.spark_session import NotThroughConnectError

        raise NotThroughConnectError("a stream")
    from whimbrel.cli.pipeline.stream import Shell, run_stream

    shell = Shell(
        every_us=every_us,
        nice=10 if nice is None else nice,
        metrics=None if metrics_port < 0 else (metrics_host or "127.0.0.1", metrics_port),
        master=master,
        checkpoint=checkpoint,
        as_json=as_json,
    )
    run_stream(log, out, plan | of_stream, shell)


@app.command()
def show(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Which table, e.g. popularity.")],
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", parser=read_folder, help="Where `run` wrote the tables.")
    ],
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show rows of a table that `run` made; popularity and replicas as bars, the largest first.

    Example: whimbrel pipeline show popularity --out ward-tables
    """
    from whimbrel.pipeline.show import as_json as lines
    from whimbrel.pipeline.show import draw_table, emptiness, head, to_paste  # Arrow takes a moment to load

    rows = head(out, table, limit=limit)
    if as_json:
        for line in lines(rows):
            typer.echo(line)
        return
    if rows.num_rows:
        Console(markup=False, highlight=False, emoji=False).print(draw_table(table, rows))
    else:
        typer.echo(emptiness(table))
    typer.echo("All of it:", err=True)
    for line in to_paste(out, table):
        typer.echo(f"  {line}", err=True)


@app.command()
def replay(
    *,
    log: Log,
    wanted: Annotated[
        str | None, typer.Option("--filter", metavar="EXPR", help='A filter, e.g. "pulse > 120"; everything without.')
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help="From when on: 24h before the log's end, a date, or ISO 8601."),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Until when, likewise.")] = None,
    subject: Annotated[
        str | None,
        typer.Option("--subject", metavar="T", help="A subject; + and # stand for levels, as in bed/+/pump."),
    ] = None,
    limit: Limit = 20,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Find the notifications in the history that a filter selects: test a subscription on the past before making it.

    Prints the first matches in the order of their times, and the number of all matches.

    Example: whimbrel pipeline replay --log ward-log --filter "pulse > 120 && spo2 < 92" --since 24h
    """
    if wanted is not None:
        from whimbrel.language.filters import parse

        parse(wanted)  # find an error in the filter before Spark starts
    from whimbrel.log.layout import check_format

    check_format(log)
    for option, text in (("--since", since), ("--until", until)):
        check_moment(option, text)
    with session(master) as spark:
        from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows

        from whimbrel.pipeline.replay import replay as select
        from whimbrel.pipeline.spark.reading import read_table

        with watched(spark, "Replaying") as _:
            begin, end = (moment(spark, log, name, text) for name, text in (("--since", since), ("--until", until)))
            history = read_table(spark, log, "publications", since=begin, until=end)
            found = select(history, filter_text=wanted, since=begin, until=end, subject=subject).cache()
            count = found.count()
            rows = found.orderBy(F.col("published_at"), F.col("node"), F.col("seq")).limit(limit).toArrow()
    from whimbrel.pipeline.show import as_json as lines
    from whimbrel.pipeline.show import draw_table

    if as_json:
        for line in lines(rows):
            typer.echo(line)
        return
    Console(markup=False, highlight=False, emoji=False).print(draw_table("publications", rows))
    typer.echo(f"{count:,} notifications match" + (f"; shown: the first {limit:,}" if count > limit else ""))


app.command()(compact)
app.command()(vacuum)
app.command()(doctor)


# -- options ---------------------------------------------------------------------------------------------------------


def _refuse_strays(
    of_continuous: dict[str, object], of_streams: dict[str, object], *, continuous: bool, available_now: bool
) -> None:
    """Refuse options that must not be combined; the error names them."""
    if continuous and available_now:
        sentence = "--available-now and --continuous exclude each other"
        raise InvalidValueError("--available-now", "--continuous", "one of the two", sentence)
    for option, value in {**of_continuous, **of_streams}.items():
        if value is not None and not continuous and (option in of_continuous or not available_now):
            allowed = "--continuous" if option in of_continuous else "--continuous or --available-now"
            raise InvalidValueError(option, value, f"with {allowed}", f"{option} needs {allowed}")


def _tables(text: str | None, *, is_interval: bool) -> list[str]:
    if text is None and is_interval:
        typer.echo(
            f"note: contacts and {', '.join(_OF_WHOLE_LOGS)} stay as they are; name them with --tables", err=True
        )
        return [name for name in TABLES_MADE if name not in {"contacts", *_OF_WHOLE_LOGS}]
    if text is None:
        return list(TABLES_MADE)
    wanted = [name.strip() for name in text.split(",")]
    for name in wanted:
        if name not in TABLES_MADE:
            raise InvalidValueError("--tables", name, ", ".join(TABLES_MADE))
    return wanted
