"""Standing: what a stream remembers of a node between two batches: who subscribes to what, and what is held for whom.

A node's log is one sequence, and the hold is a fold over it, so a node is folded in one place: where the stream is
driven. Spark reads, matches and sorts; this takes the events in and keeps the state, in memory and, in small steps, in
a store beside the checkpoint.
Rule: the state is that of the number it says (``applied``), and is committed after everything that was made of a batch
has been written. A batch that is done again begins from the same state and makes the same.
Rule: it is bounded by what is held and who subscribes, not by the length of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import cbor2
import pyarrow as pa

from whimbrel.hold.commands import Identity
from whimbrel.hold.retention import Retention
from whimbrel.hold.rows import Key
from whimbrel.hold.sessions import Hold
from whimbrel.hold.store.interface import Store
from whimbrel.model.facts import SessionChange
from whimbrel.model.subscription import InterestChange
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.folds import Fold, Rows, events_of
from whimbrel.pipeline.matches import CHANGED

__all__ = ["Standing", "changed_schema"]

_INTEREST, _HASH = "interest", "notification"
_OWN = frozenset({_INTEREST, _HASH})
_ROWS_AT_ONCE = 50_000


def changed_schema() -> Any:  # a pyarrow.Schema
    """Return the columns of ``interests`` that say who wants what."""
    schema = TABLES["interests"].schema
    return pa.schema([schema.field(name) for name in CHANGED])


class _Wanted(NamedTuple):
    """A subscription in force, as the columns ``CHANGED`` have it."""

    seq: int
    session: str
    subject_filter: str | None
    name: str
    filter_text: str | None
    keys: list[dict[str, Any]] | None
    accept_insecure: bool
    qos: int | None
    no_local: bool

    @property
    def place(self) -> tuple[str, Identity]:
        return self.session, (self.subject_filter, self.name)


class Standing:
    """One node, as far as its log was folded; *store* has what was known when it was committed last."""

    def __init__(self, node: str, store: Store, *, retention: Retention, assume_receipts: bool) -> None:
        self.node, self._store = node, store
        own: dict[Key, bytes] = {}
        others: list[tuple[Key, bytes]] = []
        for key, value in store.rows():
            if key[0] in _OWN:
                own[key] = value
            else:
                others.append((key, value))
        hold = Hold.restore(node, others, retention=retention)
        self._fold = Fold(node, retention=retention, assume_receipts=assume_receipts, hold=hold)
        self._wanted: dict[tuple[str, Identity], _Wanted] = {}
        self._saved: set[Key] = set(own)
        for key, value in own.items():
            if key[0] == _HASH:
                self._fold.hashes[int(str(key[1]))] = value
            else:
                wanted = _Wanted(int(str(key[1])), *cbor2.loads(value))
                self._wanted[wanted.place] = wanted
                self._fold.whose[wanted.seq] = wanted.place

    @property
    def applied(self) -> int:
        """The number of the last fact that is in the state that was committed."""
        return self._store.applied

    @property
    def size(self) -> int:
        """How many things are remembered."""
        counts = self._fold.hold.counts()
        return len(self._wanted) + counts["sessions"] + counts["notifications"] + counts["pending"]

    def in_force(self) -> Any:  # a pyarrow.Table
        """Return the subscriptions that are in force, as rows of ``interests`` that added them."""
        rows = [
            {"node": self.node, "change": InterestChange.ADDED.value, **wanted._asdict()}
            for wanted in self._wanted.values()
        ]
        return pa.Table.from_pylist(rows, schema=changed_schema())

    def fold(self, batches: Iterable[Any], end: int | None) -> Iterator[Any]:
        """Take events in, ordered by number, let time pass to *end*, and yield rows of ``deliveries``."""
        out = Rows()
        for batch in batches:
            for _, _, event in events_of(batch):
                self._fold.take(event, out)
                if len(out) >= _ROWS_AT_ONCE:
                    yield out.batch()
        if end is not None:
            self._fold.close(end, out)
        if len(out):
            yield out.batch()

    def change(self, interests: Any, sessions: Any) -> None:  # pyarrow.Tables
        """Take in how subscriptions changed, so that ``in_force`` is that of the end of the batch."""
        changes: list[tuple[int, dict[str, Any] | str]] = [(row["seq"], row) for row in interests.to_pylist()]
        deleted = SessionChange.DELETED.value
        changes += [(row["seq"], row["session"]) for row in sessions.to_pylist() if row["change"] == deleted]
        for _, what in sorted(changes, key=lambda change: change[0]):
            if isinstance(what, str):
                for place in [place for place in self._wanted if place[0] == what]:
                    self._forget(place)
                continue
            wanted = _Wanted(*(what[name] for name in _Wanted._fields))
            self._forget(wanted.place)
            if what["change"] != InterestChange.REMOVED.value:
                self._wanted[wanted.place] = wanted
        self._fold.whose = {wanted.seq: place for place, wanted in self._wanted.items()}

    def _forget(self, place: tuple[str, Identity]) -> None:
        self._wanted.pop(place, None)

    def commit(self, last: int) -> None:
        """Keep the state as that of the number *last*."""
        put, drop = self._fold.hold.changes()
        own: dict[Key, bytes] = {(_HASH, seq): value for seq, value in self._fold.hashes.items()}
        own |= {(_INTEREST, wanted.seq): cbor2.dumps(list(wanted[1:])) for wanted in self._wanted.values()}
        put |= {key: value for key, value in own.items() if key not in self._saved}
        drop |= self._saved - own.keys()
        self._store.commit(last, put, drop)
        self._saved = set(own)

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()
