"""Options of all commands of ``whimbrel sim``: the source of the contacts, and the contacts made from them.

Rule: an option of several commands is defined here once; ``options.groups`` gives it to a command.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from whimbrel.cli.options.values import read_seconds
from whimbrel.errors import InvalidValueError

if TYPE_CHECKING:  # other commands need not load numpy and numba
    from whimbrel.sim.contacts.table import Contacts
    from whimbrel.sim.mobility.walks import Walks
    from whimbrel.sim.worlds import WalkedWorld

__all__ = ["WorldOptions", "make_contacts_of", "show_progress"]

_MAX_POSITIONS = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldOptions:
    """Source of the contacts: a random walk, recorded walks, or a contact trace; the defaults are those of Campus++."""

    nodes: Annotated[int, typer.Option("--nodes", metavar="N", help="How many nodes walk.")] = 100
    area: Annotated[float, typer.Option("--area", metavar="METRES", help="The side of the square they walk in.")] = (
        500.0
    )
    speed: Annotated[float, typer.Option("--speed", metavar="M/S", help="How fast they walk.")] = 1.0
    pause: Annotated[
        float, typer.Option("--pause", metavar="TIME", parser=read_seconds, help="How long they pause at each point.")
    ] = 5.0
    radio_range: Annotated[float, typer.Option("--range", metavar="METRES", help="How far their radios reach.")] = 50.0
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="TIME", parser=read_seconds, help="How long it is simulated.")
    ] = 500_000.0
    seed: Annotated[int, typer.Option("--seed", help="Another seed, another walk; the same seed, the same bytes.")] = 1
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="Contacts from a file in the format of the ONE, instead of a walk."
        ),
    ] = None
    walks: Annotated[
        Path | None,
        typer.Option(
            "--walks", metavar="FILE", help="Walks as recorded in rows of reports, as --positions writes them."
        ),
    ] = None
    positions: Annotated[
        Path | None,
        typer.Option("--positions", metavar="FILE", help="Write the walk as rows of reports, for whimbrel log import."),
    ] = None
    positions_every: Annotated[
        float,
        typer.Option("--positions-every", metavar="TIME", parser=read_seconds, help="How far apart those rows are."),
    ] = 10.0

    @property
    def is_walked(self) -> bool:
        """Whether the nodes walk at random, so that their number is known."""
        return self.trace is None and self.walks is None


def make_contacts_of(options: WorldOptions) -> tuple[Contacts, Callable[[float], float]]:
    """Return the contacts, and a function that measures the speed of the simulation.

    It takes the simulated seconds, and returns how many times faster than real time they were made.
    """
    from whimbrel.sim.mobility.positions import position_lines

    found, walks, took_s = _make(options)
    if options.positions is not None and walks is not None:
        with options.positions.open("w", encoding="utf-8") as file, show_progress("Writing positions", is_known=False):
            file.writelines(position_lines(walks, every_s=options.positions_every))
    begun = time.perf_counter()
    return found, lambda seconds: seconds / max(took_s + time.perf_counter() - begun, 1e-9)


def _make(options: WorldOptions) -> tuple[Contacts, Walks | None, float]:
    """Return the contacts, the walks if known, and the seconds taken; check options before compiling code."""
    from whimbrel.sim.mobility.waypoint import RandomWaypoint
    from whimbrel.sim.worlds import RecordedWorld, WalkedWorld, make_contacts, make_ready

    if options.trace is not None and options.walks is not None:
        raise InvalidValueError("--trace", options.trace, "alone", "--trace and --walks exclude each other")
    if options.positions is not None and not options.is_walked:
        sentence = "--positions writes a random walk, and --trace or --walks give another"
        raise InvalidValueError("--positions", options.positions, "without them", sentence)
    with show_progress("Preparing; the first time on a machine kernels are compiled", is_known=False):
        if options.trace is not None:
            found, walks = make_contacts(options.trace)
            make_ready()
            return found, walks, 0.0
        source: RecordedWorld | WalkedWorld
        if options.walks is not None:
            source = RecordedWorld(path=options.walks, range_m=options.radio_range)
            source.walks()
        else:
            waypoint = RandomWaypoint(
                nodes=options.nodes, area_m=options.area, speed_m_s=options.speed, pause_s=options.pause
            )
            source = WalkedWorld(
                waypoint=waypoint, range_m=options.radio_range, seconds=options.seconds, seed=options.seed
            )
            if options.positions is not None:
                _check_positions(source, options.positions_every)
        make_ready()
        begun = time.perf_counter()
        found, walks = make_contacts(source)
        return found, walks, time.perf_counter() - begun


def _check_positions(source: WalkedWorld, every_s: float) -> None:
    rows = source.waypoint.nodes * source.seconds / every_s if every_s > 0 else math.inf
    if rows > _MAX_POSITIONS:
        allowed = f"what makes at most {_MAX_POSITIONS:,} rows of the walk"
        raise InvalidValueError("--positions-every", every_s, allowed)


@contextmanager
def show_progress(doing: str, *, is_known: bool = True) -> Iterator[Callable[[float], None]]:
    """Show progress on a terminal; yield a function that takes the finished share, from 0 to 1."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(doing, total=1.0 if is_known else None)
        yield lambda share: shown.update(task, completed=share)
