"""IPv6 link-local multicast: one address for each subject and cell, and one for the relays of each cell.

The group id is a 112-bit BLAKE2s hash, used as the tail of a transient link-local address (ff12::/16, RFC 4291). Two
names that share an address would only cost a look at frames for others; the area is held against the place in any case.

Rule: a frame goes to its subject's address in every cell that its area touches. While it may be repeated, it also goes
to the relays' address there: a node without the interest would not hear it otherwise.
Rule: a request or an objection goes to one address, that of the node it is for; every node listens on its own.
Rule: a node listens on the cell of its own place, of each level: for its subjects, and for relays if it is one. A
producer listens for its own subjects in all cells of its area.
Rule: a producer tells its beacon once in a while on an address of its subject that has no cell, where all who want the
subject listen: a node whose deployment has other cells would never hear it in them, and could not notice.
Rule: datagrams are sent with a hop limit of 1 and never leave the link.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import struct
import sys
import time
from collections.abc import Iterable

from whimbrel.errors import InvalidInputError
from whimbrel.model.place import Area, Place
from whimbrel.nearby.cells import Cell, cell_of, cover, levels
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.values import Asked, Frame

__all__ = [
    "PORT",
    "MulticastSocket",
    "NoMulticastError",
    "addresses_for",
    "addresses_of",
    "deployment_address",
    "group_address",
    "node_address",
]

PORT = 27_302
_RELAYS = ""
"""The subject of the relays' addresses; no event type has this name."""
_ANYWHERE = Cell(-1, -1, -1)
"""The cell of addresses that have none."""
_MULTICAST_ALL = 29
"""IPV6_MULTICAST_ALL of Linux: hear only the groups that this very socket joined."""
_TIMESTAMP = 35
"""SO_TIMESTAMPNS of Linux: the kernel says when a datagram arrived."""
_TIMESPEC = struct.Struct("@qq")
_BUFFER_BYTES = 1 << 20
_MAX_DATAGRAM = 65_535


class NoMulticastError(InvalidInputError):
    """An interface cannot be used. Reaction: name another one."""

    def __init__(self, interface: str, reason: str) -> None:
        super().__init__(interface, reason)
        self.interface, self.reason = interface, reason

    def __str__(self) -> str:
        return f"interface {self.interface} cannot be used for IPv6 multicast: {self.reason}"


def group_address(subject: str, cell: Cell) -> str:
    """Return the address of *subject* in *cell*."""
    return _address(f"{subject}\0{cell}")


def _address(name: str) -> str:
    digest = hashlib.blake2s(name.encode(), digest_size=14).digest()
    return socket.inet_ntop(socket.AF_INET6, b"\xff\x12" + digest)


def deployment_address(subject: str) -> str:
    """Return where producers of *subject* tell which cells their deployment has."""
    return group_address(subject, _ANYWHERE)


def node_address(name: str) -> str:
    """Return where the node *name* hears what is for it alone."""
    return _address(f"\0{name}")


def addresses_of(frame: Frame, *, deployment: Deployment) -> list[str]:
    """Return where *frame* goes."""
    if isinstance(frame, Asked):
        return [node_address(frame.to)]
    cells = sorted(cover(frame.area, deployment=deployment))
    found = [group_address(frame.subject, cell) for cell in cells]
    if frame.hops:
        found += [group_address(_RELAYS, cell) for cell in cells]
    return found


def addresses_for(
    name: str,
    place: Place | None,
    *,
    subjects: Iterable[str],
    announced: Iterable[tuple[str, Area]],
    is_relay: bool,
    deployment: Deployment,
) -> frozenset[str]:
    """Return the addresses on which the node *name* at *place* listens."""
    found = {node_address(name)}
    found |= {
        group_address(subject, cell) for subject, area in announced for cell in cover(area, deployment=deployment)
    }
    if place is not None:
        cells = [cell_of(place, level=level, deployment=deployment) for level in levels(deployment=deployment)]
        subjects = list(subjects)
        heard = [*subjects, *([_RELAYS] if is_relay else [])]
        found |= set(map(deployment_address, subjects))
        found |= {group_address(each, cell) for each in heard for cell in cells}
    return frozenset(found)


class MulticastSocket:
    """A UDP socket on one interface that joins and leaves groups."""

    def __init__(self, interface: str, *, port: int = PORT) -> None:
        self.interface, self.port = interface, port
        try:
            self.index = socket.if_nametoindex(interface)
        except OSError:
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise NoMulticastError(interface, f"there is no such interface; there are {names}") from None
        try:
            self.socket = self._opened()
        except OSError as error:
            raise NoMulticastError(interface, error.strerror or str(error)) from None
        self._joined: frozenset[str] = frozenset()

    def _opened(self) -> socket.socket:
        opened = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        try:
            index = struct.pack("@I", self.index)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            opened.bind(("::", self.port))
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 1)
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)  # other nodes on this machine
            if sys.platform == "linux":  # elsewhere frames of others are dropped at the door
                opened.setsockopt(socket.IPPROTO_IPV6, _MULTICAST_ALL, 0)
            self.stamp(opened)
            opened.setblocking(False)
            self._probe(opened)
        except OSError:
            opened.close()
            raise
        return opened

    @staticmethod
    def stamp(opened: socket.socket) -> None:
        """Have the kernel say when each datagram arrived, where it can."""
        if sys.platform == "linux":
            opened.setsockopt(socket.SOL_SOCKET, _TIMESTAMP, 1)

    def _probe(self, opened: socket.socket) -> None:
        """Send an empty datagram: an interface without a route for multicast says so now, not with every frame."""
        with contextlib.suppress(BlockingIOError):
            opened.sendto(b"", (group_address("probe", Cell(0, 0, 0)), self.port, 0, self.index))

    def listen(self, addresses: frozenset[str]) -> None:
        """Listen on these addresses, and on no others."""
        try:
            for address in self._joined - addresses:
                self._set(socket.IPV6_LEAVE_GROUP, address)
            for address in addresses - self._joined:
                self._set(socket.IPV6_JOIN_GROUP, address)
        except OSError as error:
            raise NoMulticastError(self.interface, error.strerror or str(error)) from None
        self._joined = addresses

    def _set(self, option: int, address: str) -> None:
        request = socket.inet_pton(socket.AF_INET6, address) + struct.pack("@I", self.index)
        self.socket.setsockopt(socket.IPPROTO_IPV6, option, request)

    def send(self, data: bytes, addresses: Iterable[str]) -> int:
        """Send *data* to each of *addresses*; return to how many it could not be sent, as with a full buffer."""
        failed = 0
        for address in addresses:
            try:
                self.socket.sendto(data, (address, self.port, 0, self.index))
            except OSError:
                failed += 1
        return failed

    def receive(self) -> tuple[bytes, int, str] | None:
        """Return a datagram, for how many microseconds it has waited here, and whence it came, or ``None``.

        What a busy node leaves in the kernel's buffer gets older there, and deadlines do not wait.
        """
        try:
            data, ancillary, _, address = self.socket.recvmsg(_MAX_DATAGRAM, socket.CMSG_SPACE(_TIMESPEC.size))
        except BlockingIOError:
            return None
        for level, kind, value in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMP) and len(value) == _TIMESPEC.size:
                seconds, nanoseconds = _TIMESPEC.unpack(value)
                waited_us = max(0, time.time_ns() - seconds * 1_000_000_000 - nanoseconds) // 1_000
                return data, waited_us, str(address[0])
        return data, 0, str(address[0])

    def close(self) -> None:
        """Leave all groups."""
        self.socket.close()
