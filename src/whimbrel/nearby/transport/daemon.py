"""The daemon: a node on a real network. It performs the outputs of the core and decides nothing.

Rule: a datagram that is not a frame is dropped and counted; no input from the network ends the daemon.
Rule: time is the machine's monotonic clock. The time of day is passed to the node for signing and checking signatures;
a clock before 2025 was never set.
Rule: a limited radio range on one link is simulated here: ``Reach`` names the nodes that are heard.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace

from whimbrel.errors import InvalidValueError
from whimbrel.model.place import Area, Place
from whimbrel.multicast.reach import Reach
from whimbrel.multicast.sockets import MulticastSocket
from whimbrel.nearby.datagrams import tells_deployment
from whimbrel.nearby.frames.values import Beacon, Event, Frame
from whimbrel.nearby.frames.wire import MalformedFrameError, decode, encode
from whimbrel.nearby.group.outputs import Deliver, Note, Output, Send
from whimbrel.nearby.node import Node
from whimbrel.nearby.prediction import matching_us
from whimbrel.nearby.transport.multicast import addresses_for, addresses_of, deployment_address

__all__ = ["NearbyDaemon", "Reach", "monotonic_us", "time_of_day"]


_AT_A_TIME = 64
_NEVER_BEFORE_US = 1_735_689_600_000_000
"""The beginning of 2025: a machine without a clock battery starts in 1970, or at the time of its disk image."""


def monotonic_us() -> int:
    """Return the machine's monotonic clock, in microseconds."""
    return time.monotonic_ns() // 1_000


def time_of_day() -> int | None:
    """Return the machine's clock, in microseconds UTC, or ``None`` if it was never set."""
    found = time.time_ns() // 1_000
    return found if found >= _NEVER_BEFORE_US else None


class NearbyDaemon:
    """One node on one interface."""

    def __init__(
        self,
        node: Node,
        link: MulticastSocket,
        *,
        subjects: tuple[str, ...] = (),
        is_relay: bool = True,
        has_clock: bool = True,
        reach: Reach | None = None,
        deliver: Callable[[Deliver], None] = lambda _: None,
        note: Callable[[Note], None] = lambda _: None,
        hear: Callable[[Frame], None] = lambda _: None,
    ) -> None:
        self.node, self._link = node, link
        self._subjects, self._is_relay = subjects, is_relay
        self._has_clock = has_clock
        self._reach = reach or Reach(node.name)
        self._deliver, self._note, self._hear = deliver, note, hear
        self._announced: dict[str, Area] = {}
        self._beacons: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._dispatch: asyncio.Handle | None = None
        self._is_open = False
        self._tell_time()

    def _tell_time(self) -> None:
        """Pass the time of day to the node: the machine's clock may be set at any moment."""
        self.node.set_clock(time_of_day() if self._has_clock else None, now=monotonic_us())

    async def open(self) -> None:
        """Start to listen."""
        asyncio.get_running_loop().add_reader(self._link.socket, self._read)
        self._is_open = True
        self._listen()

    def close(self) -> None:
        """Stop."""
        for handle in (self._timer, self._dispatch):
            if handle is not None:
                handle.cancel()
        if self._is_open:
            asyncio.get_running_loop().remove_reader(self._link.socket)
        self._is_open = False

    def _read(self) -> None:
        """Handle received datagrams, at most ``_AT_A_TIME``, so that other tasks of the event loop can run."""
        for _ in range(_AT_A_TIME):
            try:
                received = self._link.receive()
            except OSError:  # an interface that is down may come up again
                self.node.counts["network errors"] += 1
                return
            if received is None:
                return
            self.receive(*received)

    def receive(self, data: bytes, waited_us: int = 0, source: str | None = None) -> None:
        """Handle one datagram from *source*, which waited *waited_us* in the socket."""
        try:
            frame = decode(data, max_bytes=self.node.deployment.max_frame_bytes)
        except MalformedFrameError:
            self.node.counts["malformed"] += 1
            return
        if frame.sender == self.node.name:
            return  # our own, looped back for other nodes on this machine
        if not self._reach.hears(frame.sender):
            self.node.counts["out of reach"] += 1
            return
        self._hear(frame)
        self._tell_time()
        began = monotonic_us()
        if isinstance(frame, Event):
            frame = replace(frame, remaining_us=max(0, frame.remaining_us - waited_us))
        outputs = self.node.receive(frame, now=began, source=source)
        if isinstance(frame, Event) and frame.subject in self.node.vocabulary:
            steps = self.node.vocabulary[frame.subject].max_filter_steps
            is_slow = monotonic_us() - began > matching_us(steps, deployment=self.node.deployment)
            self.node.counts["matching beyond its bound"] += is_slow
        self.perform(outputs)

    # -- what the core says --------------------------------------------------------------------------------------------

    def perform(self, outputs: list[Output]) -> None:
        """Perform the core's outputs in order, set the timer, and schedule the delivery to the application."""
        for each in outputs:
            if isinstance(each, Send):
                self._send(each.frame)
            else:
                self._note(each)
        self._set_timer()
        if self._dispatch is None and self._is_open:
            self._dispatch = asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """Deliver one event, by deadline; frames that arrived meanwhile are handled before the next."""
        self._dispatch = None
        found, notes = self.node.take(now=monotonic_us())
        for note in notes:
            assert isinstance(note, Note)
            self._note(note)
        if found is not None:
            began = monotonic_us()
            self._deliver(found)
            self.node.bounds.dispatch.add(monotonic_us() - began)
            self._dispatch = asyncio.get_running_loop().call_soon(self._serve)

    def _send(self, frame: Frame) -> None:
        addresses = addresses_of(frame, deployment=self.node.deployment)
        if isinstance(frame, Beacon) and frame.origin == self.node.name:
            self._announce(frame)
            if tells_deployment(self._beacons[frame.subject]):
                addresses.append(deployment_address(frame.subject))
            self._beacons[frame.subject] += 1
        if isinstance(frame, Event):  # a busy machine may have paused since the core decided
            paused_us = monotonic_us() - self.node.clock
            frame = replace(frame, remaining_us=max(0, frame.remaining_us - paused_us))
        failed = self._link.send(encode(frame), addresses)
        self.node.counts["transmissions"] += 1
        self.node.counts["datagrams"] += len(addresses)
        self.node.counts["not sent"] += failed

    def _announce(self, beacon: Beacon) -> None:
        """Record the area of our own beacon, and listen on its addresses for joins."""
        before = dict(self._announced)
        if beacon.lifetime_us:
            self._announced[beacon.subject] = beacon.area
        else:
            self._announced.pop(beacon.subject, None)
        if self._announced != before:
            self._listen()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.node.next_due
        if due is not None:
            delay_s = max(0.0, (due - monotonic_us()) / 1e6)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def _fire(self) -> None:
        with suppress(InvalidValueError):  # half written: try again next time
            self._reach.refresh()
        self._tell_time()
        self.perform(self.node.timer(now=monotonic_us()))

    # -- places --------------------------------------------------------------------------------------------------------

    def move(self, place: Place | None) -> None:
        """Apply a fix."""
        self.perform(self.node.move(place, now=monotonic_us()))
        self._listen()

    async def follow(self, places: AsyncIterator[Place | None]) -> None:
        """Apply fixes as they come."""
        async for place in places:
            self.move(place)

    def _listen(self) -> None:
        self._link.listen(
            addresses_for(
                self.node.name,
                self.node.motion.place,
                subjects=self._subjects,
                announced=self._announced.items(),
                is_relay=self._is_relay,
                deployment=self.node.deployment,
            )
        )
