"""The columnar hold of one node: applies pieces (chunks) of its log to the queues of its plain sessions.

Names become row numbers here, and the kernel replays the events (``kernel``). Its output becomes rows of ``deliveries``
(``outcome_rows``).
Rule: every delivery counts as received at once, as in a log without receipts.
Rule: memory depends on the queues, on names, and on the size of a piece, not on the length of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.hold.commands import Identity
from whimbrel.hold.retention import Retention
from whimbrel.hold.shared_subscriptions import sorted_identities
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import Mode, PresenceChange, SessionChange
from whimbrel.model.subscription import InterestChange
from whimbrel.model.tables import TIME_TYPE
from whimbrel.pipeline.columnar.kernel import replay, tidy
from whimbrel.pipeline.columnar.outcome_rows import OutcomeRows
from whimbrel.pipeline.columnar.plain_sessions import PlainSessions
from whimbrel.pipeline.columnar.tables import (
    AWAY,
    C_NOTIFICATION,
    COLUMNS,
    D_MEMBERS,
    D_NAME,
    D_RANK,
    DELETE,
    DISCONNECT,
    FREE,
    FREE_COUNT,
    HEAP,
    I_BIT,
    I_COUNT,
    I_HEAD,
    I_SESSION,
    I_TAIL,
    JOIN,
    LEAVE,
    M_ABSENT_SINCE,
    M_DEVICE,
    M_IS_MEMBER,
    M_NEXT,
    M_NEXT_OF_DEVICE,
    M_PRESENCE,
    M_SESSION,
    M_VISIT,
    MATCHED,
    NONE,
    NOW,
    PUBLISH,
    PUT,
    REMOVE,
    S_FIRST,
    S_HEAD,
    S_LAST_PRESENT,
    S_MEMBERS,
    S_NAME,
    S_PRESENT,
    S_STAMP,
    S_TAIL,
    TICK,
    WIDTH,
    Events,
    Numbers,
    State,
)

__all__ = ["ColumnarHold"]

Arrow = Any
"""A ``pyarrow`` batch, table or array; pyarrow ships no types."""

_ROWS_AT_ONCE = 100_000
"""Output rows from which on they are converted to Arrow, which frees their memory."""
_MATCHES_AT_ONCE = 200_000
"""Matches for which the kernel has room in one call; one publication may have more."""
_FEW = 1_024
_MOVES = frozenset(
    each.value
    for each in (PresenceChange.JOINED, PresenceChange.LEFT, PresenceChange.DISCONNECTED, PresenceChange.RECEIPTS)
)
_TIMES = {"decisions": "decided_at", "policies": "changed_at", "receipts": "handed_at"}
"""Tables whose rows only advance the time, and their column of times."""
_KEPT = ("seq", "at", "subject", "deadline_at", "body_hash")
"""Columns of a published event that its rows of ``deliveries`` have."""


class ColumnarHold:
    """The queues of the plain sessions of one node.

    *plain* describes all plain sessions that the log has.
    """

    def __init__(self, node: str, plain: PlainSessions, *, retention: Retention) -> None:
        self._retention = retention
        self._sessions: dict[str, int] = {}
        self._devices: dict[str, int] = {}
        self._members: dict[tuple[int, int], int] = {}
        self._interests: dict[tuple[int, Identity], int] = {}
        """Rows of the state, by name; of memberships by session and device."""
        self._ranks = {device: rank for rank, device in enumerate(sorted(plain.devices))}
        self._seqs: list[int] = []
        self._rows_of_seqs: list[int] = []
        """Seqs of rows of the table ``interests``, ascending, and the row of the state for each."""
        self._state = _empty_state()
        self._kept: Arrow = None
        """Columns ``_KEPT`` of the notifications that are in a queue."""
        self._out = np.empty((_ROWS_AT_ONCE, COLUMNS), np.int64)
        self._rows = OutcomeRows(node)
        for session, identities in plain.identities.items():
            found = sorted_identities(tuple(identities))
            row = self._session(session, found)
            for bit, identity in enumerate(found):
                self._add_identity(row, bit, identity)

    def take(self, tables: Mapping[str, Arrow], published: Arrow, end: int | None, last: int) -> Iterator[Arrow]:
        """Apply a piece of the log that ends with the seq *last*; yield batches of ``deliveries``.

        *tables* has the rows of the plain sessions per table of the log, in the order of their seqs. *published* has
        the events of publications (``fold.events``); matches with subscriptions of other sessions are ignored. The time
        ends at *end*, in microseconds.
        """
        found = _EventList()
        for name, rows in tables.items():
            self._add_facts(name, rows, found)
        if end is not None:
            found.add(last + 1, end, TICK, 0)
        events = self._events(found, published)
        for begin, stop in self._runs(events):
            number = begin
            while number < stop:
                self._out, count, number = replay(self._state, events, number, stop, self._out, _ROWS_AT_ONCE)
                if count:
                    yield self._rows.batch(self._out[:count], self._state.rows, self._kept)
        self._tidy()

    # -- events --------------------------------------------------------------------------------------------------------

    def _add_facts(self, name: str, rows: Arrow, found: _EventList) -> None:
        if name == "interests":
            for row in _values(
                rows, "seq", "changed_at", "change", "session", "subject_filter", "name", "ttl_us", "max_held"
            ):
                self._add_interest(found, *row)
        elif name == "presence":
            for row in _values(rows, "seq", "changed_at", "change", "device", "session", "receipt"):
                self._add_presence(found, *row)
        elif name == "sessions":
            for seq, at, change, session in _values(rows, "seq", "changed_at", "change", "session"):
                known = self._sessions.get(session) if change == SessionChange.DELETED.value else None
                found.add(seq, at, TICK if known is None else DELETE, known or 0)
        elif name in _TIMES:
            for seq, at in _values(rows, "seq", _TIMES[name]):
                found.add(seq, at, TICK, 0)

    def _add_interest(
        self,
        found: _EventList,
        seq: int,
        at: int,
        change: str,
        session: str,
        subject_filter: str | None,
        name: str,
        ttl_us: int | None,
        max_held: int | None,
    ) -> None:
        row = self._interests[self._sessions[session], (subject_filter, name)]
        if change == InterestChange.REMOVED.value:
            found.add(seq, at, REMOVE, row)
            return
        self._seqs.append(seq)
        self._rows_of_seqs.append(row)
        default = self._retention
        ttl_us, max_held = (
            default.ttl_us if ttl_us is None else ttl_us,
            default.max_held if max_held is None else max_held,
        )
        found.add(seq, at, PUT, row, ttl_us, max_held)

    def _add_presence(
        self, found: _EventList, seq: int, at: int, change: str, device: str, session: str | None, mode: str | None
    ) -> None:
        if change not in _MOVES:
            return
        if change == PresenceChange.JOINED.value:
            assert session is not None
            found.add(seq, at, JOIN, self._member(self._sessions[session], device), mode == Mode.TAKE.value)
            return
        kind, row = TICK, None
        if change == PresenceChange.LEFT.value:
            pair = self._sessions.get(session or "", NONE), self._devices.get(device, NONE)
            kind, row = LEAVE, self._members.get(pair)
        elif change == PresenceChange.DISCONNECTED.value:
            kind, row = DISCONNECT, self._devices.get(device)
        found.add(seq, at, TICK if row is None else kind, row or 0)

    def _events(self, facts: _EventList, published: Arrow) -> Events:
        """Return all events in the order of their seqs; publications without a match here are left out."""
        values, starts = _list_values(published.column("interests"))
        seqs, rows = np.array(self._seqs, np.int64), np.array(self._rows_of_seqs, np.int64)
        places = np.searchsorted(seqs, values)
        is_own = np.zeros(values.size, np.bool_)
        is_known = places < seqs.size
        is_own[is_known] = seqs[places[is_known]] == values[is_known]
        counts = np.diff(np.concatenate([[0], np.cumsum(is_own)])[starts])
        chosen = np.flatnonzero(counts)
        some = published.take(pa.array(chosen)).select([*_KEPT, "expires_at"])
        kept = some.select(_KEPT)
        first = 0 if self._kept is None else self._kept.num_rows
        self._kept = kept if self._kept is None else pa.concat_tables([self._kept, kept]).combine_chunks()
        control = facts.arrays()
        count = len(chosen)
        zeros = np.zeros(count, np.int64)
        own = [
            np.full(count, PUBLISH),
            _micros(some.column("seq")),
            _micros(some.column("at")),
            np.arange(count),
            zeros,
            zeros,
        ]
        columns = [np.concatenate(pair) for pair in zip(control, own, strict=True)]
        order = np.argsort(columns[1], kind="stable")
        kind, seq, at, row, one, two = (column[order] for column in columns)
        return Events(
            kind=kind,
            seq=seq,
            at=at,
            row=row,
            first=one,
            second=two,
            notification=np.arange(first, first + count),
            expires_at=_micros(some.column("expires_at")),
            starts=np.concatenate([[0], np.cumsum(counts[chosen])]),
            matches=rows[places[is_own]],
        )

    # -- rows of the state -------------------------------------------------------------------------------------------

    def _session(self, name: str, identities: tuple[Identity, ...]) -> int:
        row = self._sessions[name] = self._new_row()
        own = self._state.rows[row]
        own[[S_MEMBERS, S_HEAD, S_TAIL, S_LAST_PRESENT, S_STAMP, S_FIRST]] = NONE
        own[S_PRESENT], own[S_NAME] = 0, self._rows.add_session(name, identities)
        return row

    def _device(self, name: str) -> int:
        row = self._devices.get(name)
        if row is None:
            row = self._devices[name] = self._new_row()
            own = self._state.rows[row]
            own[D_MEMBERS], own[D_RANK], own[D_NAME] = NONE, self._ranks[name], self._rows.add_device(name)
        return row

    def _member(self, session: int, name: str) -> int:
        device = self._device(name)
        row = self._members.get((session, device))
        if row is None:
            row = self._members[session, device] = self._new_row()
            rows = self._state.rows
            own, of_session, of_device = rows[row], rows[session], rows[device]
            own[M_SESSION], own[M_DEVICE], own[M_IS_MEMBER], own[M_PRESENCE] = session, device, 0, AWAY
            own[M_NEXT], own[M_NEXT_OF_DEVICE] = of_session[S_MEMBERS], of_device[D_MEMBERS]
            own[M_ABSENT_SINCE] = own[M_VISIT] = NONE
            of_session[S_MEMBERS] = of_device[D_MEMBERS] = row
        return row

    def _add_identity(self, session: int, bit: int, identity: Identity) -> None:
        """Add a subscription; a session's rows ascend in the order of its identities, which the rules follow, too."""
        row = self._interests[session, identity] = self._new_row()
        own = self._state.rows[row]
        own[I_SESSION], own[I_BIT], own[I_HEAD], own[I_TAIL], own[I_COUNT] = session, bit, NONE, NONE, 0

    def _new_row(self) -> int:
        self._free(1)
        counters = self._state.rows[0]
        row = int(counters[FREE])
        counters[FREE] = self._state.rows[row, 0]
        counters[FREE_COUNT] -= 1
        return row

    # -- memory --------------------------------------------------------------------------------------------------------

    def _free(self, count: int) -> None:
        """Grow the table until at least *count* rows are free; new rows come first in the list of free rows."""
        before, free = self._state.rows, int(self._state.rows[0, FREE_COUNT])
        if free < count:
            rows = _with_room(before, before.shape[0] + count - free)
            new = np.arange(before.shape[0], rows.shape[0])
            rows[new, 0] = new + 1
            rows[-1, 0] = rows[0, FREE]
            rows[0, FREE], rows[0, FREE_COUNT] = new[0], free + new.size
            self._state = self._state._replace(rows=rows)

    def _runs(self, events: Events) -> Iterator[tuple[int, int]]:
        """Divide *events* into runs with a bounded number of matches; before each, make room for what it may need."""
        is_published = events.kind == PUBLISH
        counts = np.zeros(events.kind.size, np.int64)
        counts[is_published] = np.diff(events.starts)[events.row[is_published]]
        before = np.concatenate([[0], np.cumsum(counts)])
        first = 0
        while first < events.kind.size:
            last = max(first + 1, int(np.searchsorted(before, before[first] + _MATCHES_AT_ONCE, "right")) - 1)
            kinds, matches = events.kind[first:last], int(before[last] - before[first])
            publications, joins = (int(np.count_nonzero(kinds == kind)) for kind in (PUBLISH, JOIN))
            self._make_room(publications + 2 * matches + joins, matches)
            yield first, last
            first = last

    def _make_room(self, rows: int, matches: int) -> None:
        """Grow the tables, so that the kernel has this number of free rows, and room for *matches* in the others."""
        self._free(rows)
        state = self._state
        self._state = state._replace(
            listed=_with_room(state.listed, int(state.rows[0, MATCHED]) + matches),
            heap=_with_room(state.heap, int(state.rows[0, HEAP]) + matches),
        )

    def _tidy(self) -> None:
        """Free the memory of notifications that no queue has any more."""
        rows = self._state.rows
        copies = tidy(self._state, _numbers(self._sessions), _numbers(self._members))
        wanted, places = np.unique(rows[copies, C_NOTIFICATION], return_inverse=True)
        self._kept = self._kept.take(pa.array(wanted)).combine_chunks()
        rows[copies, C_NOTIFICATION] = places


