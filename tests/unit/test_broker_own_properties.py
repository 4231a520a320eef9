"""User properties: those of the application travel untouched, those of the broker are strict."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from broker_rig import Rig, asking, publishing

from whimbrel.broker.wire.own_properties import IN_CONNECT, IN_PUBLISH, IN_SUBSCRIBE, split_own
from whimbrel.errors import InvalidValueError
from whimbrel.log.reader import read
from whimbrel.model.notification import Notification
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import (
    Connack,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from whimbrel.mqtt.properties import Properties, Property

Pairs = tuple[tuple[str, str], ...]

LATER = ("since", "place", "radius", "deadline")
NAMES = sorted({*IN_CONNECT, *IN_SUBSCRIBE, *IN_PUBLISH, *LATER, "whimbrel", "Whimbrel.key", "whimbrelkey", ""})
STRANGE: Pairs = tuple((name, value) for name in NAMES for value in ("nonsense !(", "producer:private:mine", ""))
"""Whatever an application may call its properties, each more than once, with values that are none of ours."""
LOCK = "consumer:" + hashlib.sha256(b"k").hexdigest()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker with all defaults."""
    return Rig(tmp_path)


def _subscribe(*user: tuple[str, str], topic: str = "#", qos: int = 1) -> Subscribe:
    return Subscribe(1, (SubscriptionRequest(topic, qos),), Properties(user=user))


def _publish(*user: tuple[str, str], qos: int = 1) -> Publish:
    return Publish("a", b"{}", qos, packet_id=9 if qos else 0, properties=Properties(user=user))


# -- strangers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_properties_of_a_stranger_travel_untouched(rig: Rig, qos: int) -> None:
    """In CONNECT, SUBSCRIBE and UNSUBSCRIBE they mean nothing; of a publication they are attributes, and passed on."""
    peer = rig.client("peer", user=STRANGE[:60], is_ours=False)
    assert peer.tell(_subscribe(*STRANGE, qos=qos)) == [Suback(1, (ReasonCode(qos),))]
    peer.send(_publish(*STRANGE, qos=qos))
    rig.settle()
    (copy,) = peer.taken(Publish)
    assert copy.properties.user == STRANGE
    rig.log.sync()
    (fact,) = [each for each in read(rig.folder, rig.state.node.name) if isinstance(each, Notification)]
    assert fact.attributes["ttl"] == "nonsense !("
    assert not fact.keys.hashes
    assert peer.tell(Unsubscribe(2, ("#",), Properties(user=STRANGE))) == [Unsuback(2, (ReasonCode.SUCCESS,))]


def test_the_properties_of_a_strangers_will_travel_untouched(rig: Rig) -> None:
    """A will is a publication."""
    watcher = rig.subscriber("watcher", "w")
    will = Will("w", b"1", properties=Properties(user=STRANGE))
    rig.client("peer", will=will, is_ours=False).drop()
    rig.settle()
    assert [each.properties.user for each in watcher.taken(Publish)] == [STRANGE]


@pytest.mark.parametrize("mark", [("whimbrel", "0"), ("whimbrel", "2"), ("Whimbrel", "1"), ("whimbrel", "")])
def test_only_the_mark_makes_bare_names_ours(rig: Rig, mark: tuple[str, str]) -> None:
    """Nothing else in CONNECT, and not the mark in another packet."""
    peer = rig.client("peer", user=(mark, ("session", "nobody's")), is_ours=False)
    (answer,) = peer.tell(_subscribe(("whimbrel", "1"), ("ttl", "never")))
    assert answer == Suback(1, (ReasonCode.GRANTED_QOS_1,))


def test_the_mark_is_for_one_connection(rig: Rig) -> None:
    """The next one of the same client says it anew."""
    rig.client("peer", expiry_s=600).drop()
    peer = rig.client("peer", clean=False, expiry_s=600, is_ours=False)
    peer.send(_subscribe(("ttl", "never")))
    rig.settle()
    assert peer.take() == [Suback(1, (ReasonCode.GRANTED_QOS_1,))]


