"""``whimbrel pipeline run`` without a stream: derives tables from a whole log in one run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from whimbrel.cli.pipeline.times import interval
from whimbrel.cli.process.spark import session, watched

__all__ = ["run_once"]

_NO_RECEIPTS = (
    "note: this log has no receipts, so that nothing in deliveries is delivered; if its devices confirm nothing "
    "(a log made or imported by an older version), say --assume-receipts"
)


def run_once(  # one argument per option
    log: Path,
    out: Path,
    tables: list[str],
    plan: Mapping[str, Any],
    bounds: tuple[str | None, str | None],
    *,
    master: str | None,
    as_json: bool,
) -> None:
    """Make *tables* in one run and report it; *plan* has the fields of a ``Plan``, *bounds* the first and last time."""
    with session(master) as spark:
        from whimbrel.log.layout import nodes as nodes_of
        from whimbrel.pipeline.batch.jobs import run as run_jobs
        from whimbrel.pipeline.fold.start_state import left_out
        from whimbrel.pipeline.plans import Plan

        for missing in (each for node in nodes_of(log) for each in left_out(log, node)):
            typer.echo(f"note: {missing}", err=True)
        begun = time.perf_counter()
        with watched(spark, "Starting") as doing:
            chosen = interval(spark, log, *bounds)
            made = run_jobs(
                spark, log=log, out=out, tables=tables, plan=Plan(**plan), interval=chosen, on_progress=doing
            )
        took_s = time.perf_counter() - begun
    if as_json:
        typer.echo(json.dumps({"out": str(out), "seconds": round(took_s, 3), "tables": made}))
        return
    for table, told in made.items():
        typer.echo(f"{table:<14}{told['rows']:>14,} rows {told['seconds']:>9.1f} s")
    if "deliveries" in made and plan["assume_receipts"] is None and _has_no_receipts(log):
        typer.echo(_NO_RECEIPTS, err=True)
    if "replicas" in made:
        planned = f"{made['replicas']['nodes']} nodes of {made['replicas']['slots_per_node']} slots"
        typer.echo(f"replicas are planned for {planned}; --nodes and --slots say otherwise")
        if "note" in made["replicas"]:
            typer.echo(f"replicas: {made['replicas']['note']}", err=True)
    if chosen is not None:
        typer.echo(f"rows {chosen}; the tables' other rows are as they were")
    typer.echo(f"{len(made)} tables in {took_s:.1f} s, in {out}")


def _has_no_receipts(log: Path) -> bool:
    """Return whether an imported log has devices, no receipts, and no note that deliveries count as received."""
    from whimbrel.log import layout

    has_segments = any(layout.segments(log, node) for node in layout.nodes(log))
    is_told = layout.assumes_receipts(log) or any(layout.parts(log, "receipts"))
    return not has_segments and not is_told and any(layout.parts(log, "presence"))
