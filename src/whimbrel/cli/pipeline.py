"""``whimbrel pipeline``: the log by the million, on Spark."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from whimbrel.errors import InvalidValueError, MissingDependencyError
from whimbrel.model.clock import parse_time
from whimbrel.pipeline import TABLES_MADE

if TYPE_CHECKING:  # pyspark takes a second to load, and its Java ten to start
    from pyspark.sql import SparkSession

    from whimbrel.pipeline.progress import Stages

__all__ = ["app"]

app = typer.Typer(
    help="Work on whole logs with Spark: make one, derive tables from it, look at them, replay the past.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_UNITS_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_AGO = re.compile(r"([0-9]{1,6})([smhd])")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

Log = Annotated[Path, typer.Option("--log", metavar="DIR", help="The directory of the log.")]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Where Spark runs, e.g. spark://host:7077; this machine by default."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1_000_000, help="How many rows at most.")]


@app.command()
def generate(
    *,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write the log; made if need be.")],
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
    """Make a log of any size, from a seed, to try things on.

    A hospital ward (vital signs, alarms, nurses with phone and desk), a campus (topics as popular as Zipf says) or a
    city (cars, lights and hazards with a place and a radius, and people who move). Sessions, devices and subscriptions
    come and go along the log as they would in life.

    Example: whimbrel pipeline generate --world campus --events 1000000 --out campus-log
    """
    with _session(master) as spark:
        from whimbrel.pipeline.generate import Recipe
        from whimbrel.pipeline.generate import generate as make

        recipe = Recipe(
            world=world,
            events=events,
            seed=seed,
            devices=devices,
            nodes=tuple(nodes.split(",")),
            start=_instant("--start", start),
            hours=hours,
        )
        begun = time.perf_counter()
        with _watched(spark, f"Making the {world}") as _:
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
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write the tables, a folder each.")],
    tables: Annotated[
        str | None,
        typer.Option("--tables", metavar="A,B", help="Which tables, e.g. matches,popularity; all by default."),
    ] = None,
    window: Annotated[str, typer.Option("--window", metavar="TIME", help="Windows of popularity: 15m, 1h, 1d.")] = "1h",
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, help="Devices that carry samples.")] = 100,
    slots: Annotated[int, typer.Option("--slots", metavar="N", min=1, help="Samples that each of them holds.")] = 10,
    sample_bytes: Annotated[int, typer.Option("--sample-bytes", metavar="N", min=1, help="Size of a sample.")] = 100,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Derive tables from a log: who wanted what, what became of it, what is popular, and more.

    Rows of the log that cannot be right go to dead_letters with a reason; nothing is dropped silently. Look at what
    was made with: whimbrel pipeline show.

    Example: whimbrel pipeline run --log ward-log --out ward-tables --tables matches,popularity
    """
    from whimbrel.log.layout import check_format

    wanted, window_us = _tables(tables), _duration("--window", window)
    check_format(log)  # a slip in a path need not wait for Spark
    with _session(master) as spark:
        from whimbrel.pipeline.jobs import Plan
        from whimbrel.pipeline.jobs import run as run_jobs

        plan = Plan(window_us=window_us, nodes=nodes, slots_per_node=slots, sample_bytes=sample_bytes)
        begun = time.perf_counter()
        with _watched(spark, "Starting") as doing:
            made = run_jobs(spark, log=log, out=out, tables=wanted, plan=plan, on_progress=doing)
        took_s = time.perf_counter() - begun
    if as_json:
        typer.echo(json.dumps({"out": str(out), "seconds": round(took_s, 3), "tables": made}))
        return
    for table, told in made.items():
        typer.echo(f"{table:<14}{told['rows']:>14,} rows {told['seconds']:>9.1f} s")
    if "replicas" in made:
        typer.echo(f"replicas are planned for {nodes} nodes of {slots} slots; --nodes and --slots say otherwise")
    typer.echo(f"{len(made)} tables in {took_s:.1f} s, in {out}")


