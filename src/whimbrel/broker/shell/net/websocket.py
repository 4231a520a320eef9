"""WebSocket (RFC 6455) for MQTT, the server's side without a socket: whether to accept, and a stream through frames.

Rule: ``receive`` never raises. What the RFC forbids sets ``failure``, queues the close frame that says so, and ends the
reading; everything before it was given out.
Rule: payloads are given out as they arrive, unmasked. MQTT does not care where messages or frames end (MQTT 5.0, 6),
so neither is put together; what is kept is at most a head, or a control frame, of 139 bytes.
Rule: a frame that is longer than allowed is refused at its head.
Rule: at most one pong is queued, the answer to the latest ping (RFC 6455, 5.5.3), so pings cannot fill the memory.
Rule: frames are judged byte by byte in their order, so that how the network cuts them changes nothing.

Ours, and not a library's: with ``websockets`` a small message takes the broker 1.7 times the core time, and 3.4 to 4
times with ``wsproto`` (bench/results/websocket.md); the first keeps whole frames, the second does not bound them. Both
are references of this module in tests/differential/test_websocket_libraries.py.
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
"""What is spoken, best first; the second is what clients of MQTT 3.1 asked for."""
_KEY_BYTES = 16
"""Random bytes of a client's handshake."""

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
"""Bits that the first byte of a frame of data has not."""
_SHORT_HEAD, _MEDIUM_HEAD = 2 + _WORD, 4 + _WORD
"""Bytes before the payload of a client's frame that has less than 126 of them, or less than 64 KB."""
_MANY_BYTES = 512
"""From here on numpy is faster than one large integer: measured 1.5 times at 1 kB, 20 times at 64 kB."""


class CloseCode(IntEnum):
    """Why a connection ends: the codes this side has a use for (RFC 6455, 7.4.1)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003
    NO_CODE = 1005
    """Never sent: stands for a close frame without a code."""
    INVALID_TEXT = 1007
    POLICY_VIOLATION = 1008
    TOO_BIG = 1009
    INTERNAL_ERROR = 1011


class WebSocketError(WhimbrelError):
    """The peer broke the rules of frames. Reaction: send what is queued, close the connection."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason

    def __str__(self) -> str:
        return f"WebSocket closed with {int(self.code)}: {self.reason}"


def accept(request: Request, *, origins: str = "") -> Answer:
    """Return the answer that makes *request*'s connection a WebSocket, or raise ``BadRequestError``.

    A web page may connect if its origin is one of *origins*, which are separated by spaces; "*" is all of them, and
    without any the page's host must be the one that it connects to. A request without Origin is of no web page.
    What came behind the request, ``request.rest``, is for ``Framing.receive``.
    """
    headers = request.headers
    if request.method != "GET":
        raise BadRequestError(405, "a WebSocket is opened by GET", (("Allow", "GET"),))
    if "websocket" not in _tokens(headers.get("upgrade", "").lower()):
        text = "this path is served as a WebSocket only"
        raise BadRequestError(426, text, _UPGRADE)
    if "upgrade" not in _tokens(headers.get("connection", "").lower()):
        raise BadRequestError(400, "the Connection header does not say upgrade")
    # A body would be read as frames: the classic way to smuggle.
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
    """Tell whether a page of *origin* may connect to *host* (RFC 6455, 10.2); else any page could, as its reader."""
    if origins:
        return any(each in {"*", origin.lower()} for each in origins.lower().split(" "))
    page, asked = _WEB_ORIGIN.fullmatch(origin.lower()), _HOST_HEADER.fullmatch(host.lower())
    return page is not None and asked is not None and page[1] == asked[1]


def accept_key(key: str) -> str:
    """Return the proof that a server has read *key*: no secret, only something no plain HTTP server says."""
    return base64.b64encode(hashlib.sha1(key.encode("ascii") + _GUID).digest()).decode()  # noqa: S324 # as the RFC has it


