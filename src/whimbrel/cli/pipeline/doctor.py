"""``whimbrel pipeline doctor``: finds problems, and says what to do about them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from whimbrel.cli.options.values import read_folder, read_log

if TYPE_CHECKING:  # other commands need not load Arrow and SQLite
    from whimbrel.pipeline.doctor.check import Check

__all__ = ["doctor"]

_SIGNS = {"ok": "ok     ", "warning": "WARNING", "failed": "FAILED "}


def doctor(
    *,
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="DIR", parser=read_log, help="The directory of a log, or a broker's --data."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", parser=read_folder, help="Where `run` writes tables, to look at."),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(
            "--master", metavar="URL", help="Where Spark runs, e.g. spark://host:7077; this machine by default."
        ),
    ] = None,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Do not start Spark, which takes some seconds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Check everything that a pipeline needs, report problems and what to do; exit 1 if a check failed.

    Python and its packages, Java, memory and disks; whether Spark starts and its workers run the same versions; the
    log; the stream that writes to --out: its plan, its state, and how far it is behind. Nothing is changed.

    Example: whimbrel pipeline doctor --log whimbrel-data --out live-tables
    """
    from whimbrel.pipeline.doctor.check import Verdict

    found: list[Check] = []
    for check in _checks(log, out, master, no_spark=no_spark):
        found.append(check)
        if not as_json:  # one by one as they finish: Spark may take its time
            _print(check)
    counts = {verdict: sum(1 for check in found if check.verdict is verdict) for verdict in Verdict}
    if as_json:
        checks = [{**asdict(check), "verdict": check.verdict.value} for check in found]
        typer.echo(json.dumps({"ok": not counts[Verdict.FAILED], "checks": checks}, ensure_ascii=False))
    else:
        typer.echo(", ".join(f"{count} {verdict.value}" for verdict, count in counts.items()))
    if counts[Verdict.FAILED]:
        raise typer.Exit(1)


def _checks(log: Path | None, out: Path | None, master: str | None, *, no_spark: bool) -> Iterator[Check]:
    from whimbrel.pipeline.doctor.machine import examine_folders, examine_machine

    yield from examine_machine()
    yield from examine_folders(log, out)
    if log is not None:
        from whimbrel.pipeline.doctor.logs import examine_log

        yield from examine_log(log)
    if out is not None:
        from whimbrel.pipeline.doctor.streams import examine_stream

        yield from examine_stream(out, log, now=time.time())
    if not no_spark:
        from whimbrel.pipeline.doctor.session import examine_spark

        console = Console(stderr=True)
        if console.is_terminal:
            with console.status("Starting Spark …"):
                found = examine_spark(master)
        else:
            found = examine_spark(master)
        yield from found


def _print(check: Check) -> None:
    typer.echo(f"{_SIGNS[check.verdict.value]} {check.name}: {check.found}")
    if check.remedy:
        wanted = f"wanted: {check.wanted}; " if check.wanted else ""
        typer.echo(f"        {wanted}{check.remedy}")
