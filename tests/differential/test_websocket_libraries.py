"""Our frames and handshakes beside those of ``websockets`` and ``wsproto``: the same bytes, the same stream and end.

Rule: where a library differs, the difference is one of those below, each with its reason; nothing else may differ.

- Text is read by libraries; MQTT is binary, and we refuse it at its head (MQTT 5.0, 6.0.0-1).
- ``wsproto`` refuses a length that is not the shortest; RFC 6455, 5.2 wants that of senders, and clients break it.
- ``websockets`` refuses a close frame within a message that goes on in fragments; RFC 6455, 5.4 lets control frames
  come in between.
- ``wsproto`` has no close code 1014, which was registered after it; ``websockets`` has.
- A frame may be judged at its first byte, at its head, or when it is whole: of what comes behind a failure nothing
  counts, and how much of the failing frame was given out does not either.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request as LibraryRequest
from websockets.http11 import Response as LibraryResponse
from websockets.protocol import CLIENT, SERVER, Protocol, State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, TextMessage

from whimbrel.broker.shell.net.http import BadRequestError, HttpExchange, Request
from whimbrel.broker.shell.net.websocket import SUBPROTOCOLS, Framing, accept

MAX = 2_000
_FINAL = 0x80


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    """Let the library not log what strangers send."""
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("websockets").setLevel(logging.NOTSET)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What comes of a stream of frames: what was carried, and the code of the close frame that ended it."""

    carried: bytes
    code: int | None


def ours(wire: bytes) -> Outcome:
    """Return what our frames make of *wire*."""
    framing = Framing(max_frame_bytes=MAX)
    carried = framing.receive(wire)
    code = framing.peer_code if framing.failure is None else framing.failure.code
    return Outcome(carried, code)


def of_websockets(wire: bytes) -> Outcome:
    """Return what ``websockets`` makes of *wire*."""
    protocol = Protocol(SERVER, max_size=None)
    protocol.receive_data(wire)
    events = [event for event in protocol.events_received() if isinstance(event, Frame)]
    carried = b"".join(event.data for event in events if event.opcode in {Opcode.BINARY, Opcode.CONT})
    if protocol.state is State.OPEN:
        return Outcome(carried, None)
    if protocol.parser_exc is None:
        assert protocol.close_rcvd is not None
        return Outcome(carried, protocol.close_rcvd.code)
    assert protocol.close_sent is not None
    return Outcome(carried, protocol.close_sent.code)


def of_wsproto(wire: bytes) -> Outcome:
    """Return what ``wsproto`` makes of *wire*."""
    connection, carried, code = Connection(ConnectionType.SERVER), b"", None
    connection.receive_data(wire)
    for event in connection.events():
        assert not isinstance(event, TextMessage)
        if isinstance(event, BytesMessage):
            carried += event.data
        elif isinstance(event, CloseConnection):
            code = int(event.code)
    return Outcome(carried, code)


# -- frames ------------------------------------------------------------------------------------------------------------

