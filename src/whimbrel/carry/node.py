"""A carrier: the memory of one node, what it asks of its neighbours and gives them (Campus++, sections 2 and 3).

Rule: memory has a fixed number of places, one a sample; the source's own copy takes one, too.
Rule: half of the copies go to a carrier that asks, of an odd number the larger half stays; who has one copy waits.
Rule: a stored sample is *removable* from the sight of a newer one of its topic in a neighbour's Hello. It is still
given to subscribers, no longer to carriers, and removed when its place is needed, the oldest id first.
Rule: with a provisional sight (``carry.sight``) the older sample is not given to carriers from then on, and becomes
removable when the newer one has come. It makes room before only for what the same neighbour gives after its proof.
Rule: what a neighbour offers takes free and removable places only. A source always stores what it publishes: if no
place is free or removable, the oldest sample gives way, and its copies are lost.
Rule: what a subscriber retrieved is its application's, takes no place and is no replica; with *shows_retrieved* it is
listed for other subscribers, without copies to give.
Rule: clocks are loosely synchronised: a node whose clock is behind a sample that it holds publishes with the time of
that sample + 1, so that what is published after a sample was seen is the newer of the two.
Rule: no clock and no random numbers: ids break ties. The shell delivers messages and performs the steps in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

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
)
from whimbrel.carry.sight import MAX_HELLOS, Believers, PendingRequest, Sight
from whimbrel.model.bounds import INT32_MAX, INT64_MAX, INT64_MIN, whole
from whimbrel.model.clock import is_alive

__all__ = ["MAX_REQUESTS", "PLACES", "Carrier", "Deliver", "Drop", "Loss", "Send", "Step", "StoreSample", "StoredCopy"]

PLACES = 10
"""Samples in the memory of the paper's chip (section 3.3)."""
MAX_REQUESTS = 256
"""Requests that wait for an answer; beyond it, the one that waits longest is given up."""


_NONE = SampleId(INT64_MIN - 1, 0)
"""Older than any sample."""


class Loss(Enum):
    """Why copies are gone."""

    REPLACED = "replaced"
    """The sample was removable and its place was needed."""
    DISPLACED = "displaced"
    """The carrier published a sample of its own and had neither a free nor a removable place."""
    OUTDATED = "outdated"
    """A newer sample of the topic came while this one was on its way."""
    NO_PLACE = "no place"
    """The place was taken while it was on its way."""
    EXPIRED = "expired"
    """Its time is over."""
    UNACKNOWLEDGED = "unacknowledged"
    """They were granted, their receiver did not keep them, and the sample is not stored here any more."""
    FUTURE = "from the future"
    """It was published with a clock that was ahead."""


@dataclass(frozen=True, slots=True)
class Send:
    """Give *message* to the neighbour at *address*."""

    address: int
    message: Message


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give *sample* to the application: it subscribes to the topic."""

    sample: Sample


@dataclass(frozen=True, slots=True)
class StoreSample:
    """Keep *sample* in memory, with *copies* to spread, this one included."""

    sample: Sample
    copies: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove *sample*, or do not store it: *copies* are gone."""

    sample: Sample
    copies: int
    loss: Loss


Step = Send | Deliver | StoreSample | Drop


@dataclass(slots=True)
class StoredCopy:
    """A sample in memory; *copies* counts itself."""

    sample: Sample
    copies: int
    is_removable: bool = False
    doubted_of: int | None = None
    """The neighbour that named a newer sample and has not given it; the copy is no place for others until then."""

    @property
    def is_replaceable(self) -> bool:
        """Whether its place may go to another sample."""
        return self.is_removable and self.doubted_of is None

    @property
    def has_copies(self) -> bool:
        """Whether a share of them is given to carriers."""
        return self.copies > 1 and not self.is_removable

    @property
    def age_order(self) -> tuple[SampleId, int]:
        """What orders samples of all topics, the oldest first."""
        return self.sample.id, self.sample.topic


def _age(copy: StoredCopy) -> SampleId:
    return copy.sample.id


