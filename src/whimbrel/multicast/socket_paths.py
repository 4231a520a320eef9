"""Paths of Unix sockets, which an address has little room for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["short_path"]

_LONGEST_PATH = 100
"""Addresses of Unix sockets have 104 bytes at least, with the zero at their end."""


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a path to the same file that fits into the address of a socket, where the system has one."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
