"""Making a backup of a broker's data directory, while the broker lives or not.

What is copied: the checkpoints, then the segments from the oldest to the one that grows, the heartbeat, the users file
of the data directory, and the notes that its broker has users and that its client identifiers are mounted. All facts
acknowledged before the backup began are in these files, for they were fsynced; of later facts some are there.
The view is not copied: a start makes it of a checkpoint. Nor is Parquet, which others may copy as it is.
Rule: nothing is locked and nothing asked of the broker. It may cut segments meanwhile: then those that were copied
before the cut are left out, and if the checkpoints that were copied do not reach any more, all is done again.
Rule: copying is paced, so that the broker has the disk for itself most of the time.
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
    """It is not clear whose data is to be copied. Reaction: name the node."""

    def __init__(self, data: Path, nodes: tuple[str, ...]) -> None:
        super().__init__(data, nodes)
        self.data, self.nodes = data, nodes

    def __str__(self) -> str:
        found = f"has the logs of {', '.join(self.nodes)}" if self.nodes else "has no log"
        return f"{self.data}: {found}; name one node"


def only_node(data: Path) -> str:
    """Return the one node whose log is in the data directory *data*."""
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
    """Copy the data of *node* to the folder *target*, which is empty or not there yet."""
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
    """Copy everything once; return None if the broker cut so much meanwhile that the copy has a gap."""
    log = copying.data / LOG
    files = [copying.copy(log / layout.FORMAT_FILE)]
    newest = 0
    for seq, path in layout.checkpoints(log, node):
        try:
            copied = copying.copy(path)
        except FileNotFoundError:
            continue  # two newer ones were made meanwhile
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
    """Copies files from *data* to *target*, no faster than so many bytes a second."""

    def __init__(self, data: Path, target: Path, bytes_per_second: float, sleep: Callable[[float], None]) -> None:
        self.data, self.target = data, target
        self._rate, self._sleep = bytes_per_second, sleep

    def copy(self, path: Path) -> BackedUp:
        """Copy a file as it is now; one that grows is copied to where it ends."""
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