SIZES = st.sampled_from([0, 1, 3, 4, 5, 124, 125, 126, 127, 300, 511, 512, 513, 1_999, 2_000])
CODES = (1000, 1001, 1003, 1007, 1011, 3000, 4999)
"""Close codes that a client may send."""
CLOSES = st.one_of(
    st.just(b""),
    st.binary(min_size=1, max_size=1),
    # Not both a code and a reason that are wrong: libraries differ in which of them they find first.
    st.builds(
        lambda code, reason: struct.pack(">H", code) + reason.encode(), st.integers(990, 5_010), st.text(max_size=2)
    ),
    st.builds(lambda code, reason: struct.pack(">H", code) + reason, st.sampled_from(CODES), st.binary(max_size=8)),
    st.just(b"\x03\xe8bye"),
)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Draw a client's frame that may break any rule but those in which libraries differ."""
    opcode = draw(st.sampled_from([2, 2, 2, 0, 0, 8, 9, 10, 3, 11]))
    first = opcode | (_FINAL if draw(st.integers(0, 3)) else 0)
    if not draw(st.integers(0, 15)):
        first |= draw(st.sampled_from([0x10, 0x20, 0x40]))
    payload = draw(CLOSES) if opcode == 8 else bytes(draw(st.sampled_from([0, 1, 125])) if opcode > 8 else draw(SIZES))
    size, key = len(payload), draw(st.binary(min_size=4, max_size=4))
    mask = _FINAL if draw(st.integers(0, 15)) else 0
    head = bytes((first, mask | size)) if size < 126 else bytes((first, mask | 126)) + struct.pack(">H", size)
    if not mask:
        return head + payload
    over = key * (size // 4 + 1)
    return head + key + bytes(byte ^ other for byte, other in zip(payload, over, strict=False))


def differs_by_design(wire: list[bytes], end: Outcome) -> bool:
    """Tell whether libraries differ about *wire*, for a reason of the table above."""
    return end.code == 1014 or any(frame[0] & 0x0F == 8 for frame in wire[:-1])


def is_prefix(one: bytes, other: bytes) -> bool:
    """Tell whether one of both is the beginning of the other."""
    return one.startswith(other) or other.startswith(one)


@given(wire=st.lists(frames(), min_size=1, max_size=8))
def test_any_frames_end_alike_and_carry_the_same(wire: list[bytes]) -> None:
    """An attacker looks for the frame that two readers read differently."""
    found = ours(b"".join(wire))
    assume(not differs_by_design(wire, found))
    reference = of_wsproto(b"".join(wire))
    assert (found.code, is_prefix(found.carried, reference.carried)) == (reference.code, True)
    assume(not is_closed_within_message(wire))
    reference = of_websockets(b"".join(wire))
    assert (found.code, is_prefix(found.carried, reference.carried)) == (reference.code, True)
    if found.code is None:
        assert found.carried == reference.carried == of_wsproto(b"".join(wire)).carried


def is_closed_within_message(wire: list[bytes]) -> bool:
    """Tell whether the last frame closes while a message goes on."""
    data = [frame[0] for frame in wire if frame[0] & 0x0F in {0, 2}]
    return wire[-1][0] & 0x0F == 8 and bool(data) and not data[-1] & _FINAL


@given(payloads=st.lists(st.binary(max_size=700), max_size=12), data=st.data())
def test_a_stream_of_the_library_comes_out_as_it_went_in(payloads: list[bytes], data: st.DataObject) -> None:
    """Masks are the library's own, and each message is in as many fragments as it likes."""
    client = Protocol(CLIENT)
    for payload in payloads:
        cut = data.draw(st.integers(0, len(payload)))
        if data.draw(st.booleans()):
            client.send_binary(payload)
        else:
            client.send_binary(payload[:cut], fin=False)
            client.send_ping(b"between")
            client.send_continuation(payload[cut:], fin=True)
    server = Framing(max_frame_bytes=MAX)
    assert b"".join(map(server.receive, client.data_to_send())) == b"".join(payloads)
    assert not server.closed


@given(payloads=st.lists(st.binary(max_size=70_000), max_size=4))
def test_the_library_reads_what_we_send(payloads: list[bytes]) -> None:
    """Frames, the pong and the close frame, which it answers."""
    server, client = Framing(max_frame_bytes=MAX), Protocol(CLIENT)
    client.receive_data(b"".join(map(server.wrap, payloads)))
    assert [event.data for event in client.events_received() if isinstance(event, Frame)] == payloads
    client.send_ping(b"there?")
    assert server.receive(b"".join(client.data_to_send())) == b""
    client.receive_data(server.to_send() + server.close())
    pong = next(event for event in client.events_received() if isinstance(event, Frame))
    assert (pong.opcode, pong.data) == (Opcode.PONG, b"there?")
    assert server.receive(b"".join(client.data_to_send())) == b""
    assert (server.closed, server.peer_code, server.failure) == (True, 1_000, None)


# -- handshakes --------------------------------------------------------------------------------------------------------

RIGHT = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
CHANGES = [
    *(("Upgrade", value) for value in (None, "WebSocket", "h2c", "h2c, websocket", "")),
    *(("Connection", value) for value in (None, "keep-alive, upgrade", "close", "")),
    *(("Sec-WebSocket-Version", value) for value in (None, "8", "13, 8")),
    *(("Sec-WebSocket-Key", value) for value in (None, "dGhlIHNhbXBsZSBub25j", "dGhlIHNhbXBsZQ==", "%%%", "")),
    *(("Sec-WebSocket-Protocol", value) for value in ("mqtt", "mqttv3.1", "chat, mqtt", "chat", "")),
]


def the_library_accepts(headers: dict[str, str]) -> tuple[int, str | None]:
    """Return the status and subprotocol with which ``websockets`` answers, which needs one if it is told of some."""
    spoken = [Subprotocol(each) for each in SUBPROTOCOLS] if "Sec-WebSocket-Protocol" in headers else None
    answer = ServerProtocol(subprotocols=spoken).accept(LibraryRequest("/mqtt", Headers(headers)))
    return answer.status_code, answer.headers.get("Sec-WebSocket-Protocol")


def we_accept(headers: dict[str, str]) -> tuple[int, str | None]:
    """Return the status and subprotocol with which we answer."""
    lower = {name.lower(): value for name, value in headers.items()}
    try:
        answer = accept(Request(method="GET", path="/mqtt", headers=lower))
    except BadRequestError as error:
        return error.status, None
    return answer.status, dict(answer.headers).get("Sec-WebSocket-Protocol")


@given(changes=st.lists(st.sampled_from(CHANGES), max_size=3))
def test_a_handshake_is_accepted_by_both_or_by_neither(changes: list[tuple[str, str | None]]) -> None:
    """And with the same subprotocol; why it is refused may be said otherwise."""
    changed: dict[str, str | None] = {**RIGHT, **dict(changes)}
    assume(changed["Upgrade"] != "h2c, websocket")  # the library wants one only, and RFC 6455, 4.2.1 does not
    headers = {name: value for name, value in changed.items() if value is not None}
    found, reference = we_accept(headers), the_library_accepts(headers)
    assert found == reference if 101 in {found[0], reference[0]} else {found[0], reference[0]} <= {400, 426}


@pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
def test_a_client_of_the_library_believes_our_answer(subprotocol: str) -> None:
    """Over the wire, through h11 on our side."""
    client = ClientProtocol(parse_uri("ws://broker:8083/mqtt"), subprotocols=[Subprotocol(subprotocol)])
    client.send_request(client.connect())
    exchange = HttpExchange()
    request = exchange.receive(b"".join(client.data_to_send()))
    assert request is not None
    client.receive_data(exchange.send(accept(request)))
    (answer,) = client.events_received()
    assert isinstance(answer, LibraryResponse)
    assert (client.state, client.subprotocol) == (State.OPEN, subprotocol)