class Framing:
    """The server's end of a WebSocket after the handshake."""

    def __init__(self, *, max_frame_bytes: int) -> None:
        self._max_frame_bytes = whole("max_frame_bytes", max_frame_bytes, _MAX_CONTROL_BYTES, INT64_MAX)
        self._most_small = min(_MANY_BYTES, self._max_frame_bytes + 1)
        self.closed = False
        """Nothing more will be read: the peer closed, or failed. Send what is queued and close the connection."""
        self.failure: WebSocketError | None = None
        self.peer_code: int | None = None
        """Why the peer closed, once it has."""
        self.frames = 0
        """How many frames have begun so far: a measure of work, since one may carry nothing."""
        self._has_sent_close = False
        self._is_in_message = False
        self._incomplete = b""
        self._left_bytes = 0
        self._key = b""
        self._pong: bytes | None = None
        self._close = b""

    def receive(self, data: bytes) -> bytes:
        """Return what the frames of *data* carry, joined; look at ``to_send`` and ``closed`` afterwards.

        Joined, so that a stream in frames of one byte costs the reader of the stream no more than one in large frames.
        """
        if self._incomplete:
            data, self._incomplete = self._incomplete + data, b""
        chunks: list[bytes] = []
        at, end = 0, len(data)
        while at < end and not self.closed:
            if self._left_bytes:
                payload = data[at : at + self._left_bytes]
                at += len(payload)
                chunks.append(self._unmasked(payload))
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
        """Return, once, the answers that are due: a pong, a close frame."""
        pong, close = self._pong, self._close
        self._pong, self._close = None, b""
        return close if pong is None else _framed(_PONG, pong) + close

    def wrap(self, data: bytes) -> bytes:
        """Return *data* as one binary frame; nothing once a close frame was sent, as none may follow it."""
        return b"" if self._has_sent_close else _framed(_BINARY, data)

    def close(self, code: int = CloseCode.NORMAL) -> bytes:
        """Return the close frame to send, nothing if there was one; ``closed`` follows when the peer has answered."""
        if not _is_code(code):
            raise InvalidValueError(
                "close code", code, "one that may be sent: 1000 to 1014 but 1004 to 1006, 3000 to 4999"
            )
        return self._close_frame(code.to_bytes(2, "big"))

    def _unmasked(self, payload: bytes) -> bytes:
        """Return the next *payload* of the frame that is being read."""
        key, turned = self._key, len(payload) % _WORD
        self._left_bytes -= len(payload)
        self._key = key[turned:] + key[:turned]
        return _unmasked(payload, key)

    def _small_frames(self, data: bytes, at: int, chunks: list[bytes]) -> int:
        """Read small frames of data that are whole and break no rule; return where the next one begins.

        This is ``_frame`` without the steps that such frames do not need, and unmasks them together: a quarter of the
        time. It leaves to ``_frame`` a frame that is not whole, is not small, is control or breaks a rule.
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
        """Read the head at *at*, of a control frame the payload too; return the bytes taken, 0 if more are needed."""
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
            self._control(opcode, _unmasked(payload, key))
            return body + length - at
        self.frames += 1
        self._is_in_message = not is_final
        self._left_bytes, self._key = length, key
        return body - at

    def _kind(self, first: int) -> tuple[int, bool]:
        """Return opcode and finality of a frame that begins with *first*, if such a one may come now."""
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
            # Echoed without its reason: the peer knows it.
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
        return _framed(_CLOSE, payload)


def _framed(opcode: int, payload: bytes) -> bytes:
    """Return a whole frame of a server, which has no mask."""
    first, size = _FINAL | opcode, len(payload)
    if size < _TWO_BYTES:
        return bytes((first, size)) + payload
    if size < 2**16:
        return struct.pack(">BBH", first, _TWO_BYTES, size) + payload
    return struct.pack(">BBQ", first, _EIGHT_BYTES, size) + payload


def _unmasked(payload: bytes, key: bytes) -> bytes:
    """Return *payload* with the four bytes of *key* over it, again and again (RFC 6455, 5.3)."""
    size = len(payload)
    if size < _MANY_BYTES:
        return _xor(payload, (key * (size // _WORD + 1))[:size])
    missing = -size % _WORD
    words = np.frombuffer(payload + bytes(missing), dtype=np.uint32) ^ np.frombuffer(key, dtype=np.uint32)
    return words.tobytes()[:size]


def _xor(payload: bytes, mask: bytes) -> bytes:
    """Return *payload* with *mask*, of the same length, over it."""
    size = len(payload)
    if size < _MANY_BYTES:
        return (int.from_bytes(payload, "little") ^ int.from_bytes(mask, "little")).to_bytes(size, "little")
    return np.bitwise_xor(np.frombuffer(payload, np.uint8), np.frombuffer(mask, np.uint8)).tobytes()


def _short_length(second: int, opcode: int) -> int:
    """Return the length in a frame's *second* byte; 126 and 127 stand for a longer one, which follows."""
    if not second & _MASKED:
        raise _broken("a client's frame without a mask")
    length = second & _LENGTH
    if opcode >= _CLOSE and length > _MAX_CONTROL_BYTES:
        raise _broken(f"a control frame of more than {_MAX_CONTROL_BYTES} bytes")
    return length


def _broken(reason: str) -> WebSocketError:
    return WebSocketError(CloseCode.PROTOCOL_ERROR, reason)


def _code_from(payload: bytes) -> int:
    """Return the code of a close frame, or raise ``WebSocketError``."""
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
    """Tell whether *code* may stand in a close frame: assigned and not for local use, or left to applications."""
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
