"""Restoring a backup: check every file against the manifest, then rename all files into the data directory.

Rule: a data directory that has files is never overwritten.
Rule: only files that the manifest names are written, each as a new file, and none outside the data directory.
Rule: files are first copied to ``.restoring`` in the data directory, checked and fsynced; then they are renamed to
their final paths, the log last. So a crash before the end leaves no log. If a broker is started there nevertheless, its
users file is already in place.
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
    """Read a whole backup; raise ``CorruptLogError`` at the first file that differs from its size or checksum."""
    manifest = Manifest.read(backup)
    for each in manifest.files:
        _check(backup, each, pieces_of(backup, each.path))
    return manifest


def restore(backup: Path, data: Path) -> Manifest:
    """Restore *backup* to the data directory *data*, which must be empty or missing."""
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
            with suppress(OSError):  # fails if the folder has files
                data.rmdir()
    return manifest


def _clear(folder: Path) -> None:
    """Remove the folder that an interrupted restore left."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def _lay_down(backup: Path, each: BackedUp, beside: Path) -> None:
    """Copy one file of a backup to the temporary folder *beside*, check it against the manifest, and fsync it."""
    target = beside / each.path
    target.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        _check(backup, each, _write_each(descriptor, pieces_of(backup, each.path)))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_each(descriptor: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Write each of *pieces* (chunks of a file) to the file *descriptor*, then yield it."""
    for piece in pieces:
        write_all(descriptor, piece)
        yield piece


def _check(backup: Path, each: BackedUp, pieces: Iterator[bytes]) -> None:
    """Raise ``CorruptLogError`` unless a file's chunks *pieces* have the size and the checksum in the manifest."""
    size, digest = digest_of(pieces)
    if (size, digest) != (each.size_bytes, each.sha256):
        found = (
            f"it has {size} bytes, not {each.size_bytes}" if size != each.size_bytes else "its checksum does not match"
        )
        raise CorruptLogError(backup / each.path, 0, f"it is not the file that was copied: {found}")
