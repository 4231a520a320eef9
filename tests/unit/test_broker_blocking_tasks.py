"""BlockingTasks in fair turns: guessers and busy clients do not make the others wait."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import Peer, Rig, asking, quick_scrypt

from whimbrel.broker.limits.counters import Counters
from whimbrel.broker.settings.config import AccessSettings, Config
from whimbrel.broker.waiting.blocking_tasks import BlockingTasks, FairQueue, RequesterId
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import Connack

RIGHT = b"right"
HERE, ELSEWHERE = "10.0.0.1:1", "10.0.0.2:1"


@pytest.fixture(autouse=True)
def _quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let passwords cost nothing: tasks are counted, not timed."""
    monkeypatch.setattr("whimbrel.broker.access.passwords._scrypt", quick_scrypt)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker with users, whose passwords are all the same."""
    access = AccessSettings(users="users", anonymous=True)
    return Rig(tmp_path, replace(Config(), access=access), verify=lambda _name, password: password == RIGHT)


def _asked_until(rig: Rig, peer: Peer) -> int:
    """Return how many tasks are done until a CONNECT is answered."""
    for asked in range(10_000):
        if peer.taken(Connack):
            return asked
        question = rig.broker.blocking_tasks.next(rig.listened_us)
        if question is not None:
            rig.broker.on_answer(question, question.ask(), rig.now)
        rig.sync()
    raise AssertionError


def _wrong(rig: Rig, count: int, address: str = HERE, *, is_one_user: bool = False) -> None:
    for number in range(count):
        name = "ann" if is_one_user else f"nobody-{number}"
        rig.connecting(f"guess-{number}", username=name, password=b"wrong", address=address)


def test_a_right_password_does_not_wait_behind_thousands_of_wrong_ones(rig: Rig) -> None:
    """5,000 wrong CONNECTs made a right one wait for 100 s."""
    _wrong(rig, 2_000)
    right = rig.connecting("right", username="bob", password=RIGHT, address=ELSEWHERE)
    assert _asked_until(rig, right) <= 2


@pytest.mark.parametrize("is_one_user", [True, False])
def test_a_user_who_was_right_before_does_not_wait_behind_the_same_address(rig: Rig, *, is_one_user: bool) -> None:
    """A guesser in the office does not lock the office out, though it uses up what the address may get wrong."""
    rig.connecting("before", username="bob", password=RIGHT, address=HERE)
    rig.settle()
    _wrong(rig, 300, is_one_user=is_one_user)
    rig.settle()
    _wrong(rig, 300, is_one_user=is_one_user)
    again = rig.connecting("again", username="bob", password=RIGHT, address=HERE)
    assert _asked_until(rig, again) <= 2
    assert not again.is_closed


def test_wrong_passwords_of_one_user_are_not_another_users(rig: Rig) -> None:
    """They were counted for the address, and everybody behind it had to wait."""
    _wrong(rig, 50, is_one_user=True)
    rig.settle()
    (refused,) = _answers(rig, "ann")
    assert refused.code == ReasonCode.QUOTA_EXCEEDED
    (answer,) = _answers(rig, "bob")
    assert answer.code == 0


def _answers(rig: Rig, name: str) -> list[Connack]:
    peer = rig.connecting(f"as-{name}", username=name, password=RIGHT, address=HERE)
    rig.settle()
    return peer.taken(Connack)


def test_one_address_guesses_no_more_than_ten_times_as_many_in_all(rig: Rig) -> None:
    """Names are cheap to make up."""
    _wrong(rig, 300)
    rig.settle()
    assert rig.broker.counters.wrong_passwords == 100


def test_requests_that_hash_do_not_delay_the_passwords_of_others(rig: Rig) -> None:
    """300 `create` requests of one client delayed the others by 27 s, also those behind its address."""
    busy = rig.client("busy")
    for number in range(300):
        busy.send(asking("create", session=f"s{number}", passwords={"owner": "x"}))
    here = rig.connecting("here", username="bob", password=RIGHT, address="test")
    there = rig.connecting("there", username="ann", password=RIGHT, address=ELSEWHERE)
    assert _asked_until(rig, there) + _asked_until(rig, here) <= 4


def test_one_address_has_half_of_the_places() -> None:
    """Whoever fills the queue does not close it for the others."""
    blocking_tasks = BlockingTasks(10, Counters(), most=10)
    for number in range(5):
        assert not blocking_tasks.is_full(HERE)
        blocking_tasks.put(RequesterId(HERE, f"{number}"), int, lambda _a, _n: None, lambda: None)
    assert blocking_tasks.is_full(HERE)
    assert not blocking_tasks.is_full(ELSEWHERE)
    assert len(blocking_tasks) == 5


def test_addresses_take_turns_and_users_within_them() -> None:
    """In order, for each of them."""
    queue: FairQueue[str] = FairQueue()
    for item in ("a1x", "a1y", "a1z", "a2x", "b1x", "b1y"):
        queue.put(item[0], item[1], item)
    assert (len(queue), queue.waiting("a"), queue.waiting("c")) == (6, 4, 0)
    assert [queue.take() for _ in range(6)] == ["a1x", "b1x", "a2x", "b1y", "a1y", "a1z"]
    assert not queue
