"""Wills: messages that the broker publishes for clients that are lost (MQTT 5, 3.1.2.5 and 3.1.3.2.2).

A will is a fact of the log, written with its CONNECT and before CONNACK. Its withdrawal is a fact, too, and the
publication of a will names the will's seq. So a broker that was killed restores the wills, and publishes each once.
Rule: a waiting will is due when its delay after the disconnection has passed, or the session ends, whichever is first.
Rule: a client whose connection ended because the broker stopped is not at fault. So when a broker starts, a waiting
will waits for its delay from then on, because its client could not return before, but at most for a grace period. A
will without a delay waits for the grace period. A client that returns in that time, in any way, withdraws its will.
Rule: the grace period is not part of the fold: a restart needs only the wills, and the times since when they wait.
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
    """A will that is neither withdrawn nor published yet."""

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
        """Verified user with whose rights the will is published."""
        self.gone_at: int | None = None
        """Time when the client's connection ended; None while it is connected."""
        self.expiry_us = 0
        """Time for which the client's session outlives the connection, in microseconds."""
        self.is_excused = False
        """Whether the connection ended because its broker stopped."""
        self.due_at: int | None = None

    @property
    def size(self) -> int:
        """Estimated memory of the will, in bytes."""
        return len(self._record) + _OVERHEAD_BYTES

    @property
    def delay_us(self) -> int:
        """Time for which the will waits, in microseconds: its delay, but not longer than the session lives."""
        return min(self.will.delay_us, self.expiry_us)

    @property
    def secured(self) -> Secured:
        """The keys with which the will is published."""
        will = self.will
        if not will.keys.hashes and will.deliver_insecure:
            return OPEN
        return Secured(will.keys, will.deliver_insecure)

    def row(self) -> bytes:
        """Return the will's row in a checkpoint."""
        return cbor2.dumps([self._record, self.owner, self.gone_at, self.expiry_us, self.is_excused])


class Wills:
    """The wills of all clients, by client identifier."""

    def __init__(self, node: str, touch: Callable[[Key], None], memory: MemoryCount) -> None:
        self._node, self._touch_row, self._memory = node, touch, memory
        self.by_device: dict[str, LeftWill] = {}
        self._waiting: dict[str, LeftWill] = {}
        """Wills whose clients are disconnected."""
        self.bytes = 0
        """Estimated memory of all wills, in bytes."""

    def __len__(self) -> int:
        return len(self.by_device)

    def get(self, device: str) -> LeftWill | None:
        """Return the will of a client; None if it left none."""
        return self.by_device.get(device)

    def devices(self) -> Iterator[str]:
        """Yield the clients that left a will."""
        yield from self.by_device

    # -- facts -------------------------------------------------------------------------------------------------------

    def owner_of(self, device: str) -> str | None:
        """Return the verified user of the will that the client *device* left; None without a user or a will."""
        left = self.by_device.get(device)
        return None if left is None else left.owner

    def apply(self, fact: WillChanged) -> None:
        """Apply that a client left a will, or withdrew it; the user follows when the client joins its session."""
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

    def on_publication(self, device: str | None, will_seq: int) -> None:
        """Remove a will that was published."""
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
        """Compute due times at a broker's start *now*, before any client connects; each has at most *grace_us*."""
        for left in self.by_device.values():
            # If its client counts as connected, the connection ended with the broker, or was never established.
            is_excused = left.is_excused or left.gone_at is None or not left.delay_us
            self._wait(left, now if left.gone_at is None else left.gone_at, is_excused=is_excused)
            delay_us = left.delay_us or grace_us
            left.due_at = max(left.due_at or now, now + min(delay_us, grace_us))

    def _wait(self, left: LeftWill, gone_at: int, *, is_excused: bool) -> None:
        left.gone_at, left.is_excused = gone_at, is_excused
        left.due_at = gone_at + left.delay_us
        self._waiting[left.device] = left

    def due(self, now: int) -> list[LeftWill]:
        """Return the wills that are due at the time *now*."""
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
