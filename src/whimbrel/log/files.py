"""Files: durable, atomic writes for the log; after a crash at any point a file has its old or its new bytes.

Rule: a new file is written under a temporary name and fsynced, then renamed, then its folder is fsynced. Only segments
grow in place.
Rule: readers, Spark included, ignore names that begin with ``.`` or ``_``.
Rule: only the owner may read new files and folders (0600 and 0700): a log has bodies, names and password hashes.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from whimbrel.log.descriptors import open_descriptor
from whimbrel.log.errors import LogLockedError, LogWriteError

__all__ = [
    "PRIVATE_FILE",
    "PRIVATE_FOLDER",
    "lock_folder",
    "locked",
    "make_folder",
    "put",
    "rename",
    "sync_file",
    "tighten",
    "write_all",
]

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of *data*, in several calls if one call writes less."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_file(path: Path) -> None:
    """Fsync *path*, a file or a folder."""
    descriptor = open_descriptor(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create the folder *path* and its missing parents, and fsync the folder above each that was created."""
    if not path.is_dir():
        make_folder(path.parent)
        try:
            path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
            sync_file(path.parent)
        except OSError as error:
            raise LogWriteError(path, error.strerror or str(error)) from error


def rename(source: Path, target: Path) -> None:
    """Rename *source*, which is written and fsynced, to *target*, and fsync the folder."""
    source.replace(target)
    sync_file(target.parent)


def put(path: Path, data: bytes) -> None:
    """Write *data* to *path* atomically: after a crash it has all of *data*, or its old bytes."""
    beside = path.with_name(f".{path.name}.new")
    try:
        descriptor = open_descriptor(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        rename(beside, path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise LogWriteError(path, error.strerror or str(error)) from error


def tighten(path: Path) -> int:
    """Remove all rights of other users from *path* and all below it; return how many files and folders were changed.

    Links are skipped, because they may point anywhere. Files of another user are skipped, too.
    """
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return 0
    tightened = 0
    if found.st_mode & _OTHERS and found.st_uid == os.geteuid():
        path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)
        tightened = 1
    if stat.S_ISDIR(found.st_mode):
        for each in path.iterdir():
            with suppress(FileNotFoundError):  # an export may rename or remove files meanwhile
                tightened += tighten(each)
    return tightened


def lock_folder(path: Path, doing: str) -> int:
    """Lock the folder *path* and return its descriptor; closing it, or the end of the process, releases the lock."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise LogLockedError(path, doing) from None
    return descriptor


@contextmanager
def locked(path: Path, doing: str) -> Iterator[None]:
    """Hold the lock of the folder *path* in the ``with`` block; create the folder if it is missing."""
    make_folder(path)
    descriptor = lock_folder(path, doing)
    try:
        yield
    finally:
        os.close(descriptor)
