"""A broker that accepts policies of any cost, as in SUBLIM's Figure 8a; only for the experiment, never for service.

No setting of ``whimbrel serve`` allows this, because its limit of steps is at most a million. Such a policy runs in the
event loop's thread of this process and does not end, so the experiment kills the process.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from whimbrel.broker.settings.config_files import read_config
from whimbrel.broker.settings.policies import PolicySettings
from whimbrel.broker.shell.server import Server
from whimbrel.language.policies.limits import PolicyLimits
from whimbrel.model.bounds import INT64_MAX

__all__ = ["UnlimitedPolicies", "main"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlimitedPolicies(PolicySettings):
    """Settings of policies without a limit of steps."""

    @property
    def limits(self) -> PolicyLimits:
        """Limits of one run, with any number of steps."""
        return replace(PolicySettings().limits, steps=INT64_MAX)


async def _serve(server: Server) -> None:
    if await server.start():
        sys.stderr.write(f"listening {' '.join(f'{kind}={port}' for kind, port in server.ports.items())}\n")
        sys.stderr.flush()
    await server.serve()


def main(arguments: Sequence[str]) -> int:
    """Serve with the options of ``whimbrel serve`` that experiments use."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--insecure", action="store_true")
    for name in ("--config", "--data", "--node", "--host"):
        parser.add_argument(name, required=True)
    for name in ("--port", "--http-port"):
        parser.add_argument(name, required=True, type=int)
    told = parser.parse_args(arguments)
    overrides = {
        "node.name": told.node,
        "node.data": told.data,
        "listen.host": told.host,
        "listen.port": told.port,
        "listen.http_port": told.http_port,
        "access.insecure": True,
    }
    config = read_config(Path(told.config)).with_overrides(overrides)
    asyncio.run(_serve(Server(replace(config, policies=UnlimitedPolicies(steps_per_second=0)))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
