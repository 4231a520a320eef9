"""Cache of messages in the form that policies read: a message for two hundred devices is decoded once.

Rule: the cache is bounded in messages and bytes. It removes the least recently used message first, and always keeps the
latest.
"""

from __future__ import annotations

from collections import OrderedDict

from whimbrel.language.policies.values import Arrival
from whimbrel.node.publication import KeptNotification
from whimbrel.shape.bodies import kind_of
from whimbrel.shape.pictures.members import IMAGES
from whimbrel.shape.transforms import may_need_work

__all__ = ["ReadMessage", "ReadMessages"]

_MAX_MESSAGES = 1_024
_MAX_BYTES = 16 << 20


class ReadMessage:
    """One message with its attributes and body as policies see them."""

    __slots__ = ("_is_picture", "_may_need_work", "arrival", "body", "message")

    def __init__(self, message: KeptNotification, arrival: Arrival, body: bytes) -> None:
        self.message, self.arrival, self.body = message, arrival, body
        self._may_need_work: bool | None = None
        self._is_picture: bool | None = None

    @property
    def may_need_work(self) -> bool:
        """Whether a transform of the body may be needed; computed when first used."""
        if self._may_need_work is None:
            self._may_need_work = may_need_work(self.body)
        return self._may_need_work

    @property
    def is_picture(self) -> bool:
        """Whether the body is a picture; computed when first used."""
        if self._is_picture is None:
            self._is_picture = kind_of(self.body) in IMAGES
        return self._is_picture


class ReadMessages:
    """Cache of recently read messages, by seq."""

    def __init__(self) -> None:
        self._read: OrderedDict[int, ReadMessage] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        """Return how many messages are cached."""
        return len(self._read)

    def read(self, message: KeptNotification) -> ReadMessage:
        """Return *message* in the form that policies read, cached or decoded from its record."""
        found = self._read.get(message.seq)
        if found is not None and found.message is message:
            self._read.move_to_end(message.seq)
            return found
        body = message.payload
        found = ReadMessage(message, Arrival(message.recorded_attributes(), message.subject, len(body)), body)
        before = self._read.pop(message.seq, None)
        self._bytes += len(body) - (0 if before is None else len(before.body))
        self._read[message.seq] = found
        while len(self._read) > 1 and (len(self._read) > _MAX_MESSAGES or self._bytes > _MAX_BYTES):
            self._bytes -= len(self._read.popitem(last=False)[1].body)
        return found
