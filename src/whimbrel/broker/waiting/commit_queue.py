"""The commit queue: facts get a seq, are appended to the log, and are applied to the state when they are accepted.

Rule: a fact gets its seq when it is entered, and facts are applied in the order of their seqs. If a client could rely
on the fact after a crash (it is *owed*), it is accepted when it is durable (fsynced). Any other fact is accepted as
soon as it is entered if the queue is empty, and otherwise when it is durable too.
Rule: requests are answered when the fact is applied, so no client gets an answer about a fact that is not accepted.
Rule: a fact may be applied in steps, one in each turn of the event loop: a publication for twenty thousand sessions
takes most of a second. Until the last step, all facts behind it wait, as if it waited for fsync. No snapshot is written
meanwhile, because the state contains only a part of the fact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from whimbrel.log.records import is_publication
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import Fact

__all__ = ["Apply", "CatchUpBuffer", "CommitQueue", "Pieces"]

_MAX_APPLIED = 200
"""Facts after which no more entries are begun in a turn of the event loop."""
_MAX_TAPPED, _MAX_TAPPED_BYTES = 2_000, 1 << 20
"""Most publications, and most bytes, in a tap (catch-up buffer); sending them takes some milliseconds."""

Pieces: TypeAlias = Iterator[None]
"""The remaining steps of work that yields after each step."""
Apply: TypeAlias = Callable[[], Pieces | None]
"""Function that applies a fact: at once (it returns None), or in the steps that it returns."""


class _Entry(NamedTuple):
    """Entry of the queue: a fact (log record), several consecutive facts, or an action.

    *number* is the seq of the last of its facts, and *before* the seq before the first; for an action both are the seq
    of the last fact before it.
    """

    number: int
    apply: Apply
    before: int

    @property
    def facts(self) -> int:
        """How many facts it stands for; an action counts as one."""
        return self.number - self.before or 1


class CatchUpBuffer:
    """Catch-up buffer: the log records of the publications entered since the tap was opened.

    A replay of the log reads up to the tap's first seq, and then sends the publications of the tap.
    """

    __slots__ = ("_bytes", "bodies", "first", "is_full")

    def __init__(self, first: int) -> None:
        self.first = first
        """The lowest seq that a record in this buffer may have."""
        self.bodies: list[bytes] = []
        """Bodies of the records, in the order of the log."""
        self._bytes = 0
        self.is_full = False
        """Whether the buffer overflowed: then it dropped all records, and adds no more."""

    def add(self, body: bytes) -> None:
        """Add the log record *body* if it is a publication; an overflow empties the buffer, which then stays empty."""
        if self.is_full or not is_publication(body):
            return
        self.bodies.append(body)
        self._bytes += len(body)
        if self._bytes > _MAX_TAPPED_BYTES or len(self.bodies) > _MAX_TAPPED:
            self.is_full = True
            self.bodies.clear()


class CommitQueue:
    """Queue of the facts (log records) and actions that wait for fsync of *log*, or for earlier facts."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self.node = log.node
        self.waiting: deque[_Entry] = deque()
        """Entries that are not completely applied yet, in the order of their seqs."""
        self.waiting_facts = 0
        """How many facts they stand for."""
        self._pieces: Pieces | None = None
        """The remaining steps of the first entry, if a part of it has been applied."""
        self._durable = 0
        """Last durable seq; it may not be applied yet."""
        self._last_at = log.last_at
        self.append, self.append_body, self.append_bodies = log.append, log.append_body, log.append_bodies
        self._taps: list[CatchUpBuffer] = []

    @property
    def written(self) -> int:
        """The seq of the last fact (log record) that was written to the log's file."""
        return self._log.written_seq

    def open_tap(self) -> CatchUpBuffer:
        """Open a tap (catch-up buffer), which collects the publications entered from now on until it is closed."""
        tap = CatchUpBuffer(self.seq)
        self._taps.append(tap)
        self.append_body, self.append_bodies = self._append_tapped, self._append_all_tapped
        return tap

    def close_tap(self, tap: CatchUpBuffer) -> None:
        """Close a tap: it collects no more publications."""
        self._taps.remove(tap)
        if not self._taps:
            self.append_body, self.append_bodies = self._log.append_body, self._log.append_bodies

    def _append_tapped(self, body: bytes, at: int) -> int:
        seq = self._log.append_body(body, at)
        for tap in self._taps:
            tap.add(body)
        return seq

    def _append_all_tapped(self, bodies: Sequence[bytes], at: int) -> int:
        seq = self._log.append_bodies(bodies, at)
        for tap in self._taps:
            for body in bodies:
                tap.add(body)
        return seq

    @property
    def seq(self) -> int:
        """The seq that the next fact (log record) gets."""
        return self._log.next_seq

    @property
    def last_at(self) -> int:
        """The latest time that ``now`` returned, which facts are stamped with; after a start, that of the last fact."""
        return self._last_at

    def now(self, now: int) -> int:
        """Return the timestamp for a new fact: *now*, or the last timestamp if that is later, so it never goes back."""
        if now < self._last_at:  # ``later``, inlined, because this runs for every packet
            return self._last_at
        self._last_at = now
        return now

    @property
    def applied(self) -> int:
        """The seq of the last fact (log record) that was completely applied to the state."""
        if not self.waiting:
            return self._log.next_seq - 1
        return self.waiting[0].before

    @property
    def is_applying(self) -> bool:
        """Whether a fact (log record) has been applied only in part."""
        return self._pieces is not None

    def enter(self, fact: Fact, apply: Apply, *, is_owed: bool) -> None:
        """Append *fact* to the log, and call *apply* when it is accepted; *is_owed*: when it is durable."""
        self._log.append(fact)
        self.enter_appended(fact.seq, apply, is_owed=is_owed)

    def enter_appended(self, seq: int, apply: Apply, *, is_owed: bool) -> None:
        """Call *apply* when the fact with the seq *seq*, which was already appended to the log, is accepted."""
        self.enter_run(seq - 1, seq, apply, is_owed=is_owed)

    def enter_run(self, before: int, last: int, apply: Apply, *, is_owed: bool) -> None:
        """Call *apply* when the facts after the seq *before*, up to *last*, are accepted: all of them together.

        They were already appended to the log.
        """
        entry = _Entry(last, apply, before)
        if is_owed or self.waiting:
            self._wait(entry)
        else:
            self._begin(entry)

    def _wait(self, entry: _Entry) -> None:
        self.waiting.append(entry)
        self.waiting_facts += entry.facts

    def then(self, action: Apply) -> None:
        """Call *action* when all facts entered so far are accepted: now, if the queue is empty."""
        last = self._log.next_seq - 1
        entry = _Entry(last, action, last)
        if self.waiting:
            self._wait(entry)
        else:
            self._begin(entry)

    def durable(self, seq: int) -> None:
        """Start to apply the facts that waited for fsync, now that all facts up to *seq* are durable."""
        self._durable = max(self._durable, seq)
        self.go_on()

    @property
    def is_behind(self) -> bool:
        """Whether a fact can be applied now: one was applied in part, or the first in the queue is durable."""
        return self._pieces is not None or (bool(self.waiting) and self.waiting[0].number <= self._durable)

    @property
    def wants_sync(self) -> bool:
        """Whether the queue contains a fact that is not durable yet."""
        return bool(self.waiting) and self.waiting[-1].number > self._durable

    def go_on(self) -> None:
        """Apply durable facts (log records) of the queue: as many as one turn of the event loop may apply."""
        waiting, left = self.waiting, _MAX_APPLIED
        if self._pieces is not None and not self._do_piece():
            return
        while left > 0 and waiting and waiting[0].number <= self._durable:
            entry = waiting.popleft()
            self.waiting_facts -= entry.facts
            left -= entry.facts
            if not self._begin(entry):
                return

    def complete(self) -> None:
        """Do the remaining steps of a half-applied fact at once, because the event loop will have no more turns."""
        while self._pieces is not None:
            self._do_piece()

    def _begin(self, entry: _Entry) -> bool:
        """Apply the fact of *entry*, or do its first step; return False if a fact is half applied afterwards."""
        pieces = entry.apply()
        if pieces is None or next(pieces, pieces) is not None:
            return self._pieces is None  # it may have entered another fact, of which the first step was applied
        assert self._pieces is None, "what is applied in pieces enters nothing before its last"
        self._pieces = pieces
        self._wait_first(entry)
        return False

    def _wait_first(self, entry: _Entry) -> None:
        self.waiting.appendleft(entry)
        self.waiting_facts += entry.facts

    def _do_piece(self) -> bool:
        """Do one step of the half-applied fact, the first entry; return False if a fact is half applied afterwards."""
        assert self._pieces is not None
        pieces, self._pieces, entry = self._pieces, None, self.waiting.popleft()
        self.waiting_facts -= entry.facts
        if next(pieces, pieces) is not None:
            return self._pieces is None
        assert self._pieces is None, "what is applied in pieces enters nothing before its last"
        self._pieces = pieces
        self._wait_first(entry)
        return False