class Carrier:
    """The state of one node; *address* names it in messages and in the ids of what it publishes."""

    def __init__(
        self,
        address: int,
        *,
        places: int = PLACES,
        subscriptions: Iterable[int] = (),
        shows_retrieved: bool = False,
        sight: Sight = Sight.FINAL,
    ) -> None:
        self.address, self.places = address, whole("places", places, 1, INT32_MAX)
        self.subscriptions = frozenset(subscriptions)
        self.shows_retrieved = shows_retrieved
        self.sight = sight
        self._stored: dict[tuple[int, SampleId], StoredCopy] = {}
        self._retrieved: dict[int, Sample] = {}
        self._requested: dict[tuple[int, SampleId], PendingRequest] = {}
        self._believers = Believers()

    @property
    def stored(self) -> list[StoredCopy]:
        """What is in memory, in the order of topic and id."""
        return [self._stored[name] for name in sorted(self._stored)]

    @property
    def requests(self) -> int:
        """How many requests wait for an answer."""
        return len(self._requested)

    def retrieved(self, topic: int) -> Sample | None:
        """Return the newest sample of *topic* that the application has."""
        return self._retrieved.get(topic)

    @property
    def all_retrieved(self) -> list[Sample]:
        """The newest sample of each topic that the application has, by topic."""
        return [self._retrieved[topic] for topic in sorted(self._retrieved)]

    def restore(self, stored: Iterable[StoredCopy], retrieved: Iterable[Sample]) -> list[Step]:
        """Begin with what a node had before a restart; return what finds no place any more, the oldest first."""
        self._stored = {(copy.sample.topic, copy.sample.id): copy for copy in stored}
        self._retrieved = {sample.topic: sample for sample in retrieved}
        steps: list[Step] = []
        while len(self._stored) > self.places:
            steps += self._make_room(is_own=True)
        return steps

    def subscribe(self, topic: int) -> list[Step]:
        """Subscribe to *topic*; what is stored of it is the application's from now on."""
        self.subscriptions |= {topic}
        newest = max((copy for name, copy in self._stored.items() if name[0] == topic), key=_age, default=None)
        if newest is None or self._newest_retrieved(topic) >= newest.sample.id:
            return []
        self._retrieved[topic] = newest.sample
        return [Deliver(newest.sample)]

    def unsubscribe(self, topic: int) -> None:
        """Subscribe to *topic* no more; its sample that the application has is forgotten."""
        self.subscriptions -= {topic}
        self._retrieved.pop(topic, None)

    def expire(self, *, now: int) -> list[Step]:
        """Remove the copies whose time is over at *now*."""
        over = [name for name, copy in self._stored.items() if not is_alive(copy.sample.expires_at, now=now)]
        copies = [self._stored.pop(name) for name in sorted(over)]
        return [Drop(copy.sample, copy.copies, Loss.EXPIRED) for copy in copies]

    def remove_after(self, latest: int) -> list[Step]:
        """Forget the samples that were published after *latest*, because the clock was ahead then."""
        names = sorted(name for name in self._stored if name[1].published_at > latest)
        copies = [self._stored.pop(name) for name in names]
        self._retrieved = {topic: each for topic, each in self._retrieved.items() if each.published_at <= latest}
        return [Drop(copy.sample, copy.copies, Loss.FUTURE) for copy in copies]

    def take_back(self, answer: Answer) -> bool:
        """Take back the copies that *answer* granted; return False if the sample is not stored any more."""
        copy = self._stored.get((answer.sample.topic, answer.sample.id))
        if copy is not None:
            copy.copies += answer.copies
        return copy is not None

    def give_away(self, answer: Answer) -> None:
        """Give away the copies that *answer* granted and that were taken back: they have arrived. One stays here."""
        copy = self._stored.get((answer.sample.topic, answer.sample.id))
        if copy is not None:
            copy.copies -= min(answer.copies, copy.copies - 1)

    def retire(self, topic: int) -> None:
        """Spread no more copies of *topic*: the campus has it no longer. They make room from now on."""
        for name, copy in self._stored.items():
            if name[0] == topic:
                copy.is_removable, copy.doubted_of = True, None

    def next_time(self, wanted: SampleId, topic: int) -> int:
        """Return the time with which a sample of *topic* is the newest known here, *wanted*'s if that is enough.

        A known sample of the last instant that there is does not count: none could be newer.
        """
        known = [self._newest_retrieved(topic), *(name[1] for name in self._stored if name[0] == topic)]
        newest = max((each for each in known if each.published_at < INT64_MAX), default=_NONE)
        return wanted.published_at if wanted > newest else newest.published_at + 1

    def publish(self, sample: Sample, *, copies: int) -> list[Step]:
        """Store a sample of one's own, *copies* of which are to exist in all, this one included.

        The sample that is stored has a later time than *sample* if a newer one of its topic is known here.
        """
        whole("copies", copies, 1, MAX_COPIES)
        published_at = self.next_time(sample.id, sample.topic)
        if published_at != sample.published_at:
            sample = replace(sample, published_at=published_at)
        self._see_newer(sample.topic, sample.id)
        steps: list[Step] = self._make_room(is_own=True)
        self._stored[sample.topic, sample.id] = StoredCopy(sample, copies)
        if sample.topic in self.subscriptions:
            self._retrieved[sample.topic] = sample  # it knows its own; that is no delivery
        return [*steps, StoreSample(sample, copies)]

    def hello(self) -> Hello:
        """Return what to tell the neighbours."""
        entries = [Entry(*name, copy.has_copies) for name, copy in self._stored.items()]
        if self.shows_retrieved:
            shown = ((topic, sample.id) for topic, sample in self._retrieved.items())
            entries += [Entry(*name, has_copies=False) for name in shown if name not in self._stored]
        return Hello(tuple(sorted(entries)))

    def receive(self, sender: int, message: Message) -> list[Step]:
        """Take in what the neighbour *sender* says; return what to do, in order."""
        match message:
            case Hello(entries, is_first):
                if is_first and self.sight is Sight.PROVISIONAL:
                    self._count_hello(sender)
                return [Send(sender, request) for request in self._hear(sender, entries)]
            case Request():
                return [Send(sender, self._answer(message))]
            case Answer(sample, copies) if self.is_asked(sender, sample.topic, sample.id):
                self._believers.answer(sender, sample.topic)
                return self._take(sample, copies)
            case Answer():
                return []  # nothing is pushed: what this neighbour was not asked for, or too long ago, changes nothing
            case Refusal(topic, sample_id):
                if self.is_asked(sender, topic, sample_id):
                    if self._requested[topic, sample_id].wants_proof:
                        self._believers.fail(sender, topic)
                    self.forget(topic, sample_id)
                return []

    def is_asked(self, neighbour: int, topic: int, sample_id: SampleId) -> bool:
        """Return whether *neighbour* was asked for this sample and has not answered yet."""
        request = self._requested.get((topic, sample_id))
        return request is not None and request.neighbour == neighbour

    def forget(self, topic: int, sample_id: SampleId) -> None:
        """Wait no longer for the answer to a request: it was refused, or it was lost with the contact."""
        if self._requested.pop((topic, sample_id), None) is not None:
            self._restore(topic)

    def leave(self, neighbour: int) -> None:
        """Wait no longer for any answer of *neighbour*: it is out of reach."""
        for name in [name for name, request in self._requested.items() if request.neighbour == neighbour]:
            self.forget(*name)

    # -- hearing a Hello ---------------------------------------------------------------------------------------------

    def _hear(self, sender: int, entries: Iterable[Entry]) -> list[Request]:
        """Mark what the Hello outdates; return the requests, first those whose answers make room."""
        if self.sight is Sight.PROVISIONAL:
            entries = [each for each in entries if self._believers.believes(sender, each.topic)]
        entries = list(entries)
        for topic, sample_id, _ in entries:
            if self.sight is Sight.FINAL or self._newest_retrieved(topic) >= sample_id:
                self._see_newer(topic, sample_id)
            else:
                self._doubt(sender, topic, sample_id)
        return sorted(self._requests(sender, entries), key=lambda each: not each.wants_proof)

    def _requests(self, sender: int, entries: Iterable[Entry]) -> Iterator[Request]:
        # The newest first: if places are few, they go to what was published last.
        for topic, sample_id, has_copies in sorted(entries, key=lambda each: (each.id, each.topic), reverse=True):
            if self._newest_requested(topic) >= sample_id:
                continue
            is_subscriber = topic in self.subscriptions and self._newest_retrieved(topic) < sample_id
            wants_copies = has_copies and self._is_new_to_memory(topic, sample_id) and self._has_place(sender)
            wants_proof = any(copy.sample.id < sample_id for copy in self._doubted(topic))
            if is_subscriber or wants_copies or wants_proof:
                self._await(topic, sample_id, PendingRequest(sender, wants_copies, wants_proof))
                yield Request(
                    topic=topic,
                    id=sample_id,
                    is_subscriber=is_subscriber,
                    wants_copies=wants_copies,
                    wants_proof=wants_proof,
                )

    def _await(self, topic: int, sample_id: SampleId, request: PendingRequest) -> None:
        if len(self._requested) >= MAX_REQUESTS:
            self.forget(*next(iter(self._requested)))
        self._requested[topic, sample_id] = request

    def _count_hello(self, sender: int) -> None:
        """Give up the requests that *sender* should have answered by now."""
        for (topic, sample_id), request in list(self._requested.items()):
            if request.neighbour == sender:
                request.hellos += 1
                if request.hellos >= MAX_HELLOS:
                    self.forget(topic, sample_id)
                    self._believers.fail(sender, topic)

    def _doubted(self, topic: int) -> list[StoredCopy]:
        return [copy for name, copy in self._stored.items() if name[0] == topic and copy.doubted_of is not None]

    def _doubt(self, sender: int, topic: int, sample_id: SampleId) -> None:
        """Stop spreading older copies of *topic* until *sender*, or who was asked before, has proven its sample."""
        asked = self._asked_for_newer(topic, sample_id)
        for name, copy in self._stored.items():
            if name[0] == topic and name[1] < sample_id and not copy.is_removable:
                copy.is_removable, copy.doubted_of = True, sender if asked is None else asked

    def _asked_for_newer(self, topic: int, sample_id: SampleId) -> int | None:
        """Return the neighbour that was asked for this sample of *topic* or a newer one."""
        found = [(name[1], each.neighbour) for name, each in self._requested.items() if name[0] == topic]
        return max(((at, each) for at, each in found if at >= sample_id), default=(_NONE, None))[1]

    def _restore(self, topic: int) -> None:
        """Spread copies of *topic* again for which nobody is asked any more to prove a newer sample."""
        for copy in self._doubted(topic):
            newer = SampleId(copy.sample.published_at, copy.sample.publisher + 1)
            copy.doubted_of = self._asked_for_newer(topic, newer)
            copy.is_removable = copy.doubted_of is not None

    def _see_newer(self, topic: int, sample_id: SampleId) -> None:
        for name, copy in self._stored.items():
            if name[0] == topic and name[1] < sample_id:
                copy.is_removable, copy.doubted_of = True, None

    def _is_new_to_memory(self, topic: int, sample_id: SampleId) -> bool:
        """Return whether neither this sample is stored nor a newer one of the topic known here."""
        return self._newest_stored(topic) < sample_id and self._newest_retrieved(topic) <= sample_id

    def _newest_stored(self, topic: int) -> SampleId:
        return max((name[1] for name in self._stored if name[0] == topic), default=_NONE)

    def _newest_requested(self, topic: int) -> SampleId:
        return max((name[1] for name in self._requested if name[0] == topic), default=_NONE)

    def _newest_retrieved(self, topic: int) -> SampleId:
        return self._retrieved[topic].id if topic in self._retrieved else _NONE

    def _has_place(self, giver: int) -> bool:
        """Return whether there is a place for what *giver* gives, now or when it has proven what it named."""
        reserved = sum(request.reserves_place for request in self._requested.values())
        freed = sum(copy.is_removable and copy.doubted_of in {None, giver} for copy in self._stored.values())
        return len(self._stored) + reserved - freed < self.places

    # -- giving and taking -------------------------------------------------------------------------------------------

    def _answer(self, request: Request) -> Message:
        copy = self._stored.get((request.topic, request.id))
        if copy is None:
            retrieved = self._retrieved.get(request.topic)
            is_shown = self.shows_retrieved and retrieved is not None and retrieved.id == request.id
            if retrieved is None or not (is_shown and (request.is_subscriber or request.wants_proof)):
                return Refusal(request.topic, request.id)
            return Answer(retrieved, 0)
        granted = copy.copies // 2 if request.wants_copies and copy.has_copies else 0
        if not (granted or request.is_subscriber or request.wants_proof):
            return Refusal(request.topic, request.id)
        copy.copies -= granted
        return Answer(copy.sample, granted)

    def _take(self, sample: Sample, copies: int) -> list[Step]:
        del self._requested[sample.topic, sample.id]
        for copy in self._doubted(sample.topic):
            if copy.sample.id < sample.id:
                copy.doubted_of = None  # here is the proof
        self._restore(sample.topic)
        steps: list[Step] = []
        is_current = (
            self._is_new_to_memory(sample.topic, sample.id) and self._newest_requested(sample.topic) < sample.id
        )
        if sample.topic in self.subscriptions and self._newest_retrieved(sample.topic) < sample.id:
            self._retrieved[sample.topic] = sample
            steps.append(Deliver(sample))
        if not copies:
            return steps
        if not is_current:
            return [*steps, Drop(sample, copies, Loss.OUTDATED)]
        if len(self._stored) >= self.places and not any(copy.is_replaceable for copy in self._stored.values()):
            return [*steps, Drop(sample, copies, Loss.NO_PLACE)]
        self._see_newer(sample.topic, sample.id)
        steps += self._make_room(is_own=False)
        self._stored[sample.topic, sample.id] = StoredCopy(sample, copies)
        return [*steps, StoreSample(sample, copies)]

    def _make_room(self, *, is_own: bool) -> list[Step]:
        """Free a place if there is none; a sample that is not replaceable gives way to one's own only."""
        if len(self._stored) < self.places:
            return []
        replaceable = [copy for copy in self._stored.values() if copy.is_replaceable]
        victim = min(replaceable or (self._stored.values() if is_own else ()), key=lambda copy: copy.age_order)
        del self._stored[victim.sample.topic, victim.sample.id]
        return [Drop(victim.sample, victim.copies, Loss.REPLACED if victim.is_replaceable else Loss.DISPLACED)]
