"""A private session belongs to the user who made it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cbor2
import pytest
from broker_rig import NODE, START, Peer, Rig
from guarded_rig import allowing, connect, publish, received, subscribe

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.client_ids import ClientRule
from whimbrel.broker.access.topic_rights import Action, Rights, Rule
from whimbrel.broker.settings.config import AccessSettings, Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.hold.private import private_session
from whimbrel.log.reader import read
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import InterestChanged, Mode, PresenceChange, PresenceChanged
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, V311, Connack, Disconnect, Will

WITH_USERS = replace(Config(), access=AccessSettings(users="users"))
WITH_ANYBODY = replace(Config(), access=AccessSettings(users="users", anonymous=True))
NOT_VALID = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


def _rig(
    folder: Path, rights: Rights = Rights.OPEN, config: Config = WITH_USERS, *, state: BrokerState | None = None
) -> Rig:
    return Rig(folder, config, authorizer=Authorizer(rights), verify=lambda _user, _password: True, state=state)


def _refused(rig: Rig, client_id: str, user: str | None, *, version: int = V5, clean: bool = False) -> int:
    """Connect, and return the code that this is refused with."""
    password = None if user is None else b"x"
    peer = rig.connecting(client_id, version=version, clean=clean, username=user, password=password)
    rig.settle()
    (answer,) = peer.take()
    assert isinstance(answer, Connack)
    assert peer.is_closed
    return answer.code


def _held_for_ann(rig: Rig) -> None:
    ann = connect(rig, "pda", "ann", expiry_s=3_600)
    assert subscribe(rig, ann, "home/ann/#", qos=1) == (1,)
    ann.drop()
    publish(rig, connect(rig, "lamp", "ann"), "home/ann/lamp", b"on")


# -- another user ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize(("version", "code"), [(V5, NOT_VALID), (V311, 2)])
@pytest.mark.parametrize("intruder", ["bob", None])
def test_the_session_of_another_user_is_neither_read_nor_settled_nor_ended(
    tmp_path: Path, intruder: str | None, version: int, code: int, *, clean: bool
) -> None:
    """The client identifier is no secret, and was all that one needed."""
    rig = _rig(tmp_path, config=WITH_ANYBODY)
    _held_for_ann(rig)
    for _ in range(3):
        assert _refused(rig, "pda", intruder, version=version, clean=clean) == code
    assert received(rig, connect(rig, "pda", "ann", expiry_s=60, clean=False)) == [b"on"]


@pytest.mark.parametrize("expiry_s", [0, 60])
def test_another_user_does_not_take_over_a_connection(tmp_path: Path, expiry_s: int) -> None:
    """Neither the client nor its will hear of it."""
    rig = _rig(tmp_path)
    watching = connect(rig, "watching", "ann")
    subscribe(rig, watching, "will")
    ann = rig.client("pda", expiry_s=expiry_s, username="ann", password=b"x", will=Will("will", b"gone"))
    subscribe(rig, ann, "a")
    assert _refused(rig, "pda", "bob", clean=True) == NOT_VALID
    publish(rig, watching, "a", b"still here", 0)
    assert not ann.is_closed
    assert received(rig, ann) == [b"still here"]
    assert received(rig, watching) == []


def test_one_user_may_take_over_their_own_connection(tmp_path: Path) -> None:
    """As the standard says (3.1.4)."""
    rig = _rig(tmp_path)
    before = connect(rig, "pda", "ann")
    connect(rig, "pda", "ann")
    assert before.is_closed
    (goodbye,) = before.take()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.code == ReasonCode.SESSION_TAKEN_OVER


def test_a_session_that_has_ended_is_nobodys(tmp_path: Path) -> None:
    """Only rights keep a client identifier for a user whose session has ended."""
    rig = _rig(tmp_path)
    connect(rig, "pda", "ann").drop()
    assert connect(rig, "pda", "bob")


def test_who_is_not_verified_resumes_only_what_nobody_verified_made(tmp_path: Path) -> None:
    """Null is an owner like any other."""
    rig = _rig(tmp_path, config=WITH_ANYBODY)
    connect(rig, "kiosk", None, expiry_s=60).drop()
    assert _refused(rig, "kiosk", "bob") == NOT_VALID
    assert connect(rig, "kiosk", None, expiry_s=60, clean=False)


def test_two_who_come_at_once_are_not_both_let_in(tmp_path: Path) -> None:
    """The second is looked at when the first is accepted."""
    rig = _rig(tmp_path)
    ann = rig.connecting("pda", expiry_s=60, username="ann", password=b"x")
    bob = rig.connecting("pda", expiry_s=60, username="bob", password=b"x", clean=False)
    rig.settle()
    assert [each.inbox[0].code for each in (ann, bob)] == [0, NOT_VALID]  # type: ignore[union-attr]
    assert not ann.is_closed


def test_where_nobody_is_verified_a_client_identifier_is_enough(tmp_path: Path) -> None:
    """Plain MQTT without users goes on as ever, whatever user names clients give."""
    rig = Rig(tmp_path)
    rig.client("pda", expiry_s=60, username="ann").drop()
    assert rig.client("pda", expiry_s=60, username="bob", clean=False)


# -- the log and the view ----------------------------------------------------------------------------------------------


def _again(rig: Rig, rights: Rights = Rights.OPEN, config: Config = WITH_USERS, *, from_view: bool = False) -> Rig:
    """Return a broker that was started after *rig* has stopped."""
    put, _ = rig.state.view.changes()
    rig.log.sync()
    state = BrokerState.restore(NODE, put.items()) if from_view else BrokerState(NODE)
    if not from_view:
        for fact in read(rig.folder, NODE):
            state.apply(fact)
    rig.close()
    return _rig(rig.folder, rights, config, state=state)


@pytest.mark.parametrize("from_view", [False, True])
def test_a_restart_knows_whose_session_it_is(tmp_path: Path, *, from_view: bool) -> None:
    """From the view as from the log."""
    rig = _rig(tmp_path, config=WITH_ANYBODY)
    _held_for_ann(rig)
    connect(rig, "kiosk", None, expiry_s=60).drop()
    after = _again(rig, config=WITH_ANYBODY, from_view=from_view)
    state = after.state
    assert [(state.clients[name].owner, state.clients[name].is_unclaimed) for name in ("pda", "kiosk")] == [
        ("ann", False),
        (None, False),
    ]
    assert _refused(after, "pda", "bob") == NOT_VALID
    assert _refused(after, "kiosk", "bob") == NOT_VALID


def _from_before(folder: Path, rights: Rights) -> Rig:
    """Return a broker that finds a log in which no owners were written down."""
    session = private_session("pda")
    joined = PresenceChanged(
        node=NODE, seq=1, changed_at=START, device="pda", change=PresenceChange.JOINED, session=session,
        receipt=Mode.TAKE, session_expiry_us=3_600_000_000,
    )  # fmt: skip
    wanted = Subscription(session=session, subject_filter="home/ann/#", qos=1, max_held=10, ttl_us=3_600_000_000)
    added = InterestChanged(
        node=NODE, seq=2, changed_at=START, change=InterestChange.ADDED, subscription=wanted, device="pda"
    )
    log, state = LogWriter(folder, NODE), BrokerState(NODE)
    log.open()
    for fact in (joined, added):
        log.append(replace(fact, seq=log.next_seq))
        state.apply(fact)
    log.sync()
    log.close()
    return _rig(folder, rights, state=state)


RIGHTS = allowing(ann="home/ann/#", bob="home/bob/#")


def test_a_session_from_before_is_adopted_by_the_first_whose_rights_cover_it(tmp_path: Path) -> None:
    """From then on it is theirs."""
    rig = _from_before(tmp_path, RIGHTS)
    publish(rig, connect(rig, "lamp", "carl"), "home/ann/lamp", b"on")
    assert received(rig, connect(rig, "pda", "ann", expiry_s=60, clean=False)) == [b"on"]
    assert [notice.user for notice in rig.broker.take_notices()] == ["ann"]
    assert _refused(rig, "pda", "bob") == NOT_VALID
    assert rig.broker.take_notices() == []


def test_a_session_from_before_is_ended_by_whoever_may_not_have_it(tmp_path: Path) -> None:
    """Nobody gets what it holds; an operator finds a line in the log."""
    rig = _from_before(tmp_path, RIGHTS)
    publish(rig, connect(rig, "lamp", "carl"), "home/ann/lamp", b"on")
    bob = rig.connecting("pda", expiry_s=60, clean=False, username="bob", password=b"x")
    rig.settle()
    welcome = bob.inbox.pop(0)
    assert isinstance(welcome, Connack)
    assert (welcome.code, welcome.session_present) == (0, False)
    assert received(rig, bob) == []
    (notice,) = rig.broker.take_notices()
    assert (notice.client, notice.user) == ("pda", "bob")
    assert "ended" in notice.text


def test_a_view_from_before_says_that_nobody_knows_the_owner(tmp_path: Path) -> None:
    """Its rows of clients have five fields."""
    put, _ = _from_before(tmp_path, RIGHTS).state.view.changes()
    rows = {key: cbor2.dumps(cbor2.loads(value)[:5]) if key[0] == "client" else value for key, value in put.items()}
    assert BrokerState.restore(NODE, rows.items()).clients["pda"].is_unclaimed
    assert BrokerState.restore(NODE, put.items()).clients["pda"].is_unclaimed


def test_a_broker_that_is_given_users_lets_them_have_their_sessions(tmp_path: Path) -> None:
    """It verified nobody when they made them, and now it lets in nobody else."""
    before = Rig(tmp_path)
    pda = before.client("pda", expiry_s=3_600)
    subscribe(before, pda, "home/ann/#", qos=1)
    pda.drop()
    publish(before, before.client("lamp"), "home/ann/lamp", b"on")
    after = _again(before, RIGHTS)
    assert received(after, connect(after, "pda", "ann", expiry_s=60, clean=False)) == [b"on"]
    assert _refused(after, "pda", "bob") == NOT_VALID


def test_shares_that_a_restart_finds_forbidden_are_ended(tmp_path: Path) -> None:
    """Rights change in the file, and the file is read at the start."""
    before = _rig(tmp_path, allowing(ann="jobs", bob="jobs"))
    for name in ("ann", "bob"):
        peer = connect(before, name, name, expiry_s=3_600)
        subscribe(before, peer, "$share/g/jobs", qos=1)
        peer.drop()
    after = _again(before, allowing(bob="jobs"), from_view=True)
    publisher = connect(after, "publisher", "carl")
    for number in range(4):
        publish(after, publisher, "jobs", str(number).encode())
    assert received(after, connect(after, "ann", "ann", expiry_s=60, clean=False)) == []
    bob = connect(after, "bob", "bob", expiry_s=60, clean=False)
    assert received(after, bob) == [b"0", b"1", b"2", b"3"]


# -- client identifiers ------------------------------------------------------------------------------------------------


def _with_ids(*rules: ClientRule) -> Rights:
    return Rights(client_ids=rules)


@pytest.mark.parametrize(("version", "code"), [(V5, NOT_VALID), (V311, 2)])
def test_nobody_squats_on_a_client_identifier_that_rights_give_to_others(
    tmp_path: Path, version: int, code: int
) -> None:
    """Not even before its user comes for the first time."""
    rig = _rig(tmp_path, _with_ids(ClientRule(ids=("{user}", "{user}:*"))))
    assert _refused(rig, "ann:pda", "bob", version=version, clean=True) == code
    assert connect(rig, "ann:pda", "ann", version=version)
    assert connect(rig, "bob", "bob", version=version)


def test_an_identifier_that_the_broker_assigns_needs_no_right(tmp_path: Path) -> None:
    """Nobody else can have it."""
    rig = _rig(tmp_path, _with_ids(ClientRule(ids=("{user}",))))
    assert connect(rig, "", "ann")


def test_a_client_identifier_that_is_taken_away_ends_its_connection(tmp_path: Path) -> None:
    """The user may come back with another."""
    rig = _rig(tmp_path)
    ann = connect(rig, "pda", "ann")
    rig.broker.replace_rights(_with_ids(ClientRule(ids=("{user}",))))
    rig.flush()
    assert ann.is_closed


def test_an_identifier_that_the_broker_assigned_survives_a_reload(tmp_path: Path) -> None:
    """CONNECT asked no right for it: as it was, every reload closed such connections where there are client rules."""
    rights = _with_ids(ClientRule(ids=("{user}",)))
    rig = _rig(tmp_path, rights)
    ann = connect(rig, "", "ann")
    rig.broker.replace_rights(rights)
    rig.flush()
    assert not ann.is_closed


def test_a_right_to_join_sessions_that_is_taken_away_ends_the_connection(tmp_path: Path) -> None:
    """With CONNECT it was asked for; those who joined nothing stay."""
    rig = _rig(tmp_path)
    maker, pda = connect(rig, "maker", "ann"), connect(rig, "pda", "ann")
    assert maker.ask("create", session="ann")["ok"]
    assert pda.ask("join", session="ann")["ok"]
    none = Rule(topics=("$whimbrel/session/join",), actions=frozenset({Action.PUBLISH}), is_allowing=False)
    rig.broker.replace_rights(Rights([none]))
    rig.flush()
    assert (maker.is_closed, pda.is_closed) == (False, True)


# -- releasing ---------------------------------------------------------------------------------------------------------


OPERATORS = Rights(
    [
        Rule(topics=("$whimbrel/session/release",), actions=frozenset({Action.OPERATE}), is_allowing=True, user="op"),
        Rule(topics=("home/{user}/#",), actions=frozenset({Action.SUBSCRIBE}), is_allowing=True),
        Rule(topics=("#",), actions=frozenset({Action.SUBSCRIBE}), is_allowing=False, user="eve"),
    ]
)


def _release(peer: Peer, client_id: str) -> object:
    return peer.ask("release", client=client_id)


def test_an_operator_releases_a_session_and_the_next_user_has_it(tmp_path: Path) -> None:
    """A user was renamed, or somebody has squatted on an identifier."""
    rig = _rig(tmp_path, OPERATORS)
    _held_for_ann(rig)
    operator = connect(rig, "operator", "op")
    assert _release(operator, "pda") == {
        "request": "release", "id": None, "ok": True, "client": "pda", "owner": "ann",
    }  # fmt: skip
    assert received(rig, connect(rig, "pda", "anna", expiry_s=60, clean=False)) == [b"on"]
    assert _refused(rig, "pda", "ann") == NOT_VALID


def test_a_released_session_is_not_given_to_users_whose_rights_do_not_cover_it(tmp_path: Path) -> None:
    """An operator gives an identifier away, not what others may not read."""
    rig = _rig(tmp_path, OPERATORS)
    _held_for_ann(rig)
    _release(connect(rig, "operator", "op"), "pda")
    assert received(rig, connect(rig, "pda", "eve", expiry_s=60, clean=False)) == []


@pytest.mark.parametrize("expiry_s", [0, 60])
def test_who_is_connected_is_sent_away_when_its_session_is_released(tmp_path: Path, expiry_s: int) -> None:
    """Else it would go on as if nothing had been."""
    rig = _rig(tmp_path, OPERATORS)
    squatter = connect(rig, "pda", "eve", expiry_s=expiry_s)
    _release(connect(rig, "operator", "op"), "pda")
    (goodbye,) = squatter.take()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.code == ReasonCode.ADMINISTRATIVE_ACTION
    assert squatter.is_closed
    assert connect(rig, "pda", "ann")


@pytest.mark.parametrize("from_view", [False, True])
def test_a_restart_knows_that_a_session_was_released(tmp_path: Path, *, from_view: bool) -> None:
    """What an operator was told is durable."""
    rig = _rig(tmp_path, OPERATORS)
    _held_for_ann(rig)
    _release(connect(rig, "operator", "op"), "pda")
    after = _again(rig, OPERATORS, from_view=from_view)
    assert received(after, connect(after, "pda", "anna", expiry_s=60, clean=False)) == [b"on"]


def test_only_a_rule_makes_an_operator(tmp_path: Path) -> None:
    """Not that everybody may publish everything."""
    for number, rights in enumerate((Rights.OPEN, OPERATORS)):
        rig = _rig(tmp_path / str(number), rights)
        _held_for_ann(rig)
        answer = connect(rig, "bob", "bob").ask("release", client="pda")
        assert (answer["ok"], answer["code"]) == (False, ReasonCode.NOT_AUTHORIZED)
        assert received(rig, connect(rig, "pda", "ann", expiry_s=60, clean=False)) == [b"on"]


def test_a_session_that_is_not_there_cannot_be_released(tmp_path: Path) -> None:
    """An operator who mistypes is told so."""
    rig = _rig(tmp_path, OPERATORS)
    answer = connect(rig, "operator", "op").ask("release", client="pad")
    assert (answer["ok"], answer["reason"]) == (False, "no session has this client identifier")
    assert connect(rig, "operator", "op").ask("release")["ok"] is False
