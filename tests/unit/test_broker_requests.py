"""Requests about named sessions on the core of the broker: every verb, who may, and when it is answered."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ANSWERS, Peer, Rig, asking, publishing, quick_scrypt, subscribing

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.topic_rights import Rights
from whimbrel.broker.requests.session_requests import VERBS
from whimbrel.broker.settings.config import AccessSettings, Config
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, V311, Connack, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback
from whimbrel.mqtt.properties import Properties, Property

NOT_AUTHORIZED, MALFORMED = ReasonCode.NOT_AUTHORIZED, ReasonCode.PAYLOAD_FORMAT_INVALID
QUOTA_EXCEEDED = ReasonCode.QUOTA_EXCEEDED
USER, ADMIN, OWNER, WRONG, NEWER = "word for users", "word for admins", "word for the owner", "no word", "newer word"
ONE = {"owner": OWNER}
TWO = {"user": USER, "admin": ADMIN}
THREE = {"user": USER, "admin": ADMIN, "owner": OWNER}
ASKED = [verb for verb in VERBS if verb != "release"]
"""What anybody may ask; release is for operators (test_broker_ownership.py)."""
GROUPS = {"bob": frozenset({"staff"}), "cat": frozenset({"guests"})}


@pytest.fixture(autouse=True)
def _quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let passwords cost nothing: what they cost is not what is asked here."""
    monkeypatch.setattr("whimbrel.broker.access.passwords._scrypt", quick_scrypt)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker with all defaults."""
    return Rig(tmp_path)


@pytest.fixture
def verified(tmp_path: Path) -> Rig:
    """Return a broker that knows its users, whose passwords are their names; some are in groups."""
    config = replace(Config(), access=AccessSettings(users="users", anonymous=True))
    authorizer = Authorizer(groups=lambda user: GROUPS.get(user or "", frozenset()))
    return Rig(
        tmp_path, config, authorizer=authorizer, verify=lambda name, password: (password or b"").decode() == name
    )


def _user(rig: Rig, name: str) -> Peer:
    """Return a client of the user *name*, with that client identifier."""
    return rig.client(name, username=name, password=name.encode())


def _make(rig: Rig, *sessions: str, **access: Any) -> Peer:
    maker = rig.client("maker")
    for session in sessions:
        assert maker.ask("create", session=session, **access)["ok"]
    return maker


def _joined(rig: Rig, client_id: str, session: str, password: str = "") -> Peer:
    return rig.client(client_id, user=(("session", session), ("password", password)))


def _code(answer: dict[str, Any]) -> int:
    """Return the code of an answer, 0 if it is yes."""
    assert answer["ok"] is not ("code" in answer)
    return 0 if answer["ok"] else int(answer["code"])


def _wait_for_the_disk(peer: Peer) -> None:
    """Let everything that comes now wait until the disk has something, and then go on at once."""
    peer.send(publishing("retained", b"x", 1, 99, retain=True))


# -- how requests are made and answered --------------------------------------------------------------------------------


def test_in_version_5_the_answer_comes_to_the_response_topic_with_the_correlation_data(rig: Rig) -> None:
    """Request and response as MQTT 5 has them, without a subscription."""
    peer = rig.client("pda")
    properties = Properties({Property.RESPONSE_TOPIC: "my/answers", Property.CORRELATION_DATA: b"\0\1"})
    peer.send(Publish("$whimbrel/session/create", b'{"session": "ann", "id": 7}', 0, properties=properties))
    rig.settle()
    (answer,) = peer.taken(Publish)
    assert (answer.topic, answer.qos, answer.retain) == ("my/answers", 0, False)
    assert answer.properties.binary(Property.CORRELATION_DATA) == b"\0\1"
    assert json.loads(answer.payload) == {"request": "create", "id": 7, "ok": True, "session": "ann"}


def test_without_a_response_topic_version_5_has_no_answer_but_its_acknowledgement(rig: Rig) -> None:
    """PUBACK says what there is to say."""
    peer = rig.client("pda")
    peer.send(publishing("$whimbrel/session/create", b'{"session": "ann"}', 1, 3))
    rig.settle()
    assert peer.take() == [Puback(3)]
    peer.send(publishing("$whimbrel/session/create", b'{"session": "ann"}', 1, 4))
    rig.settle()
    (answer,) = peer.taken(Puback)
    assert answer.code == NOT_AUTHORIZED
    assert answer.properties.text(Property.REASON_STRING)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_in_version_311_the_answer_comes_to_a_topic_of_its_own(rig: Rig, qos: int) -> None:
    """3.1.1 has no response topics; and its acknowledgements say yes, whatever the answer."""
    peer = rig.client("pda", version=V311)
    for number, is_ok in ((3, True), (4, False)):
        peer.send(asking("create", session="ann", id="x", sent_qos=qos, packet_id=number if qos else 0, version=V311))
        rig.settle()
        (answer,) = [each for each in peer.inbox if isinstance(each, Publish)]
        assert (answer.topic, answer.qos) == (ANSWERS, 0)
        assert [json.loads(answer.payload)[name] for name in ("ok", "id")] == [is_ok, "x"]
        acknowledged = [each for each in peer.take() if not isinstance(each, Publish)]
        assert acknowledged == [[], [Puback(number)], [Pubrec(number)]][qos]


@pytest.mark.parametrize("qos", [1, 2])
def test_in_version_5_the_acknowledgement_has_the_code_and_the_reason(rig: Rig, qos: int) -> None:
    """The same as the answer has."""
    peer = rig.client("pda")
    answer = peer.ask("show", session="ann", sent_qos=qos, packet_id=3)
    (acknowledged,) = peer.take()
    assert isinstance(acknowledged, Puback if qos == 1 else Pubrec)
    assert acknowledged.code == _code(answer) == NOT_AUTHORIZED
    assert acknowledged.properties.text(Property.REASON_STRING) == answer["reason"]


def test_nobody_else_is_answered(rig: Rig) -> None:
    """Whatever they subscribe to, and wherever the answer is to go."""
    other = rig.subscriber("other", "#", "$whimbrel/#", ANSWERS, "answers", qos=1)
    peer = rig.client("pda")
    properties = Properties({Property.RESPONSE_TOPIC: "answers"})
    peer.send(Publish("$whimbrel/session/create", b'{"session": "ann"}', properties=properties))
    rig.settle()
    assert len(peer.taken(Publish)) == 1
    assert other.take() == []


def test_who_asks_is_answered_once_even_if_it_subscribes_to_the_answers(rig: Rig) -> None:
    """The answer is no publication."""
    peer = rig.subscriber("pda", "#", "$whimbrel/#", ANSWERS)
    peer.send(asking("list"))
    rig.settle()
    assert len(peer.taken(Publish)) == 1


@pytest.mark.parametrize("version", [V311, V5])
def test_a_request_of_qos_2_that_is_repeated_is_done_once(rig: Rig, version: int) -> None:
    """Before it is accepted, and after; until it is released."""
    peer = rig.client("pda", version=version)
    request = asking("create", session="ann", sent_qos=2, packet_id=5, version=version)
    peer.send(request, request._replace(dup=True))
    rig.settle()
    assert [each["ok"] for each in peer.answers()] == [True]
    assert peer.take() == [Pubrec(5)]
    peer.send(request._replace(dup=True))
    rig.settle()
    assert peer.take() == [Pubrec(5)]
    assert peer.tell(Pubrel(5)) == [Pubcomp(5)]
    assert not peer.ask("create", session="ann", sent_qos=2, packet_id=5)["ok"]


def test_a_request_of_qos_2_that_is_repeated_after_a_reconnect_is_done_once(rig: Rig) -> None:
    """The private session knows its identifier."""
    peer = rig.client("pda", expiry_s=600)
    request = asking("create", session="ann", sent_qos=2, packet_id=5)
    peer.send(request)
    rig.settle()
    peer.drop()
    peer = rig.client("pda", clean=False, expiry_s=600)
    peer.send(request._replace(dup=True))
    rig.settle()
    assert peer.take() == [Pubrec(5)]


def test_requests_do_not_use_up_what_may_be_unanswered(rig: Rig) -> None:
    """Each one that is answered makes room for another."""
    peer = rig.client("pda")
    for number in range(1, 100):
        peer.send(asking("list", sent_qos=1, packet_id=number), asking("nothing", sent_qos=2, packet_id=number))
        rig.settle()
    assert not peer.is_closed


@pytest.mark.parametrize(
    ("verb", "members"),
    [
        ("create", {"session": "bob"}),
        ("create", {"session": "bob", "passwords": ONE}),
        ("join", {"session": "ann"}),
        ("leave", {"session": "mine"}),
        ("delete", {"session": "ann"}),
        ("access", {"session": "ann", "open": True}),
        ("access", {"session": "ann", "passwords": TWO}),
        ("subscribe", {"session": "ann", "topic": "a"}),
        ("unsubscribe", {"session": "ann", "topic": "b"}),
    ],
)
def test_what_must_survive_is_answered_when_it_is_durable(rig: Rig, verb: str, members: dict[str, Any]) -> None:
    """Nobody is told of what a crash could undo."""
    maker = _make(rig, "ann", "mine")
    assert maker.ask("join", session="mine")["ok"]
    assert maker.ask("subscribe", session="ann", topic="b")["ok"]
    maker.send(asking(verb, sent_qos=1, packet_id=4, **members))
    rig.answer_questions()
    assert maker.inbox == []
    rig.settle()
    assert maker.taken(Puback) == [Puback(4)]


def test_a_request_that_cannot_be_read_is_answered_by_its_id(rig: Rig) -> None:
    """Whoever asks several things at once learns which one was wrong."""
    assert rig.client("pda").ask("create", id="seven", nonsense=1)["id"] == "seven"


@pytest.mark.parametrize("body", [b"{", b"[]", b"7", b'"x"', b"null", b"\xff", b'{"a":1,"a":2}', b"{}" + b" " * 65_536])
def test_a_body_that_is_no_object_of_json_is_refused(rig: Rig, body: bytes) -> None:
    """0x99."""
    peer = rig.client("pda")
    (answer,) = peer.tell(publishing("$whimbrel/session/list", body, 1, 3))
    assert isinstance(answer, Puback)
    assert answer.code == MALFORMED


def test_a_verb_that_there_is_not_is_refused_with_those_that_there_are(rig: Rig) -> None:
    """0x90: it is a topic that nobody may publish to."""
    answer = rig.client("pda").ask("destroy")
    assert _code(answer) == ReasonCode.TOPIC_NAME_INVALID
    assert all(verb in answer["reason"] for verb in VERBS)


@pytest.mark.parametrize("verb", ASKED)
def test_a_member_that_is_not_known_is_refused(rig: Rig, verb: str) -> None:
    """So that nothing is taken for done that was not."""
    members: dict[str, Any] = {"session": "ann", "topic": "a"}
    needed = {name: members[name] for name in VERBS[verb][0]}
    answer = rig.client("pda").ask(verb, **needed, sesion="ann")
    assert _code(answer) == MALFORMED
    assert "'sesion'" in answer["reason"]


@pytest.mark.parametrize("verb", [verb for verb in ASKED if VERBS[verb][0]])
def test_a_member_that_is_missing_is_named(rig: Rig, verb: str) -> None:
    """0x99."""
    answer = rig.client("pda").ask(verb)
    assert _code(answer) == MALFORMED
    assert "'session'" in answer["reason"]


@pytest.mark.parametrize(
    ("verb", "members"),
    [
        ("create", {"session": 7}),
        ("create", {"session": "a/b"}),
        ("create", {"session": "$a"}),
        ("create", {"session": ""}),
        ("create", {"session": "ä" * 128}),
        ("create", {"session": "bob", "passwords": {"king": "x"}}),
        ("create", {"session": "bob", "passwords": {"user": "x"}}),
        ("create", {"session": "bob", "passwords": {"owner": ""}}),
        ("create", {"session": "bob", "passwords": {}}),
        ("create", {"session": "bob", "passwords": ONE, "list": {"owner": "x"}}),
        ("create", {"session": "bob", "list": {"users": {}}}),
        ("create", {"session": "bob", "list": {"owner": "x", "users": {"y": ["fly"]}}}),
        ("join", {"session": "ann", "receipt": "lend"}),
        ("join", {"session": "ann", "password": 7}),
        ("leave", {"session": "ann", "device": ["x"]}),
        ("access", {"session": "ann"}),
        ("access", {"session": "ann", "open": False}),
        ("access", {"session": "ann", "open": True, "passwords": ONE}),
        ("subscribe", {"session": "ann", "topic": "a", "qos": 3}),
        ("subscribe", {"session": "ann", "topic": "a", "ttl": -1}),
        ("subscribe", {"session": "ann", "topic": "a", "max": 1.5}),
        ("subscribe", {"session": "ann", "topic": "a", "max": True}),
        ("subscribe", {"session": "ann", "topic": "a", "insecure": "yes"}),
        ("subscribe", {"session": "ann", "topic": "a", "keys": "x"}),
        ("keys", {"add": "x"}),
        ("list", {"id": {}}),
    ],
)
def test_a_member_that_is_not_what_it_must_be_is_refused(rig: Rig, verb: str, members: dict[str, Any]) -> None:
    """0x99."""
    maker = _make(rig, "ann")
    assert _code(maker.ask(verb, **members)) == MALFORMED


def test_a_client_without_the_right_to_publish_a_request_cannot_make_it(tmp_path: Path) -> None:
    """The rights file decides, verb by verb."""
    rule = '[[rule]]\nuser = ""\ntopics = ["$whimbrel/session/create"]\ndeny = ["publish"]\n'
    (tmp_path / "rights.toml").write_text(rule, encoding="utf-8")
    rights = Rights.read(tmp_path / "rights.toml")
    rig = Rig(tmp_path / "data", authorizer=Authorizer(rights))
    peer = rig.client("pda")
    assert _code(peer.ask("create", session="ann")) == NOT_AUTHORIZED
    assert _code(peer.ask("list")) == 0


# -- create ------------------------------------------------------------------------------------------------------------


def test_create_does_not_join(rig: Rig) -> None:
    """It is the maker's to decide."""
    maker = _make(rig, "ann")
    assert maker.ask("show", session="ann")["devices"] == []
    assert maker.ask("list")["sessions"] == []


