"""Messages as policies read them, kept for a while: two hundred doctors who are sent one message decode it once.

Rule: bounded in number and in bytes; the least recently used go first, and the last one is always kept.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from whimbrel.language.policies.values import Arrival
from whimbrel.node.publication import KeptNotification
from whimbrel.shape.bodies import kind_of
from whimbrel.shape.pictures.members import IMAGES
from whimbrel.shape.transforms import may_need_work

__all__ = ["ReadMessage", "ReadMessages"]

_MAX_MESSAGES = 1_024
_MAX_BYTES = 16 << 20


class ReadMessage(NamedTuple):
    """One message: its attributes and body as policies see them, and whether a transform may have to be made."""

    message: KeptNotification
    arrival: Arrival
    body: bytes
    may_need_work: bool
    is_picture: bool


class ReadMessages:
    """The messages that were read last, by seq."""

    def __init__(self) -> None:
        self._read: OrderedDict[int, ReadMessage] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        """Return how many messages are kept."""
        return len(self._read)

    def read(self, message: KeptNotification) -> ReadMessage:
        """Return *message* as policies read it, from its record unless it is kept."""
        found = self._read.get(message.seq)
        if found is not None and found.message is message:
            self._read.move_to_end(message.seq)
            return found
        body = message.payload
        found = ReadMessage(
            message=message,
            arrival=Arrival(message.recorded_attributes(), message.subject, len(body)),
            body=body,
            may_need_work=may_need_work(body),
            is_picture=kind_of(body) in IMAGES,
        )
        before = self._read.pop(message.seq, None)
        self._bytes += len(body) - (0 if before is None else len(before.body))
        self._read[message.seq] = found
        while len(self._read) > 1 and (len(self._read) > _MAX_MESSAGES or self._bytes > _MAX_BYTES):
            self._bytes -= len(self._read.popitem(last=False)[1].body)
        return found
