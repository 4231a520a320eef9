"""Unicast routing, plain: the reference of ``sim.kernels.unicast``.

A node that has something to send and whose radio is free gives messages to their destinations first, then sprays; the
oldest message first, the lowest neighbour first. While a transfer takes time, both radios are busy.

Rule: at one time what has been transferred comes first, then contacts begin, messages are created, contacts end.
Rule: a transfer whose contact ends before it is done is aborted; the copies stay where they were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from whimbrel.sim.contacts.table import Contacts
from whimbrel.sim.unicast.outcome import UnicastOutcome
from whimbrel.sim.unicast.scenario import EPIDEMIC, Parcel, Unicast

__all__ = ["route"]

_UP, _CREATE, _DOWN = 0, 1, 2


def route(contacts: Contacts, unicast: Unicast, parcels: Sequence[Parcel]) -> UnicastOutcome:
    """Route *parcels* over *contacts*, which are seen as often as the scenario says."""
    return _Network(contacts.looked_at(unicast.look_s), unicast, parcels).run()


class _Network:
    def __init__(self, contacts: Contacts, unicast: Unicast, parcels: Sequence[Parcel]) -> None:
        self._contacts, self._unicast, self._parcels = contacts, unicast, parcels
        self._neighbours: list[dict[int, float]] = [{} for _ in range(contacts.nodes)]
        self._copies: dict[int, dict[int, int]] = {}
        """Of each message that is not delivered: who has how many copies."""
        self._busy: set[int] = set()
        self._transfers: deque[tuple[float, float, int, int, int]] = deque()
        self._to_try: deque[int] = deque()
        self._delivered_s = np.full(len(parcels), np.nan)
        self._started = self._relayed = self._aborted = 0

    def run(self) -> UnicastOutcome:
        ups = [(start, _UP, low, high) for start, _, low, high in self._contacts.rows()]
        downs = [(end, _DOWN, low, high) for _, end, low, high in self._contacts.rows()]
        created = [(parcel.created_s, _CREATE, number, 0) for number, parcel in enumerate(self._parcels)]
        for now, kind, one, other in sorted([*ups, *created, *downs], key=lambda event: event[:2]):
            self._arrivals(now)
            if kind == _UP:
                self._neighbours[one][other] = self._neighbours[other][one] = now
                self._try_later(one, other)
            elif kind == _DOWN:
                del self._neighbours[one][other], self._neighbours[other][one]
            else:
                limit = self._unicast.copies
                self._copies[one] = {self._parcels[one].source: 1 if limit == EPIDEMIC else limit}
                self._try_later(self._parcels[one].source)
            self._try_all(now)
        self._arrivals(self._contacts.seconds)
        return UnicastOutcome(self._delivered_s, self._started, self._relayed, self._aborted)

    def _arrivals(self, now: float) -> None:
        while self._transfers and self._transfers[0][0] <= now:
            arrives_s, begun_s, sender, receiver, message = self._transfers.popleft()
            self._busy -= {sender, receiver}
            since = self._neighbours[receiver].get(sender)
            if since is None or since > begun_s:
                self._aborted += 1
            else:
                self._hand_over(sender, receiver, message, arrives_s)
            self._try_later(sender, receiver, *sorted(self._neighbours[sender]), *sorted(self._neighbours[receiver]))
            self._try_all(arrives_s)

    def _try_later(self, *nodes: int) -> None:
        for node in nodes:
            if node not in self._to_try:
                self._to_try.append(node)

    def _try_all(self, now: float) -> None:
        while self._to_try:
            self._try(self._to_try.popleft(), now)

    def _try(self, node: int, now: float) -> None:
        if node in self._busy:
            return
        for message in sorted(self._copies):
            destination = self._parcels[message].destination
            if node in self._copies[message] and destination in self._neighbours[node]:
                if destination in self._busy:
                    continue
                self._start(node, destination, message, now)
                if self._unicast.transfer_s > 0:
                    return
        for message in sorted(self._copies):
            for neighbour in sorted(self._neighbours[node]):
                copies = self._copies.get(message, {})
                has_share = node in copies and (self._unicast.copies == EPIDEMIC or copies[node] > 1)
                if has_share and neighbour not in copies and neighbour not in self._busy:
                    self._start(node, neighbour, message, now)
                    if self._unicast.transfer_s > 0:
                        return

    def _start(self, sender: int, receiver: int, message: int, now: float) -> None:
        self._started += 1
        if self._unicast.transfer_s > 0:
            self._busy |= {sender, receiver}
            self._transfers.append((now + self._unicast.transfer_s, now, sender, receiver, message))
        else:
            self._hand_over(sender, receiver, message, now)
            self._try_later(receiver)

    def _hand_over(self, sender: int, receiver: int, message: int, now: float) -> None:
        copies = self._copies.get(message)
        if copies is None or receiver in copies:  # delivered, or got from another, meanwhile
            return
        if receiver == self._parcels[message].destination:
            self._relayed += 1
            self._delivered_s[message] = now
            del self._copies[message]
        elif self._unicast.copies == EPIDEMIC:
            self._relayed += 1
            copies[receiver] = 1
        elif copies[sender] > 1:
            self._relayed += 1
            copies[receiver] = copies[sender] // 2
            copies[sender] -= copies[receiver]
