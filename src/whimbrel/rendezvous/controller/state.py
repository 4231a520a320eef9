"""The state of a controller, and the changes of it that several parts of its loop make.

Rule: a method changes the state and appends the resulting commands to ``out``, in order. It never decides on a match:
``deciding`` does.
Rule: an event is erased in one place (``erase``), which removes it from every table.
"""

from __future__ import annotations

from collections import OrderedDict

from whimbrel.rendezvous.controller.arrivals import ArrivalQueue
from whimbrel.rendezvous.controller.caches import TimedCache
from whimbrel.rendezvous.controller.commands import Command, Note, NoteKind, Send
from whimbrel.rendezvous.controller.openings import Identifiers, OpenIndex, Record, Stage
from whimbrel.rendezvous.controller.parameters import Parameters
from whimbrel.rendezvous.controller.piconet import Member, Piconet
from whimbrel.rendezvous.events import Address, Event, EventId, Kind, Publication
from whimbrel.rendezvous.messages import FromController

__all__ = ["State"]


class State:
    """The devices, events, queues, caches and deadlines of a controller, and its commands that wait in ``out``."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.out: list[Command] = []
        self.piconet = Piconet(parameters)
        self.index = OpenIndex()
        self.arrivals = ArrivalQueue(self.candidates, has_two=parameters.has_two_queues)
        self.records: dict[EventId, Record] = {}
        self.of_owner: dict[Address, dict[EventId, Record]] = {}
        self.removed: TimedCache[EventId, Record] = TimedCache(parameters.removed_ttl_us, parameters.remembered)
        self.pairs: TimedCache[tuple[object, ...], bool] = TimedCache(parameters.pair_ttl_us, parameters.remembered)
        self.introduced: TimedCache[Address, bool] = TimedCache(parameters.page_timeout_us, parameters.remembered)
        self.expiring: OrderedDict[EventId, int] = OrderedDict()
        """Expiry time of each open event; the next to expire is first, since all have the same time to live."""
        self.connecting: OrderedDict[EventId, int] = OrderedDict()
        """Indirect publications whose device is being paged, each with the time at which the page counts as failed."""
        self.idle: OrderedDict[Address, int] = OrderedDict()
        """Devices without an event, each with the time until which it may stay."""
        self.lingering: dict[Address, int] = {}
        """Released devices that are connected again, each with the time from which it may be released again."""
        self.unaware: OrderedDict[Address, tuple[EventId, int]] = OrderedDict()
        """Released publishers whose match pages them, each with its event and the time at which it is told of that."""
        self.strangers: set[Address] = set()
        """Devices that were found by inquiry and are not connected: their number is bounded."""
        self._identifiers = Identifiers(parameters.max_number)
        self._seq = 0

    # -- events --------------------------------------------------------------------------------------------------------

    def candidates(self, trigger: Record) -> list[Record]:
        """Return the open events that match *trigger*, before proofs are checked, oldest first."""
        return self.index.candidates(trigger)

    def is_present(self, record: Record) -> bool:
        """Return whether the device of *record* is connected, or is being paged for its indirect publication."""
        return self.piconet.get(record.owner) is not None or record.id in self.connecting

    def publication_of(self, owner: Address) -> Record | None:
        """Return the one publication of *owner*."""
        mine = self.of_owner.get(owner, {}).values()
        return next((each for each in mine if each.kind is Kind.PUBLICATION), None)

    def subscriptions_of(self, owner: Address) -> list[Record]:
        """Return the subscriptions of *owner*."""
        return [each for each in self.of_owner.get(owner, {}).values() if each.kind is Kind.SUBSCRIPTION]

    def enqueue(
        self, owner: Address, event: Event, *, now: int, identifier: EventId | None = None, is_indirect: bool = False
    ) -> EventId | None:
        """Append an event to the queue; return its identifier, new unless given, or ``None`` if none is left."""
        kind = Kind.PUBLICATION if isinstance(event, Publication) else Kind.SUBSCRIPTION
        is_announced = not is_indirect or identifier is not None
        if identifier is None:
            identifier = self._identifiers.next(
                kind,
                lambda each: each in self.records or self.removed.get(each, now=now) is not None,
                tries=len(self.records) + len(self.removed) + 1,
            )
            if identifier is None:
                return None
        self._seq += 1
        record = Record(identifier, owner, event, self._seq, kind, is_indirect, is_announced)
        self.records[identifier] = record
        self.of_owner.setdefault(owner, {})[identifier] = record
        self.idle.pop(owner, None)
        self.arrivals.push(record)
        return identifier

    def open(self, record: Record, *, now: int) -> None:
        """Keep *record*, which matches nothing, until it is matched, removed or expires."""
        record.stage = Stage.OPEN
        self.index.add(record)
        self.arrivals.add_candidate(record)
        self.expiring[record.id] = now + self.parameters.event_ttl_us
        self.note(NoteKind.OPENED, record, detail="indirect" if record.is_indirect else None)

    def erase(self, record: Record, *, now: int, is_remembered: bool) -> None:
        """Remove *record* from every table; if it *is_remembered*, its device may renew it for a while."""
        if record.stage is Stage.OPEN:
            self.index.remove(record)
        record.stage = Stage.GONE
        self.records.pop(record.id, None)
        self.expiring.pop(record.id, None)
        self.connecting.pop(record.id, None)
        self.strangers.discard(record.owner)
        mine = self.of_owner.get(record.owner, {})
        mine.pop(record.id, None)
        if not mine:
            self.of_owner.pop(record.owner, None)
            self.start_idle_timer(record.owner, now=now)
        if is_remembered:
            self.removed.put(record.id, record, now=now)

    def note(
        self,
        kind: NoteKind,
        record: Record,
        other: Record | None = None,
        *,
        detail: str | None = None,
        count: int | None = None,
    ) -> None:
        """Append a fact for the log; if any of its events names groups, the fact names no device."""
        is_hidden = record.event.is_restricted or (other is not None and other.event.is_restricted)
        self.out.append(
            Note(
                kind=kind,
                id=record.id,
                address=None if is_hidden else record.owner,
                other_id=None if other is None else other.id,
                other_address=None if other is None or is_hidden else other.owner,
                detail=detail,
                count=count,
            )
        )

    def requeue(self, record: Record, *, now: int) -> None:
        """Queue an event again, because its match ended before anybody was told of it."""
        is_stranger = self.piconet.get(record.owner) is None
        self.erase(record, now=now, is_remembered=False)
        self.enqueue(record.owner, record.event, now=now, identifier=record.id, is_indirect=record.is_indirect)
        self.records[record.id].is_announced = record.is_announced
        if is_stranger:
            self.strangers.add(record.owner)

    # -- devices -------------------------------------------------------------------------------------------------------

    def start_idle_timer(self, owner: Address, *, now: int) -> None:
        """Start the timer of a device without an event, if it is here."""
        if self.piconet.get(owner) is not None:
            self.idle[owner] = now + self.parameters.idle_us
            self.idle.move_to_end(owner)

    def tell(self, member: Member, message: FromController) -> None:
        """Wake *member* if it is parked or released, and send it *message* if it has our layer."""
        if member.has_layer:
            self.out += self.piconet.wake(member)
            self.say(member, message)

    def say(self, member: Member, message: FromController) -> None:
        """Send *message* to an awake device; for a released device, store it until the device is connected."""
        if member.is_released:
            member.outbox.append(message)
        else:
            self.out.append(Send(member.address, message))

    def settle(self, address: Address, *, has_scans_off: bool = True) -> None:
        """Park the device at *address*, unless an event of it is queued or it is in a conversation.

        Without park, a device that has no event stays connected: it may still send a message, and there is no reason
        to page it later.
        """
        member, mine = self.piconet.get(address), self.of_owner.get(address, {})
        is_needed = address in self.lingering or (not mine and not self.parameters.has_park)
        if member is not None and not is_needed and not any(each.stage is Stage.QUEUED for each in mine.values()):
            self.out += self.piconet.park(member, has_scans_off=has_scans_off)
