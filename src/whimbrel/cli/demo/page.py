"""The demo's page: one screen in a terminal, one line in a pipe; pure functions of a ``DemoSnapshot``.

Rule: a screen that is too small omits parts from the end; nothing wraps and nothing scrolls.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.align import Align
from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from whimbrel.cli.demo.floor import FLOOR_COLUMNS, FLOOR_LINES, floor
from whimbrel.cli.demo.tallies import Latency
from whimbrel.cli.demo.view import Bar, DemoSnapshot, Owner, PipelineView, Why

__all__ = ["line", "page"]

_SPARKS = "▁▂▃▄▅▆▇█"
_BAR_CELLS = 10
_NARROW = 80
_HEADER, _TRAFFIC, _AWAY, _PLANS, _WHY = 3, 8, 9, 8, 5
_LEAST_AWAY = 5
_SECONDS_MEANT = 3
_UNKNOWN = "unknown yet"


def page(view: DemoSnapshot, *, width: int, height: int) -> RenderableType:
    """Return the page for a screen of this size."""
    plan = view.pipeline
    rows: list[tuple[int, RenderableType]] = [
        (_TRAFFIC, _beside(width, _panel("traffic", _traffic(view)), _panel("pipeline", _pipeline(plan)))),
        *_floor(view, width),
        (_AWAY, _panel("who is away, and what is held for them", _away(view.owners, _AWAY - 3))),
        (
            _PLANS,
            _beside(
                width,
                _panel("popularity: published in ten seconds", _bars(plan.popularity, _PLANS - 2)),
                _panel("replica plan: most to fewest copies", _bars(_spread(plan.replicas, _PLANS - 2), _PLANS - 2)),
            ),
        ),
        (_WHY, _panel("who got what, and why", _whys(view.why, _WHY - 2))),
    ]
    room = height - _HEADER
    shown: list[Layout] = [Layout(_header(view), size=_HEADER)]
    for size, part in rows:
        if size == _AWAY and room >= _LEAST_AWAY:
            size = min(size, room)  # noqa: PLW2901 # the longest panel has fewer lines if there is less room
        if room < size:
            break
        shown.append(Layout(part, size=size))
        room -= size
    if room > 0:
        shown.append(Layout(Text(" "), size=room))  # an empty text is falsy, and Layout would draw a box of its own
    screen = Layout()
    screen.split_column(*shown)
    return screen


def line(view: DemoSnapshot) -> str:
    """Return the content of the page as one line."""
    plan = view.pipeline
    held = sum(owner.held for owner in view.owners)
    pipeline = f"pipeline {plan.doing}" if plan.doing else (
        f"pipeline batch {plan.batch}, {_lag(plan)}; {held:,} held"
    )  # fmt: skip
    published = f"published {view.published:,} ({_rate(view.published_per_s)}/s)"
    received = f"received {view.received:,} ({_rate(view.received_per_s)}/s)"
    latency = f"p50 {_duration(view.latency.p50_us)}, p99 {_duration(view.latency.p99_us)}"
    return (
        f"{view.elapsed_s:5.0f} s  {view.phase}; {view.present}/{view.devices} devices here; {published}, {received}; "
        f"{latency}; {pipeline}"
    )


# -- parts -------------------------------------------------------------------------------------------------------------


def _floor(view: DemoSnapshot, width: int) -> list[tuple[int, RenderableType]]:
    """Return the floor plan of the ward, if the screen is wide enough for it."""
    drawn = Align.center(floor(view.beds, view.batteries, view.owners))
    return [(FLOOR_LINES, drawn)] if width >= FLOOR_COLUMNS else []


def _beside(width: int, left: RenderableType, right: RenderableType) -> RenderableType:
    if width < _NARROW:
        return left
    both = Layout()
    both.split_row(Layout(left), Layout(right))
    return both


def _panel(title: str, inside: RenderableType) -> Panel:
    return Panel(inside, title=title, title_align="left", border_style="dim", padding=(0, 1))


def _header(view: DemoSnapshot) -> Panel:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("A hospital ward", style="bold")
    text.append(f"   {view.present} of {view.devices} devices here   {view.busy_s:.0f} of {view.seconds:g} s   ")
    text.append(view.phase, style="cyan")
    return Panel(text, border_style="dim", padding=(0, 1))


def _grid(*justify: str) -> Table:
    grid = Table.grid(expand=False, padding=(0, 2, 0, 0))
    for each in justify:
        grid.add_column(justify="right" if each == "right" else "left", no_wrap=True, overflow="ellipsis")
    return grid


def _traffic(view: DemoSnapshot) -> RenderableType:
    rates = _grid("left", "right", "left")
    for name, counts in (("published/s", view.published_per_s), ("received/s", view.received_per_s)):
        rates.add_row(name, Text(_rate(counts), style="bold"), Text(_sparkline(counts, 24), style="green"))
    told = _grid("left", "left")
    told.add_row("devices say", _latency(view.latency))
    told.add_row("pipeline says", _latency(view.pipeline.latency))
    told.add_row("longest held", Text(_duration(view.longest_held_us or None)))
    told.add_row("so far", Text(f"{view.published:,} sent, {view.received:,} received"))
    return Group(rates, told)


def _pipeline(plan: PipelineView) -> RenderableType:
    if plan.batch < 0:
        return Text(plan.doing, style="yellow")
    grid = _grid("left", "left")
    rows = (f"{plan.rows.get(table, 0):,} {table}" for table in ("matches", "deliveries"))
    grid.add_row("tables", Text(_lag(plan), style="bold"))
    grid.add_row("last batch", f"{plan.facts:,} log records in {plan.took_s:.1f} s")
    grid.add_row("rows", ", ".join(rows))
    grid.add_row("state", f"{plan.state:,} entries")
    grid.add_row("expired", f"{plan.expired:,} before a device got them")
    grid.add_row("", Text(plan.doing, style="yellow"))
    return grid


def _lag(plan: PipelineView) -> str:
    """Return in plain words how far the tables are behind the log."""
    return f"{plan.behind_s:.1f} s behind" if plan.behind else "up to date"


def _away(owners: Sequence[Owner], most: int) -> RenderableType:
    grid = _grid("left", "right", "left", "left")
    grid.add_row(*(Text(title, style="dim") for title in ("session", "held", "away", "here")))
    for owner in owners[:most]:
        held = Text(f"{owner.held:,}", style="bold yellow" if owner.held else "dim")
        away = Text(", ".join(owner.away) or "none", style="red" if owner.away else "dim")
        grid.add_row(owner.name, held, away, Text(", ".join(owner.here), style="green"))
    return grid


def _bars(bars: Sequence[Bar], most: int) -> RenderableType:
    if not bars:
        return Text(_UNKNOWN, style="dim")
    top = max(bar.number for bar in bars) or 1
    grid = _grid("left", "right", "left", "left")
    for bar in bars[:most]:
        cells = "█" * max(1, round(bar.number / top * _BAR_CELLS))
        grid.add_row(bar.subject, str(bar.number), Text(cells, style="cyan"), Text(bar.told, style="dim"))
    return grid


def _spread(bars: Sequence[Bar], most: int) -> Sequence[Bar]:
    """Return at most *most* of *bars*, at equal distances from first to last, because the first few are often equal."""
    if len(bars) <= most:
        return bars
    return [bars[number * (len(bars) - 1) // (most - 1)] for number in range(most)]


def _whys(whys: Sequence[Why], most: int) -> RenderableType:
    grid = _grid("left", "left", "left", "right", "left")
    for why in whys[-most:]:
        waited = _duration(why.waited_us)
        grid.add_row(why.clock, Text(why.device, style="green"), why.subject, waited, Text(why.reason, style="dim"))
    return grid


# -- numbers -----------------------------------------------------------------------------------------------------------


def _latency(latency: Latency) -> Text:
    if latency.p50_us is None:
        return Text(_UNKNOWN, style="dim")
    return Text(f"p50 {_duration(latency.p50_us)}   p99 {_duration(latency.p99_us)}", style="bold")


def _duration(us: int | None) -> str:
    if us is None:
        return _UNKNOWN
    return f"{us / 1_000:.1f} ms" if us < 1_000_000 else f"{us / 1_000_000:.1f} s"


def _rate(counts: Sequence[int]) -> str:
    """Return the mean of the last *counts* per second, as text."""
    last = counts[-_SECONDS_MEANT:]
    return f"{sum(last) / len(last):.0f}" if last else _UNKNOWN


def _sparkline(counts: Sequence[int], cells: int) -> str:
    last = counts[-cells:]
    top = max(last, default=0) or 1
    return "".join(_SPARKS[count * (len(_SPARKS) - 1) // top] for count in last)
