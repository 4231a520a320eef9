"""A broker listens before it has restored what is stored: clients are told to come again, and then served."""

from __future__ import annotations

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
import uvloop
from structlog.testing import capture_logs
from tests.e2e.raw_client import P, RawClient
from websockets.sync.client import connect as connect_web
from websockets.typing import Subprotocol

from whimbrel.broker.settings.config import Config, ListenSettings, NodeSettings
from whimbrel.broker.shell.disk.storage import Storage
from whimbrel.broker.shell.operate.asking import ask_broker
from whimbrel.broker.shell.operate.status_text import status_text
from whimbrel.broker.shell.server import Server

UNAVAILABLE = 0x88
LONG_S = 30.0
"""How long a test waits at most; only a failing one does."""
CONNECT = b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x02me"


@pytest.fixture
def may_restore(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hold back every restore until the event is set."""
    may_restore, restore = threading.Event(), Storage.restore

    def wait(storage: Storage, *args: Any, **options: Any) -> object:
        assert may_restore.wait(LONG_S)
        return restore(storage, *args, **options)

    monkeypatch.setattr(Storage, "restore", wait)
    return may_restore


def _serve(folder: Path, act: Callable[[Server, asyncio.Task[bool]], Awaitable[object]]) -> list[str]:
    """Start a server, act while it restores, and stop it; return what it logged."""
    listen = ListenSettings(host="127.0.0.1", port=0, ws_port=0, http_port=0)

    async def serve() -> None:
        server = Server(replace(Config(), node=NodeSettings(data=str(folder)), listen=listen))
        starting = asyncio.create_task(server.start())
        try:
            async with asyncio.timeout(LONG_S):
                while len(server.ports) < 3:  # noqa: ASYNC110 # a few turns, until the ports are open
                    await asyncio.sleep(0)
                await act(server, starting)
            server.stop()
            await server.serve()
        finally:
            server.close()

    structlog.reset_defaults()
    with capture_logs() as lines, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
    return [str(line["event"]) for line in lines]


def _refusals(ports: dict[str, int], folder: Path) -> None:
    """Ask on every port."""
    for version in (5, 4):
        with RawClient(ports["mqtt"], version=version) as client:
            refusal = client.connect("early")
            assert refusal.code == (UNAVAILABLE if version == 5 else 3)
            assert version == 4 or "being restored" in str(dict(refusal.properties)[P.REASON_STRING])
            assert client.is_closed()
    with RawClient(ports["mqtt"]) as silly:
        silly.send(b"\xc0\x00")  # PINGREQ before CONNECT
        assert silly.is_closed()
    with connect_web(f"ws://127.0.0.1:{ports['ws']}", subprotocols=[Subprotocol("mqtt")]) as web:
        web.send(CONNECT)
        answer = web.recv(LONG_S)
        assert isinstance(answer, bytes)
        assert (answer[0], answer[3]) == (0x20, UNAVAILABLE)
    for path in ("healthz", "metrics"):
        with pytest.raises(urllib.error.HTTPError) as found:
            urllib.request.urlopen(f"http://127.0.0.1:{ports['http']}/{path}")
        assert found.value.code == 503
        assert found.value.read().startswith(b"starting: the stored sessions are being restored")
    status = ask_broker(folder, "status")["status"]
    assert isinstance(status, dict)
    assert "starting     the stored sessions are being restored" in status_text(status)
    refused = ask_broker(folder, "reload")
    assert not refused["ok"]
    assert "being restored" in str(refused["reason"])


def test_clients_are_told_to_come_again_and_then_served(tmp_path: Path, may_restore: threading.Event) -> None:
    """A broker with many sessions is not "connection refused" for half a minute, and never "session not present"."""

    async def ask(server: Server, starting: asyncio.Task[bool]) -> None:
        await asyncio.to_thread(_refusals, server.ports, tmp_path)
        assert not starting.done()
        may_restore.set()
        assert await starting
        await asyncio.to_thread(_served, server.ports, tmp_path)

    lines = _serve(tmp_path, ask)
    assert "clients may connect; 3 CONNECTs came before" in lines


def _served(ports: dict[str, int], folder: Path) -> None:
    with RawClient(ports["mqtt"]) as client:
        assert client.connect("late").code == 0
    with urllib.request.urlopen(f"http://127.0.0.1:{ports['http']}/healthz") as answer:
        assert answer.read() == b"ok\n"
    assert "clients      " in status_text(ask_broker(folder, "status")["status"])  # type: ignore[arg-type] # an object


def test_a_broker_can_be_stopped_while_it_restores(tmp_path: Path, may_restore: threading.Event) -> None:
    """An operator who started the wrong one need not wait for it, and its folder is free at once."""

    async def stop(server: Server, starting: asyncio.Task[bool]) -> None:
        server.stop()
        may_restore.set()
        assert not await starting

    assert "log opened" not in _serve(tmp_path, stop)
    may_restore.set()
    assert "log opened" in _serve(tmp_path, lambda _server, starting: starting)


def test_a_folder_that_cannot_be_served_opens_no_port(tmp_path: Path, may_restore: threading.Event) -> None:
    """It is refused at once, as ever: not after its clients have come."""
    config = replace(Config(), node=NodeSettings(data=str(tmp_path)))
    first = Server(config)
    with pytest.raises(Exception, match="another process"):
        Server(config)
    first.close()
    assert not may_restore.is_set()
