"""The commit queue: facts are numbered, written down, and applied when they are accepted.

Rule: a fact gets its seq when it is entered and is applied in order of seq. Where a client could ask for it after a
crash (it is *owed*), accepted means durable; otherwise it means entered, unless one that is owed stands before it.
Rule: what is to be answered is answered when the fact is applied, so no client is told of a fact that is not accepted.
Rule: applying a fact may take pieces, one in each turn of the event loop: a publication for twenty thousand sessions
takes most of a second. Until its last piece is done it stands before everything that was entered after it, as if it
waited for the disk, and no view is written: half a fact is in the state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from whimbrel.log.records import is_publication
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import Fact

__all__ = ["Apply", "CommitQueue", "Pieces", "Tap"]

_MAX_APPLIED = 200
"""How many facts are applied in one turn of the event loop."""
_MAX_TAPPED, _MAX_TAPPED_BYTES = 2_000, 1 << 20
"""How many publications, and bytes of them, a tap keeps: some milliseconds to send."""

Pieces: TypeAlias = Iterator[None]
"""What is left of work that yields after each piece."""
Apply: TypeAlias = Callable[[], Pieces | None]
"""Applies a fact: at once, or by its pieces."""


class _Entry(NamedTuple):
    """Something that waits; *number* is of the fact, or, of what is no fact, of the last that was entered before it."""

    number: int
    apply: Apply
    is_fact: bool


class Tap:
    """The bodies of the publications that were numbered since it was opened, for one who catches up with them."""

    __slots__ = ("_bytes", "bodies", "first", "is_full")

    def __init__(self, first: int) -> None:
        self.first = first
        """The first number that it may have."""
        self.bodies: list[bytes] = []
        self._bytes = 0
        self.is_full = False
        """It had to let go of them: there were too many."""

    def add(self, body: bytes) -> None:
        """Keep a record's body, if it is of a publication and there is room."""
        if self.is_full or not is_publication(body):
            return
        self.bodies.append(body)
        self._bytes += len(body)
        if self._bytes > _MAX_TAPPED_BYTES or len(self.bodies) > _MAX_TAPPED:
            self.is_full = True
            self.bodies.clear()


class CommitQueue:
    """The log of a node, and what waits for its disk."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self.node = log.node
        self.waiting: deque[_Entry] = deque()
        """What is entered and not yet accepted, by number."""
        self._pieces: Pieces | None = None
        """Of the first that waits, if it is applied in part."""
        self._durable = 0
        """Everything up to this number is durable, though perhaps not applied yet."""
        self._last_at = log.last_at
        self.append, self.append_body = log.append, log.append_body
        self._taps: list[Tap] = []

    @property
    def written(self) -> int:
        """The number of the last fact that is in the log's file."""
        return self._log.written_seq

    def open_tap(self) -> Tap:
        """Keep the publications that are numbered from now on, until the tap is closed."""
        tap = Tap(self.seq)
        self._taps.append(tap)
        self.append_body = self._append_tapped
        return tap

    def close_tap(self, tap: Tap) -> None:
        """Let a tap get no more."""
        self._taps.remove(tap)
        if not self._taps:
            self.append_body = self._log.append_body

    def _append_tapped(self, body: bytes, at: int) -> int:
        seq = self._log.append_body(body, at)
        for tap in self._taps:
            tap.add(body)
        return seq

    @property
    def seq(self) -> int:
        """The number of the next fact."""
        return self._log.next_seq

    @property
    def last_at(self) -> int:
        """The time of the last fact."""
        return self._last_at

    def now(self, now: int) -> int:
        """Return the time to stamp a fact with; it never goes back."""
        if now < self._last_at:  # ``later``, written out: this runs for every packet
            return self._last_at
        self._last_at = now
        return now

    @property
    def applied(self) -> int:
        """The number of the last fact that was applied."""
        if not self.waiting:
            return self._log.next_seq - 1
        first = self.waiting[0]
        return first.number - first.is_fact

    @property
    def is_applying(self) -> bool:
        """Whether a fact is applied in part."""
        return self._pieces is not None

    def enter(self, fact: Fact, apply: Apply, *, is_owed: bool) -> None:
        """Write *fact* down and *apply* it when it is accepted."""
        self._log.append(fact)
        self.entered(fact.seq, apply, is_owed=is_owed)

    def entered(self, seq: int, apply: Apply, *, is_owed: bool) -> None:
        """Apply a fact, whose body was appended as *seq*, when it is accepted."""
        entry = _Entry(seq, apply, is_fact=True)
        if is_owed or self.waiting:
            self.waiting.append(entry)
        else:
            self._begin(entry)

    def then(self, action: Apply) -> None:
        """Act when everything entered so far is accepted: now, if nothing waits."""
        entry = _Entry(self._log.next_seq - 1, action, is_fact=False)
        if self.waiting:
            self.waiting.append(entry)
        else:
            self._begin(entry)

    def durable(self, seq: int) -> None:
        """Take in that everything up to *seq* is durable, and begin to apply what waited for that."""
        self._durable = max(self._durable, seq)
        self.go_on()

    @property
    def is_behind(self) -> bool:
        """Whether something waits to be applied that may be."""
        return self._pieces is not None or (bool(self.waiting) and self.waiting[0].number <= self._durable)

    @property
    def wants_sync(self) -> bool:
        """Whether something waits that is not durable yet."""
        return bool(self.waiting) and self.waiting[-1].number > self._durable

    def go_on(self) -> None:
        """Apply some of what is durable: as much as one turn of the event loop may take."""
        waiting, left = self.waiting, _MAX_APPLIED
        if self._pieces is not None and not self._do_piece():
            return
        while left and waiting and waiting[0].number <= self._durable:
            if not self._begin(waiting.popleft()):
                return
            left -= 1

    def complete(self) -> None:
        """Apply the rest of a fact that is applied in part: there will be no more turns."""
        while self._pieces is not None:
            self._do_piece()

    def _begin(self, entry: _Entry) -> bool:
        """Apply a fact, or its first piece; return whether that is all."""
        pieces = entry.apply()
        if pieces is None or next(pieces, pieces) is not None:
            return self._pieces is None  # it may have entered another, which is applied in part now
        assert self._pieces is None, "what is applied in pieces enters nothing before its last"
        self._pieces = pieces
        self.waiting.appendleft(entry)
        return False

    def _do_piece(self) -> bool:
        """Do one piece of the first that waits; return whether that was the last."""
        assert self._pieces is not None
        pieces, self._pieces, entry = self._pieces, None, self.waiting.popleft()
        if next(pieces, pieces) is not None:
            return self._pieces is None
        assert self._pieces is None, "what is applied in pieces enters nothing before its last"
        self._pieces = pieces
        self.waiting.appendleft(entry)
        return False
