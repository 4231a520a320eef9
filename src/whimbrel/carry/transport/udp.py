"""UDP over IPv6 on one link: Hellos by multicast, all other frames by unicast.

Rule: a node sends its Hellos from the socket on which it receives unicast, so a Hello shows the address for answers.
Rule: the host of a frame is the IPv6 address that it came from; several sockets on one address are one host.
Rule: all campuses use one multicast group. On a desk ``Reach`` decides which nodes hear each other, by hexadecimal
address.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress

from whimbrel.carry.hello import Hello, Message
from whimbrel.carry.neighbours.shares import OWN_HOST
from whimbrel.carry.transport.interface import MAX_NEIGHBOURS, FrameReader, Heard, accept_all
from whimbrel.carry.wire import LINK, Part, Profile, encode
from whimbrel.errors import InvalidValueError
from whimbrel.multicast.reach import Reach
from whimbrel.multicast.sockets import MulticastSocket, Peer, hashed_address

__all__ = ["GROUP", "PORT", "UdpTransport"]

PORT = 27_303
GROUP = hashed_address("whimbrel campus")
_MAX_DATAGRAM = 65_535
_MAX_DROPPED = 64
"""Datagrams that are dropped before other tasks of the daemon run; the sockets stay readable."""


def _bare(ip: str) -> str:
    """Return *ip* without the name of the interface that follows a link-local address."""
    return ip.partition("%")[0]


class UdpTransport:
    """The node at *address* on *link*."""

    def __init__(
        self, address: int, link: MulticastSocket, *, profile: Profile = LINK, reach: Reach | None = None
    ) -> None:
        self.address = address
        self.counts: Counter[str] = Counter()
        self.accepts: Callable[[int], bool] = accept_all
        self._link, self._profile = link, profile
        self._reach = reach or Reach(f"{address:016x}")
        self._reader = FrameReader(address, self.counts)
        self._peers: OrderedDict[int, Peer] = OrderedDict()
        self._direct = link.open_direct()
        self._own_ip = _bare(self.direct_name.ip)
        link.listen(frozenset([GROUP]))

    @property
    def neighbours(self) -> int:
        """Number of neighbours that are known."""
        return len(self._peers)

    @property
    def direct_name(self) -> Peer:
        """Address of the socket on which this node receives unicast."""
        ip, port, *_ = self._direct.getsockname()
        return Peer(ip, port)

    def filenos(self) -> tuple[int, int]:
        """Return the file descriptors of the sockets that become readable when a datagram arrives."""
        return self._link.socket.fileno(), self._direct.fileno()

    def refresh(self) -> None:
        """Read the file of the reach again if it has changed; an incomplete one is read at the next call."""
        with suppress(InvalidValueError):
            self._reach.refresh()

    def say(self, hello: Hello) -> None:
        """Send *hello* to all in reach."""
        for frame in encode(self.address, hello, profile=self._profile):
            self.counts["not sent"] += self._link.send(frame, [GROUP], sender=self._direct)
            self._count_sent(frame)

    def send(self, address: int, message: Message | Part) -> bool:
        """Send *message* to the node at *address*; return whether the node is known and all frames were sent."""
        peer = self._peers.get(address)
        if peer is None:
            return False
        for frame in encode(self.address, message, profile=self._profile):
            try:
                self._direct.sendto(frame, (peer.ip, peer.port, 0, self._link.index))
            except OSError:
                self.counts["not sent"] += 1
                return False
            self._count_sent(frame)
        return True

    def _count_sent(self, frame: bytes) -> None:
        self.counts["sent"] += 1
        self.counts["bytes sent"] += len(frame)

    def receive(self) -> Heard | None:
        """Return the next frame for this node, or None if none has arrived, or many were dropped one after another."""
        for _ in range(_MAX_DROPPED):
            received = self._datagram()
            if received is None:
                return None
            heard = self._take(received[0], received[1], came_to_all=received[2])
            if heard is not None:
                return heard
        return None

    def _datagram(self) -> tuple[bytes, Peer, bool] | None:
        """Return the next datagram, its source, and whether it came by multicast; or None."""
        try:
            received = self._link.receive_from()
            if received is not None:
                return received[0], received[2], True
            data, source = self._direct.recvfrom(_MAX_DATAGRAM)
        except BlockingIOError:
            return None
        except OSError:  # the interface is down, and may come back
            self.counts["network errors"] += 1
            return None
        return data, Peer(str(source[0]), int(source[1])), False

    def _take(self, data: bytes, peer: Peer, *, came_to_all: bool) -> Heard | None:
        ip = _bare(peer.ip)
        host = OWN_HOST if ip == self._own_ip else ip
        heard = self._reader.read(data, came_to_all=came_to_all, host=host, accepts=self.accepts)
        if heard is None:
            return None
        if not self._reach.hears(f"{heard.sender:016x}"):
            self.counts["out of reach"] += 1
            return None
        if came_to_all:
            self._peers[heard.sender] = peer
            self._peers.move_to_end(heard.sender)
            if len(self._peers) > MAX_NEIGHBOURS:
                self._peers.popitem(last=False)
        return heard

    def close(self) -> None:
        """Leave the link."""
        self._direct.close()
        self._link.close()
