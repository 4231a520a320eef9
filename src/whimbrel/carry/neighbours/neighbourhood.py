"""The neighbourhood of a node: the neighbours in reach, the requests to them, and their rates.

Rule: each neighbour has its own rates for frames, answers and requests, and all together have ten times as much. So
invented addresses do not multiply the load. All addresses of another host share one rate of answers.
Rule: a request goes only to a neighbour that knows this node: after its Hello, or after a greeting. Greetings are rare.
Rule: a request without an answer is repeated, and given up after a time. After several such failures for a topic the
neighbour's announcements of that topic are ignored until it answers; it gets one request a minute.
Rule: no clock: *own* is what the node's own clock says, in microseconds UTC.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from whimbrel.carry.hello import Answer, Request, SampleId
from whimbrel.carry.neighbours.assembly import AnswerAssembly
from whimbrel.carry.neighbours.rates import Allowance, NeighbourRates
from whimbrel.carry.neighbours.shares import OWN_HOST
from whimbrel.carry.node import Carrier, Send
from whimbrel.carry.outputs import Greet, Output
from whimbrel.carry.rules import Rules
from whimbrel.carry.sight import Believers
from whimbrel.carry.wire import AnswerChunk, MalformedMessageError
from whimbrel.model.clock import US_PER_S

__all__ = ["Neighbourhood"]

_MAX_NEIGHBOURS = 1_024
_MAX_PENDING = 512
_GREETINGS = 1, 2
"""Greetings per second and at once; all neighbours hear each."""
_FORGIVE_US = 60 * US_PER_S


def _tenfold(rate: tuple[int, int]) -> tuple[int, int]:
    return 10 * rate[0], 10 * rate[1]


@dataclass(slots=True)
class _Pending:
    """A request without an answer so far."""

    neighbour: int
    request: Request
    asked_at: int
    sent_at: int
    """Time at which it was sent last."""


class Neighbourhood:
    """The neighbours of the node with this *carrier*; refusals and failures are counted in *counts*."""

    def __init__(self, carrier: Carrier, rules: Rules, counts: Counter[str]) -> None:
        self._carrier, self._rules, self._counts = carrier, rules, counts
        self.believers = Believers()
        self._forgiven_at: int | None = None
        self._heard_at: OrderedDict[int, int] = OrderedDict()
        """The neighbours in reach, and the time of the last Hello of each."""
        self._strangers: set[int] = set()
        """Neighbours that have come since this node's last Hello, and do not know it."""
        self._pending: OrderedDict[tuple[int, SampleId], _Pending] = OrderedDict()
        self._assembly = AnswerAssembly()
        self._frames = NeighbourRates(rules.frames, _tenfold(rules.frames))
        self._answers = NeighbourRates(rules.answers, _tenfold(rules.answers))
        self._requests = NeighbourRates(rules.requests, _tenfold(rules.requests))
        self._greetings = Allowance(*_GREETINGS)

    @property
    def addresses(self) -> list[int]:
        """The neighbours in reach, the one heard last at the end."""
        return list(self._heard_at)

    @property
    def pending(self) -> int:
        """Number of requests that wait for an answer."""
        return len(self._pending)

    def is_in_reach(self, address: int) -> bool:
        """Return whether the last Hello of the node at *address* is recent."""
        return address in self._heard_at

    def may_be_read(self, sender: int, *, own: int) -> bool:
        """Return whether a frame of *sender* is within its rate, and count it."""
        if self._frames.take(sender, now=own):
            return True
        self._counts["too many frames"] += 1
        return False

    def may_be_answered(self, sender: int, *, host: str = OWN_HOST, own: int) -> bool:
        """Return whether a request of *sender* is within its rate, and count it; another *host* has one rate."""
        if self._answers.take(sender if host == OWN_HOST else host, now=own):
            return True
        self._counts["answers held back"] += 1
        return False

    def may_be_asked(self, neighbour: int, *, own: int) -> bool:
        """Return whether a request to *neighbour* is within its rate, and count it."""
        return self._requests.take(neighbour, now=own)

    # -- who is in reach ---------------------------------------------------------------------------------------------

    def hear(self, sender: int, *, own: int) -> None:
        """Note that *sender* has said Hello."""
        if sender not in self._heard_at:
            self._strangers.add(sender)
        self._heard_at[sender] = own
        self._heard_at.move_to_end(sender)
        if len(self._heard_at) > _MAX_NEIGHBOURS:
            self._leave(next(iter(self._heard_at)))

    def greet_all(self) -> None:
        """Note that this node says Hello: all neighbours in reach know it from now on."""
        self._strangers.clear()

    def _leave(self, neighbour: int) -> None:
        """Forget the neighbour and the requests to it: it is out of reach."""
        self._heard_at.pop(neighbour, None)
        self._strangers.discard(neighbour)
        for name in [name for name, each in self._pending.items() if each.neighbour == neighbour]:
            del self._pending[name]
        self._carrier.leave(neighbour)
        self._assembly.forget(neighbour)

    # -- requests and answers ----------------------------------------------------------------------------------------

    def ask(self, neighbour: int, request: Request, *, own: int) -> list[Output]:
        """Return the request for *neighbour*, after a greeting if it needs one; nothing if a rate forbids it now."""
        greeting: list[Output] = []
        if neighbour in self._strangers and self._greetings.take(now=own):
            self._strangers.clear()
            greeting = [Greet()]
        if neighbour in self._strangers or not self.may_be_asked(neighbour, own=own):
            self._counts["requests held back"] += 1
            self._carrier.forget(request.topic, request.id)
            return greeting
        self._pending[request.topic, request.id] = _Pending(neighbour, request, own, own)
        if len(self._pending) > _MAX_PENDING:
            self._give_up(*next(iter(self._pending)))
        return [*greeting, Send(neighbour, request)]

    def is_pending(self, topic: int, sample_id: SampleId) -> bool:
        """Return whether a request for this sample waits for an answer."""
        return (topic, sample_id) in self._pending

    def is_asked(self, neighbour: int, topic: int, sample_id: SampleId) -> bool:
        """Return whether a request to *neighbour* for this sample waits for an answer."""
        pending = self._pending.get((topic, sample_id))
        return pending is not None and pending.neighbour == neighbour

    def assemble(self, sender: int, chunk: AnswerChunk) -> Answer | None:
        """Return the answer that *chunk* completes, and end its request; None while it is incomplete or not valid."""
        if not self.is_asked(sender, chunk.topic, chunk.id):
            self._counts["not asked for"] += 1
            return None
        try:
            answer = self._assembly.add(sender, chunk)
        except MalformedMessageError:
            self._counts["malformed answers"] += 1
            return None
        if answer is not None:
            self.stop_waiting(chunk.topic, chunk.id)
        return answer

    def stop_waiting(self, topic: int, sample_id: SampleId) -> None:
        """End a request, because its answer has come."""
        del self._pending[topic, sample_id]

    def _give_up(self, topic: int, sample_id: SampleId) -> None:
        self._pending.pop((topic, sample_id), None)
        self._carrier.forget(topic, sample_id)

    def timer(self, *, own: int) -> list[Output]:
        """Return the requests to repeat; give up old requests, and forget neighbours that were silent for too long."""
        for neighbour, heard_at in list(self._heard_at.items()):
            if own - heard_at >= self._rules.silence_us:
                self._leave(neighbour)
        repeated: list[Output] = []
        for (topic, sample_id), each in list(self._pending.items()):
            if own - each.asked_at >= self._rules.answer_us:
                self._give_up(topic, sample_id)
                self.believers.fail(each.neighbour, topic)
                self._counts["unanswered"] += 1
            elif own - each.sent_at >= self._rules.repeat_us and self.may_be_asked(each.neighbour, own=own):
                each.sent_at = own
                self._counts["requests repeated"] += 1
                repeated.append(Send(each.neighbour, each.request))
        if self._forgiven_at is None or own - self._forgiven_at >= _FORGIVE_US:
            self._forgiven_at = own
            self.believers.forgive()
        return repeated
