"""The broker's core on a clock that is moved by hand: a day of a ward takes seconds.

Everything but sockets, processes and fsync is the real thing: packets, sessions, policies, decisions, transforms, and
the log, of which closed segments are removed as the day goes on.
Rule: what the core asks of its shell is done at once and in order, so the same bytes at the same times give the same.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Protocol

from whimbrel.broker.broker import Broker
from whimbrel.broker.settings.config import Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.wire.clients import Link
from whimbrel.language.policies.limits import DEFAULT_POLICY_LIMITS
from whimbrel.log import layout
from whimbrel.log.writer import LogWriter
from whimbrel.shape.faults import Fault, TransformError
from whimbrel.shape.transforms import Work, perform
from whimbrel.shape.work_queue import ResultCache

__all__ = ["Device", "ManualBroker"]

_NODE = "ward"
_SEGMENT_BYTES = 16 << 20
_KEPT_BYTES = 64 << 20


class Device(Protocol):
    """What speaks with the broker."""

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the broker; return what to answer."""
        ...


class ManualBroker:
    """A broker with a log in *folder*, from the time *now* on, in microseconds UTC."""

    def __init__(self, folder: Path, *, now: int, seed: int = 1) -> None:
        self.now, self._folder = now, folder
        self._log = LogWriter(folder, _NODE, segment_bytes=_SEGMENT_BYTES)
        self._log.open()
        self._broker = Broker(Config(), self._log, BrokerState(_NODE), rng=Random(seed), now=now)
        self._devices: dict[Link, Device] = {}
        self._made = ResultCache(_KEPT_BYTES)
        self._segments = 0
        self.counts: Counter[str] = Counter()
        """Transforms, and those of them that were made already."""

    @property
    def sent(self) -> int:
        """How many copies were written to devices."""
        return self._broker.counters.sent

    def connect(self, device: Device) -> Link:
        """Return the link of a device that has said nothing yet."""
        link = self._broker.opened(self, "ward", self.now)
        self._devices[link] = device
        return link

    def send(self, link: Link, data: bytes) -> None:
        """Let a device say *data*, and everybody what follows from it."""
        self._broker.receive(link, data, self.now)
        self._settle()

    def move_to(self, now: int) -> None:
        """Let time pass."""
        self.now = max(self.now, now)
        self._broker.tick(self.now)
        self._settle()

    def close(self) -> None:
        """Close the log."""
        self._log.close()

    def _settle(self) -> None:
        """Do all that the core asks of its shell."""
        broker = self._broker
        self._flush()
        while broker.wants_sync or broker.has_work or broker.transforms or broker.blocking_tasks:
            if broker.wants_sync:
                broker.synced(self._log.sync(wait=False))
            while (question := broker.blocking_tasks.next(self.now)) is not None:
                broker.answered(question, question.ask(), self.now)
            while broker.transforms:
                job = broker.transforms.popleft()
                broker.answered(job, self._performed(job.work), self.now)
            if broker.has_work:
                broker.go_on(self.now)
            self._flush()
        self._cut()

    def _performed(self, work: Work) -> bytes | Fault:
        self.counts["transforms"] += 1
        if (known := self._made.get(work.key)) is not None:
            self.counts["transforms made already"] += 1
            return known
        try:
            result = perform(work, DEFAULT_POLICY_LIMITS)
        except TransformError as error:
            return error.fault
        self._made.put(work.key, result)
        return result

    def _flush(self) -> None:
        """Let every device read what there is for it, in the order in which they came."""
        while self._broker.dirty:
            self._broker.dirty.clear()
            for link, device in list(self._devices.items()):
                self._read(link, device)

    def _read(self, link: Link, device: Device) -> None:
        if link.after_seq > self._log.written_seq:  # as the shell does: the log first, then the bytes
            self._log.sync(wait=False)
        data, link.is_dirty = b"".join(link.out), False
        link.out.clear()
        answer = device.receive(data) if data else b""
        if link.closing is not None:
            del self._devices[link]
            self._broker.closed(link, self.now)
            return
        if link.room < self._broker.config.limits.send_buffer_bytes // 2:
            self._broker.drained(link, 0, self.now)
        if answer:
            self._broker.receive(link, answer, self.now)

    def _cut(self) -> None:
        """Remove closed segments: nobody reads this log again."""
        if self._log.grown_bytes // _SEGMENT_BYTES == self._segments:
            return
        self._segments = self._log.grown_bytes // _SEGMENT_BYTES
        for _, path in layout.segments(self._folder, _NODE)[:-2]:
            path.unlink()
