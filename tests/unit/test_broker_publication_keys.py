"""Keys on the core of the broker: who receives from whom, and that no key goes further than it must."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from broker_rig import MARK, Peer, Rig, asking, publishing, quick_scrypt, subscribing

from whimbrel.broker.access.keyring import NO_KEYS_AT_ALL, read_keys
from whimbrel.broker.publish.publication_keys import unlocked_by, unlocked_will
from whimbrel.log.reader import read
from whimbrel.model.keys import OPEN
from whimbrel.model.notification import Notification
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, V311, Connack, Connect, Disconnect, Puback, Publish, Pubrec, Suback, Will
from whimbrel.mqtt.properties import Properties, Property

SECRET, SECOND = "sesame-0815", "sesame-4711"
MALFORMED, NO_ONE = ReasonCode.PAYLOAD_FORMAT_INVALID, ReasonCode.NO_MATCHING_SUBSCRIBERS
SCHEMES = ("producer", "consumer", "dual_producer", "dual_consumer")

# What each side carries under each scheme: whose key is private, theirs or ours.
PRODUCER = (("producer", True),), (("producer", False),)
CONSUMER = (("consumer", False),), (("consumer", True),)
DUAL = (("dual_producer", True), ("dual_consumer", False)), (("dual_producer", False), ("dual_consumer", True))


@pytest.fixture(autouse=True)
def _quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let passwords cost nothing: what they cost is not what is asked here."""
    monkeypatch.setattr("whimbrel.broker.access.passwords._scrypt", quick_scrypt)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker with all defaults."""
    return Rig(tmp_path)


def _private(scheme: str, secret: str = SECRET) -> str:
    return f"{scheme}:private:{secret}"


def _public(scheme: str, secret: str = SECRET, algorithm: str = "sha256") -> str:
    return f"{scheme}:{hashlib.new(algorithm, secret.encode()).hexdigest()}"


def _keys(side: tuple[tuple[str, bool], ...], secret: str = SECRET, algorithm: str = "sha256") -> list[str]:
    return [_private(name, secret) if is_private else _public(name, secret, algorithm) for name, is_private in side]


def _user(keys: list[str] | tuple[str, ...], *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return (*(("key", key) for key in keys), *more)


def _publish(
    topic: str, payload: bytes, keys: list[str], *more: tuple[str, str], qos: int = 0, **extra: Any
) -> Publish:
    properties = Properties(user=_user(keys, *more))
    return Publish(topic, payload, qos, packet_id=9 if qos else 0, properties=properties, **extra)


def _subscriber(rig: Rig, name: str, keys: list[str], *more: tuple[str, str], topic: str = "a", qos: int = 1) -> Peer:
    peer = rig.client(name)
    request = subscribing(topic, qos=qos)
    peer.send(request._replace(properties=Properties(user=_user(keys, *more))))
    rig.settle()
    (answer,) = peer.taken(Suback)
    assert answer.codes == (qos,), answer
    return peer


# -- who receives from whom --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["sha256", "sha1"])
@pytest.mark.parametrize("sides", [PRODUCER, CONSUMER, DUAL], ids=["producer", "consumer", "dual"])
def test_only_matching_keys_let_a_publication_through(rig: Rig, sides: Any, algorithm: str) -> None:
    """Elvin's three schemes, with public keys of either hash."""
    theirs, ours = sides
    right = _subscriber(rig, "right", _keys(ours, SECRET, algorithm))
    wrong = _subscriber(rig, "wrong", _keys(ours, SECOND, algorithm))
    plain = _subscriber(rig, "plain", [])
    publisher = rig.client("publisher")
    publisher.send(_publish("a", b"locked", _keys(theirs, SECRET, algorithm)), publishing("a", b"open"))
    rig.settle()
    assert [each.payloads() for each in (right, wrong, plain)] == [[b"locked"], [], [b"open"]]


def test_half_of_the_dual_scheme_matches_nothing(rig: Rig) -> None:
    """Both sides must be proved."""
    half = _subscriber(rig, "half", [_public("dual_producer")])
    whole = _subscriber(rig, "whole", _keys(DUAL[1]))
    rig.client("publisher").send(_publish("a", b"1", _keys(DUAL[0])))
    rig.settle()
    assert (half.payloads(), whole.payloads()) == ([], [b"1"])


