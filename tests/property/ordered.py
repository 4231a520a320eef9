"""Facts as a log wants them: one node, seqs that follow each other, times that do not run backwards."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import strategies as st
from strategies import facts

from whimbrel.model.attributes import Attributes, Int64
from whimbrel.model.facts import (
    Decided,
    Fact,
    InterestChanged,
    Mode,
    PolicyChanged,
    PresenceChange,
    PresenceChanged,
    Receipt,
    Reported,
    SessionChanged,
    WillChanged,
)
from whimbrel.model.notification import Notification, NotificationId
from whimbrel.model.subscription import InterestChange, Subscription, SubscriptionIdentity

NODE = "n1"
BEGIN = 1_100_000_000_000_000  # in November 2004


def in_order(found: Iterable[Fact], *, first: int = 1, begin: int = BEGIN, step_us: int = 1_000_000) -> list[Fact]:
    """Return *found* as successive facts of ``NODE``."""
    return [stamped(fact, seq, begin + (seq - first) * step_us) for seq, fact in enumerate(found, start=first)]


def stamped(fact: Fact, seq: int, at: int) -> Fact:
    """Return *fact* with another number and time."""
    match fact:
        case Notification():
            return replace(fact, node=NODE, seq=seq, published_at=at)
        case Reported():
            return replace(fact, node=NODE, seq=seq, state=replace(fact.state, reported_at=at))
        case Receipt():
            return replace(fact, node=NODE, seq=seq, handed_at=at)
        case Decided():
            return replace(fact, node=NODE, seq=seq, decided_at=at)
        case InterestChanged() | PresenceChanged() | SessionChanged() | WillChanged() | PolicyChanged():
            return replace(fact, node=NODE, seq=seq, changed_at=at)


def histories(max_size: int = 12) -> st.SearchStrategy[list[Fact]]:
    """Return some facts in order."""
    return st.lists(facts(node=NODE), max_size=max_size).map(in_order)


def a_history(count: int, *, seed: int = 7, step_us: int = 1_000_000, body_bytes: int = 20) -> list[Fact]:
    """Return *count* facts of several tables, the same for the same seed; for tests that need many."""
    rng = random.Random(seed)
    made: list[Fact] = []
    for seq in range(1, count + 1):
        kind = rng.randrange(4)
        if kind == 0:
            subscription = Subscription(session="s", subject_filter="ward/#", name=str(rng.randrange(9)))
            change = InterestChange.ADDED
            made.append(InterestChanged(node=NODE, seq=seq, changed_at=0, change=change, subscription=subscription))
        elif kind == 1:
            joined = PresenceChange.JOINED
            made.append(
                PresenceChanged(
                    node=NODE, seq=seq, changed_at=0, device="d", change=joined, session="s", receipt=Mode.TAKE
                )
            )
        elif kind == 2 and seq > 1:
            about = NotificationId(NODE, rng.randrange(1, seq))
            wanted = (SubscriptionIdentity("ward/#", "x"),)
            made.append(
                Receipt(
                    node=NODE, seq=seq, handed_at=0, session="s", device="d", notification=about, subscriptions=wanted
                )
            )
        else:
            body = rng.randbytes(rng.randrange(body_bytes))
            attributes: Attributes = {
                "a": rng.randrange(99),
                "b": Int64(rng.randrange(9)),
                "c": rng.random(),
                "d": "text",
            }
            made.append(
                Notification(node=NODE, seq=seq, published_at=0, subject="ward/3", attributes=attributes, body=body)
            )
    return in_order(made, step_us=step_us)