def test_a_session_is_not_created_twice(rig: Rig) -> None:
    """0x87, also while the first waits for the disk; also with passwords, which take time."""
    maker = _make(rig, "ann")
    assert _code(maker.ask("create", session="ann")) == NOT_AUTHORIZED
    assert _code(maker.ask("create", session="ann", passwords=ONE)) == NOT_AUTHORIZED
    other = rig.client("other")
    maker.send(asking("create", session="bob", passwords=ONE))
    other.send(asking("create", session="bob"))
    rig.settle()
    assert sorted(each["ok"] for each in (*maker.answers(), *other.answers())) == [False, True]


def test_a_session_whose_end_waits_for_the_disk_can_be_created_when_it_is_gone(rig: Rig) -> None:
    """It is another one: nothing of the first is in it."""
    maker = _make(rig, "ann", passwords=ONE)
    pda = _joined(rig, "pda", "ann", OWNER)
    pda.send(subscribing("a", qos=1))
    rig.settle()
    maker.send(asking("delete", session="ann", password=OWNER))
    rig.answer_questions()
    maker.send(asking("create", session="ann"))
    rig.answer_questions()
    assert maker.answers() == []
    rig.settle()
    assert [(each["request"], each["ok"]) for each in maker.answers()] == [("delete", True), ("create", True)]
    shown = maker.ask("show", session="ann")
    assert (shown["subscriptions"], shown["devices"], shown["held"]) == ([], [], 0)


