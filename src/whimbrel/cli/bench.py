"""``whimbrel bench``: measure a broker, ours or any other."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # other commands need not load processes and sockets
    from whimbrel.sim.load.load import Latency, Load, Throughput

__all__ = ["app"]

_PACED_S = 3
_LEAST_BYTES = 8
"""Least bytes of a body: room for the time at which it was sent."""

_MAX_SUBSCRIBERS = 800
"""Most subscribers: the limit of select(), which waits more exactly than its successors."""

app = typer.Typer(help="Measure how fast a broker is.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Keep ``bench`` a command group; Typer would merge a single command into it."""


@app.command()
def broker(
    *,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where the broker is that --port names.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=65_535, help="Measure the broker that runs there; else one of our own."),
    ] = None,
    qos: Annotated[int, typer.Option("--qos", min=0, max=1, help="The quality of service.")] = 0,
    size: Annotated[
        int, typer.Option("--size", metavar="BYTES", min=_LEAST_BYTES, max=1_000_000, help="The length of a message.")
    ] = 64,
    count: Annotated[
        int, typer.Option("--count", min=1, max=100_000_000, help="How many messages are published.")
    ] = 100_000,
    publishers: Annotated[int, typer.Option("--publishers", min=1, max=10_000, help="How many publish them.")] = 1,
    subscribers: Annotated[
        int, typer.Option("--subscribers", min=1, max=_MAX_SUBSCRIBERS, help="How many receive each of them.")
    ] = 1,
    rate: Annotated[
        int, typer.Option("--rate", min=0, max=100_000, help="Messages a second at which latency is measured; 0: not.")
    ] = 1_000,
    pid: Annotated[
        int | None, typer.Option("--pid", help="The broker's process, to tell its processor time; with --port.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Publish through a broker as fast as possible, and at a steady rate; print throughput and latency.

    Without --port, a broker of our own is started for the test, with its log in a temporary directory; nothing is kept.
    Any broker of MQTT 3.1.1 that lets every client in can be measured. Exits 1 if a message was lost.

    Example: whimbrel bench broker --qos 1 --subscribers 10 --count 20000
    """
    if pid is not None and port is None:
        raise typer.BadParameter("--pid needs --port: the process of a broker of our own is known")
    from whimbrel.sim.load.generator import Generator  # see above
    from whimbrel.sim.load.load import Load, LoadError
    from whimbrel.sim.load.processes import raise_file_limit, serve

    raise_file_limit(publishers + subscribers + 100)
    try:
        with ExitStack() as stack:
            if port is None:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="whimbrel-bench-"))
                served = stack.enter_context(serve(Path(folder)))
                host, port, pid = "127.0.0.1", served.port, served.pid
            load = Load(
                host=host,
                port=port,
                bodies=(bytes(size),),
                count=count,
                qos=qos,
                publishers=publishers,
                subscribers=subscribers,
            )
            generator = stack.enter_context(Generator())
            passed = generator.throughput(load, pid=pid)
            paced = None
            if rate:
                some = Load(
                    host=host, port=port, bodies=(bytes(size),), count=min(count, _PACED_S * rate), qos=qos,
                    subscribers=subscribers,
                )  # fmt: skip
                paced = generator.latency(some, rate=rate)
    except (LoadError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(json.dumps(_as_json(load, passed, paced)) if as_json else "\n".join(_lines(load, passed, paced)))
    if passed.sent < count or passed.lost or (paced is not None and paced.lost):
        raise typer.Exit(1)


def _lines(load: Load, passed: Throughput, paced: Latency | None) -> list[str]:
    """Return the measurements as lines of text."""
    who = f"{_several(load.publishers, 'publisher')}, {_several(load.subscribers, 'subscriber')}"
    lines = [
        f"{who}, QoS {load.qos}, {load.size_bytes} bytes, {_several(passed.sent, 'message')}",
        f"delivered      {passed.rate:,.0f} a second",
    ]
    if passed.cpu_us is not None:
        lines.append(f"broker CPU     {passed.cpu_us:.2f} µs a delivery")
    if paced is not None:
        lines.append(f"at {paced.rate:>6,g}/s    p50 {paced.p50_us / 1e3:.3f} ms, p99 {paced.p99_us / 1e3:.3f} ms")
    if passed.sent < load.count:
        lines.append(f"not sent       {load.count - passed.sent:,}: after {load.limit_s:g} s there is no more time")
    lines.append(f"lost           {passed.lost + (0 if paced is None else paced.lost):,}")
    return lines


def _several(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _as_json(load: Load, passed: Throughput, paced: Latency | None) -> dict[str, object]:
    found: dict[str, object] = {
        "qos": load.qos,
        "size_bytes": load.size_bytes,
        "publishers": load.publishers,
        "subscribers": load.subscribers,
        "count": load.count,
        "sent": passed.sent,
        "delivered": passed.arrived,
        "lost": passed.lost,
        "seconds": round(sum(passed.seconds), 3),
        "deliveries_per_s": round(passed.rate),
        "broker_cpu_us": None if passed.cpu_us is None else round(passed.cpu_us, 2),
    }
    if paced is not None:
        found["latency"] = {
            "rate": paced.rate,
            "delivered": paced.arrived,
            "lost": paced.lost,
            "p50_us": round(paced.p50_us, 1),
            "p99_us": round(paced.p99_us, 1),
        }
    return found
