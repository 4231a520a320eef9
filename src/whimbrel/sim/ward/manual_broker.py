"""The broker's core on a manual clock: a day of a ward takes seconds.

Only sockets, processes and fsync are replaced. Packets, sessions, policies, decisions, transforms and the log are the
real ones; closed segments of the log are removed during the day.
Rule: requests of the core to its shell are performed at once and in order, so equal input at equal times gives equal
output.
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
    """A client of the broker."""

    def receive(self, data: bytes) -> bytes:
        """Handle bytes from the broker; return the answer."""
        ...


class ManualBroker:
    """A broker with a log in *folder*; its time starts at *now*, in microseconds UTC."""

    def __init__(self, folder: Path, *, now: int, seed: int = 1) -> None:
        self.now, self._folder = now, folder
        self._log = LogWriter(folder, _NODE, segment_bytes=_SEGMENT_BYTES)
        self._log.open()
        self._broker = Broker(Config(), self._log, BrokerState(_NODE), rng=Random(seed), now=now)
        self._devices: dict[Link, Device] = {}
        self._made = ResultCache(_KEPT_BYTES)
        self._segments = 0
        self.counts: Counter[str] = Counter()
        """Number of transforms, and of those whose result was cached."""

    @property
    def sent(self) -> int:
        """Number of copies that were written to devices."""
        return self._broker.counters.sent

    def connect(self, device: Device) -> Link:
        """Open a connection for *device*, and return its link."""
        link = self._broker.open_link(self, "ward", self.now)
        self._devices[link] = device
        return link

    def send(self, link: Link, data: bytes) -> None:
        """Pass bytes of a device to the broker, and process everything that follows."""
        self._broker.receive(link, data, self.now)
        self._settle()

    def move_to(self, now: int) -> None:
        """Advance the time to *now*."""
        self.now = max(self.now, now)
        self._broker.tick(self.now)
        self._settle()

    def close(self) -> None:
        """Close the log."""
        self._log.close()

    def _settle(self) -> None:
        """Perform all requests of the core to its shell."""
        broker = self._broker
        self._flush()
        while broker.wants_sync or broker.has_work or broker.transforms or broker.blocking_tasks:
            if broker.wants_sync:
                broker.on_sync(self._log.sync(wait=False))
            while (question := broker.blocking_tasks.next(self.now)) is not None:
                broker.on_answer(question, question.ask(), self.now)
            while broker.transforms:
                job = broker.transforms.popleft()
                broker.on_answer(job, self._perform(job.work), self.now)
            if broker.has_work:
                broker.go_on(self.now)
            self._flush()
        self._cut()

    def _perform(self, work: Work) -> bytes | Fault:
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
        """Pass the broker's output to the devices, in the order in which they connected."""
        while self._broker.dirty:
            self._broker.dirty.clear()
            for link, device in list(self._devices.items()):
                self._read(link, device)

    def _read(self, link: Link, device: Device) -> None:
        if link.after_seq > self._log.written_seq:  # like the shell: the log first, then the bytes
            self._log.sync(wait=False)
        data, link.is_dirty = b"".join(link.out), False
        link.out.clear()
        answer = device.receive(data) if data else b""
        if link.closing is not None:
            del self._devices[link]
            self._broker.on_connection_closed(link, self.now)
            return
        if link.room < self._broker.config.limits.send_buffer_bytes // 2:
            self._broker.on_bytes_written(link, 0, self.now)
        if answer:
            self._broker.receive(link, answer, self.now)

    def _cut(self) -> None:
        """Remove closed segments, because nobody reads this log later."""
        if self._log.grown_bytes // _SEGMENT_BYTES == self._segments:
            return
        self._segments = self._log.grown_bytes // _SEGMENT_BYTES
        for _, path in layout.segments(self._folder, _NODE)[:-2]:
            path.unlink()
