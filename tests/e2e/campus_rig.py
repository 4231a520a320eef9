"""Daemons of a campus in this process, on sockets of ::1 with injected reach; the broker is a real one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from whimbrel.carry.application import Campus
from whimbrel.carry.backbone.admin_service import AdminService
from whimbrel.carry.backbone.settings import AdminSettings, WayServerSettings
from whimbrel.carry.backbone.way_server_service import WayServerService
from whimbrel.carry.daemon.service import NodeService
from whimbrel.carry.daemon.settings import NodeSettings
from whimbrel.carry.signatures import SampleSigner
from whimbrel.multicast.loopback import LoopbackLink

SEED = b"c" * 32
HELLO_S = 0.05
PATIENCE_S = 120.0
"""Only what hangs takes so long; a clock is asked for again after ten seconds where a busy machine was late."""


class Segment:
    """Daemons in *folder*; who hears whom is made by ``meet``."""

    def __init__(self, folder: Path, *, hello_s: float = HELLO_S) -> None:
        self.folder, self._hello_s = folder, hello_s
        self.key = SampleSigner(SEED).public.hex()
        self._everybody: list[LoopbackLink] = []
        self._reach: dict[str, list[str]] = {}
        self._running: dict[str, tuple[asyncio.Event, asyncio.Task[None], Any]] = {}
        self._write()
        secret = folder / "campus.key"
        secret.write_text(SEED.hex(), encoding="ascii")
        secret.chmod(0o600)

    def _write(self) -> None:
        (self.folder / "reach.new").write_text(json.dumps(self._reach), encoding="utf-8")
        (self.folder / "reach.new").replace(self.folder / "reach.json")

    def meet(self, *contacts: tuple[int, int]) -> None:
        """Let exactly these pairs of nodes be in reach of each other."""
        names = {name for pair in contacts for name in pair} | {int(each, 16) for each in self._reach}
        self._reach = {f"{each:016x}": [] for each in names}
        for low, high in contacts:
            self._reach[f"{low:016x}"].append(f"{high:016x}")
            self._reach[f"{high:016x}"].append(f"{low:016x}")
        self._write()

    def _settings(self, address: int, **more: Any) -> dict[str, Any]:
        self._reach.setdefault(f"{address:016x}", [])
        self._write()
        return {
            "data": str(self.folder / f"node-{address}"),
            "address": f"{address:x}",
            "hello_s": self._hello_s,
            "reach": str(self.folder / "reach.json"),
            **more,
        }

    def _link(self) -> LoopbackLink:
        return LoopbackLink(self._everybody)

    def node(self, address: int, **more: Any) -> NodeService:
        """Start a node."""
        service = NodeService(NodeSettings(**self._settings(address, **more)), link=self._link)
        self._start(f"node-{address}", service)
        return service

    def way_server(self, address: int, port: int, **more: Any) -> WayServerService:
        """Start a way-server whose broker is at *port*."""
        settings = WayServerSettings(
            **self._settings(address, **more), name=f"gate-{address}", campus_key=str(self.folder / "campus.key"),
            port=port, census_s=0.1,
        )  # fmt: skip
        service = WayServerService(settings, link=self._link)
        self._start(f"node-{address}", service)
        return service

    def admin(self, port: int, **more: Any) -> AdminService:
        """Start the administrative server."""
        settings = AdminSettings(data=str(self.folder / "admin"), port=port, every_s=0.1, **more)
        service = AdminService(settings)
        self._start("admin", service)
        return service

    def _start(self, name: str, service: Any) -> None:
        service.open()
        stop = asyncio.Event()
        self._running[name] = stop, asyncio.ensure_future(service.run(stop)), service

    async def stop(self, *names: str) -> None:
        """Stop daemons, all if none is named."""
        for name in names or list(self._running):
            stop, task, service = self._running.pop(name)
            stop.set()
            await task
            service.close()

    def application(self, name: int | str) -> Campus:
        """Return the interface of a daemon's applications."""
        return Campus(self.folder / (name if isinstance(name, str) else f"node-{name}"))


async def until(condition: Callable[[], bool], what: str = "", *, within_s: float = PATIENCE_S) -> None:
    """Wait for *condition*."""
    try:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 # daemons have no event for it
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(what or "it did not come") from None


async def next_texts(campus: Campus, topics: Iterable[str], count: int, *, within_s: float = PATIENCE_S) -> list[str]:
    """Return the texts of the next samples of *topics*."""
    found: list[str] = []
    async with asyncio.timeout(within_s), campus.samples(*topics) as samples:
        async for sample in samples:
            found.append(sample.text)
            if len(found) == count:
                break
    return found
