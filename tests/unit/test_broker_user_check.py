"""Users that are replaced while clients are connected: who may stay, and whose password is asked for again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import Rig
from guarded_rig import connect, publish, received, subscribe

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.passwords import Cost
from whimbrel.broker.access.users import UserChanges, Users
from whimbrel.broker.settings.config import AccessSettings, Config
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import Connack, Disconnect

QUICK = Cost(n=2**10)
WITH_USERS = AccessSettings(users="users")


def _yes(_user: str, _password: bytes | None) -> bool:
    return True


def _no(_user: str, _password: bytes | None) -> bool:
    return False


def _rig(folder: Path, access: AccessSettings = WITH_USERS, *, has_users: bool = True) -> Rig:
    config = replace(Config(), access=access)
    return Rig(folder, config, authorizer=Authorizer(), verify=_yes if has_users else None)


def test_only_a_revoked_user_is_sent_away(tmp_path: Path) -> None:
    """The others go on over the same connections."""
    rig = _rig(tmp_path)
    ann, eve = connect(rig, "a", "ann"), connect(rig, "e", "eve")
    assert subscribe(rig, ann, "t") == (0,)
    assert rig.broker.replace_users(Config(access=WITH_USERS), _yes, UserChanges(revoked=frozenset({"eve"}))) == 1
    rig.flush()
    (goodbye,) = eve.taken(Disconnect)
    assert goodbye.code == ReasonCode.NOT_AUTHORIZED
    assert eve.is_closed
    publish(rig, connect(rig, "b", "bob"), "t", b"1")
    assert received(rig, ann) == [b"1"]


def test_a_password_that_the_old_file_verified_is_verified_again(tmp_path: Path) -> None:
    """A CONNECT of a revoked user whose check was under way must not slip in."""
    rig = _rig(tmp_path)
    eve = rig.connecting("e", username="eve", password=b"x")
    question = rig.broker.blocking_tasks.next(rig.listened_us)
    assert question is not None
    answer = question.ask()
    rig.broker.replace_users(Config(access=WITH_USERS), _no, UserChanges(revoked=frozenset({"eve"})))
    rig.broker.on_answer(question, answer, rig.now)
    rig.settle()
    rig.flush()
    (refusal,) = eve.taken(Connack)
    assert refusal.code == ReasonCode.BAD_USER_NAME_OR_PASSWORD


def test_a_connect_that_waits_for_the_disk_is_judged_too(tmp_path: Path) -> None:
    """Its user was verified, and is gone before CONNACK."""
    rig = _rig(tmp_path)
    eve = rig.connecting("e", username="eve", password=b"x", expiry_s=60)
    rig.answer_questions()
    assert rig.broker.wants_sync
    rig.broker.replace_users(Config(access=WITH_USERS), _no, UserChanges(revoked=frozenset({"eve"})))
    rig.settle()
    rig.flush()
    assert not eve.taken(Connack)
    assert eve.is_closed
    assert rig.state.clients["e"].link is None


@pytest.mark.parametrize(("anonymous", "stays"), [(False, False), (True, True)])
def test_where_users_come_to_be_clients_without_one_are_judged(tmp_path: Path, anonymous: bool, stays: bool) -> None:  # noqa: FBT001
    """A broker that had no users is given some."""
    rig = _rig(tmp_path, AccessSettings(), has_users=False)
    nameless = rig.client("n")
    rig.broker.replace_users(Config(access=AccessSettings(users="users", anonymous=anonymous)), _yes, UserChanges())
    rig.flush()
    assert nameless.is_closed is not stays


def test_groups_that_change_end_what_was_joined_with_them(tmp_path: Path) -> None:
    """What a client may do in named sessions was decided when it joined; a client that joined none stays."""
    rig = _rig(tmp_path)
    ann, bob = connect(rig, "a", "ann"), connect(rig, "b", "bob")
    assert ann.ask("create", session="ward")["ok"]
    rig.settle()
    ann.ask("join", session="ward")
    rig.settle()
    rig.broker.replace_users(Config(access=WITH_USERS), _yes, UserChanges(regrouped=frozenset({"ann", "bob"})))
    rig.flush()
    (goodbye,) = ann.taken(Disconnect)
    assert goodbye.code == ReasonCode.ADMINISTRATIVE_ACTION
    assert not bob.is_closed


def test_users_read_again_tell_who_changed_and_keep_what_they_remember(tmp_path: Path) -> None:
    """A fleet whose passwords are the same does not wait for scrypt again."""
    path = tmp_path / "users"
    writing = Users.read(path, missing_ok=True)
    for name in ("ann", "bob", "eve", "kim"):
        writing.add(name, name, groups=["nurses"], cost=QUICK)
    users = Users.read(path)
    assert users.log_in("ann", "ann", cost=QUICK)
    writing.add("bob", "other", cost=QUICK)
    writing.add("kim", "kim", groups=["doctors"], cost=QUICK)  # the same password has another salt
    writing.remove("eve")
    lines = path.read_text(encoding="utf-8").replace(":nurses", ":doctors", 1)
    path.write_text(lines, encoding="utf-8")
    assert users.take(Users.read(path)) == (frozenset({"bob", "eve", "kim"}), frozenset({"ann", "kim"}))
    assert (users.groups("ann"), len(users)) == (frozenset({"doctors"}), 3)
    assert "ann" in users._known
    assert users._is_known(users._state[0]["ann"], "ann")
    assert users.log_in("bob", "other", cost=QUICK)
    assert not users.log_in("eve", "eve", cost=QUICK)


def test_a_hash_that_was_raised_in_memory_alone_is_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file belongs to another account it keeps the old hash, and no client is sent away for it."""
    path = tmp_path / "users"
    Users.read(path, missing_ok=True).add("ann", "ann", cost=QUICK)
    users = Users.read(path)
    monkeypatch.setattr("whimbrel.broker.access.users.os.geteuid", lambda: 12_345)
    assert users.log_in("ann", "ann", cost=Cost(n=2**11))
    assert users.take(Users.read(path)) == UserChanges()
