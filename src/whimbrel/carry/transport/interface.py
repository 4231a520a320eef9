"""The interface of a transport, and what all of them do with a frame that has come.

Rule: a Hello goes to all in reach; all else goes to one node, whose Hello was heard before. A frame that came by the
other way is counted and dropped: nobody can make many nodes answer with one datagram.
Rule: any bytes are a frame or counted; nothing that comes raises.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, Protocol

from whimbrel.carry.hello import Hello, Message
from whimbrel.carry.wire import MalformedMessageError, Part, decode

__all__ = ["FrameReader", "Heard", "Transport"]


class Heard(NamedTuple):
    """A frame that was heard."""

    sender: int
    """The address that the frame names; a stranger can invent it."""
    part: Part
    host: str
    """The machine that it came from, as the network says: ``OWN_HOST``, or a text that differs for each machine."""


class Transport(Protocol):
    """The way of messages between a node and its neighbours."""

    address: int
    counts: Counter[str]
    """Frames and bytes that were sent, frames that were dropped, by the reason."""

    def say(self, hello: Hello) -> None:
        """Send *hello* to all in reach."""

    def send(self, address: int, message: Message | Part) -> bool:
        """Send *message* to the node at *address*; return whether it is known and the frames have left."""

    def receive(self) -> Heard | None:
        """Return the next frame for this node, or None if there is none now."""


class FrameReader:
    """Reads the frames that come to the node at *address*."""

    def __init__(self, address: int, counts: Counter[str]) -> None:
        self._address, self._counts = address, counts

    def read(self, data: bytes, *, came_to_all: bool, host: str) -> Heard | None:
        """Return the frame in *data*, which came from *host*, or None after counting why it is dropped."""
        try:
            sender, part = decode(data)
        except MalformedMessageError:
            self._counts["malformed"] += 1
            return None
        if sender == self._address:
            self._counts["own"] += not came_to_all  # a link loops a node's own Hellos back
            return None
        if isinstance(part, Hello) is not came_to_all:
            self._counts["wrong way"] += 1
            return None
        self._counts["received"] += 1
        return Heard(sender, part, host)