def test_who_only_knows_a_public_key_cannot_use_it_as_its_owner(rig: Rig) -> None:
    """It is refused on the side that proves."""
    thief = rig.client("thief")
    reason = (
        "key 1 of a publication: found a public key of producer, "
        "allowed is private keys of producer and dual_producer, and public keys of consumer and dual_consumer"
    )
    assert thief.tell(_publish("a", b"1", [_public("producer")], qos=1)) == [_refused(reason)]
    thief.send(subscribing("a", key=_public("consumer")))
    assert thief.taken(Suback)[0].codes == (ReasonCode.TOPIC_FILTER_INVALID,)


def _refused(reason: str) -> Puback:
    return Puback(9, MALFORMED, Properties({Property.REASON_STRING: f"user property {reason}"}))


@pytest.mark.parametrize("publishes", ["yes", "no"])
@pytest.mark.parametrize("accepts", ["yes", "no"])
def test_without_matching_keys_both_sides_have_to_allow_it(rig: Rig, publishes: str, accepts: str) -> None:
    """Insecure on the publication, and on the subscription."""
    peer = _subscriber(rig, "peer", _keys(CONSUMER[1], SECOND), ("insecure", accepts))
    rig.client("publisher").send(_publish("a", b"1", _keys(CONSUMER[0]), ("insecure", publishes)))
    rig.settle()
    assert peer.payloads() == [b"1"] * (publishes == accepts == "yes")


def test_a_subscription_with_keys_takes_nothing_insecure_unless_it_says_so(rig: Rig) -> None:
    """And one without keys takes it."""
    keyed = _subscriber(rig, "keyed", _keys(PRODUCER[1]))
    lenient = _subscriber(rig, "lenient", _keys(PRODUCER[1]), ("insecure", "yes"))
    strict = _subscriber(rig, "strict", [], ("insecure", "no"))
    plain = _subscriber(rig, "plain", [])
    rig.client("publisher").send(publishing("a", b"1"))
    rig.settle()
    assert [len(each.payloads()) for each in (keyed, lenient, strict, plain)] == [0, 1, 0, 1]


def test_publications_with_and_without_keys_in_one_piece_are_told_apart(rig: Rig) -> None:
    """They are matched together, and each has its own keys."""
    right, plain = _subscriber(rig, "right", _keys(CONSUMER[1])), _subscriber(rig, "plain", [])
    locked = _keys(CONSUMER[0])
    publisher = rig.client("publisher")
    publisher.send(
        publishing("a", b"1"),
        _publish("a", b"2", locked),
        _publish("a", b"3", _keys(CONSUMER[0], SECOND)),
        _publish("a", b"4", locked, ("insecure", "yes")),
        _publish("a", b"5", [], ("other", "x")),
    )
    rig.settle()
    assert right.payloads() == [b"2", b"4"]
    assert plain.payloads() == [b"1", b"4", b"5"]


# -- keys of the connection --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sides", [PRODUCER, CONSUMER, DUAL], ids=["producer", "consumer", "dual"])
@pytest.mark.parametrize("way", ["CONNECT", "request"])
def test_keys_of_a_connection_are_in_all_that_is_made_over_it(rig: Rig, sides: Any, way: str) -> None:
    """Its publications, and its subscriptions."""
    ends = []
    for name, side in zip(("publisher", "subscriber"), sides, strict=True):
        peer = rig.client(name, user=_user(_keys(side)) if way == "CONNECT" else ())
        if way == "request":
            assert peer.ask("keys", add=_keys(side))["ok"]
        ends.append(peer)
    publisher, subscriber = ends
    subscriber.send(subscribing("a", qos=1))
    plain = rig.subscriber("plain", "a")
    publisher.send(publishing("a", b"1"))
    rig.settle()
    assert (subscriber.payloads(), plain.payloads()) == ([b"1"], [])


