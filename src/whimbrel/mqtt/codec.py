"""The codec: packets to bytes, and a stream of bytes to packets.

Rule: ``Decoder.receive`` never raises for bytes of a peer: the packets before a protocol error are returned, the error
is in ``failure``, and all later bytes are ignored.
Rule: how the stream is cut makes no difference, and no byte is copied more than a few times, however small the reads.
Rule: a packet that is too large is refused as soon as its length is known, before its bytes are kept.

``decoding`` and ``encoding`` handle single packets; this module handles the stream.
"""

from __future__ import annotations

import struct

from whimbrel.mqtt.codes import PUBLISH_FIRST_BYTE, PacketType, ReasonCode
from whimbrel.mqtt.decoding import decode, publish_at
from whimbrel.mqtt.encoding import encode, publish_parts
from whimbrel.mqtt.errors import PacketTooLargeError, ProtocolError
from whimbrel.mqtt.packets import V5, Connect, Packet, Puback, PubackRun
from whimbrel.mqtt.primitives import MAX_VARINT, partial_varint_at
from whimbrel.mqtt.properties import NO_PROPERTIES

__all__ = ["MAX_PACKET_BYTES", "Decoder", "decode", "encode", "publish_parts"]

MAX_PACKET_BYTES = MAX_VARINT + 5
"""Largest size of an MQTT packet: one byte, four bytes of length, and the largest length that these can encode."""


_PACKET_BYTES = 96
"""Cost of decoding and handling one packet, in bytes that take as long to decode."""
_new = tuple.__new__  # the shortest PUBACK is as frequent as PUBLISH, and is decoded here directly
_SUCCESS = ReasonCode.SUCCESS
_SHORT = 129
"""Longest packet whose length is written in one byte."""
_PUBACK, _PUBACK_BYTES = 0x4002, 4
"""First two bytes of the shortest PUBACK, and its length."""


