"""Named sessions on the core of the broker: joining, subscribing, receiving, limits (docs/reference/sessions.md)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broker_rig import Peer, Rig, asking, publishing, quick_scrypt, subscribing

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.passwords import Cost
from whimbrel.broker.access.topic_rights import Action, Rights, Rule
from whimbrel.broker.settings.config import AccessSettings, Config, LimitSettings, MqttSettings, SessionSettings
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import (
    V5,
    V311,
    Connack,
    Disconnect,
    Packet,
    Puback,
    Publish,
    Suback,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from whimbrel.mqtt.properties import Properties, Property

NOT_AUTHORIZED, QUOTA_EXCEEDED = ReasonCode.NOT_AUTHORIZED, ReasonCode.QUOTA_EXCEEDED
NO_ONE = ReasonCode.NO_MATCHING_SUBSCRIBERS
TOLD = "$whimbrel/session/"
WORD, READING, OTHER, WRONG = "word of ann", "word for readers", "word of bob", "word of nobody"


@pytest.fixture(autouse=True)
def _quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let passwords cost nothing: what they cost is not what is asked here."""
    monkeypatch.setattr("whimbrel.broker.access.passwords._scrypt", quick_scrypt)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker with all defaults."""
    return Rig(tmp_path)


def _with(folder: Path, **sessions: Any) -> Rig:
    return Rig(folder, replace(Config(), sessions=SessionSettings(**sessions)))


def _make(rig: Rig, *sessions: str, **access: Any) -> Peer:
    """Return a client that has made sessions, and joined none."""
    maker = rig.client("maker")
    for session in sessions:
        assert maker.ask("create", session=session, **access)["ok"]
    return maker


def _to(*sessions: str, **options: str | tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the user properties of a CONNECT that joins; options that are tuples are said more than once."""
    said = [("session", session) for session in sessions]
    for name, values in options.items():
        said += [(name, value) for value in ((values,) if isinstance(values, str) else values)]
    return tuple(said)


def _join(rig: Rig, client_id: str, *sessions: str, **options: str | tuple[str, ...]) -> Peer:
    return rig.client(client_id, user=_to(*sessions, **options))


def _subscribe(rig: Rig, peer: Peer, *wanted: str | SubscriptionRequest, qos: int = 1, **options: Any) -> Suback:
    peer.send(subscribing(*wanted, qos=qos, **options))
    rig.settle()
    (answer,) = [each for each in peer.inbox if isinstance(each, Suback)]
    peer.inbox.remove(answer)
    return answer


def _publish(rig: Rig, topic: str, *payloads: bytes, qos: int = 1) -> None:
    """Publish from somewhere, one after the other."""
    publisher = rig.client("publisher")
    for number, payload in enumerate(payloads, start=1):
        publisher.send(publishing(topic, payload, qos, number if qos else 0))
        rig.settle()
    publisher.send(Disconnect())


def _refusal(rig: Rig, *sessions: str, address: str = "test", **options: str | tuple[str, ...]) -> tuple[int, str]:
    """Return code and reason of the CONNACK that a CONNECT is refused with."""
    peer = rig.connecting("stranger", user=_to(*sessions, **options), address=address)
    rig.settle()
    (answer,) = peer.taken(Connack)
    assert peer.is_closed
    return answer.code, answer.properties.text(Property.REASON_STRING) or ""


def _acknowledge(rig: Rig, peer: Peer) -> list[bytes]:
    """Acknowledge what a client was sent, and return it."""
    found = peer.taken(Publish)
    peer.send(*(Puback(each.packet_id) for each in found if each.qos == 1))
    rig.settle()
    return [each.payload for each in found]


def _told(peer: Peer) -> list[dict[str, Any]]:
    """Take what a client was told of its sessions."""
    found = [each for each in peer.inbox if isinstance(each, Publish) and each.topic.startswith(TOLD)]
    peer.inbox = [each for each in peer.inbox if each not in found]
    return [{"topic": each.topic.removeprefix(TOLD), **json.loads(each.payload)} for each in found]


def _show(peer: Peer, session: str, **members: Any) -> dict[str, Any]:
    answer = peer.ask("show", session=session, **members)
    assert answer["ok"], answer
    return answer


# -- joining with CONNECT ----------------------------------------------------------------------------------------------


def test_a_device_that_connects_with_a_session_is_present_in_it(rig: Rig) -> None:
    """One property is all it takes."""
    maker = _make(rig, "ann")
    pda = _join(rig, "pda", "ann", receipt="keep")
    assert _show(maker, "ann")["devices"] == [{"device": "pda", "present": True, "receipt": "keep"}]
    pda.drop()
    assert _show(maker, "ann")["devices"] == [{"device": "pda", "present": False, "receipt": "keep"}]


@pytest.mark.parametrize("name", [" ann", "ann ", "e\u0301va", " "])
def test_no_new_session_looks_like_another(rig: Rig, name: str) -> None:
    """Blanks at the ends and decomposed characters cannot be seen; what is there from before can be joined."""
    maker = _make(rig, "ann", "\u00e9va", "ann of ben")
    assert maker.ask("create", session=name)["code"] == ReasonCode.PAYLOAD_FORMAT_INVALID
    assert maker.ask("join", session=name)["code"] == NOT_AUTHORIZED  # there is none


def test_a_device_stays_a_member_until_it_leaves(rig: Rig) -> None:
    """Being away is not leaving."""
    maker = _make(rig, "ann")
    _join(rig, "pda", "ann").drop()
    pda = _join(rig, "pda", "ann")
    assert pda.ask("leave", session="ann")["ok"]
    assert _show(maker, "ann")["devices"] == []


def test_a_device_takes_unless_it_says_otherwise(rig: Rig) -> None:
    """The default is the paper's first mode."""
    maker = _make(rig, "ann")
    _join(rig, "pda", "ann")
    assert _show(maker, "ann")["devices"][0]["receipt"] == "take"


