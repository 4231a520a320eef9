"""Files: the few ways in which the log touches the disk, so that a crash at any point leaves old or new, never half.

Rule: what is new is written beside, synced, renamed, and the folder synced; only segments grow in place.
Rule: names that begin with ``.`` or ``_`` are not there for any reader, Spark included.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from whimbrel.log.errors import LogLockedError, LogWriteError

__all__ = ["lock_folder", "locked", "make_folder", "put", "rename", "sync_file", "write_all"]


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of *data*; the system may take less at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_file(path: Path) -> None:
    """Wait until *path*, a file or a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make *path* and what is missing above it, durably."""
    if not path.is_dir():
        make_folder(path.parent)
        try:
            path.mkdir(exist_ok=True)
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
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
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
