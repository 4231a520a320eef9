"""A crowd at one controller: how long events wait to be processed, with one queue and with two (Huang, 5.4.2, 5.4.3).

The core is the real controller. The radio is left out, except the beacon that wakes a parked device. The controller's
processor is a server with three costs: one to look up the candidates for the heads of its queues, one to act on an
event, and one for a flush. With two queues, both heads are looked up at the same time. Devices come in pairs: one
publishes, and the other seeks it by name. After an introduction, each pauses for a random time and submits its event
again. If nothing matches, each removes its event when it is opened, pauses, and submits it again.

Rule: the settings and the seed decide everything.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from whimbrel.model.bounds import real, whole
from whimbrel.model.clock import US_PER_S
from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller import Connected, Controller, Input, Note, NoteKind, Parameters, Said
from whimbrel.rendezvous.controller import commands as c
from whimbrel.rendezvous.events import Address, EventId, Kind, Publication, Subscription, kind_of
from whimbrel.rendezvous.radio.simulated.air import BEACON_US
from whimbrel.rendezvous.wire import encode
from whimbrel.sim.rendezvous.discovery import address

__all__ = ["Costs", "Crowd", "play_crowd"]

_FIRST = 1_000
_MESSAGE_US = 4_000
"""Time from a controller's command to its effect, and from a device's answer to the controller: a few slots."""
_WARM_UP = 0.2
"""Share of the simulated time before the measurement begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Processor time of the controller per step, in microseconds; all values are assumed, and varied."""

    look_up_us: int = 10_000
    act_us: int = 1_000
    flush_us: int = 1_000


@dataclass(slots=True)
class _Waits:
    """Arrival times of events, and how long each waited until the controller decided on it."""

    since: dict[Address, deque[int]] = field(default_factory=dict)
    came: dict[EventId, int] = field(default_factory=dict)
    waits_us: list[int] = field(default_factory=list)


class Crowd:
    """Devices around one controller; all *count* devices are connected at time 0."""

    def __init__(self, parameters: Parameters, costs: Costs, *, count: int, seed: int) -> None:
        self.core = Controller(parameters, address=address(1), nonce_key=b"c" * 32)
        self.costs, self.random = costs, Random(f"crowd {seed}")
        self.now = 0
        self.addresses = [address(_FIRST + number) for number in range(count)]
        self.introduced: list[tuple[int, Address]] = []
        """For each introduction: its time, and the subscriber."""
        self.on_note: Callable[[Note, int], None] = lambda _note, _now: None
        self.on_introduced: dict[Address, Callable[[], None]] = {}
        """Per device: the callback after it has noted a match."""
        self.on_opened: dict[Address, Callable[[], None]] = {}
        """Per device that removes its event when it is opened: the callback after that."""
        self.waits = _Waits()
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._inbox: deque[Input] = deque()
        self._busy_until = 0
        self._parked: set[Address] = set()
        self._timer_at: int | None = None
        for who in self.addresses:
            self._perform(self.core.take((Connected(address=who),), now=0), 0)

    # -- time ----------------------------------------------------------------------------------------------------------

    def after(self, delay_us: int, do: Callable[[], None]) -> None:
        """Schedule *do* to run after *delay_us*."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + max(0, delay_us), self._count, do))

    def run(self, until: int) -> None:
        """Advance the time to *until*, and run the callbacks that are due."""
        while self._heap and self._heap[0][0] <= until:
            at, _, do = heapq.heappop(self._heap)
            self.now = max(self.now, at)
            do()
        self.now = until

    def tell(self, happened: Input) -> None:
        """Queue an input, which the controller processes when it is free."""
        self._inbox.append(happened)
        if isinstance(happened, Said):
            self.waits.since.setdefault(happened.address, deque()).append(self.now)
        self._serve()

    # -- the server ----------------------------------------------------------------------------------------------------

    def take_inputs(self) -> list[Input]:
        """Return and clear all queued inputs; disconnections are thus known before anything is matched (5.4.2)."""
        inputs = list(self._inbox)
        self._inbox.clear()
        return inputs

    def _serve(self) -> None:
        if self.now < self._busy_until:
            return
        before = self.core.look_ups
        commands = self.core.take(self.take_inputs(), now=self.now)
        steps = self.core.look_ups - before
        kinds = [each.kind for each in commands if isinstance(each, Note)]
        decided = sum(kind in {NoteKind.OPENED, NoteKind.MATCHED} for kind in kinds)
        flushed = sum(kind is NoteKind.FLUSHED for kind in kinds)
        costs = self.costs
        cost = steps * costs.look_up_us + decided * costs.act_us + flushed * costs.flush_us
        self._busy_until = self.now + cost
        self._perform(commands, self._busy_until)
        if self._inbox or self.core.is_busy:
            self.after(cost, self._serve)
        else:
            self._set_timer()

    def _set_timer(self) -> None:
        due = self.core.next_due
        if due is None or (self._timer_at is not None and self.now < self._timer_at <= due):
            return
        self._timer_at = max(due, self._busy_until)
        self.after(self._timer_at - self.now, self._serve)

    def _perform(self, commands: list[c.Command], at: int) -> None:
        for command in commands:
            match command:
                case c.Park(who):
                    self._parked.add(who)
                case c.Unpark(who):
                    self._parked.discard(who)
                case c.Send(who, message):
                    self._send(who, message, at, is_woken=c.Unpark(who) in commands)
                case Note():
                    self._note(command, at)
                case _:
                    pass

    def _send(self, who: Address, message: m.FromController, at: int, *, is_woken: bool) -> None:
        match message:
            case m.Accepted(identifier):
                came = self.waits.since.get(who)
                if came:
                    self.waits.came[identifier] = came.popleft()
            case m.Matched(id=identifier) | m.WakeUp(identifier):
                heard = (at + BEACON_US - at % BEACON_US if is_woken else at) + _MESSAGE_US
                self.after(heard + _MESSAGE_US - self.now, lambda: self._answer(who, identifier, message))
            case m.Refused():
                came = self.waits.since.get(who)
                if came:
                    came.popleft()
            case _:
                pass

    def _answer(self, who: Address, identifier: EventId, message: m.FromController) -> None:
        self._inbox.append(Said(who, encode(m.Noted(identifier))))
        if who in self.on_introduced:
            self.on_introduced[who]()
        if isinstance(message, m.Matched):
            self.introduced.append((self.now, who))
        self._serve()

    def _note(self, note: Note, at: int) -> None:
        if note.kind in {NoteKind.OPENED, NoteKind.MATCHED}:
            for identifier in (note.id, note.other_id):
                came = None if identifier is None else self.waits.came.pop(identifier, None)
                if came is not None:
                    self.waits.waits_us.append(at - came)
        if note.kind is NoteKind.OPENED and note.address in self.on_opened and note.id is not None:
            who, identifier = note.address, note.id
            is_publication = kind_of(identifier) is Kind.PUBLICATION
            removal = m.Unpublish(identifier) if is_publication else m.Unsubscribe(identifier)
            self.after(at + 2 * _MESSAGE_US - self.now, lambda: self._remove(who, removal))
        self.on_note(note, at)

    def _remove(self, who: Address, removal: m.Unpublish | m.Unsubscribe) -> None:
        self._inbox.append(Said(who, encode(removal)))
        self.on_opened[who]()
        self._serve()


