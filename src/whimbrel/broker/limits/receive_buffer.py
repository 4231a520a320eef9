"""Receive buffer of one client, which the rate limits empty at the allowed rate.

The buffer keeps bytes that were read from the connection but must not be handled yet.
Rule: no byte is lost, doubled or reordered, wherever the stream is cut.
Rule: a PUBLISH is counted as a message when its first byte is released; its other bytes count only as bytes.
Rule: only the fixed headers of packets are parsed (MQTT 5, 2.1). The decoder reports an invalid header.
"""

from __future__ import annotations

from whimbrel.mqtt.codes import PacketType
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.primitives import partial_varint_at

__all__ = ["ReceiveBuffer"]

_PUBLISH = PacketType.PUBLISH.value


class ReceiveBuffer:
    """The bytes that were read from one connection and not released yet."""

    __slots__ = ("_begin", "_data", "_left")

    def __init__(self) -> None:
        self._data, self._begin = b"", 0
        self._left = 0
        """Bytes of the current packet that are not released yet, although its first byte was."""

    def __len__(self) -> int:
        return len(self._data) - self._begin

    def put(self, data: bytes) -> None:
        """Append the bytes *data*, which were read from the connection."""
        self._data, self._begin = (self._data[self._begin :] + data if len(self) else data), 0

    @property
    def has_more(self) -> bool:
        """Whether bytes wait that a higher rate would release: more than an incomplete fixed header is buffered."""
        return len(self) > 0 and (self._left > 0 or _packet_bytes(self._data, self._begin) is not None)

    def take(self, messages: int, size: int) -> tuple[bytes, int]:
        """Remove and return the next bytes, and the number of PUBLISH packets that begin in them.

        At most *size* bytes and *messages* PUBLISH packets are released.
        """
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
    """Return the size in bytes of the packet that begins at *at*, with its header.

    Return None if the header is not complete. If the header is invalid, return the size of the rest of *data*.
    """
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
