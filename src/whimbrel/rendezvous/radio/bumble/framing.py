"""Framing: messages on an L2CAP channel, which carries at most 65,535 bytes at once, and less on most devices.

Rule: a message is its length in four bytes and then its bytes, cut into pieces that the other side accepts. The pieces
of a message follow each other; a message may begin in the middle of a piece.
Rule: a length above ``MAX_MESSAGE_BYTES`` is refused before a byte of it is kept.
"""

from __future__ import annotations

from whimbrel.errors import InvalidInputError
from whimbrel.rendezvous.wire import MAX_MESSAGE_BYTES

__all__ = ["Deframer", "TooLongError", "frame"]

_HEADER_BYTES = 4


class TooLongError(InvalidInputError):
    """The length that a frame states is larger than any message. Reaction: close the connection."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes

    def __str__(self) -> str:
        return f"a frame of {self.size_bytes} bytes; allowed are {MAX_MESSAGE_BYTES}"


def frame(data: bytes, *, piece_bytes: int) -> list[bytes]:
    """Return the pieces that carry *data*, each of at most *piece_bytes*."""
    whole = len(data).to_bytes(_HEADER_BYTES, "big") + data
    return [whole[start : start + piece_bytes] for start in range(0, len(whole), piece_bytes)]


class Deframer:
    """Joins pieces to messages again."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the messages that *piece* completes; raise ``TooLongError`` if a stated length is too large."""
        self._waiting += piece
        whole: list[bytes] = []
        while len(self._waiting) >= _HEADER_BYTES:
            size = int.from_bytes(self._waiting[:_HEADER_BYTES], "big")
            if size > MAX_MESSAGE_BYTES:
                raise TooLongError(size)
            if len(self._waiting) < _HEADER_BYTES + size:
                break
            whole.append(bytes(self._waiting[_HEADER_BYTES : _HEADER_BYTES + size]))
            del self._waiting[: _HEADER_BYTES + size]
        return whole
