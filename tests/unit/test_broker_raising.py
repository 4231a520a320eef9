"""Hashes of sessions from before: raised when a password is given; nobody can tell from the time it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_rig import NODE, START, Rig, asking, publishing, quick_scrypt

from whimbrel.broker.access import passwords
from whimbrel.broker.access.passwords import DEFAULT_COST, Cost, Passwords, read_access
from whimbrel.broker.settings.config import Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.log.reader import read
from whimbrel.model.facts import SessionChange, SessionChanged

OLD = Cost(n=2**14, r=8, p=1)
USER, ADMIN, OWNER, WRONG, NEW = "u", "a", "o", "wrong", "new"
THREE = {"user": USER, "admin": ADMIN, "owner": OWNER}


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> list[Cost]:
    """Let hashes cost nothing, and return what they would cost."""
    costs: list[Cost] = []

    def counted(password: bytes, salt: bytes, cost: Cost) -> bytes:
        costs.append(cost)
        return quick_scrypt(password, salt, cost)

    monkeypatch.setattr(passwords, "_scrypt", counted)
    return costs


@pytest.fixture
def rig(tmp_path: Path, spent: list[Cost]) -> Rig:
    """Return a broker that found a session ``ward`` from before, and one with a list."""
    state = BrokerState(NODE)
    old = Passwords.create(salt=bytes(16), cost=OLD, **THREE).to_text()
    made = SessionChange.CREATED
    state.apply(SessionChanged(node=NODE, seq=1, changed_at=START, session="ward", change=made, access=old))
    state.apply(SessionChanged(node=NODE, seq=2, changed_at=START, session="open", change=made))
    rig = Rig(tmp_path, Config(), state=state)
    spent.clear()
    return rig


def _costs(rig: Rig, session: str) -> list[Cost]:
    found = read_access(rig.state.hold.access(session) or "")
    assert isinstance(found, Passwords)
    return [hashed.cost for hashed in (found.user, found.admin, found.owner) if hashed is not None]


def test_the_hash_of_a_password_that_is_given_is_raised(rig: Rig) -> None:
    """And of no other, which nobody knows."""
    pda = rig.client("pda")
    assert pda.ask("join", session="ward", password=WRONG)["ok"] is False
    assert _costs(rig, "ward") == [OLD, OLD, OLD]
    assert pda.ask("join", session="ward", password=ADMIN)["ok"]
    assert _costs(rig, "ward") == [OLD, DEFAULT_COST, OLD]
    assert rig.client("laptop", user=(("session", "ward"), ("password", OWNER)))
    assert _costs(rig, "ward") == [OLD, DEFAULT_COST, DEFAULT_COST]
    for password in THREE.values():
        assert pda.ask("show", session="ward", password=password)["ok"]
    assert pda.ask("show", session="ward", password=WRONG)["ok"] is False
    rig.close()
    assert [fact.change for fact in read(rig.folder, NODE) if isinstance(fact, SessionChanged)] == 3 * [
        SessionChange.ACCESS
    ]


def test_raising_puts_nobody_out(rig: Rig) -> None:
    """It is no change of who may do what; those who wait for their passwords meanwhile are let in too."""
    present = rig.client("present", user=(("session", "ward"), ("password", ADMIN)))
    assert _costs(rig, "ward") == [OLD, DEFAULT_COST, OLD]
    waiting = [
        rig.connecting(f"pda {number}", user=(("session", "ward"), ("password", USER)), expiry_s=60)
        for number in range(3)
    ]
    rig.settle()
    assert [type(peer.inbox[0]).__name__ for peer in waiting] == ["Connack"] * 3
    assert all(peer.inbox[0].code == 0 for peer in waiting)  # type: ignore[union-attr]
    assert present.ask("subscribe", session="ward", topic="a")["ok"]
    for peer in waiting:
        peer.take()
    present.send(publishing("a", b"x", 1, 1))
    rig.settle()
    assert [peer.payloads() for peer in waiting] == [[b"x"]] * 3


def test_a_change_of_access_is_not_undone_by_raising(rig: Rig) -> None:
    """Passwords that were replaced while others were looked at stay replaced."""
    owner, slow = rig.client("owner"), rig.client("slow")
    owner.ask("join", session="ward", password=OWNER)
    owner.send(asking("access", session="ward", passwords={"owner": NEW}))
    slow.send(asking("join", session="ward", password=USER))
    blocking_tasks = [rig.broker.blocking_tasks.next(0), rig.broker.blocking_tasks.next(0)]
    found = [(each, each.ask()) for each in blocking_tasks if each is not None]
    for question, answer in sorted(found, key=lambda pair: pair[0].asker.user):  # that of the owner first
        rig.broker.on_answer(question, answer, rig.now)
        rig.sync()
    rig.settle()
    assert [answer["ok"] for answer in slow.answers()] == [False]
    assert slow.ask("join", session="ward", password=USER)["ok"] is False
    assert slow.ask("join", session="ward", password=NEW)["ok"]


def test_what_exists_costs_what_does_not_exist(rig: Rig, spent: list[Cost]) -> None:
    """Sessions from before must not be found by how quickly they refuse; levels are drawn for those that are not."""
    pda = rig.client("pda")

    def times(session: str, password: str) -> set[Cost]:
        spent.clear()
        pda.ask("join", session=session, password=password)
        assert spent.count(OLD) == spent.count(DEFAULT_COST) > 0
        return set(spent)

    for session in ("ward", "none", "nothing", "nowhere"):
        assert times(session, WRONG) == {OLD, DEFAULT_COST}
    for password in THREE.values():
        times("ward", password)
    for session in ("ward", "none"):
        spent.clear()
        pda.ask("join", session=session, password=WRONG)
        assert set(spent) == {DEFAULT_COST}, "nothing is from before any more"


def test_a_password_that_nobody_waits_for_is_not_hashed(tmp_path: Path) -> None:
    """A client that gives up and comes again must not wait behind itself."""
    asked: list[str] = []

    def verify(name: str, _password: bytes | None) -> bool:
        asked.append(name)
        return True

    rig = Rig(tmp_path, verify=verify)
    for _ in range(5):
        rig.connecting("pda", username="ann", password=b"x").drop()
    rig.client("pda", username="bob", password=b"x")
    assert asked == ["bob"]
