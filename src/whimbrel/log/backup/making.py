"""Making a backup of a broker's data directory, while the broker runs or not.

A backup has the checkpoints, the segments from the oldest to the open one, the heartbeat and the users file. It also
has two marker files: one records that the broker has users, the other that stored sessions were moved to the mount
points (topic prefixes) of their clients. All facts that were acknowledged before the backup began are in these files,
because they were fsynced. Later facts may be in them. A backup lacks the view (the SQLite copy of the state), which a
starting broker rebuilds from a checkpoint. It also lacks Parquet, whose files any tool can copy.
Rule: the backup takes no lock and sends the broker no request. The broker may cut (remove) segments meanwhile. Copies
of segments that were cut meanwhile are left out of the backup. If the copied checkpoints no longer reach the first
segment, the backup starts again.
Rule: the copying rate is limited, so that the broker has the disk for itself most of the time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from whimbrel.errors import WhimbrelError
from whimbrel.log import layout
from whimbrel.log.backup.manifest import LOG, MOUNTED, USERS, USERS_NEEDED, BackedUp, Manifest
from whimbrel.log.checkpoints.folder import checked
from whimbrel.log.errors import LogError, LogWriteError, NotALogError
from whimbrel.log.files import PRIVATE_FILE, make_folder, sync_file, write_all

__all__ = ["NoNodeError", "back_up", "only_node"]

_PIECE_BYTES = 1 << 20
_TRIES = 5


class NoNodeError(WhimbrelError):
    """The data directory has the logs of several nodes, or none. Reaction: name the node to back up."""

    def __init__(self, data: Path, nodes: tuple[str, ...]) -> None:
        super().__init__(data, nodes)
        self.data, self.nodes = data, nodes

    def __str__(self) -> str:
        found = f"has the logs of {', '.join(self.nodes)}" if self.nodes else "has no log"
        return f"{self.data}: {found}; name one node"


def only_node(data: Path) -> str:
    """Return the one node whose segments are in the data directory *data*; raise ``NoNodeError`` otherwise."""
    found = tuple(node for node in layout.nodes(data / LOG) if layout.segments(data / LOG, node))
    if len(found) != 1:
        raise NoNodeError(data, found)
    return found[0]


def back_up(
    data: Path,
    node: str,
    target: Path,
    *,
    now: int,
    bytes_per_second: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Manifest:
    """Copy the data of *node* to the folder *target*, which must be empty or missing."""
    layout.check_format(data / LOG)
    if target.exists() and any(target.iterdir()):
        raise NotALogError(target, "not empty: a backup gets a folder of its own")
    make_folder(target)
    copying = _Copying(data, target, bytes_per_second, sleep)
    try:
        for _ in range(_TRIES):
            manifest = _attempt(copying, node, now)
            if manifest is not None:
                manifest.write(target)
                return manifest
            shutil.rmtree(target / LOG)
    except OSError as error:
        raise LogWriteError(target, error.strerror or str(error), "there is no backup there") from error
    raise LogError(f"{data}: the log was cut faster than it could be copied, {_TRIES} times; copy it faster")


def _attempt(copying: _Copying, node: str, now: int) -> Manifest | None:
    """Copy everything once; return None if the broker cut so many segments meanwhile that the copy has a gap."""
    log = copying.data / LOG
    files = [copying.copy(log / layout.FORMAT_FILE)]
    newest = 0
    for seq, path in layout.checkpoints(log, node):
        try:
            copied = copying.copy(path)
        except FileNotFoundError:
            continue  # removed, because two newer checkpoints were made meanwhile
        checked(copying.target / copied.path, node, seq)
        files.append(copied)
        newest = seq
    segments: list[tuple[int, BackedUp]] = []
    for first, path in layout.segments(log, node):
        try:
            segments.append((first, copying.copy(path)))
        except FileNotFoundError:
            for _, gone in segments:
                (copying.target / gone.path).unlink()
            segments.clear()
    if not segments or segments[0][0] > newest + 1:
        return None
    files += [copied for _, copied in segments]
    for name in (f"heartbeat-{node}", f"{MOUNTED}-{node}", USERS, USERS_NEEDED):
        with suppress(FileNotFoundError):
            files.append(copying.copy(copying.data / name))
    return Manifest(node=node, made_at=now, oldest=segments[0][0], checkpoint=newest, files=tuple(files))


class _Copying:
    """Copier of files from *data* to *target*, at most *bytes_per_second* (0: unlimited)."""

    def __init__(self, data: Path, target: Path, bytes_per_second: float, sleep: Callable[[float], None]) -> None:
        self.data, self.target = data, target
        self._rate, self._sleep = bytes_per_second, sleep

    def copy(self, path: Path) -> BackedUp:
        """Copy the file *path*, fsync the copy, and return its size and digest; a growing file is copied to its end."""
        relative = path.relative_to(self.data)
        target = self.target / relative
        digest, size = hashlib.sha256(), 0
        with path.open("rb") as stream:
            make_folder(target.parent)
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
            try:
                while piece := stream.read(_PIECE_BYTES):
                    write_all(descriptor, piece)
                    digest.update(piece)
                    size += len(piece)
                    if self._rate:
                        self._sleep(len(piece) / self._rate)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_file(target.parent)
        return BackedUp(path=relative.as_posix(), size_bytes=size, sha256=digest.hexdigest())
