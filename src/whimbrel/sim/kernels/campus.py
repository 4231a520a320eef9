"""Campus++ fast: the twin of ``carry.node`` and the simulator around it (``tests/reference/campus_simulator.py``).

Samples are numbered in the order of their ids, so a newer sample has a larger number. A node's memory is the first
``used`` slots of its row. Per node and topic, ``live`` is the slot of the sample that is not removable, and ``newest``
is the newest sample that the node stores. ``got`` is the newest sample that its application has, and ``asked`` the
sample that it has requested.

The kernel is one loop, because a call that passes forty arrays costs ten times as much as a Hello.

Rule: the same trace gives the same deliveries and the same memory at every event; a differential test stops after each
event and compares.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whimbrel.match.kernels.compiled import njit
from whimbrel.sim.kernels.links import connect, disconnect

__all__ = ["COUNTERS", "CampusState", "advance"]

COUNTERS = ("hello", "request", "answer", "replaced", "displaced", "outdated", "no_place", "broken")
"""Names of the counters: messages by kind, then copies by the way in which they were lost."""
_HELLO, _REQUEST, _ANSWER, _REPLACED, _DISPLACED, _OUTDATED, _NO_PLACE, _BROKEN = range(8)
_UPS, _PUBLISHED, _DOWNS, _HELLOS, _SPOKEN, _TO_SPEAK, _ARRIVED, _SENT, _DELIVERED = range(8, 17)
"""Positions, in ``counters``, of the cursors of each list."""
CURSORS = 17

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


class CampusState(NamedTuple):
    """Arrays that a simulation reads and changes."""

    # the world
    start: Floats
    end: Floats
    low: Ints
    high: Ints
    end_order: NDArray[np.int64]
    published_s: Floats
    publisher: Ints
    topic: Ints
    limit: Ints
    """L of each sample."""
    subscribes: NDArray[np.uint8]
    subscription: Ints
    """Topics that each node subscribes to, then -1."""
    settings: Floats
    """Period of Hello (0: on change), time of a transfer, 1 if retrieved samples are shown, end; times in seconds."""
    # memory
    sample: Ints
    copies: Ints
    removable: NDArray[np.uint8]
    used: Ints
    removables: Ints
    reserved: Ints
    live: Ints
    newest: Ints
    got: Ints
    asked: Ints
    # links
    neighbours: Ints
    since: Floats
    degree: NDArray[np.int64]
    # queues
    to_speak: Ints
    is_to_speak: NDArray[np.uint8]
    sent_s: Floats
    sent: Ints
    """Transfers under way: sender, receiver, sample, copies, and whether a slot is reserved."""
    wanted: Ints
    """Scratch: samples and their slots at the sender of the Hello, -1 for a sample that only its application has."""
    # results
    counters: NDArray[np.int64]
    delivered_s: Floats
    delivered: Ints
    """Per retrieval: node, sample, number of nodes that stored the sample."""
    holders: Ints
    stores: Ints
    sprayed_s: Floats


@njit(cache=True, nogil=True)
def advance(s: Any, events: Any) -> Any:
    """Process at most *events* events of the trace; return the number processed, which is less only at the end."""
    counters, used, degree, neighbours, since = s.counters, s.used, s.degree, s.neighbours, s.since
    stored, copies, removable, removables, reserved = s.sample, s.copies, s.removable, s.removables, s.reserved
    live, newest, got, asked = s.live, s.newest, s.got, s.asked
    topic_of, subscribes, wanted = s.topic, s.subscribes, s.wanted
    to_speak, is_to_speak, sent, sent_s = s.to_speak, s.is_to_speak, s.sent, s.sent_s
    delivered_s, delivered, holders, stores = s.delivered_s, s.delivered, s.holders, s.stores
    limit, sprayed_s = s.limit, s.sprayed_s
    period_s, transfer_s, shows_retrieved, seconds = s.settings[0], s.settings[1], s.settings[2] > 0, s.settings[3]
    is_on_change = period_s == 0
    nodes, places = stored.shape
    done = 0
    while done < events:
        up_s = s.start[counters[_UPS]] if counters[_UPS] < len(s.start) else np.inf
        down_s = s.end[s.end_order[counters[_DOWNS]]] if counters[_DOWNS] < len(s.end) else np.inf
        publish_s = s.published_s[counters[_PUBLISHED]] if counters[_PUBLISHED] < len(s.published_s) else np.inf
        now = min(up_s, publish_s, down_s)
        is_end = now == np.inf
        hello_s = counters[_HELLOS] * (period_s / nodes) if period_s > 0 else np.inf
        arrives_s = np.inf
        if counters[_ARRIVED] < counters[_SENT]:
            arrives_s = sent_s[counters[_ARRIVED] % len(sent_s)] + transfer_s
        direct, low, high, speaker, place = 0, 0, 0, -1, 0
        receiver, taken, taken_copies = -1, 0, 0
        if arrives_s <= min(now, seconds) and arrives_s <= hello_s:
            at = counters[_ARRIVED] % len(sent_s)
            counters[_ARRIVED] += 1
            now = arrives_s
            receiver, taken, taken_copies = sent[at, 1], sent[at, 2], sent[at, 3]
            reserved[receiver] -= sent[at, 4]
            if asked[receiver, topic_of[taken]] == taken:
                asked[receiver, topic_of[taken]] = -1
            is_up = False
            for each in range(degree[receiver]):
                if neighbours[receiver, each] == sent[at, 0]:
                    is_up = since[receiver, each] <= sent_s[at]
            if not is_up:
                counters[_BROKEN] += taken_copies
                receiver = -1
        elif hello_s < now and hello_s <= seconds:
            now = hello_s
            speaker = counters[_HELLOS] % nodes
            counters[_HELLOS] += 1
        elif is_end:
            return done
        elif up_s == now:
            low, high = s.low[counters[_UPS]], s.high[counters[_UPS]]
            counters[_UPS] += 1
            done += 1
            connect(neighbours, since, degree, low, high, now)
            connect(neighbours, since, degree, high, low, now)
            direct = 2 if is_on_change else 0
        elif publish_s == now:
            sample = counters[_PUBLISHED]
            counters[_PUBLISHED] += 1
            done += 1
            node, topic = s.publisher[sample], topic_of[sample]
            _outdate(live, stored, removable, removables, copies, node, topic, sample)
            if used[node] == places:
                is_removable = removables[node] > 0
                _, gone = _remove(live, newest, stored, removable, removables, copies, used, holders, topic_of, node)
                counters[_REPLACED if is_removable else _DISPLACED] += gone
            _store(live, newest, stored, removable, copies, used, holders, topic, node, sample, limit[sample])
            stores[sample] = 1
            if limit[sample] == 1:
                sprayed_s[sample] = now
            if subscribes[node, topic]:
                got[node, topic] = sample
            if is_on_change:
                _enqueue(to_speak, is_to_speak, counters, node)
        else:
            contact = s.end_order[counters[_DOWNS]]
            counters[_DOWNS] += 1
            done += 1
            disconnect(neighbours, since, degree, s.low[contact], s.high[contact])
            disconnect(neighbours, since, degree, s.high[contact], s.low[contact])
        # Hellos: those of both nodes of a new contact, then those of each node whose list has changed, until none
        # changes.
        while True:
            teller, hearer = -1, receiver
            count = 0
            is_teller_changed = is_hearer_changed = False
            if receiver >= 0:  # an answer has arrived: no Hello, only its sample
                wanted[0, 0], wanted[0, 1] = taken, taken_copies
                count = 1
                receiver = -1
            elif direct > 0:
                teller, hearer = (low, high) if direct == 2 else (high, low)
                direct -= 1
            elif speaker >= 0 and place < degree[speaker]:
                teller, hearer = speaker, neighbours[speaker, place]
                place += 1
            elif counters[_SPOKEN] < counters[_TO_SPEAK]:
                speaker, place = to_speak[counters[_SPOKEN] % len(to_speak)], 0
                is_to_speak[speaker] = 0
                counters[_SPOKEN] += 1
                continue
            else:
                break
            if teller >= 0:
                counters[_HELLO] += 1
                for at in range(used[teller]):
                    sample = stored[teller, at]
                    topic = topic_of[sample]
                    if live[hearer, topic] >= 0 and stored[hearer, live[hearer, topic]] < sample:
                        is_hearer_changed |= _outdate(
                            live, stored, removable, removables, copies, hearer, topic, sample
                        )
                    has_news = subscribes[hearer, topic] and got[hearer, topic] < sample
                    may_carry = copies[teller, at] > 1 and not removable[teller, at] and newest[hearer, topic] < sample
                    if has_news or may_carry:
                        wanted[count, 0], wanted[count, 1] = sample, at
                        count += 1
                if shows_retrieved:
                    each = 0
                    while s.subscription[teller, each] >= 0:
                        topic = s.subscription[teller, each]
                        each += 1
                        sample = got[teller, topic]
                        if sample >= 0 and not _is_stored(stored, used, teller, sample):
                            is_hearer_changed |= _outdate(
                                live, stored, removable, removables, copies, hearer, topic, sample
                            )
                            if subscribes[hearer, topic] and got[hearer, topic] < sample:
                                wanted[count, 0], wanted[count, 1] = sample, -1
                                count += 1
            while count > 0:
                best = 0  # the newest first
                for each in range(1, count):
                    if wanted[each, 0] > wanted[best, 0]:
                        best = each
                sample, at = wanted[best, 0], wanted[best, 1]
                count -= 1
                wanted[best, 0], wanted[best, 1] = wanted[count, 0], wanted[count, 1]
                topic = topic_of[sample]
                granted = at
                if teller >= 0:
                    if asked[hearer, topic] >= sample:
                        continue
                    wants_copies = (
                        at >= 0
                        and copies[teller, at] > 1
                        and not removable[teller, at]
                        and newest[hearer, topic] < sample
                        and got[hearer, topic] <= sample
                        and used[hearer] + reserved[hearer] - removables[hearer] < places
                    )
                    if not (wants_copies or (subscribes[hearer, topic] and got[hearer, topic] < sample)):
                        continue
                    counters[_REQUEST] += 1
                    counters[_ANSWER] += 1
                    granted = 0
                    if wants_copies:
                        granted = copies[teller, at] // 2
                        copies[teller, at] -= granted
                        is_teller_changed |= copies[teller, at] == 1
                    if transfer_s > 0:
                        if counters[_SENT] - counters[_ARRIVED] == len(sent_s):
                            raise ValueError("more transfers under way than there is room for")
                        asked[hearer, topic] = sample
                        reserved[hearer] += wants_copies
                        end = counters[_SENT] % len(sent_s)
                        sent_s[end] = now
                        sent[end, 0], sent[end, 1], sent[end, 2] = teller, hearer, sample
                        sent[end, 3], sent[end, 4] = granted, wants_copies
                        counters[_SENT] += 1
                        continue
                # The answer arrives.
                is_current = (
                    newest[hearer, topic] < sample and got[hearer, topic] <= sample and asked[hearer, topic] < sample
                )
                was_shown = shows_retrieved and got[hearer, topic] == sample
                if subscribes[hearer, topic] and got[hearer, topic] < sample:
                    got[hearer, topic] = sample
                    is_hearer_changed |= shows_retrieved
                    end = counters[_DELIVERED]
                    delivered_s[end] = now
                    delivered[end, 0], delivered[end, 1], delivered[end, 2] = hearer, sample, holders[sample]
                    counters[_DELIVERED] += 1
                if granted == 0:
                    continue
                if not is_current:
                    counters[_OUTDATED] += granted
                elif used[hearer] == places and removables[hearer] == 0:
                    counters[_NO_PLACE] += granted
                else:
                    _outdate(live, stored, removable, removables, copies, hearer, topic, sample)
                    if used[hearer] == places:
                        removed, gone = _remove(
                            live, newest, stored, removable, removables, copies, used, holders, topic_of, hearer
                        )
                        counters[_REPLACED] += gone
                        # A retrieved sample stays in the list, because the removable sample was listed too.
                        is_hearer_changed |= not (shows_retrieved and got[hearer, topic_of[removed]] == removed)
                    _store(live, newest, stored, removable, copies, used, holders, topic, hearer, sample, granted)
                    stores[sample] += 1
                    if stores[sample] == limit[sample]:
                        sprayed_s[sample] = now
                    is_hearer_changed |= granted > 1 or not was_shown
            if is_on_change:
                if is_teller_changed:
                    _enqueue(to_speak, is_to_speak, counters, teller)
                if is_hearer_changed:
                    _enqueue(to_speak, is_to_speak, counters, hearer)
    return done


@njit(cache=True, nogil=True)
def _enqueue(to_speak: Any, is_to_speak: Any, counters: Any, node: Any) -> None:
    """Queue a Hello of a node to all its neighbours, unless one is queued already."""
    if not is_to_speak[node]:
        is_to_speak[node] = 1
        to_speak[counters[_TO_SPEAK] % len(to_speak)] = node
        counters[_TO_SPEAK] += 1


@njit(cache=True, nogil=True)
def _outdate(live: Any, stored: Any, removable: Any, removables: Any, copies: Any, node: Any, topic: Any, sample: Any) -> Any:  # noqa: E501 # fmt: skip
    """Make the node's sample of *topic* removable if older than *sample*; return whether its list changes."""
    at = live[node, topic]
    if at < 0 or stored[node, at] >= sample:
        return False
    removable[node, at] = 1
    removables[node] += 1
    live[node, topic] = -1
    return copies[node, at] > 1


