"""Matchers of a stream: of each node, one of the subscriptions in force, kept from batch to batch.

A device subscribes in nearly every batch of a large fleet, and to pack a hundred thousand subscriptions takes longer
than all the rest of the batch. So there are two layers (``versions``): a large one that stays, and a small one, made
anew, of the sessions that have changed since. When the small one is no longer small, all is packed again.
Rule: each request for a batch's matcher brings all changes of that batch; so a matcher is valid until the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from whimbrel.model.bounds import INT64_MAX
from whimbrel.pipeline.subscriptions.versions import Over, touched
from whimbrel.pipeline.tables.matches import Shipped, pack
from whimbrel.pipeline.unit.node_share import NodeShare

__all__ = ["SMALL", "Matchers"]

SMALL = 8
"""The large layer has at least so many times the subscriptions of the small one."""


@dataclass(slots=True)
class _Kept:
    below: Shipped
    size: int
    """How many subscriptions that has."""
    shipped: Shipped
    """The same, or what lies over it."""
    changed: set[str] = field(default_factory=set)
    """The sessions that have changed since."""
    is_stale: bool = False
    """Whether some have that are not in what lies over it."""


class Matchers:
    """The matchers of all nodes, as files in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, _Kept] = {}

    def shipped(self, state: NodeShare, first: int, changed: Any, deleted: Any) -> Shipped:
        """Return the matcher for a batch of one node that begins with the number *first*.

        It holds what was in force before (*state*), and the changes of the batch: pyarrow.Tables of ``interests``
        and ``sessions``.
        """
        now = touched(changed, deleted)
        kept = self._kept.get(state.node)
        if kept is not None and not now and not kept.is_stale:
            return kept.shipped
        span = (state.node, first, INT64_MAX)
        if kept is not None:
            kept.changed |= now
            rows = pa.concat_tables([state.in_force.rows_of(kept.changed), changed])
            if SMALL * max(rows.num_rows, len(kept.changed)) <= kept.size:
                over = Over(kept.below.files[state.node], kept.changed)
                layer = pack([span], rows, deleted, self._folder, over=over)
                if kept.shipped is not kept.below:
                    _remove(kept.shipped)
                kept.shipped, kept.is_stale = Shipped.together([kept.below, layer]), False
                return kept.shipped
        rows = pa.concat_tables([state.in_force.rows(), changed])
        self._forget(state.node)
        everything = pack([span], rows, deleted, self._folder)
        self._kept[state.node] = _Kept(everything, rows.num_rows, everything)
        return everything

    def note(self, state: NodeShare, changed: Any, deleted: Any) -> None:
        """Take in the changes of a batch that needs no matcher, for the next one that does."""
        kept = self._kept.get(state.node)
        now = touched(changed, deleted)
        if kept is not None and now:
            kept.changed |= now
            kept.is_stale = True

    def _forget(self, node: str) -> None:
        kept = self._kept.pop(node, None)
        if kept is not None:
            _remove(kept.shipped)
            _remove(kept.below)

    def forget(self) -> None:
        """Remove everything."""
        for node in list(self._kept):
            self._forget(node)


def _remove(shipped: Shipped) -> None:
    for file in shipped.files.values():
        Path(file).unlink(missing_ok=True)
