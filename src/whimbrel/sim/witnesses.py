"""End-to-end check: compares what the devices of a fleet sent and received with the pipeline's tables.

A device identifies a notification by the hash of its body. Bodies of a fleet differ, and all its subscriptions have
QoS 1, so that the publisher's QoS decides (``fleet``).

| seen by the device | in ``deliveries`` | |
|---|---|---|
| yes | delivered | correct |
| no | delivered | *unseen*: only at QoS 0, which counts as received when it is written to the connection; only the last messages before a disconnect |
| yes | held, or another outcome | *unconfirmed*: only at QoS 1, whose acknowledgement was lost with the connection |

The same for publications: an acknowledged one is in the log exactly once; a QoS 0 publication of a sensor that
disconnected may be missing; a QoS 1 publication without an answer may be in the log or not.
Rule: every other difference is reported as a gap.
"""  # noqa: E501 # a table

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from whimbrel.model.facts import Outcome, PresenceChange
from whimbrel.pipeline.accounts import ArrowTable, Entries, Gaps

__all__ = ["Heard", "Logged", "Received", "Sent", "Spoken", "compare_heard", "compare_sent", "read_logged"]

_DELIVERED = Outcome.DELIVERED.value

_Id: TypeAlias = tuple[str, int]
"""Node and seq of a notification."""


class Logged(NamedTuple):
    """A publication in the log."""

    node: str
    seq: int
    qos: int
    body_hash: bytes


def read_logged(publications: ArrowTable) -> list[Logged]:
    """Return the rows of *publications*, a table with node, seq, qos and body_hash."""
    columns = (publications.column(name).to_pylist() for name in Logged._fields)
    return [Logged(*row) for row in zip(*columns, strict=True)]


# -- publications ------------------------------------------------------------------------------------------------------


class Sent(NamedTuple):
    """A publication, as its publisher recorded it."""

    device: str
    qos: int
    is_acknowledged: bool
    """Always False at QoS 0."""
    has_gone: bool
    """Whether its connection broke without DISCONNECT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """Numbers of the fleet's publications, by their fate."""

    acknowledged: int
    """QoS 1, acknowledged; all of them are in the log."""
    once: int
    """QoS 0, in the log."""
    lost: int
    """QoS 0, sent over a connection that broke, and not in the log."""
    in_doubt: int
    """QoS 1, without an answer."""
    arrived: int
    """Those of ``in_doubt`` that are in the log."""
    in_log: int
    """All publications in the log."""


def compare_sent(sent: Mapping[bytes, Sent], found: Iterable[Logged], gaps: Gaps) -> Spoken:
    """Compare the publications *sent*, by the hash of their body, with those *found* in the log."""
    counts = Counter(publication.body_hash for publication in found)
    for publication in found:
        if publication.body_hash not in sent:
            gaps.add(f"{publication.node}:{publication.seq} is in the log, and no device says that it sent it")
    kinds: Counter[str] = Counter()
    for body_hash, each in sent.items():
        times = counts[body_hash]
        if times > 1:
            gaps.add(f"a publication of {each.device} is in the log {times} times")
        if each.is_acknowledged:
            kinds["acknowledged"] += 1
            if not times:
                gaps.add(f"a publication of {each.device} was acknowledged and is not in the log")
        elif each.qos:
            kinds["in_doubt"] += 1
            kinds["arrived"] += bool(times)
            if not each.has_gone:
                gaps.add(f"a publication of {each.device}, which stayed, was never acknowledged")
        elif times:
            kinds["once"] += 1
        else:
            kinds["lost"] += 1
            if not each.has_gone:
                gaps.add(f"a publication of {each.device} at QoS 0, which stayed, is not in the log")
    return Spoken(
        acknowledged=kinds["acknowledged"],
        once=kinds["once"],
        lost=kinds["lost"],
        in_doubt=kinds["in_doubt"],
        arrived=kinds["arrived"],
        in_log=sum(counts.values()),
    )


# -- deliveries --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Heard:
    """The notifications that one device received."""

    times: Counter[bytes] = field(default_factory=Counter)
    """Number of receptions, by the hash of the body."""
    unmarked: int = 0
    """Number of repetitions without the flag DUP."""
    is_present: bool = False
    """Whether it was connected at the end, when nothing was in flight any more."""

    def note(self, body_hash: bytes, *, is_dup: bool) -> None:
        """Record that a notification arrived."""
        self.unmarked += body_hash in self.times and not is_dup
        self.times[body_hash] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Numbers for one device: notifications received, and the permitted differences from the pipeline's account."""

    device: str
    notifications: int
    """Different notifications that the device received."""
    again: int
    """Repetitions, all with the flag DUP."""
    unseen: int
    """Delivered at QoS 0 according to the tables, and never received."""
    unconfirmed: int
    """Received, but the acknowledgement was lost."""


class _Once(NamedTuple):
    """One QoS 0 delivery: index of the device's connection, seq, and whether the device received it."""

    connection: int
    seq: int
    is_seen: bool


