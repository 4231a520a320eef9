"""Short paths for Unix sockets, whose addresses have a small maximal length."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["short_path"]

_LONGEST_PATH = 100
"""Most bytes of a path; a Unix socket address has at least 104, including the final zero."""


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a short path to the same file: *path* itself, or one through ``/proc/self/fd`` if *path* is too long."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