def test_a_session_of_nobody_in_particular_is_open_to_all(rig: Rig) -> None:
    """Where the broker has verified no user, there is nobody it could belong to."""
    _make(rig, "ann")
    stranger = rig.client("stranger")
    assert [_code(stranger.ask(verb, session="ann")) for verb in ("show", "join", "delete")] == [0, 0, 0]


def test_a_session_belongs_to_the_user_who_made_it(verified: Rig) -> None:
    """As a list with this owner."""
    ann, bob, nobody = _user(verified, "ann"), _user(verified, "bob"), verified.client("nobody")
    assert ann.ask("create", session="diary")["ok"]
    assert _code(ann.ask("join", session="diary")) == 0
    assert [_code(each.ask("join", session="diary")) for each in (bob, nobody)] == [NOT_AUTHORIZED] * 2
    assert [each["session"] for each in ann.ask("list")["sessions"]] == ["diary"]


# -- join and leave ----------------------------------------------------------------------------------------------------


def test_join_answers_with_the_subscriptions_before_what_was_held_follows(rig: Rig) -> None:
    """State on join (4.5), in both versions."""
    for version in (V311, V5):
        session = f"ann{version}"
        maker = rig.client("maker")
        assert maker.ask("create", session=session)["ok"]
        assert maker.ask("subscribe", session=session, topic=session, name="n", ttl=60)["ok"]
        maker.send(publishing(session, b"1", 1, 1))
        rig.settle()
        peer = rig.client("pda", version=version)
        peer.send(asking("join", session=session, receipt="keep", version=version))
        rig.settle()
        answer, held = peer.taken(Publish)
        assert [each["name"] for each in json.loads(answer.payload)["subscriptions"]] == ["n"]
        assert held.payload == b"1"


