"""Start state: the first seq of a node that tables cover and, if its log was cut, the checkpoint before that seq.

A log that was cut starts at a checkpoint, as a restarted broker does. The checkpoint has the sessions with their queues
and subscriptions, the last places of devices, and the quality of their links. So the tables have all newer rows, as if
nothing had been cut.
Rule: the checkpoint is the oldest valid one after which no seq is missing, so that tables cover as much as possible.
Rule: a log that was cut and has no checkpoint (imported, or from an old broker) starts with an empty state, at its
first seq.
Rule: a start state has the same rows as a worker's state, so that the same code restores both.
Rule: a checkpoint of format 1 lacks the seqs of subscriptions. Then each subscription gets an unused seq, from 0 up. A
subscription whose filter cannot be read gets no seq, and matches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any

import cbor2

from whimbrel.errors import FilterError, InvalidInputError
from whimbrel.hold.rows import KINDS as HOLD_KINDS
from whimbrel.hold.rows import Key, subscription_row
from whimbrel.hold.sessions import Hold
from whimbrel.log import layout
from whimbrel.log.checkpoints.folder import checked, opened
from whimbrel.log.columns import to_arrow, values_to_arrow
from whimbrel.log.errors import CorruptLogError
from whimbrel.log.records import BODY, row_from
from whimbrel.match.prepared import check_stored
from whimbrel.match.topics import check_topic_filter
from whimbrel.model.facts import Decided, Fact, PolicyChange, PolicyChanged
from whimbrel.model.notification import Notification
from whimbrel.model.proximity import Sighting
from whimbrel.model.rows import fact_of, row_of
from whimbrel.model.subscription import Subscription
from whimbrel.node.memory import MemoryCount
from whimbrel.node.places.last_places import sighting_of
from whimbrel.node.policies import Policies
from whimbrel.pipeline.files.snapshots import Missing, first_number, missing_numbers, read_undisturbed
from whimbrel.pipeline.files.visibility import Patience, UnseenNumbersError
from whimbrel.pipeline.fold.described import Described, known_of
from whimbrel.pipeline.fold.policies import KeptContent, PolicyChecks, attributes_bytes, body_seen
from whimbrel.pipeline.subscriptions.in_force import in_force_values
from whimbrel.shape.rows import KINDS as POLICY_KINDS

__all__ = [
    "STATE_FORMAT",
    "StartState",
    "begin_of",
    "checkpoint_before",
    "first_taken",
    "left_out",
    "seen_start_state",
    "start_state",
    "state_at",
]

STATE_FORMAT = 4
"""Version of the format of a worker's state, stored in the row ``log mark``; also the format of a stream's plan."""
_SAME = HOLD_KINDS | POLICY_KINDS | {"link", "place"}
"""Kinds of rows that are the same in a broker's checkpoint and in a worker's state."""


@dataclass(frozen=True, kw_only=True)
class StartState:
    """The state of *node* after the fact *seq*; the fold starts with the next fact."""

    node: str
    seq: int
    name: str
    """The file name of the checkpoint."""
    at: int
    """The largest time in the state, in microseconds: of a fact, or of a tick (an advance of time without a fact)."""
    rows: tuple[tuple[Key, bytes], ...]
    """The rows of a worker's state (``unit.node_share``)."""

    @cached_property
    def _hold(self) -> Hold[Described]:
        return Hold.restore(self.node, [row for row in self.rows if row[0][0] in HOLD_KINDS])

    def places(self) -> dict[str, Sighting]:
        """Return the last known position of each device."""
        return {str(key[1]): sighting_of(row) for key, row in self.rows if key[0] == "place"}

    def members(self) -> Iterator[tuple[str, str]]:
        """Yield device and session of each member."""
        for key, _ in self.rows:
            if key[0] == "member":
                yield str(key[2]), str(key[1])

    def links(self) -> set[tuple[str, str]]:
        """Return device and session of each member, and of each device that left with deliveries in flight."""
        found = {*self.members()}
        for key, row in self.rows:
            if key[0] == "pending":
                _, _, _, _, in_flight, *later = cbor2.loads(row)
                left = later[1] if len(later) > 1 else {}
                found |= {(device, str(key[1])) for device in (*in_flight, *left)}
        return found

    def policy_rows(self) -> Any:  # a pyarrow.Table
        """Return the policies in force as rows of ``policies``."""
        facts = [
            PolicyChanged(
                node=self.node,
                seq=each.seq,
                changed_at=self.at,
                change=PolicyChange.PUT,
                owner=each.owner,
                name=each.name,
                text=each.text,
            )
            for each in _policies(self.node, self.rows).shape.policies.values()
        ]
        return to_arrow("policies", [row_of(fact)[1] for fact in facts])

    def interest_rows(self) -> Any:  # a pyarrow.Table
        """Return the subscriptions in force as rows of ``interests``."""
        return values_to_arrow("interests", list(in_force_values(self.node, self._hold, self._hold.sessions())))

    def left_out(self) -> Missing:
        """Return the range of seqs that are in no table, because the fold starts after them."""
        return Missing(self.node, 1, self.seq, self.name)


