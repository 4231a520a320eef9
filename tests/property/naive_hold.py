"""A second hold, as naive as can be: dictionaries scanned in full, the rules of docs/explanation/holding.md as written.

It shares nothing with ``hold/rules/`` but the facts and the commands, so an error would have to be made twice.
Every method names the rule it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from whimbrel.hold.commands import Command, HandOver, Identity, NotifyChange, NotifySubscriptions, Settle
from whimbrel.hold.retention import DEFAULT_RETENTION, Retention
from whimbrel.model.bounds import INT64_MIN
from whimbrel.model.facts import (
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
)
from whimbrel.model.near import ANYWHERE, Around
from whimbrel.model.notification import Notification
from whimbrel.model.place import Area, distance_m
from whimbrel.model.polygon import Polygon
from whimbrel.model.subscription import InterestChange, Subscription

Matches = Sequence[tuple[str, tuple[Identity, ...]]]


class Ending(NamedTuple):
    """How a session ended a notification: the outcome that waits for devices that have it in flight."""

    outcome: Outcome
    subscriptions: tuple[Identity, ...]
    at: int


class NaiveHold:
    """The rules, one after the other."""

    def __init__(self, node: str, *, retention: Retention = DEFAULT_RETENTION, heeds_places: bool = False) -> None:
        self.node, self.retention, self.heeds_places = node, retention, heeds_places
        self.reports: list[Reported] = []
        self.now = INT64_MIN
        self.members: dict[tuple[str, str], Mode] = {}  # (session, device): mode
        self.present: set[tuple[str, str]] = set()  # (session, device)
        self.confirming: dict[tuple[str, str], bool] = {}  # (session, device): all, or only what may expire
        self.expiring: set[int] = set()
        self.subscriptions: dict[tuple[str, Identity], Subscription] = {}
        self.pending: dict[tuple[str, int], dict[Identity, int]] = {}  # (session, seq): lapses
        self.latest: dict[tuple[str, int], int] = {}  # (session, seq): the latest lapse, if it was ever held
        self.flights: dict[tuple[str, str, int], tuple[Identity, ...]] = {}  # (session, device, seq)
        self.left: dict[tuple[str, str, int], tuple[Identity, ...]] = {}  # (session, device, seq), taken back
        self.endings: dict[tuple[str, int], Ending] = {}  # (session, seq)
        self.settled: set[tuple[str, str | None, int]] = set()
        self.quality: dict[tuple[str, str, int], int] = {}  # (session, device, seq), of flights
        self.handed: dict[tuple[str, int], int] = {}  # (device, seq): with which quality
        self.received: set[tuple[str, int]] = set()  # (device, seq)
        self.stored: set[int] = set()
        self.qos: dict[int, int] = {}  # seq: the publisher's
        self.turns: dict[tuple[str, str], int] = {}  # (share, session): the last notification it was chosen for
        self.shaped: set[str] = set()  # devices that chose a policy
        self.others: dict[tuple[int, str], list[tuple[str, tuple[Identity, ...]]]] = {}  # (seq, share): who is next
        self.notifications: dict[int, Notification] = {}
        self.commands: list[Command] = []

    def apply(self, fact: Fact, matches: Matches = ()) -> list[Command]:
        """Rule 1: first the time, then the fact."""
        self.commands = []
        match fact:
            case Notification():
                self._lapse(fact.published_at)
                self._publish(fact, self._those_that_hear(fact, matches) if self.heeds_places else matches)
            case InterestChanged():
                self._lapse(fact.changed_at)
                self._change_interest(fact)
            case PresenceChanged():
                self._lapse(fact.changed_at)
                self._change_presence(fact)
            case Receipt():
                self._lapse(fact.handed_at)
                self._confirm(fact)
            case SessionChanged():
                self._lapse(fact.changed_at)
                if fact.change is SessionChange.DELETED:
                    self._delete(fact.session)
            case PolicyChanged():
                self._lapse(fact.changed_at)
                if fact.change is PolicyChange.CHOSEN:
                    self.shaped = self.shaped - {fact.device or ""} | ({fact.device or ""} if fact.name else set())
            case Reported():
                self.reports.append(fact)
                self._lapse(fact.state.reported_at)
        self._forget()
        return self.commands

    def tick(self, now: int) -> list[Command]:
        """Rule 1: a tick is a time and nothing else."""
        self.commands = []
        self._lapse(now)
        self._forget()
        return self.commands

    # Rules 1 and 8

    def _lapse(self, time: int) -> None:
        self.now = max(self.now, time)
        instants = {lapse for held in self.pending.values() for lapse in held.values() if lapse <= self.now}
        for instant in sorted(instants):
            for (session, seq), held in sorted(self.pending.items()):
                lapsed = tuple(identity for identity, lapse in held.items() if lapse == instant)
                self._strip(session, seq, lapsed, Outcome.EXPIRED, instant)

    def _strip(self, session: str, seq: int, stripped: tuple[Identity, ...], outcome: Outcome, at: int) -> None:
        """Where none is left, the session ends it."""
        held = self.pending[session, seq]
        if not any(identity in held for identity in stripped):
            return
        for identity in stripped:
            del held[identity]
        if not held:
            self._end(session, seq, Ending(outcome, stripped, at))

    # Rule 20

    def _those_that_hear(self, fact: Notification, matches: Matches) -> Matches:
        found = [(session, tuple(i for i in ids if self._hears(fact, session, i))) for session, ids in matches]
        return [(session, identities) for session, identities in found if identities]

    def _hears(self, fact: Notification, session: str, identity: Identity) -> bool:
        wanted = self.subscriptions[session, identity]
        is_inside = is_close = False
        for device in sorted({device for s, device in self.members if s == session}):
            told = [each for each in self.reports if each.state.device == device and each.state.place is not None]
            if not told or fact.place is None:
                continue
            last = max(told, key=lambda each: each.seq).state
            stale_us = 120_000_000 if wanted.stale_us is None else wanted.stale_us
            if last.place is None or fact.published_at - last.reported_at >= stale_us:
                continue
            away_m = distance_m(fact.place, last.place)
            is_inside |= fact.radius_m is not None and away_m <= fact.radius_m
            is_close |= isinstance(wanted.near, Around) and away_m <= wanted.near.radius_m
        if fact.radius_m is not None and not is_inside and wanted.near != ANYWHERE:
            return False
        if isinstance(wanted.near, Around):
            return is_close
        if isinstance(wanted.near, Area):
            return fact.place is not None and distance_m(wanted.near.centre, fact.place) <= wanted.near.radius_m
        return not isinstance(wanted.near, Polygon) or (fact.place is not None and wanted.near.contains(fact.place))

    # Rules 2 to 5

    def _publish(self, notification: Notification, matches: Matches) -> None:
        matches = self._those_that_count(notification, matches)
        seq = notification.seq
        self.qos[seq] = notification.qos
        self.notifications[seq] = notification
        if notification.expires_at is not None:
            self.expiring.add(seq)
        if notification.expires_at is not None and notification.expires_at <= self.now:
            for session, identities in matches:
                self._end(session, seq, Ending(Outcome.EXPIRED, identities, notification.expires_at))
            return
        # Rules 3 and 4 come first, but they must know who will have it in flight.
        for session, identities in matches:
            for device in self._present_in(session):
                self.flights[session, device, seq] = identities
        for session, identities in matches:
            self._hold(notification, session, identities)
        hand_overs = []
        for device in sorted({device for _, device in self.present}):
            sessions = tuple((s, ids) for s, ids in matches if (s, device, seq) in self.flights)
            if sessions:
                qos = self._qos(seq, sessions)
                self.quality |= {(session, device, seq): qos for session, _ in sessions}
                is_own = qos == 0 and not any(self._confirms(s, device, seq, ids) for s, ids in sessions)
                hand_overs.append(HandOver(device, seq, sessions, False, False, qos=qos, is_own_receipt=is_own))
        receipts = len(self.commands)
        for hand_over in hand_overs:
            self._receive_at_once(hand_over)
        if self._is_owed(seq):
            self.stored.add(seq)
        self.commands[receipts:receipts] = hand_overs

    def _hold(self, notification: Notification, session: str, identities: tuple[Identity, ...]) -> None:
        ending = self._held_or_ended(notification, session, identities)
        if ending is not None:
            self._end(session, notification.seq, ending)

    def _held_or_ended(
        self, notification: Notification, session: str, identities: tuple[Identity, ...]
    ) -> Ending | None:
        seq = notification.seq
        lapses: dict[Identity, int] = {}
        for identity in identities:
            lapses[identity] = min(notification.published_at + self._ttl(session, identity), 2**63 - 1)
            if notification.expires_at is not None:
                lapses[identity] = min(lapses[identity], notification.expires_at)
        live_only = tuple(identity for identity in identities if self._is_live_only(seq, session, identity))
        held = {i: lapse for i, lapse in lapses.items() if i not in live_only and lapse > self.now}
        if held:
            for identity in held:
                self._make_room(session, identity)
            self.pending[session, seq] = held
            self.latest[session, seq] = max(held.values())
            return None
        if live_only:
            return Ending(Outcome.DROPPED, live_only, self.now)
        last = max(lapses.values())
        latest = tuple(identity for identity in identities if lapses[identity] == last)
        return Ending(Outcome.EXPIRED, latest, last)

    def _make_room(self, session: str, identity: Identity) -> None:
        while True:
            holding = sorted(seq for (s, seq), held in self.pending.items() if s == session and identity in held)
            if len(holding) < self._max(session, identity):
                return
            self._strip(session, holding[0], (identity,), Outcome.DISPLACED, self.now)

    # Rules 6 and 10

    def _change_presence(self, fact: PresenceChanged) -> None:
        if fact.change is PresenceChange.JOINED:
            assert fact.session is not None
            assert fact.receipt is not None
            self._change_receipts(fact)
            self._join(fact.session, fact.device, fact.receipt)
        elif fact.change is PresenceChange.RECEIPTS:
            self._change_receipts(fact)
        elif fact.change is PresenceChange.LEFT:
            assert fact.session is not None
            if (fact.session, fact.device) in self.members:
                self._note_sent(fact.session, fact.device, fact.sent_seq)
                self._leave(fact.session, fact.device, fact.sent_seq)
            self.members.pop((fact.session, fact.device), None)
            self.confirming.pop((fact.session, fact.device), None)
        elif fact.change is PresenceChange.DISCONNECTED:
            left = {s for s, d, _ in self.flights if d == fact.device and (s, d) not in self.members}
            for session in sorted({session for session, device in self.present if device == fact.device}):
                self._note_sent(session, fact.device, fact.sent_seq)
                self._go_away(session, fact.device, begun=self._begun(session, fact.device))
            for session in sorted(left):
                self._take_back(session, fact.device)

    # Rule 16

    def _change_receipts(self, fact: PresenceChanged) -> None:
        assert fact.session is not None
        member = (fact.session, fact.device)
        self.confirming.pop(member, None)
        if fact.confirms is not None and (fact.change is PresenceChange.JOINED or member in self.members):
            self.confirming[member] = fact.confirms

    def _confirms(self, session: str, device: str, seq: int, identities: tuple[Identity, ...]) -> bool:
        if device in self.shaped or any(self.subscriptions[session, i].policy is not None for i in identities):
            return True
        confirms = self.confirming.get((session, device))
        return confirms is True or (confirms is False and seq in self.expiring)

    # Rule 19

    def _begun(self, session: str, device: str) -> list[int]:
        seqs = [seq for s, d, seq in self.flights if (s, d) == (session, device)]
        sent = [seq for seq in seqs if (device, seq) in self.handed]
        return [seq for seq in sent if self._must_finish(session, device, seq)]

    def _note_sent(self, session: str, device: str, sent_seq: int | None) -> None:
        flights = {n for s, d, n in self.flights if (s, d) == (session, device)}
        sent = {seq for seq in flights if sent_seq is None or seq <= sent_seq}
        self.handed |= {(device, seq): self.quality[session, device, seq] for seq in sent}

    def _must_finish(self, session: str, device: str, seq: int) -> bool:
        if not session.startswith("$mqtt/"):
            return False
        quality = self.quality[session, device, seq]
        if quality == 2:
            return self.qos[seq] == 2
        was_held = (session, seq) in self.latest
        is_dropped = (session, seq) not in self.pending and self.endings[session, seq].outcome is Outcome.DROPPED
        return quality == 1 and was_held and is_dropped

    def _join(self, session: str, device: str, mode: Mode) -> None:
        is_back = (session, device) in self.members and (session, device) not in self.present
        self.left = {key: found for key, found in self.left.items() if key[:2] != (session, device)}
        self.members[session, device] = mode
        self.present.add((session, device))
        subscriptions = tuple(found for (s, _), found in self.subscriptions.items() if s == session)
        self.commands.append(NotifySubscriptions(device, session, subscriptions))
        begun = {seq for s, d, seq in self.flights if (s, d) == (session, device)} if is_back else set()
        for seq in sorted({seq for s, seq in self.pending if s == session} | begun):
            if seq in begun:
                to = ((session, self.flights[session, device, seq]),)
                qos = self.quality[session, device, seq]
                self.commands.append(HandOver(device, seq, to, is_held=True, is_again=True, qos=qos))
                continue
            if (session, device, seq) in self.settled or (session, device, seq) in self.flights:
                continue
            held = tuple(self.pending[session, seq])
            if (device, seq) in self.received:
                self._settle(session, device, seq, Ending(Outcome.DELIVERED, held, self.now))
                if mode is Mode.TAKE:
                    self._end(session, seq, Ending(Outcome.TAKEN_ELSEWHERE, held, self.now))
                continue
            self._receive_at_once(self._give(session, device, seq, held))

    def _give(self, session: str, device: str, seq: int, identities: tuple[Identity, ...]) -> HandOver:
        on_its_way = [self.quality[flight] for flight in self.flights if flight[1:] == (device, seq)]
        self.flights[session, device, seq] = identities
        to = ((session, identities),)
        if on_its_way:
            self.quality[session, device, seq] = on_its_way[0]
            hand_over = HandOver(device, seq, to, is_held=True, is_again=False, is_copy=False)
        else:
            qos = self.handed.get((device, seq), 0) or self._qos(seq, to)
            self.quality[session, device, seq] = qos
            is_again = (device, seq) in self.handed
            is_own = qos == 0 and not self._confirms(session, device, seq, identities)
            hand_over = HandOver(device, seq, to, True, is_again, qos=qos, is_own_receipt=is_own)
        self.commands.append(hand_over)
        return hand_over

    def _go_away(self, session: str, device: str, *, begun: Collection[int] = ()) -> None:
        self.present.discard((session, device))
        for s, d, seq in sorted(self.flights):
            if (s, d) == (session, device) and seq not in begun:
                del self.flights[s, d, seq]
                if (session, seq) not in self.pending:
                    waiting = self.endings[session, seq]
                    if (device, seq) in self.received:
                        waiting = Ending(Outcome.DELIVERED, *waiting[1:])
                    self._settle(session, device, seq, waiting)

    # Rule 10, of a device that leaves

    def _leave(self, session: str, device: str, sent_seq: int | None) -> None:
        """Keep in flight what was sent, and take back the rest."""
        sent = {
            seq for s, d, seq in self.flights if (s, d) == (session, device) and (sent_seq is None or seq <= sent_seq)
        }
        self.present.discard((session, device))
        self._take_back(session, device, but=sent)

    def _take_back(self, session: str, device: str, *, but: Collection[int] = ()) -> None:
        """Settle what the session has ended; the rest waits for its end."""
        for s, d, seq in sorted(self.flights):
            if (s, d) == (session, device) and seq not in but and (session, seq) in self.pending:
                self.left[s, d, seq] = self.flights.pop((s, d, seq))
        self._go_away(session, device, begun=but)

    # Rule 7

    def _confirm(self, fact: Receipt) -> None:
        session, device, seq = fact.session, fact.device, fact.notification.seq
        if fact.notification.node != self.node:
            return
        if fact.outcome in {Outcome.DISPLACED, Outcome.TAKEN_ELSEWHERE} or fact.via == "retained":
            return
        if (session, device, seq) in self.left:  # its receipt was on the way
            via = fact.via if fact.outcome is Outcome.DELIVERED else None
            found = self.left.pop((session, device, seq))
            self._settle(session, device, seq, Ending(fact.outcome, found, self.now), via)
            if fact.outcome is Outcome.DELIVERED:
                self.received.add((device, seq))
                self.handed.pop((device, seq), None)
            return
        if (session, device, seq) not in self.flights:
            return
        self._receive(session, device, seq, fact.outcome, fact.via)

    def _receive(self, session: str, device: str, seq: int, outcome: Outcome, via: str | None = None) -> None:
        subscriptions = self.flights.pop((session, device, seq))
        via = via if outcome is Outcome.DELIVERED else None
        self._settle(session, device, seq, Ending(outcome, subscriptions, self.now), via)
        if outcome is Outcome.WITHHELD and session == f"$mqtt/{device}":
            for share in sorted({share for share, _ in subscriptions if share is not None}):
                self._serve(seq, share)
        if outcome is Outcome.DELIVERED:
            self.received.add((device, seq))
            self.handed.pop((device, seq), None)
            if self.members.get((session, device)) is Mode.TAKE and (session, seq) in self.pending:
                held = tuple(self.pending[session, seq])
                self._end(session, seq, Ending(Outcome.TAKEN_ELSEWHERE, held, self.now))
        elif session == f"$mqtt/{device}" and (session, seq) in self.pending:
            self._end(session, seq, Ending(outcome, tuple(self.pending[session, seq]), self.now))

    # Rule 9

    def _end(self, session: str, seq: int, ending: Ending) -> None:
        self.pending.pop((session, seq), None)
        self.endings[session, seq] = ending
        left = {d for s, d, n in self.left if (s, n) == (session, seq)}
        self.left = {key: found for key, found in self.left.items() if (key[0], key[2]) != (session, seq)}
        for device in sorted({device for s, device in self.members if s == session} | left):
            if (session, device, seq) in self.settled or (session, device, seq) in self.flights:
                continue
            if (device, seq) in self.received:
                self._settle(session, device, seq, ending._replace(outcome=Outcome.DELIVERED))
            else:
                self._settle(session, device, seq, ending)
        is_in_flight = any((s, n) == (session, seq) for s, _, n in self.flights)
        was_settled = any((s, n) == (session, seq) for s, _, n in self.settled)
        if not is_in_flight and not was_settled:
            self._settle(session, None, seq, ending)

    def _settle(self, session: str, device: str | None, seq: int, how: Ending, via: str | None = None) -> None:
        assert (session, device, seq) not in self.settled, "outcomes are final"
        self.settled.add((session, device, seq))
        lapses_at = self.latest.get((session, seq))
        self.commands.append(Settle(session, device, seq, how.subscriptions, how.outcome, how.at, lapses_at, via))

    # Rule 11

    def _change_interest(self, fact: InterestChanged) -> None:
        session = fact.subscription.session
        identity = (fact.subscription.subject_filter, fact.subscription.name)
        if fact.change is InterestChange.REMOVED:
            self.subscriptions.pop((session, identity), None)
            if not any((s, i[0]) == (session, identity[0]) for s, i in self.subscriptions):
                self.turns.pop((identity[0] or "", session), None)
            for s, seq in sorted(self.pending):
                if s == session:
                    self._strip(session, seq, (identity,), Outcome.DROPPED, self.now)
        else:
            self.subscriptions[session, identity] = fact.subscription
        for device in self._present_in(session):
            if device != fact.device:
                self.commands.append(NotifyChange(device, session, fact.change, fact.subscription))

    # Rule 12

    def _delete(self, session: str) -> None:
        for s, seq in sorted(self.pending):
            if s == session:
                self._end(session, seq, Ending(Outcome.DROPPED, tuple(self.pending[session, seq]), self.now))
        departed = {d for s, d, _ in self.flights if s == session and (s, d) not in self.members}
        for device in sorted({device for s, device in self.members if s == session} | departed):
            if device not in departed:
                self._note_sent(session, device, None)
            self._go_away(session, device)
        self.members = {key: mode for key, mode in self.members.items() if key[0] != session}
        self.subscriptions = {key: found for key, found in self.subscriptions.items() if key[0] != session}
        self.turns = {pair: seq for pair, seq in self.turns.items() if pair[1] != session}
        self.shaped -= {session.removeprefix("$mqtt/")} if session.startswith("$mqtt/") else set()
        self.confirming = {pair: which for pair, which in self.confirming.items() if pair[0] != session}

    # Rule 13

    def _is_owed(self, seq: int) -> bool:
        return any(n == seq for _, n in self.pending) or any(n == seq for _, _, n in self.flights)

    def _forget(self) -> None:
        for seq in sorted(self.stored):
            if not self._is_owed(seq):
                self.stored.discard(seq)
                self.handed = {pair: qos for pair, qos in self.handed.items() if pair[1] != seq}
                self.received = {pair for pair in self.received if pair[1] != seq}

    # Rule 14

    def _ttl(self, session: str, identity: Identity) -> int:
        ttl_us = self.subscriptions[session, identity].ttl_us
        return self.retention.ttl_us if ttl_us is None else ttl_us

    def _max(self, session: str, identity: Identity) -> int:
        max_held = self.subscriptions[session, identity].max_held
        return self.retention.max_held if max_held is None else max_held

    def _present_in(self, session: str) -> list[str]:
        return sorted(device for s, device in self.present if s == session)

    # Rules 15 and 16

    def _effective(self, seq: int, session: str, identity: Identity) -> int:
        granted = self.subscriptions[session, identity].qos
        return min(self.qos[seq], 2 if granted is None else granted)

    def _is_live_only(self, seq: int, session: str, identity: Identity) -> bool:
        if self._max(session, identity) == 0:
            return True
        is_mqtt = session.startswith("$mqtt/") and self.subscriptions[session, identity].qos is not None
        return is_mqtt and self._effective(seq, session, identity) == 0

    def _qos(self, seq: int, to: Matches) -> int:
        pairs = [(session, identity) for session, identities in to for identity in identities]
        if all(self.subscriptions[pair].qos is None for pair in pairs):
            return 2
        return max(self._effective(seq, *pair) for pair in pairs)

    def _receive_at_once(self, hand_over: HandOver) -> None:
        if hand_over.is_own_receipt:
            for session, _ in hand_over.sessions:
                self._receive(session, hand_over.device, hand_over.seq, Outcome.DELIVERED)

    # Rules 17 and 18

    def _those_that_count(self, notification: Notification, matches: Matches) -> Matches:
        pairs = [(session, identity) for session, identities in matches for identity in identities]
        own = f"$mqtt/{notification.publisher}"
        pairs = [pair for pair in pairs if pair[0] != own or not self.subscriptions[pair].no_local]
        matched = list(pairs)
        for share in {identity[0] or "" for _, identity in pairs if (identity[0] or "").startswith("$share/")}:
            chosen = self._choose(notification.seq, share, {s for s, identity in pairs if identity[0] == share})
            pairs = [pair for pair in pairs if pair[1][0] != share or pair[0] == chosen]
            if self._may_withhold(chosen):
                self.others[notification.seq, share] = []
        for seq, share in self.others:
            for session in sorted({s for s, identity in matched if identity[0] == share}):
                if seq == notification.seq and session not in {s for s, _ in pairs}:
                    found = tuple(sorted(i for s, i in matched if s == session and i[0] == share))
                    self.others[seq, share].append((session, found))
        pairs.sort(key=lambda pair: (pair[0], pair[1][0] or "", pair[1][1]))
        sessions = sorted({session for session, _ in pairs})
        return [(session, tuple(identity for s, identity in pairs if s == session)) for session in sessions]

    def _choose(self, seq: int, share: str, sessions: Collection[str]) -> str:
        serving = sorted(sessions)
        serving = [session for session in serving if self._present_in(session)] or serving
        longest_ago = min(self.turns.get((share, session), -1) for session in serving)
        chosen = next(s for s in serving if self.turns.get((share, s), -1) == longest_ago)
        self.turns[share, chosen] = seq
        return chosen

    # Rule 21

    def _may_withhold(self, session: str) -> bool:
        has_policy = any(found.policy for (s, _), found in self.subscriptions.items() if s == session)
        return has_policy or any(device in self.shaped for s, device in self.members if s == session)

    def _serve(self, seq: int, share: str) -> None:
        left = dict(self.others.get((seq, share), ()))
        left = {s: tuple(i for i in found if self._is_wanted(seq, s, i)) for s, found in left.items()}
        left = {session: found for session, found in left.items() if found}
        if not left:
            return
        chosen = self._choose(seq, share, left)
        for key in self.others:
            if key[0] == seq:
                self.others[key] = [(s, found) for s, found in self.others[key] if s != chosen]
        self._pass_on(seq, chosen, left[chosen])

    def _is_wanted(self, seq: int, session: str, identity: Identity) -> bool:
        found = self.notifications[seq]
        if (session, identity) not in self.subscriptions:
            return False
        is_alive = found.expires_at is None or found.expires_at > self.now
        return is_alive and found.published_at + self._ttl(session, identity) > self.now

    def _pass_on(self, seq: int, session: str, identities: tuple[Identity, ...]) -> None:
        ending = self._held_or_ended(self.notifications[seq], session, identities)
        handed: list[HandOver] = []
        for device in self._present_in(session):
            if (session, device, seq) in self.settled:
                continue
            if (device, seq) not in self.received:
                handed.append(self._give(session, device, seq, identities))
                continue
            self._settle(session, device, seq, Ending(Outcome.DELIVERED, identities, self.now))
            if self.members[session, device] is Mode.TAKE and (session, seq) in self.pending:
                held = tuple(self.pending[session, seq])
                self._end(session, seq, Ending(Outcome.TAKEN_ELSEWHERE, held, self.now))
        if ending is not None:
            self._end(session, seq, ending)
        for hand_over in handed:
            self._receive_at_once(hand_over)