def test_keys_of_a_connection_go_in_version_311_by_request(rig: Rig) -> None:
    """Where packets have no properties."""
    publisher = rig.client("publisher", version=V311)
    subscriber = rig.client("subscriber", version=V311)
    assert publisher.ask("keys", add=_keys(CONSUMER[0]))["ok"]
    assert subscriber.ask("keys", add=_keys(CONSUMER[1]))["ok"]
    subscriber.send(subscribing("a", qos=1))
    plain = rig.subscriber("plain", "a", version=V311)
    publisher.send(publishing("a", b"1"))
    rig.settle()
    assert (subscriber.payloads(), plain.payloads()) == ([b"1"], [])


def test_keys_that_are_taken_away_are_in_nothing_that_comes_later(rig: Rig) -> None:
    """A subscription keeps those it was made with."""
    keys = _keys(CONSUMER[1])
    before = rig.client("before", user=_user(keys))
    before.send(subscribing("a", qos=1))
    rig.settle()
    assert before.ask("keys", remove=keys)["ok"]
    before.send(subscribing("b", qos=1))
    publisher = rig.client("publisher", user=_user(_keys(CONSUMER[0])))
    before.take()
    publisher.send(publishing("a", b"1"), publishing("b", b"2"))
    assert publisher.ask("keys", remove=_keys(CONSUMER[0]))["ok"]
    publisher.send(publishing("b", b"3"))
    rig.settle()
    assert before.payloads() == [b"1", b"3"]


def test_keys_are_those_of_what_comes_behind_the_request_also_while_the_disk_is_waited_for(rig: Rig) -> None:
    """A client need not wait for the answer: what it then publishes is not for everybody."""
    plain, publisher = rig.subscriber("plain", "a"), rig.client("publisher")
    publisher.send(publishing("retained", b"x", 1, 1, retain=True))
    publisher.send(asking("keys", add=_keys(CONSUMER[0])), publishing("a", b"1"))
    rig.settle()
    assert plain.payloads() == []


def test_keys_are_forgotten_with_the_connection(rig: Rig) -> None:
    """Also those of a device whose session outlives it."""
    rig.client("publisher", expiry_s=600, user=_user(_keys(CONSUMER[0]))).drop()
    plain = rig.subscriber("plain", "a")
    rig.client("publisher", clean=False, expiry_s=600).send(publishing("a", b"1"))
    rig.settle()
    assert plain.payloads() == [b"1"]


def test_the_keys_of_one_device_are_never_another_ones(rig: Rig) -> None:
    """A key in one session never matches in another (5.2.3)."""
    maker = rig.client("maker")
    for session in ("ann", "bob"):
        assert maker.ask("create", session=session)["ok"]
    ann = rig.client("ann", user=_user(_keys(CONSUMER[1]), ("session", "ann")))
    bob = rig.client("bob", user=(("session", "bob"),))
    other = rig.client("other", user=(("session", "ann"),))
    for peer, topic in ((ann, "a"), (bob, "a"), (other, "b")):
        peer.send(subscribing(topic, qos=1))
    rig.settle()
    for peer in (ann, bob, other):
        peer.take()
    publisher = rig.client("publisher", user=_user(_keys(CONSUMER[0])))
    publisher.send(publishing("a", b"1"), publishing("b", b"2"))
    rig.settle()
    # The subscription of ann's session has her key, for all its devices; what others subscribe to has not.
    assert [each.payloads() for each in (ann, bob, other)] == [[b"1"], [], [b"1"]]


def test_keys_of_a_subscription_are_told_as_hashes(rig: Rig) -> None:
    """SUBSCRIBE, request and connection, all merged."""
    maker = rig.client("maker", user=_user(_keys(CONSUMER[1])))
    assert maker.ask("create", session="ann")["ok"]
    answer = maker.ask("subscribe", session="ann", topic="a", keys=_keys(PRODUCER[1]))
    keys = answer["subscription"]["keys"]
    hashes = {_public("consumer"), _public("consumer", algorithm="sha1"), _public("producer")}
    assert set(keys) == hashes
    assert answer["subscription"]["insecure"] is False


