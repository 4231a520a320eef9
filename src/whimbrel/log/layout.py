"""Layout: the files and folders in the directory of a log.

::

    DIR/whimbrel-log.json                              {"format": 1}; "receipts": "assumed" if devices confirm nothing
    DIR/segments/NODE/FIRST.seg                        records that the node NODE appended; FIRST is the first seq
    DIR/segments/NODE/exported.json                    {"seq": the last seq that is in Parquet}
    DIR/segments/NODE/checkpoint-SEQ                   the state of the node's fold after SEQ (``checkpoints``)
    DIR/TABLE/date=YYYY-MM-DD/node=NODE/part-FIRST-LAST.parquet

Rule: seqs in names have twenty digits, so names sort as seqs do.
Rule: a part holds all rows of its table, date and node with seqs FIRST to LAST. A part is superseded if its range lies
within the range of another part of the same table, date and node. ``parts`` leaves superseded parts out. So no reader
sees a row twice while small parts are merged, or while an export that crashed is repeated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from whimbrel.errors import InvalidValueError
from whimbrel.log.errors import CorruptLogError, NewerLogError, NotALogError
from whimbrel.log.files import make_folder, put
from whimbrel.model.bounds import FIRST_TIME, LAST_TIME
from whimbrel.model.notification import NotificationId

__all__ = [
    "DEAD_LETTERS",
    "FORMAT",
    "SEGMENTS",
    "Part",
    "all_parts",
    "assumes_receipts",
    "check_format",
    "checkpoint_path",
    "checkpoints",
    "create",
    "date_of",
    "expect_receipts",
    "exported_seq",
    "is_node",
    "last_of_part",
    "nodes",
    "part_path",
    "parts",
    "segment_path",
    "segments",
    "segments_folder",
    "set_exported_seq",
    "tables_present",
]

FORMAT = 1
FORMAT_FILE = "whimbrel-log.json"
SEGMENTS = "segments"
EXPORTED_FILE = "exported.json"
DEAD_LETTERS = "dead_letters"
_RECEIPTS, _ASSUMED = "receipts", "assumed"

_US_PER_DAY = 86_400_000_000
_EPOCH = date(1970, 1, 1)

_SEGMENT = re.compile(r"([0-9]{20})\.seg")
_CHECKPOINT = re.compile(r"checkpoint-([0-9]{20})")
_PART = re.compile(r"part-([0-9]{20})-([0-9]{20})\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One exported Parquet file, with the date, node and range of seqs that its path states."""

    path: Path
    date: date
    node: str
    first: int
    last: int


# -- the log itself --------------------------------------------------------------------------------------------------


def create(directory: Path, *, has_receipts: bool = True) -> None:
    """Make *directory* a log, if it is not one yet; refuse a folder that has other files in it.

    An imported log may have no receipts. Then its format file says so, and each delivery attempt counts as received.
    """
    path = directory / FORMAT_FILE
    if not path.exists():
        make_folder(directory)
        if any(not each.name.startswith(".") for each in directory.iterdir()):
            raise NotALogError(directory, f"not empty, and no log: {FORMAT_FILE} is missing")
        _put_format(directory, {} if has_receipts else {_RECEIPTS: _ASSUMED})
    check_format(directory)


def assumes_receipts(directory: Path) -> bool:
    """Return whether each delivery attempt counts as received in this log, because its devices confirm nothing."""
    check_format(directory)
    found = json.loads((directory / FORMAT_FILE).read_bytes())
    return bool(found.get(_RECEIPTS) == _ASSUMED)


def expect_receipts(directory: Path) -> None:
    """Record in the format file that devices confirm deliveries: without a receipt, no delivery counts as received."""
    if assumes_receipts(directory):
        _put_format(directory, {})


def _put_format(directory: Path, others: dict[str, str]) -> None:
    put(directory / FORMAT_FILE, json.dumps({"format": FORMAT, **others}).encode() + b"\n")


def check_format(directory: Path) -> None:
    """Raise an error unless *directory* is a log of a format that we can read."""
    path = directory / FORMAT_FILE
    if not path.is_file():
        raise NotALogError(directory, f"no log: {FORMAT_FILE} is missing")
    found = _number_in(path, "format")
    if found > FORMAT:
        raise NewerLogError(directory, found, FORMAT)


def nodes(directory: Path) -> list[str]:
    """Return the names of the nodes that have segments or Parquet in the log, sorted."""
    found = {path.name for path in _folders(directory / SEGMENTS)}
    for table in tables_present(directory):
        found.update(path.name[5:] for path in (directory / table).glob("date=*/node=*"))
    return sorted(filter(is_node, found))


# -- segments --------------------------------------------------------------------------------------------------------


def segments_folder(directory: Path, node: str) -> Path:
    """Return the folder of *node*'s segments."""
    return directory / SEGMENTS / node


