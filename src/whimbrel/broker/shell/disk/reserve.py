"""The reserve: room on the disk that is given up when the disk is full.

What waits for the disk can then be written, and so can the view and the checkpoint that a cut of the log needs.
Rule: it is held again only where twice as much is free; until then nothing that stays is accepted.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from whimbrel.log.files import PRIVATE_FILE

__all__ = ["RESERVE_BYTES", "Reserve"]

RESERVE_BYTES = 8 << 20
"""More than what may wait for the disk at a time (4 MiB, and what one turn reads)."""
_SHARE = 16
"""Of a small disk it takes one in so many bytes."""
_CANNOT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class Reserve:
    """A file of some megabytes at *path* that holds nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_held = False
        """Whether the room is there; if not, the disk is full or nearly so."""

    def hold(self) -> bool:
        """Take the room, if enough is free, and return whether it is held."""
        if self.is_held:
            return True
        try:
            disk = shutil.disk_usage(self._path.parent)
            size = min(RESERVE_BYTES, disk.total // _SHARE)
            there = self._path.stat().st_size if self._path.exists() else 0
            if disk.free + there < 2 * size:
                return False
            self._take(size)
        except OSError:
            self.give_up()
            return False
        self.is_held = True
        return True

    def give_up(self) -> None:
        """Let others have the room."""
        self.is_held = False
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _take(self, size: int) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT, PRIVATE_FILE)
        try:
            try:
                os.posix_fallocate(file, 0, size)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                os.write(file, bytes(size))  # a file system that cannot set room aside
            os.ftruncate(file, size)
        finally:
            os.close(file)
