"""Span changes: changes of a node's subscriptions, sessions, memberships and places in a span of its log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.log.reader import LogPlace
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import PresenceChange, SessionChange
from whimbrel.model.tables import TABLES
from whimbrel.node.checkpoint import RowScope, scope_of
from whimbrel.pipeline.files.snapshots import Missing
from whimbrel.pipeline.fold.events import Seen
from whimbrel.pipeline.fold.shards import find_links
from whimbrel.pipeline.fold.start_state import StartState
from whimbrel.pipeline.stream.groups.assignment import Assignment, Name
from whimbrel.pipeline.stream.groups.directory import GONE, Directory, DirectoryChanges, Kind, no_places
from whimbrel.pipeline.stream.groups.group_rows import REPORTS_KINDS
from whimbrel.pipeline.stream.job import Job, Span
from whimbrel.pipeline.subscriptions.in_force import changed_schema
from whimbrel.pipeline.subscriptions.moves import MEMBERS, SEEN
from whimbrel.pipeline.subscriptions.versions import CHANGED, DELETED, touched_sessions, validity_intervals

__all__ = ["SpanTables"]

Arrow = Any
"""A ``pyarrow.Table``; pyarrow ships no types."""

_READ: dict[str, tuple[str, ...]] = {
    "interests": CHANGED,
    "sessions": (*DELETED, "device"),
    "presence": MEMBERS,
    "policies": ("text", "device"),
    "reports": SEEN,
}
"""Columns to read of each table."""
_PLACE_EVERY = 5_000
"""Number of records after which a place is noted, for the tasks that match slices of the span."""
_JOINED, _LEFT = PresenceChange.JOINED.value, PresenceChange.LEFT.value


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanTables:
    """Rows of the span that begins with the seq *first*, of all tables but publications, receipts and decisions."""

    first: int
    changed: Arrow
    """Rows of ``interests``, with the columns ``CHANGED``."""
    sessions: Arrow
    presence: Arrow
    """Rows of ``presence``, with the columns ``MEMBERS``."""
    policies: Arrow
    reports: Arrow
    """Rows of ``reports``, with the columns ``SEEN``."""
    places: tuple[LogPlace, ...]
    """Places of some records of the span in the node's segments."""

    @classmethod
    def read(cls, job: Job, node: str, first: int, span: Span, *, places: Iterable[LogPlace]) -> SpanTables:
        """Read the seqs of *span* from *first* on; *places* are known places of records."""
        reader = replace(job, piece_facts=min(job.piece_facts, _PLACE_EVERY)).reader(node, _READ, places=places)
        found: dict[str, list[Arrow]] = {
            name: [TABLES[name].schema.empty_table().select(list(columns))] for name, columns in _READ.items()
        }
        missing: tuple[Missing, ...] = span.missing
        for piece in reader.pieces(first, span.last, now=0, missing=missing):
            for name in piece.tables:
                found[name].append(piece.table(name, _READ[name]))
        tables = {name: pa.concat_tables(rows).combine_chunks() for name, rows in found.items()}
        return cls(
            first=first,
            changed=tables["interests"],
            sessions=tables["sessions"],
            presence=tables["presence"],
            policies=tables["policies"],
            reports=tables["reports"],
            places=tuple(reader.places),
        )

    @property
    def deleted(self) -> Arrow:
        """Rows of ``sessions``, with the columns ``DELETED``."""
        return self.sessions.select(list(DELETED))

    @property
    def _placed(self) -> Arrow:
        return self.reports.filter(self.reports.column("place").is_valid())

    # -- groups ------------------------------------------------------------------------------------------------------

    def names(self) -> set[Name]:
        """Return all sessions and devices."""
        found: set[Name] = set()
        for rows in (self.changed, self.sessions, self.presence):
            found |= {(Kind.SESSION, name) for name in _distinct(rows, "session")}
        for rows in (self.sessions, self.presence):
            found |= {(Kind.DEVICE, name) for name in _distinct(rows, "device")}
        for rows in (self.reports, self.policies):
            found |= {(Kind.DEVICE, name) for name in _distinct(rows, "device")}
        return found

    def links(self) -> list[tuple[int, str, str]]:
        """Return the links of sessions with devices and shares: kind and name of the device or share, and session."""
        devices, shares = find_links([self.presence], [self.sessions], [self.changed])
        return [*((Kind.DEVICE, *pair) for pair in devices), *((Kind.SHARE, *pair) for pair in shares)]

    # -- changes -----------------------------------------------------------------------------------------------------

    def moves(self, directory: Directory) -> dict[str, Arrow]:
        """Return where devices were before and within the span, and in which sessions; nothing if no place is known."""
        if not directory.places.num_rows and not self._placed.num_rows:
            return {}
        return {
            "places": pa.concat_tables([directory.places, self._placed]),
            "members": pa.concat_tables([directory.members(), self.presence]),
            "deleted": self.deleted,
        }

    def changes(self, directory: Directory, made: Assignment, seen: Seen) -> DirectoryChanges:
        """Return the changes of *directory*, which has the state before the span."""
        put, ended = self._subscriptions(directory)
        links, gone, kept = self.links(), self._find_deleted(), self._kept_devices()
        groups = dict(made.groups) | dict.fromkeys(((Kind.SESSION, session) for session in gone), GONE)
        groups |= dict.fromkeys((name for name in kept if name[1] not in directory.groups[Kind.KEPT_DEVICE]), 0)
        if seen is Seen.NOTHING:  # else policies may have stored something for a device
            unlinked = self._find_unlinked(directory, {*gone}, links)
            groups |= dict.fromkeys(((Kind.DEVICE, name) for name in unlinked - {name for _, name in kept}), GONE)
        return DirectoryChanges(put, ended, groups, links, self._members(), self._placed, seen)

    def _kept_devices(self) -> set[Name]:
        """Return the devices that report, or have a policy of their own."""
        return {
            (Kind.KEPT_DEVICE, name) for rows in (self.reports, self.policies) for name in _distinct(rows, "device")
        }

    @staticmethod
    def _find_unlinked(directory: Directory, gone: set[str], links: list[tuple[int, str, str]]) -> set[str]:
        """Return the devices that are in no session any more, because those with the names *gone* were deleted."""
        if not gone:
            return set()
        older = directory.links()
        found = {name for session in gone for kind, name in older.get(session, ()) if kind == Kind.DEVICE}
        found |= {name for kind, name, session in links if kind == Kind.DEVICE and session in gone}
        found -= {name for kind, name, session in links if kind == Kind.DEVICE and session not in gone}
        kept = directory.groups[Kind.KEPT_DEVICE]
        return {name for name in found if name not in kept and not directory.sessions_of(name) - gone}

    def _subscriptions(self, directory: Directory) -> tuple[Arrow, list[int]]:
        """Return the rows of the subscriptions that are new and in force, and the seqs of those that ended."""
        touched = touched_sessions(self.changed, self.sessions)
        if not touched:
            return self.changed, []
        before = directory.in_force.rows_of(touched)
        changed = self.changed.cast(before.schema)
        found = validity_intervals(pa.concat_tables([before, changed]), self.deleted)
        is_open = pc.equal(found.column("ended_seq"), INT64_MAX)
        seqs = found.filter(is_open).column("interest_seq").combine_chunks()
        put = changed.filter(pc.is_in(changed.column("seq"), seqs))
        ended = before.filter(pc.invert(pc.is_in(before.column("seq"), seqs)))
        return put, ended.column("seq").to_pylist()

    def _deletions(self) -> dict[str, int]:
        """Return the seq of the last deletion of each session that was deleted."""
        rows = self.sessions.filter(pc.equal(self.sessions.column("change"), SessionChange.DELETED.value))
        return dict(zip(rows.column("session").to_pylist(), rows.column("seq").to_pylist(), strict=True))

    def _find_deleted(self) -> list[str]:
        """Return the sessions that do not exist at the end of the span."""
        deleted = self._deletions()
        for rows in (self.changed, self.sessions, self.presence) if deleted else ():
            some = rows.filter(pc.is_in(rows.column("session"), pa.array([*deleted], pa.string())))
            for session, seq in zip(some.column("session").to_pylist(), some.column("seq").to_pylist(), strict=True):
                if session in deleted and seq > deleted[session]:
                    del deleted[session]
        return [*deleted]

    def _members(self) -> dict[tuple[str, str], bool]:
        """Return whether each device that joined or left a session is a member at the end of the span."""
        found: dict[tuple[str, str], bool] = {}
        deleted = self._deletions()
        for seq, session, device, change in self._presence():
            if change in {_JOINED, _LEFT}:
                found[session, device] = change == _JOINED and seq > deleted.get(session, -1)
        return found

    def _presence(self) -> Iterator[tuple[int, str, str, str]]:
        columns = (self.presence.column(name).to_pylist() for name in ("seq", "session", "device", "change"))
        return zip(*columns, strict=True)

    # -- the first batch in groups -----------------------------------------------------------------------------------

    def initial(self, begun: StartState) -> DirectoryChanges:
        """Return the content of a directory for the state *begun*; groups are to be assigned."""
        schema = changed_schema()
        subscriptions = begun.interest_rows().select(list(CHANGED)).cast(schema)
        members = [*begun.members()]
        names: set[Name] = {(Kind.SESSION, session) for _, session in members}
        names |= {(Kind.SESSION, name) for name in _distinct(subscriptions, "session")}
        for key, _ in begun.rows:
            if key[0] in REPORTS_KINDS:
                continue
            scope, whose = scope_of(key)
            if scope is RowScope.SESSION:
                names.add((Kind.SESSION, str(whose)))
            elif scope is RowScope.DEVICE:
                names |= {(Kind.DEVICE, str(whose)), (Kind.KEPT_DEVICE, str(whose))}
        _, shares = find_links([], [], [subscriptions])
        links = [*((Kind.DEVICE, *pair) for pair in begun.links()), *((Kind.SHARE, *pair) for pair in shares)]
        places = [
            {
                "node": begun.node,
                "seq": seen.seq,
                "reported_at": seen.reported_at,
                "device": device,
                "place": {"latitude": seen.place.latitude, "longitude": seen.place.longitude},
            }
            for device, seen in begun.places().items()
        ]
        placed = pa.Table.from_pylist(places, schema=no_places().schema)
        groups = dict.fromkeys(names, 0)
        joined = {(session, device): True for device, session in members}
        return DirectoryChanges(subscriptions, [], groups, links, joined, placed, Seen.NOTHING)


def _distinct(rows: Arrow, column: str) -> list[str]:
    found: list[str] = pc.unique(rows.column(column)).drop_null().to_pylist()
    return found
