"""The fold of a log: events through a node's core, the state that a cut log starts with, shards, contacts."""

from __future__ import annotations

__all__: list[str] = []