@app.command()
def show(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Which table, e.g. popularity.")],
    *,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where `run` wrote the tables.")],
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show rows of a table that `run` made; popularity and replicas as bars, the largest first.

    Example: whimbrel pipeline show popularity --out ward-tables
    """
    from whimbrel.pipeline.show import as_json as lines
    from whimbrel.pipeline.show import drawn, head  # Arrow takes a moment to load

    rows = head(out, table, limit=limit)
    if as_json:
        for line in lines(rows):
            typer.echo(line)
    else:
        Console(markup=False, highlight=False, emoji=False).print(drawn(table, rows))


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
    """Find what a filter would have selected from the history: try a subscription on the past before making it.

    Prints the first matches in the order of their times, and how many there are in all.

    Example: whimbrel pipeline replay --log ward-log --filter "pulse > 120 && spo2 < 92" --since 24h
    """
    if wanted is not None:
        from whimbrel.language.filters import parse

        parse(wanted)  # a slip in the filter need not wait for Spark
    from whimbrel.log.layout import check_format

    check_format(log)
    with _session(master) as spark:
        from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows

        from whimbrel.pipeline.replay import replay as select
        from whimbrel.pipeline.source import read_table

        with _watched(spark, "Replaying") as _:
            begin, end = (_moment(spark, log, name, text) for name, text in (("--since", since), ("--until", until)))
            history = read_table(spark, log, "publications", since=begin, until=end)
            found = select(history, filter_text=wanted, since=begin, until=end, subject=subject).cache()
            count = found.count()
            rows = found.orderBy(F.col("published_at"), F.col("node"), F.col("seq")).limit(limit).toArrow()
    from whimbrel.pipeline.show import as_json as lines
    from whimbrel.pipeline.show import drawn

    if as_json:
        for line in lines(rows):
            typer.echo(line)
        return
    Console(markup=False, highlight=False, emoji=False).print(drawn("publications", rows))
    typer.echo(f"{count:,} notifications match" + (f"; shown: the first {limit:,}" if count > limit else ""))


# -- options ---------------------------------------------------------------------------------------------------------


def _tables(text: str | None) -> list[str]:
    if text is None:
        return list(TABLES_MADE)
    wanted = [name.strip() for name in text.split(",")]
    for name in wanted:
        if name not in TABLES_MADE:
            raise InvalidValueError("--tables", name, ", ".join(TABLES_MADE))
    return wanted


def _duration(option: str, text: str) -> int:
    found = _AGO.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise InvalidValueError(option, text, "a number and s, m, h or d, such as 15m")
    return int(found[1]) * _UNITS_US[found[2]]


def _instant(option: str, text: str) -> int:
    try:
        return parse_time(f"{text}T00:00:00Z" if _DAY.fullmatch(text) else text)
    except InvalidValueError:
        raise InvalidValueError(option, text, "a date, or ISO 8601 such as 2026-01-05T09:30:00Z") from None


def _moment(spark: SparkSession, log: Path, option: str, text: str | None) -> int | None:
    """Return the time that *text* names; 24h is that long before the last notification of the log."""
    ago = None if text is None else _AGO.fullmatch(text)
    if text is None or ago is None:
        return None if text is None else _instant(option, text)
    from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows

    from whimbrel.pipeline.source import last_date, read_table

    day = last_date(log, "publications")
    since = None if day is None else int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000
    last = read_table(spark, log, "publications", since=since).agg(F.unix_micros(F.max("published_at"))).collect()[0][0]
    return None if last is None else int(last) - int(ago[1]) * _UNITS_US[ago[2]]


# -- Spark -----------------------------------------------------------------------------------------------------------


@contextmanager
def _session(master: str | None) -> Iterator[SparkSession]:
    """Start Spark for one command, and turn its failures into one sentence."""
    console = Console(stderr=True)
    with console.status("Starting Spark …") if console.is_terminal else _nothing():
        try:
            from whimbrel.pipeline.sessions import clear_errors, local_session
        except ModuleNotFoundError as error:
            remedy = "run: pip install 'whimbrel[spark]'"
            raise MissingDependencyError("the pipeline", error.name or "pyspark", remedy) from None
        from pyspark.sql import SparkSession

        is_ours = SparkSession.getActiveSession() is None
        spark = local_session(master=master)
    try:
        with clear_errors():
            yield spark
    finally:
        if is_ours:  # who calls the command from a program of theirs keeps their session
            spark.stop()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _watched(spark: SparkSession, title: str) -> Iterator[Callable[..., None]]:
    """Show one live line on a terminal: what is made, the tasks of Spark's stages, rows a second.

    Yields what to call with the name of what is made now.
    """
    from whimbrel.pipeline.progress import StageWatch

    console = Console(stderr=True)
    line = _Line(title)
    if not console.is_terminal:
        yield line.doing
        return
    with Live(line, console=console, transient=True, refresh_per_second=4), StageWatch(spark, line.seen):
        yield line.doing


class _Line:
    """The live line; it is drawn anew some times a second, by another thread."""

    def __init__(self, title: str) -> None:
        self._title, self._begun = title, time.perf_counter()
        self._stages: Stages | None = None
        self._stage_begun = self._begun

    def doing(self, title: str, *_: object) -> None:
        """Say what is made now."""
        self._title = title

    def seen(self, stages: Stages) -> None:
        """Take in what Spark does now."""
        if self._stages is None or self._stages.names != stages.names:
            self._stage_begun = time.perf_counter()
        self._stages = stages

    def __rich__(self) -> Text:
        """Return the line as it is now."""
        elapsed_s = time.perf_counter() - self._begun
        stages = self._stages
        if stages is None:
            return Text(f"{self._title} … {elapsed_s:.0f} s")
        stage = stages.names[0].partition(" at ")[0]
        stage_s = max(time.perf_counter() - self._stage_begun, 0.001)
        rows = f", {stages.rows:,} rows, {stages.rows / stage_s:,.0f} a second" if stages.rows else ""
        tasks = f"{stages.done}/{stages.tasks} tasks of stage {stages.last} ({stage})"
        return Text(f"{self._title} … {tasks}{rows}; {elapsed_s:.0f} s")
