"""The fold of a log (event sourcing): apply its events, in order, to a node's core; start states, shards, contacts."""

from __future__ import annotations

__all__: list[str] = []