# -- what goes no further ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_neither_keys_nor_what_they_say_of_insecure_are_passed_on_or_written(rig: Rig, qos: int) -> None:
    """Not to subscribers, not into attributes, not into the log; other properties are."""
    right = _subscriber(rig, "right", _keys(CONSUMER[1]), qos=qos)
    keys = [*_keys(CONSUMER[0]), _private("producer", SECOND)]
    rig.client("publisher").send(_publish("a", b"{}", keys, ("insecure", "no"), ("other", "x"), qos=qos))
    rig.settle()
    (copy,) = right.taken(Publish)
    assert copy.properties.user == (("other", "x"),)
    rig.log.sync()
    (fact,) = [each for each in read(rig.folder, rig.state.node.name) if isinstance(each, Notification)]
    assert not {"key", "insecure"} & set(fact.attributes)
    assert "other" in fact.attributes
    written = b"".join(path.read_bytes() for path in rig.folder.rglob("*") if path.is_file())
    assert b"other" in written
    assert SECRET.encode() not in written
    assert SECOND.encode() not in written


@pytest.mark.parametrize("user", [(("key", "7"), ("insecure", "perhaps")), (("key", ""),), (("key", "a:b"),)])
def test_a_publication_of_a_stranger_is_plain_mqtt(rig: Rig, user: tuple[tuple[str, str], ...]) -> None:
    """A property that happens to be called so is passed on, and an attribute."""
    plain = rig.client("plain")
    plain.send(subscribing("a", filter='key == "7"' if user[0][1] == "7" else 'key != "7"'))
    rig.settle()
    assert plain.taken(Suback)[0].codes == (0,)
    rig.client("publisher", is_ours=False).send(_publish("a", b"1", [], *user))
    rig.settle()
    (copy,) = plain.taken(Publish)
    assert copy.properties.user == user


