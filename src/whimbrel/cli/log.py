"""``whimbrel log``: import facts into a log, export it, show it, verify it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from whimbrel.cli.options.lines import name_of, raw_lines
from whimbrel.cli.options.values import read_log, read_seconds
from whimbrel.errors import WhimbrelError
from whimbrel.log import layout
from whimbrel.log.importing import DeadLetters, Imported, import_lines
from whimbrel.log.lines import json_of
from whimbrel.log.reader import LogReader
from whimbrel.log.writer import LogWriter, Recovery
from whimbrel.model.clock import SystemClock, format_time
from whimbrel.model.rows import COLUMNS

__all__ = ["app"]

_BODY_CHARACTERS = 80
_POLL_S = 0.2

_EXACT, _SECONDS, _MINUTES = 27, 19, 16
"""Characters of a time that are shown: all, up to seconds, up to minutes."""

app = typer.Typer(help="Keep a node's log: import, export, show, verify.", no_args_is_help=True, rich_markup_mode=None)

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", parser=read_log, help="The directory of the log, or a broker's --data.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
OneNode = Annotated[str | None, typer.Option("--node", metavar="NODE", help="Only this node; all, if not given.")]


@app.command("import")
def import_(
    directory: Directory,
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="The facts; - reads standard input.")],
    *,
    node: Annotated[str, typer.Option("--node", metavar="NODE", help="Whose log they are appended to.")] = "import",
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="Put bad lines into the table dead_letters and go on.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Append the facts of FILE.jsonl to the log in DIR, which is made if it does not exist.

    One fact per line: {"table": "publications", "published_at": "2004-05-17T09:30:00Z", "subject": "ward/3",
    "attributes": {"temperature": 38.5}}. Columns are those of the table. The log assigns the seqs, in the order of the
    lines; times must not run backwards. A bad line ends the import; the lines before it stay imported.

    Example: whimbrel log import ward-log facts.jsonl
    """
    done = Imported()
    layout.create(directory, has_receipts=False)  # unless the lines contain receipts, or the directory is a log already
    log = LogWriter(directory, node)
    recovery = log.open()
    letters = DeadLetters(directory, node, SystemClock()) if dead_letters else None
    try:
        with log:
            lines = raw_lines(file, doing="Importing")
            import_lines(log, lines, source=name_of(file), done=done, letters=letters)
    except (WhimbrelError, OSError):
        _print_imported(done, recovery, as_json=as_json, is_whole=False)
        raise
    _print_imported(done, recovery, as_json=as_json, is_whole=True)


@app.command()
def export(
    directory: Directory,
    *,
    node: OneNode = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what is durable of the segment that still grows.")
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="FOLDER", help="Write to this folder, a log of its own, and not into DIR."),
    ] = None,
    compact: Annotated[bool, typer.Option("--compact", help="Then merge small parts of a day.")] = False,
    keep_days: Annotated[
        int | None,
        typer.Option("--keep-days", metavar="N", min=1, help="Then remove what is older than N days."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on for ever.")] = False,
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="With --follow: how often.")] = "5s",
    as_json: AsJson = False,
) -> None:
    """Write closed segments to Parquet: DIR/TABLE/date=…/node=…/part-FIRST-LAST.parquet.

    Only whole files ever appear there. The command may be stopped at any moment and run again, also while a node
    writes.

    Example: whimbrel log export whimbrel-data --into ward-log
    """
    every_s = read_seconds(every)
    while True:
        rows = _export_once(directory, node, into, everything=everything, as_json=as_json, is_quiet=follow)
        if compact and (rows or not follow):
            _compact(into or directory, as_json=as_json)
        if keep_days is not None:
            _retain(into or directory, keep_days, as_json=as_json, is_quiet=follow)
        if not follow:
            return
        time.sleep(every_s)


