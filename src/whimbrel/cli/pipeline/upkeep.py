"""``whimbrel pipeline compact`` and ``vacuum``: keep tables small and quick to open where no stream does it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.options.values import read_folder
from whimbrel.errors import InvalidValueError
from whimbrel.pipeline import TABLES_MADE

if TYPE_CHECKING:  # it loads deltalake
    from whimbrel.pipeline.files.upkeep import TableUpkeep

__all__ = ["compact", "vacuum"]

Out = Annotated[Path, typer.Option("--out", metavar="DIR", parser=read_folder, help="Where `run` wrote the tables.")]
Tables = Annotated[
    str | None, typer.Option("--tables", metavar="A,B", help="Which tables, e.g. matches,popularity; all by default.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def compact(*, out: Out, tables: Tables = None, as_json: AsJson = False) -> None:
    """Merge the small files of tables, so that they are read faster; the rows stay the same.

    A stream does this by itself, and holds a lock: while it runs, this command is refused.

    Example: whimbrel pipeline compact --out ward-tables
    """
    from whimbrel.pipeline.files.upkeep import compact_tables

    _tell(compact_tables(out, _names(tables)), as_json=as_json)


def vacuum(*, out: Out, tables: Tables = None, as_json: AsJson = False) -> None:
    """Remove files that no version of the last six hours needs, and commits that are older.

    A stream does this by itself, and holds a lock: while it runs, this command is refused.

    Example: whimbrel pipeline vacuum --out ward-tables --tables deliveries
    """
    from whimbrel.pipeline.files.upkeep import vacuum_tables

    _tell(vacuum_tables(out, _names(tables)), as_json=as_json)


def _names(text: str | None) -> list[str]:
    names = [] if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in TABLES_MADE:
            raise InvalidValueError("--tables", name, ", ".join(TABLES_MADE))
    return names


def _tell(done: Iterable[TableUpkeep], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in done]))
        return
    for each in done:
        files = (
            f"{each.files_before:,} → {each.files:,} files"
            if each.files != each.files_before
            else f"{each.files:,} files"
        )
        typer.echo(f"{each.table:<14}{files}" + (f", {each.removed:,} removed" if each.removed else ""))
