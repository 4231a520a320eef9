"""A UDP socket for IPv6 link-local multicast, and the addresses of groups.

The group id is a 112-bit BLAKE2s hash of a name, used as the tail of a transient link-local address (ff12::/16,
RFC 4291). If two names share an address, each node must only discard some datagrams of the other group.

Rule: datagrams are sent with a hop limit of 1 and never leave the link.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import ipaddress
import socket
import struct
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

from whimbrel.errors import InvalidInputError

__all__ = ["MulticastSocket", "NoMulticastError", "Peer", "hashed_address"]

_PROBE = "probe\0"
"""Name of the group to which a new socket sends its first datagram; nobody listens there."""
_ALL_NODES = "ff02::1"
_MULTICAST_ALL = 29
"""IPV6_MULTICAST_ALL of Linux; at 0 a socket receives only from the groups that it has joined itself."""
_TIMESTAMP = 35
"""SO_TIMESTAMPNS of Linux: the kernel passes the arrival time of each datagram."""
_TIMESPEC = struct.Struct("@qq")
_BUFFER_BYTES = 1 << 20
_MAX_DATAGRAM = 65_535


class NoMulticastError(InvalidInputError):
    """An interface cannot be used. Reaction: choose another interface."""

    def __init__(self, interface: str, reason: str) -> None:
        super().__init__(interface, reason)
        self.interface, self.reason = interface, reason

    def __str__(self) -> str:
        return f"interface {self.interface} cannot be used for IPv6 multicast: {self.reason}"


class Peer(NamedTuple):
    """Address of another node's socket."""

    ip: str
    port: int


def _reason(error: OSError) -> str:
    """Return the system's description of *error*, and what is allowed if the interface has no usable address."""
    said = error.strerror or str(error)
    if error.errno in {errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.ENODEV, errno.ENETDOWN}:
        said = f"{said.lower()}; allowed is one that is up and has an IPv6 link-local address"
    return said


def hashed_address(name: str) -> str:
    """Return the multicast address of the group *name*."""
    digest = hashlib.blake2s(name.encode(), digest_size=14).digest()
    return socket.inet_ntop(socket.AF_INET6, b"\xff\x12" + digest)


class MulticastSocket:
    """A UDP socket on one interface that joins and leaves groups."""

    def __init__(self, interface: str, *, port: int) -> None:
        self.interface, self.port = interface, port
        try:
            self.index = socket.if_nametoindex(interface)
        except OSError:
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise NoMulticastError(interface, f"there is no such interface; there are {names}") from None
        try:
            self.socket = self._open_socket()
        except OSError as error:
            raise NoMulticastError(interface, _reason(error)) from None
        self._joined: frozenset[str] = frozenset()

    def _open_socket(self) -> socket.socket:
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
            if sys.platform == "linux":  # elsewhere, datagrams of other groups are discarded later
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
        """Enable the kernel's arrival timestamps, on platforms that have them."""
        if sys.platform == "linux":
            opened.setsockopt(socket.SOL_SOCKET, _TIMESTAMP, 1)

    def _probe(self, opened: socket.socket) -> None:
        """Send an empty datagram, so that an interface without a multicast route fails now and not at every frame."""
        with contextlib.suppress(BlockingIOError):
            opened.sendto(b"", (hashed_address(_PROBE), self.port, 0, self.index))

    @property
    def joined(self) -> frozenset[str]:
        """Addresses on which this socket listens."""
        return self._joined

    def listen(self, addresses: frozenset[str]) -> None:
        """Listen on *addresses* only: join and leave groups as needed."""
        try:
            for address in self._joined - addresses:
                self._set(socket.IPV6_LEAVE_GROUP, address)
            for address in addresses - self._joined:
                self._set(socket.IPV6_JOIN_GROUP, address)
        except OSError as error:
            raise NoMulticastError(self.interface, _reason(error)) from None
        self._joined = addresses

    def _set(self, option: int, address: str) -> None:
        request = socket.inet_pton(socket.AF_INET6, address) + struct.pack("@I", self.index)
        self.socket.setsockopt(socket.IPPROTO_IPV6, option, request)

    def send(self, data: bytes, addresses: Iterable[str], *, sender: socket.socket | None = None) -> int:
        """Send *data* to each of *addresses*; return the number of failed sends, for example because of a full buffer.

        With a *sender*, the datagram leaves from that socket, so that receivers can answer to it alone.
        """
        failed = 0
        for address in addresses:
            try:
                (sender or self.socket).sendto(data, (address, self.port, 0, self.index))
            except OSError:
                failed += 1
        return failed

    def open_direct(self) -> socket.socket:
        """Open a socket, with its own port, for datagrams to and from single nodes of this link.

        It is bound to the interface's link-local address, so routed datagrams do not reach it.
        """
        opened = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        try:
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as asked:
                asked.connect((_ALL_NODES, self.port, 0, self.index))  # sends nothing: it selects our address
                own = str(asked.getsockname()[0])
            if not ipaddress.IPv6Address(own.partition("%")[0]).is_link_local:
                raise NoMulticastError(self.interface, f"it has no link-local address, only {own}")
            opened.bind((own, 0, 0, self.index))
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, struct.pack("@I", self.index))
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 1)
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 1)
            opened.setblocking(False)
        except OSError as error:
            opened.close()
            raise NoMulticastError(self.interface, _reason(error)) from None
        except NoMulticastError:
            opened.close()
            raise
        return opened

    def receive(self) -> tuple[bytes, int, str] | None:
        """Return a datagram, the microseconds for which it waited in the kernel, and its sender's address, or ``None``.

        A datagram ages in the kernel's buffer while the node is busy, and deadlines include that time.
        """
        received = self.receive_from()
        return received and (received[0], received[1], received[2].ip)

    def receive_from(self) -> tuple[bytes, int, Peer] | None:
        """Return a datagram, the microseconds for which it has waited in the kernel, and its sender, or ``None``."""
        while True:
            try:
                data, ancillary, _, address = self.socket.recvmsg(_MAX_DATAGRAM, socket.CMSG_SPACE(_TIMESPEC.size))
            except BlockingIOError:
                return None
            if address[3] in {0, self.index}:  # else from another interface; with two on a link it would arrive twice
                break
        peer = Peer(str(address[0]), int(address[1]))
        for level, kind, value in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMP) and len(value) == _TIMESPEC.size:
                seconds, nanoseconds = _TIMESPEC.unpack(value)
                waited_us = max(0, time.time_ns() - seconds * 1_000_000_000 - nanoseconds) // 1_000
                return data, waited_us, peer
        return data, 0, peer

    def close(self) -> None:
        """Close the socket, which leaves all groups."""
        self.socket.close()
