"""Policies in a node: the state that they depend on, and their decisions about deliveries without a receipt.

Rule: policies see a fact when it is appended, not when it is durable. The log is durable up to some seq, without gaps.
So if a decision survives a crash, all facts that it depended on survive, too.
Rule: a delivery is decided once. The decision is kept until the receipt, and a redelivery sends the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import cbor2

from whimbrel.hold.private import is_private
from whimbrel.hold.touched_rows import ChangedRows
from whimbrel.log.records import BODY, body_of, row_from
from whimbrel.model.facts import Decided, PolicyChanged, Reported, SessionChange, SessionChanged
from whimbrel.model.place import Place
from whimbrel.model.rows import fact_of
from whimbrel.node.memory import MemoryCount
from whimbrel.shape.agents import Agents
from whimbrel.shape.rows import KINDS, Key, keys, restore_row, row_of
from whimbrel.shape.state import ShapeState

__all__ = ["Policies", "PolicyFact"]

PolicyFact = Reported | PolicyChanged | Decided
_OVERHEAD = 1_000
"""Estimated memory of a kept decision without its body, in bytes."""


class Policies:
    """The state of policies, and the decisions whose results may have to be sent again.

    *is_held* returns whether the hold has the notification of a seq; decisions about other notifications are not kept.
    By default no decision is kept.
    """

    def __init__(self, node: str, memory: MemoryCount, is_held: Callable[[int], bool] = lambda _: False) -> None:
        self._node, self._memory, self._is_held = node, memory, is_held
        self.shape = ShapeState()
        self.agents = Agents()
        self.seq = 0
        """The seq of the last fact that was applied."""
        self.by_seq: dict[int, dict[str, list[Decided]]] = {}
        """Kept decisions, by seq of the notification and by device; hot paths look here first."""
        self._touched: set[Key] = set()
        self.are_used = False
        """Whether there has been any policy, or any kept decision, since this node started."""

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of its rows."""
        return KINDS | {"decision", "decided"}

    @property
    def changed(self) -> int:
        """Number of rows that have changed since the last call of ``changes``."""
        return len(self._touched) + len(self.shape.touched)

    @property
    def are_any(self) -> bool:
        """Whether any policy is in force."""
        return bool(self.shape.policies)

    def note(self, fact: PolicyFact | SessionChanged) -> None:
        """Apply the next fact; skip a fact that was applied already when it was appended."""
        if fact.seq <= self.seq:
            return
        if isinstance(fact, SessionChanged):
            if fact.change is SessionChange.DELETED and fact.device is not None and is_private(fact.session):
                self._end(fact.device, fact.seq)
            return
        self.seq = fact.seq
        before = self.shape.size_bytes
        self.shape.apply(fact)
        self._memory.counted += self.shape.size_bytes - before
        self.are_used = self.are_used or not isinstance(fact, Reported)
        if isinstance(fact, Decided) and self._is_held(fact.notification.seq):
            self._keep(fact)

    def on_place(self, device: str, seq: int, place: Place, reported_at: int) -> None:
        """Apply a report that only gives the place of a device."""
        if seq > self.seq:
            self.seq = seq
            before = self.shape.size_bytes
            self.shape.on_place(device, place, reported_at)
            self._memory.counted += self.shape.size_bytes - before

    def _keep(self, fact: Decided) -> None:
        seq, device = fact.notification.seq, fact.device
        self.by_seq.setdefault(seq, {}).setdefault(device, []).append(fact)
        self._memory.counted += _size(fact)
        self._touched.add(("decision", seq, device))

    def find_decisions(self, device: str, seq: int) -> Sequence[Decided]:
        """Return the decisions about a delivery that has no receipt yet, in order."""
        found = self.by_seq.get(seq)
        return () if found is None else found.get(device, ())

    def on_receipt(self, device: str, seq: int) -> None:
        """Remove the decisions about a delivery that has its receipt."""
        found = self.by_seq.get(seq)
        if found is None:
            return
        for fact in found.pop(device, ()):
            self._memory.counted -= _size(fact)
            self._touched.add(("decision", seq, device))
        if not found:
            del self.by_seq[seq]

    def forget(self, seq: int) -> None:
        """Remove the decisions about a notification that is no longer owed to any device."""
        for device in list(self.by_seq.get(seq, ())):
            self.on_receipt(device, seq)

    def _end(self, device: str, seq: int) -> None:
        """Remove a device's chosen policy, its reports and decisions: its private session ended with the fact *seq*."""
        self.seq = seq
        before = self.shape.size_bytes
        self.shape.forget(device)
        self._memory.counted += self.shape.size_bytes - before
        for kept in [kept for kept, found in self.by_seq.items() if device in found]:
            self.on_receipt(device, kept)

    # -- rows --------------------------------------------------------------------------------------------------------

    def keys(self) -> Iterator[Key]:
        """Yield the keys of all rows, except the row with the seq of the last fact."""
        yield from keys(self.shape)
        yield from (("decision", seq, device) for seq, found in self.by_seq.items() for device in found)

    def touch_all(self) -> None:
        """Mark every row as changed."""
        self._touched = {*self.keys()}

    def discard_changes(self) -> None:
        """Forget which rows have changed."""
        self._touched.clear()
        self.shape.touched.clear()

    def changes(self) -> ChangedRows:
        """Return the rows to put and those to drop since the last call."""
        touched: set[Key] = {*self._touched, *self.shape.touched}
        self.discard_changes()
        return self._rows(touched)

    def some_changes(self, most: int) -> ChangedRows:
        """Return about *most* of the rows that ``changes`` would; see ``TouchedRows.take_some``."""
        touched: set[Key] = set()
        for keys_left in (self._touched, self.shape.touched):
            touched.update([keys_left.pop() for _ in range(min(most - len(touched), len(keys_left)))])
        return self._rows(touched)

    def _rows(self, touched: set[Key]) -> ChangedRows:
        """Return the rows of *touched* keys and, if there are any, the row with the seq of the last fact."""
        rows = {key: self.row(key) for key in touched}
        put = {key: row for key, row in rows.items() if row is not None}
        if touched:
            put["decided",] = cbor2.dumps(self.seq)
        return put, touched - put.keys()

    def row(self, key: Key) -> bytes | None:
        """Return the row under *key*; None if there is none."""
        if key[0] != "decision":
            return row_of(self.shape, key)
        _, seq, device = key
        kept = self.find_decisions(str(device), seq)  # type: ignore[arg-type]  # the second part of such a key is a seq
        return cbor2.dumps([body_of(fact)[0] for fact in kept]) if kept else None

    def restore(self, rows: Mapping[Key, bytes]) -> None:
        """Restore policies, devices and decisions from *rows*."""
        for key, value in rows.items():
            if key[0] == "decided":
                self.seq = cbor2.loads(value)
            elif key[0] == "decision":
                for body in cbor2.loads(value):
                    seq, number = BODY.unpack_from(body)
                    fact = fact_of(*row_from(self._node, seq, number, body[BODY.size :]))
                    assert isinstance(fact, Decided)
                    self._keep(fact)
            else:
                restore_row(self.shape, key, value)
        self._touched.clear()
        self.are_used = self.are_any or bool(self.by_seq)
        self.shape.measure()
        self._memory.counted += self.shape.size_bytes


def _size(fact: Decided) -> int:
    return _OVERHEAD + (0 if fact.body is None else len(fact.body))
