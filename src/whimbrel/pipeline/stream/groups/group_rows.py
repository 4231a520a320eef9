"""The rows of groups: divide the state of a node, or of a group, among groups, and join what several groups have.

Rule: a row of the node itself is in every group; a notification and its copies are in all groups that hold it.
Rule: copies of a row in several groups have only the values of their own devices and shares.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import cbor2

from whimbrel.hold.touched_rows import Key
from whimbrel.node.checkpoint import RowScope, split
from whimbrel.pipeline.fold.contact_fold import CONTACT_KINDS
from whimbrel.pipeline.fold.described import Described
from whimbrel.pipeline.stream.groups.assignment import Name
from whimbrel.pipeline.stream.groups.directory import Kind
from whimbrel.pipeline.stream.state.batch_record import NodeRecord
from whimbrel.pipeline.stream.state.blob_store import BlobStore
from whimbrel.pipeline.stream.state.objects import ObjectBlobs

__all__ = ["REPORTS_KINDS", "GroupStates", "Rows", "join_rows", "read_rows"]

Rows: TypeAlias = dict[Key, bytes]

REPORTS_KINDS = frozenset({"link", "place"}) | CONTACT_KINDS
"""Kinds of rows that the fold of a node's reports has, not the groups."""
_OF_ALL = frozenset({"time", "log mark"})
"""Kinds of rows that every state has."""


def read_rows(folder: Path, name: str | None) -> Rows:
    """Return all rows of the state *name*; none if there is no state."""
    return dict(BlobStore(ObjectBlobs(folder, name)).rows())


class GroupStates:
    """The states of a node's *of* groups, and of its reports, in objects in *folder*, before a batch.

    *record* is what the last batch recorded of the node.
    """

    def __init__(self, folder: Path, of: int, record: NodeRecord | None) -> None:
        self._folder, self._of = folder, of
        is_grouped = record is not None and bool(record.groups)
        self.names: dict[int, str] = {}
        """Names of the states of groups; a group without a state is left out."""
        self.reports: str | None = None
        """Name of the state of the reports."""
        self.dropped: list[str] = []
        """Names of objects that are not needed any more."""
        self._whole: str | None = None
        if record is not None and is_grouped:
            self.names = {number: each.state for number, each in enumerate(record.groups) if each.state is not None}
            self.reports = record.reports
        elif record is not None:
            self._whole = record.state

    def rows(self, group: int) -> Rows:
        """Return the rows of a group."""
        return read_rows(self._folder, self.names.get(group))

    def divide(self, rows: Rows, group_of: Callable[[int, str], int], seq: int) -> None:
        """Divide *rows*, the state of all sessions after the fact *seq*, among the groups.

        Rows of reports are left out. *group_of* returns the group of a session or a device, given by kind and name.
        """
        for name in (*self.names.values(), self._whole):
            if name is not None:
                self.dropped += ObjectBlobs(self._folder, name).names
        self.names, self._whole = {}, None
        for group in range(self._of):

            def is_own(kind: int, name: str, group: int = group) -> bool:
                return group_of(kind, name) == group

            self._write(group, _rows_of(rows, is_own), seq)

    def put_reports(self, rows: Rows, seq: int) -> None:
        """Write the state of the reports: their rows among *rows*, those of the whole node after the fact *seq*."""
        blobs = ObjectBlobs(self._folder, None)
        BlobStore(blobs).replace(seq, {key: row for key, row in rows.items() if key[0] in REPORTS_KINDS | _OF_ALL})
        self.reports = blobs.head().version

    def move(self, moved: Mapping[Name, int], groups: Mapping[Name, int], seq: int) -> None:
        """Move the rows of sessions and devices; *moved* has the group that each leaves, *groups* the one it joins."""
        before = {group: self.rows(group) for group in {*moved.values(), *(groups[name] for name in moved)}}
        after = {
            group: _rows_without(rows, {name for name in moved if moved[name] == group})
            for group, rows in before.items()
        }
        for source, target in {(group, groups[name]) for name, group in moved.items()}:
            own = {name for name, group in moved.items() if group == source and groups[name] == target}
            arrived = _rows_of(before[source], lambda kind, name: (kind, name) in own)  # noqa: B023 # called at once
            after[target] = join_rows([arrived, after[target]])
        for group, rows in after.items():
            self._write(group, rows, seq)

    def _write(self, group: int, rows: Rows, seq: int) -> None:
        if not rows and group not in self.names:
            return
        blobs = ObjectBlobs(self._folder, self.names.get(group))
        BlobStore(blobs).replace(seq, rows)
        self.names[group] = blobs.head().version
        self.dropped += blobs.dropped


