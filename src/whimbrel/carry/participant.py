"""A participant: a carrier with a clock, names of topics and control data, and bounds on what a neighbour may cost.

Rule: an entry of a Hello from the future beyond the clock's tolerance does not count, and is reported once in a while.
Rule: a request that is not answered in time is given up; a neighbour that fails so often for a topic is not believed
there any more, but for one request a minute, until it answers.
Rule: an answer counts only from the node that was asked, with at most half of L. Only neighbours get one: who has not
said Hello could not be reached, and the copies that the answer grants would be lost.
Rule: a neighbour is asked once it can know us: after our Hello, or a greeting, of which few are said.
Rule: a node that knows keys of a campus publishes once a way-server has set its clock; without keys its own clock
counts, and its samples say so.
Rule: no clock and no random numbers: *own* is what the node's own clock says, in microseconds UTC.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from whimbrel.carry.assembly import AnswerAssembly
from whimbrel.carry.control.clock import CampusClock
from whimbrel.carry.control.segments import BUILT_IN_TOPIC, ControlData
from whimbrel.carry.control.store import ControlStore
from whimbrel.carry.control.topics import TopicNames
from whimbrel.carry.hello import (
    MAX_COPIES,
    Answer,
    Entry,
    Hello,
    Message,
    Refusal,
    Request,
    Sample,
    SampleId,
    Subscriptions,
    TimeAnswer,
    TimeQuestion,
    TopicsQuestion,
)
from whimbrel.carry.memory import Memory, memory_of
from whimbrel.carry.node import PLACES, Carrier, Send
from whimbrel.carry.outputs import Greet, Note, NoteKind, Output, Tell
from whimbrel.carry.rates import Allowance, NeighbourRates
from whimbrel.carry.sight import Believers, Sight
from whimbrel.carry.signatures import SampleSigner, is_signed_by
from whimbrel.carry.wire import AnswerChunk, MalformedMessageError, Part
from whimbrel.errors import InvalidInputError, InvalidValueError
from whimbrel.model.bounds import whole
from whimbrel.model.clock import US_PER_S, is_alive

__all__ = ["NotSynchronisedError", "Participant", "Rules"]

COPIES = 8
"""L of a topic without a plan: that of 100 equally popular topics in the paper's scenario."""
_MAX_NEIGHBOURS = 1_024
_MAX_DEAD = 1_024
_MAX_PENDING = 512
_MAX_REFUSALS = 64
_GREETINGS = 1, 2
"""Greetings per second and at once; each is heard by all."""
_REPORTS = 1, 10
"""Reports of samples from the future per second and at once: invented addresses must not fill the log."""
_FORGIVE_US = 60 * US_PER_S
_TELL_AGAIN_US = 600 * US_PER_S


class NotSynchronisedError(InvalidInputError):
    """The clock of a node was not set. Reaction: publish after it has met a way-server."""

    def __str__(self) -> str:
        return "the clock of this node is not set: it can publish once it has met a way-server of its campus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings of a participant."""

    places: int = PLACES
    copies: int = COPIES
    hello_us: int = US_PER_S
    shows_retrieved: bool = False
    sight: Sight = Sight.FINAL
    signer: SampleSigner | None = None
    """Signs what the node publishes."""
    publishers: frozenset[bytes] | None = None
    """Public keys of the publishers whose samples are taken; None: everybody's, signed or not, as in the paper."""
    frames: tuple[int, int] = (200, 400)
    """Frames of one neighbour that are read, per second and at once."""
    answers: tuple[int, int] = (20, 128)
    """Requests of one neighbour that are answered, per second and at once; all together may have ten times as many."""
    requests: tuple[int, int] = (20, 128)
    """Requests that are sent to one neighbour, per second and at once; to all, ten times as many."""

    def __post_init__(self) -> None:
        whole("copies", self.copies, 1, MAX_COPIES)
        whole("hello_us", self.hello_us, 1_000, 3_600 * US_PER_S)

    @property
    def answer_us(self) -> int:
        """How long an answer is waited for."""
        return max(2 * self.hello_us, 2 * US_PER_S)

    @property
    def silence_us(self) -> int:
        """How long a neighbour may say nothing until it is out of reach."""
        return max(3 * self.hello_us, 3 * US_PER_S)


