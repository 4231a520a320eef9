"""``whimbrel demo``: Whimbrel at work on a made-up hospital ward."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text as Styled

from whimbrel.cli.options import read_seconds
from whimbrel.language.filters import Filter
from whimbrel.language.trace import reasons, trace
from whimbrel.model.clock import format_time, microseconds
from whimbrel.model.notification import Notification
from whimbrel.sim.ward import ward

__all__ = ["demo"]

_MONDAY_MORNING = 1_767_596_400_000_000  # 2026-01-05 07:00 UTC; the made-up ward needs no real date
_SUBSCRIPTIONS = (
    ("nurse's watch", "begins-with(bed, 'ICU-') && (pulse > 110 || spo2 < 93)"),
    ("duty doctor", "temperature >= 37.8 && !(pulse < 80)"),
    ("pharmacy", "contains(fold-case(drug), 'morphine') && dose-mg > 6.0"),
    ("technician", "battery < 20 && charging == false"),
    ("Okafor's family", "patient == 'Okafor' && require(spo2)"),
)


@dataclass(slots=True)
class _Subscriber:
    """Somebody with a filter, and what reached them."""

    name: str
    filter: Filter
    received: int = 0
    last: str = ""


@dataclass(slots=True)
class _Board:
    """Everything the page shows."""

    subscribers: list[_Subscriber]
    published: int = 0
    recent: deque[tuple[Notification, list[str]]] = field(default_factory=lambda: deque(maxlen=10))

    def publish(self, notification: Notification) -> list[tuple[str, str]]:
        """Show *notification* to every filter; return who received it and why."""
        self.published += 1
        receivers = []
        for subscriber in self.subscribers:
            if subscriber.filter.verdict(notification.attributes) is True:
                subscriber.received += 1
                subscriber.last = _why(subscriber.filter, notification)
                receivers.append((subscriber.name, subscriber.last))
        self.recent.append((notification, [name for name, _ in receivers]))
        return receivers


def demo(
    *,
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="N", parser=read_seconds, help="How much of the ward's day to show."),
    ] = 10.0,
    seed: Annotated[int, typer.Option("--seed", help="Another seed, another day.")] = 7,
    fast: Annotated[bool, typer.Option("--fast", help="Do not wait between events; for pipes and tests.")] = False,
) -> None:
    """Watch events stream from a hospital ward past a few filters: who receives what, and why.

    In a terminal it is one live page; in a pipe it is one line per event that somebody receives.
    """
    board = _Board([_Subscriber(name, Filter(text)) for name, text in _SUBSCRIPTIONS])
    console = Console(markup=False, highlight=False, emoji=False)
    day = _until(ward(random.Random(seed), start=_MONDAY_MORNING), _MONDAY_MORNING + microseconds(seconds))
    if console.is_terminal and not fast:
        with Live(_page(board), console=console, refresh_per_second=12) as live:
            for notification in _paced(day):
                board.publish(notification)
                live.update(_page(board))
    else:
        _print_filters(board)
        for notification in day if fast else _paced(day):
            for name, why in board.publish(notification):
                typer.echo(f"{_clock(notification)}  {notification.subject:<18} → {name}: {why}")
    _print_summary(board)


def _until(day: Iterator[Notification], end: int) -> Iterator[Notification]:
    for notification in day:
        if notification.published_at >= end:
            return
        yield notification


def _paced(day: Iterator[Notification]) -> Iterator[Notification]:
    """Let the ward's clock run as fast as ours."""
    begun = time.monotonic()
    for notification in day:
        due = begun + (notification.published_at - _MONDAY_MORNING) / 1e6
        time.sleep(max(0.0, due - time.monotonic()))
        yield notification


def _why(wanted: Filter, notification: Notification) -> str:
    seen = {name: value for part in reasons(trace(wanted.tree, notification.attributes)) for name, value in part.seen}
    return ", ".join(f"{name} is {value!s}" for name, value in seen.items())


def _clock(notification: Notification) -> str:
    return format_time(notification.published_at)[11:19]


def _print_filters(board: _Board) -> None:
    for subscriber in board.subscribers:
        typer.echo(f"{subscriber.name:<16} wants  {subscriber.filter.text}")
    typer.echo("")


def _print_summary(board: _Board) -> None:
    counts = ", ".join(f"{subscriber.name} {subscriber.received}" for subscriber in board.subscribers)
    typer.echo(f"\n{board.published} events published; received: {counts}")
    typer.echo('Next: whimbrel filter explain "pulse > 110 || spo2 < 93"')


def _page(board: _Board) -> Group:
    events = Table(expand=True, box=None, padding=(0, 1))
    for title, width in (("time", 8), ("subject", 18)):
        events.add_column(title, width=width, no_wrap=True)
    events.add_column("event", ratio=3, no_wrap=True, overflow="ellipsis")
    events.add_column("received by", ratio=2, no_wrap=True, overflow="ellipsis")
    for notification, receivers in board.recent:
        values = ", ".join(f"{name} {value!s}" for name, value in notification.attributes.items())
        style = "bold green" if receivers else "dim"
        cells = (_clock(notification), notification.subject, values, ", ".join(receivers) or "nobody")
        events.add_row(*(Styled(str(cell)) for cell in cells), style=style)
    wanted = Table(expand=True, box=None, padding=(0, 1))
    wanted.add_column("subscriber", width=16, no_wrap=True)
    wanted.add_column("filter", ratio=3, no_wrap=True, overflow="ellipsis")
    wanted.add_column("received", width=8, justify="right")
    wanted.add_column("last, because", ratio=2, no_wrap=True, overflow="ellipsis")
    for subscriber in board.subscribers:
        text, last = Styled(subscriber.filter.text, style="cyan"), Styled(subscriber.last)
        wanted.add_row(Styled(subscriber.name), text, str(subscriber.received), last)
    title = f"A hospital ward, {board.published} events so far"
    return Group(Panel(events, title=title, height=14), Panel(wanted, title="Who wants what"))
