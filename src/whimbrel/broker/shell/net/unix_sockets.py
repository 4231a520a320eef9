"""Unix sockets: create the socket file with the configured mode, replace that of a dead broker, and remove it.

Rule: no client can connect before the file has its mode: the socket is bound, then the mode is set, then it listens.
Rule: only a socket file on which no process listens is replaced, and only our own file is removed.
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
"""Process id, user id and group id of the process at the other end (unix(7), SO_PEERCRED)."""


class UnixSocket:
    """Unix socket at *path*, bound but not listening yet; raises ``OSError`` if it cannot be created."""

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
        """Remove the socket file of a process that no longer listens; raise if the path is in use."""
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
        """Remove the socket file, unless another process has replaced it by its own."""
        with suppress(OSError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()


def peer_name(peer: socket.socket) -> str:
    """Return the name of a Unix-socket client for log lines and counters: "unix user" and its user id."""
    try:
        data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except (OSError, AttributeError):  # not every system has this option
        return "unix"
    return f"unix user {_CREDENTIALS.unpack(data)[1]}"
