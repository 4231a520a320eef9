"""The policies of a whole log, for a batch: what they may see, and which sessions must be folded together for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from whimbrel.model.facts import PolicyChange
from whimbrel.pipeline.fold.events import Seen
from whimbrel.shape.agents import Agents

__all__ = ["LogPolicies"]


class LogPolicies:
    """What *rows* of the table ``policies``, an Arrow table of ``COLUMNS`` or None, say together."""

    COLUMNS: ClassVar = ("node", "change", "name", "text", "device")

    def __init__(self, rows: Any) -> None:
        self._chosen: dict[str, list[tuple[str, str]]] = {}
        self._failing: set[tuple[str, str]] = set()
        self.seen = Seen.NOTHING
        """What policies may have to see of publications."""
        agents = Agents()
        columns = [] if rows is None else [rows.column(name).to_pylist() for name in self.COLUMNS]
        for node, change, name, text, device in zip(*columns, strict=True):
            if change == PolicyChange.CHOSEN.value and name is not None:
                self._chosen.setdefault(node, []).append((device, name))
            policy = None if text is None else agents.of(text)
            if policy is not None:
                reads = Seen.BODIES if policy.needs_bodies else Seen.ATTRIBUTES
                self.seen = max(self.seen, reads, key=lambda seen: seen.value)
                if policy.may_fail:
                    self._failing.add((node, name))

    @property
    def are_any(self) -> bool:
        """Whether any was put."""
        return self.seen is not Seen.NOTHING

    def joined(
        self, node: str, named: Iterable[tuple[str, str]], devices: Iterable[tuple[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """Yield pairs of a name and a session, for all policies of *node* that may be suspended.

        One that failed too often is suspended for all devices, so the sessions that it decides for are folded together.
        *named* are policies and sessions with subscriptions that name them, *devices* devices and their sessions.
        """
        choices: dict[str, list[str]] = {}
        for device, name in self._chosen.get(node, ()):
            choices.setdefault(device, []).append(name)
        pairs = [*named, *((name, session) for device, session in devices for name in choices.get(device, ()))]
        return ((f"policy {name}", session) for name, session in pairs if (node, name) in self._failing)