def test_a_wrong_password_and_no_such_session_are_answered_alike(rig: Rig) -> None:
    """For every verb that takes a password."""
    maker = _make(rig, "ann", passwords=THREE)
    for verb in ("join", "show", "delete", "subscribe", "unsubscribe", "access"):
        extra: dict[str, Any] = {"topic": "a"} if "subscribe" in verb else {"open": True} if verb == "access" else {}
        wrong, none = (maker.ask(verb, session=session, password=WRONG, **extra) for session in ("ann", "bob"))
        nothing = maker.ask(verb, session="ann", **extra)
        assert wrong == none == nothing
        assert _code(wrong) == NOT_AUTHORIZED
        rig.tick(60)  # or there were too many wrong passwords


def test_a_device_that_joins_again_changes_its_receipt(rig: Rig) -> None:
    """The mode is that of the last join."""
    maker = _make(rig, "ann")
    assert maker.ask("join", session="ann")["ok"]
    assert maker.ask("join", session="ann", receipt="keep")["ok"]
    assert maker.ask("show", session="ann")["devices"] == [{"device": "maker", "present": True, "receipt": "keep"}]


def test_joining_again_with_a_better_password_gives_its_rights(rig: Rig) -> None:
    """And those are what later requests have."""
    maker = _make(rig, "ann", passwords=TWO)
    assert maker.ask("join", session="ann", password=USER)["ok"]
    assert _code(maker.ask("subscribe", session="ann", topic="a")) == NOT_AUTHORIZED
    assert maker.ask("join", session="ann", password=ADMIN)["ok"]
    assert _code(maker.ask("subscribe", session="ann", topic="a")) == 0


