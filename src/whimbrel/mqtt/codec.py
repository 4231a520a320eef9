"""The codec: packets to bytes, and a stream of bytes to packets.

Rule: ``Decoder.receive`` never raises for what a peer sends: the packets before a break are returned, the break stands
in ``failure``, and what comes after it is ignored.
Rule: how the stream is cut makes no difference, and no byte is copied more than a few times, however small the pieces.
Rule: what is refused for its size is refused when its length is known, before it is kept.

``decoding`` and ``encoding`` have the packets; this module has the stream.
"""

from __future__ import annotations

from whimbrel.mqtt.codes import PUBLISH_FIRST_BYTE, PacketType, ReasonCode
from whimbrel.mqtt.decoding import decode, publish_at
from whimbrel.mqtt.encoding import encode, publish_parts
from whimbrel.mqtt.errors import PacketTooLargeError, ProtocolError
from whimbrel.mqtt.packets import V5, Connect, Packet, Puback
from whimbrel.mqtt.primitives import MAX_VARINT, partial_varint_at
from whimbrel.mqtt.properties import NO_PROPERTIES

__all__ = ["MAX_PACKET_BYTES", "Decoder", "decode", "encode", "publish_parts"]

MAX_PACKET_BYTES = MAX_VARINT + 5
"""The largest packet there can be: a byte, four bytes of length, and what they can say."""


_PACKET_BYTES = 96
"""A packet takes as long to decode and handle as so many bytes more."""
_new = tuple.__new__  # the shortest PUBACK is as frequent as PUBLISH, and is read here at once
_SUCCESS = ReasonCode.SUCCESS


class Decoder:
    """The packets of one stream.

    With a *version* it reads what follows a CONNECT. Without, it is a server's: the first packet must be a CONNECT,
    and says the version. One that *stops_after_connect* leaves what comes behind it undecoded until ``go_on``, in
    order and as bytes, so that a CONNECT can be answered before anything else is looked at.

    >>> Decoder(version=5).receive(bytes.fromhex("c000 d0"))
    [Pingreq()]
    """

    __slots__ = (
        "_held",
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
    ) -> None:
        self.version = version
        self._piece_bytes = piece_bytes
        """Packets that begin behind so many bytes are left for the next ``receive``; each counts as some more."""
        self.has_more = False
        """Whether the next ``receive`` may return packets although it is given nothing."""
        self._stops_after_connect = stops_after_connect
        self.is_stopped = False
        """A CONNECT came: nothing behind it is decoded before ``go_on``."""
        self.failure: ProtocolError | None = None
        self._max_packet_bytes = max_packet_bytes
        self._held = bytearray()
        """The beginning of a packet that is not there yet; while stopped, everything behind CONNECT."""
        self._needed = 0
        """How many bytes must be there before it is worth looking again."""

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
        """How many bytes are kept undecoded."""
        return len(self._held)

    @property
    def held(self) -> bytearray:
        """The bytes that are kept undecoded; the same object all the time, and not to be changed."""
        return self._held

    def hold(self, data: bytes) -> None:
        """Keep *data* for the next ``receive``."""
        self._held += data
        if not self.is_stopped:
            self.has_more, self._needed = True, 0

    def take_held(self) -> bytes:
        """Return, once, the bytes that are kept undecoded; the caller brings them again."""
        held = bytes(self._held)
        self._held.clear()
        return held

    def go_on(self) -> None:
        """Decode what came behind the CONNECT it stopped after, with what ``receive`` is given next."""
        self.is_stopped, self._needed = False, 0

    def _read(self, data: bytes, packets: list[Packet]) -> int:
        """Append the whole packets of *data*; return where the first that is not whole begins."""
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
                packets.append(_new(Puback, (data[start] << 8 | data[start + 1], _SUCCESS, NO_PROPERTIES)))
            else:
                packets.append(decode(first, data[start:stop], version))
            at = stop
            last -= _PACKET_BYTES
        if at < end:
            self.has_more, self._needed = True, 0
        return at