def begin_of(directory: Path, node: str) -> tuple[int, Path | None]:
    """Return the first seq of *node* that tables cover, and the checkpoint before it, or None if none is needed."""
    return read_undisturbed(partial(_begin_of, directory, node))


def first_taken(directory: Path, node: str) -> int:
    """Return the first seq of *node* that tables cover."""
    return begin_of(directory, node)[0]


def _begin_of(directory: Path, node: str) -> tuple[int, Path | None]:
    missing = missing_numbers(directory, node)
    if missing:
        cut_to = missing[-1].last
        for seq, path in layout.checkpoints(directory, node):
            if seq >= cut_to and _is_sound(path, node, seq):
                return seq + 1, path
    return first_number(directory, node), None


def _is_sound(path: Path, node: str, seq: int) -> bool:
    try:
        checked(path, node, seq)
    except CorruptLogError:
        return False
    return True


def start_state(directory: Path, node: str) -> StartState | None:
    """Return the state at which the tables of a cut log start; None if the log is whole, or has no checkpoint.

    A checkpoint that a newer Whimbrel wrote raises ``NewerLogError``.
    """
    return read_undisturbed(partial(_start_state, directory, node))


def _start_state(directory: Path, node: str) -> StartState | None:
    first, path = _begin_of(directory, node)
    if path is None:
        return None
    with opened(path, node, first - 1) as reader:
        return _restore(node, reader.header.seq, reader.header.state_at, reader.rows(), path)


def checkpoint_before(directory: Path, node: str, time_us: int) -> int | None:
    """Return the seq of the newest valid checkpoint whose state is older than *time_us*; None if there is none."""
    for seq, path in reversed(layout.checkpoints(directory, node)):
        try:
            with opened(path, node, seq) as reader:
                if reader.header.state_at >= time_us:
                    continue
            checked(path, node, seq)
        except (CorruptLogError, FileNotFoundError):
            continue
        return seq
    return None


def state_at(directory: Path, node: str, seq: int) -> StartState:
    """Return the state of the checkpoint of *node* at *seq*."""

    def find() -> StartState:
        path = next((path for each, path in layout.checkpoints(directory, node) if each == seq), None)
        if path is None:
            raise UnseenNumbersError(directory, node, seq, seq)
        with opened(path, node, seq) as reader:
            return _restore(node, seq, reader.header.state_at, reader.rows(), path)

    return read_undisturbed(find)


def left_out(directory: Path, node: str) -> list[Missing]:
    """Return the ranges of seqs that no table covers: missing seqs, and those before the checkpoint of a cut log."""
    first, path = begin_of(directory, node)
    if path is None:
        return missing_numbers(directory, node)
    return [Missing(node, 1, first - 1, path.name)]


def seen_start_state(
    directory: Path, node: str, missing: Sequence[Missing], *, last: int, patience: Patience
) -> StartState | None:
    """Return the ``start_state``; wait until this worker sees the same *missing* seqs as the driver.

    A worker may see changes of the log's folder later than the driver. Without waiting, it would mistake files that it
    does not see yet for cut ones. *last* is the last seq of the batch.
    """

    def find() -> StartState | None:
        begun = start_state(directory, node)
        here = missing_numbers(directory, node) if begun is None else [begun.left_out()]
        if here != [*missing]:
            first = next((each.first for each in here if each not in missing), 1)
            raise UnseenNumbersError(directory, node, first, last)
        return begun

    return patience.wait_for(find)