def _tenfold(rate: tuple[int, int]) -> tuple[int, int]:
    return 10 * rate[0], 10 * rate[1]


class Participant:
    """A node of a campus."""

    def __init__(
        self,
        address: int,
        rules: Rules,
        *,
        topics: TopicNames,
        clock: CampusClock,
        nonce: Callable[[], bytes],
        keys: Iterable[bytes] = (),
    ) -> None:
        self.address, self.rules, self.topics, self.clock = address, rules, topics, clock
        self.control = ControlStore(keys)
        self.carrier = Carrier(address, places=rules.places, shows_retrieved=rules.shows_retrieved, sight=rules.sight)
        self.counts: Counter[str] = Counter()
        self.refusals: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """Neighbours whose samples were refused: how far they were in the future, and when that was reported."""
        self._nonce = nonce
        self._names: dict[str, int] = {}
        """The topics to which the application subscribes, and their ids now."""
        self._assembly = AnswerAssembly()
        self._believers = Believers()
        self._pending: OrderedDict[tuple[int, SampleId], tuple[int, int]] = OrderedDict()
        """Requests without an answer: who was asked, and when."""
        self._neighbours: OrderedDict[int, int] = OrderedDict()
        """Who is in reach, and when each said Hello last."""
        self._strangers: set[int] = set()
        """Neighbours that have come since our last Hello, and cannot know us."""
        self._forgiven_at: int | None = None
        self._dead: OrderedDict[tuple[int, SampleId], None] = OrderedDict()
        """Samples that are not taken: they have expired, or are not signed as they should be."""
        self._frames = NeighbourRates(rules.frames, _tenfold(rules.frames))
        self._answers = NeighbourRates(rules.answers, _tenfold(rules.answers))
        self._reports = Allowance(*_REPORTS)
        self._greetings = Allowance(*_GREETINGS)
        self._requests = NeighbourRates(rules.requests, _tenfold(rules.requests))

    # -- the application ---------------------------------------------------------------------------------------------

    @property
    def subscriptions(self) -> list[str]:
        """The names of the topics to which the application subscribes."""
        return sorted(self._names)

    @property
    def neighbours(self) -> list[int]:
        """Who is in reach, the one heard last at the end."""
        return list(self._neighbours)

    @property
    def pending(self) -> int:
        """How many requests wait for an answer."""
        return len(self._pending)

    def copies_of(self, topic: int) -> int:
        """Return L of a topic: that of the plan, else that of the settings."""
        plan = self.topics.plan_of(topic)
        return self.rules.copies if plan is None else plan.copies

    def publish(self, name: str, body: bytes, *, own: int, ttl_us: int | None = None) -> list[Output]:
        """Publish *body* on the topic *name*; after *ttl_us* nobody wants it."""
        if not self.control.ring.is_empty and not self.clock.is_synchronised:
            raise NotSynchronisedError
        topic, now = self.topics.id_of(name), self.clock.now(own)
        sample = Sample(
            topic=topic,
            published_at=self.carrier.next_time(SampleId(now, self.address), topic),
            publisher=self.address,
            body=body,
            expires_at=None if ttl_us is None else now + ttl_us,
            is_unsynchronised=not self.clock.is_synchronised,
        )
        return self.publish_sample(sample)

    def publish_sample(self, sample: Sample) -> list[Output]:
        """Store *sample*, L of which are to exist."""
        if self.rules.signer is not None:
            sample = self.rules.signer.sign(sample)
        return list(self.carrier.publish(sample, copies=self.copies_of(sample.topic)))

    def adopt(self, sample: Sample, *, copies: int, own: int) -> list[Output]:
        """Store a sample that came by another way, with the id that it has, if it is the newest of its topic here."""
        now = self.clock.now(own)
        is_late = not is_alive(sample.expires_at, now=now)
        if is_late or self.clock.ahead_us(sample.published_at, own=own) is not None:
            self.counts["expired" if is_late else "from the future"] += 1
            return []
        if self.carrier.next_time(sample.id, sample.topic) != sample.published_at:
            return []
        return list(self.carrier.publish(sample, copies=copies))

    def subscribe(self, name: str) -> list[Output]:
        """Subscribe to the topic *name*; return what is stored of it."""
        topic = self.topics.id_of(name)
        self._names[name] = topic
        return list(self.carrier.subscribe(topic))

    def unsubscribe(self, name: str) -> None:
        """Subscribe to the topic *name* no more."""
        topic = self._names.pop(name, None)
        if topic is not None:
            self.carrier.unsubscribe(topic)

    # -- the air -----------------------------------------------------------------------------------------------------

    def hello(self, *, own: int) -> Hello:
        """Return what to tell the neighbours, now: they know us from then on."""
        self._strangers.clear()
        entries = [each for each in self.carrier.hello().entries if (each.topic, each.id) not in self._dead]
        return Hello(tuple(sorted([*self.control.entries(now=self.clock.now(own)), *entries])))

    def receive(self, sender: int, part: Part, *, own: int) -> list[Output]:
        """Take what the neighbour *sender* says; return what to do, in order."""
        if not self._frames.take(sender, now=own):
            self.counts["too many frames"] += 1
            return []
        match part:
            case Hello():
                return self._hear(sender, part, own)
            case Request():
                return self._answer(sender, part, own)
            case AnswerChunk():
                return self._assemble(sender, part, own)
            case Refusal(topic, sample_id):
                if self._is_asked(sender, topic, sample_id):
                    del self._pending[topic, sample_id]
                    return list(self.carrier.receive(sender, part)) if topic != BUILT_IN_TOPIC else []
            case TopicsQuestion():
                return self._ask_time(sender, own)
            case TimeAnswer():
                return self._set_clock(sender, part, own)
            case TimeQuestion() | Subscriptions():
                self.counts["not for this node"] += 1
        return []

    def timer(self, *, own: int) -> list[Output]:
        """Do what is due at *own*: call it once in a Hello period."""
        for (topic, sample_id), (neighbour, asked_at) in list(self._pending.items()):
            if own - asked_at >= self.rules.answer_us:
                self._give_up(topic, sample_id)
                self._believers.fail(neighbour, topic)
                self.counts["unanswered"] += 1
        for neighbour, heard_at in list(self._neighbours.items()):
            if own - heard_at >= self.rules.silence_us:
                self._leave(neighbour)
        if self._forgiven_at is None or own - self._forgiven_at >= _FORGIVE_US:
            self._forgiven_at = own
            self._believers.forgive()
        steps = self.carrier.expire(now=self.clock.now(own))
        for step in steps:
            if not isinstance(step, Send):
                self._bury(step.sample.topic, step.sample.id)
        return list(steps)

    # -- hearing a Hello ---------------------------------------------------------------------------------------------

    def _hear(self, sender: int, hello: Hello, own: int) -> list[Output]:
        outputs: list[Output] = []
        if sender not in self._neighbours:
            self._strangers.add(sender)
        self._neighbours[sender] = own
        self._neighbours.move_to_end(sender)
        if len(self._neighbours) > _MAX_NEIGHBOURS:
            self._leave(next(iter(self._neighbours)))
        entries: list[Entry] = []
        for each in hello.entries:
            if not self._believers.believes(sender, each.topic):
                self.counts["not believed"] += 1
            elif each.topic == BUILT_IN_TOPIC:
                outputs += self._request_control(sender, each.id, own)
            elif self.clock.ahead_us(each.id.published_at, own=own) is not None:
                outputs += self._refuse(sender, each, own)
            elif (each.topic, each.id) not in self._dead:
                entries.append(each)
        for step in self.carrier.receive(sender, Hello(tuple(entries), hello.is_first)):
            assert isinstance(step, Send)
            assert isinstance(step.message, Request)
            outputs += self._request(step, own)
        return outputs

    def _request(self, step: Send, own: int) -> list[Output]:
        request = step.message
        assert isinstance(request, Request)
        greeting: list[Output] = []
        if step.address in self._strangers and self._greetings.take(now=own):
            self._strangers.clear()
            greeting = [Greet()]
        if step.address in self._strangers or not self._requests.take(step.address, now=own):
            self.counts["requests held back"] += 1
            self.carrier.forget(request.topic, request.id)
            return greeting
        self._pending[request.topic, request.id] = step.address, own
        if len(self._pending) > _MAX_PENDING:
            self._give_up(*next(iter(self._pending)))
        return [*greeting, step]

    def _request_control(self, sender: int, sample_id: SampleId, own: int) -> list[Output]:
        if (BUILT_IN_TOPIC, sample_id) in self._pending or not self.control.wants(sample_id, now=self.clock.now(own)):
            return []
        request = Request(topic=BUILT_IN_TOPIC, id=sample_id, is_subscriber=True, wants_copies=False)
        return self._request(Send(sender, request), own)

    def _refuse(self, sender: int, entry: Entry, own: int) -> list[Output]:
        """Count a sample from the future; report each neighbour once in a while."""
        self.counts["from the future"] += 1
        ahead_us = entry.id.published_at - self.clock.now(own)
        _, told_at = self.refusals.pop(sender, (0, None))
        is_told = told_at is not None and own - told_at < _TELL_AGAIN_US
        self.refusals[sender] = ahead_us, told_at if is_told and told_at is not None else own
        if len(self.refusals) > _MAX_REFUSALS:
            self.refusals.popitem(last=False)
        if is_told or not self._reports.take(now=own):
            return []
        return [Note(kind=NoteKind.REFUSED, neighbour=sender, topic=entry.topic, difference_us=ahead_us)]

    def _leave(self, neighbour: int) -> None:
        """Wait for nothing of *neighbour* any more: it is out of reach."""
        self._neighbours.pop(neighbour, None)
        self._strangers.discard(neighbour)
        for name in [name for name, (asked, _) in self._pending.items() if asked == neighbour]:
            del self._pending[name]
        self.carrier.leave(neighbour)
        self._assembly.forget(neighbour)

    def _give_up(self, topic: int, sample_id: SampleId) -> None:
        self._pending.pop((topic, sample_id), None)
        self.carrier.forget(topic, sample_id)

    def _bury(self, topic: int, sample_id: SampleId) -> None:
        self._dead[topic, sample_id] = None
        if len(self._dead) > _MAX_DEAD:
            self._dead.popitem(last=False)

    def _is_asked(self, neighbour: int, topic: int, sample_id: SampleId) -> bool:
        return self._pending.get((topic, sample_id), (None, 0))[0] == neighbour

    # -- giving and taking -------------------------------------------------------------------------------------------

    def _answer(self, sender: int, request: Request, own: int) -> list[Output]:
        if sender not in self._neighbours:
            self.counts["requests of strangers"] += 1
            return []
        if not self._answers.take(sender, now=own):
            self.counts["answers held back"] += 1
            return []
        if request.topic == BUILT_IN_TOPIC:
            sample = self.control.find(request.id)
            answer: Message = Refusal(request.topic, request.id) if sample is None else Answer(sample, 0)
            return [Send(sender, answer)]
        if (request.topic, request.id) in self._dead:
            return [Send(sender, Refusal(request.topic, request.id))]
        return list(self.carrier.receive(sender, request))

    def _assemble(self, sender: int, chunk: AnswerChunk, own: int) -> list[Output]:
        if not self._is_asked(sender, chunk.topic, chunk.id):
            self.counts["not asked for"] += 1
            return []
        try:
            answer = self._assembly.add(sender, chunk)
        except MalformedMessageError:
            self.counts["malformed answers"] += 1
            return []
        if answer is None:
            return []
        del self._pending[chunk.topic, chunk.id]
        if chunk.topic == BUILT_IN_TOPIC:
            return self._take_control(sender, answer.sample, own)
        return self._take(sender, answer, own)

    def _take(self, sender: int, answer: Answer, own: int) -> list[Output]:
        sample, now = answer.sample, self.clock.now(own)
        is_over = not is_alive(sample.expires_at, now=now)
        trusted = self.rules.publishers
        if is_over or (trusted is not None and not is_signed_by(sample, trusted)):
            self.counts["expired" if is_over else "not signed"] += 1
            self._bury(sample.topic, sample.id)
            self.carrier.forget(sample.topic, sample.id)
            return []
        self._believers.answer(sender, sample.topic)
        most = max(self.copies_of(sample.topic) // 2, 1)
        if answer.copies > most:
            self.counts["too many copies"] += 1
            answer = replace(answer, copies=most)
        return list(self.carrier.receive(sender, answer))

    def _take_control(self, sender: int, sample: Sample, own: int) -> list[Output]:
        before = self.control.ignored
        data = self.control.receive(sample, now=self.clock.now(own))
        if self.control.ignored != before:
            self._believers.fail(sender, BUILT_IN_TOPIC)
        else:
            self._believers.answer(sender, BUILT_IN_TOPIC)
        return [] if data is None else self.follow(data, sender)

    def follow(self, data: ControlData, neighbour: int) -> list[Output]:
        """Follow control data that has come into force, from *neighbour*."""
        before = {plan.topic for _, plan in self.topics.plans()}
        self.topics.set_control(data)
        for topic in before - {each.topic for each in data.topics}:
            self.carrier.retire(topic)
        outputs: list[Output] = [Note(kind=NoteKind.CONTROL, neighbour=neighbour, version=data.version)]
        for name, old in list(self._names.items()):
            try:
                topic = self.topics.id_of(name)
            except InvalidValueError:  # its id is another topic's now: nothing comes until it has one of its own
                self.counts["topics without an id"] += 1
                self.carrier.unsubscribe(old)
                continue
            if topic != old or topic not in self.carrier.subscriptions:
                self.carrier.unsubscribe(old)
                self._names[name] = topic
                outputs += self.carrier.subscribe(topic)
        return outputs

    # -- memory ------------------------------------------------------------------------------------------------------

    def memory(self) -> Memory:
        """Return what the node must know again after a restart."""
        return replace(
            memory_of(self.carrier),
            control=self.control.samples,
            subscriptions=tuple(self.subscriptions),
            offset_us=self.clock.offset_us,
            clock_set_at=self.clock.set_at,
        )

    def restore(self, memory: Memory, *, own: int) -> list[Output]:
        """Begin with what a node had before a restart."""
        if memory.clock_set_at is not None:
            self.clock.offset_us, self.clock.set_at = memory.offset_us, memory.clock_set_at
        outputs: list[Output] = []
        for sample in memory.control:
            data = self.control.receive(sample, now=self.clock.now(own))
            if data is not None:
                outputs += self.follow(data, self.address)
        outputs += self.carrier.restore(memory.stored, memory.retrieved)
        for name in memory.subscriptions:
            outputs += self.subscribe(name)
        return outputs

    # -- way-servers -------------------------------------------------------------------------------------------------

    def _ask_time(self, sender: int, own: int) -> list[Output]:
        """Ask who says to be a way-server for the time: its answer proves it, and is answered with our topics."""
        if self.control.ring.is_empty or not self._requests.take(sender, now=own):
            return []
        question = self.clock.ask(sender, self._nonce(), own=own)
        return [] if question is None else [Tell(sender, question)]

    def _set_clock(self, sender: int, answer: TimeAnswer, own: int) -> list[Output]:
        before = self.clock.now(own)
        keys = self.control.ring.keys(now=before)
        if not self.clock.receive(sender, answer, asker=self.address, keys=keys, own=own):
            self.counts["forged times"] += 1
            return []
        topics = tuple(sorted(self.carrier.subscriptions))
        difference_us = self.clock.now(own) - before
        return [
            Note(kind=NoteKind.CLOCK, neighbour=sender, difference_us=difference_us),
            Tell(sender, Subscriptions(topics, self.rules.places)),
        ]