def test_a_password_gives_its_rights_instead_of_those_that_were_joined_with(rig: Rig) -> None:
    """For one request, to more or to less."""
    maker = _make(rig, "ann", passwords=THREE)
    assert maker.ask("join", session="ann", password=ADMIN)["ok"]
    assert _code(maker.ask("subscribe", session="ann", topic="a", password=USER)) == NOT_AUTHORIZED
    assert _code(maker.ask("subscribe", session="ann", topic="a")) == 0
    assert _code(maker.ask("delete", session="ann")) == NOT_AUTHORIZED
    assert _code(maker.ask("delete", session="ann", password=OWNER)) == 0


def test_leaving_needs_no_right(rig: Rig) -> None:
    """Whoever may join may go."""
    _make(rig, "ann", passwords=TWO)
    pda = _joined(rig, "pda", "ann", USER)
    assert _code(pda.ask("leave", session="ann")) == 0
    assert _code(pda.ask("leave", session="ann")) == NOT_AUTHORIZED


def test_another_device_is_put_out_with_the_right_to_change_subscriptions(rig: Rig) -> None:
    """And without it is not."""
    _make(rig, "ann", passwords=THREE)
    reader, writer = _joined(rig, "reader", "ann", USER), _joined(rig, "writer", "ann", ADMIN)
    assert _code(reader.ask("leave", session="ann", device="writer")) == NOT_AUTHORIZED
    assert _code(writer.ask("leave", session="ann", device="nobody")) == NOT_AUTHORIZED
    assert _code(writer.ask("leave", session="ann", device="reader")) == 0
    assert _code(reader.ask("show", session="ann")) == NOT_AUTHORIZED
    reader.send(subscribing("a", session="ann"))
    rig.settle()
    assert reader.taken(Suback)[0].codes == (NOT_AUTHORIZED,)


@pytest.mark.parametrize("limit", [0, 10])
@pytest.mark.parametrize("session", ["ann", "bob"])
def test_leaving_by_ones_own_name_a_session_that_was_not_joined_is_refused_at_once(
    tmp_path: Path, session: str, limit: int
) -> None:
    """0x87, after one look and not after as many as there may be wrong passwords."""
    rig = Rig(tmp_path, replace(Config(), access=AccessSettings(wrong_passwords_per_minute=limit)))
    _make(rig, "ann", passwords=ONE)
    pda = rig.client("pda")
    pda.send(asking("leave", session=session, device="pda"))
    for _ in range(3):
        question = rig.broker.blocking_tasks.next(rig.listened_us)
        if question is not None:
            rig.broker.on_answer(question, question.ask(), rig.now)
            rig.flush()
    assert not rig.broker.blocking_tasks
    assert [_code(each) for each in pda.answers()] == [NOT_AUTHORIZED]


def test_a_device_put_out_while_it_joins_again_has_the_rights_it_joined_with(rig: Rig) -> None:
    """What comes later counts, and presence and rights are one."""
    maker = _make(rig, "ann")
    assert maker.ask("join", session="ann")["ok"]
    pda = _joined(rig, "pda", "ann")
    _wait_for_the_disk(maker)
    maker.send(asking("leave", session="ann", device="pda"))
    pda.send(asking("join", session="ann"))
    rig.settle()
    is_present, _ = rig.state.hold.members("ann").get("pda", (False, False))
    assert [each["ok"] for each in pda.answers()] == [True]
    assert is_present
    assert _code(pda.ask("subscribe", session="ann", topic="a")) == 0
    assert pda.ask("list")["sessions"][0]["joined"] is True


# -- looking -----------------------------------------------------------------------------------------------------------


