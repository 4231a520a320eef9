"""``whimbrel demo``: Whimbrel at work on a simulated hospital ward; ends with the outcome of every notification.

A broker in a process of its own, forty devices over real sockets, and the streaming pipeline on the broker's log, in
one terminal. The parts are in ``whimbrel.cli.demo``; a plan (``sim.fleet``) decides what the devices do.
Rule: the page shows activity from the first second. The demo's time starts with the first batch of Spark, which starts
slowly: so a demo of a minute shows a minute of everything.
Rule: however the demo ends, by its time or by Ctrl-C, no process is left running, and all publications are accounted
for. A second Ctrl-C aborts it. In a terminal, where a person waits, it also aborts three seconds after the first.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live

from whimbrel.cli.options.values import read_seconds
from whimbrel.errors import InvalidValueError, MissingDependencyError

if TYPE_CHECKING:  # other commands need not load MQTT, Arrow and Spark
    from whimbrel.cli.demo.show import Show
    from whimbrel.cli.demo.summary import Summary

__all__ = ["demo"]

_JAVA = 17
_PATIENCE_S = 3.0
"""Seconds for which a person who pressed Ctrl-C waits for the outcomes."""
_VERSION = re.compile(r'version "(?:1\.)?([0-9]+)')


def demo(
    *,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", metavar="TIME", parser=read_seconds, help="How long to watch, from the pipeline's first batch."
        ),
    ] = 60.0,
    seed: Annotated[int, typer.Option("--seed", help="Another seed, another day.")] = 7,
    rate: Annotated[
        int, typer.Option("--rate", metavar="N", min=1, max=2_000, help="What the sensors publish together, a second.")
    ] = 150,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep the broker's log and the tables in DIR, which must be empty."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the account as JSON.")] = False,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", hidden=True, help="Draw the page as SVG, for documents.")
    ] = None,
) -> None:
    """Watch a hospital ward: a broker, forty devices that come, go and share sessions, and the pipeline on its log.

    In a terminal the demo is one live page; in a pipe it is a line every two seconds. It ends with an account, computed
    by the pipeline, of the outcome of every notification for every device; if the account has gaps, the exit code is 1.
    Ctrl-C ends the demo early, with the account. In a terminal the account is left out if it takes longer than three
    seconds.

    Needs the extra `spark` and Java 17 or newer.

    Example: whimbrel demo --seconds 30 --keep ward
    """
    _check_spark()
    with _folder(keep) as folder:
        try:
            summary = asyncio.run(_run(folder, seconds, seed, rate, as_json=as_json, picture=picture))
        except KeyboardInterrupt:
            typer.echo("Ended before the account was made: that takes the pipeline some seconds more.", err=True)
            raise
        if as_json:
            typer.echo(json.dumps(summary.as_json()))
        else:
            from whimbrel.cli.demo.summary import draw

            console = Console(markup=False, highlight=False, emoji=False)
            if not console.is_terminal:
                console.width = max(console.width, 120)  # a pipe has no width
            console.print(draw(summary))
            typer.echo(_next_commands(keep))
    if not summary.closes:
        raise typer.Exit(1)


def _next_commands(keep: Path | None) -> str:
    """Return three commands to try next."""
    if keep is None:
        look = ["whimbrel demo --keep ward-demo", "whimbrel pipeline show popularity --out ward-demo/tables"]
    else:
        look = [f"whimbrel pipeline show {table} --out {keep / 'tables'}" for table in ("popularity", "latency")]
    return "\n".join(["Next:", *(f"  {command}" for command in (*look, "whimbrel serve --data my-broker"))])


async def _run(folder: Path, seconds: float, seed: int, rate: int, *, as_json: bool, picture: Path | None) -> Summary:
    from whimbrel.cli.demo.show import Show

    show = Show(folder, seconds=seconds, rng=random.Random(seed), per_s=float(rate))
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        if show.is_ending:
            task.cancel()
        elif Console().is_terminal and not as_json:
            loop.call_later(_PATIENCE_S, task.cancel)
        show.end()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    drawing = asyncio.create_task(_draw(show, is_quiet=as_json))
    drawings = [drawing] if picture is None else [drawing, asyncio.create_task(_draw_pictures(show, picture))]
    try:
        return await show.run()
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for each in drawings:
            each.cancel()
        await asyncio.wait(drawings)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _draw(show: Show, *, is_quiet: bool) -> None:
    """Draw the current state again and again; on standard error if standard output is for the account only."""
    from whimbrel.cli.demo.page import line, page

    console = Console(markup=False, highlight=False, emoji=False)
    if console.is_terminal and not is_quiet:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(page(show.view(), width=console.width, height=console.height), refresh=True)
                await asyncio.sleep(0.25)
    while True:
        await asyncio.sleep(2.0)
        typer.echo(line(show.view()), err=is_quiet)


async def _draw_pictures(show: Show, path: Path) -> None:
    """Write a picture of the page to *path* every second while the ward is busy; the last picture stays."""
    from whimbrel.cli.demo.picture import draw_picture

    while True:
        await asyncio.sleep(1.0)
        view = show.view()
        if view.phase == "busy":
            draw_picture(view, path)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="whimbrel-demo-", ignore_cleanup_errors=True) as name:
            yield Path(name)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise InvalidValueError("--keep", str(keep), "a directory that is empty, or not there yet")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.absolute()


def _check_spark() -> None:
    """Raise an error if a requirement of the pipeline is missing, before anything starts."""
    for name in ("pyspark", "pandas"):
        if not _is_installed(name):
            raise MissingDependencyError("the demo", name, "run: pip install 'whimbrel[spark]'")
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None or not _is_new_enough(java):
        remedy = "install it, or set JAVA_HOME to where it is; `make run` looks for one"
        raise MissingDependencyError("the demo", f"Java {_JAVA} or newer", remedy)


def _is_installed(module: str) -> bool:
    """Return whether *module* is installed, without loading it, which would take a second."""
    try:
        return find_spec(module) is not None
    except ValueError:  # a broken entry in ``sys.modules``
        return False


def _is_new_enough(java: str) -> bool:
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603 # ours
    except OSError:
        return False
    found = _VERSION.search(told)
    return found is not None and int(found[1]) >= _JAVA
