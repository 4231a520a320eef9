"""Restoring a backup: every file is held against the manifest before the data directory has any of them.

Rule: a data directory that is there is never written over.
Rule: only files that the manifest names are written, each as a new file, and none outside the data directory.
Rule: files are laid down in ``.restoring`` in the data directory, checked and fsynced, then renamed to their places.
The log comes last: a crash before leaves no log, and a broker that starts there all the same has its users already.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from whimbrel.log.backup.manifest import LOG, BackedUp, Manifest, digest_of, pieces_of
from whimbrel.log.errors import CorruptLogError, LogWriteError, NotALogError
from whimbrel.log.files import PRIVATE_FILE, PRIVATE_FOLDER, make_folder, rename, sync_file, tighten, write_all

__all__ = ["check_backup", "restore"]

_RESTORING = ".restoring"


def check_backup(backup: Path) -> Manifest:
    """Read all of a backup; raise ``CorruptLogError`` at the first file that is not what was copied."""
    manifest = Manifest.read(backup)
    for each in manifest.files:
        _check(backup, each, pieces_of(backup, each.path))
    return manifest


def restore(backup: Path, data: Path) -> Manifest:
    """Make *data*, which is empty or not there yet, of the backup."""
    is_new = not data.exists()
    if not is_new and (not data.is_dir() or any(each.name != _RESTORING for each in data.iterdir())):
        raise NotALogError(data, "not empty: move it away first, or restore to another folder")
    manifest = Manifest.read(backup)
    make_folder(data)
    beside = data / _RESTORING
    try:
        _clear(beside)
        beside.mkdir(mode=PRIVATE_FOLDER)
        for each in manifest.files:
            _lay_down(backup, each, beside)
        for folder, _, _ in os.walk(beside, topdown=False):
            sync_file(Path(folder))
        tighten(data)
        for path in sorted(beside.iterdir(), key=lambda found: found.name == LOG):
            rename(path, data / path.name)
        beside.rmdir()
    except OSError as error:
        raise LogWriteError(data, error.strerror or str(error), "nothing was restored") from error
    finally:
        with suppress(OSError):
            _clear(beside)
        if is_new:
            with suppress(OSError):  # it has something in it
                data.rmdir()
    return manifest


def _clear(folder: Path) -> None:
    """Remove what a restore that was cut off has left."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def _lay_down(backup: Path, each: BackedUp, beside: Path) -> None:
    """Copy one file of a backup to its place below *beside*, as a new file, and hold it against the manifest."""
    target = beside / each.path
    target.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        _check(backup, each, _written(descriptor, pieces_of(backup, each.path)))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _written(descriptor: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield *pieces*, each once it is written."""
    for piece in pieces:
        write_all(descriptor, piece)
        yield piece


def _check(backup: Path, each: BackedUp, pieces: Iterator[bytes]) -> None:
    """Raise ``CorruptLogError`` unless *pieces* are the bytes of the file that was copied."""
    size, digest = digest_of(pieces)
    if (size, digest) != (each.size_bytes, each.sha256):
        found = (
            f"it has {size} bytes, not {each.size_bytes}" if size != each.size_bytes else "its checksum does not match"
        )
        raise CorruptLogError(backup / each.path, 0, f"it is not the file that was copied: {found}")
