"""A carrier: the memory of one node, and its requests to and answers for neighbours (Campus++, sections 2 and 3).

Rule: memory has a fixed number of places, one for each sample; the source's own copy also takes a place.
Rule: a carrier that asks gets half of the copies; of an odd number the larger half stays. A last copy is not given.
Rule: when a neighbour's Hello lists a newer sample of a topic, the stored older one becomes *removable*. It is still
given to subscribers, but not to carriers, and is removed when its place is needed, the oldest id first.
Rule: with a provisional sight (``carry.sight``) the older sample is not given to carriers from then on, and becomes
removable when the newer one has arrived. Before that, only requests to the neighbour that named the newer sample may
count on its place.
Rule: samples of neighbours take only free and removable places. A source always stores its own sample: if no place is
free or removable, the oldest sample is removed, and its copies are lost.
Rule: a retrieved sample belongs to the application, takes no place and does not count as a replica. With
*shows_retrieved* the Hello lists it for other subscribers, without copies to give.
Rule: clocks are loosely synchronised. A node whose clock is behind a sample that it holds publishes with the time of
that sample + 1, so that a sample that is published after another one was seen is the newer of the two.
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
"""Most requests that wait for an answer; beyond it, the one that waits longest is given up."""


_NONE = SampleId(INT64_MIN - 1, 0)
"""An id that is older than that of any sample."""


class Loss(Enum):
    """Reason for the loss of copies."""

    REPLACED = "replaced"
    """The sample was removable and its place was needed."""
    DISPLACED = "displaced"
    """The carrier published a sample of its own and had neither a free nor a removable place."""
    OUTDATED = "outdated"
    """A newer sample of the topic came, or was requested, while this one was on its way."""
    NO_PLACE = "no place"
    """Its place was taken while it was on its way."""
    EXPIRED = "expired"
    """Its expiry has passed."""
    UNACKNOWLEDGED = "unacknowledged"
    """They were granted, their receiver did not keep them, and the sample is not stored here any more."""
    FUTURE = "from the future"
    """Its publication was in the future when a way-server set the clock back."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send *message* to the neighbour at *address*."""

    address: int
    message: Message


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give *sample* to the application, which subscribes to its topic."""

    sample: Sample


@dataclass(frozen=True, slots=True)
class StoreSample:
    """Store *sample* in memory with *copies*, this one included."""

    sample: Sample
    copies: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove *sample*, or do not store it; *copies* are lost."""

    sample: Sample
    copies: int
    loss: Loss


Step = Send | Deliver | StoreSample | Drop


@dataclass(slots=True)
class StoredCopy:
    """A sample in memory; *copies* includes this one."""

    sample: Sample
    copies: int
    is_removable: bool = False
    doubted_of: int | None = None
    """The neighbour that named a newer sample and has not given it yet; others cannot get this place before."""

    @property
    def is_replaceable(self) -> bool:
        """Whether another sample may take its place."""
        return self.is_removable and self.doubted_of is None

    @property
    def has_copies(self) -> bool:
        """Whether carriers that ask get a share of its copies."""
        return self.copies > 1 and not self.is_removable

    @property
    def age_order(self) -> tuple[SampleId, int]:
        """Sort key of samples of all topics, the oldest first."""
        return self.sample.id, self.sample.topic


def _age(copy: StoredCopy) -> SampleId:
    return copy.sample.id


