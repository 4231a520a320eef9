"""Node state: what a stream remembers of a node between two batches: its subscriptions, and what it holds for devices.

A node's log is one sequence, and the hold is a fold over it, so a node is folded in one place (``unit``). This takes
the events in and keeps the state in memory and, in small steps, in a store of its own.
Rule: the state is that of the number it says (``applied``), and is committed after everything that was made of a batch
has been written. A batch that is done again begins from the same state and makes the same.
Rule: it is bounded by what is held, who subscribes and which devices report, not by the length of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, TypeAlias

import cbor2
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.hold.commands import Identity
from whimbrel.hold.retention import Retention
from whimbrel.hold.sessions import Hold
from whimbrel.hold.store.interface import RowStore
from whimbrel.hold.touched_rows import Key, changed_rows
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import SessionChange
from whimbrel.model.place import Place
from whimbrel.model.proximity import Sighting
from whimbrel.model.rows import row_of
from whimbrel.model.subscription import InterestChange
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.fold.beginnings import Beginning, Known
from whimbrel.pipeline.fold.contact_fold import CONTACT_KINDS, ContactFold, ContactPlan
from whimbrel.pipeline.fold.described import Described
from whimbrel.pipeline.fold.events import Seen
from whimbrel.pipeline.fold.folds import Fold, Rows, events_of, plain
from whimbrel.pipeline.fold.moves import Moves
from whimbrel.pipeline.fold.policies import KeptContent, PolicyFold
from whimbrel.pipeline.fold.versions import open_intervals, touched, validity_intervals
from whimbrel.pipeline.tables.link_quality import Links
from whimbrel.pipeline.tables.matches import CHANGED
from whimbrel.shape.rows import KINDS as SHAPE_KINDS
from whimbrel.shape.rows import restore_row
from whimbrel.shape.rows import row_of as shape_row
from whimbrel.shape.state import ShapeState
from whimbrel.shape.variables import LinkState

__all__ = ["Held", "LogMark", "NodeState", "begun_rows", "changed_schema"]

_INTEREST, _KNOWN, _LINK, _TIME, _SHAPED = "interest", "notification", "link", "time", "shaped body"
_DIFFERENCE, _CONTENT, _SIGHTING, _DECIDED, _MARK = "difference", "content", "sighting", "decided", "log mark"
_OF_OWED = frozenset({_KNOWN, _SHAPED, _DIFFERENCE, _CONTENT})
_OWN = SHAPE_KINDS | _OF_OWED | CONTACT_KINDS | {_INTEREST, _LINK, _TIME, _SIGHTING, _DECIDED, _MARK}
_Row: TypeAlias = tuple[Any, ...]
"""A subscription in force: the values of the columns ``CHANGED``."""
_SEQ, _SESSION = CHANGED.index("seq"), CHANGED.index("session")
_IDENTITY = slice(CHANGED.index("subject_filter"), CHANGED.index("name") + 1)
_INTERVAL_NAMES = {"seq": "interest_seq", "changed_at": "began_at", "change": "session"}
"""How ``validity_intervals`` calls columns; the change is always the same, and is put in its place."""
_ROWS_AT_ONCE = 50_000
_FEW = 1_000


def changed_schema() -> Any:  # a pyarrow.Schema
    """Return the columns of ``interests`` that say who wants what."""
    schema = TABLES["interests"].schema
    return pa.schema([schema.field(name) for name in CHANGED])


class Held(NamedTuple):
    """A notification that has no outcome yet in a session: in flight to a device, or held for the next one."""

    node: str
    session: str
    seq: int
    device: str | None


class LogMark(NamedTuple):
    """The place in a log that a state is of, beside its number."""

    incarnation: str | None = None
    """That of the log; None if it has none."""
    digest: str | None = None
    """That of the last fact."""


class _Owed:
    """What a store has of the notifications that devices are owed, by their numbers."""

    def __init__(self) -> None:
        self.known: dict[int, Known] = {}
        self.shaped: dict[int, dict[str, bytes]] = {}
        self.differences: dict[int, dict[str, str]] = {}
        self.contents: dict[int, KeptContent] = {}

    def restore(self, key: Key, value: Any) -> None:
        """Take in a row."""
        kind, seq = key[0], int(str(key[1]))
        if kind == _KNOWN:
            self.known[seq] = Known(*value)
        elif kind == _SHAPED:
            self.shaped[seq] = value
        elif kind == _DIFFERENCE:
            self.differences[seq] = value
        else:
            self.contents[seq] = KeptContent(*value)

    def described(self) -> Iterator[Described]:
        """Yield the notifications."""
        for seq, known in self.known.items():
            kept = Described(seq, known, content=self.contents.get(seq))
            kept.shaped, kept.differences = self.shaped.get(seq), self.differences.get(seq)
            yield kept


def begun_rows(begun: Beginning) -> dict[Key, bytes]:
    """Return a checkpoint's state as the rows that a ``NodeState`` is restored from."""
    rows = dict(begun.hold) | dict(begun.shape)
    rows |= {key: cbor2.dumps(row) for key, row in ContactFold.begun_rows(begun.at, begun.places).items()}
    rows[_TIME,], rows[_DECIDED,] = cbor2.dumps(begun.at), cbor2.dumps(begun.decided)
    rows |= {(_CONTENT, seq): cbor2.dumps(list(content)) for seq, content in begun.contents.items()}
    rows |= {(_KNOWN, seq): cbor2.dumps(list(known)) for seq, known in begun.known.items()}
    rows |= {(_SHAPED, seq): cbor2.dumps(dict(devices)) for seq, devices in begun.shaped.items()}
    rows |= {(_LINK, device): cbor2.dumps(list(link)) for device, link in begun.links.items()}
    rows |= {(_SIGHTING, device): cbor2.dumps(_sighting_row(seen)) for device, seen in begun.places.items()}
    for fact in begun.interests:
        _, row = row_of(fact)
        rows[_INTEREST, fact.seq] = cbor2.dumps({name: row[name] for name in CHANGED if name != "node"})
    return rows