class Decoder:
    """Decoder of the packets of one stream.

    With a *version* it decodes the packets after a CONNECT. Without, it is a server's: the first packet must be a
    CONNECT, which has the version. One that *stops_after_connect* keeps the bytes behind CONNECT undecoded, in order,
    until ``go_on``, so that a CONNECT is answered before anything else is decoded. One that *joins_pubacks* returns
    several PUBACKs that follow each other as one ``PubackRun``.

    >>> Decoder(version=5).receive(bytes.fromhex("c000 d0"))
    [Pingreq()]
    """

    __slots__ = (
        "_held",
        "_joins_pubacks",
        "_max_packet_bytes",
        "_needed",
        "_piece_bytes",
        "_stops_after_connect",
        "failure",
        "has_more",
        "is_stopped",
        "version",
    )

    def __init__(
        self,
        *,
        max_packet_bytes: int = MAX_PACKET_BYTES,
        version: int | None = None,
        stops_after_connect: bool = False,
        piece_bytes: int = MAX_PACKET_BYTES,
        joins_pubacks: bool = False,
    ) -> None:
        self.version, self._joins_pubacks = version, joins_pubacks
        self._piece_bytes = piece_bytes
        """Bytes after which ``receive`` leaves later packets for the next call; each packet adds ``_PACKET_BYTES``."""
        self.has_more = False
        """Whether the next ``receive`` may return packets even if it is passed no bytes."""
        self._stops_after_connect = stops_after_connect
        self.is_stopped = False
        """Whether a CONNECT came and ``go_on`` was not called: the bytes behind it are not decoded."""
        self.failure: ProtocolError | None = None
        self._max_packet_bytes = max_packet_bytes
        self._held = bytearray()
        """Bytes of an incomplete packet; while stopped, all bytes behind CONNECT."""
        self._needed = 0
        """Bytes that must have come before decoding is tried again."""

    def receive(self, data: bytes) -> list[Packet]:
        """Return the packets that *data* completes."""
        if self.failure is not None:
            return []
        held = self._held
        if self.is_stopped:
            held += data
            return []
        if held:
            if len(held) + len(data) < self._needed:
                held += data
                return []
            data = b"".join((held, data))
            held.clear()
        size, version = len(data), self.version
        if (
            1 < size <= _SHORT
            and data[1] == size - 2
            and data[0] & 0xF0 == PUBLISH_FIRST_BYTE
            and version is not None
            and size <= self._max_packet_bytes
        ):  # as ``_read`` does it, without its loop
            self.has_more = False
            try:
                return [publish_at(data, data[0], 2, size, version)]
            except ProtocolError as error:
                self.failure = error.with_traceback(None)
                return []
        packets: list[Packet] = []
        try:
            at = self._read(data, packets)
        except ProtocolError as error:
            self.failure = error.with_traceback(None)  # a traceback would keep the bytes alive as long as we are
            return packets
        if at < len(data):
            held += data[at:]
        return packets

    @property
    def held_bytes(self) -> int:
        """Number of bytes kept undecoded."""
        return len(self._held)

    @property
    def held(self) -> bytearray:
        """The bytes kept undecoded; always the same object, which callers must not change."""
        return self._held

    def hold(self, data: bytes) -> None:
        """Keep *data* for the next ``receive``."""
        self._held += data
        if not self.is_stopped:
            self.has_more, self._needed = True, 0

    def take_held(self) -> bytes:
        """Remove and return the bytes kept undecoded; the caller passes them to ``receive`` later."""
        held = bytes(self._held)
        self._held.clear()
        return held

    def go_on(self) -> None:
        """Resume decoding behind CONNECT, at the next ``receive``."""
        self.is_stopped, self._needed = False, 0

    def _read(self, data: bytes, packets: list[Packet]) -> int:
        """Append the complete packets of *data*; return the offset of the first incomplete one."""
        at, end, version, most = 0, len(data), self.version, self._max_packet_bytes
        self.has_more = False
        last = self._piece_bytes
        while at < last and at < end:
            first = data[at]
            if version is None and first >> 4 != PacketType.CONNECT:
                raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "the first packet is not a CONNECT")
            start = at + 2
            if start > end:
                self._needed = 2
                return at
            length = data[at + 1]
            if length > 127 and start < end and 0 < data[start] < 128:  # two bytes, written out: most have no more
                length, start = length & 127 | data[start] << 7, start + 1
            elif length > 127:
                found = partial_varint_at(data, at + 1)
                if found is None:
                    self._needed = end - at + 1
                    return at
                length, start = found
            stop = start + length
            if stop - at > most:
                raise PacketTooLargeError(stop - at, most)
            if stop > end:
                self._needed = stop - at
                return at
            if version is None:
                packet = decode(first, data[start:stop], V5)
                assert isinstance(packet, Connect), "the first byte said so"
                self.version = version = packet.version
                packets.append(packet)
                if self._stops_after_connect:
                    self.is_stopped = True
                    return stop
            elif first & 0xF0 == PUBLISH_FIRST_BYTE:
                packets.append(publish_at(data, first, start, stop, version))
            elif first == 0x40 and length == 2 and (data[start] or data[start + 1]):
                if self._joins_pubacks and data[stop : stop + 2] == b"\x40\x02":
                    ids = _pubacks_at(data, at, min(end, at + _PUBACK_BYTES * (1 + (last - at) // _PACKET_BYTES)))
                    packets.append(_new(PubackRun, (ids,)))
                    at += _PUBACK_BYTES * len(ids)
                    last -= _PACKET_BYTES * len(ids)
                    continue
                packets.append(_new(Puback, (data[start] << 8 | data[start + 1], _SUCCESS, NO_PROPERTIES)))
            else:
                packets.append(decode(first, data[start:stop], version))
            at = stop
            last -= _PACKET_BYTES
        if at < end:
            self.has_more, self._needed = True, 0
        return at


def _pubacks_at(data: bytes, at: int, end: int) -> tuple[int, ...]:
    """Return the packet identifiers of the shortest PUBACKs that follow each other in ``data[at:end]``."""
    words = struct.unpack_from(f">{(end - at) // _PUBACK_BYTES * 2}H", data, at)
    heads, ids = words[::2], words[1::2]
    if heads.count(_PUBACK) == len(heads) and 0 not in ids:
        return ids
    return ids[: next(n for n, (head, each) in enumerate(zip(heads, ids, strict=True)) if head != _PUBACK or not each)]
