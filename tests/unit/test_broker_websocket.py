"""WebSocket: the handshake of RFC 6455, and each rule of frames that a peer can break."""

from __future__ import annotations

import pickle

import pytest

from whimbrel.broker.shell.net.http import Answer, BadRequestError, HttpExchange, Request
from whimbrel.broker.shell.net.websocket import CloseCode, Framing, WebSocketError, accept, accept_key
from whimbrel.errors import InvalidValueError

KEY_TEXT = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT_TEXT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
ZERO = b"\0\0\0\0"
"""A mask that changes nothing, so that frames can be written by hand."""
MAX = 1000


def a_request(method: str = "GET", **changes: str | None) -> Request:
    """Return a request for a WebSocket with the *changes*; a header that is ``None`` is left out."""
    headers: dict[str, str | None] = {
        "upgrade": "WebSocket",
        "connection": "keep-alive, Upgrade",
        "sec_websocket_version": "13",
        "sec_websocket_key": KEY_TEXT,
        **changes,
    }
    found = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
    return Request(method=method, path="/mqtt", headers=found)


def a_server() -> Framing:
    """Return a server's end."""
    return Framing(max_frame_bytes=MAX)


def subprotocol(answer: Answer) -> str | None:
    """Return the subprotocol that *answer* chose."""
    assert answer.status == 101
    return dict(answer.headers).get("Sec-WebSocket-Protocol")


def test_the_example_of_the_rfc() -> None:
    """Section 1.3 gives one key and its answer."""
    assert accept_key(KEY_TEXT) == ACCEPT_TEXT


def test_a_request_is_accepted_with_the_proof_that_it_was_read() -> None:
    """As it goes over the wire; what comes behind the request is the first frame."""
    lines = ["GET /mqtt HTTP/1.1", "Host: broker:8080", "Upgrade: websocket", "Connection: Upgrade"]
    lines += [f"Sec-WebSocket-Key: {KEY_TEXT}", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Protocol: mqtt", "", "\x82"]
    exchange = HttpExchange()
    request = exchange.receive("\r\n".join(lines).encode("latin-1"))
    assert request is not None
    assert request.rest == b"\x82"
    assert exchange.send(accept(request)).split(b"\r\n") == [
        b"HTTP/1.1 101 Switching Protocols",
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        f"Sec-WebSocket-Accept: {ACCEPT_TEXT}".encode(),
        b"Sec-WebSocket-Protocol: mqtt",
        b"",
        b"",
    ]


@pytest.mark.parametrize(
    ("offered", "chosen"), [("mqtt", "mqtt"), ("mqttv3.1", "mqttv3.1"), ("chat,mqttv3.1 ,\tmqtt", "mqtt")]
)
def test_mqtt_is_chosen_from_what_is_offered(offered: str, chosen: str) -> None:
    """A client must fail a connection whose subprotocol it did not offer."""
    assert subprotocol(accept(a_request(sec_websocket_protocol=offered))) == chosen


def test_who_offers_nothing_is_told_nothing() -> None:
    """An unasked subprotocol would end the connection at the client."""
    assert subprotocol(accept(a_request())) is None


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        (a_request("POST"), 405, "GET"),
        (a_request(upgrade=None), 426, "WebSocket only"),
        (a_request(upgrade="h2c"), 426, "WebSocket only"),
        (a_request(connection="keep-alive"), 400, "Connection"),
        (a_request(content_length="5"), 400, "no body"),
        (a_request(transfer_encoding="chunked"), 400, "no body"),
        (a_request(sec_websocket_version=None), 426, "version"),
        (a_request(sec_websocket_version="8"), 426, "version"),
        (a_request(sec_websocket_key=None), 400, "Key"),
        (a_request(sec_websocket_key="dGhlIHNhbXBsZQ=="), 400, "Key"),
        (a_request(sec_websocket_key="ü" * 24), 400, "Key"),
        (a_request(sec_websocket_key=f"{KEY_TEXT}, {KEY_TEXT}"), 400, "Key"),
        (a_request(sec_websocket_protocol="chat, MQTT"), 400, "mqtt"),
        (a_request(sec_websocket_protocol=""), 400, "mqtt"),
    ],
)
def test_a_request_that_opens_no_websocket_is_refused(request_: Request, status: int, text: str) -> None:
    """With a status and a sentence that say what to change."""
    with pytest.raises(BadRequestError, match=text) as caught:
        accept(request_)
    assert caught.value.status == status


