"""Client of the control socket: sends a request (``status`` or ``reload``) to a broker on this machine."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path

from whimbrel.errors import WhimbrelError
from whimbrel.multicast.socket_paths import short_path

__all__ = ["CONTROL", "NoBrokerError", "ask_broker"]

CONTROL = "control"
"""File name of the control socket in a data folder."""
_MAX_ANSWER_BYTES = 1 << 20


class NoBrokerError(WhimbrelError):
    """No broker answers in a data folder. Reaction: start a broker, or name the data folder of a running one."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder, self.reason = folder, reason

    def __str__(self) -> str:
        return f"no broker answers in {self.folder}: {self.reason}; --data names the data folder of one that runs"


def ask_broker(folder: Path, name: str, *, timeout_s: float = 60.0) -> Mapping[str, object]:
    """Send the request *name* to the broker with the data folder *folder*; return its answer.

    Raise ``NoBrokerError`` if no broker answers within *timeout_s*.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(timeout_s)
        try:
            with short_path(folder / CONTROL) as path:
                asking.connect(path)
            asking.sendall(name.encode() + b"\n")
            with asking.makefile("rb") as stream:
                line = stream.readline(_MAX_ANSWER_BYTES)
            answer = json.loads(line)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "its answer cannot be read"
            raise NoBrokerError(folder, reason) from None
    return answer if isinstance(answer, dict) else {}
