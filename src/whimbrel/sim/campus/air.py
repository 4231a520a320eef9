"""An in-memory radio medium for Campus++: passes frames between the nodes that are in contact at the moment."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from whimbrel.carry.hello import Hello, Message
from whimbrel.carry.transport.interface import MAX_NEIGHBOURS, FrameReader, Heard, accept_all
from whimbrel.carry.wire import LINK, Part, Profile, encode

__all__ = ["MemoryAir", "MemoryTransport"]


class MemoryAir:
    """The radio medium: knows which nodes hear each other now."""

    def __init__(self) -> None:
        self._transports: dict[int, MemoryTransport] = {}
        self._contacts: dict[int, set[int]] = {}
        """The nodes that each node hears."""

    def join(self, transport: MemoryTransport) -> None:
        """Register *transport*, so that its node can be in contact with others."""
        self._transports[transport.address] = transport

    def meet(self, one: int, other: int) -> None:
        """Start a contact between two nodes: each hears the other from now on."""
        self._contacts.setdefault(one, set()).add(other)
        self._contacts.setdefault(other, set()).add(one)

    def part(self, one: int, other: int) -> None:
        """End the contact of two nodes."""
        self._contacts.get(one, set()).discard(other)
        self._contacts.get(other, set()).discard(one)

    def neighbours(self, address: int) -> list[MemoryTransport]:
        """Return the transports in reach of the node at *address*, the lowest address first."""
        heard = self._contacts.get(address, ())
        return [self._transports[other] for other in sorted(heard) if other in self._transports]


class MemoryTransport:
    """Transport of the node at *address* over *air*."""

    def __init__(self, address: int, air: MemoryAir, *, profile: Profile = LINK) -> None:
        self.address, self.host = address, f"host {address:x}"
        self.counts: Counter[str] = Counter()
        self.accepts: Callable[[int], bool] = accept_all
        self._air, self._profile = air, profile
        self._reader = FrameReader(address, self.counts)
        self._inbox: deque[tuple[bytes, bool, str]] = deque()
        self._known: OrderedDict[int, None] = OrderedDict()
        air.join(self)

    @property
    def neighbours(self) -> int:
        """Number of neighbours that are known."""
        return len(self._known)

    def say(self, hello: Hello) -> None:
        """Send *hello* to all neighbours."""
        for frame in encode(self.address, hello, profile=self._profile):
            self._count_sent(frame)
            for neighbour in self._air.neighbours(self.address):
                neighbour.put(frame, came_to_all=True, host=self.host)

    def send(self, address: int, message: Message | Part) -> bool:
        """Send *message* to the node at *address*; return False, and send nothing, if that node was never heard."""
        if address not in self._known:
            return False
        for frame in encode(self.address, message, profile=self._profile):
            self._count_sent(frame)
            for neighbour in self._air.neighbours(self.address):
                if neighbour.address == address:
                    neighbour.put(frame, came_to_all=False, host=self.host)
        return True

    def _count_sent(self, frame: bytes) -> None:
        self.counts["sent"] += 1
        self.counts["bytes sent"] += len(frame)

    def put(self, data: bytes, *, came_to_all: bool, host: str = "stranger") -> None:
        """Put a received datagram into the inbox; by default it comes from a host that is not a node."""
        self._inbox.append((data, came_to_all, host))

    def receive(self) -> Heard | None:
        """Return the next frame for this node, or None if there is none now."""
        while self._inbox:
            data, came_to_all, host = self._inbox.popleft()
            heard = self._reader.read(data, came_to_all=came_to_all, host=host, accepts=self.accepts)
            if heard is not None:
                if came_to_all:
                    self._known[heard.sender] = None
                    self._known.move_to_end(heard.sender)
                    if len(self._known) > MAX_NEIGHBOURS:
                        self._known.popitem(last=False)
                return heard
        return None
