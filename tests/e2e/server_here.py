"""A server in this process, for tests that count what it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import uvloop

from whimbrel.broker.settings.config import Config, ListenSettings, NodeSettings
from whimbrel.broker.shell.server import Server

__all__ = ["serve_here"]


def serve_here(folder: Path, act: Callable[[Server], Awaitable[None]], *, is_uvloop: bool = True) -> None:
    """Serve MQTT and WebSocket with the data in *folder* while it acts, then stop."""
    listen = ListenSettings(host="127.0.0.1", port=0, ws_port=0)

    async def serve() -> None:
        server = Server(replace(Config(), node=NodeSettings(data=str(folder)), listen=listen))
        await server.start()
        try:
            await act(server)
        finally:
            server.stop()
            await server.serve()  # until it has drained

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if is_uvloop else asyncio.new_event_loop) as runner:
        runner.run(serve())
