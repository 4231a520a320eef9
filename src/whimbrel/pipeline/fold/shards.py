"""Shards: partition the sessions of a node, so that a batch run can fold the partitions in parallel.

Sessions that have a device or a share in common are in the same shard (``components``). Each shard reads the node's
whole log and takes its own rows. The first shard also takes devices without a session, and the rows about the node as a
whole (dead letters).
Rule: all shards of a node together make the same rows as one fold of the node (``test_pipeline_shards``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.hold.private import SHARE, is_shared
from whimbrel.hold.rows import Key
from whimbrel.node.checkpoint import RowScope, split
from whimbrel.pipeline.files.snapshots import Missing
from whimbrel.pipeline.files.spans import Piece, SpanReader
from whimbrel.pipeline.fold.components import Components
from whimbrel.pipeline.fold.events import Seen
from whimbrel.pipeline.fold.start_state import StartState
from whimbrel.shape.agents import Agents

__all__ = ["LogPolicies", "Shard", "shard_of"]

Arrow = Any
"""A ``pyarrow.Table`` or column; pyarrow ships no types."""

_OF_SESSIONS = ("interests", "sessions", "presence", "receipts", "decisions")
_OF_DEVICES = ("reports", "policies")


@dataclass(frozen=True, slots=True)
class Shard:
    """One partition of a node's sessions: partition *number* (from 0) of *of* partitions."""

    number: int
    of: int
    components: Components
    has_policies: bool = True
    """Whether the node's log has any policy; without one, no content is stored for policies."""

    @property
    def is_first(self) -> bool:
        """Whether this is the first shard, which also takes rows about the node as a whole."""
        return self.number == 0

    def own(self, piece: Piece) -> Piece:
        """Return *piece*, a chunk of the log, with only the rows of this shard; all shards keep all publications."""
        if self.of == 1:
            return piece
        tables = dict(piece.tables)
        for name in (*_OF_SESSIONS, *_OF_DEVICES):
            if name in tables:
                rows = tables[name].filter(self._are_own(name, tables[name]))
                if rows.num_rows:
                    tables[name] = rows
                else:
                    del tables[name]
        return replace(piece, tables=tables, dead=piece.dead if self.is_first else [])

    def own_rows(self, begun: StartState) -> dict[Key, bytes]:
        """Return the rows of this shard in a start state (a checkpoint of a cut log)."""
        return dict(begun.rows if self.of == 1 else split(begun.rows, self._has))

    def _has(self, scope: RowScope, whose: str) -> bool:
        return self._is_own(whose, None) if scope is RowScope.SESSION else self._is_own(None, whose)

    def _is_own(self, session: str | None, device: str | None) -> bool:
        """Return whether a row belongs to this shard, by its *session* or, if that is None, its *device*.

        The first shard also has the rows of devices without a session.
        """
        if session is not None:
            return self.components.group(session) == self.number
        group = None if device is None else self.components.group_of_device(device)
        return self.is_first if group is None else group == self.number

    def _are_own(self, table: str, rows: Arrow) -> Arrow:
        devices = rows.column("device").to_pylist() if "device" in rows.column_names else [None] * rows.num_rows
        if table == "policies":  # a row that puts a policy has no device, and is for all shards
            return pa.array([device is None or self._is_own(None, device) for device in devices])
        sessions = rows.column("session").to_pylist() if table in _OF_SESSIONS else [None] * rows.num_rows
        known: dict[tuple[str | None, str | None], bool] = {}
        found = []
        for pair in zip(sessions, devices, strict=True):
            key = pair if pair[0] is None else (pair[0], None)
            if key not in known:
                known[key] = self._is_own(*key)
            found.append(known[key])
        return pa.array(found, pa.bool_())


class LogPolicies:
    """Summary of all policies in a log, for a batch run; *rows* has the columns ``COLUMNS`` of ``policies``, if any."""

    COLUMNS: ClassVar = ("text",)

    def __init__(self, rows: Any) -> None:
        self.seen = Seen.NOTHING
        """Content of publications that the policies may have to read."""
        agents = Agents()
        for text in () if rows is None else rows.column("text").drop_null().to_pylist():
            policy = agents.of(text)
            if policy is not None:
                reads = Seen.BODIES if policy.needs_bodies else Seen.ATTRIBUTES
                self.seen = max(self.seen, reads, key=lambda seen: seen.value)

    @property
    def are_any(self) -> bool:
        """Whether the log has any valid policy."""
        return self.seen is not Seen.NOTHING


# -- from a log --------------------------------------------------------------------------------------------------------


def shard_of(
    reader: SpanReader,
    first: int,
    last: int,
    *,
    number: int,
    of: int,
    begun: StartState | None,
    missing: Sequence[Missing] = (),
) -> Shard:
    """Compute shard *number* (from 0, of *of* shards) of a node, from its log's seqs *first* to *last*.

    Seqs that are *missing* may be absent. *begun* is the state at which a cut log starts.
    """
    tables = ("policies",) if of == 1 else ("policies", "presence", "sessions", "interests")
    devices: set[tuple[str, str]] = set()
    shares: set[tuple[str, str]] = set()
    policies: list[Arrow] = []
    for piece in reader.only(tables).pieces(first, last, now=0, missing=missing):
        policies.append(piece.table("policies", LogPolicies.COLUMNS))
        devices.update(_pairs(piece.table("presence"), "device"))
        # Deleting a device's own session ends the device's choice of policies.
        devices.update(_pairs(piece.table("sessions"), "device"))
        shares.update(_shares(piece.table("interests")))
    if begun is not None:
        policies.append(begun.policy_rows().select(list(LogPolicies.COLUMNS)))
        devices.update(begun.members())
        shares.update(_shares(begun.interest_rows()))
    found = LogPolicies(pa.concat_tables(policies) if policies else None)
    components = Components(sorted(devices), sorted(shares), groups=of)
    return Shard(number, of, components, has_policies=found.are_any)


def _shares(interests: Arrow) -> Iterator[tuple[str, str]]:
    some = interests.filter(pc.starts_with(interests.column("subject_filter"), SHARE))
    return (pair for pair in _pairs(some, "subject_filter") if is_shared(pair[0]))


def _pairs(rows: Arrow, column: str) -> Iterator[tuple[str, str]]:
    some = rows.select([column, "session"]).drop_null()
    distinct = some.group_by([column, "session"], use_threads=False).aggregate([])
    return zip(distinct.column(column).to_pylist(), distinct.column("session").to_pylist(), strict=True)
