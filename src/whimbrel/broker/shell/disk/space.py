"""Disk space: measures the free space, and holds a reserve file that is deleted when the disk is full.

In the space of the deleted reserve the broker can write the records in its queue, and the view and the checkpoint
without which the log cannot be cut.
Rule: publications are refused before the disk is full, while all records in the queue still fit.
Rule: the reserve file is made again only if at least twice its size is free.
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
"""Size of the reserve file; and space for a checkpoint and for the records that may wait to be written: 4 MiB, and
those of one turn of the event loop."""
_RESERVE_SHARE, _LOW_SHARE = 16, 4
"""On a small disk the reserve takes at most 1/16 of its size, and less than 1/4 free counts as nearly full."""
_CANNOT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class DiskSpace:
    """Free space of the disk of *folder*, with the reserve file *name* in that folder, whose content is zeros."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._reserve = folder, folder / name
        self.is_low = False
        """Whether so little is free that the records waiting to be written may only just fit."""
        self.is_reserve_held = False
        """Whether the reserve file exists; if not, the disk is full or was full a moment ago."""
        self.wanted_bytes = 0
        """Free bytes above which publications are accepted again, with a margin against frequent switching."""

    @property
    def takes_publications(self) -> bool:
        """Whether publications fit; if not, there is space only for small records, such as that of a CONNECT."""
        return self.is_reserve_held and not self.is_low

    def look(self) -> None:
        """Measure the free space; any thread may call this."""
        with suppress(OSError):  # if the measurement fails, the last one stays
            disk = shutil.disk_usage(self._folder)
            low = min(_RESERVE_BYTES + _WAITING_BYTES, disk.total // _LOW_SHARE)
            self.wanted_bytes = low * 3 // 2
            self.is_low = disk.free < (low * 5 // 4 if self.is_low else low)

    def hold_reserve(self) -> None:
        """Create the reserve file, if it is missing and enough space is free; then measure the free space."""
        if not self.is_reserve_held:
            try:
                self.is_reserve_held = self._take_reserve()
            except OSError:
                self.give_up_reserve()
        self.look()

    def give_up_reserve(self) -> None:
        """Delete the reserve file, so that its space can be used."""
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
            os.write(file, bytes(size))  # a file system that cannot allocate space in advance
        finally:
            os.close(file)
        return True
