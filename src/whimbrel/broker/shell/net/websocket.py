"""WebSocket (RFC 6455) for MQTT: the server's handshake, and encoding and decoding of frames, without any I/O.

Rule: ``receive`` never raises. Input that the RFC forbids sets ``failure``, queues a close frame with the reason, and
ends the reading; the payloads before it have been returned.
Rule: payloads are returned as they arrive, unmasked. MQTT ignores the boundaries of messages and frames (MQTT 5.0, 6),
so they are not reassembled. At most an incomplete head or control frame, up to 139 bytes, is buffered.
Rule: a frame that is longer than allowed is refused when its head has arrived.
Rule: at most one pong is queued, the answer to the latest ping (RFC 6455, 5.5.3), so pings cannot fill the memory.
Rule: frames are checked byte by byte in their order, so the result does not depend on how the network splits them.

This is our own code because libraries are slower: with ``websockets`` a small message takes 1.7 times the broker's core
time, with ``wsproto`` 3.4 to 4 times (bench/results/websocket.md); the first buffers whole frames, the second does not
limit their size. This module is tested against both in tests/differential/test_websocket_libraries.py.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from enum import IntEnum

import numpy as np

from whimbrel.broker.shell.net.http import Answer, BadRequestError, Request
from whimbrel.errors import InvalidValueError, WhimbrelError
from whimbrel.model.bounds import INT64_MAX, whole

__all__ = ["SUBPROTOCOLS", "CloseCode", "Framing", "WebSocketError", "accept", "accept_key"]

SUBPROTOCOLS = ("mqtt", "mqttv3.1")
"""Subprotocols that the server accepts, best first; clients of MQTT 3.1 request the second."""
_KEY_BYTES = 16
"""Length of the random key in a client's handshake, in bytes."""

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_VERSION = "13"
_UPGRADE = (("Upgrade", "websocket"), ("Connection", "Upgrade"))
_NAME = r"(\[[0-9a-f:.]+\]|[^\[\]/?#@:, ]+)(?::[0-9]+)?"
_WEB_ORIGIN = re.compile(rf"https?://{_NAME}")
_HOST_HEADER = re.compile(_NAME)

_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_KNOWN = frozenset({_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG})
_FINAL, _RESERVED, _OPCODE = 0x80, 0x70, 0x0F
_MASKED, _LENGTH = 0x80, 0x7F
_TWO_BYTES, _EIGHT_BYTES = 126, 127
_MAX_CONTROL_BYTES = 125
_MAX_REASON_BYTES = _MAX_CONTROL_BYTES - 2
_WORD = 4
_NOT_OF_DATA = 0xFF ^ _FINAL ^ _BINARY
"""Bits that are zero in the first byte of a data frame (binary or continuation)."""
_SHORT_HEAD, _MEDIUM_HEAD = 2 + _WORD, 4 + _WORD
"""Length of the head of a client's frame, in bytes: for payloads below 126 bytes, and below 64 KB."""
_MANY_BYTES = 512
"""Payload length from which XOR with numpy is faster than with one large integer: 1.5 times at 1 kB, 20 at 64 kB."""


class CloseCode(IntEnum):
    """Status codes in a close frame: those that this server uses (RFC 6455, 7.4.1)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003
    NO_CODE = 1005
    """Stands for a close frame without a code; never sent."""
    INVALID_TEXT = 1007
    POLICY_VIOLATION = 1008
    TOO_BIG = 1009
    INTERNAL_ERROR = 1011


class WebSocketError(WhimbrelError):
    """The peer sent a frame that the RFC forbids. Reaction: send the queued close frame, close the connection."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason

    def __str__(self) -> str:
        return f"WebSocket closed with {int(self.code)}: {self.reason}"


