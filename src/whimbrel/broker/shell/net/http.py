"""HTTP/1.1 (RFC 9112), as far as health checks and WebSockets need it: parse one request and encode its answer.

``h11`` parses the head and encodes the answer; this module adds limits.
Rule: any input is a request, an incomplete request, or a ``BadRequestError``; the result does not depend on how the
network splits the bytes.
Rule: at most ``max_bytes`` of an incomplete head are kept, and ``h11`` sees a head only when it is complete.
Rule: input that two parsers could read differently (request smuggling) is refused. ``h11`` accepts bare line ends,
folded lines and control characters in values, as proxies do; they are refused here first.
Rule: bodies are not read, and every answer except 101 closes the connection, so no client waits for more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from types import MappingProxyType

import h11

from whimbrel.errors import InvalidValueError, Phrase, WhimbrelError
from whimbrel.model.bounds import whole

__all__ = ["Answer", "BadRequestError", "HttpExchange", "Request"]

_END = b"\r\n\r\n"
_REFUSED = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?=[^\n])|\n(?=[ \t])")
"""Control characters, bare CR or LF, and folded lines. A CR at the end of the data is allowed: LF may still follow.

Without these bytes the patterns of ``h11`` take linear time: a value always matches, and a name fails where it ends.
"""
_QUOTED = ": bytearray("
"""Text in an error of ``h11`` before the refused line, which is cut off and not sent back to the client."""
_WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer to a request: status, body and headers."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


class BadRequestError(WhimbrelError):
    """The peer's request cannot be served. Reaction: send ``answer``, close the connection."""

    def __init__(self, status: int, text: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(status, text, headers)
        self.status, self.text, self.headers = status, text, headers

    def __str__(self) -> str:
        return f"{self.status}: {self.text}"

    @property
    def answer(self) -> Answer:
        """The answer with this error's status and text."""
        return Answer(status=self.status, body=f"{self.text}\n".encode(), headers=self.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Head of one request, and the bytes received after it."""

    method: str
    path: str
    """The path as the client sent it, without the query; percent-encoding is not decoded."""
    headers: Mapping[str, str]
    """Values of the headers, by lower-case name; the values of a repeated header are joined by commas."""
    query: str = ""
    rest: bytes = b""


class HttpExchange:
    """Exchange of one request and its answer; the head has at most *max_bytes*, including its empty line."""

    def __init__(self, max_bytes: int = 8192) -> None:
        self._max_bytes = whole("max_bytes", max_bytes, len(_END), 2**31 - 1)
        self._head = bytearray()
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=max_bytes)
        self._failure: BadRequestError | None = None
        self._method = ""
        self._is_unread_head = False
        """Whether ``h11`` refused a HEAD request without noting the method, so that the answer must have no body."""

    def receive(self, data: bytes) -> Request | None:
        """Add received bytes; return the request once its head is complete, or None while more is needed.

        A request that was refused stays refused, whatever is received after it.
        """
        if self._failure is None:
            try:
                return self._read(data)
            except BadRequestError as error:
                self._head.clear()
                self._failure = error
        raise self._failure

    def send(self, answer: Answer) -> bytes:
        """Encode *answer*; if its status allows no body, the headers about the body are left out."""
        try:
            phrase = HTTPStatus(answer.status).phrase
        except ValueError:
            raise InvalidValueError("HTTP status", answer.status, "one that HTTP knows") from None
        try:
            return self._encode(answer, phrase)
        except (h11.LocalProtocolError, UnicodeEncodeError) as error:
            # Refused, not escaped: with a line end in a value a client could inject a header.
            raise InvalidValueError(
                "HTTP answer", Phrase(error), "headers of a token and printable ASCII, a body if any"
            ) from None

    def _encode(self, answer: Answer, phrase: str) -> bytes:
        fields, send = list(answer.headers), self._connection.send
        if self._is_unread_head:
            answer = replace(answer, body=b"")
        if answer.status < HTTPStatus.OK:
            return send(h11.InformationalResponse(status_code=answer.status, headers=fields, reason=phrase))
        fields.append(("Connection", "close"))
        if answer.status not in _WITHOUT_BODY:
            fields += [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
        head = send(h11.Response(status_code=answer.status, headers=fields, reason=phrase))
        body = b"" if self._method == "HEAD" else answer.body
        return head + send(h11.Data(data=body)) + send(h11.EndOfMessage())

    def _read(self, data: bytes) -> Request | None:
        seen = len(self._head)
        room = self._max_bytes - seen
        self._head += data[:room]
        end = self._head.find(_END, max(0, seen - len(_END) + 1))
        # Checked before the head is complete: a client that speaks TLS or MQTT would wait for an answer for ever.
        if _REFUSED.search(self._head, max(0, seen - 1), len(self._head) if end < 0 else end + 2):
            raise BadRequestError(400, "the head has control characters, folded lines, or line ends other than CR LF")
        if end < 0:
            if len(self._head) == self._max_bytes:
                raise BadRequestError(431, f"the head has more than {self._max_bytes} bytes")
            return None
        rest = bytes(self._head[end + len(_END) :]) + data[room:]
        head = bytes(self._head[: end + len(_END)])
        self._head.clear()
        return self._parse(head, rest)

    def _parse(self, head: bytes, rest: bytes) -> Request:
        self._connection.receive_data(head)
        try:
            event = self._connection.next_event()
        except h11.RemoteProtocolError as error:
            self._is_unread_head = head.startswith(b"HEAD ")
            raise BadRequestError(error.error_status_hint, f"not HTTP: {str(error).partition(_QUOTED)[0]}") from None
        if not isinstance(event, h11.Request):
            raise BadRequestError(400, "more than one request came over this connection")
        self._method, target = event.method.decode("ascii"), event.target.decode("ascii")
        if event.http_version != b"1.1":
            raise BadRequestError(505, f"found HTTP/{event.http_version.decode('ascii')}, served is HTTP/1.1")
        if self._method == "CONNECT" or not target.startswith("/"):
            raise BadRequestError(400, "a request names a path, which begins with a slash")
        path, _, query = target.partition("?")
        return Request(method=self._method, path=path, query=query, headers=_headers(event), rest=rest)


def _headers(event: h11.Request) -> Mapping[str, str]:
    headers: dict[str, str] = {}
    for name, value in event.headers:
        key, text = name.decode("ascii"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return MappingProxyType(headers)
