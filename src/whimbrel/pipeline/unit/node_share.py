"""The state of one node in a worker: sessions and policies (the core), and state that tables need, stored as rows.

A node's log is one sequence, and its core is computed by applying it in order (a fold), so one worker folds a node
(``take``). The state is in memory; a store of its own gets the changed rows at each commit.
Rule: the stored state is the state after the seq ``applied``. It is committed after all output of a batch has been
written. So a batch that is repeated starts from the same state and makes the same output.
Rule: the state's size depends on the held notifications, the subscriptions and the reporting devices, not on the length
of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import cbor2

from whimbrel.hold.retention import Retention
from whimbrel.hold.rows import KINDS as HOLD_KINDS
from whimbrel.hold.sessions import Hold
from whimbrel.hold.store.interface import RowStore
from whimbrel.hold.touched_rows import Key
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import Fact
from whimbrel.model.proximity import Sighting
from whimbrel.node.core import NodeCore
from whimbrel.node.held import HeldNotifications
from whimbrel.node.link_quality import LinkQuality
from whimbrel.node.memory import MemoryCount
from whimbrel.node.places.last_places import LastPlaces, sighting_of
from whimbrel.node.policies import Policies
from whimbrel.pipeline.fold.contact_fold import CONTACT_KINDS, ContactFold, ContactPlan
from whimbrel.pipeline.fold.delivery_rows import Rows
from whimbrel.pipeline.fold.described import Described
from whimbrel.pipeline.fold.events import Seen
from whimbrel.pipeline.fold.folds import Fold, events_of
from whimbrel.pipeline.fold.start_state import STATE_FORMAT
from whimbrel.pipeline.subscriptions.in_force import InForce
from whimbrel.pipeline.subscriptions.moves import Moves
from whimbrel.pipeline.unit.old_rows import upgrade

__all__ = ["Held", "LogMark", "NodeShare"]

_ROWS_AT_ONCE = 50_000
_FEW = 1_000


class Held(NamedTuple):
    """A notification that has no outcome yet in a session: in flight to a device, or held for the next one."""

    node: str
    session: str
    seq: int
    device: str | None


class LogMark(NamedTuple):
    """Identity of the log that a state was folded from, to detect that another log has the same seqs."""

    incarnation: str | None = None
    """Incarnation of the log; None if the log has none."""
    digest: str | None = None
    """Digest of the last fact."""


class LogPosition:
    """The part of the state that records how far the log was read: the time of the last fact, and its ``LogMark``."""

    kinds = frozenset({"time", "log mark"})

    def __init__(self) -> None:
        self.last_at: int | None = None
        self.mark = LogMark()

    def keys(self) -> Iterator[Key]:
        """Yield the keys of the row of the time, and of the row of the mark."""
        yield from (("time",), ("log mark",))

    def row(self, key: Key) -> bytes:
        """Return the row of the time, or of the mark (identity of the log), which also has the format of all rows."""
        return cbor2.dumps(self.last_at if key[0] == "time" else [*self.mark, STATE_FORMAT])

    def restore(self, rows: Mapping[Key, bytes]) -> None:
        """Restore the time of the last fact and the mark (identity of the log) from *rows*."""
        for key, value in rows.items():
            found = cbor2.loads(value)
            if key[0] == "time":
                self.last_at = found
            else:
                self.mark = LogMark(*found[: len(LogMark._fields)])


class NodeShare:
    """State of one node after the part of its log that was replayed; *store* has the state of the last commit."""

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
        of_hold, of_contacts, own, self._is_old = _sorted_rows(node, store)
        hold: Hold[Described] = Hold.restore(node, of_hold, retention=retention)
        policies = Policies(node, MemoryCount())
        held = HeldNotifications(hold, Described.row, Described.restored)
        self._core = core = NodeCore(node, hold, held, policies)
        self._position = LogPosition()
        self.moves = Moves()
        """Places of the devices, and the sessions whose members they are."""
        self.links = LinkQuality(core.rows.touch, MemoryCount(), most=INT64_MAX)
        core.add([self._position, LastPlaces(self.moves.keeper), self.links])
        core.restore(own)
        self.moves.restore((name, device) for name in hold.sessions() for device in hold.members(name))
        self.contacts = None if contact is None else ContactFold(contact)
        """Contacts between devices that have not ended; None if the table ``contacts`` is not made."""
        if self.contacts is not None:
            for key, row in of_contacts:
                self.contacts.restore(key, cbor2.loads(row))
            if not of_contacts and self.last_at is not None:  # the log starts at a checkpoint
                self.contacts.begin(self.last_at, _places(own))
        self.in_force = InForce(node, hold)
        self._decides = assume_receipts
        self._fold = Fold(core, assume_receipts=assume_receipts, whose=self.in_force.whose)
        self._held_since = [(kept.published_at, seq) for seq, kept in hold.all_kept() if kept is not None]
        """Heap of (publication time, seq) of the held notifications, and of some that are no longer held."""
        heapify(self._held_since)

    @property
    def last_at(self) -> int | None:
        """The time of the last fact, in microseconds."""
        return self._position.last_at

    @property
    def mark(self) -> LogMark:
        """The incarnation of the log and the digest of its last fact, set by the caller before each commit.

        Later batches compare them with the log, to detect that another log has taken its place.
        """
        return self._position.mark

    @mark.setter
    def mark(self, mark: LogMark) -> None:
        self._position.mark = mark

    @property
    def applied(self) -> int:
        """The seq of the last fact in the committed state."""
        return self._store.applied

    @property
    def size(self) -> int:
        """Number of items in the state: subscriptions, rows of the hold, links and places."""
        held = sum(self._core.hold.counts().values())
        return len(self.in_force.whose) + held + len(self.links.state) + self.moves.keeper.size

    @property
    def oldest_at(self) -> int:
        """Publication time of the oldest notification that is still held; ``INT64_MAX`` if none is."""
        hold, since = self._core.hold, self._held_since
        while since and not hold.is_stored(since[0][1]):
            heappop(since)
        return since[0][0] if since else INT64_MAX

    @property
    def due_at(self) -> int | None:
        """The earliest time at which a notification may lapse without another fact; None if none may."""
        return self._core.hold.next_lapse

    def find_held(self) -> Iterator[Held]:
        """Yield each session's notifications without an outcome: once per device that has one in flight, else once."""
        for session, seq, devices in self._core.hold.pending():
            for device in devices or (None,):
                yield Held(self.node, session, seq, device)

    def away(self) -> dict[str, int]:
        """Return the number of notifications that are held for each absent device, over all its sessions."""
        found: dict[str, int] = {}
        hold = self._core.hold
        for session in hold.sessions():
            for device, (is_present, _) in hold.members(session).items():
                if not is_present:
                    found[device] = found.get(device, 0) + hold.pending_count(session)
        return found

    # -- a batch -----------------------------------------------------------------------------------------------------

    def seen_content(self, put: Any) -> Seen:  # a pyarrow.Table
        """Return which content of publications policies may read: those in force, and those that the rows *put* add."""
        policies = self._fold.policies
        texts = put.column("text").drop_null().to_pylist()
        if self._decides or policies.needs_bodies or any(map(policies.reads_bodies, texts)):
            return Seen.BODIES
        return Seen.ATTRIBUTES if texts or policies.are_any else Seen.NOTHING

    def fold(self, batches: Iterable[Any], facts: Mapping[int, Fact], end: int | None) -> Iterator[Any]:
        """Apply events in the order of their seqs, advance the time to *end*, and yield rows of ``deliveries``.

        *facts* has the facts of events of the kind ``FACT``, per seq.
        """
        out = Rows(self.node)
        for batch in batches:
            for event in events_of(batch):
                self._fold.take(event, facts, out)
                if len(out) >= _ROWS_AT_ONCE:
                    yield from out.batches()
        if end is not None:
            self._fold.close(end, out)
            self.pass_time(end)
        yield from out.batches()

    def pass_time(self, end: int | None) -> None:
        """Record that the log has a fact of the time *end*; sessions are not told."""
        if end is not None:
            self._position.last_at = end if self.last_at is None else max(end, self.last_at)

    def commit(self, last: int) -> None:
        """Write the rows that changed since the last commit to the store, as the state after the seq *last*."""
        if self.last_at is not None:
            self.links.forget(self.last_at)
        rows, keeper = self._core.rows, self.moves.keeper
        for device in keeper.changed:
            rows.touch(("place", device))
        keeper.changed.clear()
        for kind in self._position.kinds:
            rows.touch((kind,))
        if self._is_old:
            rows.touch_all()
        put, drop = rows.changes()
        self._note_held(put)
        if self.contacts is not None:
            met, parted = self.contacts.touched.rows()
            put |= {key: cbor2.dumps(row) for key, row in self.contacts.rows().items()} if self._is_old else met
            drop |= parted
        if self._is_old:
            self._store.replace(last, put)
            self._is_old = False
        else:
            self._store.commit(last, put, drop)
        if self.contacts is not None:
            self.contacts.touched.clear()

    def discard_changes(self) -> None:
        """Forget which rows changed since the last commit, because no further commit follows."""
        self._core.rows.discard_changes()
        self.moves.keeper.changed.clear()

    def _note_held(self, put: Iterable[Key]) -> None:
        """Add notifications that became held, by the stored rows *put*, to the heap ``_held_since``.

        The heap is rebuilt once most of its entries are of notifications that are not held any more.
        """
        hold = self._core.hold
        for key in put:
            if key[0] == "notification" and (kept := hold.kept(int(str(key[1])))) is not None:
                heappush(self._held_since, (kept.published_at, kept.seq))
        if len(self._held_since) > 2 * hold.counts()["notifications"] + _FEW:
            self._held_since = [(kept.published_at, seq) for seq, kept in hold.all_kept() if kept is not None]
            heapify(self._held_since)

    def close(self) -> None:
        """Close the store."""
        self._store.close()


_Rows = list[tuple[Key, bytes]]


def _sorted_rows(node: str, store: RowStore) -> tuple[_Rows, _Rows, _Rows, bool]:
    """Divide the stored rows into those of session queues (hold), of contacts, and others.

    Also return whether an older version wrote them.
    """
    rows, is_old = upgrade(node, list(store.rows()))
    of_hold, of_contacts, own = _Rows(), _Rows(), _Rows()
    for key, value in rows:
        kind = key[0]
        (of_hold if kind in HOLD_KINDS else of_contacts if kind in CONTACT_KINDS else own).append((key, value))
    return of_hold, of_contacts, own, is_old


def _places(rows: _Rows) -> dict[str, Sighting]:
    return {str(key[1]): sighting_of(value) for key, value in rows if key[0] == "place"}