class NodeState:
    """One node, as far as its log was folded; *store* has what was known when it was committed last."""

    def __init__(
        self,
        node: str,
        store: RowStore,
        *,
        retention: Retention,
        assume_receipts: bool,
        contact: ContactPlan | None = None,
    ) -> None:
        self.node, self._store = node, store
        self.contacts = None if contact is None else ContactFold(contact)
        """The contacts between devices that have not ended; None where no table of them is made."""
        self.links = Links(node)
        self.last_at: int | None = None
        """The time of the last fact, in microseconds."""
        self.mark = LogMark()
        """Where in which log the state is, as was said before the last commit."""
        self._in_force: dict[str, dict[Identity, _Row]] = {}
        """By session, its subscriptions in force, as rows of ``interests`` that added them."""
        self._saved_interests: dict[str, set[int]] = {}
        """By session, the numbers of those that are in the store."""
        self._touched: set[str] = set()
        """The sessions whose subscriptions have changed since."""
        self._tables: tuple[Any, Any] | None = None
        """``in_force`` and ``open_intervals``, as long as no subscription changes."""
        owed, shape = _Owed(), ShapeState()
        seen: dict[str, Sighting] = {}
        decided = 0
        others: list[tuple[Key, bytes]] = []
        for key, value in store.rows():
            if key[0] not in _OWN:
                others.append((key, value))
            elif key[0] == _SIGHTING:
                seen[str(key[1])] = _as_sighting(*cbor2.loads(value))
            elif key[0] in _OF_OWED:
                owed.restore(key, cbor2.loads(value))
            elif key[0] in SHAPE_KINDS:
                restore_row(shape, key, value)
            elif key[0] == _DECIDED:
                decided = cbor2.loads(value)
            else:
                self._restore(key, value)
        hold: Hold[Described] = Hold.restore(node, others, retention=retention)
        for described in owed.described():
            hold.keep_again(described)
        policies = PolicyFold(shape, decided)
        self._fold = Fold(node, retention=retention, assume_receipts=assume_receipts, hold=hold, policies=policies)
        self._decides = assume_receipts
        self.moves = Moves()
        """Where the devices are, and whose members."""
        self.moves.restore(seen, ((name, device) for name in hold.sessions() for device in hold.members(name)))
        self._held_since = [(known.published_at, seq) for seq, known in owed.known.items()]
        """A heap: when what is held was published, and of some that is held no more."""
        heapify(self._held_since)
        self.links.restored()
        self._fold.whose = {
            row[_SEQ]: (session, identity) for session, rows in self._in_force.items() for identity, row in rows.items()
        }

    def _restore(self, key: Key, value: bytes) -> None:
        found = cbor2.loads(value)
        if key[0] == _TIME:
            self.last_at = found
        elif key[0] == _MARK:
            self.mark = LogMark(*found)
        elif key[0] == _LINK:
            self.links.state[str(key[1])] = LinkState(*found)
        elif key[0] in CONTACT_KINDS:
            if self.contacts is not None:
                self.contacts.restore(key, found)
        else:
            row = (self.node, *(found.get(name) for name in CHANGED[1:]))
            self._in_force.setdefault(found["session"], {})[found["subject_filter"], found["name"]] = row
            self._saved_interests.setdefault(found["session"], set()).add(found["seq"])

    @property
    def applied(self) -> int:
        """The number of the last fact that is in the state that was committed."""
        return self._store.applied

    @property
    def size(self) -> int:
        """How many things are remembered, as of the last commit."""
        held = sum(self._fold.hold.counts().values())
        return len(self._fold.whose) + held + len(self.links.state) + self.moves.keeper.size

    @property
    def oldest_at(self) -> int:
        """When the oldest notification was published of which something is still held."""
        hold, since = self._fold.hold, self._held_since
        while since and not hold.is_stored(since[0][1]):
            heappop(since)
        return since[0][0] if since else INT64_MAX

    def held(self) -> Iterator[Held]:
        """Yield what has no outcome yet."""
        for session, seq, devices in self._fold.hold.pending():
            for device in devices or (None,):
                yield Held(self.node, session, seq, device)

    def away(self) -> dict[str, int]:
        """Return, for each device that is away from a session, how many notifications wait there for it."""
        found: dict[str, int] = {}
        hold = self._fold.hold
        for session in hold.sessions():
            for device, (is_present, _) in hold.members(session).items():
                if not is_present:
                    found[device] = found.get(device, 0) + hold.pending_count(session)
        return found

    # -- a batch -----------------------------------------------------------------------------------------------------

    def in_force(self) -> Any:  # a pyarrow.Table
        """Return the subscriptions that are in force, as rows that added them."""
        return self._current()[0]

    def open_intervals(self) -> Any:  # a pyarrow.Table
        """Return the intervals of all subscriptions that are in force."""
        return self._current()[1]

    def _current(self) -> tuple[Any, Any]:
        if self._tables is None:
            rows = self.in_force_of(self._in_force)
            self._tables = (rows, open_intervals(rows))
        return self._tables

    def in_force_of(self, sessions: Iterable[str]) -> Any:  # a pyarrow.Table
        """Return the subscriptions of some sessions that are in force, as rows that added them."""
        return _table(row for name in sessions for row in self._in_force.get(name, {}).values())

    def seen(self, put: Any) -> Seen:  # a pyarrow.Table
        """Return what policies may have to see of what is published next; the texts of those that are *put* too."""
        policies = self._fold.policies
        texts = put.column("text").drop_null().to_pylist()
        if self._decides or policies.needs_bodies or any(map(policies.reads_bodies, texts)):
            return Seen.BODIES
        return Seen.ATTRIBUTES if texts or policies.are_any else Seen.NOTHING

    def fold(self, batches: Iterable[Any], end: int | None) -> Iterator[Any]:
        """Take events in, ordered by number, let time pass to *end*, and yield rows of ``deliveries``."""
        out = Rows()
        for batch in batches:
            for event in events_of(batch):
                self._fold.take(event, out)
                if len(out) >= _ROWS_AT_ONCE:
                    yield out.batch()
        if end is not None:
            self._fold.close(end, out)
            self.last_at = end if self.last_at is None else max(end, self.last_at)
        if len(out):
            yield out.batch()

    def change(self, interests: Any, sessions: Any) -> Any:  # pyarrow.Tables
        """Take in how subscriptions changed, and return the intervals of those that were changed, begun or ended."""
        changed = touched(interests, sessions)
        if not changed:
            return self.no_intervals()
        found = validity_intervals(pa.concat_tables([_table(self._replaced(interests, sessions)), interests]), sessions)
        # Those that ended on the way are asked for no more.
        for seq in found.column("interest_seq").to_pylist():
            self._fold.whose.pop(seq, None)
        goes_on = found.filter(pc.equal(found.column("ended_seq"), INT64_MAX))
        columns = {name: plain(goes_on.column(_INTERVAL_NAMES.get(name, name))) for name in CHANGED}
        columns["change"] = [InterestChange.ADDED.value] * goes_on.num_rows
        for row in zip(*columns.values(), strict=True):
            session, identity = row[_SESSION], row[_IDENTITY]
            self._in_force.setdefault(session, {})[identity] = row
            self._fold.whose[row[_SEQ]] = (session, identity)
        self._touched |= changed
        self._tables = None
        return found

    @staticmethod
    def no_intervals() -> Any:  # a pyarrow.Table
        """Return the intervals of no subscription."""
        return open_intervals(changed_schema().empty_table())

    def _replaced(self, interests: Any, sessions: Any) -> Iterator[_Row]:  # pyarrow.Tables
        """Remove the subscriptions in force that rows of these tables change or end, and yield them."""
        names = ("session", "subject_filter", "name")
        for session, *identity in zip(*(interests.column(name).to_pylist() for name in names), strict=True):
            row = self._in_force.get(session, {}).pop((identity[0], identity[1]), None)
            if row is not None:
                yield row
        is_gone = pc.equal(sessions.column("change"), SessionChange.DELETED.value)
        for session in sessions.filter(is_gone).column("session").to_pylist():
            yield from self._in_force.pop(session, {}).values()

    def commit(self, last: int) -> None:
        """Keep the state as that of the number *last*."""
        put, drop = self._fold.hold.changes()
        if self.last_at is not None:
            self.links.forget(self.last_at)
        fold, shape = self._fold, self._fold.policies.shape
        kept, links = fold.hold.kept, self.links.state
        now = {row[_SEQ]: row for session in self._touched for row in self._in_force.get(session, {}).values()}
        saved = {seq for session in self._touched for seq in self._saved_interests.get(session, ())}
        table: dict[str, Callable[[Any], object | None]] = {
            _KNOWN: lambda seq: None if (found := kept(seq)) is None else list(found.known),
            _SHAPED: lambda seq: None if (found := kept(seq)) is None else found.shaped,
            _DIFFERENCE: lambda seq: None if (found := kept(seq)) is None else found.differences,
            _CONTENT: lambda seq: list(found.content) if (found := kept(seq)) and found.content else None,
            _INTEREST: lambda seq: dict(zip(CHANGED[1:], now[seq][1:], strict=True)) if seq in now else None,
            _LINK: lambda device: list(links[device]) if device in links else None,
            _SIGHTING: self._sighting,
        }
        touched_keys: list[Key] = [(_KNOWN, seq) for seq in fold.known_changed]
        touched_keys += [(kind, seq) for seq in fold.changed for kind in (_SHAPED, _DIFFERENCE, _CONTENT)]
        touched_keys += [(_INTEREST, seq) for seq in now.keys() ^ saved]
        touched_keys += [(_LINK, device) for device in self.links.changed]
        touched_keys += [(_SIGHTING, device) for device in self.moves.keeper.changed]
        own, gone = changed_rows(touched_keys, table)
        put |= own
        drop |= gone
        for key in shape.touched:
            row = shape_row(shape, key)
            if row is None:
                drop.add(key)
            else:
                put[key] = row
        put[(_TIME,)], put[(_MARK,)] = cbor2.dumps(self.last_at), cbor2.dumps(list(self.mark))
        if self.contacts is not None:
            met, parted = self.contacts.touched.rows()
            put |= met
            drop |= parted
        self._store.commit(last, put, drop)
        self._note_held(fold.known_changed)
        fold.known_changed.clear()
        fold.changed.clear()
        shape.touched.clear()
        for session in self._touched:
            self._saved_interests.pop(session, None)
        for seq, wanted in now.items():
            self._saved_interests.setdefault(wanted[_SESSION], set()).add(seq)
        self._touched.clear()
        self.links.changed.clear()
        self.moves.keeper.changed.clear()
        if self.contacts is not None:
            self.contacts.touched.clear()

    def discard_changes(self) -> None:
        """Forget what has changed since the last commit: there will be none."""
        self._fold.hold.discard_changes()
        self._fold.known_changed.clear()
        self._fold.changed.clear()
        self._fold.policies.shape.touched.clear()
        self._touched.clear()
        self.links.changed.clear()
        self.moves.keeper.changed.clear()

    def _note_held(self, new: Iterable[int]) -> None:
        """Remember when *new* notifications were published; what is held no more goes when it is most of them."""
        hold = self._fold.hold
        for seq in new:
            if (kept := hold.kept(seq)) is not None:
                heappush(self._held_since, (kept.published_at, seq))
        if len(self._held_since) > 2 * hold.counts()["notifications"] + _FEW:
            self._held_since = [(kept.published_at, seq) for seq, kept in hold.all_kept() if kept is not None]
            heapify(self._held_since)

    def _sighting(self, device: str) -> list[Any] | None:
        seen = self.moves.keeper.place(device)
        return None if seen is None else _sighting_row(seen)

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()


def _sighting_row(seen: Sighting) -> list[Any]:
    return [seen.seq, seen.reported_at, seen.place.latitude, seen.place.longitude]


def _table(rows: Iterable[_Row]) -> Any:  # a pyarrow.Table
    columns: list[Any] = list(zip(*rows, strict=True)) or [()] * len(CHANGED)
    schema = changed_schema()
    return pa.table([pa.array(column, f.type) for column, f in zip(columns, schema, strict=True)], schema=schema)


def _as_sighting(number: int, reported_at: int, latitude: float, longitude: float) -> Sighting:
    return Sighting(number, reported_at, Place(latitude, longitude))
