"""HTTP: what is read, what is refused and with which status, and what answers look like."""

from __future__ import annotations

import pickle
from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from whimbrel.broker.shell.net.http import Answer, BadRequestError, HttpExchange, Request
from whimbrel.errors import InvalidValueError

HOST = b"GET / HTTP/1.1\r\nHost: a\r\n"
# Pieces that make nearly whole requests out of nothing, so that every branch is met.
PIECES = [HOST, b"GET ", b"/x?y", b" HTTP/1.1", b"\r\n", b"\r", b"\n", b"host: b", b":", b" ", b"\t", b"\x00", b"\xff"]
WIRES = st.binary(max_size=80) | st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join)


def outcome(chunks: list[bytes], *, max_bytes: int = 64) -> Request | tuple[int, str] | None:
    """Return what comes of *chunks*: a request with all that follows it, a refusal, or nothing yet."""
    exchange = HttpExchange(max_bytes)
    for number, chunk in enumerate(chunks):
        try:
            request = exchange.receive(chunk)
        except BadRequestError as error:
            return error.status, error.text
        if request is not None:
            rest = request.rest + b"".join(chunks[number + 1 :])
            return Request(method=request.method, path=request.path, headers=dict(request.headers), rest=rest)
    return None


def test_a_request_is_read() -> None:
    """Names are lower-cased, values trimmed, repeated ones joined, and what follows is handed on."""
    wire = b"GET /a%20b?c=1&d HTTP/1.1\r\nHost: x\r\nX-A:1\r\nx-a: \t2 \r\n\r\n\x82\x00"
    request = HttpExchange().receive(wire)
    assert request is not None
    assert (request.method, request.path, request.query, request.rest) == ("GET", "/a%20b", "c=1&d", b"\x82\x00")
    assert request.headers == {"host": "x", "x-a": "1, 2"}


@pytest.mark.parametrize(
    ("wire", "status", "text"),
    [
        (b"\x16\x03\x01", 400, "control"),
        (b"\x10\x0c\x00\x04MQTT", 400, "control"),
        (b"GET / HTTP/1.1\n", 400, "line ends"),
        (b"GET / HTTP/1.1\rx", 400, "line ends"),
        (b"\r\n\r\n", 400, "no request line"),
        (b"GET  / HTTP/1.1\r\n\r\n", 400, "illegal request line"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400, "illegal request line"),
        (b"GET / HTTP/1.0\r\n\r\n", 505, r"HTTP/1\.0"),
        (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400, "slash"),
        (b"CONNECT /a HTTP/1.1\r\nHost: a\r\n\r\n", 400, "names a path"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "Missing mandatory Host"),
        (HOST + b"host: b\r\n\r\n", 400, "multiple Host"),
        (HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "conflicting Content-Length"),
        (HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "Transfer-Encoding"),
        (HOST + b"name\r\n\r\n", 400, "illegal header line$"),
        (HOST + b"name : x\r\n\r\n", 400, "illegal header line$"),
        (HOST + b": x\r\n\r\n", 400, "illegal header line$"),
        (HOST + b"a: b\r\n folded\r\n\r\n", 400, "folded"),
        (HOST + b"a: b\r\n\t", 400, "folded"),
        (HOST + b"a: b\x01c\r\n\r\n", 400, "control"),
    ],
)
def test_what_could_be_misread_is_refused(wire: bytes, status: int, text: str) -> None:
    """A proxy before us may have read it the other way."""
    with pytest.raises(BadRequestError, match=text) as caught:
        HttpExchange().receive(wire)
    assert caught.value.status == status


def test_a_head_may_fill_its_bound_and_not_a_byte_more() -> None:
    """Whoever never ends a head holds this many bytes and no more."""
    wire = HOST + b"\r\n"
    whole = HttpExchange(len(wire)).receive(wire + b"more")
    assert whole is not None
    assert whole.rest == b"more"
    exchange = HttpExchange(len(wire) - 1)
    for data in (wire, b"", wire):
        with pytest.raises(BadRequestError, match="431: the head has more than"):
            exchange.receive(data)
    assert not exchange._head


def test_an_exchange_has_one_request() -> None:
    """Every answer closes the connection, so a second request would never be answered."""
    exchange = HttpExchange()
    first = exchange.receive((HOST + b"\r\n") * 2)
    assert first is not None
    assert first.rest == HOST + b"\r\n"
    with pytest.raises(BadRequestError, match="more than one request"):
        exchange.receive(first.rest)


@pytest.mark.parametrize("value", [b" " * 8_000, b"a " * 4_000, b" \t" * 3_900 + b"\xff"])
def test_a_value_of_spaces_matches_at_the_first_try(value: bytes) -> None:
    """h11's pattern takes quadratic time for spaces before a control character: 0.3 s for 8 KB, refused before it."""
    request = HttpExchange().receive(HOST + b"x:" + value + b"\r\n\r\n")
    assert request is not None
    assert request.headers["x"] == value.strip(b" \t").decode("latin-1")
    with pytest.raises(BadRequestError, match="control characters"):
        HttpExchange().receive(HOST + b"x:" + value + b"\x0b\r\n\r\n")