# -- ours --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["", "whimbrel."])
@pytest.mark.parametrize("is_ours", [True, False])
def test_options_of_either_form_are_obeyed(rig: Rig, form: str, *, is_ours: bool) -> None:
    """The prefixed form on every connection, the bare one where the client knows Whimbrel."""
    if not form and not is_ours:
        pytest.skip("the application's")
    maker = rig.client("maker")
    assert maker.ask("create", session="ann")["ok"]
    user = ((f"{form}session", "ann"), (f"{form}receipt", "keep"), (f"{form}key", LOCK))
    peer = rig.client("peer", user=user, is_ours=is_ours)
    options = ((f"{form}filter", 'colour == "red"'), (f"{form}name", "n"), (f"{form}ttl", "5"), (f"{form}max", "7"))
    peer.send(_subscribe(*options, (f"{form}key", "consumer:private:k")))
    rig.settle()
    shown = maker.ask("show", session="ann", password=None)
    (found,) = shown["subscriptions"]
    assert (found["filter"], found["name"], found["ttl"], found["max"]) == ('colour == "red"', "n", 5, 7)
    assert LOCK in found["keys"]
    assert shown["devices"] == [{"device": "peer", "present": True, "receipt": "keep"}]
    peer.take()
    peer.send(_publish((f"{form}key", LOCK), (f"{form}insecure", "no"), ("colour", "red")))
    rig.settle()
    (copy,) = peer.taken(Publish)
    assert copy.properties.user == (("colour", "red"),)
    gone = Unsubscribe(2, ("#",), Properties(user=((f"{form}name", "n"),)))
    peer.send(gone)
    rig.settle()
    assert peer.taken(Unsuback) == [Unsuback(2, (ReasonCode.SUCCESS,))]


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("name", ["ttl", "max", "filter", "key", "insecure", "near", *LATER, "colour", ""])
def test_a_prefixed_option_of_a_subscription_is_strict(rig: Rig, name: str, *, is_ours: bool) -> None:
    """A name without a meaning is refused, and so is a value that does not parse."""
    peer = rig.client("peer", is_ours=is_ours)
    for packet in (
        _subscribe((f"whimbrel.{name}", "nonsense !(")),
        Unsubscribe(1, ("#",), Properties(user=((f"whimbrel.{name}", "nonsense !("),))),
    ):
        (answer,) = peer.tell(packet)
        assert isinstance(answer, Suback | Unsuback)
        assert answer.codes == (ReasonCode.TOPIC_FILTER_INVALID,)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("name", ["key", "insecure", "ttl", "session", *LATER, "colour", ""])
def test_a_prefixed_property_of_a_publication_is_strict(rig: Rig, name: str, qos: int, *, is_ours: bool) -> None:
    """The publication is refused with a reason, and nobody gets it."""
    watcher = rig.subscriber("watcher", "#", "$whimbrel/#")
    peer = rig.client("peer", is_ours=is_ours)
    packet = _publish((f"whimbrel.{name}", "nonsense !("), qos=qos)
    for topic in ("a", "$whimbrel/report"):
        answers = peer.tell(packet._replace(topic=topic))
        rig.settle()
        assert [each.code for each in answers if isinstance(each, Puback | Pubrec)] == [0x99] * (qos > 0)
    assert watcher.payloads() == []


