"""HTTP: one request head in, one answer out; as much of HTTP/1.1 (RFC 9112) as health checks and WebSockets need.

Rule: any bytes are a request, need more, or are a ``BadRequestError``; which of them does not depend on how the network
cut them.
Rule: nothing beyond ``max_bytes`` is kept while a head is incomplete.
Rule: what two readers could read differently is refused, never guessed: bare line ends, folded lines, spaces before a
colon, a repeated ``Host`` or ``Content-Length``.
Rule: bodies are not read, and every answer but 101 and its like closes the connection, so nobody waits for more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType

from whimbrel.errors import InvalidValueError, WhimbrelError
from whimbrel.model.bounds import whole

__all__ = ["BadRequestError", "Request", "RequestReader", "Response", "read_response_head", "response"]

_END = b"\r\n\r\n"
# Controls, and line ends that are only half of one. A carriage return that comes last may still become whole.
_UNSPEAKABLE = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?=[^\n])")
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(rf"({_TOKEN}) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
_STATUS_LINE = re.compile(r"HTTP/1\.1 ([1-5][0-9][0-9])(?: .*)?")
_FIELD_NAME = re.compile(_TOKEN)
_FIELD_VALUE = re.compile(r"[\x20-\x7e]*")
_SINGLE = frozenset({"host", "content-length"})
_WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


class BadRequestError(WhimbrelError):
    """The peer's request cannot be served. Reaction: send ``response()``, close the connection."""

    def __init__(self, status: int, text: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(status, text, headers)
        self.status, self.text, self.headers = status, text, headers

    def __str__(self) -> str:
        return f"{self.status}: {self.text}"

    def response(self) -> bytes:
        """Return the answer that says so."""
        return response(self.status, f"{self.text}\n".encode(), headers=self.headers)


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


@dataclass(frozen=True, slots=True)
class Response:
    """The head of an answer."""

    status: int
    headers: Mapping[str, str]


class RequestReader:
    """Collects bytes until they are the head of a request, of at most *max_bytes* with its empty line."""

    def __init__(self, max_bytes: int = 8192) -> None:
        self._max_bytes = whole("max_bytes", max_bytes, len(_END), 2**31 - 1)
        self._head = bytearray()
        self._failure: BadRequestError | None = None

    def receive(self, data: bytes) -> Request | None:
        """Return the request once its head is complete; ``None`` means that more is needed.

        A reader that has refused goes on refusing; one that has returned a request begins another.
        """
        if self._failure is None:
            try:
                return self._read(data)
            except BadRequestError as error:
                self._head.clear()
                self._failure = error
        raise self._failure

    def _read(self, data: bytes) -> Request | None:
        seen = len(self._head)
        room = self._max_bytes - seen
        self._head += data[:room]
        end = self._head.find(_END, max(0, seen - len(_END) + 1))
        # Looked for at once: whoever speaks TLS or MQTT to this port waits for an answer, and would wait for ever.
        if _UNSPEAKABLE.search(self._head, max(0, seen - 1), len(self._head) if end < 0 else end + 2):
            raise BadRequestError(400, "the head has control characters, or line ends other than CR LF")
        if end < 0:
            if len(self._head) == self._max_bytes:
                raise BadRequestError(431, f"the head has more than {self._max_bytes} bytes")
            return None
        rest = bytes(self._head[end + len(_END) :]) + data[room:]
        lines = self._head[:end].decode("latin-1").split("\r\n")
        self._head.clear()
        return _request(lines, rest)


def response(
    status: int,
    body: bytes = b"",
    *,
    content_type: str = "text/plain; charset=utf-8",
    headers: Iterable[tuple[str, str]] = (),
) -> bytes:
    """Return a whole answer; those that have no body by their status (101, 204, …) get no headers about one."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        raise InvalidValueError("HTTP status", status, "one that HTTP knows") from None
    fields = list(headers)
    if status >= 200:
        fields.append(("Connection", "close"))
    if status >= 200 and status not in _WITHOUT_BODY:
        fields += [("Content-Type", content_type), ("Content-Length", str(len(body)))]
    elif body:
        raise InvalidValueError(f"body of a {status}", f"{len(body)} bytes", "none")
    for name, value in fields:
        # Refused and not escaped: a line end in a value would be a header of somebody else's making.
        if not _FIELD_NAME.fullmatch(name) or not _FIELD_VALUE.fullmatch(value):
            raise InvalidValueError("HTTP header", f"{name}: {value}", "a token, and printable ASCII")
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join(lines).encode("ascii") + _END + body


def read_response_head(head: bytes) -> Response:
    """Return the status and headers of *head*, all up to the empty line and with it, or raise ``InvalidValueError``."""
    line_and_fields, end, rest = head.partition(_END)
    if not end or rest or _UNSPEAKABLE.search(head):
        raise InvalidValueError("HTTP response", head, "one head, to its empty line")
    line, *fields = line_and_fields.decode("latin-1").split("\r\n")
    found = _STATUS_LINE.fullmatch(line)
    if not found:
        raise InvalidValueError("HTTP status line", line, "HTTP/1.1, a status and a phrase")
    try:
        return Response(int(found[1]), _headers(fields))
    except BadRequestError as error:
        raise InvalidValueError("HTTP response", error.text, "lines of a name, a colon and a value") from None


def _request(lines: list[str], rest: bytes) -> Request:
    found = _REQUEST_LINE.fullmatch(lines[0])
    if not found:
        raise BadRequestError(400, "the first line is not a method, a path and a version of HTTP")
    method, target, *version = found.groups()
    if version != ["1", "1"]:
        raise BadRequestError(505, f"found HTTP/{'.'.join(version)}, served is HTTP/1.1")
    if not target.startswith("/"):
        raise BadRequestError(400, "the path does not begin with a slash")
    headers = _headers(lines[1:])
    if "host" not in headers:
        raise BadRequestError(400, "there is no Host header")
    path, _, query = target.partition("?")
    return Request(method=method, path=path, query=query, headers=headers, rest=rest)


def _headers(lines: list[str]) -> Mapping[str, str]:
    headers: dict[str, str] = {}
    for number, line in enumerate(lines, 2):
        # Not one pattern for all of it: the one that trims both ends takes quadratic time for a value full of spaces.
        name, colon, value = line.partition(":")
        if not colon or not _FIELD_NAME.fullmatch(name):
            raise BadRequestError(400, f"line {number} is not a header: a name, a colon and a value")
        name, value = name.lower(), value.strip(" \t")
        if name in headers:
            if name in _SINGLE:
                raise BadRequestError(400, f"there is more than one {name} header")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return MappingProxyType(headers)
