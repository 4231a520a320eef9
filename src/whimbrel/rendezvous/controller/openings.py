"""Openings: the events a controller has, their identifiers, and an index of the open ones.

Rule: an open publication is found by address, name, class or group, an open subscription by its template: a trigger
looks at the events that can match it, not at all of them. Elvin's matcher is not used: a template is four comparisons.
Rule: identifiers are given by kind and counter from 1; those of live events and of the removed cache are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import product

from whimbrel.rendezvous.events import (
    Address,
    Event,
    EventId,
    GroupKey,
    Kind,
    Publication,
    Subscription,
    event_id,
    fold,
)
from whimbrel.rendezvous.matching import is_compatible

__all__ = ["Identifiers", "OpenIndex", "Record", "Stage"]


class Stage(Enum):
    """Stage of an event, from the queue to its removal."""

    QUEUED = "queued"
    VERIFYING = "verifying"
    OPEN = "open"
    ANSWERING = "answering"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class Record:
    """One event of one device."""

    id: EventId
    owner: Address
    event: Event
    seq: int
    kind: Kind
    is_indirect: bool = False
    is_announced: bool = True
    """Whether its device was sent the identifier, or is about to be."""
    stage: Stage = Stage.QUEUED


class Identifiers:
    """Counters of identifiers, one for publications and one for subscriptions (4.1.4)."""

    def __init__(self, max_number: int) -> None:
        self._max_number = max_number
        self._last = dict.fromkeys(Kind, 0)

    def next(self, kind: Kind, is_taken: Callable[[EventId], bool], *, tries: int) -> EventId | None:
        """Return the next identifier that is not in use; ``None`` if *tries* numbers in a row are."""
        for _ in range(min(tries, self._max_number)):
            number = self._last[kind] % self._max_number + 1
            self._last[kind] = number
            identifier = event_id(kind, number)
            if not is_taken(identifier):
                return identifier
        return None


class OpenIndex:
    """Index of the open events, by the values that an event of the other kind looks for."""

    def __init__(self) -> None:
        self._by_address: dict[Address, Record] = {}
        self._by_name: dict[str, dict[EventId, Record]] = {}
        self._by_class: dict[int, dict[EventId, Record]] = {}
        self._by_group: dict[GroupKey | None, dict[EventId, Record]] = {}
        self._by_template: dict[tuple[Address | None, str | None, int | None], dict[EventId, Record]] = {}

    def add(self, record: Record) -> None:
        """Add *record* to the index."""
        for table, key in self._places(record):
            table.setdefault(key, {})[record.id] = record
        if isinstance(record.event, Publication):
            self._by_address[record.owner] = record

    def remove(self, record: Record) -> None:
        """Remove *record* from the index, if it is in it."""
        for table, key in self._places(record):
            found = table.get(key)
            if found is not None and found.pop(record.id, None) is not None and not found:
                del table[key]
        if self._by_address.get(record.owner) is record:
            del self._by_address[record.owner]

    def candidates(self, trigger: Record) -> list[Record]:
        """Return the open events of the other kind that match *trigger*, before proofs are checked, oldest first."""
        if isinstance(trigger.event, Publication):
            found = self._subscriptions_for(trigger.event)
        else:
            found = self._publications_for(trigger.event)
        return sorted((each for each in found if is_pair(each, trigger)), key=lambda each: each.seq)

    def _places(self, record: Record) -> list[tuple[dict[object, dict[EventId, Record]], object]]:
        event = record.event
        tables: list[tuple[object, object]]
        if isinstance(event, Publication):
            groups = [(self._by_group, key) for key in event.keys or (None,)]
            tables = [(self._by_name, fold(event.name)), (self._by_class, event.device_class), *groups]
        else:
            tables = [(self._by_template, _template(event))]
        return tables  # type: ignore[return-value]  # each table with a key of its own type

    def _publications_for(self, wanted: Subscription) -> Iterable[Record]:
        """Return the smallest set that the index knows to hold every match."""
        if wanted.address is not None:
            found = self._by_address.get(wanted.address)
            return () if found is None else (found,)
        sets: list[dict[EventId, Record]] = []
        if wanted.name is not None:
            sets.append(self._by_name.get(fold(wanted.name), {}))
        if wanted.device_class is not None:
            sets.append(self._by_class.get(wanted.device_class, {}))
        if sets:
            return min(sets, key=len).values()
        everything: dict[EventId, Record] = {}
        for key in (None, *wanted.keys):
            everything.update(self._by_group.get(key, {}))
        return everything.values()

    def _subscriptions_for(self, offered: Publication) -> Iterable[Record]:
        """Return the subscriptions under the eight templates that can match: each value, or NULL in its place."""
        values = ((offered.address, None), (fold(offered.name), None), (offered.device_class, None))
        found = (self._by_template.get(template) for template in product(*values))
        return [record for records in found if records for record in records.values()]


def is_pair(one: Record, other: Record) -> bool:
    """Return whether two events of different kinds match, before proofs of membership are checked."""
    publication, subscription = (one, other) if isinstance(one.event, Publication) else (other, one)
    assert isinstance(publication.event, Publication)
    assert isinstance(subscription.event, Subscription)
    return is_compatible(publication.event, subscription.event, subscription.owner)


def _template(wanted: Subscription) -> tuple[Address | None, str | None, int | None]:
    return (wanted.address, None if wanted.name is None else fold(wanted.name), wanted.device_class)
