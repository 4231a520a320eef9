"""WebSocket: a stream goes through frames unchanged, and any bytes give chunks or a failure."""

from __future__ import annotations

import random
import struct
from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st

from whimbrel.broker.shell.net.websocket import Framing

MAX = 100_000
MASKS = st.binary(min_size=4, max_size=4)
SMALL = st.binary(max_size=300)
LARGE = st.builds(lambda seed, size: random.Random(seed).randbytes(size), st.integers(0, 99), st.integers(0, 70_000))
PAYLOADS = SMALL | LARGE
# Heads that are nearly right, so that bytes get past the first rule.
HEADS = st.sampled_from(
    [b"\x82\x81", b"\x02\x83", b"\x00\x82", b"\x80\xfe\x00\x05", b"\x89\x82", b"\x88\x80", b"\x8a\x85"]
)
WIRES = st.binary(max_size=60) | st.lists(HEADS | st.binary(max_size=9), max_size=12).map(b"".join)


def naive_mask(payload: bytes, key: bytes) -> bytes:
    """Mask in the RFC's own words (5.3): byte i is XORed with byte i modulo 4 of the key."""
    return bytes(byte ^ over for byte, over in zip(payload, cycle(key), strict=False))


def naive_frame(first: int, payload: bytes, key: bytes, width: int) -> bytes:
    """Return a client's frame whose length takes 0, 2 or 8 further bytes, or more if it must."""
    size = len(payload)
    if width == 0 and size < 126:
        head = struct.pack(">BB", first, 0x80 | size)
    elif width <= 2 and size < 65_536:
        head = struct.pack(">BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", first, 0x80 | 127, size)
    return head + key + naive_mask(payload, key)


@st.composite
def frames(draw: st.DrawFn) -> list[tuple[bytes, bytes]]:
    """Draw messages in fragments, with pings and pongs anywhere: the payload each frame adds, and the frame."""
    drawn: list[tuple[bytes, bytes]] = []
    is_final = True
    for _ in range(draw(st.integers(1, 6))):
        key, width = draw(MASKS), draw(st.sampled_from([0, 2, 8]))
        if draw(st.booleans()):
            drawn.append((b"", naive_frame(draw(st.sampled_from([0x89, 0x8A])), draw(st.binary(max_size=125)), key, 0)))
        payload, opcode = draw(PAYLOADS), 2 if is_final else 0
        is_final = draw(st.booleans())
        drawn.append((payload, naive_frame(opcode | (0x80 if is_final else 0), payload, key, width)))
    return drawn


def cut(wire: bytes, seed: int) -> list[bytes]:
    """Return *wire* in pieces of one byte to many."""
    rng, pieces, at = random.Random(seed), [], 0
    while at < len(wire):
        size = rng.choice([1, 2, 3, 7, 100, 5_000, 100_000])
        pieces.append(wire[at : at + size])
        at += size
    return pieces


def a_server() -> Framing:
    """Return a server's end."""
    return Framing(max_frame_bytes=MAX)


def received(framing: Framing, pieces: list[bytes]) -> bytes:
    """Return what *framing* gives out for *pieces*, joined."""
    return b"".join(framing.receive(piece) for piece in pieces)


@given(drawn=frames(), seed=st.integers())
def test_a_stream_survives_any_frames_masks_and_cuts(drawn: list[tuple[bytes, bytes]], seed: int) -> None:
    """MQTT sees the bytes its peer wrote, whatever libraries and networks make of them."""
    server = a_server()
    wire = b"".join(frame for _, frame in drawn)
    assert received(server, cut(wire, seed)) == b"".join(payload for payload, _ in drawn)
    assert (server.closed, server.failure) == (False, None)


@given(drawn=frames(), data=st.data())
def test_every_proper_prefix_gives_what_came_and_needs_more(
    drawn: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    """A connection that breaks off is no error of the peer, and no byte is made up."""
    server = a_server()
    wire = b"".join(frame for _, frame in drawn)
    at = data.draw(st.integers(0, len(wire) - 1))
    first = received(server, [wire[:at]])
    assert (server.closed, server.failure, len(server._incomplete) < 140) == (False, None, True)
    assert first + received(server, [wire[at:]]) == b"".join(payload for payload, _ in drawn)


@given(wire=WIRES, seed=st.integers())
def test_any_bytes_give_chunks_or_a_failure_however_they_are_cut(wire: bytes, seed: int) -> None:
    """The port is open to everybody; nothing else may escape."""
    results = []
    for pieces in ([wire], [bytes((byte,)) for byte in wire], cut(wire, seed)):
        framing = a_server()
        got = received(framing, pieces)
        assert framing.closed or framing.failure is None
        results.append((got, str(framing.failure), framing.peer_code, framing.closed, framing.to_send()))
    assert results[0] == results[1] == results[2]
