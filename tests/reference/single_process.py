"""The pipeline in one process, without Spark: facts in order, one matcher that changes with them, one hold.

Written to be obviously right, not fast: it is the reference that the Spark tables are tested against. It shares match
and hold with them, and nothing of how they find versions in force, split sessions into groups, or travel as Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from whimbrel.errors import FilterError
from whimbrel.hold.commands import HandOver, Identity, Settle
from whimbrel.hold.folding import Folding
from whimbrel.hold.private import asked_for
from whimbrel.hold.retention import DEFAULT_RETENTION, Retention
from whimbrel.hold.rows import KINDS as HOLD_KINDS
from whimbrel.hold.sessions import RETAINED, Hold
from whimbrel.log.columns import from_arrow
from whimbrel.match.matcher import Interest, Matcher
from whimbrel.match.prepared import check_stored
from whimbrel.model.facts import (
    Decided,
    Fact,
    InterestChanged,
    Outcome,
    PolicyChanged,
    Receipt,
    Reported,
    SessionChange,
    SessionChanged,
)
from whimbrel.model.notification import Notification
from whimbrel.model.proximity import Sighting, hears, places_at
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.node.memory import MemoryCount
from whimbrel.node.policies import Policies
from whimbrel.pipeline.fold.described import Described, HeldValues, known_of
from whimbrel.pipeline.fold.policies import Content, PolicyChecks
from whimbrel.pipeline.fold.start_state import StartState

__all__ = ["Delivery", "Match", "SingleProcess"]


@dataclass(frozen=True, slots=True)
class Match:
    """One row of ``matches``."""

    node: str
    seq: int
    session: str
    identity: Identity
    interest_seq: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """One row of ``deliveries``; two engines are equal if these sets are."""

    node: str
    seq: int
    published_at: int
    subject: str | None
    deadline_at: int | None
    session: str
    device: str | None
    subscriptions: frozenset[Identity]
    outcome: Outcome
    body_hash: bytes | None
    decided_at: int = field(compare=True)
    lapses_at: int | None = field(compare=True)
    via: str | None = None
    difference: str | None = None


class _Node:
    """One node's subscriptions, sessions and notifications."""

    def __init__(
        self, node: str, *, retention: Retention, assume_receipts: bool, begun: StartState | None = None
    ) -> None:
        self.node = node
        self.matcher = Matcher()
        rows = () if begun is None else begun.rows
        of_hold = [row for row in rows if row[0][0] in HOLD_KINDS]
        hold: Hold[Notification] = Hold.restore(node, of_hold, retention=retention)
        self.folding = Folding(node, retention=retention, assume_receipts=assume_receipts, hold=hold, judge=self.decide)
        self.policies = Policies(node, MemoryCount())
        self.policies.restore({key: value for key, value in rows if key[0] in self.policies.kinds})
        self.checks = PolicyChecks(self.policies)
        self.decides = assume_receipts
        self.interests: dict[tuple[str, Identity], int] = {}
        """The seq of the interest in force."""
        self.owners: dict[str, tuple[str, Identity]] = {}
        """Whose each id of the matcher is; ids of those that are gone do no harm."""
        self.wanted: dict[tuple[str, Identity], Subscription] = {}
        self.places: dict[str, Sighting] = {}
        """Where each device was seen last."""
        self.published: dict[int, HeldValues] = {}
        self.shaped: dict[tuple[int, str | None], bytes] = {}
        """By notification and device, the hash of the body that a policy decided to hand over."""
        self.seen: dict[int, Content] = {}
        """By notification, what policies may see of it."""
        self.differences: dict[tuple[int, str | None], str] = {}
        if begun is not None:
            self.places.update(begun.places())
        for key, row in rows:
            if key[0] == "notification":
                kept = Described.restored(int(str(key[1])), row)
                self.published[kept.seq] = kept.known
                self.shaped |= {(kept.seq, device): body for device, body in (kept.shaped or {}).items()}
                if (content := kept.readable()) is not None:
                    self.seen[kept.seq] = content

    def publish(self, fact: Notification) -> None:
        """Keep what policies may see of a notification."""
        self.published[fact.seq] = known_of(fact)
        if self.decides or self.checks.are_any:
            body = fact.body if self.decides or self.checks.needs_bodies else None
            self.seen[fact.seq] = Content(fact.attributes, fact.subject, len(fact.body), body, fact.publisher)

    def decide(self, command: HandOver) -> Outcome:
        """Let policies decide about a hand-over."""
        seq, device, hold = command.seq, command.device, self.folding.hold
        named: list[str | None] = []
        for session, identities in sorted(command.sessions):
            for identity in identities:
                subscription = hold.subscription(session, identity)
                named.append(None if subscription is None else subscription.policy)
        decided = self.checks.decide(device, named, self.seen.get(seq), now=hold.now)
        if decided.body_hash is not None:
            self.shaped[seq, device] = decided.body_hash
        return decided.outcome

    def check(self, fact: Decided) -> None:
        """Note what a decision handed over, and what it decided otherwise than its policy does."""
        seq = fact.notification.seq
        if not self.folding.hold.is_stored(seq):
            return
        if fact.body_hash is not None:
            self.shaped[seq, fact.device] = fact.body_hash
        difference = self.checks.difference(fact, self.seen.get(seq), self.published[seq].body_hash)
        if difference is not None:
            self.differences.setdefault((seq, fact.device), difference)


