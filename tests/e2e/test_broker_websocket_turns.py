"""How many frames of WebSocket one turn of the event loop reads, counted in a server of this process.

A client chooses how many frames a packet takes. An event loop reads 256 KB at a time, and uvloop up to 32 times in a
row from one connection: in frames of one byte that was a million frames, and 1.8 s, before any other client's turn.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from pathlib import Path

import pytest
from tests.e2e.server_here import serve_here
from websockets.frames import Frame, Opcode

from whimbrel.broker.shell.net.websocket import Framing
from whimbrel.broker.shell.server import Server
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V311, Connect, Pingreq, Publish

SMALL_READ, LARGE_READ = 8_192 // 6, 65_536 // 6
"""How many frames a read has at most where frames are small, and where they were large so far: a head has six bytes."""
LATE_READ = 1_024 // 6
"""And where the turn has many frames already."""
TURN = 262_144 // 256
"""How many frames end a client's turn."""
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def _frame(data: bytes) -> bytes:
    return Frame(Opcode.BINARY, data).serialize(mask=True)


def _attack(port: int, name: str, wire: bytes) -> bytes:
    """Send *wire* behind a CONNECT, and a ping in the end; return all answers but the handshake's."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as link:
        link.sendall(UPGRADE + _frame(encode(Connect(name, version=V311), V311)) + wire)
        link.sendall(_frame(encode(Pingreq(), V311)))
        answers = b""
        while not answers.endswith(b"\xd0\x00"):
            more = link.recv(4_096)
            assert more, answers
            answers += more
    return answers.partition(b"\r\n\r\n")[2]


def _frames_a_turn(folder: Path, wire: bytes, patch: pytest.MonkeyPatch, links: int = 1) -> Counter[int]:
    """Return how many frames each turn read until *wire* was, on each of some links."""
    turn, counted, receive = 0, Counter[int](), Framing.receive

    def counting(framing: Framing, data: bytes) -> bytes:
        before = framing.frames
        carried = receive(framing, data)
        counted[turn] += framing.frames - before
        return carried

    async def attack(server: Server) -> None:
        loop = asyncio.get_running_loop()

        def next_turn() -> None:
            nonlocal turn
            turn += 1
            if not server.is_closed:
                loop.call_soon(next_turn)

        next_turn()
        attacks = (asyncio.to_thread(_attack, server.ports["ws"], f"attacker-{n}", wire) for n in range(links))
        for answers in await asyncio.gather(*attacks):
            assert b"\x20\x02\x00\x00" in answers, "CONNACK"

    patch.setattr(Framing, "receive", counting)
    serve_here(folder, attack, is_uvloop=folder.name == "uvloop")
    return counted


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("size", [0, 1, 20])
def test_a_turn_reads_so_many_frames_of_a_client_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str, size: int
) -> None:
    """Others have their turn in between, and the rest waits in the kernel, where the client has to wait for it."""
    stream = encode(Publish("w/s", bytes(64)), V311) * 400
    wire = (
        b"".join(_frame(stream[at : at + size]) for at in range(0, len(stream), size)) if size else _frame(b"") * 9_000
    )
    counted = _frames_a_turn(tmp_path / loop, wire, monkeypatch)
    assert sum(counted.values()) == (len(stream) // size if size else 9_000) + 2
    assert max(counted.values()) <= TURN + SMALL_READ


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_many_clients_together_get_little_more_than_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    """Else a hundred connections would make a turn a hundred times as long."""
    links = 6
    counted = _frames_a_turn(tmp_path / loop, _frame(b"") * 20_000, monkeypatch, links)
    assert sum(counted.values()) == links * 20_002
    assert max(counted.values()) <= TURN + SMALL_READ + (links - 1) * LATE_READ


def test_small_frames_behind_large_ones_are_read_as_one_large_read_and_then_in_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large frames are worth large reads; a client that goes on with small ones gets no second one."""
    wire = (_frame(encode(Publish("w/s", bytes(150_000)), V311)) + _frame(b"") * 20_000) * 3
    counted = _frames_a_turn(tmp_path / "uvloop", wire, monkeypatch)
    assert sum(counted.values()) == 3 * 20_001 + 2
    assert max(counted.values()) <= TURN + LARGE_READ
    assert sum(frames > TURN + SMALL_READ for frames in counted.values()) <= 3
