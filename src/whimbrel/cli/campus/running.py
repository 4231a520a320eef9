"""The process of a node: ``whimbrel campus node`` replaces itself by this module once its options are read.

Reading options loads twelve megabytes of libraries that a node does not need, and a node runs for months on small
machines. So the command replaces itself by ``python -m whimbrel.cli.campus.running``, with its settings as JSON. The
settings contain names of files and public keys, but no secrets.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

from whimbrel.errors import WhimbrelError

if TYPE_CHECKING:  # the command that replaces itself has loaded it
    from whimbrel.carry.daemon.settings import NodeSettings

__all__ = ["become_node", "main"]


def become_node(settings: NodeSettings, log_format: str) -> NoReturn:
    """Replace this process by a node."""
    said = json.dumps(asdict(settings))
    os.execv(sys.executable, [sys.executable, "-m", __name__, log_format, said])  # noqa: S606 # our own program


def main() -> None:
    """Run a node until a signal stops it; exit 2 if something that it needs cannot be used."""
    from whimbrel.carry.daemon.service import NodeService, run_service
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