def test_a_session_that_is_not_there_costs_no_hash_where_no_session_has_a_password(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to hide then; as it was, each wrong name cost 128 MiB and most of a second."""
    hashed: list[bytes] = []

    def counted(password: bytes, salt: bytes, cost: Cost) -> bytes:
        hashed.append(password)
        return quick_scrypt(password, salt, cost)

    monkeypatch.setattr("whimbrel.broker.access.passwords._scrypt", counted)
    maker = _make(rig, "open")
    assert maker.ask("create", session="listed", list={"owner": "ann"})["ok"]
    for name in ("nowhere", "listed"):
        assert _refusal(rig, name, password=WRONG)[0] == NOT_AUTHORIZED
        assert maker.ask("show", session=name, password=WRONG)["code"] == NOT_AUTHORIZED
    assert hashed == []
    assert maker.ask("create", session="locked", passwords={"owner": WORD})["ok"]
    costs: list[int] = []
    for name in ("nowhere", "listed", "locked"):
        hashed.clear()
        assert _refusal(rig, name, password=WRONG)[0] == NOT_AUTHORIZED
        costs.append(len(hashed))
    assert min(costs) > 0  # how many levels a name has that is not there is drawn, so costs differ
    assert maker.ask("delete", session="locked", password=WORD)["ok"]
    hashed.clear()
    assert _refusal(rig, "locked", password=WORD)[0] == NOT_AUTHORIZED
    assert hashed == []


@pytest.mark.parametrize("passwords", [WORD, (WORD, WORD)])
def test_one_password_is_for_all_sessions_or_each_has_its_own(rig: Rig, passwords: str | tuple[str, ...]) -> None:
    """A person with one password says it once."""
    maker = _make(rig, "ann", "bob", passwords={"owner": WORD})
    _join(rig, "pda", "ann", "bob", password=passwords)
    assert [_show(maker, each, password=WORD)["devices"][0]["device"] for each in ("ann", "bob")] == ["pda", "pda"]


def test_passwords_and_receipts_go_with_their_sessions_in_order(rig: Rig) -> None:
    """The second password is for the second session."""
    maker = _make(rig, "ann", passwords={"owner": WORD})
    assert maker.ask("create", session="bob", passwords={"owner": OTHER})["ok"]
    _join(rig, "pda", "ann", "bob", password=(WORD, OTHER), receipt=("keep", "take"))
    found = [
        _show(maker, each, password=word)["devices"][0]["receipt"] for each, word in (("ann", WORD), ("bob", OTHER))
    ]
    assert found == ["keep", "take"]
    assert _refusal(rig, "ann", "bob", password=(OTHER, WORD))[0] == NOT_AUTHORIZED


def test_an_empty_password_is_none(rig: Rig) -> None:
    """So that an open session can stand beside one with a password."""
    maker = _make(rig, "ann")
    assert maker.ask("create", session="bob", passwords={"owner": OTHER})["ok"]
    _join(rig, "pda", "ann", "bob", password=("", OTHER))
    assert len(_show(maker, "ann")["devices"]) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"password": ("a", "b")},
        {"password": ("a", "b", "c", "d")},
        {"receipt": ("take", "take")},
        {"receipt": "lend"},
        {"key": "producer:nothing"},
    ],
)
def test_what_does_not_go_with_the_sessions_is_a_protocol_error(rig: Rig, options: dict[str, Any]) -> None:
    """Nothing is guessed."""
    _make(rig, "ann", "bob", "cat")
    code, reason = _refusal(rig, "ann", "bob", "cat", **options)
    assert code == ReasonCode.PROTOCOL_ERROR
    assert reason.startswith("user property ")


@pytest.mark.parametrize("name", ["", "a/b", "a+", "#", "$ann", "a\nb", "x" * 256])
def test_what_is_no_name_of_a_session_is_a_protocol_error(rig: Rig, name: str) -> None:
    """Names stand in topics."""
    assert _refusal(rig, name)[0] == ReasonCode.PROTOCOL_ERROR


def test_a_session_is_named_once(rig: Rig) -> None:
    """Two passwords for one session would be two answers."""
    _make(rig, "ann")
    assert _refusal(rig, "ann", "ann")[0] == ReasonCode.PROTOCOL_ERROR


def test_a_wrong_password_and_no_such_session_are_refused_alike(rig: Rig) -> None:
    """A stranger does not learn which sessions there are."""
    _make(rig, "ann", passwords={"owner": WORD})
    wrong, none, nothing = (
        _refusal(rig, "ann", password=WRONG),
        _refusal(rig, "bob", password=WRONG),
        _refusal(rig, "ann"),
    )
    assert wrong == none == nothing
    assert wrong[0] == NOT_AUTHORIZED


def test_if_one_session_cannot_be_joined_none_is(rig: Rig) -> None:
    """A client that was let in is where it asked to be."""
    maker = _make(rig, "ann")
    assert _refusal(rig, "ann", "bob")[0] == NOT_AUTHORIZED
    assert _show(maker, "ann")["devices"] == []


@pytest.mark.parametrize("kind", ["session", "user"])
def test_after_too_many_wrong_passwords_the_address_has_to_wait(tmp_path: Path, kind: str) -> None:
    """Guessing is slow, for one address, and whatever the password is for."""
    access = AccessSettings(wrong_passwords_per_minute=2, users="users" if kind == "user" else "")
    rig = Rig(
        tmp_path,
        replace(Config(), access=access),
        verify=(lambda _name, password: password == WORD.encode()) if kind == "user" else None,
    )

    def code(password: str, address: str = "10.0.0.1:1") -> int:
        if kind == "user":
            peer = rig.connecting("pda", username="ann", password=password.encode(), address=address)
        else:
            peer = rig.connecting("pda", user=_to("ann", password=password), address=address)
        rig.settle()
        return peer.taken(Connack)[0].code

    if kind == "session":
        _make(rig, "ann", passwords={"owner": WORD})
    wrong = NOT_AUTHORIZED if kind == "session" else ReasonCode.BAD_USER_NAME_OR_PASSWORD
    assert [code("wrong"), code(WORD), code("wrong")] == [wrong, 0, wrong]
    assert [code("wrong"), code(WORD)] == [QUOTA_EXCEEDED] * 2
    assert code(WORD, "10.0.0.2:1") == 0
    rig.tick(30)
    assert code(WORD) == 0


def test_too_many_wrong_passwords_of_users_are_too_many_for_sessions(tmp_path: Path) -> None:
    """It is the same guesser: an address may be wrong about ten names as often as about each of them."""
    access = AccessSettings(wrong_passwords_per_minute=1, users="users", anonymous=True)
    rig = Rig(tmp_path, replace(Config(), access=access), verify=lambda _name, _password: False)
    _make(rig, "ann", passwords={"owner": WORD})
    for number in range(10):
        rig.connecting("guesser", username=f"user-{number}", password=b"x")
        rig.settle()
    assert _refusal(rig, "ann", password=WORD)[0] == QUOTA_EXCEEDED


def test_passwords_that_already_wait_are_not_looked_at_after_too_many(tmp_path: Path) -> None:
    """Asking in parallel gains nothing."""
    rig = Rig(tmp_path, replace(Config(), access=AccessSettings(wrong_passwords_per_minute=1)))
    _make(rig, "ann", passwords={"owner": WORD})
    guesses = [rig.connecting(f"g{word}", user=_to("ann", password=word)) for word in ("a", "b", WORD)]
    rig.settle()
    assert [each.taken(Connack)[0].code for each in guesses] == [NOT_AUTHORIZED, QUOTA_EXCEEDED, QUOTA_EXCEEDED]


def test_connect_is_answered_when_the_joining_is_durable(rig: Rig) -> None:
    """CONNACK promises that the device is a member."""
    _make(rig, "ann")
    pda = rig.connecting("pda", user=_to("ann"))
    assert pda.inbox == []
    rig.settle()
    assert pda.taken(Connack) != []


def test_what_was_held_in_all_sessions_follows_connack_in_the_order_it_was_accepted(rig: Rig) -> None:
    """One device, one order, however many sessions it comes through."""
    _make(rig, "ann", "bob")
    pda = rig.client("pda", expiry_s=600, user=_to("bob", "ann", receipt="keep"))
    for topic, session in (("a", "ann"), ("b", "bob"), ("c", "")):
        _subscribe(rig, pda, topic, session=session)
    pda.drop()
    for topic, payload in (("a", b"1"), ("c", b"2"), ("b", b"3"), ("a", b"4"), ("c", b"5"), ("b", b"6")):
        _publish(rig, topic, payload)
    pda = rig.connecting("pda", clean=False, expiry_s=600, user=_to("bob", "ann", receipt="keep"))
    rig.settle()
    assert isinstance(pda.inbox[0], Connack)
    assert pda.payloads() == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_the_order_holds_when_the_disk_has_only_a_part_of_the_joining(rig: Rig) -> None:
    """A sync may end between any two facts."""
    _make(rig, "ann")
    pda = rig.client("pda", expiry_s=600, user=_to("ann", receipt="keep"))
    _subscribe(rig, pda, "a")
    _subscribe(rig, pda, "c", session="")
    pda.drop()
    _publish(rig, "a", b"1")
    _publish(rig, "c", b"2")
    pda = rig.connecting("pda", clean=False, expiry_s=600, user=_to("ann", receipt="keep"))
    last = rig.log.sync()
    for seq in range(last - 2, last + 1):
        rig.broker.on_sync(seq)
        rig.flush()
    rig.settle()
    assert isinstance(pda.inbox[0], Connack)
    assert pda.payloads() == [b"1", b"2"]


def test_receive_maximum_paces_what_was_held_and_what_arrives_meanwhile_comes_behind(rig: Rig) -> None:
    """A small device is not flooded, and sees no order but one."""
    _make(rig, "ann")
    pda = _join(rig, "pda", "ann")
    _subscribe(rig, pda, "a")
    pda.drop()
    _publish(rig, "a", b"1", b"2", b"3", b"4", b"5")
    pda = rig.client("pda", user=_to("ann"), options={Property.RECEIVE_MAXIMUM: 2})
    assert len(pda.inbox) == 2
    _publish(rig, "a", b"6")
    found = []
    while pda.inbox:
        assert len(pda.inbox) <= 2
        found += _acknowledge(rig, pda)
    assert found == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_what_arrives_at_qos_0_while_older_ones_wait_comes_behind_them(rig: Rig) -> None:
    """What arrives meanwhile comes behind, whatever its QoS."""
    _make(rig, "ann")
    pda = _join(rig, "pda", "ann")
    _subscribe(rig, pda, "a")
    pda.drop()
    _publish(rig, "a", b"1", b"2", b"3")
    pda = rig.client("pda", user=_to("ann"), options={Property.RECEIVE_MAXIMUM: 1})
    _publish(rig, "a", b"4", qos=0)
    found = []
    while pda.inbox:
        found += _acknowledge(rig, pda)
    assert found == [b"1", b"2", b"3", b"4"]


def test_held_notifications_of_qos_0_come_in_their_order_and_once(rig: Rig) -> None:
    """A named session holds every QoS."""
    _make(rig, "ann")
    pda = _join(rig, "pda", "ann", receipt="keep")
    _subscribe(rig, pda, "a")
    pda.drop()
    for number, payload in enumerate([b"1", b"2", b"3", b"4"]):
        _publish(rig, "a", payload, qos=number % 2)
    pda = rig.client("pda", user=_to("ann", receipt="keep"), options={Property.RECEIVE_MAXIMUM: 1})
    found = []
    while pda.inbox:
        found += _acknowledge(rig, pda)
    assert found == [b"1", b"2", b"3", b"4"]
    pda.drop()
    assert _join(rig, "pda", "ann", receipt="keep").payloads() == []


@pytest.mark.parametrize("expiry_s", [0, 60])
def test_clean_start_and_expiry_never_touch_a_named_session(rig: Rig, expiry_s: int) -> None:
    """They are about the private one."""
    _make(rig, "ann")
    pda = rig.client("pda", expiry_s=expiry_s, user=_to("ann"))
    _subscribe(rig, pda, "a")
    pda.drop()
    rig.tick(3_600)
    rig.settle()
    _publish(rig, "a", b"1")
    assert rig.client("pda", clean=True, user=_to("ann")).payloads() == [b"1"]


def test_a_connection_that_takes_over_is_only_where_it_asked_to_be(rig: Rig) -> None:
    """Presence is the connection's."""
    maker = _make(rig, "ann")
    _subscribe(rig, _join(rig, "pda", "ann"), "a")
    plain = rig.client("pda")
    assert _show(maker, "ann")["devices"][0]["present"] is False
    _publish(rig, "a", b"1")
    assert plain.payloads() == []


def test_who_may_not_publish_the_request_may_not_join_with_connect(tmp_path: Path) -> None:
    """The rights file decides about both ways."""

    class NoJoining(Authorizer):
        def may_publish(self, link: object, client_id: str, topic: str) -> bool:
            del link, client_id
            return topic != f"{TOLD}join"

    rig = Rig(tmp_path, authorizer=NoJoining())
    maker = _make(rig, "ann")
    assert _refusal(rig, "ann")[0] == NOT_AUTHORIZED
    assert maker.ask("join", session="ann")["code"] == NOT_AUTHORIZED


# -- the user name as a session ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V311, V5])
def test_where_it_is_configured_the_user_name_is_the_session(tmp_path: Path, version: int) -> None:
    """Devices whose software cannot be changed have sessions too."""
    rig = _with(tmp_path, username_is_session=True)
    maker = _make(rig, "ann", passwords={"owner": WORD})
    pda = rig.client("pda", version=version, username="ann", password=WORD.encode())
    _subscribe(rig, pda, "a")
    assert [each["topic"] for each in _show(maker, "ann", password=WORD)["subscriptions"]] == ["a"]


@pytest.mark.parametrize(("version", "code"), [(V311, 5), (V5, NOT_AUTHORIZED)])
@pytest.mark.parametrize(
    ("username", "password"), [("ann", b"x"), ("ann", b"\xff"), ("ann", None), ("bob", WORD.encode())]
)
def test_a_user_name_that_is_no_session_is_refused(
    tmp_path: Path, version: int, code: int, username: str, password: bytes | None
) -> None:
    """And a wrong password, alike."""
    rig = _with(tmp_path, username_is_session=True)
    _make(rig, "ann", passwords={"owner": WORD})
    peer = rig.connecting("pda", version=version, username=username, password=password)
    rig.settle()
    assert peer.taken(Connack)[0].code == code


def test_where_it_is_not_configured_a_user_name_is_only_a_claim(rig: Rig) -> None:
    """Plain MQTT."""
    pda = rig.client("pda", username="ann", password=b"whatever")
    assert pda.ask("list")["sessions"] == []


# -- subscribing -------------------------------------------------------------------------------------------------------


def test_a_subscription_is_for_the_first_session_that_was_named(rig: Rig) -> None:
    """A connection has one home."""
    maker = _make(rig, "ann", "bob")
    pda = _join(rig, "pda", "bob", "ann")
    assert _subscribe(rig, pda, "a").codes == (1,)
    assert len(_show(maker, "bob")["subscriptions"]) == 1
    assert _show(maker, "ann")["subscriptions"] == []


def test_the_property_session_chooses_another_or_the_private_one(rig: Rig) -> None:
    """An application may keep something to itself."""
    maker = _make(rig, "ann", "bob")
    pda = _join(rig, "pda", "bob", "ann")
    assert _subscribe(rig, pda, "a", session="ann").codes == (1,)
    assert _subscribe(rig, pda, "b", session="").codes == (1,)
    assert [len(_show(maker, each)["subscriptions"]) for each in ("ann", "bob")] == [1, 0]
    assert [topic for topic, _ in rig.state.subscribed_to["$mqtt/pda"]] == ["b"]


def test_a_session_joined_by_request_is_chosen_and_is_no_home(rig: Rig) -> None:
    """Home is what CONNECT named."""
    maker = _make(rig, "ann")
    assert maker.ask("join", session="ann")["ok"]
    assert _subscribe(rig, maker, "a").codes == (1,)
    assert _subscribe(rig, maker, "b", session="ann").codes == (1,)
    assert [each["topic"] for each in _show(maker, "ann")["subscriptions"]] == ["b"]


@pytest.mark.parametrize("topic", ["$whimbrel/session/+/changes", "$SYS/#"])
def test_what_the_broker_tells_is_always_the_private_sessions(rig: Rig, topic: str) -> None:
    """Another device of the session did not ask to hear it."""
    maker = _make(rig, "ann")
    pda = _join(rig, "pda", "ann")
    assert _subscribe(rig, pda, topic, session="ann").codes == (1,)
    assert _show(maker, "ann")["subscriptions"] == []


def test_unsubscribe_is_for_the_same_session_as_subscribe(rig: Rig) -> None:
    """Home, or the one that is chosen."""
    maker = _make(rig, "ann", "bob")
    pda = _join(rig, "pda", "ann", "bob")
    _subscribe(rig, pda, "a")
    _subscribe(rig, pda, "a", session="bob")
    _subscribe(rig, pda, "a", session="")

    def unsubscribed(*user: tuple[str, str]) -> tuple[int, ...]:
        pda.send(Unsubscribe(2, ("a",), Properties(user=user)))
        rig.settle()
        return pda.taken(Unsuback)[0].codes

    gone = ReasonCode.NO_SUBSCRIPTION_EXISTED
    assert [unsubscribed(), unsubscribed()] == [(0,), (gone,)]
    assert _show(maker, "ann")["subscriptions"] == []
    assert [unsubscribed(("session", "")), unsubscribed(("session", ""))] == [(0,), (gone,)]
    assert len(_show(maker, "bob")["subscriptions"]) == 1
    assert unsubscribed(("session", "bob")) == (0,)
    assert unsubscribed(("session", "cat")) == (NOT_AUTHORIZED,)


def test_every_device_of_a_session_gets_what_its_subscriptions_match(rig: Rig) -> None:
    """A subscription belongs to the session, not to who made it."""
    _make(rig, "ann")
    pda, laptop = _join(rig, "pda", "ann", receipt="keep"), _join(rig, "laptop", "ann", receipt="keep")
    _subscribe(rig, pda, "a")
    _publish(rig, "a", b"1")
    late = _join(rig, "late", "ann", receipt="keep")
    _publish(rig, "a", b"2")
    assert [each.payloads() for each in (pda, laptop, late)] == [[b"1", b"2"]] * 3


def test_any_device_may_change_or_remove_the_subscription_of_another(rig: Rig) -> None:
    """It is known by its topic filter and name."""
    maker = _make(rig, "ann")
    pda, laptop = _join(rig, "pda", "ann"), _join(rig, "laptop", "ann")
    _subscribe(rig, pda, "a", name="n", max="5")
    _subscribe(rig, pda, "a", max="6")
    _subscribe(rig, laptop, "a", name="n", max="7", modify="yes")
    assert [each["max"] for each in _show(maker, "ann")["subscriptions"]] == [7, 6]
    laptop.send(Unsubscribe(2, ("a",), Properties(user=(("name", "n"),))))
    rig.settle()
    assert [each["max"] for each in _show(maker, "ann")["subscriptions"]] == [6]


def test_the_options_of_a_subscription_are_those_of_plain_mqtt(rig: Rig) -> None:
    """And in a named session max is 1,000 where it is not said."""
    maker = _make(rig, "ann")
    pda = _join(rig, "pda", "ann")
    _subscribe(rig, pda, "a", filter="x > 1", name="n", ttl="300", max="20")
    _subscribe(rig, pda, "b", qos=0)
    assert _show(maker, "ann")["subscriptions"] == [
        {
            "topic": "a",
            "name": "n",
            "filter": "x > 1",
            "ttl": 300,
            "max": 20,
            "qos": 1,
            "keys": [],
            "insecure": True,
            "policy": None,
            "near": None,
            "stale": None,
        },
        {
            "topic": "b",
            "name": "",
            "filter": None,
            "ttl": 604_800,
            "max": 1_000,
            "qos": 0,
            "keys": [],
            "insecure": True,
            "policy": None,
            "near": None,
            "stale": None,
        },
    ]


def test_a_subscription_of_a_named_session_is_answered_when_it_is_durable(rig: Rig) -> None:
    """SUBACK promises what will be held, also to a client whose own session passes."""
    _make(rig, "ann")
    pda = _join(rig, "pda", "ann")
    assert pda.tell(subscribing("a", qos=1)) == []
    rig.sync()
    assert pda.take() == [Suback(1, (1,))]
    assert pda.tell(Unsubscribe(2, ("a",))) == []
    rig.sync()
    assert pda.take() == [Unsuback(2, (0,))]


@pytest.mark.parametrize(
    ("wanted", "options", "code"),
    [
        ("a", {"session": "bob"}, NOT_AUTHORIZED),
        ("a", {"session": "nobody"}, NOT_AUTHORIZED),
        ("$share/g/a", {}, ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED),
        (SubscriptionRequest("a", 1, no_local=True), {}, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        ("a", {"max": "11"}, QUOTA_EXCEEDED),
        ("a/#/b", {}, ReasonCode.TOPIC_FILTER_INVALID),
        ("a", {"filter": "x >"}, ReasonCode.TOPIC_FILTER_INVALID),
        ("a", {"ttl": "soon"}, ReasonCode.TOPIC_FILTER_INVALID),
        ("a", {"max": "-1"}, ReasonCode.TOPIC_FILTER_INVALID),
        ("a", {"key": "producer:private:x"}, ReasonCode.TOPIC_FILTER_INVALID),
        ("a", {"key": "nonsense"}, ReasonCode.TOPIC_FILTER_INVALID),
        ("a", {"insecure": "perhaps"}, ReasonCode.TOPIC_FILTER_INVALID),
    ],
)
def test_what_may_not_be_subscribed_to_in_a_named_session_is_refused(
    tmp_path: Path, wanted: str | SubscriptionRequest, options: dict[str, Any], code: int
) -> None:
    """Each refusal has its code, and says why."""
    rig = _with(tmp_path, held=10, max=5)
    _make(rig, "ann", "bob")
    pda = _join(rig, "pda", "ann")
    answer = _subscribe(rig, pda, wanted, **options)
    assert answer.codes == (code,)
    assert answer.properties.text(Property.REASON_STRING)
    assert _show(pda, "ann")["subscriptions"] == []


def test_a_filter_that_is_none_is_refused_with_its_place(rig: Rig) -> None:
    """The reason string says where."""
    _make(rig, "ann")
    answer = _subscribe(rig, _join(rig, "pda", "ann"), "a", filter="x >\n> 1")
    assert "line 2, column 1" in (answer.properties.text(Property.REASON_STRING) or "")


def test_without_the_right_to_change_subscriptions_none_is_changed(rig: Rig) -> None:
    """The password of the user level is for reading."""
    maker = _make(rig, "ann", passwords={"user": READING, "admin": WORD})
    reader = _join(rig, "reader", "ann", password=READING)
    writer = _join(rig, "writer", "ann", password=WORD)
    assert _subscribe(rig, writer, "a").codes == (1,)
    assert _subscribe(rig, reader, "b").codes == (NOT_AUTHORIZED,)
    reader.send(Unsubscribe(3, ("a",)))
    rig.settle()
    assert reader.taken(Unsuback)[0].codes == (NOT_AUTHORIZED,)
    assert [each["topic"] for each in _show(maker, "ann", password=READING)["subscriptions"]] == ["a"]
    _publish(rig, "a", b"1")
    assert reader.payloads() == [b"1"]


def test_nothing_is_subscribed_to_in_a_session_whose_end_waits_for_the_disk(rig: Rig) -> None:
    """Or it would be there again, and open to all."""
    maker = _make(rig, "ann", passwords={"owner": WORD})
    pda = _join(rig, "pda", "ann", password=WORD)
    maker.send(asking("delete", session="ann", password=WORD))
    rig.answer_questions()
    pda.send(subscribing("a", qos=1))
    rig.settle()
    assert pda.taken(Suback)[0].codes == (NOT_AUTHORIZED,)
    assert not rig.state.hold.has("ann")


def test_a_named_session_grants_qos_1_at_most(rig: Rig) -> None:
    """Exactly once is an exchange of two, and here another device may take what one has begun to receive."""
    _make(rig, "ann")
    pda = _join(rig, "pda", "ann")
    assert _subscribe(rig, pda, "a", qos=2).codes == (1,)
    assert pda.ask("subscribe", session="ann", topic="b", qos=2)["subscription"]["qos"] == 1
    _publish(rig, "a", b"1", qos=2)
    assert [each.qos for each in pda.taken(Publish)] == [1]


def test_what_was_not_acknowledged_comes_again_marked_and_with_its_identifier(rig: Rig) -> None:
    """And what was acknowledged never does."""
    _make(rig, "ann")
    pda = _join(rig, "pda", "ann", receipt="keep")
    _subscribe(rig, pda, "a")
    _publish(rig, "a", b"1", b"2")
    first, second = pda.taken(Publish)
    pda.send(Puback(first.packet_id))
    pda.drop()
    (again,) = _join(rig, "pda", "ann", receipt="keep").taken(Publish)
    assert again == second._replace(dup=True)


def test_a_device_is_not_given_what_its_rights_withhold_and_does_not_take_it_from_others(tmp_path: Path) -> None:
    """A subscription of the session is no way around the rights file."""
    denied = frozenset({Action.SUBSCRIBE})
    not_for_the_pda = Rule(client="pda", topics=("secret",), actions=denied, is_allowing=False)
    rig = Rig(tmp_path, authorizer=Authorizer(Rights([not_for_the_pda])))
    _make(rig, "ann")
    pda, laptop = _join(rig, "pda", "ann"), _join(rig, "laptop", "ann")
    _subscribe(rig, laptop, "#")
    laptop.drop()
    _publish(rig, "secret", b"1")
    _publish(rig, "secret", b"2", qos=0)
    _publish(rig, "open", b"3")
    assert _acknowledge(rig, pda) == [b"3"]
    assert _join(rig, "laptop", "ann").payloads() == [b"1", b"2"]


# -- one copy ----------------------------------------------------------------------------------------------------------


def _wait_for_the_disk(peer: Peer) -> None:
    """Let everything that comes now wait until the disk has something, and then go on at once."""
    peer.send(publishing("retained", b"x", 1, 99, retain=True))


def _held(rig: Rig, session: str) -> int:
    return rig.state.hold.pending_count(session)


def test_a_device_in_two_sessions_gets_one_copy_that_counts_in_both(rig: Rig) -> None:
    """With the subscription identifiers of both."""
    _make(rig, "ann", "bob")
    pda = _join(rig, "pda", "ann", "bob")
    for number, session in enumerate(("ann", "bob"), start=1):
        request = subscribing("a", qos=1, session=session)
        identifier = Properties(identifiers=(number,), user=request.properties.user)
        pda.send(request._replace(properties=identifier))
        rig.settle()
    pda.take()
    _publish(rig, "a", b"1")
    (copy,) = pda.taken(Publish)
    assert copy.properties.identifiers == (1, 2)
    pda.send(Puback(copy.packet_id))
    assert [_held(rig, "ann"), _held(rig, "bob")] == [0, 0]


def _held_in_both(rig: Rig) -> None:
    """Let two notifications be held in two sessions, which nobody is in."""
    _make(rig, "ann", "bob")
    pda = _join(rig, "pda", "ann", "bob")
    _subscribe(rig, pda, "a", session="ann")
    _subscribe(rig, pda, "a", session="bob")
    pda.drop()
    _publish(rig, "a", b"1", b"2")


@pytest.mark.parametrize("receive_maximum", [1, 10])
def test_a_copy_in_flight_or_queued_counts_for_a_session_that_is_joined_meanwhile(
    rig: Rig, receive_maximum: int
) -> None:
    """It is one copy, and one receipt for each session."""
    _held_in_both(rig)
    pda = rig.client("pda", user=_to("ann"), options={Property.RECEIVE_MAXIMUM: receive_maximum})
    assert pda.ask("join", session="bob")["ok"]
    found = []
    while pda.inbox:
        found += _acknowledge(rig, pda)
    assert found == [b"1", b"2"]
    assert [_held(rig, "ann"), _held(rig, "bob")] == [0, 0]
    pda.drop()
    assert _join(rig, "pda", "ann", "bob").payloads() == []


def test_a_copy_acknowledged_while_a_second_session_is_being_joined_counts_there_too(rig: Rig) -> None:
    """The acknowledgement overtakes the disk, and nothing is given twice."""
    _held_in_both(rig)
    pda = _join(rig, "pda", "ann")
    pda.send(asking("join", session="bob"))
    assert pda.answers() == []
    for copy in pda.taken(Publish):
        pda.send(Puback(copy.packet_id))
    rig.settle()
    assert [each["ok"] for each in pda.answers()] == [True]
    assert pda.payloads() == []
    assert [_held(rig, "ann"), _held(rig, "bob")] == [0, 0]
    pda.drop()
    assert _join(rig, "pda", "ann", "bob").payloads() == []


def test_a_copy_that_waits_has_the_identifiers_of_the_sessions_it_counts_for(rig: Rig) -> None:
    """Also of one that is joined meanwhile, and not of one that is left."""
    _make(rig, "ann", "bob", "cat")
    pda = _join(rig, "pda", "ann", "bob", "cat")
    for number, session in enumerate(("ann", "bob", "cat"), start=1):
        request = subscribing("a", qos=1, session=session)
        pda.send(request._replace(properties=Properties(identifiers=(number,), user=request.properties.user)))
    rig.settle()
    pda.drop()
    _publish(rig, "a", b"1", b"2")
    pda = rig.client("pda", user=_to("ann", "cat"), options={Property.RECEIVE_MAXIMUM: 1})
    assert pda.ask("join", session="bob")["ok"]
    assert pda.ask("leave", session="cat")["ok"]
    (first,) = pda.taken(Publish)
    pda.send(Puback(first.packet_id))
    rig.settle()
    (second,) = pda.taken(Publish)
    assert (set(first.properties.identifiers), set(second.properties.identifiers)) == ({1, 3}, {1, 2})


def test_what_was_received_in_one_session_is_not_sent_again_for_another(rig: Rig) -> None:
    """Joined later, it counts as delivered there."""
    _held_in_both(rig)
    pda = _join(rig, "pda", "ann", receipt="keep")
    assert _acknowledge(rig, pda) == [b"1", b"2"]
    assert pda.ask("join", session="bob")["ok"]
    assert pda.payloads() == []
    assert _held(rig, "bob") == 0


# -- leaving, and the end of a session ---------------------------------------------------------------------------------


def test_leaving_withdraws_what_waits_to_be_sent(rig: Rig) -> None:
    """A device that left is owed nothing."""
    _make(rig, "ann")
    pda = _join(rig, "pda", "ann")
    _subscribe(rig, pda, "a")
    pda.drop()
    _publish(rig, "a", b"1", b"2", b"3")
    pda = rig.client("pda", user=_to("ann"), options={Property.RECEIVE_MAXIMUM: 1})
    assert pda.ask("leave", session="ann")["ok"]
    assert _acknowledge(rig, pda) == [b"1"]
    assert pda.payloads() == []
    other = _join(rig, "other", "ann")
    assert _acknowledge(rig, other) == [b"1", b"2", b"3"]


def test_leaving_one_session_leaves_the_copies_for_another(rig: Rig) -> None:
    """They count for the one that is left, and no longer for the other."""
    _held_in_both(rig)
    pda = rig.client("pda", user=_to("ann", "bob"), options={Property.RECEIVE_MAXIMUM: 1})
    assert pda.ask("leave", session="ann")["ok"]
    found = []
    while pda.inbox:
        found += _acknowledge(rig, pda)
    assert found == [b"1", b"2"]
    assert [_held(rig, "ann"), _held(rig, "bob")] == [2, 0]


def test_a_deleted_session_holds_nothing_and_delivers_nothing(rig: Rig) -> None:
    """Its name may be used again, by anyone, for something else."""
    maker = _make(rig, "ann")
    pda = _join(rig, "pda", "ann")
    _subscribe(rig, pda, "a")
    pda.drop()
    _publish(rig, "a", b"1", b"2")
    pda = rig.client("pda", user=_to("ann"), options={Property.RECEIVE_MAXIMUM: 1})
    pda.take()
    assert maker.ask("delete", session="ann")["ok"]
    assert not rig.state.held
    _publish(rig, "a", b"3")
    assert pda.payloads() == []
    assert _refusal(rig, "ann")[0] == NOT_AUTHORIZED
    assert maker.ask("create", session="ann")["ok"]
    assert _join(rig, "pda", "ann").payloads() == []


# -- being told --------------------------------------------------------------------------------------------------------


def _listening(rig: Rig, client_id: str, *sessions: str, to: str = "$whimbrel/session/#") -> Peer:
    """Return a device that has joined, hears what it is told, and has heard what there was."""
    peer = _join(rig, client_id, *sessions)
    _subscribe(rig, peer, to, qos=0)
    _told(peer)
    return peer


def test_a_device_that_subscribes_to_it_is_told_all_subscriptions(rig: Rig) -> None:
    """As if they were retained."""
    _make(rig, "ann")
    _subscribe(rig, _join(rig, "laptop", "ann"), "a", ttl="5")
    pda = _join(rig, "pda", "ann")
    _subscribe(rig, pda, "$whimbrel/session/ann/subscriptions", qos=0)
    (told,) = _told(pda)
    assert (told["topic"], told["session"]) == ("ann/subscriptions", "ann")
    assert [(each["topic"], each["ttl"]) for each in told["subscriptions"]] == [("a", 5)]


def test_a_device_is_told_all_subscriptions_when_it_joins(rig: Rig) -> None:
    """By request, and with CONNECT if its private session remembers that it wants to hear."""
    _make(rig, "ann")
    pda = rig.client("pda", expiry_s=600)
    _subscribe(rig, pda, "$whimbrel/session/+/subscriptions", qos=0)
    assert pda.ask("join", session="ann")["ok"]
    assert [each["topic"] for each in _told(pda)] == ["ann/subscriptions"]
    pda.drop()
    pda = rig.client("pda", clean=False, expiry_s=600, user=_to("ann"))
    assert [each["topic"] for each in _told(pda)] == ["ann/subscriptions"]


def test_a_device_is_told_what_others_change_and_not_what_it_changes_itself(rig: Rig) -> None:
    """The paper's updates (4.5)."""
    _make(rig, "ann")
    pda, laptop = _listening(rig, "pda", "ann"), _listening(rig, "laptop", "ann")
    _subscribe(rig, laptop, "a")
    _subscribe(rig, laptop, "a", max="3", modify="yes")
    assert laptop.ask("unsubscribe", session="ann", topic="a")["ok"]
    told = _told(pda)
    assert [(each["topic"], each["session"], each["change"], each["device"]) for each in told] == [
        ("ann/changes", "ann", change, "laptop") for change in ("added", "modified", "removed")
    ]
    assert [each["subscription"]["topic"] for each in told] == ["a", "a", "a"]
    assert told[1]["subscription"]["max"] == 3
    assert _told(laptop) == []


def test_what_is_told_is_of_qos_0(rig: Rig) -> None:
    """Whatever was granted."""
    _make(rig, "ann")
    pda = _join(rig, "pda", "ann")
    _subscribe(rig, pda, "$whimbrel/session/#", qos=2)
    assert [each.qos for each in pda.taken(Publish)] == [0]


def test_a_device_that_was_put_out_is_told_who_did_it(rig: Rig) -> None:
    """So that it can join again, or ask why."""
    _make(rig, "ann")
    pda, laptop = _listening(rig, "pda", "ann"), _listening(rig, "laptop", "ann")
    assert laptop.ask("leave", session="ann", device="pda")["ok"]
    assert _told(pda) == [{"topic": "ann/changes", "session": "ann", "change": "left", "device": "laptop"}]
    assert laptop.ask("leave", session="ann")["ok"]
    assert _told(laptop) == []


def test_devices_of_a_deleted_session_are_told_so(rig: Rig) -> None:
    """All but the one that deleted it."""
    _make(rig, "ann")
    pda, laptop = _listening(rig, "pda", "ann"), _listening(rig, "laptop", "ann")
    assert laptop.ask("delete", session="ann")["ok"]
    assert _told(pda) == [{"topic": "ann/changes", "session": "ann", "change": "deleted", "device": "laptop"}]
    assert _told(laptop) == []


def test_strangers_hear_nothing_whatever_they_subscribe_to(rig: Rig) -> None:
    """Not of sessions, not of requests, not of answers."""
    maker = _make(rig, "ann")
    stranger = rig.client("stranger")
    assert _subscribe(rig, stranger, "#", "$whimbrel/#", "$whimbrel/session/#", "$whimbrel/session/+/changes").codes
    former = _listening(rig, "former", "ann")
    assert former.ask("leave", session="ann")["ok"]
    pda = _join(rig, "pda", "ann")
    _subscribe(rig, pda, "a")
    assert maker.ask("delete", session="ann")["ok"]
    assert stranger.taken(Publish) == []
    assert former.taken(Publish) == []


@pytest.mark.parametrize("name", ["ann/changes", "ann/subscriptions", "answer", "ann", ""])
def test_nobody_can_publish_what_devices_are_told(rig: Rig, name: str) -> None:
    """Only the broker tells."""
    _make(rig, "ann")
    pda = _listening(rig, "pda", "ann")
    other = _join(rig, "other", "ann")
    (answer,) = other.tell(publishing(f"$whimbrel/session/{name}", b"{}", 1, 7))
    assert isinstance(answer, Puback)
    assert answer.code == ReasonCode.TOPIC_NAME_INVALID
    assert pda.take() == []


# -- limits ------------------------------------------------------------------------------------------------------------


def test_no_more_sessions_than_configured_are_created(tmp_path: Path) -> None:
    """0x97, until one is deleted; private ones do not count."""
    rig = _with(tmp_path, count=2)
    maker = _make(rig, "ann", "bob")
    assert maker.ask("create", session="cat")["code"] == QUOTA_EXCEEDED
    assert maker.ask("delete", session="ann")["ok"]
    assert maker.ask("create", session="cat")["ok"]


def test_sessions_that_wait_for_the_disk_are_counted_once(tmp_path: Path) -> None:
    """Two at once do not pass where there is room for one; a session that changes its access is no second one."""
    rig = _with(tmp_path, count=2)
    maker = _make(rig, "ann")
    _wait_for_the_disk(maker)
    maker.send(*(asking("create", session=name) for name in ("bob", "cat")))
    rig.settle()
    assert sorted(each["ok"] for each in maker.answers()) == [False, True]
    assert rig.state.hold.named_count == 2
    assert maker.ask("delete", session=rig.state.hold.sessions()[-1])["ok"]
    _wait_for_the_disk(maker)
    maker.send(asking("access", session="ann", open=True), asking("create", session="dan"))
    rig.settle()
    assert [each["ok"] for each in maker.answers()] == [True, True]


def test_no_more_devices_than_configured_join(tmp_path: Path) -> None:
    """0x97; a member that comes back is none more."""
    rig = _with(tmp_path, devices=2)
    maker = _make(rig, "ann")
    _join(rig, "pda", "ann").drop()
    _join(rig, "laptop", "ann")
    assert _refusal(rig, "ann")[0] == QUOTA_EXCEEDED
    assert maker.ask("join", session="ann")["code"] == QUOTA_EXCEEDED
    pda = _join(rig, "pda", "ann")
    assert pda.ask("leave", session="ann")["ok"]
    assert maker.ask("join", session="ann")["ok"]


def test_devices_whose_joining_waits_for_the_disk_are_counted(tmp_path: Path) -> None:
    """Two at once do not pass where there is room for one."""
    rig = _with(tmp_path, devices=1)
    _make(rig, "ann")
    first, second = rig.client("first"), rig.client("second")
    _wait_for_the_disk(first)
    first.send(asking("join", session="ann"))
    second.send(asking("join", session="ann"))
    third = rig.connecting("third", user=_to("ann"))
    rig.settle()
    found = [each["ok"] for each in (*first.answers(), *second.answers())]
    assert sorted([*found, third.taken(Connack)[0].code == 0]) == [False, False, True]
    assert len(rig.state.hold.members("ann")) == 1


def test_a_device_is_in_no_more_sessions_at_once_than_configured(tmp_path: Path) -> None:
    """0x97; one that it has joined it may join again."""
    rig = _with(tmp_path, joined=2)
    _make(rig, "ann", "bob", "cat")
    assert _refusal(rig, "ann", "bob", "cat")[0] == QUOTA_EXCEEDED
    pda = _join(rig, "pda", "ann", "bob")
    assert pda.ask("join", session="cat")["code"] == QUOTA_EXCEEDED
    assert pda.ask("join", session="bob", receipt="keep")["ok"]
    assert pda.ask("leave", session="ann")["ok"]
    assert pda.ask("join", session="cat")["ok"]


def test_sixteen_sessions_are_joined_at_once_and_no_more(rig: Rig) -> None:
    """By default."""
    names = [f"s{number}" for number in range(17)]
    _make(rig, *names)
    _join(rig, "pda", *names[:16])
    assert _refusal(rig, *names)[0] == QUOTA_EXCEEDED


def test_the_max_of_all_subscriptions_together_is_bounded(tmp_path: Path) -> None:
    """0x97, and a subscription that is modified counts once."""
    rig = _with(tmp_path, held=10)
    _make(rig, "ann")
    pda = _join(rig, "pda", "ann")
    assert _subscribe(rig, pda, "a", max="6").codes == (1,)
    assert _subscribe(rig, pda, "b", max="5").codes == (QUOTA_EXCEEDED,)
    assert pda.ask("subscribe", session="ann", topic="b", max=5)["code"] == QUOTA_EXCEEDED
    assert _subscribe(rig, pda, "a", max="5", modify="yes").codes == (1,)
    assert _subscribe(rig, pda, "b", max="5").codes == (1,)


def test_the_number_of_subscriptions_of_a_session_is_bounded(tmp_path: Path) -> None:
    """0x97."""
    rig = Rig(tmp_path, replace(Config(), limits=LimitSettings(subscriptions_per_session=2)))
    _make(rig, "ann")
    pda = _join(rig, "pda", "ann")
    assert _subscribe(rig, pda, "a", "b", "c").codes == (1, 1, QUOTA_EXCEEDED)
    assert pda.ask("subscribe", session="ann", topic="c")["code"] == QUOTA_EXCEEDED


def test_no_more_wait_for_their_passwords_than_configured(tmp_path: Path) -> None:
    """CONNECT is refused with 0x89, a request with 0x97."""
    rig = Rig(tmp_path, replace(Config(), access=AccessSettings(passwords_waiting=1)))
    maker = _make(rig, "ann", passwords={"owner": WORD})
    rig.connecting("pda", user=_to("ann", password=WORD))
    busy = rig.connecting("laptop", user=_to("ann", password=WORD))
    assert busy.taken(Connack)[0].code == ReasonCode.SERVER_BUSY
    maker.send(asking("show", session="ann", password=WORD, sent_qos=1, packet_id=3))
    maker.send(asking("create", session="bob", passwords={"owner": "x"}))
    rig.settle()
    assert [each["code"] for each in maker.answers()] == [QUOTA_EXCEEDED] * 2
    assert maker.taken(Puback)[0].code == QUOTA_EXCEEDED


# -- after a restart ---------------------------------------------------------------------------------------------------


def test_everything_of_a_session_is_there_after_a_restart(tmp_path: Path) -> None:
    """Access, subscriptions, members, and what is held."""
    rig = Rig(tmp_path)
    _make(rig, "ann", passwords={"owner": WORD})
    pda = _join(rig, "pda", "ann", password=WORD, receipt="keep")
    _subscribe(rig, pda, "a", name="n")
    pda.drop()
    _publish(rig, "a", b"1")
    rig.settle()
    rows = rig.state.view.changes()[0].items()
    state = type(rig.state).restore(rig.state.node.name, rows)
    rig.close()
    again = Rig(tmp_path, state=state)
    assert _refusal(again, "ann", password=WRONG)[0] == NOT_AUTHORIZED
    assert _join(again, "laptop", "ann", password=WORD, receipt="keep").payloads() == [b"1"]
    assert _join(again, "pda", "ann", password=WORD).payloads() == [b"1"]


def _kinds(packets: list[Packet]) -> list[type[Packet]]:
    return [type(packet) for packet in packets]


def test_a_client_that_asks_for_none_of_this_gets_plain_mqtt(rig: Rig) -> None:
    """Nothing of it is seen."""
    plain = rig.subscriber("plain", "#", qos=1)
    _make(rig, "ann")
    _subscribe(rig, _join(rig, "pda", "ann"), "a")
    _publish(rig, "a", b"1")
    assert _kinds(plain.take()) == [Publish]


def test_what_an_earlier_connection_was_sent_comes_again_with_dup(rig: Rig) -> None:
    """However little of it the connection after that one was sent, and whether or not it started clean."""
    _make(rig, "ann")
    pda = _join(rig, "pda", "ann")
    _subscribe(rig, pda, "a")
    _publish(rig, "a", b"1", b"2", b"3")
    assert [packet.dup for packet in pda.taken(Publish)] == [False] * 3
    for _ in range(2):
        pda = rig.client("pda", user=_to("ann"), options={Property.RECEIVE_MAXIMUM: 1})
        assert [packet.dup for packet in pda.taken(Publish)] == [True]
    pda = rig.client("pda", user=_to("ann"))
    assert [packet.dup for packet in pda.taken(Publish)] == [True] * 3


def test_what_was_never_sent_comes_without_dup(rig: Rig) -> None:
    """It waited for its turn when the connection ended."""
    _make(rig, "ann")
    pda = _join(rig, "pda", "ann")
    _subscribe(rig, pda, "a")
    pda.drop()
    _publish(rig, "a", b"1", b"2", b"3")
    pda = rig.client("pda", user=_to("ann"), options={Property.RECEIVE_MAXIMUM: 1})
    assert [packet.dup for packet in pda.taken(Publish)] == [False]
    pda = rig.client("pda", user=_to("ann"))
    assert [packet.dup for packet in pda.taken(Publish)] == [True, False, False]


# -- subscriptions that belong to others too ---------------------------------------------------------------------------


def _subscribed(rig: Rig, peer: Peer, packet: Packet) -> tuple[int, str]:
    """Return code and reason of the answer to a SUBSCRIBE."""
    peer.take()
    peer.send(packet)
    rig.settle()
    (answer,) = peer.taken(Suback)
    return answer.codes[0], answer.properties.text(Property.REASON_STRING) or ""


def test_a_plain_subscribe_does_not_change_a_subscription_that_others_rely_on(rig: Rig) -> None:
    """A laptop that only wants to listen must not take the filter off the subscription of the phone."""
    _make(rig, "ann")
    phone = rig.client("phone", user=(("session", "ann"),))
    asked = subscribing("ward/#", qos=1, filter="pulse > 110", max="20")
    assert _subscribed(rig, phone, asked) == (1, "")
    laptop = rig.client("laptop", user=(("session", "ann"),))
    code, reason = _subscribed(rig, laptop, subscribing("ward/#", qos=1))
    assert code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    assert "modify=yes" in reason
    assert _subscribed(rig, laptop, asked) == (1, "")
    assert _subscribed(rig, laptop, subscribing("ward/#", qos=1, name="mine")) == (1, "")
    kept = rig.state.hold.subscription("ann", ("ward/#", ""))
    assert kept is not None
    assert (kept.filter_text, kept.max_held) == ("pulse > 110", 20)
    assert _subscribed(rig, laptop, subscribing("ward/#", qos=0, modify="yes")) == (0, "")
    changed = rig.state.hold.subscription("ann", ("ward/#", ""))
    assert changed is not None
    assert changed.filter_text is None
    assert "allowed is yes or no" in _subscribed(rig, laptop, subscribing("ward/#", modify="please"))[1]


def test_what_waits_for_the_disk_counts_as_subscribed(rig: Rig) -> None:
    """Nor does it in the moment before the first one is written; one that is given up is in no one's way."""
    _make(rig, "ann")
    phone = rig.client("phone", user=(("session", "ann"),))
    phone.send(subscribing("a", qos=1, filter="x > 1"), subscribing("a", qos=1, packet_id=2))
    phone.send(Unsubscribe(3, ("a",)), subscribing("a", qos=1, packet_id=4))
    rig.settle()
    assert [each.codes for each in phone.taken(Suback)] == [(1,), (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,), (1,)]


# -- devices that never come back --------------------------------------------------------------------------------------


def test_a_device_that_stays_away_leaves_the_session_in_the_end(tmp_path: Path) -> None:
    """Else a program that joins under a new name with every run would fill the session with ghosts."""
    sessions = SessionSettings(devices=2, device_expiry_s=100)
    rig = Rig(tmp_path, replace(Config(), sessions=sessions, mqtt=MqttSettings(keep_alive_s=0)))
    maker = _make(rig, "ann")
    ghost, phone = _join(rig, "ghost", "ann"), _join(rig, "phone", "ann")
    ghost.drop()
    for _ in range(9):
        rig.tick(10)
        rig.settle()
    assert [each["device"] for each in _show(maker, "ann")["devices"]] == ["ghost", "phone"]
    for _ in range(3):
        rig.tick(10)
        rig.settle()
    assert [each["device"] for each in _show(maker, "ann")["devices"]] == ["phone"]
    assert not phone.is_closed
    assert _join(rig, "newcomer", "ann") is not None


def test_a_device_that_comes_back_in_time_stays(tmp_path: Path) -> None:
    """Its absence is counted anew each time; 0 is for ever."""
    for expiry_s, members in ((100, 1), (0, 1)):
        sessions = SessionSettings(device_expiry_s=expiry_s)
        rig = Rig(tmp_path / str(expiry_s), replace(Config(), sessions=sessions, mqtt=MqttSettings(keep_alive_s=0)))
        maker = _make(rig, "ann")
        for _ in range(3):
            _join(rig, "phone", "ann").drop()
            rig.tick(90)
            rig.settle()
        assert len(_show(maker, "ann")["devices"]) == members


def test_a_device_is_given_back_the_time_in_which_the_broker_was_down(tmp_path: Path) -> None:
    """It could not come: it must not be put out at the start for that."""
    sessions = SessionSettings(device_expiry_s=100)
    config = replace(Config(), sessions=sessions, mqtt=MqttSettings(keep_alive_s=0))
    rig = Rig(tmp_path, config)
    _make(rig, "ann").drop()
    _join(rig, "ghost", "ann").drop()
    rig.tick(40)
    rig.settle()
    rig.log.close()
    rig = Rig(tmp_path, config, state=rig.state, now=rig.now + 1_000 * 1_000_000)
    maker = rig.client("maker")
    for _ in range(9):
        rig.tick(10)
        rig.settle()
    assert [each["device"] for each in _show(maker, "ann")["devices"]] == ["ghost"]
    for _ in range(3):
        rig.tick(10)
        rig.settle()
    assert not _show(maker, "ann")["devices"]


def test_a_retained_copy_is_not_taken_for_one_that_named_sessions_wait_for(rig: Rig) -> None:
    """A device has the same notification as retained, and held by two sessions, which it joins before it answers."""
    _make(rig, "one", "two")
    owner = _join(rig, "owner", "one", "two", receipt="keep")
    for session in ("one", "two"):
        _subscribe(rig, owner, "t", session=session)
    owner.drop()
    rig.settle()
    publisher = rig.client("keeper")
    publisher.send(publishing("t", b"kept", 1, 1, retain=True))
    rig.settle()
    phone = rig.client("phone")
    phone.send(subscribing("t", qos=1))
    rig.settle()
    (retained,) = phone.taken(Publish)
    for session in ("one", "two"):
        phone.send(asking("join", session=session))
        rig.settle()
    phone.send(Puback(retained.packet_id))
    rig.settle()
    (copy,) = (each for each in phone.taken(Publish) if each.topic == "t")
    phone.send(Puback(copy.packet_id))
    rig.settle()
    assert all("phone" not in in_flight for _, _, in_flight in rig.state.hold.pending())
