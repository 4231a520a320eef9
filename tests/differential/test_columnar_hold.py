"""The columnar hold against the rules of the hold, on random histories of plain sessions."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from whimbrel.hold.commands import Identity, Settle
from whimbrel.hold.folding import Folding, one_by_one
from whimbrel.hold.retention import Retention
from whimbrel.hold.shared_subscriptions import sorted_matches
from whimbrel.log.columns import to_arrow
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import (
    InterestChanged,
    Mode,
    Outcome,
    PresenceChange,
    PresenceChanged,
    SessionChange,
    SessionChanged,
)
from whimbrel.model.notification import Notification
from whimbrel.model.rows import row_of
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.pipeline.columnar import columnar_hold
from whimbrel.pipeline.columnar.columnar_hold import ColumnarHold
from whimbrel.pipeline.columnar.plain_sessions import SUBSCRIBED, PlainSessions, find_plain_sessions
from whimbrel.pipeline.fold.folds import EVENT, PUBLISHED

NODE, FACTS = "n", 500
SESSIONS, DEVICES = ("s", "t", "u"), ("d1", "d2", "d3", "d4")
IDENTITIES: tuple[Identity, ...] = (("b", ""), ("a", "x"), (None, "y"), ("a", ""))
RETENTION = Retention(ttl_us=30, max_held=3)
Row = tuple[Any, ...]
_SUBSCRIBED = pa.schema([(name, pa.int8() if name == "qos" else pa.string()) for name in SUBSCRIBED])


class _History:
    """A random log, given to the rules fact by fact, and to the columnar hold in pieces."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.seq, self.now = 0, -2_000 if seed % 3 else 1_000  # the first cross the year 1970
        self._rules = Folding(NODE, retention=RETENTION)
        self._interests: dict[tuple[str, Identity], int] = {}
        """Seq of the row that made each subscription in force."""
        self.wanted: list[Settle] = []
        self.facts: list[Any] = []
        self.published: list[dict[str, Any]] = []
        self.cuts: list[tuple[int, int, int]] = []
        """Per piece, the numbers of facts and of publications before its end, and its last seq."""
        self.ends: list[int] = []

    def step(self) -> None:
        self.seq += 1
        self.now += self.random.choice((0, 0, 1, 5, 40))
        kind = self.random.random()
        if kind < 0.55:
            self._publish()
        elif kind < 0.8:
            self._apply(self._presence())
        elif kind < 0.98:
            self._apply(self._interest())
        else:
            change = self.random.choice((SessionChange.DELETED, SessionChange.CREATED))
            session = self.random.choice(SESSIONS)
            self._interests = {
                pair: seq
                for pair, seq in self._interests.items()
                if change is SessionChange.CREATED or pair[0] != session
            }
            self._apply(SessionChanged(node=NODE, seq=self.seq, changed_at=self.now, session=session, change=change))
        if self.random.random() < 0.02:
            self.cut()

    def cut(self) -> None:
        """End a piece; the time goes on to its end."""
        self.wanted += self._rules.tick(self.now)
        self.cuts.append((len(self.facts), len(self.published), self.seq))
        self.ends.append(self.now)

    def _apply(self, fact: Any) -> None:
        self.facts.append(fact)
        self.wanted += self._rules.apply(fact)

    def _publish(self) -> None:
        """Publish; the time of a publication may lie before that of the last fact, as in a log from elsewhere."""
        random = self.random
        at = self.now - random.choice((0, 0, 0, 7, 50))
        chosen = [pair for pair in self._interests if random.random() < 0.6]
        expires_at = random.choice((None, None, at, self.now + 10, self.now + 50))
        by_session: dict[str, list[Identity]] = {}
        for session, identity in chosen:
            by_session.setdefault(session, []).append(identity)
        if not by_session:
            return
        matches = sorted_matches([(name, tuple(found)) for name, found in by_session.items()])
        kept = Notification(node=NODE, seq=self.seq, published_at=at, expires_at=expires_at)
        self.wanted += one_by_one(self._rules.published(kept, matches, is_decided=random.random() < 0.5))
        interests = [self._interests[pair] for pair in chosen]
        self.published.append(
            {"seq": self.seq, "kind": PUBLISHED, "at": at, "expires_at": expires_at, "interests": interests}
        )

    def _presence(self) -> PresenceChanged:
        random = self.random
        change = random.choice((*(PresenceChange.JOINED,) * 4, PresenceChange.LEFT, PresenceChange.DISCONNECTED))
        is_joined = change is PresenceChange.JOINED
        return PresenceChanged(
            node=NODE,
            seq=self.seq,
            changed_at=self.now,
            device=random.choice(DEVICES),
            session=None if change is PresenceChange.DISCONNECTED else random.choice(SESSIONS),
            change=change,
            receipt=random.choice((Mode.KEEP, Mode.KEEP, Mode.TAKE)) if is_joined else None,
        )

    def _interest(self) -> InterestChanged:
        random = self.random
        session, identity = random.choice(SESSIONS), random.choice(IDENTITIES)
        change = random.choice((InterestChange.ADDED, InterestChange.MODIFIED, InterestChange.REMOVED))
        if change is InterestChange.REMOVED:
            self._interests.pop((session, identity), None)
        else:
            self._interests[session, identity] = self.seq
        subscription = Subscription(
            session=session,
            subject_filter=identity[0],
            name=identity[1],
            ttl_us=random.choice((None, 0, 3, 20, 100, INT64_MAX)),
            max_held=random.choice((None, 0, 1, 2)),
        )
        return InterestChanged(node=NODE, seq=self.seq, changed_at=self.now, change=change, subscription=subscription)

    # -- the columnar hold ---------------------------------------------------------------------------------------------

    def plain(self) -> PlainSessions:
        """Return what a batch run finds of the sessions before it starts."""
        joined = [
            (each.device, each.session)
            for each in self.facts
            if isinstance(each, PresenceChanged) and each.session is not None
        ]
        return find_plain_sessions(_table("interests", self.facts).select(SUBSCRIBED), joined)

    def columnar(self) -> list[Row]:
        """Return the rows that the columnar hold makes, piece by piece."""
        hold = ColumnarHold(NODE, self.plain(), retention=RETENTION)
        found: list[Row] = []
        facts = publications = 0
        for (fact_end, publication_end, last), end in zip(self.cuts, self.ends, strict=True):
            own = self.facts[facts:fact_end]
            tables = {name: _table(name, own) for name in ("interests", "presence", "sessions")}
            events = _events(self.published[publications:publication_end])
            facts, publications = fact_end, publication_end
            for batch in hold.take(tables, events, end, last):
                found += _rows(batch)
        return found