def accept(request: Request, *, origins: str = "") -> Answer:
    """Return the answer (101) that upgrades the connection of *request* to a WebSocket, or raise ``BadRequestError``.

    A web page may connect if its origin is in *origins*, a list separated by spaces; "*" allows all. If the list is
    empty, the page's host must be the one that it connects to. A request without Origin does not come from a web page.
    The bytes after the request, ``request.rest``, must be passed to ``Framing.receive``.
    """
    headers = request.headers
    if request.method != "GET":
        raise BadRequestError(405, "a WebSocket is opened by GET", (("Allow", "GET"),))
    if "websocket" not in _tokens(headers.get("upgrade", "").lower()):
        text = "this path is served as a WebSocket only"
        raise BadRequestError(426, text, _UPGRADE)
    if "upgrade" not in _tokens(headers.get("connection", "").lower()):
        raise BadRequestError(400, "the Connection header does not say upgrade")
    # A body would be read as frames: request smuggling.
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise BadRequestError(400, "a request for a WebSocket has no body")
    if headers.get("sec-websocket-version") != _VERSION:
        text = f"the version of WebSocket served is {_VERSION}"
        raise BadRequestError(426, text, (*_UPGRADE, ("Sec-WebSocket-Version", _VERSION)))
    origin = headers.get("origin")
    if origin is not None and not _may_come_from(origin, headers.get("host", ""), origins):
        raise BadRequestError(403, "pages of this origin may not connect here; listen.ws_origins says which may")
    key = headers.get("sec-websocket-key", "")
    if not _is_key(key):
        raise BadRequestError(400, f"the Sec-WebSocket-Key header is not {_KEY_BYTES} bytes of base64")
    fields = [*_UPGRADE, ("Sec-WebSocket-Accept", accept_key(key))]
    subprotocol = _chosen(headers.get("sec-websocket-protocol"))
    if subprotocol is not None:
        fields.append(("Sec-WebSocket-Protocol", subprotocol))
    return Answer(status=101, headers=tuple(fields))


def _may_come_from(origin: str, host: str, origins: str) -> bool:
    """Return whether a web page of *origin* may connect to *host* (RFC 6455, 10.2).

    Without this check any page could connect with the rights of the person who reads it.
    """
    if origins:
        return any(each in {"*", origin.lower()} for each in origins.lower().split(" "))
    page, asked = _WEB_ORIGIN.fullmatch(origin.lower()), _HOST_HEADER.fullmatch(host.lower())
    return page is not None and asked is not None and page[1] == asked[1]


def accept_key(key: str) -> str:
    """Return the value of Sec-WebSocket-Accept for a client's *key*; it shows that the server speaks WebSocket."""
    return base64.b64encode(hashlib.sha1(key.encode("ascii") + _GUID).digest()).decode()  # noqa: S324 # as in the RFC