def segment_path(directory: Path, node: str, first: int) -> Path:
    """Return the path of *node*'s segment that begins with seq *first*."""
    return segments_folder(directory, node) / f"{first:020}.seg"


def segments(directory: Path, node: str) -> list[tuple[int, Path]]:
    """Return first seq and path of *node*'s segments, in order; the node appends to the last."""
    folder = segments_folder(directory, node)
    names = [(_SEGMENT.fullmatch(path.name), path) for path in folder.glob("*.seg")]
    return sorted((int(found[1]), path) for found, path in names if found)


def checkpoint_path(directory: Path, node: str, seq: int) -> Path:
    """Return the path of *node*'s checkpoint that has the state after *seq*."""
    return segments_folder(directory, node) / f"checkpoint-{seq:020}"


def checkpoints(directory: Path, node: str) -> list[tuple[int, Path]]:
    """Return seq and path of *node*'s checkpoints, in order, including damaged ones."""
    names = [(_CHECKPOINT.fullmatch(path.name), path) for path in segments_folder(directory, node).glob("checkpoint-*")]
    return sorted((int(found[1]), path) for found, path in names if found)


def exported_seq(directory: Path, node: str) -> int:
    """Return the last seq of *node* that is in Parquet; 0 if none is."""
    path = segments_folder(directory, node) / EXPORTED_FILE
    return _number_in(path, "seq") if path.exists() else 0


def set_exported_seq(directory: Path, node: str, seq: int) -> None:
    """Record that all facts of *node* up to *seq* are in Parquet."""
    put(segments_folder(directory, node) / EXPORTED_FILE, json.dumps({"seq": seq}).encode() + b"\n")


# -- Parquet ---------------------------------------------------------------------------------------------------------


def date_of(time_us: int) -> date:
    """Return the date, in UTC, of the folder for a fact of the time *time_us*."""
    if not FIRST_TIME <= time_us <= LAST_TIME:
        raise InvalidValueError("time", time_us, "a time in the years 1 to 9999")
    return _EPOCH + timedelta(days=time_us // _US_PER_DAY)


def part_path(  # noqa: PLR0917 # a path is made of this many values
    directory: Path, table: str, day: date, node: str, first: int, last: int
) -> Path:
    """Return the path of the file for the rows of *table*, *day* and *node* with seqs from *first* to *last*."""
    return directory / table / f"date={day.isoformat()}" / f"node={node}" / f"part-{first:020}-{last:020}.parquet"


def tables_present(directory: Path) -> list[str]:
    """Return the names of the tables that have parts, sorted."""
    return sorted(path.name for path in _folders(directory) if any(path.glob("date=*/node=*/part-*.parquet")))


def parts(directory: Path, table: str, node: str | None = None) -> list[Part]:
    """Return the Parquet files (parts) of *table* without superseded ones, of one *node* or of all.

    They are ordered by date, node and seq.
    """
    kept: list[Part] = []
    for part in all_parts(directory, table, node):
        before = kept[-1] if kept else None
        is_same_place = before is not None and (before.date, before.node) == (part.date, part.node)
        if before is None or not is_same_place or part.last > before.last:
            kept.append(part)
    return kept


def all_parts(directory: Path, table: str, node: str | None = None) -> list[Part]:
    """Return every Parquet file of *table*, of one *node* or of all; a superseded one follows the one replacing it."""
    return sorted(
        _every_part(directory / table, node or "*"), key=lambda part: (part.date, part.node, part.first, -part.last)
    )


def _every_part(folder: Path, whose: str) -> Iterator[Part]:
    for path in folder.glob(f"date=*/node={whose}/part-*.parquet"):
        found = _PART.fullmatch(path.name)
        node, day = path.parent.name[5:], path.parent.parent.name[5:]
        if found and is_node(node):
            try:
                yield Part(path=path, date=date.fromisoformat(day), node=node, first=int(found[1]), last=int(found[2]))
            except ValueError:
                continue  # a folder that only looks like a date is not ours


def _folders(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (each for each in path.iterdir() if each.is_dir() and each.name[0] not in "._")


def last_of_part(name: str) -> int:
    """Return the last seq of the Parquet file of this *name*; -1 if the name is not that of a part."""
    found = _PART.fullmatch(name)
    return int(found[2]) if found else -1


def is_node(name: str) -> bool:
    """Return whether *name* is a valid name of a node."""
    try:
        NotificationId(name, 0)
    except InvalidValueError:
        return False
    return True


def _number_in(path: Path, name: str) -> int:
    try:
        found: object = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise CorruptLogError(path, 0, f'found no JSON, allowed is {{"{name}": number}}') from None
    number = found.get(name) if isinstance(found, dict) else None
    if type(number) is not int or number < 0:
        raise CorruptLogError(path, 0, f'found no number "{name}"')
    return number
