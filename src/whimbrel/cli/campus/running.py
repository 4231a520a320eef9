"""The process of a node: what ``whimbrel campus node`` becomes once its options are read.

Reading options loads twelve megabytes of libraries that a node does not need, and a node runs for months on small
machines: the command replaces itself by ``python -m whimbrel.cli.campus.running`` with its settings as JSON. They have
names of files and public keys, no secrets.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from whimbrel.errors import WhimbrelError

if TYPE_CHECKING:  # the command that replaces itself has it loaded
    from whimbrel.carry.daemon.settings import NodeSettings

__all__ = ["become_node", "main", "run_service"]


def become_node(settings: NodeSettings, log_format: str) -> NoReturn:
    """Replace this process by a node."""
    said = json.dumps(asdict(settings))
    os.execv(sys.executable, [sys.executable, "-m", __name__, log_format, said])  # noqa: S606 # our own program


class Service(Protocol):
    """A daemon: a node, a way-server or the administrative server."""

    def open(self) -> None:
        """Read what it needs; raises an error of ours if a setting or a file cannot be used."""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until *stop* is set."""

    def close(self) -> None:
        """Let everything go."""


def run_service(service: Service) -> None:
    """Run *service* until a signal stops it."""
    from whimbrel.carry.daemon.service import stop_at_signals

    async def serve() -> None:
        stop = asyncio.Event()
        stop_at_signals(stop)
        await service.run(stop)

    try:
        service.open()
        asyncio.run(serve())
    finally:
        service.close()


def main() -> None:
    """Run a node until a signal stops it; exit 2 if something it needs cannot be used."""
    from whimbrel.carry.daemon.service import NodeService
    from whimbrel.carry.daemon.settings import NodeSettings
    from whimbrel.cli.process.log_lines import set_up_logging

    log_format, said = sys.argv[1:]
    given: dict[str, Any] = json.loads(said)
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    set_up_logging(log_format, "info")
    try:
        run_service(NodeService(NodeSettings(**given)))
    except (WhimbrelError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
