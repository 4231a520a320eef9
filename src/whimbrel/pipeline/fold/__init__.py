"""The fold of a log (event sourcing): apply its events, in order, to a node's state; checkpoints, shards, contacts."""

from __future__ import annotations

__all__: list[str] = []