class _EventList:
    """Buffer of the events that are facts."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int, int, int]] = []

    def add(self, seq: int, at: int, kind: int, row: int, first: int = 0, second: int = 0) -> None:
        """Add an event; *first* and *second* are its values in ``Events``."""
        self._rows.append((kind, seq, at, row, first, second))

    def arrays(self) -> list[Numbers]:
        """Return the first columns of ``Events``."""
        found = np.array(self._rows, np.int64).reshape(-1, 6)
        return [found[:, column] for column in range(6)]


def _empty_state() -> State:
    rows = np.zeros((1, WIDTH), np.int64)
    rows[0, FREE], rows[0, NOW] = NONE, np.iinfo(np.int64).min
    return State(rows, np.zeros((0, 2), np.int64), np.zeros((0, 3), np.int64))


def _with_room(table: Numbers, rows: int) -> Numbers:
    """Return *table* with at least this number of rows; a table that grows at least doubles."""
    before = table.shape[0]
    if before >= rows:
        return table
    larger = np.zeros((max(rows, 2 * before, _FEW), table.shape[1]), np.int64)
    larger[:before] = table
    return larger


def _numbers(rows: Mapping[Any, int]) -> Numbers:
    return np.fromiter(rows.values(), np.int64, len(rows))


def _values(rows: Arrow, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of *columns* row by row, with times in microseconds."""
    return zip(*(_plain(rows.column(name)) for name in columns), strict=True)


def _plain(column: Arrow) -> list[Any]:
    found: list[Any] = (
        column.cast(TIME_TYPE).cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    ).to_pylist()
    return found


def _micros(column: Arrow) -> Numbers:
    """Return integers or times (in microseconds) as an array, with the largest integer for null."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(TIME_TYPE).cast(pa.int64())
    found: Numbers = pc.fill_null(column, INT64_MAX).to_numpy()
    return found


def _list_values(column: Arrow) -> tuple[Numbers, Numbers]:
    """Return the values of a list column, and the offsets of its rows in them, with one more at the end."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    return pc.list_flatten(column).to_numpy(), np.concatenate([[0], np.cumsum(lengths)])
