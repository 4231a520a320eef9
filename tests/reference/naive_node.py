"""A second node, as naive as can be: dictionaries, lists and the rules of the pages as written, no code of the node.

It folds the facts of a log beside the broker's state and the node of the workers, because a fold that all of them share
cannot check itself. The hold inside is the hold's own naive twin. Each rule names the page that promises it: MQTT is
docs/reference/mqtt.md, policies is docs/reference/policies.md, guarantees is docs/explanation/guarantees.md.
Rule: slow and obviously right. Nothing is cached, counted in memory or forgotten for its size.
Content is asked of the naive evaluator of filters; keys and places have naive twins elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from naive import verdict
from naive_hold import Matches, NaiveHold

from whimbrel.hold.commands import Identity
from whimbrel.language.filters import parse
from whimbrel.model.attributes import NO_ATTRIBUTES, Attributes, Scalar
from whimbrel.model.device import DeviceState
from whimbrel.model.facts import (
    Decided,
    Fact,
    InterestChanged,
    Outcome,
    PolicyChange,
    PolicyChanged,
    PresenceChange,
    PresenceChanged,
    Receipt,
    Reported,
    SessionChange,
    SessionChanged,
    WillChanged,
    time_of,
)
from whimbrel.model.notification import Notification

__all__ = ["NaiveClient", "NaiveDevice", "NaiveNode", "NaiveWill"]

_PRIVATE = "$mqtt/"
_WEEK_US = 7 * 24 * 3_600 * 1_000_000
_FAULTS_OF_A_POLICY = (
    "the policy keeps more variables, or longer ones, than a device may have",
    "the attributes that the policy set are longer than it may send",
    "the policy or a transform failed, which is a defect of Whimbrel; please report it",
)
_FAILURES = 10


@dataclass
class NaiveClient:
    """What MQTT alone has of a device: its session, and the identifiers of QoS 2."""

    session: str
    expiry_us: int = 0
    disconnected_at: int | None = None
    received: set[int] = field(default_factory=set)
    releasing: set[int] = field(default_factory=set)
    owner: str | None = None
    is_unclaimed: bool = False
    confirms: bool = False


@dataclass
class NaiveWill:
    """A will that was left, and neither withdrawn nor published; *gone_at* is when its client was lost."""

    fact: WillChanged
    owner: str | None = None
    gone_at: int | None = None
    expiry_us: int = 0
    ended_with_the_broker: bool = False


@dataclass
class NaiveDevice:
    """What a device reported: when last, what Whimbrel knows by name, and the other members by their first part."""

    reported_at: int | None = None
    own: dict[str, Scalar] = field(default_factory=dict)
    members: dict[str, dict[str, Scalar]] = field(default_factory=dict)


class NaiveNode:
    """The rules, one table after the other."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.hold = NaiveHold(node)
        self.clients: dict[str, NaiveClient] = {}
        self.marks: dict[str, str | None] = {}  # device: the mount point that its session is to move to
        self.wills: dict[str, NaiveWill] = {}
        self.retained: dict[str, Notification] = {}
        self.sources: dict[str, str] = {}  # subject: the verified user who published what is retained
        self.kept: dict[tuple[int, str], list[Decided]] = {}  # (notification, device)
        self.policies: dict[str, PolicyChanged] = {}
        self.chosen: dict[str, str] = {}  # device: policy
        self.devices: dict[str, NaiveDevice] = {}
        self.links: dict[str, tuple[int, float | None]] = {}  # device: last report, received / sent
        self.variables: dict[tuple[str, str], dict[str, Scalar]] = {}  # (device, policy)
        self.failures: list[tuple[str, str, str, int]] = []  # device, policy, publisher, count; the last failed last

    def matches(self, subject: str, attributes: Attributes = NO_ATTRIBUTES) -> Matches:
        """Return the subscriptions that want a notification, whatever its keys and its place."""
        found: dict[str, tuple[Identity, ...]] = {}
        for (session, identity), wanted in self.hold.subscriptions.items():
            is_wanted = wanted.filter_text is None or verdict(parse(wanted.filter_text), attributes) is True
            if is_wanted and _admits(wanted.subject_filter, subject):
                found[session] = (*found.get(session, ()), identity)
        return list(found.items())

    def apply(self, fact: Fact) -> None:
        """Fold the next fact."""
        quality = self._quality(fact) if isinstance(fact, Receipt) else 0
        stored = set(self.hold.stored)
        matches = self.matches(fact.subject or "", fact.attributes) if isinstance(fact, Notification) else ()
        if isinstance(fact, WillChanged | Decided):
            self.hold.tick(time_of(fact))  # of these only the time counts there
        else:
            self.hold.apply(fact, matches)
        match fact:
            case Notification():
                self._publish(fact)
            case PresenceChanged():
                self._change_presence(fact)
            case SessionChanged():
                self._change_session(fact)
            case WillChanged():
                self.wills.pop(fact.device, None)
                if fact.will is not None:
                    self.wills[fact.device] = NaiveWill(fact)
            case Receipt():
                self._receive(fact, quality)
            case PolicyChanged():
                self._change_policy(fact)
            case Decided():
                self._decide(fact, is_held=fact.notification.seq in stored)
            case Reported():
                self._report(fact)
            case InterestChanged():
                pass
        self._forget()

    def tick(self, now: int) -> None:
        """Advance the time, which ends copies and nothing else of a node."""
        self.hold.tick(now)
        self._forget()

    # Clients (MQTT, Sessions; guarantees, After a crash)

    def _change_presence(self, fact: PresenceChanged) -> None:
        if fact.change is PresenceChange.JOINED and (fact.session or "").startswith(_PRIVATE):
            client = self.clients.setdefault(fact.device, NaiveClient(fact.session or ""))
            client.expiry_us, client.disconnected_at = fact.session_expiry_us or 0, None
            client.owner, client.confirms = fact.owner, bool(fact.confirms)
            client.is_unclaimed = fact.owner is None and fact.confirms is None  # older logs say neither
            self._return(fact)
        if fact.device not in self.clients:
            return
        client = self.clients[fact.device]
        match fact.change:
            case PresenceChange.DISCONNECTED:
                client.disconnected_at = fact.changed_at
                if fact.session_expiry_us is not None:
                    client.expiry_us = fact.session_expiry_us
                self._lose(fact)
            case PresenceChange.RECEIPTS:
                client.confirms = bool(fact.confirms)
            case PresenceChange.RELEASED:
                client.received.discard(fact.packet_id or 0)
            case PresenceChange.COMPLETED:
                client.releasing.discard(fact.packet_id or 0)
            case _:
                pass

    def _change_session(self, fact: SessionChanged) -> None:
        if not fact.session.startswith(_PRIVATE):
            return
        device = fact.session.removeprefix(_PRIVATE)
        is_release = fact.access is None or fact.access == self.marks.get(device)  # else it is marked as a mount's
        if fact.change is SessionChange.ACCESS and is_release and device in self.clients:
            self.clients[device].owner, self.clients[device].is_unclaimed = None, True
        self.marks[device] = None if fact.change is SessionChange.DELETED else fact.access
        if fact.change is SessionChange.DELETED and fact.device is not None:
            self.clients.pop(fact.device, None)
            self._forget_device(fact.device)

    def _quality(self, fact: Receipt) -> int:
        """Return the QoS of the copy that a receipt is for."""
        if fact.via == "retained":  # it was sent beside the hold, at what was granted; at 2 where nobody knows any more
            pairs = [(fact.session, (each.subject_filter, each.name)) for each in fact.subscriptions]
            granted = [self.hold.subscriptions[pair].qos or 0 for pair in pairs if pair in self.hold.subscriptions]
            return max(granted, default=2)
        return self.hold.quality.get((fact.session, fact.device, fact.notification.seq), 0)

    def _receive(self, fact: Receipt, quality: int) -> None:
        """End what was decided about the copy; one of QoS 2 is released until PUBCOMP."""
        if fact.notification.node != self.node:
            return
        self.kept.pop((fact.notification.seq, fact.device), None)
        if fact.outcome is Outcome.DELIVERED and quality == 2 and fact.device in self.clients:
            self.clients[fact.device].releasing.add(fact.notification.seq % 65_535 + 1)

    def lapsed(self, now: int) -> list[str]:
        """Return the clients whose sessions ended by the session expiry interval."""
        return [
            device
            for device, client in self.clients.items()
            if client.disconnected_at is not None and client.disconnected_at + client.expiry_us <= now
        ]

    def must_survive(self, subject: str) -> bool:
        """Return whether a publication of QoS 1 or 2 is owed to somebody after a crash (guarantees, The one rule)."""
        for session, identities in self.matches(subject):
            client = self.clients.get(session.removeprefix(_PRIVATE)) if session.startswith(_PRIVATE) else None
            granted = [self.hold.subscriptions[session, identity].qos for identity in identities]
            if client is None or (client.expiry_us > 0 and any(qos is None or qos > 0 for qos in granted)):
                return True
        return False

    # Retained messages and publications (MQTT, Retained messages)

    def _publish(self, fact: Notification) -> None:
        publisher, subject = fact.publisher or "", fact.subject or ""
        if fact.packet_id is not None and publisher in self.clients:
            self.clients[publisher].received.add(fact.packet_id)
        if fact.retain:
            self.retained.pop(subject, None)
            self.sources.pop(subject, None)
            if fact.body:
                self.retained[subject] = fact
                source = self._user_of(publisher)
                if source is not None:
                    self.sources[subject] = source
        if publisher in self.wills and self.wills[publisher].fact.seq == fact.will_seq:
            del self.wills[publisher]

    def retained_for(self, subject_filter: str) -> list[int]:
        """Return the numbers of the retained messages that a topic filter matches, in order."""
        return sorted(found.seq for subject, found in self.retained.items() if _admits(subject_filter, subject))

    def _user_of(self, publisher: str) -> str | None:
        """Return the verified user of a client; of one that is gone, of the will that is published now."""
        if publisher in self.clients:
            return self.clients[publisher].owner
        return self.wills[publisher].owner if publisher in self.wills else None

    # Wills: MQTT, Wills

    def _return(self, fact: PresenceChanged) -> None:
        if fact.device in self.wills:
            will = self.wills[fact.device]
            will.gone_at = None
            will.owner = will.owner if fact.owner is None else fact.owner

    def _lose(self, fact: PresenceChanged) -> None:
        if fact.device in self.wills:
            will = self.wills[fact.device]
            will.gone_at, will.expiry_us = fact.changed_at, self.clients[fact.device].expiry_us
            will.ended_with_the_broker = fact.sent_seq is None  # nobody knows what a dead broker had sent

    def _delay_us(self, will: NaiveWill) -> int:
        """After its delay or when the session ends, whichever is first."""
        assert will.fact.will is not None
        return min(will.fact.will.delay_us, will.expiry_us)

    def due(self, now: int) -> list[str]:
        """Return the clients whose wills are to be published by a broker that did not restart."""
        return [
            device
            for device, will in self.wills.items()
            if will.gone_at is not None and will.gone_at + self._delay_us(will) <= now
        ]

    def after_a_restart(self, device: str, begun_at: int, grace_us: int) -> tuple[int, bool]:
        """Return when a will is published after a restart, and whether a clean start withdraws it too (the table)."""
        will = self.wills[device]
        delay_us = self._delay_us(will)
        if not delay_us:
            return begun_at + grace_us, True
        if will.gone_at is None:
            return begun_at + delay_us, True
        was_connected = will.ended_with_the_broker
        return max(will.gone_at + delay_us, begun_at + min(delay_us, grace_us)), was_connected

    # Decisions that wait for a receipt (MQTT, Policies: a policy runs once for a hand-over)

    def _decide(self, fact: Decided, *, is_held: bool) -> None:
        if is_held:
            self.kept.setdefault((fact.notification.seq, fact.device), []).append(fact)
        values = self.variables.setdefault((fact.device, fact.policy), {})
        for name in fact.removed:
            values.pop(name, None)
        values.update(fact.changed)
        if not values:
            del self.variables[fact.device, fact.policy]
        version = self.policies.get(fact.policy)
        if version is not None and version.seq == fact.policy_seq and fact.publisher is not None:
            self._count(fact, fact.publisher)

    def _forget(self) -> None:
        """Nothing is owed of what the hold stores no more."""
        self.kept = {key: found for key, found in self.kept.items() if key[0] in self.hold.stored}

    # Policies (MQTT, Policies; policies, Manual variables and What it may cost)

    def _count(self, fact: Decided, publisher: str) -> None:
        """Ten failures in a row by its own fault, with what one client published to one device."""
        who = (fact.device, fact.policy, publisher)
        before = [each for each in self.failures if each[:3] == who]
        if fact.reason is None or fact.reason in _FAULTS_OF_A_POLICY:
            self.failures = [each for each in self.failures if each[:3] != who]
        if fact.reason in _FAULTS_OF_A_POLICY:
            self.failures.append((*who, 1 + sum(each[3] for each in before)))

    def is_suspended(self, policy: str, device: str, publisher: str) -> bool:
        """Return whether a policy is suspended for a device and a publisher."""
        return any(each[:3] == (device, policy, publisher) and each[3] >= _FAILURES for each in self.failures)

    def find_policies(self, device: str, named: Sequence[str | None]) -> list[str | None]:
        """Return the policies that decide about a copy, in order; None is a subscription that takes it as it is."""
        if self.chosen.get(device) in self.policies:
            return [self.chosen[device]]
        found: list[str | None] = []
        for name in (name if name in self.policies else None for name in named):
            if name not in found:
                found.append(name)
        return found if any(found) else []

    def _change_policy(self, fact: PolicyChanged) -> None:
        name, device = fact.name or "", fact.device or ""
        match fact.change:
            case PolicyChange.PUT:
                self.policies[name] = fact
                self.failures = [each for each in self.failures if each[1] != name]
            case PolicyChange.REMOVED:
                self.policies.pop(name, None)
                self.failures = [each for each in self.failures if each[1] != name]
                self.variables = {key: found for key, found in self.variables.items() if key[1] != name}
            case PolicyChange.CHOSEN:
                before = self.chosen.pop(device, None)
                if before is not None and before != fact.name:
                    self.variables.pop((device, before), None)
                if fact.name is not None:
                    self.chosen[device] = fact.name

    def _forget_device(self, device: str) -> None:
        """End the choice, what the device reported and what its policy remembers: its MQTT session ended."""
        self.chosen.pop(device, None)
        self.devices.pop(device, None)
        self.variables = {key: found for key, found in self.variables.items() if key[0] != device}
        self.failures = [each for each in self.failures if each[0] != device]
        self.kept = {key: found for key, found in self.kept.items() if key[1] != device}

    # Reports (policies, Automatic variables)

    def _report(self, fact: Reported) -> None:
        report = fact.state
        self._report_link(report)
        device = self.devices.setdefault(report.device, NaiveDevice())
        if device.reported_at is not None and report.reported_at - device.reported_at >= _WEEK_US:
            device.own.pop("NetworkConnection", None)
        device.reported_at = report.reported_at
        if report.battery is not None:
            device.own["Battery"] = report.battery
        if report.received is not None and report.sent:
            device.own["NetworkConnection"] = min(report.received / report.sent, 1.0)
        if report.display is not None:
            width, height = report.display.width_px, report.display.height_px
            device.own.update({"DisplayWidth": width, "DisplayHeight": height, "DisplaySize": width * height})
        if report.place is not None:
            device.own["Place.latitude"] = report.place.latitude
            device.own["Place.longitude"] = report.place.longitude
        self._report_members(device, report.members)

    def _report_members(self, device: NaiveDevice, members: Attributes) -> None:
        """Replace all of each member that the report says."""
        said: dict[str, dict[str, Scalar]] = {}
        for name, value in members.items():
            said.setdefault(name.split(".")[0], {})[name] = value
        for root, values in said.items():
            device.members.pop(root, None)
            device.members[root] = values

    def _report_link(self, report: DeviceState) -> None:
        """Kept while nothing is sent, and unknown after a week of silence; it outlives the device's session."""
        at, connection = self.links.get(report.device, (report.reported_at, None))
        if report.reported_at - at >= _WEEK_US:
            connection = None
        if report.received is not None and report.sent:
            connection = min(report.received / report.sent, 1.0)
        self.links[report.device] = (report.reported_at, connection)
        silent = [each for each, (last, _) in self.links.items() if report.reported_at - last >= _WEEK_US]
        for each in silent:
            del self.links[each]


def _admits(subject_filter: str | None, subject: str) -> bool:
    """Return whether a topic filter matches, level by level (MQTT 5, 4.7); a share is about what follows its name."""
    if subject_filter is None:
        return True
    levels, names = subject_filter.split("/"), subject.split("/")
    if levels[0] == "$share":
        levels = levels[2:]
    if names[0].startswith("$") and levels[0] in {"#", "+"}:
        return False
    if levels[-1] == "#":
        levels = levels[:-1]
        names = names[: len(levels)]
    return len(levels) == len(names) and all(level in {"+", name} for level, name in zip(levels, names, strict=True))