def _table(name: str, facts: list[Any]) -> Any:  # a pyarrow.Table
    rows = [values for table, values in map(row_of, facts) if table == name]
    return to_arrow(name, rows)


def _events(published: list[dict[str, Any]]) -> Any:  # a pyarrow.Table
    hashed = [each | {"body_hash": bytes(32)} for each in published]
    return pa.Table.from_pylist(hashed, schema=EVENT)


def _rows(batch: Any) -> list[Row]:
    times = {name: batch.column(name).cast(pa.int64()).to_pylist() for name in ("decided_at", "lapses_at")}
    names = ("notification_seq", "session", "device", "subscriptions", "outcome", "via")
    columns = [batch.column(name).to_pylist() for name in names]
    return [
        (seq, session, device, _identities(subscriptions), outcome, at, lapses_at, via)
        for seq, session, device, subscriptions, outcome, via, at, lapses_at in zip(
            *columns, times["decided_at"], times["lapses_at"], strict=True
        )
    ]


def _identities(subscriptions: list[dict[str, Any]]) -> tuple[Identity, ...]:
    return tuple((each["subject_filter"], each["name"]) for each in subscriptions)


def _row(settle: Settle) -> Row:
    end = settle.decided_at, settle.lapses_at, settle.via
    return settle.seq, settle.session, settle.device, settle.subscriptions, settle.outcome.value, *end