def test_list_has_the_sessions_that_a_device_is_a_member_of_or_its_user_owns(verified: Rig) -> None:
    """Of others it learns nothing."""
    ann, bob = _user(verified, "ann"), _user(verified, "bob")
    assert ann.ask("create", session="diary")["ok"]
    shared = {"owner": "ann", "users": {"bob": ["join"]}}
    assert ann.ask("create", session="chat", list=shared)["ok"]
    assert ann.ask("subscribe", session="chat", topic="a")["ok"]
    assert bob.ask("join", session="chat")["ok"]
    bob.drop()
    ann.send(publishing("a", b"1", 1, 1))
    verified.settle()
    bob = _user(verified, "bob")
    chat = {"session": "chat", "joined": False, "devices": 1, "subscriptions": 1, "held": 1}
    assert bob.ask("list")["sessions"] == [chat]
    assert ann.ask("list")["sessions"] == [
        chat,
        {"session": "diary", "joined": False, "devices": 0, "subscriptions": 0, "held": 0},
    ]
    assert verified.client("nobody").ask("list")["sessions"] == []


def test_show_has_everything_of_a_session(rig: Rig) -> None:
    """For those who may join it."""
    maker = _make(rig, "ann", passwords=TWO)
    _joined(rig, "pda", "ann", USER).drop()
    added = maker.ask("subscribe", session="ann", topic="a", password=ADMIN, qos=0)["subscription"]
    maker.send(publishing("a", b"1", 1, 1))
    rig.settle()
    maker.take()
    assert maker.ask("show", session="ann", password=USER, id=1) == {
        "request": "show",
        "id": 1,
        "ok": True,
        "session": "ann",
        "subscriptions": [added],
        "devices": [{"device": "pda", "present": False, "receipt": "take"}],
        "next": None,
        "held": 1,
    }


# -- subscriptions -----------------------------------------------------------------------------------------------------


def test_subscribe_and_unsubscribe_by_request(rig: Rig) -> None:
    """As 3.1.1 does it, and whoever manages a session without joining it."""
    maker = _make(rig, "ann")
    answer = maker.ask("subscribe", session="ann", topic="a/+", name="n", filter="x == 1", ttl=9, max=8, insecure=False)
    assert answer["subscription"] == {
        "topic": "a/+",
        "name": "n",
        "filter": "x == 1",
        "ttl": 9,
        "max": 8,
        "qos": 1,
        "keys": [],
        "insecure": False,
        "policy": None,
        "near": None,
        "stale": None,
    }
    assert maker.ask("show", session="ann")["subscriptions"] == [answer["subscription"]]
    assert not maker.ask("unsubscribe", session="ann", topic="a/+")["ok"]
    assert maker.ask("unsubscribe", session="ann", topic="a/+", name="n")["ok"]
    assert maker.ask("show", session="ann")["subscriptions"] == []


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"topic": "$share/g/a"}, ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED),
        ({"topic": "a/#/b"}, ReasonCode.TOPIC_FILTER_INVALID),
        ({"topic": ""}, ReasonCode.TOPIC_FILTER_INVALID),
        ({"topic": "a", "filter": "x >"}, ReasonCode.TOPIC_FILTER_INVALID),
        ({"topic": "a", "keys": ["producer:private:x"]}, MALFORMED),
        ({"topic": "a", "ttl": 2**31 - 1}, 0),
    ],
)
def test_what_may_not_be_subscribed_to_is_refused_as_in_subscribe(rig: Rig, members: dict[str, Any], code: int) -> None:
    """With the same codes."""
    maker = _make(rig, "ann")
    assert _code(maker.ask("subscribe", session="ann", **members)) == code


@pytest.mark.parametrize("topic", ["$whimbrel/session/+/changes", "$SYS/#", "$whimbrel/#"])
def test_what_the_broker_tells_is_no_named_sessions_by_request_either(rig: Rig, topic: str) -> None:
    """Those topic filters are always the private session's; a request that names another is refused."""
    maker = _make(rig, "ann")
    assert _code(maker.ask("subscribe", session="ann", topic=topic)) != 0
    assert maker.ask("show", session="ann")["subscriptions"] == []


