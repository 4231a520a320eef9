"""HTTP: one request and its answer, as much of HTTP/1.1 (RFC 9112) as health checks and WebSockets need.

``h11`` reads the head and writes the answer; here are the bounds around it.
Rule: any bytes are a request, need more, or are a ``BadRequestError``; which of them does not depend on how the network
cut them.
Rule: nothing beyond ``max_bytes`` is kept while a head is incomplete, and ``h11`` sees a head once it is whole.
Rule: what two readers could read differently is refused, never guessed. ``h11`` takes bare line ends, folded lines and
control characters in values, as proxies do; they are refused here before it sees them.
Rule: bodies are not read, and every answer but 101 closes the connection, so no client waits for more.
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
"""Controls, line ends that are only half of one, and folded lines. A carriage return that comes last may become whole.

Without these bytes the patterns of ``h11`` take linear time: a value always matches, and a name fails where it ends.
"""
_QUOTED = ": bytearray("
"""What ``h11`` puts before the line that it refuses; the line itself is not sent back."""
_WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request is answered."""

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
        """The answer that says so."""
        return Answer(status=self.status, body=f"{self.text}\n".encode(), headers=self.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The head of one request, and the bytes that came behind it."""

    method: str
    path: str
    """As it was sent, without the query; percent signs are not decoded."""
    headers: Mapping[str, str]
    """By lower-case name; what was sent several times is joined by commas."""
    query: str = ""
    rest: bytes = b""


class HttpExchange:
    """One request, whose head has at most *max_bytes* with its empty line, and its answer."""

    def __init__(self, max_bytes: int = 8192) -> None:
        self._max_bytes = whole("max_bytes", max_bytes, len(_END), 2**31 - 1)
        self._head = bytearray()
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=max_bytes)
        self._failure: BadRequestError | None = None
        self._method = ""
        self._is_unread_head = False
        """It asked for a head, and ``h11``, which refused it, does not know that: its answer has no body."""

    def receive(self, data: bytes) -> Request | None:
        """Return the request once its head is complete; ``None`` means that more is needed.

        A request that was refused stays refused, whatever comes behind it.
        """
        if self._failure is None:
            try:
                return self._read(data)
            except BadRequestError as error:
                self._head.clear()
                self._failure = error
        raise self._failure

    def send(self, answer: Answer) -> bytes:
        """Return *answer* as it is sent; those that have no body by their status get no headers about one."""
        try:
            phrase = HTTPStatus(answer.status).phrase
        except ValueError:
            raise InvalidValueError("HTTP status", answer.status, "one that HTTP knows") from None
        try:
            return self._sent(answer, phrase)
        except (h11.LocalProtocolError, UnicodeEncodeError) as error:
            # Refused and not escaped: a line end in a value would be a header that the client made.
            raise InvalidValueError(
                "HTTP answer", Phrase(error), "headers of a token and printable ASCII, a body if any"
            ) from None

    def _sent(self, answer: Answer, phrase: str) -> bytes:
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
        # Looked for at once: a client that speaks TLS or MQTT to this port waits for an answer, and would for ever.
        if _REFUSED.search(self._head, max(0, seen - 1), len(self._head) if end < 0 else end + 2):
            raise BadRequestError(400, "the head has control characters, folded lines, or line ends other than CR LF")
        if end < 0:
            if len(self._head) == self._max_bytes:
                raise BadRequestError(431, f"the head has more than {self._max_bytes} bytes")
            return None
        rest = bytes(self._head[end + len(_END) :]) + data[room:]
        head = bytes(self._head[: end + len(_END)])
        self._head.clear()
        return self._parsed(head, rest)

    def _parsed(self, head: bytes, rest: bytes) -> Request:
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
