"""One simulation of Campus++ in the numba kernel: takes arrays, reports progress, returns the outcome."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from whimbrel.sim.campus.outcome import CampusOutcome
from whimbrel.sim.campus.scenario import Campus, World
from whimbrel.sim.contacts.table import Contacts
from whimbrel.sim.kernels.campus import COUNTERS, CURSORS, CampusState, advance
from whimbrel.sim.kernels.links import link_room

__all__ = ["campus_state", "outcome_of", "simulate"]

_CHUNK = 200_000


def simulate(
    contacts: Contacts, campus: Campus, world: World, *, on_progress: Callable[[float], None] | None = None
) -> CampusOutcome:
    """Replay *contacts*; call *on_progress* with the part of the trace that is done, from 0 to 1."""
    state = campus_state(contacts, campus, world)
    total = 2 * len(contacts) + len(world.publications)
    done = 0
    while advance(state, _CHUNK) == _CHUNK:
        done += _CHUNK
        if on_progress is not None:
            on_progress(done / total)
    return outcome_of(state)


def outcome_of(state: CampusState) -> CampusOutcome:
    """Return the outcome of a simulation so far."""
    count = int(state.counters[CURSORS - 1])
    return CampusOutcome(
        delivered_s=state.delivered_s[:count],
        subscriber=state.delivered[:count, 0],
        sample=state.delivered[:count, 1],
        replicas=state.delivered[:count, 2],
        sprayed_s=state.sprayed_s,
        counters={name: int(state.counters[place]) for place, name in enumerate(COUNTERS)},
    )


def campus_state(contacts: Contacts, campus: Campus, world: World) -> CampusState:
    """Return the kernel's arrays as they are before the first event."""
    nodes, topics, samples = contacts.nodes, campus.topics, len(world.publications)
    subscribes = np.zeros((nodes, topics), np.uint8)
    for topic, subscribers in enumerate(world.subscribers):
        subscribes[subscribers, topic] = 1
    widest = int(subscribes.sum(axis=1).max())
    subscription = np.full((nodes, widest + 1), -1, np.int32)
    for node in range(nodes):
        wanted = np.flatnonzero(subscribes[node])
        subscription[node, : len(wanted)] = wanted
    topic_of = np.array([each.topic for each in world.publications], np.int32)
    most_deliveries = int(subscribes.sum(axis=0)[topic_of].sum())
    end_order = contacts.end_order()
    room = link_room(contacts, end_order)
    under_way = 1
    if campus.transfer_s > 0:
        under_way = nodes * (topics + campus.memory) * (2 + int(campus.transfer_s / campus.interval_s))
    state = CampusState(
        start=contacts.start,
        end=contacts.end,
        low=contacts.low,
        high=contacts.high,
        end_order=end_order,
        published_s=np.array([each.time_s for each in world.publications], np.float64),
        publisher=np.array([each.publisher for each in world.publications], np.int32),
        topic=topic_of,
        limit=np.array(world.copies, np.int32)[topic_of],
        subscribes=subscribes,
        subscription=subscription,
        settings=np.array(
            [campus.hello_s or 0.0, campus.transfer_s, float(campus.shows_retrieved), contacts.seconds], np.float64
        ),
        sample=np.full((nodes, campus.memory), -1, np.int32),
        copies=np.zeros((nodes, campus.memory), np.int32),
        removable=np.zeros((nodes, campus.memory), np.uint8),
        used=np.zeros(nodes, np.int32),
        removables=np.zeros(nodes, np.int32),
        reserved=np.zeros(nodes, np.int32),
        live=np.full((nodes, topics), -1, np.int32),
        newest=np.full((nodes, topics), -1, np.int32),
        got=np.full((nodes, topics), -1, np.int32),
        asked=np.full((nodes, topics), -1, np.int32),
        neighbours=np.zeros((nodes, room), np.int32),
        since=np.zeros((nodes, room), np.float64),
        degree=np.zeros(nodes, np.int64),
        to_speak=np.zeros(nodes + 1, np.int32),
        is_to_speak=np.zeros(nodes, np.uint8),
        sent_s=np.zeros(under_way, np.float64),
        sent=np.zeros((under_way, 5), np.int32),
        wanted=np.zeros((campus.memory + widest, 2), np.int32),
        counters=np.zeros(CURSORS, np.int64),
        delivered_s=np.zeros(most_deliveries, np.float64),
        delivered=np.zeros((most_deliveries, 3), np.int32),
        holders=np.zeros(samples, np.int32),
        stores=np.zeros(samples, np.int32),
        sprayed_s=np.full(samples, np.nan),
    )
    assert all(one <= other for one, other in pairwise(state.published_s[:1_000].tolist()))
    return state
