"""WebSocket (RFC 6455): a stream of bytes through frames, for MQTT, as either side, without a socket.

Rule: ``receive`` never raises. What the RFC forbids sets ``failure``, queues the close frame that says so, and ends the
reading; everything before it was given out.
Rule: payloads are given out as they arrive, unmasked. MQTT does not care where messages or frames end (MQTT 5.0, 6),
so neither is put together; what is kept is at most a head, or a control frame, of 139 bytes.
Rule: a frame that is longer than allowed is refused at its head.
Rule: at most one pong is queued, the answer to the latest ping (RFC 6455, 5.5.3), so pings cannot fill the memory.
Rule: frames are judged byte by byte in their order, so that how the network cuts them changes nothing.
Rule: random bytes are given: whoever draws them is a shell. A client's masks must be unpredictable (RFC 6455, 5.3).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from collections.abc import Callable
from enum import IntEnum

import numpy as np

from whimbrel.broker.http import BadRequestError, Request, read_response_head, response
from whimbrel.errors import InvalidValueError, WhimbrelError
from whimbrel.model.bounds import INT64_MAX, whole

__all__ = [
    "SUBPROTOCOLS",
    "CloseCode",
    "Framing",
    "HandshakeError",
    "WebSocketError",
    "accept",
    "accept_key",
    "check_accept",
    "client_request",
    "masked",
]

SUBPROTOCOLS = ("mqtt", "mqttv3.1")
"""What is spoken, best first; the second is what clients of MQTT 3.1 asked for."""
KEY_BYTES = 16
"""Random bytes of a client's handshake."""

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_VERSION = "13"
_UPGRADE = (("Upgrade", "websocket"), ("Connection", "Upgrade"))
_HOST = re.compile(r"[\x21-\x7e]+")
_PATH = re.compile(r"/[\x21-\x7e]*")
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
_SHORT_HEAD = 2 + _WORD
"""Bytes before the payload of a client's frame that has less than 126 of them."""
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


