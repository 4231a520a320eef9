"""Counting publications in a stream of bytes, without parsing packets."""

from __future__ import annotations

import struct

from whimbrel.mqtt.packets import V5
from whimbrel.sim.load.load import Load, LoadError

__all__ = ["STAMP", "Stamps", "Tally"]

STAMP = struct.Struct(">q")
"""The time of sending, in the first bytes of a body."""


class Tally:
    """Counts and acknowledges the publications of one subscriber; the stream may have no other packets."""

    __slots__ = ("_heads", "_identifier_at", "_rest", "_stride", "count")

    def __init__(self, load: Load) -> None:
        packet = load.encode(0)
        self._stride = len(packet)
        self._heads = bytes((packet[0], packet[0] | 0x08))  # a retransmission has the DUP flag
        after_topic = len(packet) - load.size_bytes - (load.version == V5)
        self._identifier_at = after_topic - 2 if load.qos else 0
        self._rest = b""
        self.count = 0

    def receive(self, data: bytes) -> bytes:
        """Count the publications that *data* completes; return their acknowledgements, empty at QoS 0."""
        if self._rest:
            data = self._rest + data
        stride = self._stride
        whole = len(data) // stride
        end = whole * stride
        if data[:end:stride].strip(self._heads):
            raise LoadError(data[:end:stride].strip(self._heads)[:8].hex(), f"only publications of {stride} bytes")
        self._rest = data[end:]
        self.count += whole
        at = self._identifier_at
        if not at:
            return b""
        answer = bytearray(b"\x40\x02\x00\x00" * whole)
        answer[2::4] = data[at:end:stride]
        answer[3::4] = data[at + 1 : end : stride]
        return bytes(answer)


class Stamps:
    """Reads the sending times from a stream of publications."""

    def __init__(self, load: Load) -> None:
        self._stride = len(load.encode(0))
        self._at = self._stride - load.size_bytes
        self._rest = b""

    def receive(self, data: bytes) -> list[int]:
        """Return the sending times of the publications that *data* completes."""
        data = self._rest + data
        end = len(data) // self._stride * self._stride
        self._rest = data[end:]
        return [STAMP.unpack_from(data, at)[0] for at in range(self._at, end, self._stride)]