# -- access ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("passwords", "word", "rights"),
    [
        (ONE, OWNER, ("join", "subscribe", "access", "delete")),
        (TWO, USER, ("join",)),
        (TWO, ADMIN, ("join", "subscribe", "access", "delete")),
        (THREE, USER, ("join",)),
        (THREE, ADMIN, ("join", "subscribe")),
        (THREE, OWNER, ("join", "subscribe", "access", "delete")),
        (ONE, WRONG, ()),
    ],
)
@pytest.mark.parametrize("way", ["password", "joined"])
def test_who_has_a_password_may_what_its_level_may(
    rig: Rig, passwords: dict[str, str], word: str, rights: tuple[str, ...], way: str
) -> None:
    """The paper's three schemes, whether the password comes with the request or was joined with."""
    maker = _make(rig, "ann", passwords=passwords)
    if way == "joined" and rights:
        assert maker.ask("join", session="ann", password=word)["ok"]
    with_it: dict[str, Any] = {} if way == "joined" else {"password": word}
    requests: dict[str, dict[str, Any]] = {
        "join": {},
        "subscribe": {"topic": "a"},
        "access": {"passwords": passwords},
        "delete": {},
    }
    found = [verb for verb, more in requests.items() if maker.ask(verb, session="ann", **with_it, **more)["ok"]]
    assert tuple(found) == rights


def test_a_list_gives_rights_to_users_and_groups(verified: Rig) -> None:
    """And to nobody else."""
    ann = _user(verified, "ann")
    rights = {
        "owner": "ann",
        "users": {"dan": ["join", "delete"]},
        "groups": {"staff": ["join", "change subscriptions"]},
    }
    assert ann.ask("create", session="ward", list=rights)["ok"]
    may = {}
    for name in ("bob", "cat", "dan"):
        user = _user(verified, name)
        requests: dict[str, dict[str, Any]] = {"join": {}, "subscribe": {"topic": "a"}, "access": {"open": True}}
        may[name] = [verb for verb, more in requests.items() if user.ask(verb, session="ward", **more)["ok"]]
    assert may == {"bob": ["join", "subscribe"], "cat": [], "dan": ["join"]}
    assert _user(verified, "dan").ask("delete", session="ward")["ok"]


def test_a_user_of_a_list_joins_with_connect(verified: Rig) -> None:
    """Without a password of the session."""
    assert _user(verified, "ann").ask("create", session="diary")["ok"]
    peer = verified.client("pda", username="ann", password=b"ann", user=(("session", "diary"),))
    assert peer.ask("list")["sessions"][0]["joined"] is True
    other = verified.connecting("other", username="bob", password=b"bob", user=(("session", "diary"),))
    verified.settle()
    assert other.taken(Connack)[0].code == NOT_AUTHORIZED


def test_a_user_name_that_nobody_verified_is_on_no_list(rig: Rig) -> None:
    """It is only a claim."""
    maker = rig.client("maker", username="ann", password=b"x")
    assert maker.ask("create", session="diary", list={"owner": "ann"})["ok"]
    assert _code(maker.ask("join", session="diary")) == NOT_AUTHORIZED


def test_after_access_the_others_are_put_out_and_join_with_what_is_valid_now(rig: Rig) -> None:
    """And miss nothing that is still held."""
    _make(rig, "ann", passwords=ONE)
    pda, laptop = _joined(rig, "pda", "ann", OWNER), _joined(rig, "laptop", "ann", OWNER)
    pda.send(subscribing("$whimbrel/session/#"))
    laptop.send(subscribing("a", qos=1))
    rig.settle()
    pda.take()
    assert laptop.ask("access", session="ann", passwords={"owner": NEWER})["ok"]
    (told,) = pda.taken(Publish)
    assert json.loads(told.payload) == {"session": "ann", "change": "left", "device": "laptop"}
    assert _code(pda.ask("show", session="ann")) == NOT_AUTHORIZED
    laptop.drop()
    rig.client("publisher").send(publishing("a", b"1", 1, 1))
    rig.settle()
    assert pda.payloads() == []
    assert _code(pda.ask("join", session="ann", password=OWNER)) == NOT_AUTHORIZED
    assert pda.ask("join", session="ann", password=NEWER)["ok"]
    assert [each.payload for each in pda.taken(Publish) if each.topic == "a"] == [b"1"]


@pytest.mark.parametrize("verb", ["join", "access", "delete", "subscribe"])
def test_a_request_that_comes_while_access_changes_has_no_older_rights(rig: Rig, verb: str) -> None:
    """Found out anew: whoever was put out cannot slip in again, or put the owner out."""
    _make(rig, "ann", passwords=ONE)
    pda, laptop = _joined(rig, "pda", "ann", OWNER), _joined(rig, "laptop", "ann", OWNER)
    laptop.send(asking("access", session="ann", passwords={"owner": NEWER}))
    rig.answer_questions()
    more: dict[str, Any] = {"topic": "a"} if verb == "subscribe" else {"open": True} if verb == "access" else {}
    pda.send(asking(verb, session="ann", **more))
    rig.settle()
    assert [each["ok"] for each in laptop.answers()] == [True]
    assert [_code(each) for each in pda.answers()] == [NOT_AUTHORIZED]
    assert {device: present for device, (present, _) in rig.state.hold.members("ann").items()} == {"laptop": True}


