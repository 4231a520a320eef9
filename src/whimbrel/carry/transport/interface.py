"""The interface of a transport, and the checks that all transports make of a received frame.

Rule: a Hello goes to all nodes in reach; every other frame goes to one node, whose Hello was heard before. A frame that
came by the wrong one of these ways is counted and dropped, so that one datagram cannot make many nodes answer.
Rule: any bytes are a frame or are counted; no datagram raises an error.
Rule: at most ``MAX_NEIGHBOURS`` neighbours are known; the one whose last Hello is oldest is forgotten first.
Rule: ``accepts`` is called with the sender of a frame before its content is read: reading a long Hello costs about ten
times as much as dropping it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Protocol

from whimbrel.carry.hello import Hello, Message
from whimbrel.carry.wire import MalformedMessageError, Part, decode, read_head

__all__ = ["MAX_NEIGHBOURS", "FrameReader", "Heard", "Transport", "accept_all"]

MAX_NEIGHBOURS = 1_024


def accept_all(_sender: int) -> bool:
    """Accept the frames of every sender."""
    return True


class Heard(NamedTuple):
    """A frame that was heard."""

    sender: int
    """The address that the frame names; a stranger can invent it."""
    part: Part
    host: str
    """The machine that it came from, as the network says: ``OWN_HOST``, or a text that differs for each machine."""


class Transport(Protocol):
    """Sends messages to the neighbours of a node, and receives theirs."""

    address: int
    counts: Counter[str]
    """Number of frames and bytes that were sent, and of dropped frames by reason."""
    accepts: Callable[[int], bool]
    """Returns whether a frame of the node at this address may be read; one that may not is dropped."""

    def say(self, hello: Hello) -> None:
        """Send *hello* to all in reach."""

    def send(self, address: int, message: Message | Part) -> bool:
        """Send *message* to the node at *address*; return whether the node is known and all frames were sent."""

    def receive(self) -> Heard | None:
        """Return the next frame for this node, or None if none has arrived, or many were dropped one after another."""


class FrameReader:
    """Reads the frames that come to the node at *address*."""

    def __init__(self, address: int, counts: Counter[str]) -> None:
        self._address, self._counts = address, counts

    def read(self, data: bytes, *, came_to_all: bool, host: str, accepts: Callable[[int], bool]) -> Heard | None:
        """Return the frame in *data*, which came from *host*, or None after counting why it is dropped.

        A frame of a sender that *accepts* refuses is dropped, too; *accepts* counts it.
        """
        try:
            _, sender = read_head(data)
            if sender == self._address:
                self._counts["own"] += not came_to_all  # a link loops a node's own Hellos back
                return None
            if not accepts(sender):
                return None
            _, part = decode(data)
        except MalformedMessageError:
            self._counts["malformed"] += 1
            return None
        if isinstance(part, Hello) is not came_to_all:
            self._counts["wrong way"] += 1
            return None
        self._counts["received"] += 1
        return Heard(sender, part, host)