@pytest.mark.parametrize(
    "keys",
    [
        ["producer:nothing"],
        ["producer:private:"],
        ["unknown:private:sesame-0815"],
        ["sesame:private:0815"],
        [_private("consumer")],
        [_private("dual_consumer")],
        [_public("producer")],
        [_public("dual_producer")],
        [*_keys(PRODUCER[0]), "consumer:xyz"],
    ],
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_key_that_is_none_or_on_the_wrong_side_is_refused_and_not_passed_on(
    rig: Rig, keys: list[str], qos: int
) -> None:
    """It may be somebody's secret with a slip of the pen."""
    plain = rig.subscriber("plain", "#", qos=qos)
    publisher = rig.client("publisher")
    publisher.send(_publish("a", b"1", keys, ("insecure", "yes"), qos=qos))
    rig.settle()
    assert plain.take() == []
    answers = [each for each in publisher.take() if isinstance(each, Puback | Pubrec)]
    assert [each.code for each in answers] == [MALFORMED] * (qos > 0)
    assert all("sesame" not in str(each) for each in answers)


def test_what_it_says_of_insecure_must_be_yes_or_no_where_there_are_keys(rig: Rig) -> None:
    """Nothing is guessed where it is about who may read."""
    publisher = rig.client("publisher")
    (answer,) = publisher.tell(_publish("a", b"1", _keys(PRODUCER[0]), ("insecure", "maybe"), qos=1))
    assert answer == _refused("insecure: found another word, allowed is yes or no")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_in_a_subscription_a_key_for_publications_is_refused(rig: Rig, scheme: str) -> None:
    """A key says by itself which side it is for."""
    peer = rig.client("peer")
    found = {}
    for kind, key in (("private", _private(scheme)), ("public", _public(scheme))):
        peer.send(subscribing("a", key=key))
        (answer,) = peer.taken(Suback)
        found[kind] = answer.codes[0] < ReasonCode.UNSPECIFIED_ERROR
        assert SECRET not in str(answer)
    assert found == {"private": scheme.endswith("consumer"), "public": scheme.endswith("producer")}


# -- retained messages and wills ---------------------------------------------------------------------------------------


def test_a_retained_message_with_keys_is_for_those_whose_keys_match(rig: Rig) -> None:
    """Also after a restart: the log has the hashes."""
    publisher = rig.client("publisher")
    publisher.send(_publish("a", b"1", _keys(CONSUMER[0]), qos=1, retain=True))
    rig.settle()
    state = type(rig.state).restore(rig.state.node.name, list(rig.state.view.changes()[0].items()))
    rig.close()
    for each in (Rig(rig.folder, state=state),):
        found = {}
        for name, keys in (("right", _keys(CONSUMER[1])), ("wrong", _keys(CONSUMER[1], SECOND)), ("plain", [])):
            peer = each.client(name)
            peer.send(subscribing("a", qos=1)._replace(properties=Properties(user=_user(keys))))
            each.settle()
            found[name] = peer.payloads()
        assert found == {"right": [b"1"], "wrong": [], "plain": []}


@pytest.mark.parametrize("way", ["will", "connection"])
def test_a_will_has_its_keys_and_those_of_its_connection(rig: Rig, way: str) -> None:
    """It is a publication of that connection."""
    right, plain = _subscriber(rig, "right", _keys(CONSUMER[1])), _subscriber(rig, "plain", [])
    user = _user(_keys(CONSUMER[0]), ("other", "x"))
    properties = Properties(user=user if way == "will" else (("other", "x"),))
    will = Will("a", b"gone", 1, properties=properties)
    rig.client("lost", will=will, user=() if way == "will" else _user(_keys(CONSUMER[0]))).drop()
    rig.settle()
    (copy,) = right.taken(Publish)
    assert (copy.payload, copy.properties.user) == (b"gone", (("other", "x"),))
    assert plain.take() == []


def test_a_will_with_a_key_that_is_none_is_refused_with_its_connect(rig: Rig) -> None:
    """Later there is nobody to be told."""
    peer = rig.connecting("lost", will=Will("a", b"gone", properties=Properties(user=(("key", "producer:x"),))))
    assert peer.taken(Connack)[0].code == MALFORMED


def test_a_notification_held_with_keys_is_given_to_the_session_whose_keys_match(rig: Rig) -> None:
    """While its device is away, and after a restart."""
    maker = rig.client("maker")
    for session, secret in (("ann", SECRET), ("bob", SECOND)):
        assert maker.ask("create", session=session)["ok"]
        assert maker.ask("subscribe", session=session, topic="a", keys=_keys(CONSUMER[1], secret))["ok"]
    maker.send(_publish("a", b"1", _keys(CONSUMER[0]), qos=1))
    rig.settle()
    state = type(rig.state).restore(rig.state.node.name, list(rig.state.view.changes()[0].items()))
    rig.close()
    again = Rig(rig.folder, state=state)
    found = [again.client(name, user=(("session", name),)).payloads() for name in ("ann", "bob")]
    assert found == [[b"1"], []]


# -- the function itself -----------------------------------------------------------------------------------------------


def test_a_publication_without_user_properties_is_left_as_it_is() -> None:
    """Nearly every one."""
    packet = publishing("a", b"1")
    for is_ours in (True, False):
        assert unlocked_by(packet, NO_KEYS_AT_ALL, is_ours=is_ours) == (packet, OPEN)
        assert unlocked_will(Will("a"), NO_KEYS_AT_ALL, is_ours=is_ours) == (Will("a"), OPEN)


def test_a_publication_over_a_connection_with_keys_carries_them_and_is_not_insecure() -> None:
    """Whether or not it says so."""
    packet = publishing("a", b"1")
    bare, secured = unlocked_by(packet, read_keys(_keys(CONSUMER[0])), is_ours=False)
    assert bare is packet
    assert not isinstance(secured, str)
    assert set(secured.keys.texts()) == set(_keys(CONSUMER[0]))
    assert not secured.deliver_insecure


def test_keys_of_a_subscription_that_ends_are_gone(rig: Rig) -> None:
    """Nothing is left of them once the client says goodbye."""
    peer = _subscriber(rig, "peer", _keys(CONSUMER[1]))
    peer.send(Disconnect())
    rig.settle()
    publisher = rig.client("publisher")
    assert publisher.tell(_publish("a", b"1", _keys(CONSUMER[0]), qos=1)) == [Puback(9, NO_ONE)]


def test_version_5_connect_names_keys_of_both_sides(rig: Rig) -> None:
    """One connection publishes and subscribes."""
    both = rig.client("both", user=_user([*_keys(CONSUMER[0]), *_keys(CONSUMER[1])]))
    both.send(subscribing("a", qos=1), publishing("a", b"1"))
    rig.settle()
    assert both.payloads() == [b"1"]
    refused = Peer(rig, V5)
    refused.send(Connect("x", properties=Properties(user=(*MARK, *_user(["producer:zz"])))))
    assert refused.taken(Connack)[0].code == ReasonCode.PROTOCOL_ERROR
