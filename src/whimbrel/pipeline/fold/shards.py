"""Shards: partition the sessions of a node, so that a batch run can fold the partitions in parallel.

Sessions that have a device or a share in common are in the same shard (``components``). A task that matches a piece of
the node's log divides its rows here, so each fold task reads its own rows only. The first shard also takes devices
without a session. The last shards have only plain sessions, which the columnar hold folds (``pipeline.columnar``).
Rule: all shards of a node together make the same rows as one fold of the node (``test_pipeline_shards``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.hold.private import SHARE, is_shared
from whimbrel.hold.rows import Key
from whimbrel.node.checkpoint import RowScope, split
from whimbrel.pipeline.fold.components import Components
from whimbrel.pipeline.fold.events import Seen
from whimbrel.pipeline.fold.start_state import StartState
from whimbrel.shape.agents import Agents

__all__ = ["LogPolicies", "Shards", "find_links"]

Arrow = Any
"""A ``pyarrow.Table`` or column; pyarrow ships no types."""

_OF_SESSIONS = frozenset({"interests", "sessions", "presence", "receipts", "decisions"})


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of a node's sessions, with numbers from 0 to *of* - 1."""

    of: int
    sessions: Mapping[str, int] = field(default_factory=dict)
    """Shard per session that has a device or a share in common with others; any other has one by its name."""
    devices: Mapping[str, int] = field(default_factory=dict)
    """Shard per device; a device that is not here has no session, and is in the first shard."""
    plain: int = 0
    """Number of the shards, the last ones, that have plain sessions."""

    @classmethod
    def compute(
        cls, devices: set[tuple[str, str]], shares: set[tuple[str, str]], *, of: int, plain: Collection[str] = ()
    ) -> Shards:
        """Return the shards of sessions, from pairs (device, session) and (share, session).

        There are *of* shards of the *plain* sessions, if there are any, and as many of other sessions.
        """
        found = Components(sorted(devices), sorted(shares), groups=of)
        sessions = {session: found.group(session) for _, session in (*devices, *shares)}
        sessions |= {session: of + found.group(session) for session in plain}
        own = {device: sessions[session] for device, session in devices}
        return cls(2 * of, sessions, own, of) if plain else cls(of, sessions, own)

    def own_rows(self, begun: StartState, shard: int) -> dict[Key, bytes]:
        """Return the rows of a *shard* in a start state (a checkpoint of a cut log)."""

        def has(scope: RowScope, whose: str) -> bool:
            return (self._of_session(whose) if scope is RowScope.SESSION else self.devices.get(whose, 0)) == shard

        return dict(begun.rows if self.of == 1 else split(begun.rows, has))

    def _of_session(self, session: str) -> int:
        found = self.sessions.get(session)
        return crc32(session.encode()) % max(1, self.of - self.plain) if found is None else found

    def of_sessions(self, column: Arrow) -> Any:  # a numpy array
        """Return the shard of each session in a column of names."""
        return _codes(column, self._of_session)

    def divide(self, table: str, rows: Arrow) -> list[Arrow]:
        """Divide the rows of a *table* of the log into those of each shard; rows that put a policy are in all."""
        if self.of == 1:
            return [rows]
        shards = self._shards_of(table, rows)
        if table == "policies":
            everybody = rows.column("device").is_null().to_numpy()
            return [rows.filter(pa.array((shards == shard) | everybody)) for shard in range(self.of)]
        return _divide(rows, shards, self.of)

    def _shards_of(self, table: str, rows: Arrow) -> Any:
        """Return the shard of each row: that of its session or, without one, of its device."""
        found = np.zeros(rows.num_rows, np.int64)
        if "device" in rows.column_names:
            found = _codes(rows.column("device"), lambda device: self.devices.get(device, 0))
        if table in _OF_SESSIONS:
            sessions = rows.column("session")
            found = np.where(sessions.is_valid().to_numpy(), self.of_sessions(sessions), found)
        return found

    def divide_published(self, events: Arrow, shard_of: tuple[Any, Any]) -> list[Arrow]:
        """Divide *events*, publications that matched: each shard gets those that its sessions' subscriptions match.

        *shard_of* has, as sorted numpy arrays, the seqs of all subscriptions, and the shard of each.
        """
        if self.of == 1:
            return [events]
        lists = events.column("interests").combine_chunks()
        values, offsets = lists.values.to_numpy(), lists.offsets.to_numpy()
        values = values[offsets[0] : offsets[-1]]
        owners = np.repeat(np.arange(events.num_rows), np.diff(offsets))
        seqs, shards = shard_of
        of_entry = shards[np.searchsorted(seqs, values)]
        order = np.argsort(of_entry, kind="stable")  # so by row within each shard
        ends = np.searchsorted(of_entry[order], np.arange(self.of + 1))
        return [_own(events, owners[some], values[some]) for some in np.split(order, ends[1:-1])]


def _own(events: Arrow, owners: Any, values: Any) -> Arrow:
    """Return the rows *owners* of *events* (ascending, repeated), each with its own *values* as its interests."""
    rows, starts = np.unique(owners, return_index=True)
    offsets = np.append(starts, owners.size).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
    place = events.schema.get_field_index("interests")
    return events.take(pa.array(rows)).set_column(place, events.schema.field(place), lists)


def _divide(rows: Arrow, shards: Any, of: int) -> list[Arrow]:
    order = np.argsort(shards, kind="stable")  # so in the order of the log within each shard
    ends = np.searchsorted(shards[order], np.arange(of + 1)).tolist()
    by_shard = rows.take(pa.array(order))
    return [by_shard.slice(begin, end - begin) for begin, end in pairwise(ends)]


def _codes(column: Arrow, code: Callable[[str], int]) -> Any:
    """Return the code of each name in a column as a numpy array, 0 for null; each distinct name is looked up once."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = column.dictionary_encode()
    codes = np.array([code(name) for name in encoded.dictionary.to_pylist()] + [0], np.int64)
    return codes[encoded.indices.fill_null(codes.size - 1).to_numpy()]


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


def find_links(
    presence: Sequence[Arrow], sessions: Sequence[Arrow], interests: Sequence[Arrow]
) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return the pairs (device, session) and (share, session) in rows of the log, given as tables of some columns."""
    # Deleting a device's own session ends the device's choice of policies.
    devices = {pair for rows in (*presence, *sessions) for pair in _pairs(rows, "device")}
    return devices, {pair for rows in interests for pair in _shares(rows)}


def _shares(interests: Arrow) -> Iterator[tuple[str, str]]:
    some = interests.filter(pc.starts_with(interests.column("subject_filter"), SHARE))
    return (pair for pair in _pairs(some, "subject_filter") if is_shared(pair[0]))


def _pairs(rows: Arrow, column: str) -> Iterator[tuple[str, str]]:
    some = rows.select([column, "session"]).drop_null()
    distinct = some.group_by([column, "session"], use_threads=False).aggregate([])
    return zip(distinct.column(column).to_pylist(), distinct.column("session").to_pylist(), strict=True)