def test_a_wrong_version_is_told_the_right_one() -> None:
    """RFC 6455, 4.4: the client may try again with it."""
    with pytest.raises(BadRequestError) as caught:
        accept(a_request(sec_websocket_version="8"))
    assert ("Sec-WebSocket-Version", "13") in caught.value.answer.headers


@pytest.mark.parametrize(
    ("frame", "code", "text"),
    [
        (b"\xc2", 1002, "reserved"),
        (b"\x92", 1002, "reserved"),
        (b"\xa2", 1002, "reserved"),
        (b"\x83", 1002, "opcode 3"),
        (b"\x8b", 1002, "opcode 11"),
        (b"\x81", 1003, "text"),
        (b"\x80", 1002, "continuation of nothing"),
        (b"\x02\x80" + ZERO + b"\x82", 1002, "within another"),
        (b"\x09", 1002, "in fragments"),
        (b"\x82\x00", 1002, "without a mask"),
        (b"\x89\xfe", 1002, "more than 125"),
        (b"\x88\xff", 1002, "more than 125"),
        (b"\x82\xfe\x03\xe9", 1009, "1001 bytes, allowed are 1000"),
        (b"\x82\xff" + b"\xff" * 8, 1009, "allowed are 1000"),
        (b"\x88\x81" + ZERO + b"\x03", 1002, "code"),
        (b"\x88\x82" + ZERO + b"\x03\xed", 1002, "code"),
        (b"\x88\x82" + ZERO + b"\x07\xd0", 1002, "code"),
        (b"\x88\x83" + ZERO + b"\x03\xe8\xff", 1007, "UTF-8"),
    ],
)
def test_a_broken_rule_ends_the_connection(frame: bytes, code: int, text: str) -> None:
    """At the first byte that shows it, after what was good, with a close frame that says why."""
    server = a_server()
    good = b"\x82\x81" + ZERO + b"x"
    assert server.receive(good + frame) == b"x"
    assert server.closed
    assert server.failure is not None
    assert server.failure.code == code
    assert text in str(server.failure)
    sent = server.to_send()
    assert sent == bytes((0x88, len(sent) - 2)) + code.to_bytes(2, "big") + server.failure.reason.encode()
    assert (server.receive(good), server.to_send(), server.wrap(b"y"), server.close()) == (b"", b"", b"", b"")


def test_a_length_need_not_be_the_shortest() -> None:
    """Clients that always send eight bytes of length exist."""
    assert a_server().receive(b"\x82\xff" + (1).to_bytes(8, "big") + ZERO + b"x") == b"x"
    assert a_server().receive(b"\x82\xfe\x00\x01" + ZERO + b"x") == b"x"


def test_a_long_frame_is_given_out_before_it_is_whole() -> None:
    """Nothing of it is kept: the limits on MQTT's packets are MQTT's to keep."""
    server = a_server()
    assert server.receive(b"\x82\xfe\x03\xe8\x01\x02\x03\x04" + b"\x01\x02\x03") == ZERO[:3]
    assert server.receive(b"\x04\x01") == ZERO[:2]
    assert server._incomplete == b""


def test_a_ping_is_answered_even_within_a_message() -> None:
    """Proxies and browsers ask, and hang up on silence."""
    server = a_server()
    wire = b"\x02\x81" + ZERO + b"a" + b"\x89\x82\x01\x02\x03\x04" + b"\x01\x02" + b"\x80\x81" + ZERO + b"b"
    assert server.receive(wire) == b"ab"
    assert [server.to_send(), server.to_send()] == [b"\x8a\x02\0\0", b""]


def test_of_many_pings_the_latest_is_answered() -> None:
    """RFC 6455, 5.5.3 allows it, and a flood of pings costs nothing."""
    server = a_server()
    server.receive((b"\x89\x81" + ZERO + b"a") * 1000 + b"\x89\x81\x01\x02\x03\x04" + bytes((ord("b") ^ 1,)))
    assert (server.to_send(), server.to_send(), server.frames) == (b"\x8a\x01b", b"", 1_001)


def test_an_unasked_pong_is_nothing() -> None:
    """RFC 6455, 5.5.3: it is a heartbeat of one direction."""
    server = a_server()
    assert (server.receive(b"\x8a\x80" + ZERO), server.to_send(), server.closed) == (b"", b"", False)


