"""Random facts as a broker writes them: devices come and go, publish, choose policies, and leave wills.

The naive node is asked what is in flight, so that receipts and decisions are about copies that there are. Times move by
little, so that lapses and facts often fall on the same instant.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from naive_node import NaiveNode

from whimbrel.model.attributes import Attributes, Int64
from whimbrel.model.device import DeviceState, Display
from whimbrel.model.facts import (
    Decided,
    Fact,
    InterestChanged,
    Mode,
    Outcome,
    PolicyChange,
    PolicyChanged,
    PresenceChange,
    PresenceChanged,
    Receipt,
    Reported,
    SessionChange,
    SessionChanged,
    WillChange,
    WillChanged,
)
from whimbrel.model.notification import Notification, NotificationId
from whimbrel.model.place import Place
from whimbrel.model.subscription import InterestChange, Subscription, SubscriptionIdentity
from whimbrel.model.will import LastWill
from whimbrel.shape.faults import Fault

__all__ = ["DEVICES", "NODE", "POLICIES", "SUBJECTS", "USERS", "NodeTraffic"]

NODE = "n1"
DEVICES = ("a", "b", "c")
SUBJECTS = ("x/1", "x/2", "y")
POLICIES = ("low", "high")
USERS = (None, "alice", "bob")
_FILTERS = ("x/#", "x/1", "y", "#")
_BEGIN = 1_700_000_000_000_000
_WEEK_US = 7 * 24 * 3_600 * 1_000_000
_FAULTS = (Fault.VARIABLES.value, Fault.ATTRIBUTES.value, Fault.BODY_BYTES.value, Fault.SUSPENDED.value)


class NodeTraffic:
    """Facts of one node, drawn from a seed; *qos* is what every subscription asks for, if they all ask for the same."""

    def __init__(self, seed: int, *, qos: int | None = None) -> None:
        self.random, self.qos = Random(seed), qos
        self.naive = NaiveNode(NODE)
        self.now, self.seq = _BEGIN, 0
        self.facts: list[Fact] = []
        """Those of the last step."""
        self._steps: list[tuple[int, Callable[[], None]]] = [
            (6, self._publish),
            (6, self._acknowledge),
            (3, self._come),
            (2, self._go),
            (2, self._subscribe),
            (1, self._unsubscribe),
            (2, self._complete),
            (2, self._retain),
            (1, self._receive_retained),
            (1, self._put_policy),
            (2, self._choose),
            (5, self._decide),
            (2, self._report),
            (1, self._publish_will),
            (1, self._join_or_leave),
            (1, self._change_session),
            (1, self._change_receipts),
        ]

    def begin(self) -> None:
        """Let all devices come and subscribe, and two policies be there."""
        self.facts = []
        for device in DEVICES:
            self._come(device)
            self._subscribe()
        for name in POLICIES:
            self._put_policy(name)

    def copy_at_other_qos(self, device: str, *, sent: int, then: int) -> None:
        """Let a copy be sent at one QoS, the subscription be changed to another, and the copy be received at last."""
        session = f"$mqtt/{device}"
        self._presence(
            device, PresenceChange.JOINED, session=session, receipt=Mode.TAKE, session_expiry_us=400, confirms=False
        )
        for change, qos in ((InterestChange.ADDED, sent), (InterestChange.MODIFIED, then)):
            wanted = Subscription(session=session, subject_filter="y", name="", qos=qos)
            self._append(InterestChanged, changed_at=self.now, change=change, subscription=wanted)
            if change is InterestChange.ADDED:
                self._publish(subject="y", qos=2, publisher=None, packet_id=None, expires_at=None)
        (seq,) = self.naive.hold.stored
        self._receipt(session, device, seq, (("y", ""),), Outcome.DELIVERED, "live")

    def step(self) -> list[Fact]:
        """Return the facts that come next, which the naive node has folded."""
        self.facts = []
        self.now += self.random.choice((0, 0, 1, 1, 2, 5))
        if self.random.random() < 0.01:
            self.now += _WEEK_US
        weights, steps = zip(*self._steps, strict=True)
        self.random.choices(steps, weights)[0]()
        return self.facts

    def _append(self, make: Callable[..., Fact], **fields: object) -> None:
        self.seq += 1
        fact = make(node=NODE, seq=self.seq, **fields)
        self.naive.apply(fact)
        self.facts.append(fact)

    def _one(self) -> str:
        return self.random.choice(DEVICES)

    # -- devices -----------------------------------------------------------------------------------------------------

    def _present(self) -> list[str]:
        return [device for device in DEVICES if (f"$mqtt/{device}", device) in self.naive.hold.present]

    def _presence(self, device: str, change: PresenceChange, **fields: object) -> None:
        self._append(PresenceChanged, changed_at=self.now, device=device, change=change, **fields)

    def _come(self, device: str | None = None) -> None:
        """Connect; a connection that there is, is taken over. The will is written first."""
        rng, device = self.random, device or self._one()
        if device in self._present():
            self._lose(device)
        if rng.random() < 0.2 and device in self.naive.clients:
            self._end(device)
        if rng.random() < 0.6:
            will = LastWill(
                subject=rng.choice(SUBJECTS),
                body=rng.choice((b"", b"gone")),
                qos=rng.randrange(3),
                retain=rng.random() < 0.5,
                delay_us=rng.choice((0, 2, 9)),
            )
            self._append(WillChanged, changed_at=self.now, device=device, change=WillChange.LEFT, will=will)
        self._presence(
            device,
            PresenceChange.JOINED,
            session=f"$mqtt/{device}",
            receipt=Mode.TAKE,
            session_expiry_us=rng.choice((0, 4, 40, 400)),
            confirms=rng.choice((None, False, True)),
            owner=rng.choice(USERS),
        )

    def _go(self) -> None:
        """Disconnect: with a goodbye, which withdraws the will, or without."""
        if device := self._some(self._present()):
            if self.random.random() < 0.3 and device in self.naive.wills:
                self._append(WillChanged, changed_at=self.now, device=device, change=WillChange.WITHDRAWN)
            self._lose(device)
            if not self.naive.clients[device].expiry_us or self.random.random() < 0.1:
                self._end(device)

    def _lose(self, device: str) -> None:
        rng = self.random
        flights = [seq for _, each, seq in self.naive.hold.flights if each == device]
        expiry_us = self.naive.clients[device].expiry_us
        self._presence(
            device,
            PresenceChange.DISCONNECTED,
            session_expiry_us=expiry_us if rng.random() < 0.7 else min(expiry_us, rng.choice((3, 30))),
            sent_seq=rng.choice((None, 0, max(flights, default=0), rng.choice(flights or [0]))),
        )

    def _end(self, device: str) -> None:
        session = f"$mqtt/{device}"
        change = SessionChange.DELETED
        self._append(SessionChanged, changed_at=self.now, session=session, change=change, device=device)

    def _change_receipts(self) -> None:
        if device := self._some(self._present()):
            confirms = self.random.random() < 0.5
            self._presence(device, PresenceChange.RECEIPTS, session=f"$mqtt/{device}", confirms=confirms)

    def _some(self, found: list[str]) -> str | None:
        return self.random.choice(found) if found else None

    # -- sessions ----------------------------------------------------------------------------------------------------

    def _join_or_leave(self) -> None:
        """Be a member of the named session, or none any more; what was sent for it was acknowledged before."""
        device = self._some(self._present())
        if device is None:
            return
        if ("ward", device) not in self.naive.hold.members:
            mode = self.random.choice(list(Mode))
            self._presence(device, PresenceChange.JOINED, session="ward", receipt=mode)
        elif not any(each[:2] == ("ward", device) for each in self.naive.hold.flights):
            self._presence(device, PresenceChange.LEFT, session="ward", sent_seq=0)

    def _change_session(self) -> None:
        rng = self.random
        there = sorted(self.naive.clients)
        if there and rng.random() < 0.6:  # a private session is released, or marked as that of a mount point
            session, access = f"$mqtt/{rng.choice(there)}", rng.choice((None, '{"mount": "home"}'))
            change = SessionChange.ACCESS
            self._append(SessionChanged, changed_at=self.now, session=session, change=change, access=access)
        elif not any(session == "ward" for session, _, _ in self.naive.hold.flights):
            change = rng.choice(list(SessionChange))
            self._append(SessionChanged, changed_at=self.now, session="ward", change=change)

    def _subscribe(self) -> None:
        rng = self.random
        sessions = [f"$mqtt/{device}" for device in self._present()]
        sessions += [session for session, _ in self.naive.hold.members if session == "ward"][:1]
        if not sessions:
            return
        session = rng.choice(sessions)
        subscription = Subscription(
            session=session,
            subject_filter=rng.choice(_FILTERS),
            name="",
            ttl_us=rng.choice((None, None, 3, 20)),
            max_held=rng.choice((None, None, None, 1, 2)),
            qos=rng.choice((0, 1, 1, 2)) if self.qos is None else self.qos,
            policy=rng.choice((None, None, None, *POLICIES)),
        )
        there = (session, (subscription.subject_filter, "")) in self.naive.hold.subscriptions
        change = InterestChange.MODIFIED if there else InterestChange.ADDED
        self._append(InterestChanged, changed_at=self.now, change=change, subscription=subscription)

    def _unsubscribe(self) -> None:
        there = sorted(self.naive.hold.subscriptions)
        if len(there) > 2:
            session, (subject_filter, name) = self.random.choice(there)
            gone = Subscription(session=session, subject_filter=subject_filter, name=name)
            self._append(InterestChanged, changed_at=self.now, change=InterestChange.REMOVED, subscription=gone)

    # -- publications ------------------------------------------------------------------------------------------------

    def _publish(self, *, retain: bool = False, **fields: object) -> None:
        rng = self.random
        qos = rng.choice((0, 1, 1, 2, 2))
        publisher = rng.choice((None, *self.naive.clients))
        values: dict[str, object] = {
            "subject": rng.choice(SUBJECTS),
            "body": rng.choice((b"", b"1", b"22")),
            "qos": qos,
            "packet_id": rng.randrange(1, 5) if qos == 2 and publisher is not None else None,
            "publisher": publisher,
            "expires_at": rng.choice((None, None, None, self.now + 2, self.now + 9)),
        }
        self._append(Notification, published_at=self.now, retain=retain, **(values | fields))

    def _retain(self) -> None:
        self._publish(retain=True)

    def _publish_will(self) -> None:
        device = self._some(sorted(self.naive.wills))
        will = None if device is None else self.naive.wills[device].fact
        if will is None or will.will is None or device in self._present():
            return
        left = will.will
        about = will.seq if self.random.random() < 0.9 else max(1, will.seq - 1)
        self._publish(
            retain=left.retain,
            subject=left.subject,
            body=left.body,
            qos=left.qos,
            packet_id=None,
            publisher=device,
            expires_at=None,
            will_seq=about,
        )

    def _acknowledge(self) -> None:
        """Write the receipts of one copy: one for each session that it counts for."""
        flights = sorted(self.naive.hold.flights.items())
        if not flights:
            return
        (_, device, seq), _ = self.random.choice(flights)
        if (f"$mqtt/{device}", device) not in self.naive.hold.present:
            return
        outcome = self.random.choice((Outcome.DELIVERED,) * 4 + (Outcome.WITHHELD, Outcome.EXPIRED))
        for (session, each, about), identities in flights:
            if (each, about) == (device, seq):
                self._receipt(session, device, seq, identities, outcome, self.random.choice(("live", "held")))

    def _receipt(
        self,
        session: str,
        device: str,
        seq: int,
        identities: tuple[tuple[str | None, str], ...],
        outcome: Outcome,
        via: str,
    ) -> None:
        self._append(
            Receipt,
            handed_at=self.now,
            session=session,
            device=device,
            notification=NotificationId(NODE, seq),
            subscriptions=tuple(SubscriptionIdentity(*each) for each in identities),
            outcome=outcome,
            via=via,
        )

    def _receive_retained(self) -> None:
        device = self._some(self._present())
        if device is not None and self.naive.retained:
            retained = self.random.choice(list(self.naive.retained.values()))
            identity = (self.random.choice(_FILTERS), "")
            self._receipt(f"$mqtt/{device}", device, retained.seq, (identity,), Outcome.DELIVERED, "retained")

    def _complete(self) -> None:
        """Finish a publication of QoS 2, or a hand-over of QoS 2."""
        if device := self._some(sorted(self.naive.clients)):
            client = self.naive.clients[device]
            if client.received and self.random.random() < 0.5:
                self._presence(device, PresenceChange.RELEASED, packet_id=self.random.choice(sorted(client.received)))
            elif client.releasing:
                self._presence(device, PresenceChange.COMPLETED, packet_id=self.random.choice(sorted(client.releasing)))

    # -- policies ----------------------------------------------------------------------------------------------------

    def _put_policy(self, name: str | None = None) -> None:
        name = name or self.random.choice(POLICIES)
        change = PolicyChange.PUT if self.random.random() < 0.7 or not self.naive.policies else PolicyChange.REMOVED
        text = f"return m; // {self.seq}" if change is PolicyChange.PUT else None
        self._append(PolicyChanged, changed_at=self.now, change=change, owner="alice", name=name, text=text)

    def _choose(self) -> None:
        device, name = self._one(), self.random.choice((None, *POLICIES, *POLICIES))
        change = PolicyChange.CHOSEN
        self._append(PolicyChanged, changed_at=self.now, change=change, owner=device, name=name, device=device)

    def _decide(self) -> None:
        """Decide about a copy in flight, or about a retained one; a streak of failures now and then."""
        rng = self.random
        flights = sorted(self.naive.hold.flights) or [(f"$mqtt/{device}", device, self.seq) for device in DEVICES[:1]]
        session, device, seq = rng.choice(flights)
        policy = rng.choice(POLICIES)
        version = self.naive.policies.get(policy)
        count = rng.choice((1, 1, 1, 5))
        reason = rng.choice((None, None, *_FAULTS)) if count == 1 else _FAULTS[0]
        publisher = rng.choice((None, "a", "b")) if count == 1 else "a"
        for _ in range(count):
            self._decision(session, device, seq, policy, 1 if version is None else version.seq, reason, publisher)

    def _decision(
        self, session: str, device: str, seq: int, policy: str, version: int, reason: str | None, publisher: str | None
    ) -> None:
        rng = self.random
        is_sent = reason is None and rng.random() < 0.7
        names = rng.sample(("n", "m", "k"), 2)
        changed: Attributes = {names[0]: Int64(rng.randrange(9))} if reason is None and rng.random() < 0.6 else {}
        self._append(
            Decided,
            decided_at=self.now,
            session=session,
            device=device,
            notification=NotificationId(NODE, seq),
            policy_seq=version if rng.random() < 0.9 else version + 1,
            policy=policy,
            outcome=Outcome.DELIVERED if is_sent else Outcome.WITHHELD,
            reason=reason,
            body_hash=bytes(32) if is_sent else None,
            body_bytes=2 if is_sent else None,
            body=rng.choice((None, b"ok")) if is_sent else None,
            changed=changed,
            removed=(names[1],) if reason is None and rng.random() < 0.3 else (),
            publisher=publisher,
        )

    def _report(self) -> None:
        rng = self.random
        members: Attributes = {}
        if rng.random() < 0.5:
            members = (
                {"net.kind": "4g", "net.bars": Int64(rng.randrange(5))} if rng.random() < 0.5 else {"net.kind": "5g"}
            )
        if rng.random() < 0.3:
            members = {**members, "mood": rng.choice(("good", "bad"))}
        state = DeviceState(
            device=self._one(),
            reported_at=self.now,
            battery=rng.choice((None, 0.5, 0.9)),
            display=rng.choice((None, None, Display(4, rng.randrange(3)))),
            received=rng.choice((None, 3, 9)),
            sent=rng.choice((None, 0, 6)),
            place=rng.choice((None, None, Place(52.5, float(rng.randrange(9))))),
            members=members,
        )
        self._append(Reported, state=state)
