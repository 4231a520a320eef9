"""How many bytes one sync of the log writes: who waits for it, waits for all of them.

A client that floods the broker with large messages of QoS 0 is not read from while much waits for the disk. With 16 MiB
of it a sync took 70 ms, and every publication of QoS 1 waited for one or two.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from tests.e2e.server_here import serve_here

from whimbrel.broker.shell.server import Server
from whimbrel.log.writer import LogWriter
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V311, Connect, Pingreq, Publish

MIB = 1 << 20
LINKS, MESSAGES = 4, 12
MOST = 2 * 4 * MIB + LINKS * MIB
"""What may wait before a sync begins, as much again while it goes on, and the rest of a message from each client."""


def _flood(port: int, name: str) -> None:
    """Publish megabytes, and wait until they were read."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as link:
        link.sendall(encode(Connect(name, version=V311), V311))
        packet = encode(Publish("large", bytes(MIB - 100)), V311)
        for _ in range(MESSAGES):
            link.sendall(packet)
        link.sendall(encode(Pingreq(), V311))
        answers = b""
        while not answers.endswith(b"\xd0\x00"):
            answers += link.recv(100)


def test_a_sync_writes_so_many_bytes_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-pressure is what keeps it short: a client that is ahead of the disk waits."""
    write, written = LogWriter._write, list[int]()

    def counting(log: LogWriter, data: bytes, *arguments: object, **options: object) -> None:
        written.append(len(data))
        write(log, data, *arguments, **options)  # type: ignore[arg-type]  # as it was called

    async def flood(server: Server) -> None:
        floods = (asyncio.to_thread(_flood, server.ports["mqtt"], f"client-{number}") for number in range(LINKS))
        await asyncio.gather(*floods)

    monkeypatch.setattr(LogWriter, "_write", counting)
    serve_here(tmp_path, flood)
    assert sum(written) > LINKS * MESSAGES * (MIB - 100)
    assert max(written) <= MOST