def play_crowd(
    *,
    devices: int,
    think_s: float,
    has_two_queues: bool,
    seed: int,
    look_up_us: int = 10_000,
    act_us: int = 1_000,
    seconds: float = 120.0,
    is_matching: bool = True,
) -> dict[str, object]:
    """Simulate a crowd; return the events per second, and how long they waited to be processed."""
    begun = time.process_time()
    whole("devices", devices, 2, 261)
    real("think_s", think_s, 0.01, 3_600)
    parameters = Parameters(
        has_two_queues=has_two_queues, work=2 if has_two_queues else 1, pair_ttl_us=1, messages_per_s=1_000
    )
    crowd = Crowd(parameters, Costs(look_up_us=look_up_us, act_us=act_us), count=devices - devices % 2, seed=seed)
    submitted = _Submitted()
    for number in range(0, devices - 1, 2):
        pair = crowd.addresses[number], crowd.addresses[number + 1]
        _bring_pair(crowd, submitted, *pair, think_s=think_s, is_matching=is_matching)
    crowd.run(round(seconds * _WARM_UP * US_PER_S))
    crowd.waits.waits_us.clear()
    crowd.introduced.clear()
    begin = submitted.count
    crowd.run(round(seconds * US_PER_S))
    measured_s = seconds * (1 - _WARM_UP)
    waits = sorted(crowd.waits.waits_us)
    settings = {
        "devices": devices,
        "think_s": think_s,
        "has_two_queues": has_two_queues,
        "look_up_us": look_up_us,
        "act_us": act_us,
        "is_matching": is_matching,
        "seconds": seconds,
        "seed": seed,
    }
    return {
        "kind": "crowd",
        **settings,
        "events_per_s": (submitted.count - begin) / measured_s,
        "matches_per_s": len(crowd.introduced) / measured_s,
        "wait_s": sum(waits) / len(waits) / US_PER_S if waits else math.nan,
        "wait_p95_s": waits[len(waits) * 95 // 100] / US_PER_S if waits else math.nan,
        "core_s": time.process_time() - begun,
    }


@dataclass(slots=True)
class _Submitted:
    """Number of submitted events."""

    count: int = 0


def _bring_pair(
    crowd: Crowd, submitted: _Submitted, sought: Address, seeker: Address, *, think_s: float, is_matching: bool
) -> None:
    """Add a pair: one device publishes and the other seeks it; each submits its event again after random pauses."""
    name = f"device {sought}"
    publication = Publication(address=sought, clock_offset=0, name=name, device_class=0)
    wanted = Subscription(name=name if is_matching else f"nobody like {seeker}")

    def submit(who: Address, message: m.FromDevice) -> Callable[[], None]:
        def do() -> None:
            submitted.count += 1
            crowd.tell(Said(who, encode(message)))

        return do

    says = {
        sought: submit(sought, m.Publish(publication)),
        seeker: submit(seeker, m.Subscribe(wanted)),
    }

    def think(who: Address) -> None:
        crowd.after(round(crowd.random.expovariate(1 / think_s) * US_PER_S), says[who])

    for who in says:
        crowd.on_introduced[who] = partial(think, who)
        if not is_matching:
            crowd.on_opened[who] = partial(think, who)
        think(who)
