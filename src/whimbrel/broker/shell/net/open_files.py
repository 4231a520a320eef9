"""Open files: limit the number of connections by the file descriptors that the process may open (``ulimit -n``).

Rule: ``limits.connections`` is lowered if there are too few descriptors, and the operator is warned. So excess
connections are refused by the broker, not by the operating system, which would also refuse to open files for the log.
"""

from __future__ import annotations

from dataclasses import replace

from whimbrel.broker.settings.config import Config
from whimbrel.broker.settings.fields import ConfigError
from whimbrel.log.descriptors import RESERVED, keep_reserve

__all__ = ["MAX_REQUESTS", "connections_allowed", "crowd", "descriptors_needed", "make_room"]

MAX_REQUESTS = 64
"""Most open connections for metrics and health; a new one then closes the oldest."""
_BESIDE = 128
"""Descriptors for all other uses: listeners, the log, the view, checkpoints, exports, threads and child processes."""
_FEW_MORE = 64


def crowd(connections: int) -> int:
    """Return how many connections may be open: the limit, and some more that only get the reason for a refusal."""
    return connections + max(_FEW_MORE, connections // 10)


def descriptors_needed(connections: int) -> int:
    """Return the descriptors that a broker with *connections* needs, without those reserved for the log."""
    return crowd(connections) + MAX_REQUESTS + _BESIDE


def connections_allowed(descriptors: int) -> int:
    """Return the limit of connections that *descriptors* suffice for; less than 1 if there are too few."""
    most = descriptors - MAX_REQUESTS - _BESIDE
    return min(most - _FEW_MORE, most * 10 // 11)


def make_room(config: Config) -> tuple[Config, str | None]:
    """Raise the process's limit of open files as far as *config* needs; return *config*, and a warning or None.

    If too few files are allowed, ``limits.connections`` is lowered in the result, and the warning says so.
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
