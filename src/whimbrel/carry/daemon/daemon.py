"""The daemon: a participant on a real network. It performs the outputs of the core and decides nothing.

Rule: any datagram is a frame or is counted; no datagram ends the daemon.
Rule: at most ``_FRAMES_PER_S`` frames are handled per second, from all senders together; further ones are dropped and
counted before their content is read.
Rule: a sample of the application is in the memory file on disk before ``publish`` returns. Other changes are written
once in a Hello period: after a crash a node may have copies again that it gave in the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import structlog

from whimbrel.carry.daemon.journal import Journal, address_name
from whimbrel.carry.hello import Answer, Hello, Sample
from whimbrel.carry.memory import write_memory
from whimbrel.carry.neighbours.rates import Allowance
from whimbrel.carry.node import Deliver, Drop, Send, StoreSample
from whimbrel.carry.outputs import Greet, Note, NoteKind, Output, TakeBack, Tell
from whimbrel.carry.participant import Participant
from whimbrel.carry.transport.interface import Transport
from whimbrel.errors import InvalidValueError
from whimbrel.log.errors import LogError
from whimbrel.model.clock import US_PER_S

__all__ = ["CampusDaemon", "LinkTransport"]

_log = structlog.get_logger("whimbrel")
_AT_A_TIME = 64
_FRAMES_PER_S = 4_000
_LOG_WORDS = {
    NoteKind.REFUSED: "sample from the future refused",
    NoteKind.CONTROL: "control data in force",
    NoteKind.CLOCK: "clock set by a way-server",
}


class LinkTransport(Transport, Protocol):
    """A transport with sockets."""

    def filenos(self) -> tuple[int, ...]:
        """Return the file descriptors of the sockets that become readable when a datagram arrives."""

    def refresh(self) -> None:
        """Read the file of the reach again if it has changed."""

    def close(self) -> None:
        """Leave the link."""


class CampusDaemon:
    """One node: *own* is its own clock, in microseconds UTC; *deliver* gets each sample that it subscribes to."""

    def __init__(
        self,
        participant: Participant,
        transport: Transport,
        *,
        own: Callable[[], int],
        deliver: Callable[[Sample], None] = lambda _: None,
        journal: Journal | None = None,
        memory: Path | None = None,
    ) -> None:
        self.participant, self.transport = participant, transport
        self._own, self._deliver, self._journal, self._memory = own, deliver, journal, memory
        self._frames = Allowance(_FRAMES_PER_S, _FRAMES_PER_S)
        transport.accepts = self._accepts
        self._is_changed = True
        self._saving = asyncio.Lock()
        self.listeners: list[Callable[[Sample], None]] = []
        """Callbacks for each delivered sample, called after *deliver*."""

    @property
    def now(self) -> int:
        """The time of the campus, as this node knows it."""
        return self.participant.clock.now(self._own())

    @property
    def own(self) -> int:
        """The time of the node's own clock."""
        return self._own()

    def set_clock(self, at: int) -> None:
        """Set the clock of the campus to *at*; the difference to the own clock survives a restart."""
        self.participant.clock.set(at, own=self._own())
        self._is_changed = True

    # -- frames --------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Handle at most ``_AT_A_TIME`` frames that have arrived, so that other tasks run in between."""
        for _ in range(_AT_A_TIME):
            heard = self.transport.receive()
            if heard is None:
                return
            outputs = self.participant.handle(heard.sender, heard.part, own=self._own(), host=heard.host)
            self.perform(outputs, giver=heard.sender)

    def _accepts(self, sender: int) -> bool:
        """Return whether a frame of *sender* is within the rates, and count it."""
        own = self._own()
        if self._frames.take(now=own):
            return self.participant.neighbourhood.may_be_read(sender, own=own)
        self.participant.counts["too many frames"] += 1
        return False

    def turn(self) -> None:
        """Run the timers of the participant and say Hello; call it once in a Hello period."""
        self.perform(self.participant.timer(own=self._own()))
        self.transport.say(self.participant.hello(own=self._own()))
        if self._journal is not None:
            self._journal.sync()

    def perform(self, outputs: Iterable[Output], *, giver: int | None = None) -> None:
        """Perform the outputs of the core, in order; *giver* is the neighbour whose frame caused them, if any."""
        for each in outputs:
            match each:
                case Send(address, message) | Tell(address, message):
                    self.transport.send(address, message)
                    if isinstance(message, Answer):
                        self._is_changed |= message.copies > 0
                        self._note_receipt(message.sample, address)
                case StoreSample(sample):
                    self._is_changed = True
                    self._note_sample(sample, giver)
                case Deliver(sample):
                    self._is_changed = True
                    is_new = self._note_sample(sample, giver)
                    self._note_receipt(sample, None, was_carried=not is_new)
                    self._deliver(sample)
                    for listener in list(self.listeners):
                        listener(sample)
                case Greet():
                    self.transport.say(Hello((), is_first=False))
                case Drop() | TakeBack():
                    self._is_changed = True
                case Note():
                    self._is_changed |= each.kind is not NoteKind.REFUSED
                    self._say(each)

    def _say(self, note: Note) -> None:
        said: dict[str, object] = {"neighbour": address_name(note.neighbour)}
        if note.topic is not None:
            said["topic"] = self.participant.topics.name_of(note.topic)
        if note.difference_us is not None:
            said["difference_s"] = round(note.difference_us / US_PER_S, 3)
        if note.version is not None:
            said["version"] = note.version
        (_log.warning if note.kind is NoteKind.REFUSED else _log.info)(_LOG_WORDS[note.kind], **said)

    def _note_sample(self, sample: Sample, giver: int | None) -> bool:
        if self._journal is None:
            return False
        name = self.participant.topics.name_of(sample.topic)
        return self._journal.note_sample(sample, name, giver=giver, at=self.now)

    def _note_receipt(self, sample: Sample, receiver: int | None, *, was_carried: bool = False) -> None:
        if self._journal is not None and sample.topic:
            name = self.participant.topics.name_of(sample.topic)
            self._journal.note_receipt(sample, name, receiver=receiver, at=self.now, was_carried=was_carried)

    # -- the application -----------------------------------------------------------------------------------------------

    async def publish(self, topic: str, body: bytes, *, ttl_us: int | None = None) -> Sample:
        """Publish *body* on *topic*; return the sample once it is on the disk."""
        outputs = self.participant.publish(topic, body, own=self._own(), ttl_us=ttl_us)
        self.perform(outputs)
        await self.save(must=True)
        return next(each.sample for each in outputs if isinstance(each, StoreSample))

    async def subscribe(self, topic: str) -> None:
        """Subscribe to *topic* from now on, also after a restart."""
        is_new = topic not in self.participant.subscriptions
        outputs = self.participant.subscribe(topic)
        if is_new and self._journal is not None:
            self._journal.note_interest(topic, is_added=True, at=self.now)
        self._is_changed = True
        self.perform(outputs)
        await self.save()

    async def unsubscribe(self, topic: str) -> None:
        """End the subscription to *topic*."""
        if topic not in self.participant.subscriptions:
            mine = ", ".join(self.participant.subscriptions)
            raise InvalidValueError(
                "topic", topic, f"one of {mine}" if mine else "none: this node has no subscriptions"
            )
        self.participant.unsubscribe(topic)
        if self._journal is not None:
            self._journal.note_interest(topic, is_added=False, at=self.now)
        self._is_changed = True
        await self.save()

    # -- running -------------------------------------------------------------------------------------------------------

    async def save(self, *, must: bool = False) -> None:
        """Write the memory to disk if it has changed; an error is raised if *must*, else logged and counted."""
        async with self._saving:
            if self._memory is None or not self._is_changed:
                return
            self._is_changed = False
            memory = self.participant.memory()
            try:
                await asyncio.to_thread(write_memory, self._memory, memory)
            except LogError as error:
                self._is_changed = True
                self.participant.counts["memory errors"] += 1
                if must:
                    raise
                _log.warning("the memory of this node cannot be written", reason=str(error))

    async def run(self, transport: LinkTransport, stop: asyncio.Event) -> None:
        """Say Hello regularly and read the sockets of *transport*, until *stop* is set."""
        loop = asyncio.get_running_loop()
        for fileno in transport.filenos():
            loop.add_reader(fileno, self.read)
        period_s = self.participant.rules.hello_us / US_PER_S
        next_at = loop.time()
        try:
            while not stop.is_set():
                transport.refresh()
                self.turn()
                await self.save()
                next_at = max(next_at + period_s, loop.time())
                try:
                    async with asyncio.timeout_at(next_at):
                        await stop.wait()
                except TimeoutError:
                    pass
        finally:
            for fileno in transport.filenos():
                loop.remove_reader(fileno)
            await self.save()
