"""Reserved file descriptors: the log can open its files even if connections use all other descriptors.

The system accepts a connection before any rule of ours sees it, so a burst of connections can use every descriptor.
So ``keep_reserve`` keeps the soft limit of open files below the hard limit; only files of the log may exceed it.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

__all__ = ["RESERVED", "keep_reserve", "most_descriptors", "open_descriptor"]

RESERVED = 64
"""Number of descriptors that only the log may open."""
_MANY = 1 << 30
"""Limit that is assumed if the system has none."""
_LOCK = Lock()


def most_descriptors() -> int:
    """Return how many descriptors this process may have open, without those that are reserved."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (_MANY if hard == resource.RLIM_INFINITY else hard) - RESERVED


def keep_reserve(wanted: int) -> int:
    """Raise the soft limit of open files to *wanted* or, if that is lower, to ``RESERVED`` below the hard limit.

    Return the new soft limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    chosen = min(max(wanted, soft), most_descriptors())
    with suppress(ValueError, OSError):  # a system may allow fewer than its hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (chosen, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def open_descriptor(path: Path, flags: int, mode: int = 0o777) -> int:
    """Open a file as ``os.open`` does; use a reserved descriptor if no other is free."""
    try:
        return os.open(path, flags, mode)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    with _reserve():
        return os.open(path, flags, mode)


@contextmanager
def _reserve() -> Iterator[None]:
    """Raise the soft limit of open files by the reserve (for files of the log) within the ``with`` block."""
    with _LOCK:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        raised = soft + RESERVED if hard == resource.RLIM_INFINITY else min(soft + RESERVED, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