@pytest.mark.parametrize("verb", ["access", "delete"])
def test_a_connect_that_comes_while_access_changes_has_no_older_rights(rig: Rig, verb: str) -> None:
    """The password was right when it was looked at, and is not any more when the device would be in."""
    maker = _make(rig, "ann", passwords=ONE)
    assert maker.ask("join", session="ann", password=OWNER)["ok"]
    _wait_for_the_disk(maker)
    more: dict[str, Any] = {"list": {"owner": "nobody"}} if verb == "access" else {}
    maker.send(asking(verb, session="ann", **more))
    pda = rig.connecting("pda", user=(("session", "ann"), ("password", OWNER)))
    rig.answer_questions()
    rig.settle()
    assert pda.taken(Connack)[0].code == NOT_AUTHORIZED
    assert "pda" not in rig.state.hold.members("ann")


def test_a_session_can_be_opened_and_closed_again(rig: Rig) -> None:
    """Passwords, open, a list: each replaces the other."""
    maker = _make(rig, "ann", passwords=ONE)
    stranger = rig.client("stranger")
    assert maker.ask("access", session="ann", password=OWNER, open=True)["ok"]
    assert _code(stranger.ask("show", session="ann")) == 0
    assert maker.ask("access", session="ann", passwords=TWO)["ok"]
    assert _code(stranger.ask("show", session="ann")) == NOT_AUTHORIZED
    assert _code(stranger.ask("show", session="ann", password=OWNER)) == NOT_AUTHORIZED
    assert _code(stranger.ask("show", session="ann", password=USER)) == 0


def test_with_two_levels_an_admin_seizes_the_session_and_with_three_cannot(rig: Rig) -> None:
    """The paper's malicious admin (5.2.1)."""
    maker = _make(rig, "two", passwords=TWO)
    assert maker.ask("create", session="three", passwords=THREE)["ok"]
    admin = rig.client("admin")
    assert admin.ask("delete", session="two", password=ADMIN)["ok"]
    assert admin.ask("create", session="two", passwords={"owner": NEWER})["ok"]
    assert _code(admin.ask("delete", session="three", password=ADMIN)) == NOT_AUTHORIZED
    assert _code(admin.ask("access", session="three", password=ADMIN, open=True)) == NOT_AUTHORIZED


def test_too_many_wrong_passwords_in_requests_have_to_wait(tmp_path: Path) -> None:
    """0x97, without looking at the password."""
    rig = Rig(tmp_path, replace(Config(), access=AccessSettings(wrong_passwords_per_minute=2)))
    maker = _make(rig, "ann", passwords=ONE)
    found = [_code(maker.ask("show", session="ann", password=word)) for word in (WRONG, WRONG, OWNER)]
    assert found == [NOT_AUTHORIZED, NOT_AUTHORIZED, QUOTA_EXCEEDED]
    rig.tick(30)
    assert _code(maker.ask("show", session="ann", password=OWNER)) == 0


def test_neither_passwords_nor_hashes_are_in_answers(rig: Rig) -> None:
    """Whatever is asked."""
    maker = _make(rig, "ann", passwords=THREE)
    answers = [
        maker.ask("join", session="ann", password=OWNER),
        maker.ask("show", session="ann"),
        maker.ask("list"),
        maker.ask("show", session="ann", password=WRONG),
        maker.ask("join", session="ann", password=OWNER, receipt=OWNER),
        maker.ask("create", session="bob", passwords={OWNER: OWNER}),
    ]
    said = json.dumps(answers[:4])
    assert not any(word in said for word in (USER, ADMIN, OWNER, WRONG, "hash", "salt"))
    assert OWNER not in json.dumps(answers[5])


# -- keys of the connection --------------------------------------------------------------------------------------------


def test_the_request_keys_answers_and_refuses_what_is_none(rig: Rig) -> None:
    """0x99, without a word of the key."""
    peer = rig.client("pda")
    assert peer.ask("keys", add=["producer:private:s3cret"], id=1) == {"request": "keys", "id": 1, "ok": True}
    answer = peer.ask("keys", add=["s3cret"])
    assert _code(answer) == MALFORMED
    assert "s3cret" not in answer["reason"]
    assert peer.ask("keys", remove=["producer:private:s3cret"])["ok"]
    assert peer.ask("keys")["ok"]
