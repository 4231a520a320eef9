"""A link for machines without multicast: connects the nodes of one process over UDP on ::1.

Rule: a datagram to an address goes to every node that listens on it, also to the sender, as multicast does.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

from whimbrel.multicast.sockets import MulticastSocket

__all__ = ["LoopbackLink"]


class LoopbackLink(MulticastSocket):
    """One node's end of the link; *everybody* lists the ends of all nodes, and the new end adds itself."""

    def __init__(self, everybody: list[LoopbackLink]) -> None:
        self.interface, self.index = "lo", 0
        self._everybody = everybody
        self.socket = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self.socket.bind(("::1", 0))
        self.port = int(self.socket.getsockname()[1])
        self.stamp(self.socket)
        self.socket.setblocking(False)
        self._joined = frozenset()
        everybody.append(self)

    def listen(self, addresses: frozenset[str]) -> None:
        """Listen on *addresses* only."""
        self._joined = addresses

    def send(self, data: bytes, addresses: Iterable[str], *, sender: socket.socket | None = None) -> int:
        """Send *data* once per node and address that the node listens on; return 0, because no send can fail."""
        for address in addresses:
            for other in self._everybody:
                if address in other.joined:
                    (sender or self.socket).sendto(data, other.socket.getsockname())
        return 0

    def open_direct(self) -> socket.socket:
        """Open a socket for datagrams to and from single nodes."""
        opened = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        opened.bind(("::1", 0))
        opened.setblocking(False)
        return opened

    def close(self) -> None:
        """Leave the link."""
        self._everybody.remove(self)
        super().close()
