"""A node: producer, consumer and relay in one core, with the checks of every received frame.

Rule: a frame's area is checked against this node's own place first. A frame from outside, with an area larger than the
deployment allows, or without a believed signature where one is required, only changes a count. So does a frame beyond
the rate limit of its sender, and a join of a group that is not believed.
Rule: time is the time elapsed on this node. A clock that is set back reverts nothing and delays nothing; one that jumps
ahead lets things expire, which is counted like any other expiry.
Rule: outputs are performed in order; after each input the shell reads ``next_due`` again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping

from whimbrel.errors import InvalidValueError
from whimbrel.model.clock import US_PER_S
from whimbrel.model.notification import NotificationId
from whimbrel.model.place import Area, Place
from whimbrel.nearby.cells import MAX_CELLS, cover
from whimbrel.nearby.datagrams import travel_us
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.dispatcher import Dispatcher
from whimbrel.nearby.frames.signatures import Signer
from whimbrel.nearby.frames.values import Asked, Beacon, Event, Flooded, Frame, GroupId, Join, Objection
from whimbrel.nearby.group.consumer import Consumer
from whimbrel.nearby.group.membership import Membership
from whimbrel.nearby.group.numbers import Numbering
from whimbrel.nearby.group.outputs import Deliver, Note, NoteKind, Output, Send
from whimbrel.nearby.group.producer import NoFixError, Producer
from whimbrel.nearby.group.rates import SenderRates
from whimbrel.nearby.group.relay import Relay, is_inside
from whimbrel.nearby.group.subscriptions import NearbySubscription
from whimbrel.nearby.group.trust import TimeOfDay, Trust, Verdict
from whimbrel.nearby.group.view import MemberView
from whimbrel.nearby.motion import Motion
from whimbrel.nearby.prediction import LatencyBounds, Prediction
from whimbrel.nearby.vocabulary import Vocabulary

__all__ = ["Node"]

_TIMED_SENDS = 64


class Node:
    """One node of a deployment; *first_seq* must be above every seq that a former run of it gave out.

    *signer* signs this node's beacons and events, *member_signer* (default: the same) its joins and requests in groups
    whose producers sign. *trusted* has the trusted public keys, each with its time of expiry or None; without it a node
    believes every frame that is unsigned or validly signed.
    """

    def __init__(
        self,
        name: str,
        *,
        vocabulary: Vocabulary,
        deployment: Deployment | None = None,
        first_seq: int = 0,
        relays: bool = True,
        signer: Signer | None = None,
        member_signer: Signer | None = None,
        trusted: Mapping[bytes, int | None] | None = None,
        by_deadline: bool = True,
        percentile: float = 99.9,
    ) -> None:
        self.name = NotificationId(name, 0).node
        self.vocabulary = vocabulary
        self.deployment = deployment or Deployment()
        self.counts: Counter[str] = Counter()
        self.motion = Motion(max_speed_m_s=self.deployment.max_speed_m_s)
        self.bounds = LatencyBounds(self.deployment, percentile=percentile)
        self._reported: dict[tuple[str, NoteKind], int] = {}
        """Reported objections to own announcements, and the time until which they are not reported again."""
        self._day = TimeOfDay()
        self._trust = Trust(trusted, deployment=self.deployment, day=self._day)
        period_us, most = self.deployment.period_us, self.deployment.max_origins
        self._rates = {
            is_event: SenderRates(frames=frames, period_us=period_us, max_senders=most)
            for is_event, frames in (
                (False, self.deployment.max_sender_frames),
                (True, self.deployment.max_sender_events),
            )
        }
        self._now: int | None = None
        self._set_back = 0
        """Total time by which the clock was set back so far."""
        self._due: int | None = None
        self._is_due_known = False
        """Whether ``_due`` is valid: most frames are duplicates or from outside, and change no timer."""
        self._timed: OrderedDict[tuple[str, int], tuple[int, int]] = OrderedDict()
        """Time and hops of frames transmitted here: a neighbour's repetition measures the duration of one hop."""
        self._relay = Relay(name, deployment=self.deployment, is_repeating=relays, counts=self.counts)
        numbering = Numbering(first_seq)
        self._producer = Producer(
            name,
            deployment=self.deployment,
            vocabulary=vocabulary,
            numbering=numbering,
            relay=self._relay,
            signer=signer,
            day=self._day,
            counts=self.counts,
        )
        self._consumer = Consumer(
            name,
            deployment=self.deployment,
            vocabulary=vocabulary,
            numbering=numbering,
            motion=self.motion,
            dispatcher=Dispatcher(max_waiting=self.deployment.max_waiting, by_deadline=by_deadline),
            signer=member_signer or signer,
            day=self._day,
            counts=self.counts,
        )

    # -- what its application wants --------------------------------------------------------------------------------

    def announce(
        self,
        subject: str,
        *,
        radius_m: float,
        deadline_us: int,
        now: int,
        hops: int = 0,
        moves: bool = False,
        centre: Place | None = None,
        lifetime_us: int | None = None,
    ) -> tuple[Prediction, list[Output]]:
        """Announce *subject* around this node, or around *centre*; return the latency bound of its events, and outputs.

        An area that moves is centred on its producer: any other centre would change sides with the producer's turns.
        """
        now = self._elapse(now)
        if self.motion.place is None:
            raise NoFixError
        if moves and centre is not None:
            raise InvalidValueError("centre of an area that moves", str(centre), "none: it is where its producer is")
        area = Area(centre or self.motion.place, radius_m)
        steps = self.vocabulary[subject].max_filter_steps
        prediction = self._predict(area, hops=hops, moves=moves, steps=steps)
        outputs = self._producer.announce(
            subject,
            area=area,
            moves=moves,
            prediction=prediction,
            deadline_us=deadline_us,
            lifetime_us=lifetime_us,
            place=self.motion.place,
            now=now,
        )
        return prediction, self._timed_sends(outputs, now)

    def _predict(self, area: Area, *, hops: int, moves: bool, steps: int) -> Prediction:
        """Return the latency bound of events in *area*; a moving area may touch ``MAX_CELLS`` cells."""
        cells = MAX_CELLS if moves else len(cover(area, deployment=self.deployment))
        return self.bounds.predict(hops, cells=cells, steps=steps)

    def predict(self, subject: str) -> Prediction:
        """Return the latency bound of the announced *subject* from the current measurements."""
        found = self._producer.announcement(subject)
        steps = found.type.max_filter_steps
        return self._predict(found.area, hops=found.hops, moves=found.moves, steps=steps)

    def unannounce(self, subject: str, *, now: int) -> list[Output]:
        """End the announcement of *subject*."""
        return self._producer.unannounce(subject, place=self.motion.place, now=self._elapse(now))

    def publish(
        self, subject: str, values: Mapping[str, object], *, now: int, deadline_us: int | None = None
    ) -> tuple[Event, list[Output]]:
        """Publish an event of an announced subject."""
        now = self._elapse(now)
        place = self.motion.place
        event, outputs = self._producer.publish(subject, values, deadline_us=deadline_us, place=place, now=now)
        return event, self._timed_sends(outputs, now)

    def subscribe(self, subscription: NearbySubscription) -> None:
        """Receive the events of a type in every area that this node enters."""
        self._consumer.subscribe(subscription)

    def unsubscribe(self, subject: str, name: str = "", *, now: int) -> list[Output]:
        """Remove a subscription."""
        return self._consumer.unsubscribe(subject, name, now=self._elapse(now))

    def take(self, *, now: int) -> tuple[Deliver | None, list[Output]]:
        """Return the next event for the application, the earliest deadline first, and notes of expired ones."""
        return self._consumer.take(now=self._elapse(now, changes_nothing=True))

    def members(self, subject: str) -> MemberView:
        """Return the members of this producer's group of *subject*."""
        return self._producer.members(subject)

    def announces(self, subject: str) -> bool:
        """Return whether this node announces *subject*."""
        return self._producer.announces(subject)

    def subscribes(self, subject: str) -> bool:
        """Return whether a subscription of this node matches events of *subject* (its subject filter)."""
        return self._consumer.subscribes(subject)

    def memberships(self) -> dict[GroupId, Membership]:
        """Return the groups of which this node is a member."""
        return self._consumer.memberships()

    # -- what happens ----------------------------------------------------------------------------------------------

    def move(self, place: Place | None, *, now: int) -> list[Output]:
        """Apply a fix; ``None`` if the place is unknown now."""
        self.motion.move(place, now=self._elapse(now))
        self._producer.move(place)
        return self._consumer.move()

    def set_clock(self, utc: int | None, *, now: int) -> None:
        """Set the time of day, in microseconds UTC; ``None`` while this node's clock is not set."""
        self._day.tell(utc, now=self._elapse(now, changes_nothing=True))

    def receive(self, frame: Frame, *, now: int, source: str | None = None) -> list[Output]:
        """Handle a received frame; return the outputs.

        *source* is the network address of the transmitter. Rates are limited by it, or without it by the sender's name.
        """
        now = self._elapse(now, changes_nothing=True)
        source = frame.sender if source is None else source
        if isinstance(frame, Asked):
            return self._take_own(frame, source, now)
        if frame.area.radius_m > self.deployment.max_radius_m:
            self.counts["areas too large"] += 1
            return []
        if frame.max_hops > self.deployment.max_hops:
            self.counts["too many hops"] += 1
            return []
        if not is_inside(frame.area, self.motion.place):
            self.counts["outside"] += 1
            if isinstance(frame, Join) or not self._consumer.knows(frame.group):
                return []
            if not self._is_within_rate(frame, source, now):  # before its signature is verified, which takes time
                return []
            if self._trust.judge(frame, now=now) is not Verdict.BELIEVED:
                return []
            self._is_due_known = False
            return self._consumer.pass_by(frame, now=now)
        self._measure_hop(frame, now)
        if self.name in {frame.origin, frame.sender}:
            return []
        is_new = self._relay.is_new(frame)
        is_wanted = isinstance(frame, Event) and self._consumer.wants(frame)
        if not (is_new or is_wanted):
            if isinstance(frame, Beacon) and self._consumer.knows_later(frame, now=now):
                return self._object_to_epoch(frame, now) if self._is_within_rate(frame, source, now) else []
            self.counts["duplicates"] += 1
            self._consumer.hear_again(frame, now=now)
            return []
        if not self._is_within_rate(frame, source, now):
            return []
        if isinstance(frame, Join):
            if not self._is_join_believed(frame, now):
                self.counts["joins not believed"] += 1
                return []
        else:
            verdict = self._trust.judge(frame, now=now)
            if verdict is not Verdict.BELIEVED:
                return self._disbelieve(frame, verdict, now)
        self._is_due_known = False
        if is_new:
            self._relay.receive(frame, now=now)
        return self._accept(frame, is_wanted=is_wanted, now=now)

    def _accept(self, frame: Flooded, *, is_wanted: bool, now: int) -> list[Output]:
        match frame:
            case Join():
                if frame.producer == self.name:
                    return self._producer.receive(frame, now=now)
                self._consumer.hear_again(frame, now=now)
                return []
            case Beacon():
                if self._consumer.knows_later(frame, now=now):
                    return self._object_to_epoch(frame, now)
                self._relay.believe(frame, now=now)
                if self.announces(frame.subject) and self.vocabulary.contradicts(frame.subject, frame.fingerprint):
                    return [Note(kind=NoteKind.CONTRADICTED, group=frame.group, member=frame.origin)]
                aged = self._relay.age(frame, 0)
                assert isinstance(aged, Beacon)
                return self._consumer.receive_beacon(aged, now=now)
            case Event():
                dies_at = now + frame.remaining_us - travel_us(frame, deployment=self.deployment)
                self._relay.keep(frame, dies_at=dies_at, now=now)
                return self._consumer.receive_event(frame, now=now) if is_wanted else []

    def _is_within_rate(self, frame: Frame, source: str, now: int) -> bool:
        """Return whether the rate limit of *source* allows one more frame; a frame beyond it is counted."""
        is_admitted = self._rates[isinstance(frame, Event)].admits(source, now=now)
        self.counts["beyond the rate of a sender"] += not is_admitted
        return is_admitted

    def _take_own(self, frame: Asked, source: str, now: int) -> list[Output]:
        """Answer a request, or report an objection, if it is for this node."""
        place = self.motion.place
        if frame.to != self.name or not is_inside(frame.area, place):
            return []
        if not self._is_within_rate(frame, source, now):
            return []
        if isinstance(frame, Objection):
            return self._report(frame, now)
        is_members_own = self._trust.is_members_own(frame, now=now)
        return self._relay.answer(frame, is_members_own=is_members_own, place=place, now=now)

    def _report(self, objection: Objection, now: int) -> list[Output]:
        """Report a consumer's reason for refusing this producer's beacons."""
        standing, utc = self._producer.standing(objection.subject), self._day.at(now)
        if standing is None:
            return []
        kind, seconds = NoteKind.EARLIER, None
        if objection.epoch <= standing.epoch:
            if not objection.clock_us or utc is None:
                return []
            kind, seconds = NoteKind.CLOCKS_DIFFER, (objection.clock_us - utc) / US_PER_S
        self.counts["objections"] += 1
        if self._reported.get((objection.subject, kind), 0) > now:
            return []  # objections are unsigned: worth a line in the log now and then, and nothing else
        self._reported[objection.subject, kind] = now + self.deployment.silence_us
        return [Note(kind=kind, group=objection.group, member=objection.sender, seconds=seconds)]

    def _object_to_epoch(self, beacon: Beacon, now: int) -> list[Output]:
        self.counts["stale announcements"] += 1
        if self._trust.judge(beacon, now=now) is not Verdict.BELIEVED:
            return []
        return self._consumer.object_to(beacon, NoteKind.EARLIER, now=now)

    def _is_join_believed(self, join: Join, now: int) -> bool:
        """Return whether *join* is for a group that is believed here, and signed if that group's producer signs."""
        if join.producer == self.name:
            standing = self._producer.standing(join.subject)
        else:
            standing = self._relay.standing(join.group, now=now)
        if standing is None or not standing.admits(join):
            return False
        return standing.key is None or self._trust.is_members_own(join, now=now)

    def _disbelieve(self, frame: Beacon | Event, verdict: Verdict, now: int) -> list[Output]:
        """Count and report a frame that is not believed."""
        self.counts[verdict.value] += 1
        kinds = {Verdict.KEY_EXPIRED: NoteKind.KEY_EXPIRED, Verdict.UNTIMELY: NoteKind.CLOCKS_DIFFER}
        kind = kinds.get(verdict, NoteKind.UNBELIEVED)
        ahead_us = self._trust.ahead_us(frame, now=now) if verdict is Verdict.UNTIMELY else None
        seconds = None if ahead_us is None else ahead_us / US_PER_S
        if isinstance(frame, Beacon) and kind is NoteKind.CLOCKS_DIFFER:
            return self._consumer.object_to(frame, kind, seconds=seconds, now=now)
        return [Note(kind=kind, group=frame.group, member=frame.sender, seconds=seconds)]

    @property
    def next_due(self) -> int | None:
        """Time at which ``timer`` should be called, by this node's clock."""
        if not self._is_due_known:
            found = [self._producer.next_due, self._consumer.next_due, self._relay.next_due]
            self._due = min((each for each in found if each is not None), default=None)
            self._is_due_known = True
        return None if self._due is None else self._due - self._set_back

    def timer(self, *, now: int) -> list[Output]:
        """Perform due work: repetitions first, then joins and requests, then beacons."""
        now, place = self._elapse(now), self.motion.place
        outputs = self._relay.timer(place=place, now=now)
        outputs += self._consumer.timer(now=now)
        outputs += self._producer.timer(place=place, now=now)
        return self._timed_sends(outputs, now)

    @property
    def clock(self) -> int:
        """The last time passed to this node, by its own clock."""
        return self._now or 0

    # -- time --------------------------------------------------------------------------------------------------------

    def _elapse(self, now: int, *, changes_nothing: bool = False) -> int:
        """Return the elapsed (monotonic) time when the clock reads *now*."""
        self._is_due_known &= changes_nothing
        if self._now is not None and now < self._now:
            self._set_back += self._now - now
        self._now = now
        return now + self._set_back

    def _timed_sends(self, outputs: list[Output], now: int) -> list[Output]:
        for each in outputs:
            if isinstance(each, Send) and not isinstance(each.frame, Asked) and each.frame.hops:
                self._timed[each.frame.origin, each.frame.seq] = (now, each.frame.hops)
                if len(self._timed) > _TIMED_SENDS:
                    self._timed.popitem(last=False)
        return outputs

    def _measure_hop(self, frame: Flooded, now: int) -> None:
        sent = self._timed.get((frame.origin, frame.seq))
        if sent is not None and frame.hops == sent[1] - 1:
            self.bounds.add_hop(now - sent[0], cells=len(cover(frame.area, deployment=self.deployment)))
