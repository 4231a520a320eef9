"""The directory of a node whose sessions are in groups: what tasks must know before they match its facts.

That is the subscriptions in force, the group of each session and device, the places of devices, and the members of
sessions. A task reads it, makes the changes of a batch, and writes these as an object (``state.objects``).

Rule: only changes are written, until they have more bytes than the rest; then everything is written again.
Rule: everything is kept in columns, so that a task that moved has the directory of 100,000 sessions at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import cbor2
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.hold.store.interface import CorruptStoreError
from whimbrel.model.facts import PresenceChange
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.fold.events import Seen
from whimbrel.pipeline.stream.state.blob_store import Head
from whimbrel.pipeline.stream.state.objects import ObjectBlobs
from whimbrel.pipeline.subscriptions.in_force import changed_schema
from whimbrel.pipeline.subscriptions.moves import MEMBERS, SEEN
from whimbrel.pipeline.unit.node_share import LogMark

__all__ = ["GONE", "Directory", "DirectoryChanges", "Kind", "no_places"]

Arrow = Any
"""A ``pyarrow.Table``; pyarrow ships no types."""

_LEAST_BYTES = 1 << 18
_MOST_WAITING = 64
GONE = -1
"""Stands for the group of a session or device that the directory forgets."""


class Kind(IntEnum):
    """Kind of a name in the directory."""

    SESSION = 0
    DEVICE = 1
    SHARE = 2
    KEPT_DEVICE = 3
    """A device whose state is kept without a session, because it reported or has a policy; it has no group."""


class DirectoryChanges(NamedTuple):
    """Changes of a directory, or all that it has."""

    subscriptions: Arrow
    """Rows of ``interests`` of subscriptions that are in force from now on, with the columns ``CHANGED``."""
    ended: Sequence[int]
    """Seqs of subscriptions that are not in force any more."""
    groups: Mapping[tuple[int, str], int]
    """Group of each session, device and share that is new or moved, by kind and name; -1: it is to be forgotten."""
    links: Sequence[tuple[int, str, str]]
    """New links of a session with a device or a share: kind and name of this, and the session."""
    members: Mapping[tuple[str, str], bool]
    """Whether the device is a member of the session now, by session and device."""
    places: Arrow
    """Rows of ``reports`` with new places of devices, with the columns ``SEEN``, in the order of their seqs."""
    seen: Seen
    """Content of publications that policies may read."""


class ColumnsInForce:
    """The subscriptions in force, as rows of ``interests``; they are in the order of their seqs."""

    def __init__(self, table: Arrow) -> None:
        self._table = table.combine_chunks()

    def rows(self) -> Arrow:
        """Return all subscriptions."""
        return self._table

    def rows_of(self, sessions: Iterable[str]) -> Arrow:
        """Return the subscriptions of *sessions*."""
        return self._table.filter(pc.is_in(self._table.column("session"), pa.array([*sessions], pa.string())))

    def seqs(self) -> Any:
        """Return the seqs of all subscriptions, in ascending order."""
        return self._table.column("seq").to_numpy()

    def sessions_of(self, seqs: Any) -> list[str]:
        """Return the sessions of the subscriptions with these *seqs*, which must be in force."""
        found: list[str] = self._table.column("session").take(pa.array(np.searchsorted(self.seqs(), seqs))).to_pylist()
        return found


class Directory:
    """The directory of *node*, as it is in an object of the folder *folder*; an empty one if *name* is None."""

    def __init__(self, node: str, folder: Path, name: str | None) -> None:
        self.node = node
        self.mark = LogMark()
        """Identity of the log; the caller sets it."""
        self._blobs = ObjectBlobs(folder, name)
        self.groups: dict[int, dict[str, int]] = {kind: {} for kind in Kind}
        """Group of each session, device and share, by name."""
        self._leaving: list[tuple[int, str]] = []
        """Names that are forgotten once the batch is over in which they went."""
        self.seen = Seen.NOTHING
        self.places: Arrow = no_places()
        """Last known place of each device, as rows of ``reports``."""
        self._links: dict[str, set[tuple[int, str]]] = {}
        self._sessions_of: dict[tuple[int, str], set[str]] = {}
        self._members: dict[str, set[str]] = {}
        self._waiting: list[_NameChanges] = []
        parts, ended = [changed_schema().empty_table()], set[int]()
        for blob in self._blobs.read():
            changes = _decode(blob)
            parts.append(changes.subscriptions)
            ended.update(changes.ended)
            self._apply_names(changes)
            self.begin()
        rows = pa.concat_tables(parts)
        if ended:
            gone = pa.array(np.isin(rows.column("seq").to_numpy(), np.fromiter(ended, np.int64)))
            rows = rows.filter(pc.invert(gone))
        self.in_force = ColumnsInForce(rows.sort_by("seq"))

    @property
    def name(self) -> str:
        """Name of the object with this state."""
        return self._blobs.head().version

    @property
    def size_bytes(self) -> int:
        """Size of the objects, in bytes."""
        head = self._blobs.head()
        return head.base_bytes + head.changed_bytes

    @property
    def dropped(self) -> list[str]:
        """Names of the objects that the last change made useless."""
        return self._blobs.dropped

    def forget(self) -> None:
        """Do nothing: a directory has nothing outside of itself."""

    def links(self) -> dict[str, set[tuple[int, str]]]:
        """Return the devices and shares (kind and name) with which each session is linked."""
        self._settle()
        return self._links

    def sessions_of(self, device: str) -> AbstractSet[str]:
        """Return the sessions that are linked with a device."""
        self._settle()
        return self._sessions_of.get((Kind.DEVICE, device), frozenset())

    def members(self) -> Arrow:
        """Return the members of all sessions as rows of ``presence``, with the columns ``MEMBERS`` and the seq 0."""
        self._settle()
        pairs = [(device, session) for session, devices in self._members.items() for device in devices]
        schema = pa.schema([TABLES["presence"].schema.field(name) for name in MEMBERS])
        given: dict[str, list[Any]] = {
            "node": [self.node] * len(pairs),
            "seq": [0] * len(pairs),
            "device": [device for device, _ in pairs],
            "session": [session for _, session in pairs],
            "change": [PresenceChange.JOINED.value] * len(pairs),
        }
        return pa.table(given, schema=schema)

    def _settle(self) -> None:
        """Apply the changes of links and members that wait; few batches need these, and reading them takes long."""
        for links, members, gone in self._waiting:
            for kind, name, session in links:
                self._links.setdefault(session, set()).add((kind, name))
                self._sessions_of.setdefault((kind, name), set()).add(session)
            for (session, device), is_member in members.items():
                devices = self._members.setdefault(session, set())
                (devices.add if is_member else devices.discard)(device)
            for session in gone:
                for linked in self._links.pop(session, ()):
                    self._sessions_of[linked].discard(session)
                    if not self._sessions_of[linked]:
                        del self._sessions_of[linked]
                self._members.pop(session, None)
        self._waiting.clear()

    def begin(self) -> None:
        """Forget the sessions and devices that went in the last batch."""
        for kind, name in self._leaving:
            self.groups[kind].pop(name, None)
        self._leaving.clear()

    # -- changes -----------------------------------------------------------------------------------------------------

    def change(self, changes: DirectoryChanges, applied: int) -> None:
        """Make *changes*, and write them as the state after the seq *applied*, if there are any."""
        is_same = changes.seen is self.seen and not (changes.ended or changes.groups or changes.members)
        self._blobs.dropped.clear()
        added = changes.links or changes.subscriptions.num_rows or changes.places.num_rows
        if is_same and not added and self.name:
            return
        rows = self.in_force.rows()
        if changes.ended:
            gone = pc.is_in(rows.column("seq"), pa.array([*changes.ended], pa.int64()))
            rows = rows.filter(pc.invert(gone))
        if changes.ended or changes.subscriptions.num_rows:
            rows = pa.concat_tables([rows, changes.subscriptions.cast(rows.schema)]).sort_by("seq")
            self.in_force = ColumnsInForce(rows)
        self._apply_names(changes)
        blob, head = _encode(changes), self._blobs.head()
        changed_bytes = head.changed_bytes + len(blob)
        if head.version and changed_bytes <= max(head.base_bytes, _LEAST_BYTES):
            self._blobs.append([blob], Head(applied, head.base_bytes, changed_bytes))
            return
        blob = _encode(self._everything())
        self._blobs.put([blob], Head(applied, len(blob), 0))

    def _everything(self) -> DirectoryChanges:
        self._settle()
        links = [(*each, session) for session, own in self._links.items() for each in own]
        members = {(session, device): True for session, devices in self._members.items() for device in devices}
        rows, leaving = self.in_force.rows(), {*self._leaving}
        groups = {
            (kind, name): group
            for kind, own in self.groups.items()
            for name, group in own.items()
            if (kind, name) not in leaving
        }
        return DirectoryChanges(rows, [], groups, links, members, self.places, self.seen)

    def _apply_names(self, changes: DirectoryChanges) -> None:
        """Make all changes but those of subscriptions."""
        self.seen = changes.seen
        sessions = []
        for (kind, name), group in changes.groups.items():
            if group != GONE:
                self.groups[kind][name] = group
                continue
            self._leaving.append((kind, name))
            if kind == Kind.SESSION:
                sessions.append(name)
        if changes.links or changes.members or sessions:
            self._waiting.append((changes.links, changes.members, sessions))
        if len(self._waiting) > _MOST_WAITING:
            self._settle()
        if changes.places.num_rows:
            self.places = _last_places(pa.concat_tables([self.places, changes.places]))


_NameChanges: TypeAlias = tuple[Sequence[tuple[int, str, str]], Mapping[tuple[str, str], bool], Sequence[str]]
"""New links, changes of members, and sessions that are gone after these."""


def no_places() -> Arrow:
    """Return an empty table of places: rows of ``reports`` with the columns ``SEEN``."""
    return pa.schema([TABLES["reports"].schema.field(name) for name in SEEN]).empty_table()


def _last_places(rows: Arrow) -> Arrow:
    """Return the last row of each device."""
    codes = pc.dictionary_encode(rows.column("device").combine_chunks())
    last = np.zeros(len(codes.dictionary), np.int64)
    last[codes.indices.to_numpy()] = np.arange(rows.num_rows)  # the last row of a device wins
    return rows.take(pa.array(last)).combine_chunks()


# -- objects ---------------------------------------------------------------------------------------------------------


def _encode(changes: DirectoryChanges) -> bytes:
    kinds, names = zip(*changes.groups, strict=True) if changes.groups else ((), ())
    sessions, devices = zip(*changes.members, strict=True) if changes.members else ((), ())
    links = [*zip(*changes.links, strict=True)] or [(), (), ()]
    tables = {
        "subscriptions": changes.subscriptions,
        "places": changes.places,
        "ended": _columns(seq=changes.ended),
        "groups": _columns(kind=kinds, name=names, group=[*changes.groups.values()]),
        "links": _columns(kind=links[0], name=links[1], session=links[2]),
        "members": _columns(session=sessions, device=devices, is_member=[*changes.members.values()]),
    }
    found = {name: _as_bytes(table) for name, table in tables.items() if table.num_rows}
    return cbor2.dumps([changes.seen.value, found])


def _decode(blob: bytes) -> DirectoryChanges:
    try:
        seen, found = cbor2.loads(blob)
        tables = {name: pa.ipc.open_stream(told).read_all() for name, told in found.items()}
        columns = {
            name: [column.to_pylist() for column in table.columns]
            for name, table in tables.items()
            if name not in {"subscriptions", "places"}
        }
        kinds, names, groups = columns.get("groups", [[], [], []])
        sessions, devices, joined = columns.get("members", [[], [], []])
        return DirectoryChanges(
            tables.get("subscriptions", changed_schema().empty_table()),
            columns.get("ended", [[]])[0],
            dict(zip(zip(kinds, names, strict=True), groups, strict=True)),
            [*zip(*columns.get("links", [[], [], []]), strict=True)],
            dict(zip(zip(sessions, devices, strict=True), joined, strict=True)),
            tables.get("places", no_places()),
            Seen(seen),
        )
    except (cbor2.CBORDecodeError, pa.ArrowInvalid, ValueError, TypeError) as error:
        raise CorruptStoreError("directory of a node", f"{error}") from error


_TYPES = {"kind": pa.int8(), "group": pa.int16(), "seq": pa.int64(), "is_member": pa.bool_()}


def _columns(**given: Any) -> Arrow:
    return pa.table({name: pa.array(values, _TYPES.get(name, pa.string())) for name, values in given.items()})


def _as_bytes(table: Arrow) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
