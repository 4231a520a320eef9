"""The policies of a whole log, for a batch: what they may see."""

from __future__ import annotations

from typing import Any, ClassVar

from whimbrel.pipeline.fold.events import Seen
from whimbrel.shape.agents import Agents

__all__ = ["LogPolicies"]


class LogPolicies:
    """What *rows* of the table ``policies``, an Arrow table of ``COLUMNS`` or None, say together."""

    COLUMNS: ClassVar = ("text",)

    def __init__(self, rows: Any) -> None:
        self.seen = Seen.NOTHING
        """What policies may have to see of publications."""
        agents = Agents()
        for text in () if rows is None else rows.column("text").drop_null().to_pylist():
            policy = agents.of(text)
            if policy is not None:
                reads = Seen.BODIES if policy.needs_bodies else Seen.ATTRIBUTES
                self.seen = max(self.seen, reads, key=lambda seen: seen.value)

    @property
    def are_any(self) -> bool:
        """Whether any was put."""
        return self.seen is not Seen.NOTHING
