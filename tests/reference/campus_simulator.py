"""The simulator of Campus++, plain: the shell around ``carry.node`` that moves messages and time.

Rule: at one time contacts begin before anything is published, and that before contacts end: a contact of no length is
one. An answer that arrives at that time comes before all of them; a periodic Hello after.
Rule: without a period Hello is said to both at the beginning of a contact, then to all neighbours, the lowest first,
whenever the list has changed; who changed first speaks first. Each neighbour hears the list as it is then.
Rule: with a period P, node i of N says Hello at (k + i / N)·P for k = 0, 1, …, and at no other time.
Rule: with a provisional sight, or with liars (the nodes with the highest numbers), a node waits for no answer of a
neighbour after their contact has ended. The kernel has neither.
Rule: an answer takes *transfer_s*. If the contact does not last until then, it is lost with the copies it grants.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from whimbrel.carry.hello import Answer, Hello, Request
from whimbrel.carry.node import Carrier, Deliver, Drop, Send, Step, StoreSample
from whimbrel.carry.sight import Sight
from whimbrel.sim.campus.liars import Liar
from whimbrel.sim.campus.scenario import Campus, Publication, World
from whimbrel.sim.contacts.table import Contacts

__all__ = ["CampusReport", "CampusSimulator"]

_UP, _PUBLISH, _DOWN = 0, 1, 2


class CampusReport(Protocol):
    """What looks on; the simulator tells it everything and asks nothing."""

    def published(self, publication: Publication, copies: int, *, now: float) -> None:
        """Hear that a sample was published, of which *copies* are to exist."""

    def done(self, node: int, step: Step, *, now: float) -> None:
        """Hear that a carrier stored, dropped or delivered a sample."""

    def sent(self, message: str, *, now: float) -> None:
        """Hear that a message went over the air: hello, request or answer."""

    def lost(self, answer: Answer, *, now: float) -> None:
        """Hear that an answer was lost because the contact ended."""


@dataclass(order=True, slots=True)
class _Transfer:
    arrives_s: float
    number: int
    asked_s: float = field(compare=False)
    sender: int = field(compare=False)
    receiver: int = field(compare=False)
    answer: Answer = field(compare=False)


class CampusSimulator:
    """One simulation, advanced event by event."""

    def __init__(
        self,
        contacts: Contacts,
        campus: Campus,
        world: World,
        reports: Sequence[CampusReport] = (),
        *,
        sight: Sight = Sight.FINAL,
        liars: int = 0,
    ) -> None:
        self._contacts, self._campus, self._world, self.reports = contacts, campus, world, reports
        topics_of: list[list[int]] = [[] for _ in range(contacts.nodes)]
        for topic, subscribers in enumerate(world.subscribers):
            for node in subscribers:
                topics_of[node].append(topic)
        kinds = [Carrier] * (contacts.nodes - liars) + [Liar] * liars
        self.carriers = [
            kind(node, places=campus.memory, subscriptions=topics, shows_retrieved=campus.shows_retrieved, sight=sight)
            for node, (kind, topics) in enumerate(zip(kinds, topics_of, strict=True))
        ]
        for liar in self.carriers:
            if isinstance(liar, Liar):
                liar.topics = campus.topics
        self._says_farewell = liars > 0 or sight is Sight.PROVISIONAL
        self._neighbours: list[dict[int, float]] = [{} for _ in range(contacts.nodes)]
        """Who is in contact with each node, and since when."""
        self._speaking: deque[int] = deque()
        self._transfers: list[_Transfer] = []
        self._sent = 0

    def events(self) -> Iterator[float]:
        """Perform the events of the trace one after the other; yield the time of each when it is done."""
        ups = [(start, _UP, low, high) for start, _, low, high in self._contacts.rows()]
        downs = [(end, _DOWN, low, high) for _, end, low, high in self._contacts.rows()]
        publications = [(each.time_s, _PUBLISH, number, 0) for number, each in enumerate(self._world.publications)]
        hellos = 0
        for now, kind, one, other in sorted([*ups, *publications, *downs], key=lambda event: event[:2]):
            hellos = self._catch_up(now, hellos, is_end=False)
            if kind == _UP:
                self._begin(one, other, now)
            elif kind == _DOWN:
                self._end(one, other)
            else:
                self._publish(self._world.publications[one], now)
            yield now
        self._catch_up(self._contacts.seconds, hellos, is_end=True)

    def run(self) -> None:
        """Perform all events."""
        for _ in self.events():
            pass

    def _catch_up(self, now: float, hellos: int, *, is_end: bool) -> int:
        """Let come what arrives until *now*, and say the periodic Hellos before it; return how many were said."""
        period, nodes = self._campus.hello_s, self._contacts.nodes
        while True:
            hello_s = hellos * (period / nodes) if period is not None else None
            arrives_s = self._transfers[0].arrives_s if self._transfers else None
            if arrives_s is not None and arrives_s <= now and (hello_s is None or arrives_s <= hello_s):
                self._arrive(heapq.heappop(self._transfers))
            elif hello_s is not None and (hello_s < now or (is_end and hello_s == now)):
                speaker = hellos % nodes
                for neighbour in sorted(self._neighbours[speaker]):
                    self._tell(speaker, neighbour, hello_s)
                hellos += 1
            else:
                return hellos

    def _begin(self, low: int, high: int, now: float) -> None:
        self._neighbours[low][high] = self._neighbours[high][low] = now
        if self._campus.hello_s is None:
            self._tell(low, high, now)
            self._tell(high, low, now)
            self._settle(now)

    def _end(self, low: int, high: int) -> None:
        del self._neighbours[low][high], self._neighbours[high][low]
        if self._says_farewell:
            self.carriers[low].leave(high)
            self.carriers[high].leave(low)

    def _publish(self, publication: Publication, now: float) -> None:
        copies = self._world.copies[publication.topic]
        for report in self.reports:
            report.published(publication, copies, now=now)
        steps = self.carriers[publication.publisher].publish(publication.sample, copies=copies)
        self._done(publication.publisher, steps, now)
        self._changed(publication.publisher)
        self._settle(now)

    def _settle(self, now: float) -> None:
        """Let each node whose list has changed say so, until nothing changes."""
        while self._speaking:
            speaker = self._speaking.popleft()
            for neighbour in sorted(self._neighbours[speaker]):
                self._tell(speaker, neighbour, now)

    def _tell(self, teller: int, hearer: int, now: float) -> None:
        """Let *hearer* hear the Hello of *teller*, request what it wants, and get it, now or later."""
        before = self._hello(teller), self._hello(hearer)
        self._count("hello", now)
        answers = []
        for step in self.carriers[hearer].receive(teller, before[0]):
            assert isinstance(step, Send)
            assert isinstance(step.message, Request)
            self._count("request", now)
            for answer in self.carriers[teller].receive(hearer, step.message):
                assert isinstance(answer, Send)
                assert isinstance(answer.message, Answer), "the Hello was just heard"
                self._count("answer", now)
                answers.append(answer.message)
        for answer_message in answers:
            if self._campus.transfer_s > 0:
                arrives_s = now + self._campus.transfer_s
                self._sent += 1
                transfer = _Transfer(arrives_s, self._sent, now, teller, hearer, answer_message)
                heapq.heappush(self._transfers, transfer)
            else:
                self._done(hearer, self.carriers[hearer].receive(teller, answer_message), now)
        if self._hello(teller) != before[0]:
            self._changed(teller)
        if self._hello(hearer) != before[1]:
            self._changed(hearer)

    def _arrive(self, transfer: _Transfer) -> None:
        receiver, sample, now = self.carriers[transfer.receiver], transfer.answer.sample, transfer.arrives_s
        since = self._neighbours[transfer.receiver].get(transfer.sender)
        if since is None or since > transfer.asked_s:
            receiver.forget(sample.topic, sample.id)
            for report in self.reports:
                report.lost(transfer.answer, now=now)
            return
        before = self._hello(transfer.receiver)
        self._done(transfer.receiver, receiver.receive(transfer.sender, transfer.answer), now)
        if self._hello(transfer.receiver) != before:
            self._changed(transfer.receiver)
            self._settle(now)

    def _hello(self, node: int) -> Hello:
        return self.carriers[node].hello()

    def _changed(self, node: int) -> None:
        if self._campus.hello_s is None and node not in self._speaking:
            self._speaking.append(node)

    def _count(self, message: str, now: float) -> None:
        for report in self.reports:
            report.sent(message, now=now)

    def _done(self, node: int, steps: Sequence[Step], now: float) -> None:
        for step in steps:
            assert isinstance(step, StoreSample | Drop | Deliver)
            for report in self.reports:
                report.done(node, step, now=now)