def _rows_of(rows: Rows, is_own: Callable[[int, str], bool]) -> Rows:
    """Return the rows of the sessions and devices (kind, name) for which *is_own* returns True, and of the node.

    Values of other devices and shares are removed from the rows of notifications, because they would become outdated.
    """

    def has(scope: RowScope, whose: str) -> bool:
        return is_own(Kind.SESSION if scope is RowScope.SESSION else Kind.DEVICE, whose)

    some = split([each for each in rows.items() if each[0][0] not in REPORTS_KINDS], has)
    return {key: _own_part(key, row, is_own) for key, row in some}


def _own_part(key: Key, row: bytes, is_own: Callable[[int, str], bool]) -> bytes:
    """Return a row without the values of devices and shares for which *is_own* returns False."""
    if key[0] == "notification":
        kept = Described.restored(int(str(key[1])), row)
        if kept.shaped is None and kept.differences is None:
            return row
        kept.shaped = {name: body for name, body in (kept.shaped or {}).items() if is_own(Kind.DEVICE, name)} or None
        found = {name: text for name, text in (kept.differences or {}).items() if is_own(Kind.DEVICE, name)}
        kept.differences = found or None
        return kept.row()
    if key[0] == "copy":
        values = cbor2.loads(row)
        if len(values) > _BEFORE_SHARES:
            own = {share: each for share, each in values[_BEFORE_SHARES].items() if is_own(Kind.SHARE, share)}
            return cbor2.dumps([*values[:_BEFORE_SHARES], own])
    return row


def _rows_without(rows: Rows, gone: Collection[Name]) -> Rows:
    return _rows_of(rows, lambda kind, name: (kind, name) not in gone)


def join_rows(parts: Iterable[Rows]) -> Rows:
    """Return the rows of several groups together."""
    found: Rows = {}
    for rows in parts:
        for key, row in rows.items():
            before = found.get(key)
            found[key] = row if before is None or before == row else _join(key, before, row)
    return found


def _join(key: Key, one: bytes, other: bytes) -> bytes:
    """Return the row for *key* that combines the rows of two groups."""
    kind = key[0]
    if kind == "notification":
        kept, more = (Described.restored(int(str(key[1])), row) for row in (one, other))
        kept.shaped = _both(kept.shaped, more.shaped)
        kept.differences = _both(kept.differences, more.differences)
        kept.content = kept.content or more.content
        return kept.row()
    first, second = cbor2.loads(one), cbor2.loads(other)
    if kind == "copy":
        rest = max(first[2:], second[2:], key=len)
        if len(first) == len(second) and len(first) > _BEFORE_SHARES:
            rest = [*first[2:_BEFORE_SHARES], {**second[_BEFORE_SHARES], **first[_BEFORE_SHARES]}]
        return cbor2.dumps([sorted({*first[0], *second[0]}), dict(sorted({**second[1], **first[1]}.items())), *rest])
    if kind in {"now", "decided", "time"}:
        return cbor2.dumps(max(first, second))
    return other


_BEFORE_SHARES = 5
"""Index of the shares in the row of a copy."""


def _both(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any] | None:
    return {**(other or {}), **(one or {})} or None
