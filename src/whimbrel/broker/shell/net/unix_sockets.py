"""Unix sockets: made with the mode that the configuration asks for, taken over from a broker that died, and removed.

Rule: no client can connect before the file has its mode: the socket is bound, then the mode is set, then it listens.
Rule: only a socket that no process listens on is replaced, and only one that is ours is removed.
"""

from __future__ import annotations

import errno
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

__all__ = ["UnixSocket", "peer_name"]

_CREDENTIALS = struct.Struct("3i")
"""What Linux tells of the process at the other end: its id, its user and its group (unix(7), SO_PEERCRED)."""


class UnixSocket:
    """A socket with a path, bound and not yet listening; raises ``OSError`` where there can be none."""

    def __init__(self, path: str, mode: int) -> None:
        self._path = Path(path)
        self._clear()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.setblocking(False)
            self.socket.bind(path)
            self._path.chmod(mode)
            self._inode = self._path.stat().st_ino
        except OSError:
            self.socket.close()
            raise

    def _clear(self) -> None:
        """Remove what a process left behind that listens no more."""
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file of another kind")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # a full backlog must not hold the start up
            try:
                probe.connect(str(self._path))
            except ConnectionRefusedError:
                self._path.unlink()
                return
            except BlockingIOError:
                pass
        raise OSError(errno.EADDRINUSE, "another process listens on it")

    def remove(self) -> None:
        """Remove the file, unless another process has put its own there."""
        with suppress(OSError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()


def peer_name(peer: socket.socket) -> str:
    """Return what a connection over a Unix socket is called in log lines, and counted by: the user at its other end."""
    try:
        data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except (OSError, AttributeError):  # not every system says
        return "unix"
    return f"unix user {_CREDENTIALS.unpack(data)[1]}"
