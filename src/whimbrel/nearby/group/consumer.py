"""The consumer: joins the groups of its subjects when it is in their areas, and filters by content (4.2, 4.3).

Rule: a subscription is by event type and is valid wherever the consumer goes (T2, T7). The consumer joins a group when
it hears a beacon inside the area, repeats the join each period, and leaves when it leaves the area, or when the
producer is silent for three periods.
Rule: subject and proximity decide what is *propagated* to it, content what is *delivered* (Figure 2). Filters never
leave the consumer (T14).
Rule: an event is new by its number in the group; it is delivered at most once, and never after its deadline.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TypeVar

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.place import Place
from whimbrel.nearby.datagrams import travel_us
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.dispatcher import Dispatcher
from whimbrel.nearby.frames.signatures import Signer
from whimbrel.nearby.frames.values import Beacon, Event, Flooded, GroupId, Join, Objection, Request
from whimbrel.nearby.group.membership import Membership
from whimbrel.nearby.group.membership_table import MembershipTable
from whimbrel.nearby.group.numbers import Numbering
from whimbrel.nearby.group.outputs import Deliver, Note, NoteKind, Output, Send
from whimbrel.nearby.group.relay import is_inside
from whimbrel.nearby.group.subscriptions import NearbySubscription, SubscriptionTable
from whimbrel.nearby.group.trust import TimeOfDay
from whimbrel.nearby.group.view import member_hash
from whimbrel.nearby.motion import Motion
from whimbrel.nearby.vocabulary import Vocabulary

__all__ = ["Consumer"]

_Own = TypeVar("_Own", Join, Request)


class Consumer:
    """The subscriptions of one node, and its memberships in groups."""

    def __init__(
        self,
        name: str,
        *,
        deployment: Deployment,
        vocabulary: Vocabulary,
        numbering: Numbering,
        motion: Motion,
        dispatcher: Dispatcher,
        signer: Signer | None,
        day: TimeOfDay,
        counts: Counter[str],
    ) -> None:
        self.name, self._deployment, self._vocabulary = name, deployment, vocabulary
        self._numbering, self._motion, self._counts = numbering, motion, counts
        self._dispatcher, self._signer, self._day = dispatcher, signer, day
        self._subscriptions = SubscriptionTable(vocabulary)
        self._objected: OrderedDict[GroupId, int] = OrderedDict()
        """Groups to whose producers an objection was sent, and the time until which none is sent again."""
        self._groups = MembershipTable(max_groups=deployment.max_groups, counts=counts)

    # -- what its application wants --------------------------------------------------------------------------------

    def subscribe(self, subscription: NearbySubscription) -> None:
        """Receive the events of a type from now on, in every area that this node enters."""
        self._subscriptions.add(subscription)

    def unsubscribe(self, subject: str, name: str = "", *, now: int) -> list[Output]:
        """Remove a subscription; with the last one to *subject* its groups are left."""
        self._subscriptions.remove(subject, name)
        if subject in self._subscriptions:
            return []
        done: list[Output] = []
        for group, found in list(self._groups.active.items()):
            if group.subject == subject:
                if found.is_joined and found.beacon is not None and is_inside(found.beacon.area, self._motion.place):
                    done.append(self._join(found, found.beacon, is_leaving=True, now=now))
                done += self._leave(group, found)
        return done

    def take(self, *, now: int) -> tuple[Deliver | None, list[Output]]:
        """Return the next event for the application, and notes of the events that expired before it."""
        waiting, expired = self._dispatcher.take(now=now)
        notes: list[Output] = [self._expire(each.event) for each in expired]
        if waiting is None:
            return None, notes
        self._counts["delivered"] += 1
        found = Deliver(
            event=waiting.event,
            subscriptions=waiting.subscriptions,
            attributes=waiting.attributes,
            left_us=waiting.dies_at - now,
            is_age_known=waiting.is_age_known,
        )
        return found, notes

    def subscribes(self, subject: str) -> bool:
        """Return whether there is a subscription to *subject*."""
        return subject in self._subscriptions

    def memberships(self) -> dict[GroupId, Membership]:
        """Return the groups of which this node is a member."""
        return {group: found for group, found in self._groups.active.items() if found.is_joined}

    # -- what happens ----------------------------------------------------------------------------------------------

    def move(self) -> list[Output]:
        """Leave the groups whose areas do not contain this node any more."""
        place = self._motion.place
        done: list[Output] = []
        for group, found in list(self._groups.active.items()):
            if found.beacon is not None and not is_inside(found.beacon.area, place):
                done += self._leave(group, found)
        return done

    def wants(self, event: Event) -> bool:
        """Return whether *event* has a subscribed subject and is new here."""
        if event.subject not in self._subscriptions:
            return False
        found = self._groups.known.get(event.group)
        return (
            found is None
            or event.epoch > found.epoch
            or (event.epoch == found.epoch and event.number not in found.seen)
        )

    def hear_again(self, frame: Flooded, *, now: int) -> None:
        """Handle a copy of a known frame: its sender is a neighbour that has it."""
        found = self._groups.active.get(frame.group)
        if found is not None:
            found.hear(frame.sender, now=now)
            if isinstance(frame, Beacon) and found.beacon is not None and frame.seq == found.beacon.seq:
                found.taken_hops = min(found.taken_hops, max(0, frame.max_hops - frame.hops))

    def knows_later(self, beacon: Beacon, *, now: int) -> bool:
        """Return whether a later announcement than *beacon*'s is known, and has lapsed.

        Until it has lapsed, a beacon of a former announcement is only late.
        """
        found = self._groups.known.get(beacon.group)
        return found is not None and beacon.epoch < found.epoch and found.lapses_at <= now

    def object_to(self, beacon: Beacon, kind: NoteKind, *, seconds: float | None = None, now: int) -> list[Output]:
        """Report the reason for which *beacon* is refused, and send an objection; each once in three periods."""
        group = beacon.group
        if group.subject not in self._subscriptions or self._objected.get(group, 0) > now:
            return []
        self._objected[group] = now + self._deployment.silence_us
        self._objected.move_to_end(group)
        if len(self._objected) > self._deployment.max_groups:
            self._objected.popitem(last=False)
        known = self._groups.known.get(group)
        objection = Objection(
            sender=self.name,
            to=beacon.origin,
            area=beacon.area,
            subject=beacon.subject,
            clock_us=max(0, self._day.at(now) or 0) if kind is NoteKind.CLOCKS_DIFFER else 0,
            epoch=known.epoch if kind is NoteKind.EARLIER and known is not None else 0,
        )
        return [Note(kind=kind, group=group, member=beacon.origin, seconds=seconds), Send(objection)]

    def knows(self, group: GroupId) -> bool:
        """Return whether this node is a member of *group*, or still requests its events."""
        return group in self._groups.active

    def pass_by(self, frame: Beacon | Event, *, now: int) -> list[Output]:
        """Handle a frame of an active group that is not for this node: its area, or its producer, has moved away."""
        group, found = frame.group, self._groups.active[frame.group]
        if found.epoch != frame.epoch or found.key != frame.key:
            return []
        if isinstance(frame, Beacon):
            if found.beacon is not None and frame.seq <= found.beacon.seq:
                return []
            found.beacon = frame
            return self._leave(group, found)
        if frame.number in found.seen:
            return []
        skipped = found.know(frame.number, deployment=self._deployment, lasts_us=frame.remaining_us, now=now)
        found.settle(frame.number)
        self._groups.rest(group)
        return [*_report_missed(group, skipped), Note(kind=NoteKind.PASSED_BY, group=group, number=frame.number)]

    def receive_beacon(self, beacon: Beacon, *, now: int) -> list[Output]:
        """Handle a new beacon inside its area: join the group, or stay a member."""
        group = beacon.group
        if not self._subscriptions.admits(beacon.subject, beacon.place):
            return self.pass_by(beacon, now=now) if self.knows(group) else []
        if beacon.cell_m != self._deployment.cell_m:
            return [Note(kind=NoteKind.MISMATCHED, group=group, member=beacon.origin)]
        if self._vocabulary.contradicts(beacon.subject, beacon.fingerprint):
            return [Note(kind=NoteKind.CONTRADICTED, group=group, member=beacon.origin)]
        if beacon.key is not None and self._signer is None:
            return [Note(kind=NoteKind.NO_KEY, group=group, member=beacon.origin)]
        found, lost = self._groups.find(beacon)
        if found is None:
            return []
        if found.beacon is not None and beacon.seq <= found.beacon.seq:
            self._counts["stale beacons"] += 1
            return []
        found.beacon = beacon
        found.taken_hops = max(0, beacon.max_hops - beacon.hops)
        found.hear(beacon.sender, now=now)
        done = _report_missed(group, lost)
        if beacon.lifetime_us == 0:
            return [*done, *self._lapse(group, found, NoteKind.LEFT)]
        if not found.is_joined:
            done += self._enter(group, found, beacon, now=now)
        found.lapses_at = now + min(beacon.lifetime_us, self._deployment.silence_us)
        if beacon.members is not None:
            found.view = frozenset(beacon.members)
        skipped, is_expired = found.learn(beacon, deployment=self._deployment, now=now)
        done += _report_missed(group, skipped)
        return [*done, Note(kind=NoteKind.EXPIRED, group=group, number=beacon.latest)] if is_expired else done

    def _enter(self, group: GroupId, found: Membership, beacon: Beacon, *, now: int) -> list[Output]:
        # An event that would expire before it could be requested counts as published before the join.
        cut_off = found.begin(beacon.latest, is_good=beacon.latest_us > self._deployment.repair_us)
        self._groups.active[group] = found
        # Spread the joins of the nodes that heard the same beacon.
        found.join_at = now + member_hash(self.name) % self._deployment.slots * self._deployment.slot_us
        return [*_report_missed(group, cut_off), Note(kind=NoteKind.JOINED, group=group)]

    def receive_event(self, event: Event, *, now: int) -> list[Output]:
        """Handle an event inside its area that this consumer ``wants``."""
        group, place = event.group, event.place
        if not self._subscriptions.admits(event.subject, place):
            return self.pass_by(event, now=now) if self.knows(group) else []
        found, lost = self._groups.find(event)
        if found is None:
            return []
        found.hear(event.sender, now=now)
        done = _report_missed(group, lost)
        if found.is_active:
            lasts_us = event.deadline_us if found.beacon is None else found.beacon.max_remaining_us
            skipped = found.know(event.number, deployment=self._deployment, lasts_us=lasts_us, now=now)
            done += _report_missed(group, skipped)
        if not found.settle(event.number):
            return done
        self._groups.rest(group)
        try:
            attributes = self._vocabulary[event.subject].check(event.attributes)
        except InvalidValueError:
            return [*done, Note(kind=NoteKind.UNFIT, group=group, number=event.number)]
        dies_at = now + event.remaining_us - travel_us(event, deployment=self._deployment)
        if dies_at <= now:
            return [*done, self._expire(event)]
        done.append(Note(kind=NoteKind.PROPAGATED, group=group, number=event.number))
        seen = self._motion.attributes_seen_from(attributes, place)
        names, asked = self._subscriptions.select(event, seen)
        self._counts["filters asked"] += asked
        if not names:
            return [*done, Note(kind=NoteKind.DISCARDED, group=group, number=event.number)]
        dropped = self._dispatcher.add(
            event,
            subscriptions=names,
            attributes=seen,
            dies_at=dies_at,
            now=now,
            is_age_known=event.key is not None and self._day.at(now) is not None,
        )
        if dropped is not None:
            done.append(Note(kind=NoteKind.DROPPED, group=dropped.event.group, number=dropped.event.number))
        return done

    def _expire(self, event: Event) -> Note:
        found = self._groups.known.get(event.group)
        if found is not None and found.epoch == event.epoch:
            found.expired += 1  # the next join reports it to the producer
        return Note(kind=NoteKind.EXPIRED, group=event.group, number=event.number)

    # -- memberships -----------------------------------------------------------------------------------------------

    def _leave(self, group: GroupId, found: Membership) -> list[Output]:
        """Leave an active group: end the membership, and the requests for missing events."""
        found.leave()
        del self._groups.active[group]
        return [Note(kind=NoteKind.LEFT, group=group)]

    def _lapse(self, group: GroupId, found: Membership, kind: NoteKind) -> list[Output]:
        was_joined = found.is_joined
        if was_joined:
            found.lapse()
        self._groups.rest(group)
        return [Note(kind=kind, group=group)] if was_joined else []

    @property
    def next_due(self) -> int | None:
        """Time at which ``timer`` should be called."""
        due = min((found.next_due for found in self._groups.active.values()), default=INT64_MAX)
        return None if due == INT64_MAX else due

    def timer(self, *, now: int) -> list[Output]:
        """Repeat joins, request missing events, and end memberships in groups whose producer is silent."""
        done: list[Output] = []
        place = self._motion.place
        for group, found in list(self._groups.active.items()):
            if found.next_due > now:
                continue
            if found.is_joined and found.lapses_at <= now:
                done += self._lapse(group, found, NoteKind.LAPSED)
            done += self._ask(group, found, place, now=now)
            if found.is_joined and found.join_at <= now and found.beacon is not None:
                found.join_at = max(found.join_at + self._deployment.period_us, now + 1)
                if is_inside(found.beacon.area, place):
                    done.append(self._join(found, found.beacon, now=now))
            self._groups.rest(group)
        return done

    def _ask(self, group: GroupId, found: Membership, place: Place | None, *, now: int) -> list[Output]:
        requests, vain = found.requests(self.name, group, deployment=self._deployment, now=now)
        done: list[Output] = [Note(kind=NoteKind.MISSED, group=group, number=number) for number in vain]
        if found.beacon is None or not is_inside(found.beacon.area, place):
            return done
        self._counts["requests"] += len(requests)
        return [*done, *(Send(self._sign(each, found.key, now=now)) for each in requests)]

    def _join(self, found: Membership, beacon: Beacon, *, now: int, is_leaving: bool = False) -> Send:
        seq = self._numbering.take()
        join = found.join(self.name, beacon, seq=seq, deployment=self._deployment, is_leaving=is_leaving)
        return Send(self._sign(join, beacon.key, now=now))

    def _sign(self, frame: _Own, producers_key: bytes | None, *, now: int) -> _Own:
        """Return *frame*, signed if its group's producer signs."""
        if producers_key is None or self._signer is None:
            return frame
        return self._signer.sign(frame, issued_at=self._day.at(now))


def _report_missed(group: GroupId, count: int) -> list[Output]:
    """Report *count* events that are missed without a request."""
    return [Note(kind=NoteKind.MISSED, group=group, count=count)] if count else []
