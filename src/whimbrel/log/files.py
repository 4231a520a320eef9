"""Files: the few ways in which the log touches the disk, so that a crash at any point leaves old or new, never half.

Rule: what is new is written beside, synced, renamed, and the folder synced; only segments grow in place.
Rule: names that begin with ``.`` or ``_`` are not there for any reader, Spark included.
Rule: what is made here is its owner's alone (0600 and 0700): a log has bodies, names and password hashes in it.
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
    """Write all of *data*; the system may take less at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_file(path: Path) -> None:
    """Wait until *path*, a file or a folder, is on the disk."""
    descriptor = open_descriptor(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make *path* and what is missing above it, durably."""
    if not path.is_dir():
        make_folder(path.parent)
        try:
            path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
            sync_file(path.parent)
        except OSError as error:
            raise LogWriteError(path, error.strerror or str(error)) from error


def rename(source: Path, target: Path) -> None:
    """Let *source*, written and synced, be *target* from here on, durably."""
    source.replace(target)
    sync_file(target.parent)


def put(path: Path, data: bytes) -> None:
    """Let *path* hold *data*: all of it or what it held before."""
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
    """Let only its owner use *path* and what is below it; return how many files and folders were open to others.

    Links are left alone: they may lead anywhere. What belongs to another user is left alone, too.
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
            with suppress(FileNotFoundError):  # an export may be at work
                tightened += tighten(each)
    return tightened


def lock_folder(path: Path, doing: str) -> int:
    """Return a descriptor of the folder *path* that is locked until it is closed, by us or by our end."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise LogLockedError(path, doing) from None
    return descriptor


@contextmanager
def locked(path: Path, doing: str) -> Iterator[None]:
    """Hold the lock of the folder *path*, making it if need be."""
    make_folder(path)
    descriptor = lock_folder(path, doing)
    try:
        yield
    finally:
        os.close(descriptor)
