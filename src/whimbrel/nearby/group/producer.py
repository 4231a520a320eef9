"""The producer: announces subjects with their areas, knows its members, publishes to the group (4.2, 4.3; T5, T16).

Rule: publishing takes one lookup by subject, however many members there are. Where nobody is in the view, nothing is
transmitted; the latest event is kept for members that come while it is good.
Rule: the view is made of joins. A member that is silent for three periods is out; one that is heard again is back.
Rule: a beacon tells the digest of the view, and lists the members for three periods after a change.
Rule: a producer transmits inside its own area only.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from whimbrel.errors import InvalidInputError, InvalidValueError
from whimbrel.model.bounds import flag, whole
from whimbrel.model.place import Area, Place
from whimbrel.nearby.cells import check_radius
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.signatures import Signer
from whimbrel.nearby.frames.values import Beacon, Event, GroupId, Join
from whimbrel.nearby.frames.wire import MAX_DURATION_US, encode
from whimbrel.nearby.group.numbers import Numbering
from whimbrel.nearby.group.outputs import Note, NoteKind, Output, Send
from whimbrel.nearby.group.relay import Relay, is_inside
from whimbrel.nearby.group.view import View, member_hash
from whimbrel.nearby.prediction import Prediction
from whimbrel.nearby.vocabulary import EventType, Vocabulary

__all__ = ["NoFixError", "NotAnnouncedError", "Producer"]

_REMEMBERED_DEPARTURES = 4_096


class NoFixError(InvalidInputError):
    """The place of this node is not known. Reaction: wait for a fix."""

    def __str__(self) -> str:
        return "this node has no fix: an area needs the place of its producer"


class NotAnnouncedError(InvalidInputError):
    """An event is of a type that its producer has not announced."""

    def __init__(self, subject: str) -> None:
        super().__init__(subject)
        self.subject = subject

    def __str__(self) -> str:
        return f"events of type {self.subject!r} are not announced here; announce them first"


@dataclass(slots=True, kw_only=True)
class _Announcement:
    """One announced subject."""

    type: EventType
    area: Area
    moves: bool
    epoch: int
    hops: int
    deadline_us: int
    prediction: Prediction
    ends_at: int | None
    beacon_at: int
    number: int = 0
    latest_dies_at: int = 0
    view: View = field(default_factory=View)
    departed: OrderedDict[str, None] = field(default_factory=OrderedDict)
    listed_until: int = 0


class Producer:
    """What one node announces."""

    def __init__(
        self,
        name: str,
        *,
        deployment: Deployment,
        vocabulary: Vocabulary,
        numbering: Numbering,
        relay: Relay,
        signer: Signer | None,
        counts: Counter[str],
    ) -> None:
        self.name, self._deployment, self._vocabulary = name, deployment, vocabulary
        self._numbering, self._relay, self._signer, self._counts = numbering, relay, signer, counts
        self._announced: dict[str, _Announcement] = {}

    # -- what its application wants --------------------------------------------------------------------------------

    def announce(
        self,
        subject: str,
        *,
        area: Area,
        moves: bool,
        prediction: Prediction,
        deadline_us: int,
        lifetime_us: int | None,
        place: Place | None,
        now: int,
    ) -> list[Output]:
        """Begin to announce *subject* in *area*; the first beacon leaves at once."""
        kind = self._vocabulary[subject]
        whole("hops", prediction.hops, 0, self._deployment.max_hops)
        whole("deadline_us", deadline_us, 1, MAX_DURATION_US)
        if lifetime_us is not None:
            whole("lifetime_us", lifetime_us, 1, MAX_DURATION_US)
        flag("moves", moves)
        check_radius(area, deployment=self._deployment)
        prediction.check(deadline_us)
        if place is None:
            raise NoFixError
        if not is_inside(area, place):
            raise InvalidValueError("area of an announcement", str(area), f"one around the producer at {place}")
        self._announced[subject] = _Announcement(
            type=kind,
            area=area,
            moves=moves,
            epoch=self._numbering.take(),
            hops=prediction.hops,
            deadline_us=deadline_us,
            prediction=prediction,
            ends_at=None if lifetime_us is None else now + lifetime_us,
            beacon_at=now,
        )
        return self.timer(place=place, now=now)

    def unannounce(self, subject: str, *, place: Place | None, now: int) -> list[Output]:
        """Stop announcing *subject*; a last beacon tells the members."""
        found = self._find(subject)
        del self._announced[subject]
        if not is_inside(found.area, place):
            return []
        return [Send(self._beacon(found, lifetime_us=0, now=now))]

    def publish(
        self,
        subject: str,
        values: Mapping[str, object],
        *,
        deadline_us: int | None = None,
        place: Place | None,
        now: int,
    ) -> tuple[Event, list[Output]]:
        """Publish an event; its deadline is that of the announcement unless it has a shorter one."""
        found = self._find(subject)
        attributes = found.type.check(values)
        if deadline_us is None:
            deadline_us = found.deadline_us
        whole("deadline_us", deadline_us, 1, found.deadline_us)
        found.prediction.check(deadline_us)
        if place is None:
            raise NoFixError
        if not is_inside(found.area, place):
            raise InvalidValueError("place of the producer", str(place), f"inside its own area, {found.area}")
        event = Event(
            origin=self.name,
            seq=self._numbering.take(),
            sender=self.name,
            hops=found.hops,
            subject=subject,
            area=found.area,
            epoch=found.epoch,
            number=found.number + 1,
            deadline_us=deadline_us,
            remaining_us=deadline_us,
            attributes=attributes,
        )
        event = self._signer.sign(event) if self._signer else event
        size, most = len(encode(event)), self._deployment.max_frame_bytes
        if size > most:
            raise InvalidValueError("event", f"{size} bytes", f"at most {most} bytes in one frame")
        found.number += 1
        found.latest_dies_at = now + deadline_us
        self._relay.keep(event, dies_at=found.latest_dies_at, now=now)
        if not found.view:
            return event, [Note(kind=NoteKind.UNHEARD, group=event.group, number=event.number)]
        return event, [Send(event)]

    def announces(self, subject: str) -> bool:
        """Tell whether *subject* is announced here."""
        return subject in self._announced

    def members(self, subject: str) -> View:
        """Return who is in the group of *subject*: one lookup (Figure 3b)."""
        return self._find(subject).view

    def prediction(self, subject: str) -> Prediction:
        """Return what was promised when *subject* was announced."""
        return self._find(subject).prediction

    def _find(self, subject: str) -> _Announcement:
        found = self._announced.get(subject)
        if found is None:
            raise NotAnnouncedError(subject)
        return found

    # -- what happens ----------------------------------------------------------------------------------------------

    def move(self, place: Place | None) -> None:
        """Take the areas that move along with this node."""
        if place is not None:
            for found in self._announced.values():
                if found.moves:
                    found.area = Area(place, found.area.radius_m)

    def receive(self, join: Join, *, now: int) -> list[Output]:
        """Take a join of one of this producer's groups."""
        found = self._announced.get(join.subject)
        if found is None or join.producer != self.name or join.epoch != found.epoch:
            return []
        group, member = join.group, found.view.get(join.origin)
        if member is not None and join.seq <= member.seq:
            self._counts["stale joins"] += 1
            return []
        if join.is_leaving:
            if found.view.remove(join.origin) is None:
                return []
            return [self._note(NoteKind.MEMBER_LEFT, found, group, join.origin, now=now)]
        notes: list[Output] = []
        if member is None:
            if len(found.view) >= self._deployment.max_members:
                self._counts["view full"] += 1
                return []
            member = found.view.add(join, now=now)
            member.expired, member.missed = join.expired, join.missed
            is_back = join.origin in found.departed
            found.departed.pop(join.origin, None)
            kind = NoteKind.MEMBER_RETURNED if is_back else NoteKind.MEMBER_JOINED
            notes.append(self._note(kind, found, group, join.origin, now=now))
        found.view.hear(join.origin, now=now)
        if join.wants_view:
            found.listed_until = max(found.listed_until, now + self._deployment.period_us)
        for kind, more in (
            (NoteKind.MEMBER_EXPIRED, join.expired - member.expired),
            (NoteKind.MEMBER_MISSED, join.missed - member.missed),
        ):
            if more > 0:
                notes.append(Note(kind=kind, group=group, member=join.origin, count=more))
        member.seq, member.accounted = join.seq, join.accounted
        member.expired, member.missed = join.expired, join.missed
        return notes

    def _note(
        self, kind: NoteKind, found: _Announcement, group: GroupId, member: str, *, now: int, count: int = 1
    ) -> Note:
        """Report a change of the view, which beacons then list for a while."""
        found.listed_until = max(found.listed_until, now + self._deployment.silence_us)
        return Note(kind=kind, group=group, member=member, count=count)

    @property
    def next_due(self) -> int | None:
        """When ``timer`` should be called."""
        return min((found.beacon_at for found in self._announced.values()), default=None)

    def timer(self, *, place: Place | None, now: int) -> list[Output]:
        """Send the beacons that are due; silent members are out first."""
        done: list[Output] = []
        for subject, found in list(self._announced.items()):
            if found.beacon_at > now:
                continue
            if found.ends_at is not None and found.ends_at <= now:
                done += self.unannounce(subject, place=place, now=now)
                continue
            group = GroupId(self.name, subject)
            for node, member in found.view.remove_silent(since=now - self._deployment.silence_us):
                found.departed[node] = None
                while len(found.departed) > _REMEMBERED_DEPARTURES:
                    found.departed.popitem(last=False)
                unaccounted = max(0, found.number - member.accounted)
                done.append(self._note(NoteKind.MEMBER_SILENT, found, group, node, count=unaccounted, now=now))
            # The next beacon is a period after this one was due, unless the node slept through it.
            found.beacon_at = max(found.beacon_at + self._deployment.period_us, now + 1)
            if found.ends_at is not None:
                found.beacon_at = min(found.beacon_at, found.ends_at)
            if not is_inside(found.area, place):
                done.append(Note(kind=NoteKind.OUTSIDE, group=group))
                continue
            lifetime_us = self._deployment.silence_us
            if found.ends_at is not None:
                lifetime_us = min(lifetime_us, found.ends_at - now)
            done.append(Send(self._beacon(found, lifetime_us=lifetime_us, now=now)))
        return done

    def _beacon(self, found: _Announcement, *, lifetime_us: int, now: int) -> Beacon:
        is_listed = now < found.listed_until and len(found.view) <= self._deployment.max_listed
        beacon = Beacon(
            origin=self.name,
            seq=self._numbering.take(),
            sender=self.name,
            hops=found.hops,
            subject=found.type.name,
            area=found.area,
            moves=found.moves,
            epoch=found.epoch,
            lifetime_us=lifetime_us,
            max_hops=found.hops,
            max_remaining_us=found.deadline_us,
            latest=found.number,
            latest_us=max(0, found.latest_dies_at - now),
            cell_m=self._deployment.cell_m,
            fingerprint=found.type.fingerprint,
            view=found.view.digest,
            members=tuple(sorted(map(member_hash, found.view))) if is_listed else None,
        )
        return self._signer.sign(beacon) if self._signer else beacon
