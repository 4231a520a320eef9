"""Wills: what clients left with the broker, to be published when they are lost (MQTT 5, 3.1.2.5 and 3.1.3.2.2).

A will is a fact of the log, written with its CONNECT and before CONNACK; so is its withdrawal, and the publication that
it becomes says which will it is. A broker that was killed knows them again, and publishes each once.
Rule: a will that waits is due a delay after the disconnection, or when the session ends, whichever is first.
Rule: a client whose connection ended with the broker did nothing wrong. A will that waits when a broker begins waits
for its delay from then on, because no client could return before, but no longer than a grace; one without a delay waits
for the grace. A client that returns in that time, in any way, withdraws its will.
Rule: the fold knows no grace: which wills there are, and since when they wait, is all that a restart has to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import cbor2

from whimbrel.errors import InvalidValueError, description_of
from whimbrel.hold.touched_rows import Key
from whimbrel.log.records import BODY, body_of, row_from
from whimbrel.model.facts import PresenceChange, PresenceChanged, WillChanged
from whimbrel.model.keys import OPEN, Secured
from whimbrel.model.rows import fact_of
from whimbrel.node.memory import MemoryCount

__all__ = ["LeftWill", "Wills"]

_OVERHEAD_BYTES = 400


class LeftWill:
    """A will as long as it is neither withdrawn nor published."""

    __slots__ = (
        "_record",
        "device",
        "due_at",
        "expiry_us",
        "gone_at",
        "is_excused",
        "owner",
        "seq",
        "will",
    )

    def __init__(self, fact: WillChanged) -> None:
        assert fact.will is not None
        self.device, self.seq, self.will = fact.device, fact.seq, fact.will
        self._record = body_of(fact)[0]
        self.owner: str | None = None
        """The verified user whose rights it is published with."""
        self.gone_at: int | None = None
        """When its client's connection ended; None while it is connected."""
        self.expiry_us = 0
        """How long the client's session outlives that."""
        self.is_excused = False
        """The connection ended with the broker that served it."""
        self.due_at: int | None = None

    @property
    def size(self) -> int:
        """How many bytes it occupies, about."""
        return len(self._record) + _OVERHEAD_BYTES

    @property
    def delay_us(self) -> int:
        """How long it waits: not longer than the session lives."""
        return min(self.will.delay_us, self.expiry_us)

    @property
    def secured(self) -> Secured:
        """The keys that it is published with."""
        will = self.will
        if not will.keys.hashes and will.deliver_insecure:
            return OPEN
        return Secured(will.keys, will.deliver_insecure)

    def row(self) -> bytes:
        """Return its row in a checkpoint."""
        return cbor2.dumps([self._record, self.owner, self.gone_at, self.expiry_us, self.is_excused])


class Wills:
    """The wills of all clients, by client identifier."""

    def __init__(self, node: str, touch: Callable[[Key], None], memory: MemoryCount) -> None:
        self._node, self._touch_row, self._memory = node, touch, memory
        self.by_device: dict[str, LeftWill] = {}
        self._waiting: dict[str, LeftWill] = {}
        """Those whose clients are gone."""
        self.bytes = 0
        """What all of them occupy, about."""

    def __len__(self) -> int:
        return len(self.by_device)

    def get(self, device: str) -> LeftWill | None:
        """Return the will of a client; None if it left none."""
        return self.by_device.get(device)

    def devices(self) -> Iterator[str]:
        """Yield the clients that left one."""
        yield from self.by_device

    # -- facts -------------------------------------------------------------------------------------------------------

    def owner_of(self, device: str) -> str | None:
        """Return the verified user whose client *device* left a will; None if there is none, or no will."""
        left = self.by_device.get(device)
        return None if left is None else left.owner

    def apply(self, fact: WillChanged) -> None:
        """Apply that a client left a will, or withdrew it; its user is known when it comes to its session."""
        self._drop(fact.device)
        if fact.will is not None:
            left = self.by_device[fact.device] = LeftWill(fact)
            self._count(left.size)

    def present(self, fact: PresenceChanged) -> None:
        """Apply that a client joined its private session, or that its connection ended."""
        left = self.by_device.get(fact.device)
        if left is None:
            return
        self._touch_row(("will", fact.device))
        if fact.change is PresenceChange.DISCONNECTED:
            left.expiry_us = fact.session_expiry_us or 0
            self._wait(left, fact.changed_at, is_excused=fact.sent_seq is None)
        else:
            left.owner = fact.owner or left.owner
            left.gone_at, left.due_at = None, None
            self._waiting.pop(fact.device, None)

    def published(self, device: str | None, will_seq: int) -> None:
        """Forget a will that was published."""
        left = self.by_device.get(device or "")
        if left is not None and left.seq == will_seq:
            self._drop(left.device)

    def _drop(self, device: str) -> None:
        gone = self.by_device.pop(device, None)
        self._waiting.pop(device, None)
        if gone is not None:
            self._count(-gone.size)
        self._touch_row(("will", device))

    def _count(self, change: int) -> None:
        self.bytes += change
        self._memory.counted += change

    # -- time --------------------------------------------------------------------------------------------------------

    def begin(self, now: int, grace_us: int) -> None:
        """Start a broker *now*, before any client is connected: each has at most *grace_us* to come back."""
        for left in self.by_device.values():
            # One that is not gone never came, or was here: either way its connection ended with the broker.
            is_excused = left.is_excused or left.gone_at is None or not left.delay_us
            self._wait(left, now if left.gone_at is None else left.gone_at, is_excused=is_excused)
            delay_us = left.delay_us or grace_us
            left.due_at = max(left.due_at or now, now + min(delay_us, grace_us))

    def _wait(self, left: LeftWill, gone_at: int, *, is_excused: bool) -> None:
        left.gone_at, left.is_excused = gone_at, is_excused
        left.due_at = gone_at + left.delay_us
        self._waiting[left.device] = left

    def due(self, now: int) -> list[LeftWill]:
        """Return the wills that are due."""
        return [left for left in self._waiting.values() if left.due_at is not None and left.due_at <= now]

    # -- rows --------------------------------------------------------------------------------------------------------

    @property
    def kinds(self) -> frozenset[str]:
        """The kind of its rows."""
        return frozenset({"will"})

    def keys(self) -> Iterator[Key]:
        """Yield the keys of all rows."""
        yield from (("will", device) for device in self.by_device)

    def row(self, key: Key) -> bytes | None:
        """Return the row of a client's will; None if it left none."""
        left = self.by_device.get(str(key[1]))
        return None if left is None else left.row()

    def restore(self, rows: Mapping[Key, bytes]) -> None:
        """Restore the wills from *rows*."""
        for (_, device), value in rows.items():
            self._restore(str(device), value)

    def _restore(self, device: str, value: bytes) -> None:
        record, owner, gone_at, expiry_us, is_excused = cbor2.loads(value)
        seq, number = BODY.unpack_from(record)
        fact = fact_of(*row_from(self._node, seq, number, record[BODY.size :]))
        if not isinstance(fact, WillChanged) or fact.will is None or fact.device != device:
            raise InvalidValueError("row of a view", description_of(fact), f"the will of {device}")
        left = self.by_device[device] = LeftWill(fact)
        left.owner, left.expiry_us = owner, expiry_us
        self._count(left.size)
        if gone_at is not None:
            self._wait(left, gone_at, is_excused=is_excused)
