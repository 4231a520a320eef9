"""Unicast routing, fast: the twin of ``tests/reference/unicast_routing.py``.

Each undelivered message has one row with its copies per node. Rows are ordered by creation, so that the oldest message
is tried first; the row of a delivered message is removed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whimbrel.match.kernels.compiled import njit
from whimbrel.sim.kernels.links import connect, disconnect

__all__ = ["route_all"]


@njit(cache=True, nogil=True)
def route_all(start: Any, end: Any, low: Any, high: Any, end_order: Any, seconds: Any, nodes: Any, room: Any, created_s: Any, source: Any, destination: Any, limit: Any, transfer_s: Any) -> Any:  # noqa: E501 # fmt: skip
    """Return the delivery time of each message, and transfers started, done and aborted; *limit* 0 means epidemic."""
    delivered_s = np.full(len(created_s), np.nan)
    counts = np.zeros(3, np.int64)
    neighbours = np.zeros((nodes, room), np.int32)
    since = np.zeros((nodes, room), np.float64)
    degree = np.zeros(nodes, np.int64)
    copies = np.zeros((64, nodes), np.int32)
    message_of = np.zeros(64, np.int64)
    row_of = np.full(len(created_s), -1, np.int64)
    active = 0
    is_busy = np.zeros(nodes, np.uint8)
    to_try = np.zeros(nodes + 1, np.int32)
    is_to_try = np.zeros(nodes, np.uint8)
    tried = listed = 0
    sent_s = np.zeros(nodes + 1, np.float64)
    sent = np.zeros((nodes + 1, 3), np.int64)
    arrived = begun = 0
    ups = creations = downs = 0
    while True:
        up_s = start[ups] if ups < len(start) else np.inf
        down_s = end[end_order[downs]] if downs < len(end) else np.inf
        create_s = created_s[creations] if creations < len(created_s) else np.inf
        now = min(up_s, create_s, down_s)
        arrives_s = sent_s[arrived % len(sent_s)] + transfer_s if arrived < begun else np.inf
        if arrives_s <= min(now, seconds):
            at = arrived % len(sent_s)
            arrived += 1
            now = arrives_s
            sender, receiver, message = sent[at, 0], sent[at, 1], sent[at, 2]
            is_busy[sender] = is_busy[receiver] = 0
            is_up = False
            for place in range(degree[receiver]):
                if neighbours[receiver, place] == sender:
                    is_up = since[receiver, place] <= sent_s[at]
            if not is_up:
                counts[2] += 1
            elif row_of[message] >= 0:
                active = _hand_over(
                    copies, message_of, row_of, delivered_s, destination, counts, active, limit, sender, receiver,
                    message, now,
                )  # fmt: skip
            listed = _list(to_try, is_to_try, listed, sender)
            listed = _list(to_try, is_to_try, listed, receiver)
            for place in range(degree[sender]):
                listed = _list(to_try, is_to_try, listed, neighbours[sender, place])
            for place in range(degree[receiver]):
                listed = _list(to_try, is_to_try, listed, neighbours[receiver, place])
        elif now == np.inf:
            return delivered_s, counts
        elif up_s == now:
            connect(neighbours, since, degree, low[ups], high[ups], now)
            connect(neighbours, since, degree, high[ups], low[ups], now)
            listed = _list(to_try, is_to_try, listed, low[ups])
            listed = _list(to_try, is_to_try, listed, high[ups])
            ups += 1
        elif create_s == now:
            if active == len(copies):
                grown = np.zeros((2 * active, nodes), np.int32)
                grown[:active] = copies
                copies = grown
                grown_of = np.zeros(2 * active, np.int64)
                grown_of[:active] = message_of
                message_of = grown_of
            copies[active, :] = 0
            copies[active, source[creations]] = max(limit, 1)
            message_of[active], row_of[creations] = creations, active
            active += 1
            listed = _list(to_try, is_to_try, listed, source[creations])
            creations += 1
        else:
            contact = end_order[downs]
            disconnect(neighbours, since, degree, low[contact], high[contact])
            disconnect(neighbours, since, degree, high[contact], low[contact])
            downs += 1
        while tried < listed:
            node = to_try[tried % len(to_try)]
            tried += 1
            is_to_try[node] = 0
            if is_busy[node] or degree[node] == 0:
                continue
            row = 0
            while row < active and not is_busy[node]:
                message = message_of[row]
                if copies[row, node] > 0:
                    target = destination[message]
                    for place in range(degree[node]):
                        if neighbours[node, place] == target and not is_busy[target]:
                            counts[0] += 1
                            if transfer_s > 0:
                                begun = _send(sent, sent_s, is_busy, begun, node, target, message, now)
                            else:
                                active = _hand_over(
                                    copies, message_of, row_of, delivered_s, destination, counts, active, limit, node,
                                    target, message, now,
                                )  # fmt: skip
                                listed = _list(to_try, is_to_try, listed, target)
                                row -= 1  # the next one has moved to this row
                            break
                row += 1
            row = 0
            while row < active and not is_busy[node]:
                if copies[row, node] > 1 or (limit == 0 and copies[row, node] > 0):
                    message = message_of[row]
                    for place in range(degree[node]):
                        neighbour = neighbours[node, place]
                        if copies[row, neighbour] == 0 and not is_busy[neighbour] and neighbour != destination[message]:
                            counts[0] += 1
                            if transfer_s > 0:
                                begun = _send(sent, sent_s, is_busy, begun, node, neighbour, message, now)
                                break
                            active = _hand_over(
                                copies, message_of, row_of, delivered_s, destination, counts, active, limit, node,
                                neighbour, message, now,
                            )  # fmt: skip
                            listed = _list(to_try, is_to_try, listed, neighbour)
                            if limit > 0 and copies[row, node] == 1:
                                break
                row += 1


@njit(cache=True, nogil=True)
def _list(to_try: Any, is_to_try: Any, listed: Any, node: Any) -> Any:
    if is_to_try[node]:
        return listed
    is_to_try[node] = 1
    to_try[listed % len(to_try)] = node
    return listed + 1


@njit(cache=True, nogil=True)
def _send(sent: Any, sent_s: Any, is_busy: Any, begun: Any, sender: Any, receiver: Any, message: Any, now: Any) -> Any:
    is_busy[sender] = is_busy[receiver] = 1
    at = begun % len(sent_s)
    sent_s[at] = now
    sent[at, 0], sent[at, 1], sent[at, 2] = sender, receiver, message
    return begun + 1


@njit(cache=True, nogil=True)
def _hand_over(copies: Any, message_of: Any, row_of: Any, delivered_s: Any, destination: Any, counts: Any, active: Any, limit: Any, sender: Any, receiver: Any, message: Any, now: Any) -> Any:  # noqa: E501 # fmt: skip
    """Copy a message to *receiver*; return the number of messages that are still undelivered."""
    row = row_of[message]
    if copies[row, receiver] > 0:
        return active
    if receiver == destination[message]:
        counts[1] += 1
        delivered_s[message] = now
        row_of[message] = -1
        for each in range(row, active - 1):
            copies[each] = copies[each + 1]
            message_of[each] = message_of[each + 1]
            row_of[message_of[each]] = each
        return active - 1
    if limit == 0:
        counts[1] += 1
        copies[row, receiver] = 1
    elif copies[row, sender] > 1:
        counts[1] += 1
        copies[row, receiver] = copies[row, sender] // 2
        copies[row, sender] -= copies[row, receiver]
    return active
