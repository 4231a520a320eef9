"""The fold of a log: apply events to a node's core; the start state of a cut log; shards; contacts."""

from __future__ import annotations

__all__: list[str] = []
