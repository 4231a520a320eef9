"""Matchers of a stream: one matcher of the subscriptions in force per node, reused from batch to batch.

In a large fleet some device subscribes in nearly every batch, and packing a hundred thousand subscriptions takes longer
than the rest of the batch. So a matcher has two layers (``versions``): a large one that stays, and a small one for the
sessions that changed since, which is rebuilt. When the small layer has grown too large, everything is packed again.
Rule: each call for a batch's matcher gets all changes of that batch; so a matcher is valid until the next change.
Rule: a worker to which a node moves maps the large layer that the node's last worker has packed (``matcher_files``). A
seq of the node's log identifies a version, so the seqs in force tell which sessions changed since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from whimbrel.model.bounds import INT64_MAX
from whimbrel.pipeline.subscriptions.matcher_files import MatcherFiles, MatcherInput, matcher_files
from whimbrel.pipeline.subscriptions.versions import LayerBase, PackedVersions, touched_sessions, versions
from whimbrel.pipeline.unit.node_share import LogMark

__all__ = ["SMALL", "Matchers", "Subscribed"]

SMALL = 8
"""Least ratio of the sizes of the large and the small matcher; below it, one large matcher is built again."""


class InForceRows(Protocol):
    """The subscriptions in force of a node."""

    def rows(self) -> Any:  # a pyarrow.Table
        """Return all subscriptions as rows of ``interests`` (change: added), with the columns ``CHANGED``."""

    def rows_of(self, sessions: Iterable[str]) -> Any:  # a pyarrow.Table
        """Return the subscriptions of *sessions*, in the form of ``rows``."""

    def seqs(self) -> Any:  # a numpy array
        """Return the seqs of all subscriptions: those of the rows of ``interests`` that made them."""

    def sessions_of(self, seqs: Any) -> list[str]:  # a numpy array
        """Return the sessions of the subscriptions with these *seqs*."""


class Subscribed(Protocol):
    """A node's state, as far as its matcher depends on it."""

    node: str

    @property
    def in_force(self) -> InForceRows:
        """The subscriptions in force."""

    @property
    def mark(self) -> LogMark:
        """The identity of the log."""


@dataclass(slots=True)
class _Kept:
    below: PackedVersions
    """The large layer."""
    packed: PackedVersions
    """The large layer, with the small layer over it if there is one."""
    changed: set[str] = field(default_factory=set)
    """Sessions that changed since the large layer was packed."""
    is_stale: bool = False
    """Whether some of these changes are not in the small layer yet."""


class Matchers:
    """The matchers of all nodes, as files of this machine's cache, or in a *folder* of their own."""

    def __init__(self, folder: Path | None = None) -> None:
        self.files = matcher_files() if folder is None else MatcherFiles(folder)
        self._kept: dict[str, _Kept] = {}

    def find(self, state: Subscribed, first: int, changed: Any, deleted: Any) -> PackedVersions:
        """Return the matcher for a batch of one node that begins with the seq *first*.

        The matcher has the subscriptions in force before the batch (*state*) and the changes of the batch: *changed*
        and *deleted* are pyarrow.Tables of ``interests`` and ``sessions``.
        """
        now = touched_sessions(changed, deleted)
        kept = self._kept.get(state.node) or self._resume(state)
        if kept is not None and not now and not kept.is_stale:
            return kept.packed
        if kept is not None:
            kept.changed |= now
            rows = pa.concat_tables([state.in_force.rows_of(kept.changed), changed])
            if SMALL * max(rows.num_rows, len(kept.changed)) <= len(kept.below.begun):
                over = LayerBase(Path(kept.below.path).name, frozenset(kept.changed))
                layer = MatcherInput(versions(rows, deleted, first=first, last=INT64_MAX), over)
                kept.packed, kept.is_stale = self.files.open(state.node, layer, [kept.below]), False
                return kept.packed
        rows = pa.concat_tables([state.in_force.rows(), changed])
        given = MatcherInput(versions(rows, deleted, first=first, last=INT64_MAX))
        everything = self.files.open(state.node, given)
        self._kept[state.node] = _Kept(everything, everything)
        if (name := _head_of(state)) is not None:
            self.files.set_head(name, given.digest)
        return everything

    def _resume(self, state: Subscribed) -> _Kept | None:
        """Return the large layer that another worker has packed for this node, or None if there is none."""
        name = _head_of(state)
        digest = None if name is None else self.files.head(name)
        below = None if digest is None else self.files.find(digest, state.node)
        if below is None or below.below is not None:
            return None
        in_force = state.in_force.seqs()
        is_over = pa.array(np.isin(below.begun, in_force, invert=True))
        changed = {*below.table.column("session").filter(is_over).to_pylist()}
        changed.update(state.in_force.sessions_of(np.setdiff1d(in_force, below.begun)))
        kept = self._kept[state.node] = _Kept(below, below, changed, is_stale=bool(changed))
        return kept

    def note(self, state: Subscribed, changed: Any, deleted: Any) -> None:
        """Record the changes of a batch that needs no matcher, for the next batch that needs one."""
        kept = self._kept.get(state.node)
        now = touched_sessions(changed, deleted)
        if kept is not None and now:
            kept.changed |= now
            kept.is_stale = True

    def forget(self) -> None:
        """Forget the matchers of all nodes; their files stay until they are evicted."""
        self._kept.clear()


def _head_of(state: Subscribed) -> str | None:
    """Return a name of this node's log; None if the log has no incarnation, so that another one could look the same."""
    return None if state.mark.incarnation is None else f"{state.mark.incarnation} {state.node}"
