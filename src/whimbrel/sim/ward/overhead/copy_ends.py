"""The outcomes of all copies in a log: a fold of the node's facts, up to the last expiry.

A copy that was not received before its expiry has no receipt: the fold expires it, as a restarted broker does.
Rule: the fold's time ends at the last expiry. A copy without an expiry ends only by a receipt; without one it is open.
Rule: subscriptions are those of MQTT clients without content filters, keys and places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whimbrel.hold.commands import Identity, Settle
from whimbrel.hold.folding import Folding
from whimbrel.hold.sessions import Hold
from whimbrel.match.topics import matches
from whimbrel.model.facts import Fact, InterestChanged, Outcome, Receipt, SessionChange, SessionChanged
from whimbrel.model.notification import Notification
from whimbrel.model.subscription import InterestChange

__all__ = ["Copies", "fold_copies", "judge_copies"]

_ENDS = frozenset({Outcome.DELIVERED, Outcome.WITHHELD, Outcome.EXPIRED})

Copy = tuple[int, str]
"""Seq of a notification, and a device."""


@dataclass(slots=True)
class Copies:
    """The copies of a log's notifications, and their outcomes."""

    published: dict[int, Notification] = field(default_factory=dict)
    """The notifications, by seq."""
    ends: dict[Copy, list[Outcome]] = field(default_factory=dict)
    """The outcomes of each copy; more than one is an error."""
    receipts: Counter[Copy] = field(default_factory=Counter)
    in_flight: set[Copy] = field(default_factory=set)
    """Open copies that are in flight to the device."""


def fold_copies(facts: Iterable[Fact], node: str, *, below: str) -> Copies:
    """Fold the log of *node*; return the copies of the notifications whose subject begins with *below*."""
    found, wanted = Copies(), dict[tuple[str, Identity], str]()
    hold: Hold[Any] = Hold(node)
    folding = Folding(node, hold=hold, assume_receipts=False)
    for fact in facts:
        matched: list[tuple[str, tuple[Identity, ...]]] = []
        if isinstance(fact, Notification):
            if (fact.subject or "").startswith(below):
                found.published[fact.seq] = fact
            matched = _match(wanted, fact.subject or "")
        elif isinstance(fact, InterestChanged):
            subscription = fact.subscription
            key = subscription.session, (subscription.subject_filter, subscription.name)
            wanted.pop(key, None)
            if fact.change is not InterestChange.REMOVED:
                wanted[key] = subscription.subject_filter or ""
        elif isinstance(fact, SessionChanged) and fact.change is SessionChange.DELETED:
            wanted = {key: each for key, each in wanted.items() if key[0] != fact.session}
        elif isinstance(fact, Receipt):
            found.receipts[fact.notification.seq, fact.device] += 1
        _note(found, folding.apply(fact, matched))
    expiries = (each.expires_at for each in found.published.values() if each.expires_at is not None)
    _note(found, folding.tick(max(expiries, default=hold.now)))
    found.in_flight = {(seq, device) for _, seq, devices in hold.pending() for device in devices}
    return found


def _match(wanted: Mapping[tuple[str, Identity], str], subject: str) -> list[tuple[str, tuple[Identity, ...]]]:
    sessions: dict[str, list[Identity]] = {}
    for (session, identity), subject_filter in wanted.items():
        if matches(subject_filter, subject):
            sessions.setdefault(session, []).append(identity)
    return [(session, tuple(identities)) for session, identities in sessions.items()]


def _note(found: Copies, settled: Iterable[Settle]) -> None:
    for each in settled:
        if each.seq in found.published:
            device = each.device or f"nobody in {each.session}"
            found.ends.setdefault((each.seq, device), []).append(each.outcome)


def judge_copies(
    copies: Copies, arrived: Mapping[str, Counter[int]], marked: Mapping[str, Counter[int]]
) -> Iterator[str]:
    """Yield a sentence for each copy that is open, has a wrong or a second outcome, or contradicts its device.

    *arrived* counts, per device, the deliveries of each reading, by the number at the end of its subject; *marked*
    counts those with the flag DUP.
    """
    by_reading: dict[int, list[int]] = {}
    for seq, notification in copies.published.items():  # a reading whose PUBACK was lost was published twice
        by_reading.setdefault(int((notification.subject or "").rsplit("/", 1)[1]), []).append(seq)
        for device in arrived:
            said = _wrong_end(copies, seq, device)
            if said:
                yield f"{seq} for {device} {said}"
    for seq, device in copies.ends:
        if device not in arrived:
            yield f"{seq} ended for {device}"
    for reading, seqs in by_reading.items():
        for device, came in arrived.items():
            said = _contradiction({end for seq in seqs for end in copies.ends.get((seq, device), ())}, came[reading])
            if (unmarked := came[reading] - marked[device][reading]) > len(seqs):
                said = f"came {unmarked} times without a mark"
            if said:
                yield f"{', '.join(map(str, seqs))} for {device} {said}"


def _wrong_end(copies: Copies, seq: int, device: str) -> str:
    """Describe what is wrong with the outcome of a copy, or return an empty string."""
    ends: Sequence[Outcome] = copies.ends.get((seq, device), ())
    expires = copies.published[seq].expires_at is not None
    if not ends:
        on_its_way = "on its way" if (seq, device) in copies.in_flight else "held"
        return f"is open: {on_its_way}, {'and has expired' if expires else 'without an expiry'}"
    if len(ends) > 1 or copies.receipts[seq, device] > 1:
        return f"ended {len(ends)} times, with {copies.receipts[seq, device]} receipts"
    if ends[0] not in _ENDS or (ends[0] is Outcome.EXPIRED and not expires):
        return f"is {ends[0].value}, {'with' if expires else 'without'} an expiry"
    return ""


def _contradiction(ends: set[Outcome], came: int) -> str:
    """Describe how the outcomes of a reading contradict what its device received, or return an empty string."""
    if Outcome.DELIVERED in ends and not came:
        return "is delivered, and never came"
    if ends == {Outcome.WITHHELD} and came:
        return "is withheld, and came"
    return ""