class HandshakeError(WhimbrelError):
    """The server does not speak MQTT over WebSocket to us. Reaction: close the connection, try another address."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"WebSocket handshake: {self.reason}"


def accept(request: Request, *, origins: str = "") -> bytes:
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
        raise BadRequestError(400, f"the Sec-WebSocket-Key header is not {KEY_BYTES} bytes of base64")
    fields = [*_UPGRADE, ("Sec-WebSocket-Accept", accept_key(key))]
    subprotocol = _chosen(headers.get("sec-websocket-protocol"))
    if subprotocol is not None:
        fields.append(("Sec-WebSocket-Protocol", subprotocol))
    return response(101, headers=fields)


def _may_come_from(origin: str, host: str, origins: str) -> bool:
    """Tell whether a page of *origin* may connect to *host* (RFC 6455, 10.2); else any page could, as its reader."""
    if origins:
        return any(each in {"*", origin.lower()} for each in origins.lower().split(" "))
    page, asked = _WEB_ORIGIN.fullmatch(origin.lower()), _HOST_HEADER.fullmatch(host.lower())
    return page is not None and asked is not None and page[1] == asked[1]


def accept_key(key: str) -> str:
    """Return the proof that a server has read *key*: no secret, only something no plain HTTP server says."""
    return base64.b64encode(hashlib.sha1(key.encode("ascii") + _GUID).digest()).decode()  # noqa: S324 # as the RFC has it


def client_request(host: str, path: str, key: bytes) -> bytes:
    """Return the request that opens a WebSocket for MQTT; *key* is 16 fresh random bytes."""
    if not _HOST.fullmatch(host):
        raise InvalidValueError("host", host, "printable ASCII without spaces")
    if not _PATH.fullmatch(path):
        raise InvalidValueError("path", path, "a slash and printable ASCII without spaces")
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {_key_text(key)}",
        f"Sec-WebSocket-Version: {_VERSION}",
        f"Sec-WebSocket-Protocol: {SUBPROTOCOLS[0]}",
    ]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n"


def check_accept(request_key: bytes, response_head: bytes) -> None:
    """Raise ``HandshakeError`` unless *response_head*, to its empty line, accepts the request made with *request_key*.

    A server that names no subprotocol is taken at its word that it needs none.
    """
    want = accept_key(_key_text(request_key))
    try:
        head = read_response_head(response_head)
    except InvalidValueError as error:
        raise HandshakeError(str(error)) from None
    if head.status != 101:
        raise HandshakeError(f"the server answered {head.status}, expected is 101")
    if head.headers.get("upgrade", "").lower() != "websocket":
        raise HandshakeError("the answer's Upgrade header does not say websocket")
    if "upgrade" not in _tokens(head.headers.get("connection", "").lower()):
        raise HandshakeError("the answer's Connection header does not say upgrade")
    if head.headers.get("sec-websocket-accept") != want:
        raise HandshakeError("the answer is not one to this request: its Sec-WebSocket-Accept does not fit")
    if "sec-websocket-extensions" in head.headers:
        raise HandshakeError("the answer has extensions, and none were asked for")
    if head.headers.get("sec-websocket-protocol", SUBPROTOCOLS[0]) != SUBPROTOCOLS[0]:
        raise HandshakeError("the answer chose a subprotocol that was not offered")


class Framing:
    """One side's end of a WebSocket after the handshake.

    A client needs *mask_key*, which returns four random bytes when called; a server does not call it.
    """

    def __init__(self, *, is_server: bool, max_frame_bytes: int, mask_key: Callable[[], bytes] | None = None) -> None:
        if not is_server and mask_key is None:
            raise InvalidValueError("mask_key", None, "a source of random bytes, for a client")
        self._max_frame_bytes = whole("max_frame_bytes", max_frame_bytes, _MAX_CONTROL_BYTES, INT64_MAX)
        self._is_server = is_server
        self._mask_key = None if is_server else mask_key
        self.closed = False
        """Nothing more will be read: the peer closed, or failed. Send what is queued and close the connection."""
        self.failure: WebSocketError | None = None
        self.peer_code: int | None = None
        """Why the peer closed, once it has."""
        self._has_sent_close = False
        self._is_in_message = False
        self._incomplete = b""
        self._left_bytes = 0
        self._key = b""
        self._pong: bytes | None = None
        self._close = b""

    def receive(self, data: bytes) -> list[bytes]:
        """Return what the frames of *data* carry, joined, if anything; look at ``to_send`` and ``closed`` afterwards.

        Joined, so that a stream in frames of one byte costs the reader of the stream no more than one in large frames.
        """
        chunks: list[bytes] = []
        if self._incomplete:
            data, self._incomplete = self._incomplete + data, b""
        at, end = 0, len(data)
        while at < end and not self.closed:
            if not self._left_bytes and self._is_server:
                at = self._short_frames(data, at, chunks)
                if at == end:
                    break
            if self._left_bytes:
                payload = data[at : at + self._left_bytes]
                at += len(payload)
                chunks.append(self._unmasked(payload))
                continue
            try:
                taken = self._frame(data, at)
            except WebSocketError as error:
                self._fail(error)
                break
            if not taken:
                self._incomplete = data[at:]
                break
            at += taken
        return [b"".join(chunks)] if len(chunks) > 1 else chunks

    def to_send(self) -> bytes:
        """Return, once, the answers that are due: a pong, a close frame."""
        pong, close = self._pong, self._close
        self._pong, self._close = None, b""
        return close if pong is None else self._framed(_PONG, pong) + close

    def wrap(self, data: bytes) -> bytes:
        """Return *data* as one binary frame; nothing once a close frame was sent, as none may follow it."""
        return b"" if self._has_sent_close else self._framed(_BINARY, data)

    def close(self, code: int = CloseCode.NORMAL) -> bytes:
        """Return the close frame to send, nothing if there was one; ``closed`` follows when the peer has answered."""
        if not _is_code(code):
            raise InvalidValueError(
                "close code", code, "one that may be sent: 1000 to 1014 but 1004 to 1006, 3000 to 4999"
            )
        return self._close_frame(code.to_bytes(2, "big"))

    def _unmasked(self, payload: bytes) -> bytes:
        """Return the next *payload* of the frame that is being read."""
        self._left_bytes -= len(payload)
        if not self._is_server:
            return payload
        key = self._key
        turned = len(payload) % _WORD
        self._key = key[turned:] + key[:turned]
        return masked(payload, key)

    def _short_frames(self, data: bytes, at: int, chunks: list[bytes]) -> int:
        """Read frames of a few bytes of data that are whole and break no rule; return where the next one begins.

        A client can send a frame for every byte of a packet: 37,000 of them in one read. ``_frame`` takes three times
        as long for one, and reads what this leaves: whatever is longer, is not whole, is control or breaks a rule.
        """
        end, is_in_message, carried = len(data) - _SHORT_HEAD - _WORD, self._is_in_message, bytearray()
        while at <= end:
            first, length = data[at], data[at + 1] - _MASKED
            if first & _NOT_OF_DATA or not 0 <= length <= _WORD or (first & _BINARY != 0) is is_in_message:
                break
            is_in_message = first < _FINAL
            at += _SHORT_HEAD
            for _ in range(length):
                carried.append(data[at] ^ data[at - _WORD])
                at += 1
        self._is_in_message = is_in_message
        if carried:
            chunks.append(bytes(carried))
        return at

    def _frame(self, data: bytes, at: int) -> int:
        """Read the head at *at*, of a control frame the payload too; return the bytes taken, 0 if more are needed."""
        opcode, is_final = self._kind(data[at])
        if len(data) < at + 2:
            return 0
        length = self._short_length(data[at + 1], opcode)
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
        key = b""
        if self._is_server:
            key = data[body : body + _WORD]
            body += _WORD
        if len(data) < body:
            return 0
        if opcode >= _CLOSE:
            payload = data[body : body + length]
            if len(payload) < length:
                return 0
            self._control(opcode, masked(payload, key) if key else payload)
            return body + length - at
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

    def _short_length(self, second: int, opcode: int) -> int:
        """Return the length in a frame's *second* byte; 126 and 127 stand for a longer one, which follows."""
        if bool(second & _MASKED) is not self._is_server:
            raise _broken("a client's frame without a mask" if self._is_server else "a server's frame with a mask")
        length = second & _LENGTH
        if opcode >= _CLOSE and length > _MAX_CONTROL_BYTES:
            raise _broken(f"a control frame of more than {_MAX_CONTROL_BYTES} bytes")
        return length

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
        return self._framed(_CLOSE, payload)

    def _framed(self, opcode: int, payload: bytes) -> bytes:
        first, size = _FINAL | opcode, len(payload)
        mask_bit = 0 if self._mask_key is None else _MASKED
        if size < _TWO_BYTES:
            head = bytes((first, mask_bit | size))
        elif size < 2**16:
            head = struct.pack(">BBH", first, mask_bit | _TWO_BYTES, size)
        else:
            head = struct.pack(">BBQ", first, mask_bit | _EIGHT_BYTES, size)
        if self._mask_key is None:
            return head + payload
        key = self._mask_key()
        if len(key) != _WORD:
            raise InvalidValueError("mask key", f"{len(key)} bytes", f"{_WORD} bytes")
        return head + key + masked(payload, key)


def masked(payload: bytes, key: bytes) -> bytes:
    """Return *payload* with the four bytes of *key* over it, again and again; twice gives it back."""
    size = len(payload)
    if size < _MANY_BYTES:
        over = (key * (size // _WORD + 1))[:size]
        return (int.from_bytes(payload, "little") ^ int.from_bytes(over, "little")).to_bytes(size, "little")
    missing = -size % _WORD
    words = np.frombuffer(payload + bytes(missing), dtype=np.uint32) ^ np.frombuffer(key, dtype=np.uint32)
    return words.tobytes()[:size]


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
        return len(base64.b64decode(key, validate=True)) == KEY_BYTES
    except (binascii.Error, ValueError):  # ValueError: not ASCII
        return False


def _key_text(key: bytes) -> str:
    if len(key) != KEY_BYTES:
        raise InvalidValueError("handshake key", f"{len(key)} bytes", f"{KEY_BYTES} random bytes")
    return base64.b64encode(key).decode()
