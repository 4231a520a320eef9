"""Open files: how many connections a broker can have with the file descriptors that its process may open.

Rule: ``limits.connections`` is lowered to what there are descriptors for, and the operator is told. So a crowd of
connections is refused by our rules, and never by the system, which would refuse the log its files as well.
"""

from __future__ import annotations

from dataclasses import replace

from whimbrel.broker.settings.config import Config
from whimbrel.broker.settings.fields import ConfigError
from whimbrel.log.descriptors import RESERVED, keep_reserve

__all__ = ["MAX_REQUESTS", "connections_allowed", "crowd", "descriptors_needed", "make_room"]

MAX_REQUESTS = 64
"""How many connections for metrics and health may be open; the oldest makes room for another."""
_BESIDE = 128
"""Descriptors of everything else: listeners, the log, the view, checkpoints, exports, threads and child processes."""
_FEW_MORE = 64


def crowd(connections: int) -> int:
    """Return how many connections may be open: a few more than may stay, which are told that they may not."""
    return connections + max(_FEW_MORE, connections // 10)


def descriptors_needed(connections: int) -> int:
    """Return how many descriptors a broker needs for so many connections, without the log's reserve."""
    return crowd(connections) + MAX_REQUESTS + _BESIDE


def connections_allowed(descriptors: int) -> int:
    """Return how many connections there may be with so many descriptors; less than 1 if there are too few."""
    most = descriptors - MAX_REQUESTS - _BESIDE
    return min(most - _FEW_MORE, most * 10 // 11)


def make_room(config: Config) -> tuple[Config, str | None]:
    """Let the process open as many files as *config* needs; return it with as many connections as that allows.

    What is returned beside it is what the operator is to be told, if they are fewer.
    """
    wanted = config.limits.connections
    most = keep_reserve(descriptors_needed(wanted))
    allowed = connections_allowed(most)
    if allowed >= wanted:
        return config, None
    found = most + RESERVED
    if allowed < 1:
        least = descriptors_needed(1) + RESERVED
        sentence = f"this process may open {found} files, and a broker needs {least} at least; raise it (ulimit -n)"
        raise ConfigError("", "limits.connections", wanted, "less", sentence=sentence)
    told = (
        f"limits.connections is {allowed:,} and not {wanted:,}: this process may open {found:,} files; "
        f"ulimit -n {descriptors_needed(wanted) + RESERVED} allows them all"
    )
    return replace(config, limits=replace(config.limits, connections=allowed)), told