class Framing:
    """Decoder and encoder of frames: the server's side of a WebSocket after the handshake."""

    def __init__(self, *, max_frame_bytes: int) -> None:
        self._max_frame_bytes = whole("max_frame_bytes", max_frame_bytes, _MAX_CONTROL_BYTES, INT64_MAX)
        self._most_small = min(_MANY_BYTES, self._max_frame_bytes + 1)
        self.closed = False
        """Whether reading has ended: the peer closed or broke a rule. Then send ``to_send``, close the connection."""
        self.failure: WebSocketError | None = None
        self.peer_code: int | None = None
        """The status code of the peer's close frame, once received."""
        self.frames = 0
        """Number of frames begun so far: a measure of work, since a frame may be empty."""
        self._has_sent_close = False
        self._is_in_message = False
        self._incomplete = b""
        self._left_bytes = 0
        self._key = b""
        self._pong: bytes | None = None
        self._close = b""

    def receive(self, data: bytes) -> bytes:
        """Decode *data* and return the payloads of its frames, joined; check ``to_send`` and ``closed`` afterwards.

        They are joined so that a stream in frames of one byte costs the next decoder no more than one in large frames.
        """
        if self._incomplete:
            data, self._incomplete = self._incomplete + data, b""
        chunks: list[bytes] = []
        at, end = 0, len(data)
        while at < end and not self.closed:
            if self._left_bytes:
                payload = data[at : at + self._left_bytes]
                at += len(payload)
                chunks.append(self._unmask_next(payload))
                continue
            at = self._small_frames(data, at, chunks)
            if at == end:
                break
            try:
                taken = self._frame(data, at)
            except WebSocketError as error:
                self._fail(error)
                break
            if not taken:
                self._incomplete = data[at:]
                break
            at += taken
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def to_send(self) -> bytes:
        """Return the queued answers (a pong, a close frame), and clear the queue."""
        pong, close = self._pong, self._close
        self._pong, self._close = None, b""
        return close if pong is None else _encode_frame(_PONG, pong) + close

    def wrap(self, data: bytes) -> bytes:
        """Return *data* as one binary frame; empty after a close frame, which must be the last frame."""
        return b"" if self._has_sent_close else _encode_frame(_BINARY, data)

    def close(self, code: int = CloseCode.NORMAL) -> bytes:
        """Return the close frame to send; empty if one was sent before. ``closed`` is set when the peer answers."""
        if not _is_code(code):
            raise InvalidValueError(
                "close code", code, "one that may be sent: 1000 to 1014 but 1004 to 1006, 3000 to 4999"
            )
        return self._close_frame(code.to_bytes(2, "big"))

    def _unmask_next(self, payload: bytes) -> bytes:
        """Return *payload*, the next part of the current frame, unmasked.

        Subtract its length from the bytes that the frame still lacks, and rotate the masking key accordingly.
        """
        key, turned = self._key, len(payload) % _WORD
        self._left_bytes -= len(payload)
        self._key = key[turned:] + key[:turned]
        return _unmask(payload, key)

    def _small_frames(self, data: bytes, at: int, chunks: list[bytes]) -> int:
        """Decode small, complete and valid data frames from *at*; return the offset of the next other frame.

        This is ``_frame`` without the steps that such frames do not need, and it unmasks them together, in a quarter of
        the time. It leaves to ``_frame`` all incomplete, large, control and invalid frames.
        """
        payloads: list[bytes] = []
        masks: list[bytes] = []
        end, last, most, is_in_message = len(data), len(data) - _MEDIUM_HEAD, self._most_small, self._is_in_message
        while at <= last:
            first, length, body = data[at], data[at + 1] - _MASKED, at + _SHORT_HEAD
            if length == _TWO_BYTES:
                length, body = data[at + 2] << 8 | data[at + 3], at + _MEDIUM_HEAD
            elif length == _EIGHT_BYTES:
                break
            after = body + length
            if first & _NOT_OF_DATA or not 0 <= length < most or after > end or is_in_message is (first & _BINARY != 0):
                break
            is_in_message = first < _FINAL
            payloads.append(data[body:after])
            masks.append((data[body - _WORD : body] * (length // _WORD + 1))[:length])
            at = after
        if payloads:
            self._is_in_message = is_in_message
            self.frames += len(payloads)
            chunks.append(_xor(b"".join(payloads), b"".join(masks)))
        return at

    def _frame(self, data: bytes, at: int) -> int:
        """Decode a frame's header at *at*, or a whole control frame; return its length, 0 if bytes are missing."""
        opcode, is_final = self._kind(data[at])
        if len(data) < at + 2:
            return 0
        length = _short_length(data[at + 1], opcode)
        body = at + 2
        if length >= _TWO_BYTES:
            width = 2 if length == _TWO_BYTES else 8
            if len(data) < body + width:
                return 0
            length = int.from_bytes(data[body : body + width], "big")
            body += width
            if length > self._max_frame_bytes:
                text = f"a frame of {length} bytes, allowed are {self._max_frame_bytes}"
                raise WebSocketError(CloseCode.TOO_BIG, text)
        key = data[body : body + _WORD]
        body += _WORD
        if len(data) < body:
            return 0
        if opcode >= _CLOSE:
            payload = data[body : body + length]
            if len(payload) < length:
                return 0
            self.frames += 1
            self._control(opcode, _unmask(payload, key))
            return body + length - at
        self.frames += 1
        self._is_in_message = not is_final
        self._left_bytes, self._key = length, key
        return body - at

    def _kind(self, first: int) -> tuple[int, bool]:
        """Return the opcode and the FIN bit in a frame's *first* byte; raise if such a frame is not allowed now."""
        opcode, is_final = first & _OPCODE, bool(first & _FINAL)
        if first & _RESERVED:
            raise _broken("reserved bits are set, and no extension was agreed on")
        if opcode not in _KNOWN:
            raise _broken(f"opcode {opcode} is unknown")
        if opcode == _TEXT:
            raise WebSocketError(CloseCode.UNSUPPORTED_DATA, "a text frame; MQTT is binary")
        if opcode >= _CLOSE and not is_final:
            raise _broken("a control frame in fragments")
        if opcode == _CONTINUATION and not self._is_in_message:
            raise _broken("a continuation of nothing")
        if opcode == _BINARY and self._is_in_message:
            raise _broken("a new message within another")
        return opcode, is_final

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == _PING:
            self._pong = payload
        elif opcode == _CLOSE:
            self.peer_code = _code_from(payload)
            # The code is echoed without the reason, which the peer knows.
            self._close += self._close_frame(payload[:2])
            self.closed = True

    def _fail(self, failure: WebSocketError) -> None:
        self.failure, self.closed = failure, True
        reason = failure.reason.encode("ascii", "replace")[:_MAX_REASON_BYTES]
        self._close += self._close_frame(failure.code.to_bytes(2, "big") + reason)

    def _close_frame(self, payload: bytes) -> bytes:
        if self._has_sent_close:
            return b""
        self._has_sent_close = True
        return _encode_frame(_CLOSE, payload)


def _encode_frame(opcode: int, payload: bytes) -> bytes:
    """Encode a complete frame of a server, which is not masked."""
    first, size = _FINAL | opcode, len(payload)
    if size < _TWO_BYTES:
        return bytes((first, size)) + payload
    if size < 2**16:
        return struct.pack(">BBH", first, _TWO_BYTES, size) + payload
    return struct.pack(">BBQ", first, _EIGHT_BYTES, size) + payload


def _unmask(payload: bytes, key: bytes) -> bytes:
    """Return *payload* XOR the masking *key* of four bytes, repeated (RFC 6455, 5.3)."""
    size = len(payload)
    if size < _MANY_BYTES:
        return _xor(payload, (key * (size // _WORD + 1))[:size])
    missing = -size % _WORD
    words = np.frombuffer(payload + bytes(missing), dtype=np.uint32) ^ np.frombuffer(key, dtype=np.uint32)
    return words.tobytes()[:size]


def _xor(payload: bytes, mask: bytes) -> bytes:
    """Return *payload* XOR *mask*, which has the same length."""
    size = len(payload)
    if size < _MANY_BYTES:
        return (int.from_bytes(payload, "little") ^ int.from_bytes(mask, "little")).to_bytes(size, "little")
    return np.bitwise_xor(np.frombuffer(payload, np.uint8), np.frombuffer(mask, np.uint8)).tobytes()


def _short_length(second: int, opcode: int) -> int:
    """Return the length in a frame's *second* byte; 126 and 127 mean that a longer length follows."""
    if not second & _MASKED:
        raise _broken("a client's frame without a mask")
    length = second & _LENGTH
    if opcode >= _CLOSE and length > _MAX_CONTROL_BYTES:
        raise _broken(f"a control frame of more than {_MAX_CONTROL_BYTES} bytes")
    return length


def _broken(reason: str) -> WebSocketError:
    return WebSocketError(CloseCode.PROTOCOL_ERROR, reason)


def _code_from(payload: bytes) -> int:
    """Return the status code of a close frame's payload; raise ``WebSocketError`` if it is invalid."""
    if not payload:
        return CloseCode.NO_CODE
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1 or not _is_code(code):
        raise _broken("a close frame with a code that may not be sent")
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        raise WebSocketError(CloseCode.INVALID_TEXT, "a close frame whose reason is not UTF-8") from None
    return code


def _is_code(code: int) -> bool:
    """Return whether *code* is allowed in a close frame: assigned and not only for local use, or for applications."""
    return (1000 <= code <= 1014 and not 1004 <= code <= 1006) or 3000 <= code <= 4999


def _chosen(offered: str | None) -> str | None:
    if offered is None:
        return None
    found = _tokens(offered)
    for subprotocol in SUBPROTOCOLS:
        if subprotocol in found:
            return subprotocol
    raise BadRequestError(400, "the subprotocols offered do not include mqtt")


def _tokens(value: str) -> list[str]:
    return [token.strip(" \t") for token in value.split(",")]


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):  # ValueError: not ASCII
        return False