def compare_heard(
    heard: Mapping[str, Heard],
    found: Iterable[Logged],
    *,
    deliveries: ArrowTable,
    entries: Entries,
    presence: ArrowTable,
    gaps: Gaps,
) -> tuple[Received, ...]:
    """Compare the notifications that each device *heard* with ``deliveries`` and the *entries* of the account."""
    by_id = {(each.node, each.seq): each for each in found}
    ids = {each.body_hash: (each.node, each.seq) for each in by_id.values()}
    delivered, entered = _index_deliveries(deliveries), _index_entries(entries)
    departures = _departures(presence)
    told: list[Received] = []
    for device in sorted(heard):
        witness = heard[device]
        seen = {ids[body_hash] for body_hash in witness.times if body_hash in ids}
        if len(seen) < len(witness.times):
            gaps.add(f"{device} received what is not in the log")
        if witness.unmarked:
            gaps.add(f"{device} received {witness.unmarked} again that were not marked DUP")
        confirmed = delivered.get(device, {})
        ended = departures.get(device, [])
        for gap in _unseen_gaps(device, seen, confirmed, by_id, ended=ended, is_present=witness.is_present):
            gaps.add(gap)
        for node, seq in sorted(seen - confirmed.keys()):
            if by_id[node, seq].qos == 0:
                gaps.add(f"{device} received {node}:{seq} at QoS 0, and it is not delivered")
            elif (node, seq) not in entered.get(device, ()):
                gaps.add(f"{device} received {node}:{seq}, which no record says was for it")
        told.append(
            Received(
                device=device,
                notifications=len(witness.times),
                again=witness.times.total() - len(witness.times),
                unseen=len(confirmed.keys() - seen),
                unconfirmed=len(seen - confirmed.keys()),
            )
        )
    for device in sorted(delivered.keys() - heard.keys()):
        gaps.add(f"{device} has deliveries, and there is no such device")
    return tuple(told)


def _index_deliveries(deliveries: ArrowTable) -> dict[str, dict[_Id, int]]:
    """Return, per device, the notifications delivered to it and the times, in microseconds."""
    found: defaultdict[str, dict[_Id, int]] = defaultdict(dict)
    times = deliveries.column("decided_at").cast("int64").to_pylist()
    names = ("notification_node", "notification_seq", "device", "outcome")
    columns = (deliveries.column(name).to_pylist() for name in names)
    for node, seq, device, outcome, at in zip(*columns, times, strict=True):
        if device is not None and outcome == _DELIVERED:
            # A notification of several sessions is one copy; the first receipt belongs to it.
            found[device][node, seq] = min(found[device].get((node, seq), at), at)
    return found


def _index_entries(entries: Entries) -> dict[str | None, set[_Id]]:
    """Return, per device, the notifications with an entry that is not *delivered*."""
    found: defaultdict[str | None, set[_Id]] = defaultdict(set)
    for (node, seq, _), outcomes in entries.devices.items():
        for device, outcome in outcomes.items():
            if outcome != _DELIVERED:
                found[device].add((node, seq))
    return found


def _departures(presence: ArrowTable) -> dict[str, list[int]]:
    """Return, per device, the ends of its connections in ascending microseconds; the last end is the broker's stop."""
    ended: defaultdict[str, list[int]] = defaultdict(list)
    times = presence.column("changed_at").cast("int64").to_pylist()
    columns = (presence.column(name).to_pylist() for name in ("device", "change"))
    for device, change, at in zip(*columns, times, strict=True):
        if change == PresenceChange.DISCONNECTED.value:
            ended[device].append(at)
    return {device: sorted(moments) for device, moments in ended.items()}


def _unseen_gaps(
    device: str,
    seen: set[_Id],
    delivered: Mapping[_Id, int],
    by_id: Mapping[_Id, Logged],
    *,
    ended: list[int],
    is_present: bool,
) -> Iterator[str]:
    """Yield a gap for each delivery that the device missed; at QoS 0 the last of a connection may be missing."""
    once: list[_Once] = []
    for (node, seq), at in delivered.items():
        found = by_id.get((node, seq))
        if found is None:
            yield f"{node}:{seq} was delivered to {device} and is not in the log"
        elif found.qos == 0:
            once.append(_Once(bisect_left(ended, at), seq, (node, seq) in seen))
        elif (node, seq) not in seen:
            yield f"{node}:{seq} at QoS {found.qos} was delivered to {device}, which never saw it"
    last_seen: dict[int, int] = {}
    for number, seq, is_seen in once:
        if is_seen:
            last_seen[number] = max(last_seen.get(number, -1), seq)
    for number, seq, is_seen in once:
        if is_seen:
            continue
        if seq < last_seen.get(number, -1):
            yield f"number {seq} at QoS 0 was delivered to {device}, which saw later ones and not this"
        elif is_present and number >= len(ended) - 1:
            yield f"number {seq} at QoS 0 was delivered to {device}, which stayed and never saw it"
