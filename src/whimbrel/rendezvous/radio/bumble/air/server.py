"""A process that is the air: each radio listens on a TCP port of its own for the HCI of one host."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import cast

from bumble.transport.common import StreamPacketSink, StreamPacketSource

from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.radio.bumble.air.controller import AirController
from whimbrel.rendezvous.radio.bumble.air.ether import SUPERVISION_S, Ether

__all__ = ["AirServer", "RadioSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RadioSpec:
    """One radio of the air."""

    address: Address
    place: tuple[float, float] = (0.0, 0.0)
    port: int = 0
    refuses: frozenset[str] = frozenset()
    """Names of HCI commands that it refuses at once."""
    ignores: frozenset[str] = frozenset()
    """Names of HCI commands that it never answers."""


class _Host(StreamPacketSource):
    """The connection of one host: a radio is in the air while it lasts."""

    def __init__(self, server: AirServer, spec: RadioSpec) -> None:
        super().__init__()
        self._server, self._spec = server, spec
        self._radio: AirController | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Put the radio into the air, unless another host has it."""
        self._server.connections.add(transport)
        self._transport = transport
        if self._spec.address in self._server.radios:
            transport.close()
            return
        sink = StreamPacketSink(cast(asyncio.WriteTransport, transport))
        self._radio = self._server.radios[self._spec.address] = AirController(
            self._spec.address,
            ether=self._server.ether,
            address=self._spec.address,
            place=self._spec.place,
            random=Random(f"clock of {self._spec.address}"),  # noqa: S311 # a made-up world draws from a seed
            refuses=self._spec.refuses,
            ignores=self._spec.ignores,
            host_source=self,
            host_sink=sink,
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Take the radio out of the air."""
        del exc
        self._server.connections.discard(self._transport)
        if self._radio is not None:
            self._radio.stop()
            del self._server.radios[self._spec.address]


class AirServer:
    """Radios by HCI over TCP."""

    def __init__(self, *, supervision_s: float = SUPERVISION_S, speed: float = 1.0) -> None:
        self.ether = Ether(supervision_s=supervision_s, speed=speed)
        self.radios: dict[Address, AirController] = {}
        self.connections: set[asyncio.BaseTransport] = set()
        self._servers: list[asyncio.Server] = []

    async def offer(self, spec: RadioSpec, *, host: str = "127.0.0.1") -> str:
        """Listen for the host of a radio, and return its transport."""
        server = await asyncio.get_running_loop().create_server(lambda: _Host(self, spec), host, spec.port)
        self._servers.append(server)
        return f"tcp-client:{host}:{server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Listen no more, and end the connections of hosts."""
        for radio in list(self.radios.values()):
            radio.stop()
        for server in self._servers:
            server.close()
        while self.connections:
            for each in list(self.connections):
                each.close()
            await asyncio.sleep(0)
