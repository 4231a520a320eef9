"""Matchers of a stream: one matcher of the subscriptions in force per node, reused from batch to batch.

In a large fleet some device subscribes in nearly every batch, and packing a hundred thousand subscriptions takes longer
than the rest of the batch. So a matcher has two layers (``versions``): a large one that stays, and a small one for the
sessions that changed since, which is rebuilt. When the small layer has grown too large, everything is packed again.
Rule: each call for a batch's matcher gets all changes of that batch; so a matcher is valid until the next change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from whimbrel.model.bounds import INT64_MAX
from whimbrel.pipeline.subscriptions.versions import LayerBase, touched_sessions
from whimbrel.pipeline.tables.matches import Shipped, pack
from whimbrel.pipeline.unit.node_share import NodeShare

__all__ = ["SMALL", "Matchers"]

SMALL = 8
"""Least ratio of the sizes of the large and the small matcher; below it, one large matcher is built again."""


@dataclass(slots=True)
class _Kept:
    below: Shipped
    size: int
    """Number of subscriptions in the large layer, ``below``."""
    shipped: Shipped
    """The large layer, with the small layer over it if there is one."""
    changed: set[str] = field(default_factory=set)
    """Sessions that changed since the large layer was packed."""
    is_stale: bool = False
    """Whether some of these changes are not in the small layer yet."""


class Matchers:
    """The matchers of all nodes, as files in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, _Kept] = {}

    def ship(self, state: NodeShare, first: int, changed: Any, deleted: Any) -> Shipped:
        """Return the matcher for a batch of one node that begins with the seq *first*.

        The matcher has the subscriptions in force before the batch (*state*) and the changes of the batch: *changed*
        and *deleted* are pyarrow.Tables of ``interests`` and ``sessions``.
        """
        now = touched_sessions(changed, deleted)
        kept = self._kept.get(state.node)
        if kept is not None and not now and not kept.is_stale:
            return kept.shipped
        span = (state.node, first, INT64_MAX)
        if kept is not None:
            kept.changed |= now
            rows = pa.concat_tables([state.in_force.rows_of(kept.changed), changed])
            if SMALL * max(rows.num_rows, len(kept.changed)) <= kept.size:
                over = LayerBase(kept.below.files[state.node], kept.changed)
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
        """Record the changes of a batch that needs no matcher, for the next batch that needs one."""
        kept = self._kept.get(state.node)
        now = touched_sessions(changed, deleted)
        if kept is not None and now:
            kept.changed |= now
            kept.is_stale = True

    def _forget(self, node: str) -> None:
        kept = self._kept.pop(node, None)
        if kept is not None:
            _remove(kept.shipped)
            _remove(kept.below)

    def forget(self) -> None:
        """Remove the matchers of all nodes, and their files."""
        for node in list(self._kept):
            self._forget(node)


def _remove(shipped: Shipped) -> None:
    for file in shipped.files.values():
        Path(file).unlink(missing_ok=True)
