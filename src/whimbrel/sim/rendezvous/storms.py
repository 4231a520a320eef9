"""Priorities: the effect of a storm of disconnections on matching, with the order of section 5.4.2 and with others.

The thesis: disconnections come before processing, *because obsolete events should be removed before a match is
performed*, but must not starve matching; an explicit removal comes before an expiry. The core does so in one round.
Here its inputs are also given in other orders, as a controller with other priorities would process them.
"""

from __future__ import annotations

import time
from enum import Enum

from whimbrel.model.bounds import whole
from whimbrel.model.clock import US_PER_S
from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller import Connected, Controller, Disconnected, Input, Note, NoteKind, Parameters, Said
from whimbrel.rendezvous.controller import commands as c
from whimbrel.rendezvous.events import Address, Publication, Subscription
from whimbrel.rendezvous.wire import encode
from whimbrel.sim.rendezvous.crowd import Costs, Crowd
from whimbrel.sim.rendezvous.discovery import address

__all__ = ["Priority", "play_removals", "play_storm"]

_STORM_US = 1_000_000
_LIMIT_US = 60 * US_PER_S


class Priority(Enum):
    """Orders in which a controller handles disconnections and events."""

    FIRST = "disconnections first, bounded"
    UNBOUNDED = "disconnections first, all of them"
    FAIR = "in the order of arrival"


class _FairCrowd(Crowd):
    """A crowd whose controller handles one input per round, so a disconnection waits behind earlier inputs."""

    def take_inputs(self) -> list[Input]:
        """Return and remove the oldest queued input."""
        return [self._inbox.popleft()] if self._inbox else []


def play_storm(*, priority: str, devices: int, seed: int, look_up_us: int = 10_000) -> dict[str, object]:
    """Simulate a storm: half of the devices leave within a second, while the others subscribe to them.

    A match with a device that has already left is wasted: its subscriber pages nobody. The reported wait is the time
    until a subscription is processed.
    """
    begun = time.process_time()
    whole("devices", devices, 8, 260)
    order = Priority(priority)
    parameters = Parameters(work=devices if order is Priority.UNBOUNDED else 2, pair_ttl_us=1, messages_per_s=1_000)
    made = _FairCrowd if order is Priority.FAIR else Crowd
    crowd = made(parameters, Costs(look_up_us=look_up_us, flush_us=look_up_us), count=devices, seed=seed)
    half = devices // 2
    leaving, staying = crowd.addresses[:half], crowd.addresses[half:]
    for who in leaving:
        publication = Publication(address=who, clock_offset=0, name=f"device {who}", device_class=0)
        crowd.tell(Said(who, encode(m.Publish(publication))))
    crowd.run(30 * US_PER_S)
    crowd.waits.waits_us.clear()
    gone: dict[Address, int] = {}
    wasted, matched = 0, 0

    def watch(note: Note, at: int) -> None:
        nonlocal wasted, matched
        if note.kind is NoteKind.MATCHED:
            matched += 1
            wasted += any(gone.get(each, at + 1) <= at for each in (note.address, note.other_address) if each)

    def leave(who: Address) -> None:
        gone[who] = crowd.now
        crowd.tell(Disconnected(who))

    def seek(who: Address, sought: Address) -> None:
        crowd.tell(Said(who, encode(m.Subscribe(Subscription(name=f"device {sought}")))))

    crowd.on_note = watch
    for who, seeker in zip(leaving, staying, strict=False):
        crowd.after(round(crowd.random.uniform(0, _STORM_US)), lambda who=who: leave(who))  # type: ignore[misc]  # bound
        at = round(crowd.random.uniform(0, _STORM_US))
        crowd.after(at, lambda seeker=seeker, who=who: seek(seeker, who))  # type: ignore[misc]  # bound now
    crowd.run(crowd.now + _LIMIT_US)
    waits = crowd.waits.waits_us
    return {
        "kind": "storm",
        "priority": priority,
        "devices": devices,
        "look_up_us": look_up_us,
        "seed": seed,
        "matched": matched,
        "wasted": wasted,
        "wait_s": sum(waits) / len(waits) / US_PER_S,
        "wait_max_s": max(waits) / US_PER_S,
        "core_s": time.process_time() - begun,
    }


def play_removals(*, is_removal_first: bool, devices: int) -> dict[str, object]:
    """Simulate removals of subscriptions at the instant at which they expire; count the messages that follow."""
    begun = time.process_time()
    parameters = Parameters(messages_per_s=1_000, idle_us=3_600 * US_PER_S)
    core = Controller(parameters, address=address(1), nonce_key=b"s" * 32)
    told: list[m.FromController] = []

    def take(inputs: list[Input], now: int) -> None:
        commands = core.take(inputs, now=now)
        while core.is_busy:
            commands += core.timer(now=now)
        told.extend(each.message for each in commands if isinstance(each, c.Send))

    everybody = [address(1_000 + number) for number in range(devices)]
    for who in everybody:
        take([Connected(address=who)], 0)
        take([Said(who, encode(m.Subscribe(Subscription(name=f"nobody like {who}"))))], 0)
    owned = {record.owner: record.id for record in core.open_events()}
    told.clear()
    removals: list[Input] = [Said(who, encode(m.Unsubscribe(owned[who]))) for who in everybody]
    now = parameters.event_ttl_us
    rounds: list[list[Input]] = [[] for _ in range(-(-devices // parameters.work))]
    for inputs in [removals, *rounds] if is_removal_first else [*rounds, removals]:
        take(inputs, now)
    return {
        "kind": "removals",
        "is_removal_first": is_removal_first,
        "devices": devices,
        "seed": 0,
        "removed": sum(isinstance(each, m.Removed) for each in told),
        "expired": sum(isinstance(each, m.Expired) for each in told),
        "refused": sum(isinstance(each, m.Refused) for each in told),
        "core_s": time.process_time() - begun,
    }