@app.command()
def show(
    directory: Directory,
    *,
    table: Annotated[str | None, typer.Option("--table", metavar="TABLE", help="Only this table.")] = None,
    node: OneNode = None,
    since: Annotated[int, typer.Option("--since", metavar="SEQ", min=0, help="From this seq on.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="At most so many.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as the node writes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the facts in the segments of the log, one per line; with --json in the form that import reads.

    Example: whimbrel log show whimbrel-data --table publications --limit 10
    """
    if table is not None and table not in COLUMNS:
        raise typer.BadParameter(f"found {table!r}, allowed is {', '.join(COLUMNS)}", param_hint="--table")
    readers = [LogReader(directory, each, first=since) for each in _nodes(directory, node)]
    rows = (each for each in _rows(readers, follow=follow) if table in {None, each[0]})
    is_empty = True
    for name, row in islice(rows, limit):
        is_empty = False
        typer.echo(json.dumps(json_of(name, row), ensure_ascii=False) if as_json else _line(name, row))
    if is_empty and not as_json:
        typer.echo("nothing to show: the segments hold no such fact; what is in Parquet: whimbrel pipeline replay")


@app.command()
def verify(directory: Directory, *, as_json: AsJson = False) -> None:
    """Read the whole log and report every problem in it; exit 1 if there is one.

    Checks every record's checksum, that seqs and times ascend, and that Parquet and segments have the same rows.

    Example: whimbrel log verify whimbrel-data
    """
    from whimbrel.log import verification  # Arrow takes a moment to load; other commands need not wait for it

    found = verification.verify(directory)
    if as_json:
        typer.echo(json.dumps({"ok": not found.problems, **asdict(found)}, ensure_ascii=False))
    else:
        for line in (*found.problems, *(f"note: {note}" for note in found.notes)):
            typer.echo(line)
        word = f"{len(found.problems)} problems" if found.problems else "ok"
        if not found.segments and not found.parts:
            word += ", the log is empty"
        counted = f"{found.records} records in {found.segments} segments, {found.rows} rows in {found.parts} parts"
        typer.echo(f"{word}: {counted}" + (f", {found.checkpoints} checkpoints" if found.checkpoints else ""))
    if found.problems:
        raise typer.Exit(1)


@app.command()
def stats(directory: Directory, *, as_json: AsJson = False) -> None:
    """Print the size of each table and node in the log, with its first and last time.

    Example: whimbrel log stats whimbrel-data
    """
    from whimbrel.log import stats as counted  # see verify

    found = [asdict(each) for each in counted.stats(directory)]
    for each in found:
        each["first_at"], each["last_at"] = _time(each["first_at"]), _time(each["last_at"])
    if as_json:
        typer.echo(json.dumps(found))
    elif not found:
        typer.echo("the log is empty")
    else:
        _print_table(found)


# -- work ------------------------------------------------------------------------------------------------------------


def _nodes(directory: Path, node: str | None) -> list[str]:
    layout.check_format(directory)
    known = layout.nodes(directory)
    if node is not None and node not in known:
        allowed = ", ".join(known) if known else "none yet: the log is empty"
        raise typer.BadParameter(f"found {node!r}, the log has {allowed}", param_hint="--node")
    return known if node is None else [node]


def _export_once(
    directory: Path, node: str | None, into: Path | None, *, everything: bool, as_json: bool, is_quiet: bool
) -> int:
    from whimbrel.log import export as exporting  # see verify

    rows = 0
    found = [
        exporting.export(directory, each, closed_only=not everything, into=into) for each in _nodes(directory, node)
    ]
    for done in found:
        rows += done.rows
        if as_json:
            shown = {"node": done.node, "rows": done.rows, "parts": list(map(str, done.parts)), "seq": done.last_seq}
            typer.echo(json.dumps(shown))
        elif done.rows or not is_quiet:
            typer.echo(f"{done.node}: {done.rows} rows in {len(done.parts)} parts, exported up to seq {done.last_seq}")
    if not found and not is_quiet and not as_json:
        typer.echo("nothing to export: the log is empty")
    return rows


def _compact(directory: Path, *, as_json: bool) -> None:
    from whimbrel.log import compaction  # see verify

    done = compaction.compact(directory)
    text = f"{done.merged} parts merged into {done.made}, {done.removed} files removed"
    typer.echo(json.dumps({"compacted": asdict(done)}) if as_json else text)


def _retain(directory: Path, keep_days: int, *, as_json: bool, is_quiet: bool) -> None:
    from whimbrel.log import retention  # see verify

    now = SystemClock().now()
    done = retention.retain(directory, before=layout.date_of(now) - timedelta(days=keep_days), now=now)
    if as_json:
        typer.echo(json.dumps({"removed": asdict(done)}))
    elif done.parts or done.segments or not is_quiet:
        typer.echo(f"{done.parts} parts and {done.segments} segments removed, {done.bytes} bytes")


def _rows(readers: list[LogReader], *, follow: bool) -> Iterator[tuple[str, dict[str, object]]]:
    while True:
        for reader in readers:
            yield from reader.rows()
        if not follow:
            return
        time.sleep(_POLL_S)


# -- output ----------------------------------------------------------------------------------------------------------


def _print_imported(done: Imported, recovery: Recovery, *, as_json: bool, is_whole: bool) -> None:
    facts = sum(done.facts.values()) if is_whole else (done.last_seq or 0) - (done.first_seq or 1) + 1
    if as_json:
        shown = {
            "lines": done.lines,
            "facts": facts,
            "dead_letters": done.dead_letters,
            "first_seq": done.first_seq,
            "last_seq": done.last_seq,
            "cut_bytes": recovery.cut_bytes,
        }
        typer.echo(json.dumps(shown))
        return
    if recovery.cut_bytes:
        typer.echo(f"{recovery.cut_from}: {recovery.cut_bytes} bytes of a torn tail cut, nothing durable was in them")
    seqs = f", seq {done.first_seq} to {done.last_seq}" if done.first_seq is not None else ""
    dead = f", {done.dead_letters} dead letters" if done.dead_letters else ""
    before = "" if is_whole else " before it stopped"
    typer.echo(f"{facts} facts imported{before}{seqs}{dead}")


def _line(table: str, row: Mapping[str, object]) -> str:
    """Return *row* as text: node, seq and time first, then every value that is not null."""
    own_time = COLUMNS[table][2]
    head = f"{row['node']}:{row['seq']}  {_time(row.get(own_time))}  {table}"
    shown = json_of(table, {name: value for name, value in row.items() if name not in {"node", "seq", own_time}})
    del shown["table"]
    words = [_word(name, value) for name, value in shown.items() if value is not None and value not in ([], {}, "")]
    return "  ".join([head, *words])


def _word(name: str, value: object) -> str:
    text = value if isinstance(value, str) and value.isprintable() else json.dumps(value, ensure_ascii=False)
    if name.startswith("body") and len(text) > _BODY_CHARACTERS:
        text = text[: _BODY_CHARACTERS - 1] + "…"
    return f"{name}={text}"


def _time(time_us: object) -> str | None:
    if not isinstance(time_us, int):
        return None
    try:
        return format_time(time_us)
    except WhimbrelError:
        return str(time_us)


def _print_table(found: list[dict[str, object]]) -> None:
    """Print a line for each table and node; on a narrow terminal, times are short and the two sizes are added up."""
    width = shutil.get_terminal_size().columns
    for time_characters, is_split in ((_EXACT, True), (_SECONDS, True), (_SECONDS, False), (_MINUTES, False)):
        lines = _table(found, time_characters, is_split=is_split)
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        if sum(widths) + 2 * (len(widths) - 1) <= width:
            break
    for line in lines:
        typer.echo("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip())


def _table(found: list[dict[str, object]], time_characters: int, *, is_split: bool) -> list[list[str]]:
    def moment(each: dict[str, object], name: str) -> str:
        text = str(each[name] or "–")
        return text if len(text) <= time_characters else text[:time_characters].replace("T", " ")

    has_nodes = len({each["node"] for each in found}) > 1
    head = ["table", *["node"] * has_nodes, "rows", "seqs", "first", "last"]
    lines = [head + (["in Parquet", "in segments"] if is_split else ["bytes"])]
    for each in found:
        seqs = "–" if each["first_seq"] is None else f"{each['first_seq']}–{each['last_seq']}"
        sizes = [int(str(each[name])) for name in ("parquet_bytes", "segment_bytes")]
        lines.append(
            [str(each["table"]), *[str(each["node"])] * has_nodes, f"{each['rows']:,}", seqs]
            + [moment(each, "first_at"), moment(each, "last_at")]
            + [f"{size:,}" for size in (sizes if is_split else [sum(sizes)])]
        )
    return lines
