"""Beginnings: the first number of a node's log that tables are made of, and the state before it, of a checkpoint.

A log that was cut begins at a checkpoint, as a restart of the broker does: with what sessions held and wanted, and
with how good links were. What is newer is then in the tables as if nothing had been cut.
Rule: the oldest sound checkpoint counts after which no number is missing, so that as much as can be is in the tables.
Rule: a log that was cut and has no checkpoint (imported, or of an old broker) begins with nothing, at its first number.
Rule: where a checkpoint does not say the number of a subscription (one of format 1), the subscription gets one that no
other has, from 0 up: it is in force for all that follows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import cbor2

from whimbrel.errors import FilterError, InvalidInputError
from whimbrel.hold.rows import Key
from whimbrel.hold.sessions import Hold
from whimbrel.log import layout
from whimbrel.log.checkpoints.folder import checked, opened
from whimbrel.log.columns import to_arrow
from whimbrel.log.errors import CorruptLogError
from whimbrel.log.records import BODY, row_from
from whimbrel.match.matcher import check_stored
from whimbrel.match.topics import check_topic_filter
from whimbrel.model.facts import Decided, Fact, InterestChanged, PolicyChange, PolicyChanged
from whimbrel.model.notification import Notification
from whimbrel.model.place import Place
from whimbrel.model.proximity import Sighting
from whimbrel.model.rows import fact_of, row_of
from whimbrel.model.subscription import InterestChange
from whimbrel.pipeline.files.snapshots import Missing, first_number, missing_numbers, undisturbed
from whimbrel.pipeline.files.visibility import Patience, UnseenNumbersError
from whimbrel.pipeline.fold.policies import KeptContent, PolicyFold, attributes_bytes, body_seen
from whimbrel.shape.rows import KINDS as SHAPE_KINDS
from whimbrel.shape.variables import LinkState

__all__ = ["Beginning", "Known", "begin_of", "beginning", "first_taken", "known_of", "left_out", "seen_beginning"]

_HOLD = frozenset({"session", "subscription", "member", "pending", "copy", "shaped", "turn", "now"})
"""The kinds of rows that are the hold's; a broker's view has others beside them."""


class Known(NamedTuple):
    """What is kept of a notification while a device is owed it, to describe it; times in microseconds."""

    body_hash: bytes
    published_at: int
    subject: str | None
    deadline_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The state of *node* after the fact *seq*: what is folded next is the one after it."""

    node: str
    seq: int
    name: str
    """What its file is called."""
    at: int
    """The largest time of any fact or tick in the state, in microseconds."""
    hold: tuple[tuple[Key, bytes], ...]
    """The rows of the hold."""
    interests: tuple[InterestChanged, ...]
    """The subscriptions in force, as the facts that put them; when that was is not known, so they say *at*."""
    known: Mapping[int, Known] = field(default_factory=dict)
    """By number, the notifications that are held."""
    shaped: Mapping[int, Mapping[str, bytes]] = field(default_factory=dict)
    """By number and device, the hash of the body that a policy decided to hand over."""
    links: Mapping[str, LinkState] = field(default_factory=dict)
    """By device, how good its link was at its last report,"""
    places: Mapping[str, Sighting] = field(default_factory=dict)
    """and where it was seen last."""
    shape: tuple[tuple[Key, bytes], ...] = ()
    """The rows of what policies depend on (``shape.rows``),"""
    decided: int = 0
    """the last number that is in these, which may be later than *seq*,"""
    contents: Mapping[int, KeptContent] = field(default_factory=dict)
    """and by number, what policies may see of what is held."""

    def policy_rows(self) -> Any:  # a pyarrow.Table
        """Return the policies in force as rows of ``policies``."""
        state = PolicyFold.restore(self.shape, 0).shape
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
            for each in state.policies.values()
        ]
        return to_arrow("policies", [row_of(fact)[1] for fact in facts])

    def interest_rows(self) -> Any:  # a pyarrow.Table
        """Return the subscriptions in force as rows of ``interests``."""
        return to_arrow("interests", [row_of(fact)[1] for fact in self.interests])

    def left_out(self) -> Missing:
        """Return the numbers that are in no table because of it."""
        return Missing(self.node, 1, self.seq, self.name)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield device and session of each member."""
        for key, _ in self.hold:
            if key[0] == "member":
                yield str(key[2]), str(key[1])


def begin_of(directory: Path, node: str) -> tuple[int, Path | None]:
    """Return the first number of *node* that tables are made of, and the checkpoint before it, if that is needed."""
    return undisturbed(partial(_begin_of, directory, node))


def first_taken(directory: Path, node: str) -> int:
    """Return the first number of *node* that tables are made of."""
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


def beginning(directory: Path, node: str) -> Beginning | None:
    """Return the checkpoint that a cut log begins at; None for one that begins with its first number, or has none.

    One that a newer Whimbrel wrote raises ``NewerLogError``.
    """
    return undisturbed(partial(_beginning, directory, node))


def _beginning(directory: Path, node: str) -> Beginning | None:
    first, path = _begin_of(directory, node)
    if path is None:
        return None
    with opened(path, node, first - 1) as reader:
        return _restored(node, reader.header.seq, reader.header.state_at, reader.rows(), path)


def left_out(directory: Path, node: str) -> list[Missing]:
    """Return the numbers that were given and are in no table: those that are not there, or older than a checkpoint."""
    first, path = begin_of(directory, node)
    if path is None:
        return missing_numbers(directory, node)
    return [Missing(node, 1, first - 1, path.name)]


def seen_beginning(
    directory: Path, node: str, missing: Sequence[Missing], *, last: int, patience: Patience
) -> Beginning | None:
    """Return the ``beginning``, once what is *missing* before it is what the driver saw; *last* is the batch's.

    Else a worker that sees the log later than the driver would take what it does not see yet for cut.
    """

    def found() -> Beginning | None:
        begun = beginning(directory, node)
        here = missing_numbers(directory, node) if begun is None else [begun.left_out()]
        if here != [*missing]:
            first = next((each.first for each in here if each not in missing), 1)
            raise UnseenNumbersError(directory, node, first, last)
        return begun

    return patience.wait_for(found)


def _restored(node: str, seq: int, at: int, rows: Iterable[tuple[Key, bytes]], path: Path) -> Beginning:
    hold: list[tuple[Key, bytes]] = []
    known: dict[int, Known] = {}
    shaped: dict[int, dict[str, bytes]] = {}
    links: dict[str, LinkState] = {}
    places: dict[str, Sighting] = {}
    shape: list[tuple[Key, bytes]] = []
    held: list[Notification] = []
    decided = seq
    try:
        for key, value in rows:
            if key[0] in _HOLD:
                hold.append((key, value))
            elif key[0] == "link":
                links[str(key[1])] = LinkState(*cbor2.loads(value))
            elif key[0] == "place":
                number, reported_at, *where = cbor2.loads(value)
                places[str(key[1])] = Sighting(number, reported_at, Place(*where))
            elif key[0] == "notification":
                fact = _fact(node, value)
                if isinstance(fact, Notification):
                    known[fact.seq] = known_of(fact)
                    held.append(fact)
            elif key[0] in SHAPE_KINDS:
                shape.append((key, value))
            elif key[0] == "decided":
                decided = max(seq, cbor2.loads(value))
            elif key[0] == "decision":
                for body in cbor2.loads(value):
                    fact = _fact(node, body)
                    if isinstance(fact, Decided) and fact.body_hash is not None:
                        shaped.setdefault(fact.notification.seq, {})[fact.device] = fact.body_hash
        interests = tuple(_interests(node, at, hold))
        policies = PolicyFold.restore(shape, decided)
    except (InvalidInputError, cbor2.CBORDecodeError, ValueError, TypeError, KeyError) as error:
        raise CorruptLogError(path, 0, f"its rows are not those of a broker: {error!r}") from None
    return Beginning(
        node=node,
        seq=seq,
        name=path.name,
        at=at,
        hold=tuple(hold),
        interests=interests,
        known=known,
        shaped=shaped,
        links=links,
        places=places,
        shape=tuple(shape),
        decided=decided,
        contents={fact.seq: _content(fact, policies) for fact in held} if policies.are_any else {},
    )


def _content(fact: Notification, policies: PolicyFold) -> KeptContent:
    body = body_seen(fact.body) if policies.needs_bodies else None
    return KeptContent(attributes_bytes(fact.attributes), len(fact.body), body, fact.publisher)


def known_of(fact: Notification) -> Known:
    """Return what is kept of a notification."""
    return Known(hashlib.sha256(fact.body).digest(), fact.published_at, fact.subject, fact.deadline_at)


def _fact(node: str, body: bytes) -> Fact:
    seq, number = BODY.unpack_from(body)
    return fact_of(*row_from(node, seq, number, body[BODY.size :]))


def _interests(node: str, at: int, rows: Iterable[tuple[Key, bytes]]) -> Iterator[InterestChanged]:
    hold: Hold[Notification] = Hold.restore(node, rows)
    wanted = [each for session in hold.sessions() for each in hold.subscriptions(session)]
    taken = {each.seq for each in wanted}
    free = (number for number in count() if number not in taken)
    for subscription in wanted:
        if not _is_readable(subscription.subject_filter, subscription.filter_text):
            continue  # a dead letter, as in the log: it matches nothing
        seq = next(free) if subscription.seq is None else subscription.seq
        yield InterestChanged(node=node, seq=seq, changed_at=at, change=InterestChange.ADDED, subscription=subscription)


def _is_readable(subject_filter: str | None, filter_text: str | None) -> bool:
    try:
        check_stored(filter_text)
        if subject_filter is not None:
            check_topic_filter(subject_filter)
    except (FilterError, InvalidInputError):
        return False
    return True
