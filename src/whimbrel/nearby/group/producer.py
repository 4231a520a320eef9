"""The producer: announces subjects with their areas, tracks members, publishes to the group (4.2, 4.3; T5, T16).

Rule: publishing takes one lookup by subject, however many members there are. If the view is empty, nothing is
transmitted; the latest event is kept for members that join while it is valid.
Rule: a producer transmits inside its own area only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from whimbrel.errors import InvalidInputError, InvalidValueError, Phrase
from whimbrel.model.bounds import flag, whole
from whimbrel.model.place import Area, Place
from whimbrel.nearby.cells import check_radius
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.signatures import Signer
from whimbrel.nearby.frames.values import Beacon, Event, GroupId, Join
from whimbrel.nearby.frames.wire import MAX_DURATION_US, encode
from whimbrel.nearby.group.announcement import Announcement
from whimbrel.nearby.group.numbers import Numbering
from whimbrel.nearby.group.outputs import Note, NoteKind, Output, Send
from whimbrel.nearby.group.relay import GroupStanding, Relay, is_inside
from whimbrel.nearby.group.trust import TimeOfDay
from whimbrel.nearby.group.view import MemberView
from whimbrel.nearby.prediction import Prediction
from whimbrel.nearby.vocabulary import Vocabulary

__all__ = ["NoFixError", "NotAnnouncedError", "Producer"]


class NoFixError(InvalidInputError):
    """The place of this node is unknown. Reaction: wait for a fix."""

    def __str__(self) -> str:
        return "this node has no fix: an area needs the place of its producer"


class NotAnnouncedError(InvalidInputError):
    """An event is of a type that its producer has not announced."""

    def __init__(self, subject: str) -> None:
        super().__init__(subject)
        self.subject = subject

    def __str__(self) -> str:
        return f"events of type {self.subject!r} are not announced here; announce them first"


class Producer:
    """The announcements of one node."""

    def __init__(
        self,
        name: str,
        *,
        deployment: Deployment,
        vocabulary: Vocabulary,
        numbering: Numbering,
        relay: Relay,
        signer: Signer | None,
        day: TimeOfDay,
        counts: Counter[str],
    ) -> None:
        self.name, self._deployment, self._vocabulary = name, deployment, vocabulary
        self._numbering, self._relay, self._signer, self._counts = numbering, relay, signer, counts
        self._day = day
        self._announced: dict[str, Announcement] = {}

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
        """Start to announce *subject* in *area*; the first beacon is sent immediately."""
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
        self._announced[subject] = Announcement(
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
        found = self.announcement(subject)
        del self._announced[subject]
        if place is None or not is_inside(found.area, place):
            return []
        return [Send(self._beacon(found, place=place, lifetime_us=0, now=now))]

    def publish(
        self,
        subject: str,
        values: Mapping[str, object],
        *,
        deadline_us: int | None = None,
        place: Place | None,
        now: int,
    ) -> tuple[Event, list[Output]]:
        """Publish an event; the default of its deadline is the announcement's, which is also the longest allowed."""
        found = self.announcement(subject)
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
            max_hops=found.hops,
            subject=subject,
            area=found.area,
            place=place,
            epoch=found.epoch,
            number=found.number + 1,
            deadline_us=deadline_us,
            remaining_us=deadline_us,
            attributes=attributes,
        )
        event = self._signer.sign(event, issued_at=self._day.at(now)) if self._signer else event
        size, most = len(encode(event)), self._deployment.max_frame_bytes
        if size > most:
            raise InvalidValueError("event", Phrase(f"{size} bytes"), f"at most {most} bytes in one frame")
        found.number += 1
        found.latest_dies_at = now + deadline_us
        self._relay.keep(event, dies_at=found.latest_dies_at, now=now)
        if not found.view:
            return event, [Note(kind=NoteKind.UNHEARD, group=event.group, number=event.number)]
        return event, [Send(event)]

    def announces(self, subject: str) -> bool:
        """Return whether *subject* is announced here."""
        return subject in self._announced

    def standing(self, subject: str) -> GroupStanding | None:
        """Return the limits for joins of the group of *subject*, or ``None`` if it is not announced here."""
        found = self._announced.get(subject)
        if found is None:
            return None
        key = None if self._signer is None else self._signer.public
        return GroupStanding(epoch=found.epoch, key=key, max_hops=found.hops, radius_m=found.area.radius_m)

    def members(self, subject: str) -> MemberView:
        """Return the members of the group of *subject*: one lookup (Figure 3b)."""
        return self.announcement(subject).view

    def announcement(self, subject: str) -> Announcement:
        """Return the announcement of *subject*, or raise ``NotAnnouncedError``."""
        found = self._announced.get(subject)
        if found is None:
            raise NotAnnouncedError(subject)
        return found

    # -- what happens ----------------------------------------------------------------------------------------------

    def move(self, place: Place | None) -> None:
        """Move the areas that move with this node."""
        if place is not None:
            for found in self._announced.values():
                if found.moves:
                    found.area = Area(place, found.area.radius_m)

    def receive(self, join: Join, *, now: int) -> list[Output]:
        """Apply a join of one of this producer's groups."""
        found = self._announced.get(join.subject)
        if found is None or join.producer != self.name or join.epoch != found.epoch:
            return []
        return found.receive(join, deployment=self._deployment, counts=self._counts, now=now)

    @property
    def next_due(self) -> int | None:
        """Time at which ``timer`` should be called."""
        return min((found.beacon_at for found in self._announced.values()), default=None)

    def timer(self, *, place: Place | None, now: int) -> list[Output]:
        """Send the beacons that are due, after removing silent members."""
        done: list[Output] = []
        for subject, found in list(self._announced.items()):
            if found.beacon_at > now:
                continue
            if found.ends_at is not None and found.ends_at <= now:
                done += self.unannounce(subject, place=place, now=now)
                continue
            group = GroupId(self.name, subject)
            done += found.remove_silent(group, deployment=self._deployment, now=now)
            # The next beacon is a period after this one was due, unless the node slept through it.
            found.beacon_at = max(found.beacon_at + self._deployment.period_us, now + 1)
            if found.ends_at is not None:
                found.beacon_at = min(found.beacon_at, found.ends_at)
            if place is None or not is_inside(found.area, place):
                done.append(Note(kind=NoteKind.OUTSIDE, group=group))
                continue
            lifetime_us = self._deployment.silence_us
            if found.ends_at is not None:
                lifetime_us = min(lifetime_us, found.ends_at - now)
            done.append(Send(self._beacon(found, place=place, lifetime_us=lifetime_us, now=now)))
        return done

    def _beacon(self, found: Announcement, *, place: Place, lifetime_us: int, now: int) -> Beacon:
        beacon = found.beacon(
            self.name,
            place=place,
            seq=self._numbering.take(),
            lifetime_us=lifetime_us,
            deployment=self._deployment,
            now=now,
        )
        return self._signer.sign(beacon, issued_at=self._day.at(now)) if self._signer else beacon
