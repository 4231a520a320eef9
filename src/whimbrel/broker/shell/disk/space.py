"""Room on the disk: how much is free, and a reserve that is given up when nothing is.

What waits for the disk can then be written, and so can the view and the checkpoint that a cut of the log needs.
Rule: publications are refused before the disk is full, while there is still room for all that waits to be written.
Rule: the reserve is held again only where twice as much is free.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from whimbrel.log.files import PRIVATE_FILE

__all__ = ["DiskSpace"]

_RESERVE_BYTES, _WAITING_BYTES = 8 << 20, 8 << 20
"""The reserve; and room for what may wait for the disk at a time (4 MiB, and what one turn reads), and a checkpoint."""
_RESERVE_SHARE, _LOW_SHARE = 16, 4
"""Of a small disk the reserve takes one in so many bytes, and one in so many is little."""
_CANNOT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class DiskSpace:
    """The disk of *folder*, with a reserve in the file *name*, which holds nothing."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._reserve = folder, folder / name
        self.is_low = False
        """Whether so little is free that what waits to be written may just fit."""
        self.is_reserve_held = False
        """Whether the reserve is there; if not, the disk was full a moment ago, or is still."""
        self.wanted_bytes = 0
        """How much must be free so that publications are accepted again, and little does not change that."""

    @property
    def takes_publications(self) -> bool:
        """Whether there is room for more than what is small, such as the log record of a CONNECT."""
        return self.is_reserve_held and not self.is_low

    def look(self) -> None:
        """Find out how much is free; any thread may do it."""
        with suppress(OSError):  # then it stays as it was known
            disk = shutil.disk_usage(self._folder)
            low = min(_RESERVE_BYTES + _WAITING_BYTES, disk.total // _LOW_SHARE)
            self.wanted_bytes = low * 3 // 2
            self.is_low = disk.free < (low * 5 // 4 if self.is_low else low)

    def hold_reserve(self) -> None:
        """Take the reserve, if it is not there and enough is free."""
        if not self.is_reserve_held:
            try:
                self.is_reserve_held = self._take_reserve()
            except OSError:
                self.give_up_reserve()
        self.look()

    def give_up_reserve(self) -> None:
        """Let others have the room of the reserve."""
        self.is_reserve_held = False
        with suppress(OSError):
            self._reserve.unlink(missing_ok=True)

    def _take_reserve(self) -> bool:
        disk = shutil.disk_usage(self._folder)
        size = min(_RESERVE_BYTES, disk.total // _RESERVE_SHARE)
        there = self._reserve.stat().st_size if self._reserve.exists() else 0
        if disk.free + there < 2 * size:
            return False
        file = os.open(self._reserve, os.O_WRONLY | os.O_CREAT, PRIVATE_FILE)
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            os.write(file, bytes(size))  # a file system that cannot set room aside
        finally:
            os.close(file)
        return True
