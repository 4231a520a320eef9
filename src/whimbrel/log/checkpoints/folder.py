"""The folder of a node's checkpoints: write a new one, verify it, and keep the last two that are valid.

Rule: a new checkpoint is written to a temporary file, fsynced, read back whole and renamed; then the folder is fsynced.
Only then are checkpoints before the last two removed. A crash between any two steps leaves the old checkpoints, or the
old ones and the new one.
Rule: before older checkpoints are removed, a damaged checkpoint is renamed to a name that begins with ``.``. So two
valid checkpoints stay, even if the disk damaged one.
Rule: a log is never cut after the older of the last two checkpoints (``cut_limit``). If the newest is damaged, the
older one and the segments after it still give the whole state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from whimbrel.errors import InvalidValueError
from whimbrel.hold.rows import Key
from whimbrel.log import layout
from whimbrel.log.checkpoints.codec import CheckpointHeader, CheckpointReader, encode_checkpoint
from whimbrel.log.descriptors import open_descriptor
from whimbrel.log.errors import CorruptLogError, LogError, LogWriteError, NewerLogError
from whimbrel.log.files import PRIVATE_FILE, rename, sync_file, write_all

__all__ = [
    "KEPT",
    "CheckpointInfo",
    "checked",
    "cut_limit",
    "newest_sound",
    "opened",
    "put",
    "refuse_newer",
    "remove_unfinished",
    "save",
]

KEPT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """Summary of a checkpoint that was read whole and is valid."""

    header: CheckpointHeader
    path: Path
    rows: int
    size_bytes: int


@contextmanager
def opened(path: Path, node: str, seq: int) -> Iterator[CheckpointReader]:
    """Open the checkpoint at *path*; raise ``CorruptLogError`` unless its header has this *node* and *seq*."""
    with path.open("rb") as stream:
        reader = CheckpointReader(stream, path)
        header = reader.header
        if (header.node, header.seq) != (node, seq):
            raise CorruptLogError(path, 0, f"its header says {header.node}:{header.seq}")
        yield reader


def checked(path: Path, node: str, seq: int, *, pause: Callable[[], None] = lambda: None) -> CheckpointInfo:
    """Read a whole checkpoint; raise ``CorruptLogError`` if it is damaged. *pause* is called every 1,024 rows."""
    with opened(path, node, seq) as reader:
        for number, _ in enumerate(reader.rows()):
            if number % 1_024 == 0:
                pause()
        size = path.stat().st_size
        return CheckpointInfo(header=reader.header, path=path, rows=reader.row_count, size_bytes=size)


def newest_sound(directory: Path, node: str) -> tuple[CheckpointInfo | None, list[str]]:
    """Return the newest valid checkpoint, or None, and the errors of newer ones that are damaged or cannot be read.

    Raise ``NewerLogError`` if a newer Whimbrel wrote one of these: a start from an older one would lose facts.
    """
    troubles: list[str] = []
    for seq, path in reversed(layout.checkpoints(directory, node)):
        try:
            return checked(path, node, seq), troubles
        except NewerLogError:
            raise
        except (LogError, OSError) as error:
            troubles.append(str(error))
    return None, troubles


def refuse_newer(directory: Path, node: str) -> None:
    """Raise ``NewerLogError`` if a newer Whimbrel wrote a checkpoint of *node*; ignore damaged checkpoints."""
    for seq, path in layout.checkpoints(directory, node):
        with suppress(CorruptLogError), opened(path, node, seq):
            pass


def cut_limit(directory: Path, node: str) -> int | None:
    """Return the last seq that may be cut from a node's segments; None if there are no checkpoints.

    With only one checkpoint the result is 0: nothing may be cut.
    """
    found = layout.checkpoints(directory, node)
    if not found:
        return None
    return found[-KEPT][0] if len(found) >= KEPT else 0


def save(
    directory: Path,
    header: CheckpointHeader,
    rows: Iterable[tuple[Key, bytes]],
    *,
    pause: Callable[[], None] = lambda: None,
) -> CheckpointInfo:
    """Write and verify a checkpoint, and remove those before the last two; *pause* is called between chunks.

    If a valid checkpoint of that seq exists already, write nothing and return its summary.
    """
    node, seq = header.node, header.seq
    path = layout.checkpoint_path(directory, node, seq)
    try:
        remove_unfinished(directory, node)
        _set_unsound_aside(directory, node, pause)
        there = layout.checkpoints(directory, node)
        if there and there[-1][0] == seq:
            return checked(path, node, seq, pause=pause)
        if there and there[-1][0] > seq:
            raise InvalidValueError("seq of a checkpoint", seq, f"more than {there[-1][0]}, the newest there is")
        made = put(directory, header, rows, pause=pause)
        for _, old in layout.checkpoints(directory, node)[:-KEPT]:
            old.unlink()
        sync_file(path.parent)
    except OSError as error:
        raise LogWriteError(path, error.strerror or str(error), "the checkpoints before it stay") from error
    return made


def put(
    directory: Path,
    header: CheckpointHeader,
    rows: Iterable[tuple[Key, bytes]],
    *,
    pause: Callable[[], None] = lambda: None,
) -> CheckpointInfo:
    """Write a checkpoint to a temporary file, read it back, and rename it; other checkpoints stay."""
    path = layout.checkpoint_path(directory, header.node, header.seq)
    beside = path.with_name(f".{path.name}.new")
    try:
        _write(beside, header, rows, pause)
        made = checked(beside, header.node, header.seq, pause=pause)
        rename(beside, path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise LogWriteError(path, error.strerror or str(error), "the checkpoints before it stay") from error
    return CheckpointInfo(header=made.header, path=path, rows=made.rows, size_bytes=made.size_bytes)


def _write(path: Path, header: CheckpointHeader, rows: Iterable[tuple[Key, bytes]], pause: Callable[[], None]) -> None:
    descriptor = open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
    try:
        for piece in encode_checkpoint(header, rows):
            write_all(descriptor, piece)
            pause()
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _set_unsound_aside(directory: Path, node: str, pause: Callable[[], None]) -> None:
    for seq, path in layout.checkpoints(directory, node):
        try:
            checked(path, node, seq, pause=pause)
        except NewerLogError:
            raise
        except LogError:
            rename(path, path.with_name(f".unsound-{path.name}"))


def remove_unfinished(directory: Path, node: str) -> None:
    """Remove the temporary files that crashes left among the checkpoints of *node*."""
    for path in layout.segments_folder(directory, node).glob(".checkpoint-*.new"):
        path.unlink(missing_ok=True)
