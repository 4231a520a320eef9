"""Far events: events that a consumer receives from a broker, to which listeners forward them out of their areas.

Rule: copies that come both ways, or from several listeners, are one event: the first copy counts, by ``node:seq``.
Rule: the area does not apply to a forwarded event; the consumer's ``near``, keys and content filter do.
Rule: an event expires at the instant that its listener wrote, by this node's own clock, and is never delivered late.
Rule: a body that is not an event of the vocabulary is dropped and counted.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from whimbrel.errors import InvalidInputError, InvalidValueError
from whimbrel.model.attributes import AttributeType
from whimbrel.model.bounds import real
from whimbrel.model.clock import parse_time
from whimbrel.model.json_body import read_json
from whimbrel.model.notification import NotificationId
from whimbrel.model.place import Area, Place
from whimbrel.nearby.frames.values import Event
from whimbrel.nearby.group.outputs import Deliver
from whimbrel.nearby.group.subscriptions import NearbySubscription, SubscriptionTable
from whimbrel.nearby.motion import Motion
from whimbrel.nearby.vocabulary import EventType, Vocabulary

__all__ = ["FarEvents"]

_MAX_SEEN = 65_536


class FarEvents:
    """Filter of forwarded events for one consumer, with the ids that it has seen."""

    def __init__(
        self, *, vocabulary: Vocabulary, subscriptions: tuple[NearbySubscription, ...], motion: Motion
    ) -> None:
        self._vocabulary, self._motion = vocabulary, motion
        self._subscriptions = SubscriptionTable(vocabulary)
        for each in subscriptions:
            self._subscriptions.add(each)
        self._seen: OrderedDict[NotificationId, None] = OrderedDict()
        self.counts: Counter[str] = Counter()

    def is_first(self, event: NotificationId) -> bool:
        """Record *event*; return whether this is its first copy."""
        if event in self._seen:
            self.counts["copies"] += 1
            return False
        self._seen[event] = None
        if len(self._seen) > _MAX_SEEN:
            self._seen.popitem(last=False)
        return True

    def receive(self, event_type: str, body: bytes, *, at: int) -> Deliver | None:
        """Handle a message of *event_type* at the instant *at*; return the event to deliver, or None."""
        try:
            event = _event(self._vocabulary[event_type], body, at=at)
        except InvalidInputError:
            self.counts["unfit"] += 1
            return None
        if not event.remaining_us:
            self.counts["expired"] += 1
            return None
        seen = self._motion.attributes_seen_from(event.attributes, event.place)
        names, _ = self._subscriptions.select(event, seen)
        if not names:
            self.counts["discarded"] += 1
            return None
        if not self.is_first(event.id):
            return None
        return Deliver(event=event, subscriptions=names, attributes=seen, left_us=event.remaining_us)


def _event(kind: EventType, body: bytes, *, at: int) -> Event:
    """Return the event in a message that ``listening.body_of`` wrote.

    A listener of an older version did not write the producer's place: the centre of the area is used instead.
    """
    told = {str(name): value for name, value in read_json(body).items()}
    node_seq, place, deadline_at = (_text(told, name) for name in ("event", "place", "deadline_at"))
    area = Area(Place.parse(place), real("radius_m", told.pop("radius_m", None), 0, 1e8))
    producer = Place.parse(_text(told, "producer_place")) if "producer_place" in told else area.centre
    told.pop("remaining_ms", None)
    if "age_known" not in kind.parameters:  # the listener's own attribute, for other readers of the broker
        told.pop("age_known", None)
    for name, value in told.items():
        if kind.parameters.get(name) is AttributeType.OPAQUE and isinstance(value, str):
            told[name] = _opaque(name, value)
    identity = NotificationId.parse(node_seq)
    remaining_us = max(0, parse_time(deadline_at) - at)
    return Event(
        origin=identity.node,
        seq=identity.seq,
        sender=identity.node,
        hops=0,
        max_hops=0,
        subject=kind.name,
        area=area,
        place=producer,
        epoch=0,
        number=0,
        deadline_us=remaining_us,
        remaining_us=remaining_us,
        attributes=kind.check(told),
    )


def _text(told: dict[str, object], name: str) -> str:
    value = told.pop(name, None)
    if not isinstance(value, str):
        raise InvalidValueError(name, value, "a text")
    return value


def _opaque(name: str, value: str) -> bytes:
    try:
        return bytes.fromhex(value)
    except ValueError:
        raise InvalidValueError(name, value, "hexadecimal digits") from None