@given(wire=WIRES, cuts=st.lists(st.integers(1, 9), min_size=1, max_size=80))
def test_any_bytes_are_a_request_a_refusal_or_need_more_however_they_are_cut(wire: bytes, cuts: list[int]) -> None:
    """The port is open to everybody, and the network cuts where it likes."""
    ends = [0, *accumulate(cuts)]
    chunks = [wire[start:end] for start, end in zip(ends, [*ends[1:], len(wire)], strict=True)]
    assert outcome(chunks) == outcome([wire]) == outcome([bytes((byte,)) for byte in wire])


@given(size=st.integers(0, len(HOST) + 1))
def test_every_proper_prefix_needs_more(size: int) -> None:
    """Half a head is no error and no request."""
    assert HttpExchange().receive((HOST + b"\r\n")[:size]) is None


METHODS = st.sampled_from([b"GET", b"HEAD", b"POST", b"CONNECT", b"OPTIONS"])
FIELDS = st.sampled_from(
    [
        b"Connection: close\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
        b"Content-Length: 9\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Expect: 100-continue\r\n",
        b"Upgrade: h2c\r\n",
    ]
)


@example(method=b"HEAD", version=b"1.1", fields=[b"Transfer-Encoding: chunked\r\n"] * 2)
@given(method=METHODS, version=st.sampled_from([b"1.0", b"1.1", b"2.0"]), fields=st.lists(FIELDS, max_size=3))
def test_whatever_was_asked_can_be_answered(method: bytes, version: bytes, fields: list[bytes]) -> None:
    """A state in which h11 refuses to send would be an error of the server's, made by a stranger."""
    exchange = HttpExchange()
    answer = Answer(status=404, body=b"no\n")
    try:
        exchange.receive(method + b" / HTTP/" + version + b"\r\nHost: a\r\n" + b"".join(fields) + b"\r\n")
    except BadRequestError as error:
        answer = error.answer
    sent = exchange.send(answer)
    assert sent.startswith(b"HTTP/1.1 %d " % answer.status)
    assert sent.partition(b"\r\n\r\n")[2] == (b"" if method == b"HEAD" else answer.body)


@given(wire=WIRES)
def test_whatever_came_can_be_answered(wire: bytes) -> None:
    """The port is open to everybody."""
    exchange, answer = HttpExchange(64), Answer(status=200, body=b"ok\n")
    try:
        exchange.receive(wire)
    except BadRequestError as error:
        answer = error.answer
    bodies = {answer.body, b""} if wire.startswith(b"HEAD ") else {answer.body}
    assert exchange.send(answer).partition(b"\r\n\r\n")[2] in bodies


def test_an_answer_says_how_long_it_is_and_that_it_is_the_last() -> None:
    """The other side need not guess when to stop reading."""
    answer = Answer(status=200, body=b"ok\n", headers=(("X-A", "1"),))
    head, _, body = HttpExchange().send(answer).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 200 OK"
    assert lines[1:] == ["X-A: 1", "Connection: close", "Content-Type: text/plain; charset=utf-8", "Content-Length: 3"]
    assert body == b"ok\n"


def test_answers_without_a_body_say_nothing_of_one() -> None:
    """A 101 is followed by frames, which a length would swallow."""
    exchange = HttpExchange()
    exchange.receive(HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    switching = Answer(status=101, headers=(("Upgrade", "websocket"),))
    assert exchange.send(switching) == b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
    assert HttpExchange().send(Answer(status=204)) == b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
    with pytest.raises(InvalidValueError, match="HTTP answer"):
        HttpExchange().send(Answer(status=204, body=b"x"))


@pytest.mark.parametrize("header", [("A", "x\r\nB: y"), ("A\r\n", "x"), ("A B", "x"), ("", "x"), ("A", "ü")])
def test_no_header_can_be_slipped_into_an_answer(header: tuple[str, str]) -> None:
    """Values may come from a request."""
    with pytest.raises(InvalidValueError, match="HTTP answer"):
        HttpExchange().send(Answer(status=200, headers=(header,)))


def test_a_status_is_one_of_http() -> None:
    """Anything else is a slip of ours."""
    with pytest.raises(InvalidValueError, match="HTTP status: found 999"):
        HttpExchange().send(Answer(status=999))


def test_a_refusal_answers_for_itself() -> None:
    """With its headers, and after a journey between processes too."""
    error = pickle.loads(pickle.dumps(BadRequestError(405, "only GET", (("Allow", "GET"),))))  # noqa: S301 # our own
    assert str(error) == "405: only GET"
    sent = HttpExchange().send(error.answer)
    assert sent.startswith(b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET\r\n")
    assert sent.endswith(b"\r\n\r\nonly GET\n")