@pytest.mark.parametrize(
    ("payload", "code", "echo"),
    [(b"", 1005, b""), (b"\x03\xe9bye", 1001, b"\x03\xe9"), (b"\x0f\xa0", 4000, b"\x0f\xa0")],
)
def test_a_close_is_echoed_and_is_the_end(payload: bytes, code: int, echo: bytes) -> None:
    """What follows it is not read; no code is answered with none."""
    server = a_server()
    assert server.receive(bytes((0x88, 0x80 | len(payload))) + ZERO + payload + b"\xff") == b""
    assert (server.closed, server.failure, server.peer_code) == (True, None, code)
    assert server.to_send() == bytes((0x88, len(echo))) + echo


def test_who_closes_first_hears_the_echo_and_says_no_more() -> None:
    """Two close frames end a connection, never three; what was on its way is still read."""
    server = a_server()
    assert server.close(CloseCode.GOING_AWAY) == b"\x88\x02\x03\xe9"
    assert (server.close(), server.wrap(b"late"), server.closed) == (b"", b"", False)
    assert server.receive(b"\x82\x81" + ZERO + b"x" + b"\x88\x82" + ZERO + b"\x03\xe9") == b"x"
    assert (server.closed, server.to_send()) == (True, b"")


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 2000, 5000])
def test_codes_for_local_use_are_not_sent(code: int) -> None:
    """The peer would have to fail the connection."""
    with pytest.raises(InvalidValueError, match="close code"):
        a_server().close(code)


@pytest.mark.parametrize(
    ("size", "head"), [(125, b"\x82\x7d"), (126, b"\x82\x7e\x00\x7e"), (65_535, b"\x82\x7e\xff\xff")]
)
def test_a_frame_has_the_shortest_length(size: int, head: bytes) -> None:
    """RFC 6455, 5.2 wants it of senders."""
    assert a_server().wrap(bytes(size)) == head + bytes(size)
    assert a_server().wrap(bytes(65_536))[:10] == b"\x82\x7f" + (65_536).to_bytes(8, "big")


@pytest.mark.parametrize("size", [0, 1, 4, 125, 126, 511, 512, 1_000])
def test_frames_are_counted(size: int) -> None:
    """Also those that carry nothing: the server bounds how many are read in one turn."""
    server = a_server()
    frame = b"\x82\xfe" + size.to_bytes(2, "big") + b"\x01\x02\x03\x04" + bytes(size)
    assert len(server.receive(frame * 3 + frame[:8])) == 3 * size
    assert server.frames == 4
    server.receive(frame[8:])
    assert server.frames == 4


def test_the_bound_admits_control_frames() -> None:
    """They are not negotiable."""
    with pytest.raises(InvalidValueError, match="max_frame_bytes"):
        Framing(max_frame_bytes=124)


def test_errors_survive_pickling() -> None:
    """They cross processes in tests and benchmarks."""
    error = WebSocketError(CloseCode.TOO_BIG, "x")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 # our own


@pytest.mark.parametrize(
    ("origin", "host", "origins", "is_allowed"),
    [
        ("http://example.org", "example.org", "", True),
        ("https://Example.ORG:8443", "example.org:8083", "", True),
        ("http://[::1]:80", "[::1]:8083", "", True),
        ("http://example.org", "example.com", "", False),
        ("http://example.org.evil.com", "example.org", "", False),
        ("http://example.org@evil.com", "example.org", "", False),
        ("http://evil.com/example.org", "example.org", "", False),
        ("http://evil.com, http://example.org", "example.org", "", False),
        ("file://", "example.org", "", False),
        ("null", "null", "", False),
        ("", "example.org", "", False),
        ("app://example.org", "example.org", "", False),
        ("https://a.org", "b.org", "https://c.org https://a.org", True),
        ("https://a.org:8443", "b.org", "https://a.org", False),
        ("https://b.org", "b.org", "https://a.org", False),
        ("null", "b.org", "null", True),
        ("anything", "b.org", "*", True),
    ],
)
def test_a_page_connects_from_the_same_host_or_from_an_origin_that_may(
    origin: str, host: str, origins: str, *, is_allowed: bool
) -> None:
    """A browser says which page asks; a broker that does not look lets every page in, as whoever reads it."""
    request = a_request(origin=origin, host=host)
    if is_allowed:
        assert accept(request, origins=origins).status == 101
    else:
        with pytest.raises(BadRequestError, match="403"):
            accept(request, origins=origins)


@pytest.mark.parametrize("origins", ["", "*", "https://a.org", "http://a.org:80 https://b.org null"])
def test_a_program_has_no_origin_and_may_always_connect(origins: str) -> None:
    """It could send whatever it likes."""
    assert accept(a_request(), origins=origins).status == 101
