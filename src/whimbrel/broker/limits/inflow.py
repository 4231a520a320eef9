"""Inflow: the bytes of one client that were read and may not be handled yet, cut where packets begin.

Rule: no byte is dropped, doubled or moved, whatever the cuts are.
Rule: a PUBLISH counts when its first byte passes; the rest of it is only bytes.
Rule: this looks at the heads of packets alone (MQTT 5, 2.1). What is no head passes: the decoder says what is wrong.
"""

from __future__ import annotations

from whimbrel.mqtt.codes import PacketType
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.primitives import partial_varint_at

__all__ = ["Inflow"]

_PUBLISH = PacketType.PUBLISH.value


class Inflow:
    """What was read of a connection and did not pass yet."""

    __slots__ = ("_begin", "_data", "_left")

    def __init__(self) -> None:
        self._data, self._begin = b"", 0
        self._left = 0
        """How many bytes are still to pass of the packet that has begun to."""

    def __len__(self) -> int:
        return len(self._data) - self._begin

    def put(self, data: bytes) -> None:
        """Take in what came."""
        self._data, self._begin = (self._data[self._begin :] + data if len(self) else data), 0

    @property
    def has_more(self) -> bool:
        """Whether there is something that could pass, if it may; the beginning of a head could not."""
        return len(self) > 0 and (self._left > 0 or _packet_bytes(self._data, self._begin) is not None)

    def take(self, messages: int, size: int) -> tuple[bytes, int]:
        """Return what passes: at most *size* bytes and *messages* PUBLISH packets; and how many these were."""
        data, at, used = self._data, self._begin, 0
        begin, end, left = at, min(len(data), at + size), self._left
        while at < end:
            if not left:
                packet_bytes = _packet_bytes(data, at)
                if packet_bytes is None or (data[at] >> 4 == _PUBLISH and used == messages):
                    break
                used += data[at] >> 4 == _PUBLISH
                left = packet_bytes
            passing = min(left, end - at)
            at, left = at + passing, left - passing
        self._begin, self._left = at, left
        passed = data[begin:at]
        if at == len(data):
            self._data, self._begin = b"", 0
        return passed, used


def _packet_bytes(data: bytes, at: int) -> int | None:
    """Return how many bytes the packet that begins at *at* has, its head included; None if that is not there yet."""
    if at + 1 >= len(data):
        return None
    length = data[at + 1]
    if length <= 127:
        return length + 2
    try:
        found = partial_varint_at(data, at + 1)
    except ProtocolError:
        return len(data) - at
    return None if found is None else found[0] + found[1] - at
