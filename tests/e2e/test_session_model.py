"""Named sessions over the wire, at random: every client sees what the naive hold makes of the broker's log.

Devices of both versions come and go, join and leave, subscribe, publish, acknowledge or do not, and the broker is
stopped and killed among them; ``session_driver`` performs it, ``session_model`` judges it. `bench/session_soak.py` does
the same for as long as you like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.e2e.session_driver import Operation, Pause, Restart, perform, plan, shorten
from tests.e2e.session_model import End, Heard, Judge, Publication, View, body_of, is_admitted, private

from whimbrel.model.facts import (
    Fact,
    InterestChanged,
    Mode,
    Outcome,
    PresenceChange,
    PresenceChanged,
    Receipt,
    SessionChange,
    SessionChanged,
)
from whimbrel.model.notification import Notification, NotificationId
from whimbrel.model.subscription import InterestChange, Subscription

SEEDS = (1, 2, 3)
LENGTH = 250
NODE = "node-1"


# -- a real broker -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_every_client_sees_what_the_log_says(seed: int) -> None:
    """Whoever asks later what became of a notification must hear what those who were there saw."""
    drawn = [each for each in plan(seed, LENGTH) if not isinstance(each, Restart | Pause)]
    middle = len(drawn) // 2  # restarts and pauses are what takes long: one of each sort is enough for a suite
    operations: list[Operation] = [*drawn[:middle], Pause(), *_restarts(seed), *drawn[middle:]]
    run = perform(operations)
    if run.violations:
        shortened, again = shorten(operations, most_runs=20)
        told = [f"seed {seed}", *run.violations, "shortened:", *map(str, shortened), *again.violations]
        pytest.fail("\n".join(told))
    assert run.restarts == 2
    assert run.heard > 20, "too little happened to prove anything"


def _restarts(seed: int) -> list[Restart]:
    """Return a kill and a stop with something on its way, as the plan of *seed* has them."""
    drawn = [each for each in plan(seed, 5_000) if isinstance(each, Restart) and each.among]
    return [replace(drawn[0], is_kill=True), replace(drawn[1], is_kill=False)]


# -- the judge ---------------------------------------------------------------------------------------------------------

S, D = "s1", "d1"
WANTED = Subscription(session=S, subject_filter="t/#", ttl_us=60_000_000, max_held=10, qos=1, identifier=7)
NUMBER = 5
SEQ = 6


def _facts() -> list[Fact]:
    """Return the log of one device in one session, and one publication that it confirms."""
    publication = Notification(
        node=NODE, seq=SEQ, published_at=SEQ, subject="t/a", publisher="p1", body=body_of(NUMBER, 1, "red"), qos=1
    )
    receipt = Receipt(
        node=NODE, seq=SEQ + 1, handed_at=SEQ + 1, session=S, device=D, notification=NotificationId(NODE, SEQ)
    )
    return [
        SessionChanged(node=NODE, seq=1, changed_at=1, session=S, change=SessionChange.CREATED),
        _joined(2, private(D)),
        _joined(3, S),
        InterestChanged(node=NODE, seq=4, changed_at=4, change=InterestChange.ADDED, subscription=WANTED, device=D),
        publication,
        receipt,
    ]


def _joined(seq: int, session: str) -> PresenceChanged:
    return PresenceChanged(
        node=NODE, seq=seq, changed_at=seq, device=D, change=PresenceChange.JOINED, session=session, receipt=Mode.TAKE
    )


HEARD = Heard(number=NUMBER, topic="t/a", qos=1, identifiers=(7,))


def judged(
    facts: list[Fact],
    *heard: Heard,
    acknowledged: bool = True,
    end: str | None = None,
    change: Callable[[View], None] = lambda _: None,
) -> list[str]:
    """Return what the judge says of a device that joined with CONNECT and heard this."""
    judge = Judge(NODE)
    view = View(device=D, sessions=1, is_answered=True)
    judge.connecting(view)
    judge.publishing(Publication(number=NUMBER, publisher="p1", topic="t/a", body=body_of(NUMBER, 1, "red"), qos=1))
    for each in heard:
        judge.receives(view, each)
    if acknowledged:
        view.acknowledged[NUMBER] += 1
    view.end = end
    change(view)
    for fact in facts:
        judge.take(fact)
    judge.compare(now=100, outstanding={D: 0})
    return judge.violations


def test_the_judge_accuses_nobody_innocent() -> None:
    """A judge that cries wolf is switched off."""
    assert judged(_facts(), HEARD) == []


FORBIDDEN: dict[str, tuple[Heard, ...]] = {
    "was not sent": (),
    "came again without DUP": (HEARD, HEARD),
    "due was nothing": (HEARD, replace(HEARD, is_dup=True)),
    "identifiers [8]": (replace(HEARD, identifiers=(8,)),),
    "DUP identifiers": (replace(HEARD, is_dup=True),),
    "on t/b": (replace(HEARD, topic="t/b"),),
    "RETAIN": (replace(HEARD, is_retained=True),),
    "got 6 at QoS 1": (replace(HEARD, number=6), HEARD),
}


@pytest.mark.parametrize("words", FORBIDDEN)
def test_the_judge_sees_what_a_client_must_not_see(words: str) -> None:
    """A judge that cannot fail proves nothing."""
    assert any(words in each for each in judged(_facts(), *FORBIDDEN[words]))


def test_the_judge_misses_a_receipt_that_was_lost() -> None:
    """What a device has acknowledged must not be held for it, or for others, any longer."""
    (told,) = judged(_facts()[:-1], HEARD)
    assert told == f"{D}: [{NUMBER}] were acknowledged, and the log has no receipt"


def test_the_judge_sees_a_receipt_that_nobody_gave() -> None:
    """Else the broker could settle what it never sent."""
    told = judged(_facts(), HEARD, acknowledged=False)
    assert f"{D}: the log has a receipt for {NUMBER}, which it did not acknowledge" in told


def test_the_judge_asks_why_something_expired() -> None:
    """An outcome is no excuse for itself."""
    receipt = _facts()[-1]
    assert isinstance(receipt, Receipt)
    facts = [*_facts()[:-1], replace(receipt, outcome=Outcome.EXPIRED)]
    assert f"{D}: {NUMBER} is said to have expired, and has not" in judged(facts, acknowledged=False)


def test_the_judge_knows_when_a_copy_came_too_late() -> None:
    """What is heard after everybody had come to rest was sent after that: not what had expired by then."""
    *facts, publication, receipt = _facts()
    assert isinstance(publication, Notification)
    judge, view = Judge(NODE), View(device=D, sessions=1, is_answered=True, receive_maximum=1)
    judge.connecting(view)
    for fact in (*facts, replace(publication, expires_at=1_000_000)):
        judge.take(fact)
    judge.compare(now=2_000_000, outstanding={D: 1})
    judge.receives(view, replace(HEARD, expiry_s=1))
    view.acknowledged[NUMBER] += 1
    judge.take(receipt)
    judge.compare(now=2_000_001, outstanding={D: 0})
    assert judge.violations == [f"{D}: got {NUMBER} after it had expired"]


def test_what_a_killed_broker_had_not_written_down_may_have_been_said() -> None:
    """But only if it was owed to nobody: what a named session holds is on the disk before anybody hears of it."""
    facts = _facts()[:3]
    assert judged(facts, HEARD, end=End.KILLED) == []
    assert judged(_facts()[:4], HEARD, end=End.KILLED) == [f"{D}: {NUMBER} was handed over before it was durable"]
    assert judged(facts, HEARD, end=End.CLOSED) == [
        f"{D}: got {NUMBER} at QoS 1 on t/a identifiers [7], and due was nothing"
    ]


def test_a_connection_that_the_log_does_not_know_is_an_error() -> None:
    """A session that outlives its connection is on the disk before CONNACK."""
    told = judged([], end=End.KILLED, change=lambda view: setattr(view, "is_persistent", True))
    assert told == [f"{D}: the log does not know of a connection"]


def test_the_ledger_sees_what_is_missing_and_what_nobody_asked_for() -> None:
    """A yes is a promise, and a fact has somebody who wanted it."""
    judge = Judge(NODE)
    judge.ledger.ask(("created", S))
    judge.ledger.grant(("created", S))
    assert judge.ledger.missing() == [("created", S)]
    judge.take(_facts()[0])
    assert (judge.ledger.missing(), judge.ledger.unasked()) == ([], [])
    judge.ledger.close()
    judge.ledger.find(("deleted", S))
    assert judge.ledger.unasked() == [("deleted", S)]


@pytest.mark.parametrize(
    ("topic_filter", "topic", "is_wanted"),
    [
        ("t/a", "t/a", True),
        ("t/+", "t/a", True),
        ("t/+", "t/a/x", False),
        ("t/#", "t", True),
        ("#", "u/a", True),
        ("#", "$whimbrel/session/s1/changes", False),
        ("$whimbrel/session/+/changes", "$whimbrel/session/s1/changes", True),
    ],
)
def test_the_judge_knows_topic_filters(topic_filter: str, topic: str, *, is_wanted: bool) -> None:
    """Who wants what decides what may be missed."""
    assert is_admitted(topic_filter, topic) is is_wanted


def test_a_seed_is_a_plan() -> None:
    """A violation that cannot be tried again cannot be mended."""
    assert plan(7, 100) == plan(7, 100) != plan(8, 100)