@njit(cache=True, nogil=True)
def _store(live: Any, newest: Any, stored: Any, removable: Any, copies: Any, used: Any, holders: Any, topic: Any, node: Any, sample: Any, count: Any) -> None:  # noqa: E501 # fmt: skip
    at = used[node]
    used[node] += 1
    stored[node, at], copies[node, at], removable[node, at] = sample, count, 0
    live[node, topic] = at
    newest[node, topic] = sample
    holders[sample] += 1


@njit(cache=True, nogil=True)
def _remove(live: Any, newest: Any, stored: Any, removable: Any, removables: Any, copies: Any, used: Any, holders: Any, topic_of: Any, node: Any) -> Any:  # noqa: E501 # fmt: skip
    """Remove the oldest removable sample, or the oldest if none is removable; return it and its copies."""
    is_removable = removables[node] > 0
    victim = -1
    for at in range(used[node]):
        if removable[node, at] == is_removable and (victim < 0 or stored[node, at] < stored[node, victim]):
            victim = at
    sample, gone = stored[node, victim], copies[node, victim]
    topic = topic_of[sample]
    removables[node] -= is_removable
    holders[sample] -= 1
    if live[node, topic] == victim:
        live[node, topic] = -1
    if newest[node, topic] == sample:
        newest[node, topic] = -1
    used[node] -= 1
    last = used[node]
    if victim != last:
        moved = stored[node, last]
        stored[node, victim], copies[node, victim] = moved, copies[node, last]
        removable[node, victim] = removable[node, last]
        if live[node, topic_of[moved]] == last:
            live[node, topic_of[moved]] = victim
    return sample, gone


@njit(cache=True, nogil=True)
def _is_stored(stored: Any, used: Any, node: Any, sample: Any) -> Any:
    for at in range(used[node]):  # noqa: SIM110 # numba knows no any()
        if stored[node, at] == sample:
            return True
    return False
