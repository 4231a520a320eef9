"""File descriptors in reserve: the log opens its files although connections have used up all others.

A connection is accepted before any rule of ours sees it, so a burst of them can take every descriptor there is. The
soft limit of open files is therefore kept below the hard one (``keep_reserve``); only what the log opens may go beyond.
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
"""How many descriptors only the log may open."""
_MANY = 1 << 30
"""What counts as the limit where there is none."""
_LOCK = Lock()


def most_descriptors() -> int:
    """Return how many descriptors this process may have open beside the reserve."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (_MANY if hard == resource.RLIM_INFINITY else hard) - RESERVED


def keep_reserve(wanted: int) -> int:
    """Let this process have *wanted* descriptors, or as many as it may; return how many it may have now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    chosen = min(max(wanted, soft), most_descriptors())
    with suppress(ValueError, OSError):  # a system may allow fewer than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (chosen, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def open_descriptor(path: Path, flags: int, mode: int = 0o777) -> int:
    """Do what ``os.open`` does, with a descriptor of the reserve where there is no other."""
    try:
        return os.open(path, flags, mode)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    with _reserve():
        return os.open(path, flags, mode)


@contextmanager
def _reserve() -> Iterator[None]:
    """Raise the soft limit for a moment."""
    with _LOCK:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        raised = soft + RESERVED if hard == resource.RLIM_INFINITY else min(soft + RESERVED, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
