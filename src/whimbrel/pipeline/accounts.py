"""Reconciliation: check that every match has exactly one outcome for each device, or is still held.

Three tables must agree: the matches of subscriptions (``matches``), their outcomes (``deliveries``), and the
notifications without an outcome (held). An *entry* is a triple of notification, session and device. Each row of
``deliveries`` is an entry. If a session still holds a notification, each of its devices without such a row has an entry
too, because a held notification is owed to all of them.

Rule: a session in which a notification matched has an entry for it. If several sessions match only through the same
share (a ``$share`` filter, whose sessions take turns), exactly one of them gets the notification. Sessions whose
policies withheld the notification have entries too, because the share then passes it to its next session.
Rule: a device that was a member of the session when the notification was published, and did not leave the session
later, has an entry of its own.
Rule: an entry exists once, and only for a match. A row of ``deliveries`` without a device means that the session had no
device; it is the session's only entry. A held notification without a device waits for the next device that connects.

This module does not use Spark: the tables are Arrow tables, from a stream, a batch or a test.
Limit: a subscription with ``no_local`` matches its own publications but does not get them, and the tables do not show
that. So a log with such subscriptions shows discrepancies here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeAlias

from whimbrel.hold.private import is_shared
from whimbrel.hold.sessions import RETAINED
from whimbrel.model.facts import Outcome, PresenceChange, SessionChange

__all__ = [
    "Account",
    "ArrowTable",
    "DeviceAccount",
    "Entries",
    "Gaps",
    "HeldEntry",
    "Membership",
    "account",
    "memberships",
]

ArrowTable: TypeAlias = Any
"""A ``pyarrow.Table``; pyarrow ships no types."""

HeldEntry: TypeAlias = tuple[str, str, int, str | None]
"""A notification that a session still holds: node, session, seq, and a device that has it in flight, or None."""

_SHOWN = 20
_NO_DEVICE = "no device"
_HELD = "held"

_Wanted: TypeAlias = tuple[str, int, str]
"""Node and seq of a notification, and a session in which it matched."""


class Gaps:
    """Discrepancies that were found: their number, and a sentence about each of the first ``_SHOWN``."""

    def __init__(self) -> None:
        self.count = 0
        self.sentences: list[str] = []

    def add(self, sentence: str) -> None:
        """Count one discrepancy; keep its *sentence* if fewer than ``_SHOWN`` are kept."""
        self.count += 1
        if len(self.sentences) < _SHOWN:
            self.sentences.append(sentence)


class Membership(NamedTuple):
    """A device's membership in a session, from the seq ``since`` to the seq ``until`` (None: the membership lasts)."""

    node: str
    session: str
    device: str
    since: int
    until: int | None = None
    has_left: bool = False
    """Whether the device left the session, so that no entry is required; False if the session was deleted instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAccount:
    """Numbers of a device's notifications: one number per outcome, and the number of those still held for it."""

    device: str | None
    """The device; None for notifications of sessions that had no device."""
    delivered: int = 0
    held: int = 0
    expired: int = 0
    displaced: int = 0
    taken_elsewhere: int = 0
    dropped: int = 0
    withheld: int = 0

    @property
    def entries(self) -> int:
        """Number of the device's notifications, whatever their outcome."""
        settled = self.delivered + self.expired + self.displaced + self.taken_elsewhere + self.dropped + self.withheld
        return settled + self.held


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Result of the reconciliation: totals, counts per device, and discrepancies."""

    notifications: int
    """Number of notifications that at least one subscription matched."""
    wanted: int
    """Number of pairs of a notification and a session that has an outcome for it or still holds it."""
    devices: tuple[DeviceAccount, ...]
    """Counts per device, ordered by name; the counts without a device come last."""
    gap_count: int
    gaps: tuple[str, ...]
    """Sentences about the first discrepancies."""

    @property
    def closes(self) -> bool:
        """Whether no discrepancy was found."""
        return self.gap_count == 0

    def as_json(self) -> dict[str, object]:
        """Return the result of the reconciliation as values that JSON can hold."""
        return {"closes": self.closes, **asdict(self)}


def account(
    matches: ArrowTable, deliveries: ArrowTable, held: Iterable[HeldEntry], *, members: Iterable[Membership] = ()
) -> Account:
    """Reconcile *matches* with *deliveries* and the *held* notifications.

    Without *members* (see ``memberships``), a missing entry of one of several devices of a session is not detected.
    """
    gaps = Gaps()
    shares = _shares(matches)
    members = list(members)
    entries = Entries(deliveries, held, members, gaps)
    devices = entries.devices
    _judge_sessions(shares, devices, gaps)
    _judge_members(devices, members, gaps)
    counted = entries.counted
    return Account(
        notifications=len({(node, seq) for node, seq, _ in shares}),
        wanted=len(devices),
        devices=tuple(_of_device(device, counted[device]) for device in sorted(counted, key=_named_first)),
        gap_count=gaps.count,
        gaps=tuple(gaps.sentences),
    )


def _named_first(device: str | None) -> tuple[bool, str]:
    return device is None, device or ""


def _of_device(device: str | None, counts: Mapping[str, int]) -> DeviceAccount:
    return DeviceAccount(
        device=device, held=counts.get(_HELD, 0), **{o.value.replace(" ", "_"): counts.get(o.value, 0) for o in Outcome}
    )


def _rows(table: ArrowTable, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(table.column(name).to_pylist() for name in names), strict=True)


def _shares(matches: ArrowTable) -> dict[_Wanted, set[str | None]]:
    """Return a set per match: the ``$share`` filters that matched; None stands for any filter outside a share."""
    found: dict[_Wanted, set[str | None]] = {}
    for node, seq, session, wanted in _rows(
        matches, "notification_node", "notification_seq", "session", "subject_filter"
    ):
        found.setdefault((node, seq, session), set()).add(wanted if is_shared(wanted) else None)
    return found


class Entries:
    """All entries (notification, session, device), and their number per device and outcome; duplicates go to *gaps*."""

    def __init__(
        self, deliveries: ArrowTable, held: Iterable[HeldEntry], members: Iterable[Membership], gaps: Gaps
    ) -> None:
        self._gaps = gaps
        self.devices: dict[_Wanted, dict[str | None, str]] = {}
        """Outcome of each device, per match."""
        self.counted: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
        self._add_rows(deliveries)
        self._add_held(held, members)

    def _add_rows(self, deliveries: ArrowTable) -> None:
        """Add an entry per row of ``deliveries``, except for retained messages, which did not match when published."""
        columns = ("notification_node", "notification_seq", "session", "device", "outcome", "via")
        for node, seq, session, device, outcome, via in _rows(deliveries, *columns):
            if via != RETAINED:
                self._add((node, seq, session), device, outcome)
        for (node, seq, session), found in self.devices.items():
            if None in found and len(found) > 1:
                named = ", ".join(sorted(device for device in found if device is not None))
                self._gaps.add(f"{node}:{seq} in {session} has an entry for {_NO_DEVICE} and for {named}")

    def _add_held(self, held: Iterable[HeldEntry], members: Iterable[Membership]) -> None:
        """Add an entry for each device of a session that holds a notification, unless the device has one already."""
        inside: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for member in members:
            if member.until is None:
                inside[member.node, member.session].append(member.device)
        waiting: dict[_Wanted, None] = {}
        for node, session, seq, device in held:
            waiting[node, seq, session] = None
            if device is not None:
                self._add((node, seq, session), device, _HELD)
        for wanted in waiting:
            node, seq, session = wanted
            found = self.devices.setdefault(wanted, {})
            if None in found:
                self._gaps.add(f"{node}:{seq} in {session} has ended for want of a device, and is held")
            for device in inside[node, session]:
                if device not in found:
                    self._add(wanted, device, _HELD)
            if _HELD not in found.values():
                self._add(wanted, None, _HELD)

    def _add(self, wanted: _Wanted, device: str | None, outcome: str) -> None:
        found = self.devices.setdefault(wanted, {})
        if device in found:
            node, seq, session = wanted
            who = device or _NO_DEVICE
            self._gaps.add(f"{node}:{seq} in {session} has two entries for {who}: {found[device]} and {outcome}")
        found[device] = outcome
        self.counted[device][outcome] += 1


def _judge_sessions(
    shares: Mapping[_Wanted, set[str | None]], devices: Mapping[_Wanted, Mapping[str | None, str]], gaps: Gaps
) -> None:
    served: defaultdict[tuple[str, int, str], list[str]] = defaultdict(list)
    withheld: set[tuple[str, int, str]] = set()
    for (node, seq, session), through in shares.items():
        found = devices.get((node, seq, session))
        has_entry = found is not None
        is_withheld = found is not None and set(found.values()) == {Outcome.WITHHELD.value}
        if None in through and not has_entry:
            gaps.add(f"{node}:{seq} matched in {session} and has no entry there")
        for share in through:
            if share is not None:
                # If a session matched outside the share too, its one entry does not show that the share gave it.
                is_served = has_entry and not is_withheld and len(through) == 1
                served[node, seq, share] += [session] if is_served else []
                if is_withheld:
                    withheld.add((node, seq, share))
    others = _served_among_others(shares, devices)
    for (node, seq, share), sessions in served.items():
        if len(sessions) > 1:
            gaps.add(f"{node}:{seq} was given to {len(sessions)} of {share}: {', '.join(sorted(sessions))}")
        elif not sessions and (node, seq, share) not in others and (node, seq, share) not in withheld:
            gaps.add(f"{node}:{seq} matched {share} and was given to none of it")
    for node, seq, session in devices:
        if (node, seq, session) not in shares:
            gaps.add(f"{node}:{seq} has an entry in {session} and did not match there")


def _served_among_others(
    shares: Mapping[_Wanted, set[str | None]], devices: Mapping[_Wanted, Container[str | None]]
) -> set[tuple[str, int, str]]:
    """Return each (node, seq, share) that a session may have got through the share, or through another filter."""
    return {
        (node, seq, share)
        for (node, seq, session), through in shares.items()
        if len(through) > 1 and (node, seq, session) in devices
        for share in through
        if share is not None
    }


def _judge_members(devices: Mapping[_Wanted, Container[str | None]], members: Iterable[Membership], gaps: Gaps) -> None:
    by_session: defaultdict[tuple[str, str], list[Membership]] = defaultdict(list)
    for member in members:
        if not member.has_left:
            by_session[member.node, member.session].append(member)
    for (node, seq, session), whose in devices.items():
        for member in by_session.get((node, session), ()):
            is_member = member.since < seq and (member.until is None or seq < member.until)
            if is_member and member.device not in whose:
                gaps.add(f"{node}:{seq} in {session} has no entry for {member.device}, which was a member")


def memberships(presence: ArrowTable, sessions: ArrowTable) -> list[Membership]:
    """Return all memberships of devices in sessions, from the log's tables ``presence`` and ``sessions``."""
    changes: list[tuple[str, int, str, str | None, str]] = [
        row
        for row in _rows(presence, "node", "seq", "session", "device", "change")
        if row[4] in {PresenceChange.JOINED.value, PresenceChange.LEFT.value}
    ]
    deleted = SessionChange.DELETED.value
    changes += [
        (node, seq, session, None, change)
        for node, seq, session, change in _rows(sessions, "node", "seq", "session", "change")
        if change == deleted
    ]
    found: list[Membership] = []
    now: dict[tuple[str, str], dict[str, int]] = {}
    for node, seq, session, device, change in sorted(changes, key=lambda row: row[:2]):
        inside = now.setdefault((node, session), {})
        if device is None:
            found += [Membership(node, session, each, since, seq) for each, since in inside.items()]
            inside.clear()
        elif change == PresenceChange.JOINED.value:
            inside.setdefault(device, seq)
        elif device in inside:
            found.append(Membership(node, session, device, inside.pop(device), seq, has_left=True))
    found += [
        Membership(node, session, device, since)
        for (node, session), inside in now.items()
        for device, since in inside.items()
    ]
    return found
