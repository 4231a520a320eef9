"""An announcement: one subject of a producer, with its area, its numbers and its members (4.2, 4.3; T5, T16).

Rule: the view is built from joins. A member without a join for three periods is removed; a later join returns it.
Rule: a beacon has the digest of the view, and lists the members for three periods after a change.
Rule: a member is bound to the key that signed its first join, until it is removed.
Rule: a member's counts of expired and missed events are reported once, even if it was cut off meanwhile.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from whimbrel.model.place import Area, Place
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.values import Beacon, GroupId, Join
from whimbrel.nearby.group.outputs import Note, NoteKind, Output
from whimbrel.nearby.group.view import Member, MemberView, member_hash
from whimbrel.nearby.prediction import Prediction
from whimbrel.nearby.vocabulary import EventType

__all__ = ["Announcement"]

_REMEMBERED_DEPARTURES = 4_096


@dataclass(slots=True, kw_only=True)
class Announcement:
    """One announced subject, with its members."""

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
    view: MemberView = field(default_factory=MemberView)
    _departed: OrderedDict[str, Member] = field(default_factory=OrderedDict)
    """Members that timed out, with their last accounts."""
    _listed_until: int = 0

    # -- the view --------------------------------------------------------------------------------------------------

    def receive(self, join: Join, *, deployment: Deployment, counts: Counter[str], now: int) -> list[Output]:
        """Apply a join of this group."""
        group, member = join.group, self.view.get(join.origin)
        if member is not None and join.seq <= member.seq:
            counts["stale joins"] += 1
            return []
        if member is not None and member.key is not None and member.key != join.key:
            counts["another key"] += 1
            return []
        if join.is_leaving:
            if self.view.remove(join.origin) is None:
                return []
            return [self._change(NoteKind.MEMBER_LEFT, group, join.origin, deployment=deployment, now=now)]
        notes: list[Output] = []
        if member is None:
            if len(self.view) >= deployment.max_members:
                counts["view full"] += 1
                return []
            before = self._departed.pop(join.origin, None)
            if before is not None and before.key != join.key:
                before = None
            member = self.view.add(join, now=now)
            member.expired = join.expired if before is None else before.expired
            member.missed = join.missed if before is None else before.missed
            kind = NoteKind.MEMBER_JOINED if before is None else NoteKind.MEMBER_RETURNED
            notes.append(self._change(kind, group, join.origin, deployment=deployment, now=now))
        self.view.hear(join.origin, now=now)
        if join.wants_view:
            self._listed_until = max(self._listed_until, now + deployment.period_us)
        for kind, more in (
            (NoteKind.MEMBER_EXPIRED, join.expired - member.expired),
            (NoteKind.MEMBER_MISSED, join.missed - member.missed),
        ):
            if more > 0:
                notes.append(Note(kind=kind, group=group, member=join.origin, count=more))
        member.seq, member.key, member.accounted = join.seq, join.key, join.accounted
        member.expired, member.missed = join.expired, join.missed
        return notes

    def remove_silent(self, group: GroupId, *, deployment: Deployment, now: int) -> list[Output]:
        """Remove the members that were silent for too long."""
        done: list[Output] = []
        for node, member in self.view.remove_silent(since=now - deployment.silence_us):
            self._departed[node] = member
            while len(self._departed) > _REMEMBERED_DEPARTURES:
                self._departed.popitem(last=False)
            unaccounted = max(0, self.number - member.accounted)
            kind = NoteKind.MEMBER_SILENT
            done.append(self._change(kind, group, node, count=unaccounted, deployment=deployment, now=now))
        return done

    def _change(
        self, kind: NoteKind, group: GroupId, member: str, *, deployment: Deployment, now: int, count: int = 1
    ) -> Note:
        """Report a change of the view, which beacons then list for a while."""
        self._listed_until = max(self._listed_until, now + deployment.silence_us)
        return Note(kind=kind, group=group, member=member, count=count)

    # -- its beacon ------------------------------------------------------------------------------------------------

    def beacon(
        self, producer: str, *, place: Place, seq: int, lifetime_us: int, deployment: Deployment, now: int
    ) -> Beacon:
        """Return the beacon for the time *now*; the producer is at *place*."""
        is_listed = now < self._listed_until and len(self.view) <= deployment.max_listed
        return Beacon(
            origin=producer,
            seq=seq,
            sender=producer,
            hops=self.hops,
            subject=self.type.name,
            area=self.area,
            place=place,
            moves=self.moves,
            epoch=self.epoch,
            lifetime_us=lifetime_us,
            max_hops=self.hops,
            max_remaining_us=self.deadline_us,
            latest=self.number,
            latest_us=max(0, self.latest_dies_at - now),
            cell_m=deployment.cell_m,
            fingerprint=self.type.fingerprint,
            view=self.view.digest,
            members=tuple(sorted(map(member_hash, self.view))) if is_listed else None,
        )