def test_a_request_with_a_property_that_is_none_is_answered(rig: Rig) -> None:
    """Whoever asks is told, at every QoS."""
    peer = rig.client("peer", is_ours=False)
    packet = asking("list")
    told = Properties(dict(packet.properties.once()), user=(("whimbrel.colour", "red"),))
    peer.send(packet._replace(properties=told))
    (answer,) = peer.answers()
    assert (answer["ok"], answer["code"]) == (False, 0x99)
    assert "whimbrel.colour" in answer["reason"]


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("name", ["session", "receipt", "key", "ttl", *LATER, "colour", ""])
def test_a_prefixed_property_of_connect_is_strict(rig: Rig, name: str, *, is_ours: bool) -> None:
    """CONNACK says which name or value it was, but quotes no key."""
    user = (
        (("whimbrel.session", "ann"), (f"whimbrel.{name}", "a/b"))
        if name == "receipt"
        else ((f"whimbrel.{name}", "a/b"),)
    )
    peer = rig.connecting("peer", user=user, is_ours=is_ours)
    (answer,) = peer.taken(Connack)
    assert answer.code == ReasonCode.PROTOCOL_ERROR
    assert (name or "whimbrel.") in (answer.properties.text(Property.REASON_STRING) or "")


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("name", ["key", "insecure", "delay"])
def test_a_prefixed_property_of_a_will_is_strict(rig: Rig, name: str, *, is_ours: bool) -> None:
    """A will is looked at when it is left, not when it is too late."""
    will = Will("w", b"1", properties=Properties(user=((f"whimbrel.{name}", "nonsense !("),)))
    peer = rig.connecting("peer", will=will, is_ours=is_ours)
    rig.settle()
    (answer,) = peer.taken(Connack)
    assert answer.code == ReasonCode.PAYLOAD_FORMAT_INVALID


@pytest.mark.parametrize("user", [(("key", "7"),), (("key", ""),), (("insecure", "perhaps"),)])
def test_over_our_connection_bare_names_are_strict(rig: Rig, user: Pairs) -> None:
    """Nothing is guessed where a client says that it knows us."""
    (answer,) = rig.client("peer").tell(_publish(*user))
    assert isinstance(answer, Puback)
    assert answer.code == ReasonCode.PAYLOAD_FORMAT_INVALID


def test_insecure_twice_is_refused(rig: Rig) -> None:
    """Also once in each form."""
    peer = rig.client("peer")
    (answer,) = peer.tell(_publish(("key", LOCK), ("insecure", "yes"), ("whimbrel.insecure", "no")))
    assert isinstance(answer, Puback)
    assert answer.code == ReasonCode.PAYLOAD_FORMAT_INVALID
    (refused,) = peer.tell(_subscribe(("ttl", "1"), ("whimbrel.ttl", "1")))
    assert isinstance(refused, Suback)
    assert refused.codes == (ReasonCode.TOPIC_FILTER_INVALID,)


def test_a_publication_without_keys_is_open_whatever_it_says_of_insecure(rig: Rig) -> None:
    """There is nothing that could match; and the property is taken off."""
    watcher = rig.subscriber("watcher", "a")
    rig.client("peer").send(_publish(("insecure", "no"), ("other", "x"), qos=0), publishing("a", b"2"))
    assert [each.properties.user for each in watcher.taken(Publish)] == [(("other", "x"),), ()]


# -- the function itself -----------------------------------------------------------------------------------------------


def test_properties_are_split_in_their_order() -> None:
    """Without the prefix, and each as often as it stands."""
    user = (("key", "1"), ("colour", "x"), ("whimbrel.key", "2"), ("key", "3"))
    assert split_own(user, IN_PUBLISH, is_ours=True) == ([("key", "1"), ("key", "2"), ("key", "3")], [("colour", "x")])
    assert split_own(user, IN_PUBLISH, is_ours=False) == ([("key", "2")], [("key", "1"), ("colour", "x"), ("key", "3")])


def test_an_unknown_name_is_quoted_up_to_a_bound() -> None:
    """A name may have 65,535 bytes."""
    with pytest.raises(InvalidValueError, match=r"whimbrel\.key, whimbrel\.insecure") as caught:
        split_own((("whimbrel." + "x" * 60_000, ""),), IN_PUBLISH, is_ours=False)
    assert len(str(caught.value)) < 300