def _restore(node: str, seq: int, at: int, rows: Iterable[tuple[Key, bytes]], path: Path) -> StartState:
    """Convert the *rows* of a broker's checkpoint to a start state."""
    kept: dict[Key, bytes] = {("time",): cbor2.dumps(at), ("log mark",): cbor2.dumps([None, None, STATE_FORMAT])}
    notifications: list[Notification] = []
    shaped: dict[int, dict[str, bytes]] = {}
    decided = seq
    try:
        for key, value in rows:
            kind = key[0]
            if kind in _SAME:
                kept[key] = value
            elif kind == "notification":
                fact = _fact(node, value)
                if isinstance(fact, Notification):
                    notifications.append(fact)
            elif kind == "decided":
                decided = max(seq, cbor2.loads(value))
            elif kind == "decision":
                for body in cbor2.loads(value):
                    fact = _fact(node, body)
                    if isinstance(fact, Decided) and fact.body_hash is not None:
                        shaped.setdefault(fact.notification.seq, {})[fact.device] = fact.body_hash
        kept["decided",] = cbor2.dumps(decided)
        kept |= dict(_number_subscriptions(node, at, kept))
        checks = PolicyChecks(_policies(node, kept.items()))
        for fact in notifications:
            content = _content(fact, checks) if checks.are_any else None
            described = Described(fact.seq, known_of(fact), content=content)
            described.shaped = shaped.get(fact.seq)
            kept["notification", fact.seq] = described.row()
        for key, value in kept.items():
            if key[0] == "place":
                sighting_of(value)
    except (InvalidInputError, cbor2.CBORDecodeError, ValueError, TypeError, KeyError) as error:
        raise CorruptLogError(path, 0, f"its rows are not those of a broker: {error!r}") from None
    return StartState(node=node, seq=seq, name=path.name, at=at, rows=tuple(kept.items()))


def _policies(node: str, rows: Iterable[tuple[Key, bytes]]) -> Policies:
    policies = Policies(node, MemoryCount())
    policies.restore({key: value for key, value in rows if key[0] in policies.kinds})
    return policies


def _content(fact: Notification, checks: PolicyChecks) -> KeptContent:
    body = body_seen(fact.body) if checks.needs_bodies else None
    return KeptContent(attributes_bytes(fact.attributes), len(fact.body), body, fact.publisher)


def _fact(node: str, body: bytes) -> Fact:
    seq, number = BODY.unpack_from(body)
    return fact_of(*row_from(node, seq, number, body[BODY.size :]))


def _number_subscriptions(node: str, at: int, rows: dict[Key, bytes]) -> Iterator[tuple[Key, bytes]]:
    """Yield a new row for each subscription in *rows* that has no seq, or no time of its last change.

    A subscription whose filter cannot be read gets a new row without a seq.
    """
    hold: Hold[Notification] = Hold.restore(node, [row for row in rows.items() if row[0][0] in HOLD_KINDS])
    wanted = [each for session in hold.sessions() for each in hold.subscriptions(session)]
    taken = {each.seq for each in wanted}
    free = (number for number in count() if number not in taken)
    for each in wanted:
        seq = each.seq
        if not _is_readable(each):
            seq = None  # a dead letter, as in the log: it matches nothing
        elif seq is None:
            seq = next(free)
        if seq != each.seq or each.changed_at is None:
            changed = replace(each, seq=seq, changed_at=at if each.changed_at is None else each.changed_at)
            key: Key = ("subscription", each.session, each.subject_filter, each.name)
            yield key, cbor2.dumps(subscription_row(changed))


def _is_readable(subscription: Subscription) -> bool:
    try:
        check_stored(subscription.filter_text)
        if subscription.subject_filter is not None:
            check_topic_filter(subscription.subject_filter)
    except (FilterError, InvalidInputError):
        return False
    return True
