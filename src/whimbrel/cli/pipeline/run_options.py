"""The options of ``whimbrel pipeline run``, with their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whimbrel.cli.options.values import read_folder

__all__ = [
    "AssumeReceipts",
    "AvailableNow",
    "Checkpoint",
    "Continuous",
    "Every",
    "FactsPerBatch",
    "Keep",
    "Lateness",
    "MetricsHost",
    "MetricsPort",
    "Nice",
    "Nodes",
    "Out",
    "RangeM",
    "ReplicasFor",
    "SampleBytes",
    "Since",
    "Slots",
    "Stale",
    "Tables",
    "Until",
    "Window",
]

Out = Annotated[
    Path,
    typer.Option("--out", metavar="DIR", parser=read_folder, help="Where to write the tables, one folder per table."),
]
Tables = Annotated[
    str | None,
    typer.Option("--tables", metavar="A,B", help="Which tables, e.g. matches,popularity; all by default."),
]
Window = Annotated[
    str, typer.Option("--window", metavar="TIME", help="Windows of popularity and latency: 15m, 1h, 1d.")
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="WHEN", help="Only rows from then on: 24h before the log's end, a date, or ISO 8601."
    ),
]
Until = Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Only rows before, likewise.")]
Nodes = Annotated[
    int | None,
    typer.Option("--nodes", metavar="N", min=1, help="Devices that carry samples; default: the last census, else 100."),
]
Slots = Annotated[
    int | None,
    typer.Option("--slots", metavar="N", min=1, help="Samples that each holds; default: the last census, else 10."),
]
ReplicasFor = Annotated[
    str, typer.Option("--replicas-for", metavar="FILTER", help="Plan replicas of these subjects only, e.g. campus/#.")
]
SampleBytes = Annotated[int, typer.Option("--sample-bytes", metavar="N", min=1, help="Size of a sample.")]
RangeM = Annotated[
    float, typer.Option("--range", metavar="METRES", help="How near each other devices are in a contact.")
]
Stale = Annotated[
    str, typer.Option("--stale", metavar="TIME", help="How long a reported place holds in contacts, at most.")
]
Continuous = Annotated[
    bool, typer.Option("--continuous", help="Go on for ever: keep the tables up to date with a log that grows.")
]
AvailableNow = Annotated[
    bool,
    typer.Option("--available-now", help="As --continuous, but only as far as the log goes now; for cron."),
]
Every = Annotated[
    str | None,
    typer.Option("--every", metavar="TIME", help="With --continuous: how often a batch is made; 2s by default."),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="PATH",
        help="Where a stream keeps its state: a folder that all workers see; in --out by default.",
    ),
]
FactsPerBatch = Annotated[
    int | None,
    typer.Option(
        "--facts-per-batch",
        metavar="N",
        min=1,
        help="Facts of all nodes together in a batch at most; 200000 by default.",
    ),
]
Lateness = Annotated[
    str | None,
    typer.Option("--lateness", metavar="TIME", help="How long windows wait for a silent node; 1d by default."),
]
Keep = Annotated[
    str | None,
    typer.Option("--keep", metavar="TIME", help="Remove what is older, e.g. 90d; by default all is kept."),
]
AssumeReceipts = Annotated[
    bool | None,
    typer.Option(
        "--assume-receipts/--no-assume-receipts",
        help="Whether what is handed over counts as received; by default in logs generated or imported without "
        "receipts, and not in a broker's.",
    ),
]
Nice = Annotated[
    int | None,
    typer.Option(
        "--nice",
        metavar="N",
        min=0,
        max=19,
        help="Lower the priority of this process, Java and the workers; 0 is off. A stream has 10 by default.",
    ),
]
MetricsPort = Annotated[
    int,
    typer.Option(
        "--metrics-port",
        metavar="PORT",
        min=-1,
        max=65_535,
        help="Prometheus' /metrics; 0 is any free port, -1 none.",
    ),
]
MetricsHost = Annotated[
    str | None, typer.Option("--metrics-host", metavar="ADDRESS", help="Where it listens; loopback by default.")
]