class SingleProcess:
    """Folds facts; ``matches`` and ``deliveries`` grow as they come."""

    def __init__(self, *, retention: Retention = DEFAULT_RETENTION, assume_receipts: bool = True) -> None:
        self._retention, self._assume_receipts = retention, assume_receipts
        self._nodes: dict[str, _Node] = {}
        self.matches: list[Match] = []
        self.deliveries: list[Delivery] = []

    def begin(self, begun: StartState) -> SingleProcess:
        """Start a node's log at a checkpoint; its facts are those after it."""
        kept = {"retention": self._retention, "assume_receipts": self._assume_receipts}
        node = self._nodes[begun.node] = _Node(begun.node, **kept, begun=begun)  # type: ignore[arg-type]  # by name
        for fact in from_arrow("interests", begun.interest_rows()):
            assert isinstance(fact, InterestChanged)
            self._change(node, fact)
        return self

    def run(self, facts: Iterable[Fact]) -> SingleProcess:
        """Take *facts* in, each node's in order of seq, and let time pass to each node's end."""
        for fact in facts:
            self._take(fact)
        for node in self._nodes.values():
            self._note(node, node.folding.tick(node.folding.hold.now))
        return self

    def _take(self, fact: Fact) -> None:
        node = self._nodes.get(fact.node)
        if node is None:
            kept = {"retention": self._retention, "assume_receipts": self._assume_receipts}
            node = self._nodes[fact.node] = _Node(fact.node, **kept)  # type: ignore[arg-type]  # by name
        wanted: list[tuple[str, tuple[Identity, ...]]] = []
        if isinstance(fact, Notification):
            node.publish(fact)
            wanted = list(self._matched(node, fact))
        elif isinstance(fact, InterestChanged):
            if not _is_readable(fact.subscription.filter_text):
                return  # a dead letter: it changes nothing
            self._change(node, fact)
        elif isinstance(fact, SessionChanged) and fact.change is SessionChange.DELETED:
            node.policies.note(fact)
            for session, identity in [key for key in node.interests if key[0] == fact.session]:
                node.matcher.remove(_id(session, identity))
                del node.interests[(session, identity)]
        elif isinstance(fact, Decided) and not self._assume_receipts:
            node.check(fact)
            node.policies.note(fact)
        elif isinstance(fact, Reported | PolicyChanged):
            if isinstance(fact, PolicyChanged):
                node.checks.note_put(fact.text)
            node.policies.note(fact)
            if isinstance(fact, Reported) and fact.state.place is not None:
                node.places[fact.state.device] = Sighting(fact.seq, fact.state.reported_at, fact.state.place)
        elif isinstance(fact, Receipt) and fact.via == RETAINED and fact.published_at is not None:
            self.deliveries.append(_retained(fact))
        self._note(node, node.folding.apply(fact, wanted))

    @staticmethod
    def _change(node: _Node, fact: InterestChanged) -> None:
        subscription = fact.subscription
        identity = (subscription.subject_filter, subscription.name)
        key = (subscription.session, identity)
        if fact.change is InterestChange.REMOVED:
            node.matcher.remove(_id(*key))
            node.interests.pop(key, None)
            return
        interest = Interest(
            filter_text=subscription.filter_text,
            subject_filter=asked_for(subscription.subject_filter),
            keys=subscription.keys,
            accept_insecure=subscription.accept_insecure,
        )
        node.matcher.add(_id(*key), interest)
        node.interests[key], node.wanted[key] = fact.seq, subscription
        node.owners[_id(*key)] = key

    def _matched(self, node: _Node, notification: Notification) -> Iterator[tuple[str, tuple[Identity, ...]]]:
        found: dict[str, list[Identity]] = {}
        for handle in node.matcher.match(notification):
            session, identity = node.owners[node.matcher.id_of(handle)]
            if not _hears(node, node.wanted[session, identity], notification):
                continue
            found.setdefault(session, []).append(identity)
            interest_seq = node.interests[(session, identity)]
            self.matches.append(Match(node.node, notification.seq, session, identity, interest_seq))
        yield from ((session, tuple(identities)) for session, identities in found.items())

    def _note(self, node: _Node, settled: list[Settle]) -> None:
        for session, device, seq, subscriptions, outcome, decided_at, lapses_at, via, _ in settled:
            what = node.published[seq]
            body_hash = None
            if outcome is Outcome.DELIVERED:
                body_hash = node.shaped.get((seq, device)) or what.body_hash
            self.deliveries.append(
                Delivery(
                    node.node,
                    seq,
                    what.published_at,
                    what.subject,
                    what.deadline_at,
                    session,
                    device,
                    frozenset(subscriptions),
                    outcome,
                    body_hash,
                    decided_at,
                    lapses_at,
                    via,
                    node.differences.get((seq, device)),
                )
            )


def _hears(node: _Node, wanted: Subscription, notification: Notification) -> bool:
    """Tell whether a session hears a notification where it is."""
    members = node.folding.hold.members(wanted.session)
    places = places_at(map(node.places.get, members), now=notification.published_at, stale_us=wanted.stale_us)
    return hears(wanted.near, places, place=notification.place, area=notification.area)


def _retained(fact: Receipt) -> Delivery:
    """Return the row of a retained notification, which its receipt says all of."""
    assert fact.published_at is not None
    return Delivery(
        fact.node,
        fact.notification.seq,
        fact.published_at,
        fact.subject,
        None,
        fact.session,
        fact.device,
        frozenset((each.subject_filter, each.name) for each in fact.subscriptions),
        fact.outcome,
        fact.body_hash if fact.outcome is Outcome.DELIVERED else None,
        fact.handed_at,
        None,
        RETAINED,
    )


def _id(session: str, identity: Identity) -> str:
    return repr((session, *identity))


def _is_readable(filter_text: str | None) -> bool:
    try:
        check_stored(filter_text)
    except FilterError:
        return False
    return True
