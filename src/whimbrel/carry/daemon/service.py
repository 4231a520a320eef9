"""The service of a node: it opens memory, log, sockets and metrics as the settings say, and runs the daemon."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Protocol

import structlog

from whimbrel.carry.control.clock import CampusClock
from whimbrel.carry.control.topics import TopicNames, read_topics
from whimbrel.carry.daemon.daemon import CampusDaemon
from whimbrel.carry.daemon.door import Door
from whimbrel.carry.daemon.journal import Journal, address_name
from whimbrel.carry.daemon.metrics import MetricsServer
from whimbrel.carry.daemon.settings import NodeSettings, key_of, signer_of
from whimbrel.carry.daemon.status import node_metrics, node_status
from whimbrel.carry.hello import NONCE_BYTES
from whimbrel.carry.memory import Memory, read_memory, write_memory
from whimbrel.carry.participant import Participant
from whimbrel.carry.rules import Rules
from whimbrel.carry.transport.udp import UdpTransport
from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.log.files import locked
from whimbrel.model.clock import microseconds
from whimbrel.multicast.reach import Reach
from whimbrel.multicast.sockets import MulticastSocket

__all__ = ["NodeService", "Service", "check_folder", "only_interface", "own_clock", "run_service", "stop_at_signals"]

_log = structlog.get_logger("whimbrel")
_INTERFACES = Path("/proc/net/if_inet6")
_LINK_SCOPE = "20"
MEMORY = "memory"

Work = Callable[["NodeService"], Awaitable[None]]


def own_clock() -> Callable[[], int]:
    """Return a clock in microseconds UTC that does not jump when the machine's clock is set."""
    offset = time.time_ns() - time.monotonic_ns()
    return lambda: (time.monotonic_ns() + offset) // 1_000


def only_interface() -> str:
    """Return the only interface with an IPv6 link-local address; raise an error if there is none or several."""
    try:
        rows = [line.split() for line in _INTERFACES.read_text(encoding="ascii").splitlines()]
    except OSError:
        rows = []
    names = sorted({row[5] for row in rows if len(row) == 6 and row[3] == _LINK_SCOPE})
    if len(names) == 1:
        return names[0]
    found = Phrase(", ".join(names) or "none with an IPv6 link-local address")
    raise InvalidValueError("interface", found, "one: name it with --interface")


def stop_at_signals(stop: asyncio.Event) -> None:
    """Set *stop* at SIGTERM and at an interrupt."""
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)


class Service(Protocol):
    """A daemon: a node, a way-server or the administrative server."""

    async def check(self) -> None:
        """Raise a ``WhimbrelError`` if secrets or the broker make a start useless; nothing is opened yet."""

    def open(self) -> None:
        """Open files and sockets; raises a ``WhimbrelError`` if a setting or a file cannot be used."""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until *stop* is set."""

    def close(self) -> None:
        """Close files and sockets."""


def run_service(service: Service) -> None:
    """Run *service* until a signal stops it."""

    async def serve() -> None:
        stop = asyncio.Event()
        stop_at_signals(stop)
        await service.check()
        service.open()
        await service.run(stop)

    try:
        asyncio.run(serve())
    finally:
        service.close()


def check_folder(folder: Path) -> Path:
    """Return the data folder *folder*, which need not exist yet; raise an error if it is a file."""
    if folder.exists() and not folder.is_dir():
        raise InvalidValueError("data folder", str(folder), "a folder")
    return folder


def rules_of(settings: NodeSettings) -> Rules:
    """Return the rules of a participant with *settings*."""
    return Rules(
        places=settings.places,
        copies=settings.copies,
        hello_us=microseconds(settings.hello_s),
        shows_retrieved=settings.shows_retrieved,
        signer=signer_of(Path(settings.sign)) if settings.sign else None,
        publishers=frozenset(key_of("publisher", each) for each in settings.publisher) or None,
    )


class NodeService:
    """One node on one interface; a way-server gives a *make* that returns its own kind of participant."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        make: Callable[[int, NodeSettings, TopicNames], Participant] | None = None,
        link: Callable[[], MulticastSocket] | None = None,
        own: Callable[[], int] | None = None,
    ) -> None:
        self.settings = settings
        self._own = own or own_clock()
        self._make = make or plain_participant
        self._link = link or self._multicast
        self._stack = ExitStack()
        self.extra_status: Callable[[], Mapping[str, object]] = dict
        self.extra_metrics: Callable[[], Mapping[str, float]] = dict

    def _multicast(self) -> MulticastSocket:
        return MulticastSocket(self.settings.interface or only_interface(), port=self.settings.udp_port)

    async def check(self) -> None:
        """Do nothing: a node has no broker, and ``open`` checks all else."""

    def open(self) -> None:
        """Restore the node and join the link; raises a ``WhimbrelError`` if a setting or a file cannot be used."""
        settings, folder = self.settings, self.settings.folder
        topics = TopicNames(read_topics(Path(settings.topics)) if settings.topics else None)
        self._stack.enter_context(locked(check_folder(folder), "running a campus node"))
        memory = read_memory(folder / MEMORY)
        address = int(settings.address, 16) if settings.address else None
        if memory is None or (address is not None and address != memory.address):
            memory = Memory(address=int.from_bytes(os.urandom(8), "big") if address is None else address)
            write_memory(folder / MEMORY, memory)
        self.participant = self._make(memory.address, settings, topics)
        restored = self.participant.restore(memory, own=self._own())
        name = address_name(memory.address)
        reach = Reach(name, path=Path(settings.reach) if settings.reach else None)
        link = self._link()
        try:
            self.transport = UdpTransport(memory.address, link, profile=settings.frame_profile, reach=reach)
        except BaseException:
            link.close()
            raise
        self._stack.callback(self.transport.close)
        journal = None
        if settings.log_bytes:
            journal = Journal(folder / "log", memory.address, max_bytes=settings.log_bytes)
            journal.open(at=self.participant.clock.now(self._own()))
            self._stack.callback(lambda: journal.close(at=self.daemon.now))
        self.daemon = CampusDaemon(
            self.participant, self.transport, own=self._own, journal=journal, memory=folder / MEMORY
        )
        self.daemon.perform(restored)

    def close(self) -> None:
        """Leave the link and unlock the data folder."""
        self._stack.close()

    def status(self) -> dict[str, object]:
        """Return the status of the node."""
        return {**node_status(self.participant, self.transport, own=self._own()), **self.extra_status()}

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the node."""
        return {**node_metrics(self.participant, self.transport, own=self._own()), **self.extra_metrics()}

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until *stop* is set."""
        async with AsyncExitStack() as stack:
            door = Door(self.settings.folder, self.daemon, self.status)
            await door.start()
            stack.callback(door.close)
            said: dict[str, object] = {"node": address_name(self.participant.address)}
            if self.settings.metrics_port:
                server = MetricsServer(self.metrics)
                said["metrics"] = await server.start("127.0.0.1", self.settings.metrics_port)
                stack.callback(server.close)
            _log.info("campus node started", data=str(self.settings.folder), **said)
            await self.daemon.run(self.transport, stop)
        _log.info("campus node stopped")


def plain_participant(address: int, settings: NodeSettings, topics: TopicNames) -> Participant:
    """Return the participant of an ordinary node."""
    return Participant(
        address,
        rules_of(settings),
        topics=topics,
        clock=CampusClock(),
        nonce=lambda: os.urandom(NONCE_BYTES),
        keys=[key_of("key", each) for each in settings.key],
    )