@pytest.mark.parametrize("seed", range(40))
def test_the_columnar_hold_makes_the_rows_of_the_rules(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Devices in several sessions, take and keep, ttl and max at their ends, late publications, cut anywhere."""
    if seed % 2:  # the kernel is called many times for a piece
        monkeypatch.setattr(columnar_hold, "_MATCHES_AT_ONCE", 5)
        monkeypatch.setattr(columnar_hold, "_ROWS_AT_ONCE", 3)
    history = _History(seed)
    for _ in range(FACTS):
        history.step()
    history.cut()
    found = history.columnar()
    assert Counter(found) == Counter(map(_row, history.wanted))


def test_random_histories_have_every_outcome() -> None:
    """A comparison of histories in which little happens would prove little."""
    found: Counter[tuple[Outcome, str | None, bool]] = Counter()
    for seed in range(10):
        history = _History(seed)
        for _ in range(FACTS):
            history.step()
        found.update((each.outcome, each.via, each.device is None) for each in history.wanted)
    delivered = {(Outcome.DELIVERED, via, False) for via in (None, "live", "held")}
    ended = (Outcome.EXPIRED, Outcome.DISPLACED, Outcome.TAKEN_ELSEWHERE, Outcome.DROPPED)
    assert found.keys() >= delivered | {(outcome, None, False) for outcome in ended}
    assert found.keys() >= {(outcome, None, True) for outcome in ended if outcome is not Outcome.TAKEN_ELSEWHERE}


def test_many_sets_of_subscriptions_keep_their_names() -> None:
    """The hash table that numbers the sets grows in the middle of a batch."""
    random, names = Random(5), [f"w{number:02}" for number in range(12)]
    rows: list[dict[str, Any]] = [{"session": "s", "subject_filter": None, "name": name} for name in names]
    plain = find_plain_sessions(pa.Table.from_pylist(rows, schema=_SUBSCRIBED), [("d", "s")])
    hold = ColumnarHold(NODE, plain, retention=RETENTION)
    made = [
        InterestChanged(
            node=NODE,
            seq=seq,
            changed_at=1,
            change=InterestChange.ADDED,
            subscription=Subscription(session="s", subject_filter=None, name=name),
        )
        for seq, name in enumerate(names, start=1)
    ]
    join = PresenceChanged(
        node=NODE, seq=20, changed_at=1, device="d", session="s", change=PresenceChange.JOINED, receipt=Mode.TAKE
    )
    chosen = {seq: random.sample(range(1, 13), random.randint(1, 12)) for seq in range(100, 3_100)}
    events = [{"seq": seq, "kind": PUBLISHED, "at": seq, "interests": found} for seq, found in chosen.items()]
    tables = {"interests": _table("interests", made), "presence": _table("presence", [join])}
    found = [row for batch in hold.take(tables, _events(events), None, 4_000) for row in _rows(batch)]
    assert {row[0]: {identity[1] for identity in row[3]} for row in found} == {
        seq: {names[number - 1] for number in numbers} for seq, numbers in chosen.items()
    }


# -- plain sessions ----------------------------------------------------------------------------------------------------


def _plain(rows: list[dict[str, Any]], joined: list[tuple[str, str]]) -> set[str]:
    return {*find_plain_sessions(pa.Table.from_pylist(rows, schema=_SUBSCRIBED), joined).identities}


@pytest.mark.parametrize(
    "special",
    [
        {"session": "t", "subject_filter": "a", "name": "", "qos": 0},
        {"session": "t", "subject_filter": "a", "name": "", "policy": "p"},
        {"session": "t", "subject_filter": "$share/g/a", "name": ""},
        {"session": "$mqtt/d", "subject_filter": "a", "name": ""},
    ],
)
def test_what_shares_a_device_with_a_special_session_is_not_plain(special: dict[str, Any]) -> None:
    """Such sessions depend on each other, so the same engine must compute both."""
    rows = [{"session": name, "subject_filter": "a", "name": ""} for name in ("s", "u", "v")]
    joined = [("d", special["session"]), ("d", "s"), ("e", "s"), ("e", "u"), ("f", "v")]
    assert _plain([*rows, special], joined) == {"v"}


def test_a_session_with_many_subscriptions_is_not_plain() -> None:
    """A set of its subscriptions must fit into the bits of one integer."""
    rows = [{"session": f"s{count}", "subject_filter": "a", "name": str(n)} for count in (64, 65) for n in range(count)]
    assert _plain(rows, []) == {"s64"}
