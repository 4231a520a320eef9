"""``whimbrel backup`` and ``whimbrel restore``: copy a broker's data while it runs, and restart from the copy."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from whimbrel.cli.options.values import read_folder
from whimbrel.log.backup.manifest import Manifest
from whimbrel.model.clock import SystemClock

__all__ = ["backup", "restore"]

_MIB = 1 << 20
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def backup(
    target: Annotated[Path, typer.Argument(metavar="DIR", parser=read_folder, help="Where the backup goes.")],
    *,
    data: Annotated[
        Path, typer.Option("--data", metavar="DATA", parser=read_folder, help="The broker's data directory.")
    ] = Path("whimbrel-data"),
    node: Annotated[
        str | None, typer.Option("--node", metavar="NODE", help="Whose data; not needed if there is one node.")
    ] = None,
    rate: Annotated[
        float, typer.Option("--mib-per-second", metavar="N", min=0, help="Copy at most N MiB per second; 0: no limit.")
    ] = 64.0,
    check: Annotated[bool, typer.Option("--check", help="Make none: read the one in DIR and tell if it is whole.")] = (
        False
    ),
    as_json: AsJson = False,
) -> None:
    """Copy the data of a broker, which may go on serving, to DIR, a folder that is empty or does not exist.

    The backup contains everything that was acknowledged before it began, and the users file in DATA. It does not
    contain Parquet, the rights file or a users file elsewhere.

    Example: whimbrel backup /mnt/backups/today --data whimbrel-data
    """
    from whimbrel.log.backup.making import back_up, only_node
    from whimbrel.log.backup.restoring import check_backup

    if check:
        made = check_backup(target)
    else:
        whose = only_node(data) if node is None else node
        made = back_up(data, whose, target, now=SystemClock().now(), bytes_per_second=rate * _MIB)
    _print(made, "ok" if check else f"backed up to {target}", as_json=as_json)


def restore(
    source: Annotated[Path, typer.Argument(metavar="DIR", parser=read_folder, help="The backup.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", parser=read_folder, help="The new data directory.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Make the data directory DATA, which is empty or does not exist, from the backup in DIR.

    Every file is first compared with the backup's checksums; if one differs, nothing is restored.

    Example: whimbrel restore /mnt/backups/today whimbrel-data
    """
    from whimbrel.log.backup.restoring import restore as restored

    _print(restored(source, data), f"restored to {data}", as_json=as_json)


def _print(made: Manifest, word: str, *, as_json: bool) -> None:
    size = sum(each.size_bytes for each in made.files)
    if as_json:
        row = {name: value for name, value in asdict(made).items() if name != "files"}
        typer.echo(json.dumps({**row, "files": len(made.files), "bytes": size}))
        return
    state = f", the state after {made.checkpoint}" if made.checkpoint else ""
    typer.echo(f"{word}: {len(made.files)} files, {size} bytes: {made.node} from number {made.oldest} on{state}")
