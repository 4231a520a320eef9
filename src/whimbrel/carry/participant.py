"""A participant: a carrier with a clock, names of topics and control data, and with neighbours that may be hostile.

Rule: an entry of a Hello that is further in the future than the clock's tolerance is ignored, and reported once in a
while. When a way-server sets the clock back, samples that are then in the future are removed.
Rule: an answer counts only if it comes from the node to which the request went, and for at most half of L copies. Only
neighbours get answers: a node without a Hello has no known address, and its copies would be lost.
Rule: copies that are granted are acknowledged, or go back to the giver (``carry.neighbours.grants``). All addresses
behind one host get copies of a sample once, because addresses can be invented.
Rule: a node with keys of a campus publishes only after a way-server has set its clock. Without keys its own clock
counts, and its samples are marked as unsynchronised.
Rule: no clock and no random numbers: *own* is the time of the node's own clock, in microseconds UTC.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace

from whimbrel.carry.control.clock import CampusClock
from whimbrel.carry.control.segments import BUILT_IN_TOPIC, ControlData
from whimbrel.carry.control.store import ControlStore
from whimbrel.carry.control.topics import TopicNames, hashed_topic
from whimbrel.carry.hello import (
    Acknowledgement,
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
from whimbrel.carry.neighbours.grants import Grants
from whimbrel.carry.neighbours.neighbourhood import Neighbourhood
from whimbrel.carry.neighbours.rates import Allowance
from whimbrel.carry.neighbours.shares import OWN_HOST
from whimbrel.carry.node import Carrier, Drop, Loss, Send, StoreSample
from whimbrel.carry.outputs import Note, NoteKind, Output, TakeBack, Tell
from whimbrel.carry.rules import Rules
from whimbrel.carry.signatures import is_signed_by
from whimbrel.carry.wire import AnswerChunk, Part
from whimbrel.errors import InvalidInputError, InvalidValueError
from whimbrel.model.clock import US_PER_S, is_alive

__all__ = ["NotSynchronisedError", "Participant"]

_MAX_DEAD = 1_024
_MAX_REFUSALS = 64
_REPORTS = 1, 10
"""Reports of samples from the future, per second and at once: invented addresses must not fill the log."""
_TELL_AGAIN_US = 600 * US_PER_S


class NotSynchronisedError(InvalidInputError):
    """The clock of a node was never set. Reaction: publish after it has met a way-server."""

    def __str__(self) -> str:
        return "the clock of this node is not set: it can publish once it has met a way-server of its campus"


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
        """Neighbours with refused samples: microseconds that these were in the future, and time of the last report."""
        self._nonce = nonce
        self._names: dict[str, int] = {}
        """Topics to which the application subscribes, and their present ids."""
        self.neighbourhood = Neighbourhood(self.carrier, rules, self.counts)
        self._grants = Grants(repeat_us=rules.repeat_us, wait_us=rules.grant_us)
        self._dead: OrderedDict[tuple[int, SampleId], None] = OrderedDict()
        """Samples that are not requested again: they have expired, or no trusted publisher signed them."""
        self._reports = Allowance(*_REPORTS)

    # -- the application ---------------------------------------------------------------------------------------------

    @property
    def subscriptions(self) -> list[str]:
        """The names of the topics to which the application subscribes."""
        return sorted(self._names)

    @property
    def neighbours(self) -> list[int]:
        """The neighbours in reach, the one heard last at the end."""
        return self.neighbourhood.addresses

    @property
    def pending(self) -> int:
        """Number of requests that wait for an answer."""
        return self.neighbourhood.pending

    @property
    def grants(self) -> int:
        """Number of grants of copies that wait for an acknowledgement."""
        return len(self._grants)

    @property
    def shares(self) -> int:
        """The number of hosts that have had their share of a stored sample, over all samples."""
        return self._grants.shares

    def copies_of(self, topic: int) -> int:
        """Return L of a topic, from the control data, else from the settings."""
        plan = self.topics.plan_of(topic)
        return self.rules.copies if plan is None else plan.copies

    def publish(self, name: str, body: bytes, *, own: int, ttl_us: int | None = None) -> list[Output]:
        """Publish *body* on the topic *name*; it expires after *ttl_us*."""
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
        """Sign *sample* if a key is set, and store it with L copies."""
        if self.rules.signer is not None:
            sample = self.rules.signer.sign(sample)
        return list(self.carrier.publish(sample, copies=self.copies_of(sample.topic)))

    def adopt(self, sample: Sample, *, copies: int, own: int) -> list[Output]:
        """Store a sample that came through the broker, under its own id, if it is the newest of its topic here."""
        now = self.clock.now(own)
        is_late = not is_alive(sample.expires_at, now=now)
        if is_late or self.clock.ahead_us(sample.published_at, own=own) is not None:
            self.counts["expired" if is_late else "from the future"] += 1
            return []
        if self.carrier.next_time(sample.id, sample.topic) != sample.published_at:
            return []
        return list(self.carrier.publish(sample, copies=copies))

    def subscribe(self, name: str) -> list[Output]:
        """Subscribe to the topic *name*; return the delivery of its newest stored sample, if any."""
        topic = self.topics.id_of(name)
        self._names[name] = topic
        return list(self.carrier.subscribe(topic))

    def unsubscribe(self, name: str) -> None:
        """End the subscription to the topic *name*."""
        topic = self._names.pop(name, None)
        if topic is not None:
            self.carrier.unsubscribe(topic)

    # -- the air -----------------------------------------------------------------------------------------------------

    def hello(self, *, own: int) -> Hello:
        """Return the Hello to say now; the neighbours know this node from then on."""
        self.neighbourhood.greet_all()
        entries = [each for each in self.carrier.hello().entries if (each.topic, each.id) not in self._dead]
        return Hello(tuple(sorted([*self.control.entries(now=self.clock.now(own)), *entries])))

    def receive(self, sender: int, part: Part, *, own: int, host: str = OWN_HOST) -> list[Output]:
        """Handle a frame of the neighbour *sender* if its rate allows; return the outputs, in order."""
        if not self.neighbourhood.may_be_read(sender, own=own):
            return []
        return self.handle(sender, part, own=own, host=host)

    def handle(self, sender: int, part: Part, *, own: int, host: str = OWN_HOST) -> list[Output]:
        """Handle a frame that came from the machine *host*; the caller has checked its rate."""
        match part:
            case Hello():
                return self._hear(sender, part, own)
            case Request():
                return self._answer(sender, part, own, host)
            case AnswerChunk():
                return self._assemble(sender, part, own)
            case Refusal(topic, sample_id):
                if self.neighbourhood.is_asked(sender, topic, sample_id):
                    self.neighbourhood.stop_waiting(topic, sample_id)
                    return list(self.carrier.receive(sender, part)) if topic != BUILT_IN_TOPIC else []
                granted = self._grants.refuse((sender, topic, sample_id))
                return [] if granted is None else [self._take_back(granted)]
            case Acknowledgement():
                return self._acknowledge(sender, part)
            case TopicsQuestion():
                return self._ask_time(sender, own)
            case TimeAnswer():
                return self._set_clock(sender, part, own)
            case TimeQuestion() | Subscriptions():
                self.counts["not for this node"] += 1
        return []

    def timer(self, *, own: int) -> list[Output]:
        """Repeat, give up and expire whatever is due at *own*; call it once in a Hello period."""
        outputs = self.neighbourhood.timer(own=own)
        stored = {(copy.sample.topic, copy.sample.id) for copy in self.carrier.stored}
        due = self._grants.timer(stored=stored, own=own)
        for neighbour, answer in due.repeated:
            if self.neighbourhood.is_in_reach(neighbour) and self.neighbourhood.may_be_answered(neighbour, own=own):
                self.counts["grants repeated"] += 1
                outputs.append(Send(neighbour, answer))
        outputs += [self._take_back(answer) for answer in due.overdue]
        for step in self.carrier.expire(now=self.clock.now(own)):
            if not isinstance(step, Send):
                self._bury(step.sample.topic, step.sample.id)
            outputs.append(step)
        return outputs

    # -- hearing a Hello ---------------------------------------------------------------------------------------------

    def _hear(self, sender: int, hello: Hello, own: int) -> list[Output]:
        outputs: list[Output] = []
        self.neighbourhood.hear(sender, own=own)
        entries: list[Entry] = []
        for each in hello.entries:
            if not self.neighbourhood.believers.believes(sender, each.topic):
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
            outputs += self.neighbourhood.ask(step.address, step.message, own=own)
        return outputs

    def _request_control(self, sender: int, sample_id: SampleId, own: int) -> list[Output]:
        is_pending = self.neighbourhood.is_pending(BUILT_IN_TOPIC, sample_id)
        if is_pending or not self.control.wants(sample_id, now=self.clock.now(own)):
            self.control.hear(sample_id)
            return []
        request = Request(topic=BUILT_IN_TOPIC, id=sample_id, is_subscriber=True, wants_copies=False)
        return self.neighbourhood.ask(sender, request, own=own)

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

    def _bury(self, topic: int, sample_id: SampleId) -> None:
        self._dead[topic, sample_id] = None
        if len(self._dead) > _MAX_DEAD:
            self._dead.popitem(last=False)

    # -- giving and taking -------------------------------------------------------------------------------------------

    def _answer(self, sender: int, request: Request, own: int, host: str) -> list[Output]:
        if not self.neighbourhood.is_in_reach(sender):
            self.counts["requests of strangers"] += 1
            return []
        if not self.neighbourhood.may_be_answered(sender, host=host, own=own):
            return []
        refusal: Message = Refusal(request.topic, request.id)
        if request.topic == BUILT_IN_TOPIC:
            sample = self.control.find(request.id)
            return [Send(sender, refusal if sample is None else Answer(sample, 0))]
        if (request.topic, request.id) in self._dead:
            return [Send(sender, refusal)]
        if request.wants_copies:
            granted = self._grants.repeat((sender, request.topic, request.id), own=own)
            if granted is not None:
                self.counts["grants repeated"] += 1
                return [Send(sender, granted)]
            if self._grants.is_full or self._grants.has_share(host, (request.topic, request.id)):
                self.counts["grants held back"] += 1
                request = replace(request, wants_copies=False)
        steps = self.carrier.receive(sender, request)
        for step in steps:
            if isinstance(step, Send) and isinstance(step.message, Answer) and step.message.copies:
                self._grants.add(sender, step.message, host=host, own=own)
        return list(steps)

    def _acknowledge(self, sender: int, said: Acknowledgement) -> list[Output]:
        """End the grant that *said* acknowledges; take back the copies that its receiver does not keep."""
        name = sender, said.topic, said.id
        granted = self._grants.acknowledge(name)
        if granted is None:
            late = self._grants.late(name)
            if late is not None:
                self.counts["late acknowledgements"] += 1
                self.carrier.give_away(replace(late, copies=min(said.copies, late.copies)))
            return []
        if said.copies >= granted.copies:
            return []
        return [self._take_back(replace(granted, copies=granted.copies - said.copies))]

    def _take_back(self, answer: Answer) -> Output:
        """Take back the copies of *answer*, which its receiver has refused, not kept, or not acknowledged."""
        self.counts["grants taken back"] += 1
        if self.carrier.take_back(answer):
            return TakeBack(answer.sample, answer.copies)
        return Drop(answer.sample, answer.copies, Loss.UNACKNOWLEDGED)

    def _assemble(self, sender: int, chunk: AnswerChunk, own: int) -> list[Output]:
        answer = self.neighbourhood.assemble(sender, chunk)
        if answer is not None:
            return self._take(sender, answer, own)
        if self.neighbourhood.is_asked(sender, chunk.topic, chunk.id) or not chunk.copies or chunk.offset:
            return []
        # The giver repeats the answer: our acknowledgement was lost, or the answer until we asked another node.
        kept = self._grants.stored_copies((sender, chunk.topic, chunk.id))
        if kept is not None:
            return [Tell(sender, Acknowledgement(chunk.topic, chunk.id, kept))]
        return [Send(sender, Refusal(chunk.topic, chunk.id))]

    def _take(self, sender: int, answer: Answer, own: int) -> list[Output]:
        sample, now = answer.sample, self.clock.now(own)
        if sample.topic == BUILT_IN_TOPIC:
            return self._take_control(sender, sample, own)
        is_over = not is_alive(sample.expires_at, now=now)
        trusted = self.rules.publishers
        if is_over or (trusted is not None and not is_signed_by(sample, trusted)):
            self.counts["expired" if is_over else "not signed"] += 1
            self._bury(sample.topic, sample.id)
            self.carrier.forget(sample.topic, sample.id)
            return []
        self.neighbourhood.believers.answer(sender, sample.topic)
        most = max(self.copies_of(sample.topic) // 2, 1)
        if answer.copies > most:
            self.counts["too many copies"] += 1
            answer = replace(answer, copies=most)
        steps = self.carrier.receive(sender, answer)
        if any(isinstance(step, StoreSample) for step in steps):
            self._grants.store((sender, sample.topic, sample.id), answer.copies)
            return [*steps, Tell(sender, Acknowledgement(sample.topic, sample.id, answer.copies))]
        if answer.copies:
            return [*steps, Send(sender, Refusal(sample.topic, sample.id))]
        return list(steps)

    def _take_control(self, sender: int, sample: Sample, own: int) -> list[Output]:
        before = self.control.ignored
        data = self.control.receive(sample, now=self.clock.now(own))
        if self.control.ignored != before:
            self.neighbourhood.believers.fail(sender, BUILT_IN_TOPIC)
        else:
            self.neighbourhood.believers.answer(sender, BUILT_IN_TOPIC)
        return [] if data is None else self.follow(data, sender)

    def follow(self, data: ControlData, neighbour: int) -> list[Output]:
        """Apply control data that has come into force, from *neighbour*: plans, names and ids of topics."""
        before = {plan.topic for _, plan in self.topics.plans()}
        self.topics.set_control(data)
        for topic in before - {each.topic for each in data.topics}:
            self.carrier.retire(topic)
        outputs: list[Output] = [Note(kind=NoteKind.CONTROL, neighbour=neighbour, version=data.version)]
        for name, old in list(self._names.items()):
            try:
                topic = self.topics.id_of(name)
            except InvalidValueError:  # another topic has its id now: the subscription pauses until it gets its own
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
        """Return the state that must survive a restart."""
        return replace(
            memory_of(self.carrier),
            control=self.control.samples,
            subscriptions=tuple(self.subscriptions),
            offset_us=self.clock.offset_us,
            clock_set_at=self.clock.set_at,
        )

    def restore(self, memory: Memory, *, own: int) -> list[Output]:
        """Restore the state of before a restart."""
        if memory.clock_set_at is not None:
            self.clock.offset_us, self.clock.set_at = memory.offset_us, memory.clock_set_at
        outputs: list[Output] = []
        for sample in memory.control:
            data = self.control.receive(sample, now=self.clock.now(own))
            if data is not None:
                outputs += self.follow(data, self.address)
        outputs += self.carrier.restore(memory.stored, memory.retrieved)
        for name in memory.subscriptions:
            try:
                outputs += self.subscribe(name)
            except InvalidValueError:  # as in `follow`: it pauses, and must not keep the node from starting
                self.counts["topics without an id"] += 1
                self._names[name] = hashed_topic(name)
        return outputs

    # -- way-servers -------------------------------------------------------------------------------------------------

    def _ask_time(self, sender: int, own: int) -> list[Output]:
        """Ask *sender*, which claims to be a way-server, for the time: a valid answer proves that it is one."""
        if self.control.ring.is_empty or not self.neighbourhood.may_be_asked(sender, own=own):
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
            # Others refuse samples that this node stored or published while its clock was ahead, and newer ones.
            *self.carrier.remove_after(self.clock.now(own) + self.clock.tolerance_us),
        ]
