"""``whimbrel campus node``: carry samples, and serve the applications of this machine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from whimbrel.cli.campus.options import NodeOptions, RunOptions
from whimbrel.cli.options.groups import with_option_groups

if TYPE_CHECKING:  # sockets need not be loaded for other commands
    from whimbrel.carry.daemon.service import NodeService

__all__ = ["node", "serve_node"]


@with_option_groups()
def node(*, options: NodeOptions, run: RunOptions) -> None:
    """Run a node until it is told to stop (Ctrl-C or SIGTERM): say Hello, carry samples, serve applications.

    Without --key there are no way-servers: the node uses its own clock and marks what it publishes. Exits 2 if a
    setting, a file or the interface cannot be used.

    Example: whimbrel campus node --interface wlan0
    """
    from whimbrel.carry.daemon.service import NodeService  # see above
    from whimbrel.carry.daemon.settings import NodeSettings, read_settings
    from whimbrel.cli.process.log_lines import set_up_logging

    run.check()
    set_up_logging(run.log_format, "info")
    serve_node(NodeService(read_settings(NodeSettings, run.config, options.given())))


def serve_node(service: NodeService) -> None:
    """Open *service* and run it until a signal stops it."""
    from whimbrel.carry.daemon.service import stop_at_signals  # see above

    async def serve() -> None:
        stop = asyncio.Event()
        stop_at_signals(stop)
        await service.run(stop)

    try:
        service.open()
        asyncio.run(serve())
    finally:
        service.close()
