"""Asking a broker of this machine: the other end of the control socket, for commands."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from whimbrel.errors import WhimbrelError

__all__ = ["CONTROL", "NoBrokerError", "ask_broker", "short_path"]

CONTROL = "control"
"""The socket in a data folder."""
_MOST_ANSWER_BYTES = 1 << 20
_LONGEST_PATH = 100
"""Addresses of Unix sockets have 104 bytes at least, with the zero at their end."""


class NoBrokerError(WhimbrelError):
    """No broker answers. Reaction: start one, or name the folder of one that runs."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder, self.reason = folder, reason

    def __str__(self) -> str:
        return f"no broker answers in {self.folder}: {self.reason}; --data names the data folder of one that runs"


def ask_broker(folder: Path, name: str, *, timeout_s: float = 60.0) -> Mapping[str, object]:
    """Return the answer of the broker whose data are in *folder*, or raise ``NoBrokerError``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(timeout_s)
        try:
            with short_path(folder / CONTROL) as path:
                asking.connect(path)
            asking.sendall(name.encode() + b"\n")
            with asking.makefile("rb") as stream:
                line = stream.readline(_MOST_ANSWER_BYTES)
            answer = json.loads(line)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "its answer cannot be read"
            raise NoBrokerError(folder, reason) from None
    return answer if isinstance(answer, dict) else {}


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