class Carrier:
    """The state of one node; *address* is in its messages and in the ids of its samples."""

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
        """The samples in memory, by topic and id."""
        return [self._stored[name] for name in sorted(self._stored)]

    @property
    def requests(self) -> int:
        """Number of requests that wait for an answer."""
        return len(self._requested)

    def retrieved(self, topic: int) -> Sample | None:
        """Return the newest sample of *topic* that the application has."""
        return self._retrieved.get(topic)

    @property
    def all_retrieved(self) -> list[Sample]:
        """The newest sample of each topic that the application has, by topic."""
        return [self._retrieved[topic] for topic in sorted(self._retrieved)]

    def restore(self, stored: Iterable[StoredCopy], retrieved: Iterable[Sample]) -> list[Step]:
        """Restore the samples of before a restart; drop the oldest ones if there are fewer places now."""
        self._stored = {(copy.sample.topic, copy.sample.id): copy for copy in stored}
        self._retrieved = {sample.topic: sample for sample in retrieved}
        steps: list[Step] = []
        while len(self._stored) > self.places:
            steps += self._make_room(is_own=True)
        return steps

    def subscribe(self, topic: int) -> list[Step]:
        """Subscribe to *topic*; deliver its newest stored sample to the application."""
        self.subscriptions |= {topic}
        newest = max((copy for name, copy in self._stored.items() if name[0] == topic), key=_age, default=None)
        if newest is None or self._newest_retrieved(topic) >= newest.sample.id:
            return []
        self._retrieved[topic] = newest.sample
        return [Deliver(newest.sample)]

    def unsubscribe(self, topic: int) -> None:
        """End the subscription to *topic*, and forget the sample of it that the application has."""
        self.subscriptions -= {topic}
        self._retrieved.pop(topic, None)

    def expire(self, *, now: int) -> list[Step]:
        """Remove the samples that have expired at *now*."""
        over = [name for name, copy in self._stored.items() if not is_alive(copy.sample.expires_at, now=now)]
        copies = [self._stored.pop(name) for name in sorted(over)]
        return [Drop(copy.sample, copy.copies, Loss.EXPIRED) for copy in copies]

    def remove_after(self, latest: int) -> list[Step]:
        """Remove the samples that were published after *latest*, when the clock was ahead."""
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
        """Remove the copies of *answer* that were taken back, because they have arrived after all. One stays here."""
        copy = self._stored.get((answer.sample.topic, answer.sample.id))
        if copy is not None:
            copy.copies -= min(answer.copies, copy.copies - 1)

    def retire(self, topic: int) -> None:
        """Make all samples of *topic* removable: the campus no longer has the topic."""
        for name, copy in self._stored.items():
            if name[0] == topic:
                copy.is_removable, copy.doubted_of = True, None

    def next_time(self, wanted: SampleId, topic: int) -> int:
        """Return a publication time that makes a sample of *topic* the newest known here; that of *wanted* if possible.

        A known sample of the latest possible time is ignored: no sample could be newer.
        """
        known = [self._newest_retrieved(topic), *(name[1] for name in self._stored if name[0] == topic)]
        newest = max((each for each in known if each.published_at < INT64_MAX), default=_NONE)
        return wanted.published_at if wanted > newest else newest.published_at + 1

    def publish(self, sample: Sample, *, copies: int) -> list[Step]:
        """Store a sample of this node with *copies*, this one included.

        If a newer sample of its topic is known here, the stored sample has a later time than *sample*.
        """
        whole("copies", copies, 1, MAX_COPIES)
        published_at = self.next_time(sample.id, sample.topic)
        if published_at != sample.published_at:
            sample = replace(sample, published_at=published_at)
        self._see_newer(sample.topic, sample.id)
        steps: list[Step] = self._make_room(is_own=True)
        self._stored[sample.topic, sample.id] = StoredCopy(sample, copies)
        if sample.topic in self.subscriptions:
            self._retrieved[sample.topic] = sample  # the application published it and does not get it again
        return [*steps, StoreSample(sample, copies)]

    def hello(self) -> Hello:
        """Return the list of stored samples for the neighbours."""
        entries = [Entry(*name, copy.has_copies) for name, copy in self._stored.items()]
        if self.shows_retrieved:
            shown = ((topic, sample.id) for topic, sample in self._retrieved.items())
            entries += [Entry(*name, has_copies=False) for name in shown if name not in self._stored]
        return Hello(tuple(sorted(entries)))

    def receive(self, sender: int, message: Message) -> list[Step]:
        """Handle a message of the neighbour *sender*; return the steps to perform, in order."""
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
                return []  # nothing is pushed: an answer without a request, or too long after it, changes nothing
            case Refusal(topic, sample_id):
                if self.is_asked(sender, topic, sample_id):
                    if self._requested[topic, sample_id].wants_proof:
                        self._believers.fail(sender, topic)
                    self.forget(topic, sample_id)
                return []

    def is_asked(self, neighbour: int, topic: int, sample_id: SampleId) -> bool:
        """Return whether a request to *neighbour* for this sample waits for an answer."""
        request = self._requested.get((topic, sample_id))
        return request is not None and request.neighbour == neighbour

    def forget(self, topic: int, sample_id: SampleId) -> None:
        """Give up a request: it was refused, or its answer was lost with the contact."""
        if self._requested.pop((topic, sample_id), None) is not None:
            self._restore(topic)

    def leave(self, neighbour: int) -> None:
        """Give up all requests to *neighbour*, which is out of reach."""
        for name in [name for name, request in self._requested.items() if request.neighbour == neighbour]:
            self.forget(*name)

    # -- hearing a Hello ---------------------------------------------------------------------------------------------

    def _hear(self, sender: int, entries: Iterable[Entry]) -> list[Request]:
        """Mark samples that are older than those in the Hello; return requests, first those whose answers make room."""
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
        # The newest first: if places are few, they go to the samples that were published last.
        for topic, sample_id, has_copies in sorted(entries, key=lambda each: (each.id, each.topic), reverse=True):
            if self._newest_requested(topic) >= sample_id:
                continue
            is_subscriber = topic in self.subscriptions and self._newest_retrieved(topic) < sample_id
            wants_copies = has_copies and self._is_new_to_memory(topic, sample_id) and self._has_place(sender)
            wants_proof = any(copy.sample.id < sample_id for copy in self._find_doubted(topic))
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
        """Count a Hello of *sender*; give up requests that it has not answered within ``MAX_HELLOS`` of them."""
        for (topic, sample_id), request in list(self._requested.items()):
            if request.neighbour == sender:
                request.hellos += 1
                if request.hellos >= MAX_HELLOS:
                    self.forget(topic, sample_id)
                    self._believers.fail(sender, topic)

    def _find_doubted(self, topic: int) -> list[StoredCopy]:
        return [copy for name, copy in self._stored.items() if name[0] == topic and copy.doubted_of is not None]

    def _doubt(self, sender: int, topic: int, sample_id: SampleId) -> None:
        """Stop spreading older copies of *topic* until *sender*, or the one asked before, gives the newer sample."""
        asked = self._asked_for_newer(topic, sample_id)
        for name, copy in self._stored.items():
            if name[0] == topic and name[1] < sample_id and not copy.is_removable:
                copy.is_removable, copy.doubted_of = True, sender if asked is None else asked

    def _asked_for_newer(self, topic: int, sample_id: SampleId) -> int | None:
        """Return the neighbour with an open request for this sample of *topic* or a newer one, or None."""
        found = [(name[1], each.neighbour) for name, each in self._requested.items() if name[0] == topic]
        return max(((at, each) for at, each in found if at >= sample_id), default=(_NONE, None))[1]

    def _restore(self, topic: int) -> None:
        """Spread doubted copies of *topic* again if no request for a newer sample is open."""
        for copy in self._find_doubted(topic):
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
        """Return whether a sample of *giver* finds a place, now or after *giver* has given the newer one it named."""
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
        for copy in self._find_doubted(sample.topic):
            if copy.sample.id < sample.id:
                copy.doubted_of = None  # this sample is the proof
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
        """Free a place if none is free; only for an own sample may the victim be one that is not replaceable."""
        if len(self._stored) < self.places:
            return []
        replaceable = [copy for copy in self._stored.values() if copy.is_replaceable]
        victim = min(replaceable or (self._stored.values() if is_own else ()), key=lambda copy: copy.age_order)
        del self._stored[victim.sample.topic, victim.sample.id]
        return [Drop(victim.sample, victim.copies, Loss.REPLACED if victim.is_replaceable else Loss.DISPLACED)]
