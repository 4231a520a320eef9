"""HTTP: what is read, what is refused and with which status, and what answers look like."""

from __future__ import annotations

import pickle
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.broker.http import BadRequestError, Request, RequestReader, read_response_head, response
from whimbrel.errors import InvalidValueError

HOST = b"GET / HTTP/1.1\r\nHost: a\r\n"
# Pieces that make nearly whole requests out of nothing, so that every branch is met.
PIECES = [HOST, b"GET ", b"/x?y", b" HTTP/1.1", b"\r\n", b"\r", b"\n", b"host: b", b":", b" ", b"\t", b"\x00", b"\xff"]
WIRES = st.binary(max_size=80) | st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join)


def outcome(chunks: list[bytes], *, max_bytes: int = 64) -> Request | tuple[int, str] | None:
    """Return what comes of *chunks*: a request with all that follows it, a refusal, or nothing yet."""
    reader = RequestReader(max_bytes)
    for number, chunk in enumerate(chunks):
        try:
            request = reader.receive(chunk)
        except BadRequestError as error:
            return error.status, error.text
        if request is not None:
            rest = request.rest + b"".join(chunks[number + 1 :])
            return Request(method=request.method, path=request.path, headers=dict(request.headers), rest=rest)
    return None


def test_a_request_is_read() -> None:
    """Names are lower-cased, values trimmed, repeated ones joined, and what follows is handed on."""
    wire = b"GET /a%20b?c=1&d HTTP/1.1\r\nHost: x\r\nX-A:1\r\nx-a: \t2 \r\n\r\n\x82\x00"
    request = RequestReader().receive(wire)
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
        (b"\r\n\r\n", 400, "first line"),
        (b"GET  / HTTP/1.1\r\n\r\n", 400, "first line"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400, "first line"),
        (b"GET / HTTP/1.0\r\n\r\n", 505, r"HTTP/1\.0"),
        (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400, "slash"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "no Host"),
        (HOST + b"host: b\r\n\r\n", 400, "more than one host"),
        (HOST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400, "more than one content-length"),
        (HOST + b"name\r\n\r\n", 400, "line 3 is not a header"),
        (HOST + b"name : x\r\n\r\n", 400, "line 3 is not a header"),
        (HOST + b" folded\r\n\r\n", 400, "line 3 is not a header"),
    ],
)
def test_what_could_be_misread_is_refused(wire: bytes, status: int, text: str) -> None:
    """A proxy before us may have read it the other way."""
    with pytest.raises(BadRequestError, match=text) as caught:
        RequestReader().receive(wire)
    assert caught.value.status == status


def test_a_head_may_fill_its_bound_and_not_a_byte_more() -> None:
    """Whoever never ends a head holds this many bytes and no more."""
    wire = HOST + b"\r\n"
    whole = RequestReader(len(wire)).receive(wire + b"more")
    assert whole is not None
    assert whole.rest == b"more"
    reader = RequestReader(len(wire) - 1)
    for data in (wire, b"", wire):
        with pytest.raises(BadRequestError, match="431: the head has more than"):
            reader.receive(data)
    assert not reader._head


def test_a_reader_reads_one_request_after_another() -> None:
    """What came behind the first is the caller's to give back."""
    reader = RequestReader()
    first = reader.receive((HOST + b"\r\n") * 2)
    assert first is not None
    second = reader.receive(first.rest)
    assert second is not None
    assert second.rest == b""


@given(wire=WIRES, cuts=st.lists(st.integers(1, 9), min_size=1, max_size=80))
def test_any_bytes_are_a_request_a_refusal_or_need_more_however_they_are_cut(wire: bytes, cuts: list[int]) -> None:
    """The port is open to everybody, and the network cuts where it likes."""
    ends = [0, *accumulate(cuts)]
    chunks = [wire[start:end] for start, end in zip(ends, [*ends[1:], len(wire)], strict=True)]
    assert outcome(chunks) == outcome([wire]) == outcome([bytes((byte,)) for byte in wire])


@given(size=st.integers(0, len(HOST) + 1))
def test_every_proper_prefix_needs_more(size: int) -> None:
    """Half a head is no error and no request."""
    assert RequestReader().receive((HOST + b"\r\n")[:size]) is None


def test_an_answer_says_how_long_it_is_and_that_it_is_the_last() -> None:
    """The other side need not guess when to stop reading."""
    head, _, body = response(200, b"ok\n", headers=[("X-A", "1")]).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 200 OK"
    assert lines[1:] == ["X-A: 1", "Connection: close", "Content-Type: text/plain; charset=utf-8", "Content-Length: 3"]
    assert body == b"ok\n"


def test_answers_without_a_body_say_nothing_of_one() -> None:
    """A 101 is followed by frames, which a length would swallow."""
    assert response(101) == b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
    assert response(204) == b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
    with pytest.raises(InvalidValueError, match="body of a 204"):
        response(204, b"x")


@pytest.mark.parametrize("header", [("A", "x\r\nB: y"), ("A\r\n", "x"), ("A B", "x"), ("", "x"), ("A", "ü")])
def test_no_header_can_be_slipped_into_an_answer(header: tuple[str, str]) -> None:
    """Values may come from a request."""
    with pytest.raises(InvalidValueError, match="HTTP header"):
        response(200, headers=[header])


def test_a_status_is_one_of_http() -> None:
    """Anything else is a slip of ours."""
    with pytest.raises(InvalidValueError, match="HTTP status: found 999"):
        response(999)


def test_a_refusal_answers_for_itself() -> None:
    """With its headers, and after a journey between processes too."""
    error = pickle.loads(pickle.dumps(BadRequestError(405, "only GET", (("Allow", "GET"),))))  # noqa: S301 # our own
    assert str(error) == "405: only GET"
    assert error.response().startswith(b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET\r\n")
    assert error.response().endswith(b"\r\n\r\nonly GET\n")


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"abc",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nx",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA\r\n\r\n",
        b"HTTP/1.1 200 \x00\r\n\r\n",
    ],
)
def test_what_is_no_head_of_an_answer_is_refused(head: bytes) -> None:
    """Servers are strangers too."""
    with pytest.raises(InvalidValueError, match="HTTP"):
        read_response_head(head)


def test_the_head_of_our_own_answer_is_read() -> None:
    """Both sides of the house speak alike."""
    head = read_response_head(response(404, headers=[("X-A", "1")]))
    assert (head.status, head.headers["x-a"], head.headers["connection"]) == (404, "1", "close")
