"""A town with content filters at the producers: the common approach, with which STEAM is compared (4.3, Figure 3a).

The cores, groups, floods and radio are those of ``Town``; only the place of the decision differs. A consumer sends its
filter with every join. Filters such as *the light I am driving towards* depend on the consumer's movement, so the join
also carries place, heading and speed. The producer evaluates the filters of all members, and names the members that get
the event.
Rule: a producer knows a member's state of its last join: up to one period old, and older if joins are lost.
Rule: an event that matches no filter is not transmitted. A consumer that is not named does not deliver it.
Rule: each verdict is compared with the verdict of the consumer's own filter at the moment of receipt; the two differ if
the consumer has moved since its last join.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import cbor2

from whimbrel.language.filters import Filter
from whimbrel.model.attributes import Attributes
from whimbrel.model.place import Place
from whimbrel.nearby.frames.values import Event, Frame, GroupId, Join
from whimbrel.nearby.frames.wire import encode
from whimbrel.nearby.group.outputs import Deliver
from whimbrel.nearby.motion import Motion
from whimbrel.sim.streets.town import Resident, Town

__all__ = ["FilterJoin", "FilteringTown"]

_NAME_BYTES = 8
"""Bytes of one consumer's name in an event: a hash, as in beacons."""


@lru_cache(maxsize=1_024)
def _parsed(text: str) -> Filter:
    return Filter(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterJoin(Join):
    """A join that carries the consumer's filter, and the state of movement that the filter depends on."""

    filter_text: str
    place: Place
    previous: Place | None
    speed_m_s: float | None

    def motion(self) -> Motion:
        """Return the consumer's movement at the time of this join."""
        found = Motion(max_speed_m_s=1.0)
        found.place, found.previous, found.speed_m_s = self.place, self.previous, self.speed_m_s
        return found

    def size_bytes(self) -> int:
        """Return the bytes of the frame: those of a join, and of the values it carries."""
        plain = Join(**{each.name: getattr(self, each.name) for each in fields(Join)})
        places = [each for place in (self.place, self.previous) if place for each in (place.latitude, place.longitude)]
        return len(encode(plain)) + len(cbor2.dumps([self.filter_text, *places, self.speed_m_s]))


class FilteringTown(Town):
    """A town whose producers evaluate the filters of their members."""

    def __init__(self, *, filter_of: Callable[[str, str], str], **settings: Any) -> None:  # noqa: ANN401 # those of a town
        super().__init__(**settings)
        self._filter_of = filter_of
        """Returns the filter text of a consumer (first argument) for a subject."""
        self._deployed: dict[GroupId, dict[str, FilterJoin]] = {}
        self._named: dict[tuple[str, int], frozenset[str]] = {}
        self.verdicts: Counter[str] = Counter()
        """Number of filters that producers evaluated, and how the verdicts compare with the consumers' own."""

    def publish(self, resident: Resident, subject: str, values: Mapping[str, object]) -> Event | None:
        """Publish to the members whose filters match; without one, return None."""
        wanted = self._select(resident, subject, self.vocabulary[subject].check(values))
        if not wanted:
            return None
        event, outputs = resident.node.publish(subject, values, now=self.now + resident.clock_us)
        self._named[event.origin, event.seq] = wanted
        self.perform(resident, outputs)
        return event

    def find_named(self, event: Event) -> frozenset[str]:
        """Return the consumers that the producer named in *event*."""
        return self._named[event.origin, event.seq]

    def _select(self, producer: Resident, subject: str, values: Attributes) -> frozenset[str]:
        here = producer.node.motion.place
        assert here is not None
        deployed = self._deployed.get(GroupId(producer.node.name, subject), {})
        wanted = []
        for member in producer.node.members(subject):
            self.verdicts["asked"] += 1
            told = deployed[member]
            seen = told.motion().attributes_seen_from(values, here)
            if _parsed(told.filter_text).verdict(seen) is True:
                wanted.append(member)
        return frozenset(wanted)

    def is_for(self, resident: Resident, found: Deliver) -> bool:
        """Return whether the producer named *resident*, and count whether that was right."""
        event = found.event
        is_named = resident.node.name in self._named[event.origin, event.seq]
        own = _parsed(self._filter_of(resident.node.name, event.subject))
        is_wanted = own.verdict(found.attributes) is True
        self.verdicts["named" if is_named else "not named"] += 1
        if is_named != is_wanted:
            self.verdicts["wrongly named" if is_named else "wrongly left out"] += 1
        return is_named

    def size_of(self, frame: Frame) -> int:
        """Return the bytes of *frame*, including the fields that filters at the producer add to joins and events."""
        if isinstance(frame, FilterJoin):
            return frame.size_bytes()
        named = self._named.get((frame.origin, frame.seq), ()) if isinstance(frame, Event) else ()
        return super().size_of(frame) + _NAME_BYTES * len(named)

    def _transmit(self, resident: Resident, frame: Frame) -> None:
        if isinstance(frame, Join) and frame.origin == resident.node.name:
            motion = resident.node.motion
            assert motion.place is not None
            frame = FilterJoin(
                **{each.name: getattr(frame, each.name) for each in fields(Join)},
                filter_text=self._filter_of(frame.origin, frame.subject),
                place=motion.place,
                previous=motion.previous,
                speed_m_s=motion.speed_m_s,
            )
        super()._transmit(resident, frame)

    def _receive(self, indices: list[int], frame: Frame) -> None:
        if isinstance(frame, FilterJoin):
            for index in indices:
                if self.residents[index].node.name == frame.producer:
                    deployed = self._deployed.setdefault(frame.group, {})
                    known = deployed.get(frame.origin)
                    if known is None or known.seq < frame.seq:
                        deployed[frame.origin] = frame
        super()._receive(indices, frame)
