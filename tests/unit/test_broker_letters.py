"""MQTT to the letter: what the standards say of lengths, malformed packets and disallowed characters."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_rig import Peer, Rig, publishing, subscribing

from whimbrel.broker.settings.config import Config, LimitSettings
from whimbrel.broker.settings.config_files import read_config
from whimbrel.broker.settings.fields import ConfigError
from whimbrel.log.reader import read
from whimbrel.model.facts import PresenceChanged
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import (
    V5,
    V311,
    Connack,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Unsuback,
    Unsubscribe,
    Will,
)
from whimbrel.mqtt.properties import Properties, Property
from whimbrel.mqtt.topics import disallowed_in

INVALID = ReasonCode.TOPIC_FILTER_INVALID
DISALLOWED = ["\x01", "\x1b", "\x1f", "\x7f", "\x80", "\x9f", "\ufdd0", "\ufffe", "\uffff", "\U0001fffe", "\U0010ffff"]
MALFORMED = ["", "a#", "#/a", "a/#/b", "a+", "+a/b", "a/b+/c"]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker with all defaults."""
    return Rig(tmp_path)


# -- client identifiers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V311, V5])
def test_the_longest_client_identifier_that_can_be_configured_is_served(tmp_path: Path, version: int) -> None:
    """Its name stands in every fact about it; one byte more is refused with CONNACK."""
    most = 1_018
    rig = Rig(tmp_path, Config(limits=LimitSettings(client_id_bytes=most)))
    longest = "é" * (most // 2)
    peer = rig.client(longest, version=version, expiry_s=600 if version == V5 else 0, clean=version == V5)
    peer.send(subscribing("a", qos=1), publishing("a", b"1", 1, 1))
    rig.settle()
    assert peer.payloads() == [b"1"]
    peer.drop()
    rig.log.sync()
    assert longest in {
        each.device for each in read(rig.folder, rig.state.node.name) if isinstance(each, PresenceChanged)
    }
    (answer,) = rig.connecting(longest + "x", version=version).taken(Connack)
    assert answer.code == (ReasonCode.CLIENT_IDENTIFIER_NOT_VALID if version == V5 else 2)


def test_a_longer_client_identifier_cannot_be_configured(tmp_path: Path) -> None:
    """The error says what is allowed."""
    path = tmp_path / "broker.toml"
    path.write_text("[limits]\nclient_id_bytes = 65535\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="an integer from 23 to 1018"):
        read_config(path)


# -- the client's maximum packet size ----------------------------------------------------------------------------------


def _told(rig: Rig, most: int, client_id: str = "peer", **more: object) -> tuple[Peer, list[bytes]]:
    """Return a client that takes packets of *most* bytes, and the CONNACK it was sent, if any."""
    options = {Property.MAXIMUM_PACKET_SIZE: most}
    peer = rig.connecting(client_id, options=options, **more)  # type: ignore[arg-type]
    rig.settle()
    return peer, [encode(packet, V5) for packet in peer.take()]


@pytest.mark.parametrize("client_id", ["peer", ""])
@pytest.mark.parametrize("expiry_s", [0, 2**32 - 1])
def test_no_connack_is_longer_than_the_client_takes(tmp_path: Path, client_id: str, expiry_s: int) -> None:
    """It is shortened by what it need not say, says no, or is not sent (3.1.2.11.4, [MQTT-3.1.2-24])."""
    rig = Rig(tmp_path)
    _, [whole] = _told(rig, 1_000, client_id, expiry_s=expiry_s)
    codes = set()
    for most in range(1, len(whole) + 1):
        peer, found = _told(rig, most, client_id, expiry_s=expiry_s)
        assert all(len(data) <= most for data in found), most
        assert len(found) == (most >= 5), most
        codes |= {data[3] for data in found}
        is_in = bool(found) and not found[0][3]
        assert peer.is_closed is not is_in
        assert is_in or all(len(data) == 5 or data[3] for data in found)
        peer.drop()
    assert codes == {ReasonCode.SUCCESS, ReasonCode.PACKET_TOO_LARGE}


def test_who_cannot_be_told_was_never_here(rig: Rig) -> None:
    """Neither a session nor a will is left of a CONNECT that was refused."""
    watcher = rig.subscriber("watcher", "w")
    peer, _ = _told(rig, 4, expiry_s=600, will=Will("w", b"1"))
    assert peer.is_closed
    rig.settle()
    assert watcher.payloads() == []
    assert "peer" not in rig.state.clients


def test_a_refusal_leaves_its_reason_out_where_it_does_not_fit(tmp_path: Path) -> None:
    """And is not sent where it does not fit without."""
    rig = Rig(tmp_path, Config(limits=LimitSettings(client_id_bytes=23)))
    lengths = {most: [len(data) for data in _told(rig, most, "x" * 24)[1]] for most in (4, 5, 20, 1_000)}
    assert lengths[4] == []
    assert lengths[5] == lengths[20] == [5]
    assert lengths[1_000][0] > 20


@pytest.mark.parametrize("kind", [Suback, Unsuback])
def test_an_answer_that_is_longer_than_the_client_takes_ends_its_connection(rig: Rig, kind: type[Packet]) -> None:
    """Without it the client would wait for ever (0x95)."""
    peer, _ = _told(rig, 40)
    filters = [f"a/{number}" for number in range(60)]
    peer.send(subscribing(*filters) if kind is Suback else Unsubscribe(1, tuple(filters)))
    rig.settle()
    assert peer.is_closed
    (answer,) = peer.take()
    assert isinstance(answer, Disconnect)
    assert answer.code == ReasonCode.PACKET_TOO_LARGE
    assert len(encode(answer, V5)) <= 40


@pytest.mark.parametrize("wants_reasons", [0, 1])
def test_problem_information_that_was_not_requested_stands_in_connack_and_disconnect_alone(
    rig: Rig, wants_reasons: int
) -> None:
    """3.1.2.11.7: these two may have it, no other answer."""
    options: dict[Property, object] = {Property.REQUEST_PROBLEM_INFORMATION: wants_reasons}
    refused = rig.connecting("x" * 300, options=options)
    peer = rig.client("peer", options=options)
    answers = [*refused.take(), *peer.tell(subscribing("a#"), publishing("$SYS/a", b"", 1, 1))]
    peer.send_bytes(b"\xf0\x00")
    answers += peer.take()
    reasons = {type(each): bool(each.properties.text(Property.REASON_STRING)) for each in answers}  # type: ignore[union-attr]
    assert reasons == {Connack: True, Suback: bool(wants_reasons), Puback: bool(wants_reasons), Disconnect: True}


# -- what closes a connection of 3.1.1 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", MALFORMED)
def test_a_malformed_topic_filter_closes_a_connection_of_311(rig: Rig, wanted: str) -> None:
    """[MQTT-4.8.0-1]; nothing of the packet is done. Version 5 has a code for each."""
    for packet in (subscribing("fine", wanted), Unsubscribe(1, ("fine", wanted))):
        old, new = rig.client("old", version=V311), rig.client("new")
        for peer in (old, new):
            peer.send(packet)
        rig.settle()
        assert (old.is_closed, old.take()) == (True, [])
        assert "fine" not in {wanted for wanted, _ in rig.state.subscribed_to.get("$mqtt/old", {})}
        (answer,) = new.take()
        assert isinstance(answer, Suback | Unsuback)
        assert answer.codes[1] == INVALID


@pytest.mark.parametrize("wanted", ["$share/a", "$share//a", "$filter/!/a", "$filter/YQ", "$filter/IQ/a"])
def test_what_is_only_ours_to_refuse_closes_no_connection(rig: Rig, wanted: str) -> None:
    """For 3.1.1 these are topic filters like others."""
    peer = rig.client("old", version=V311)
    assert peer.tell(subscribing(wanted)) == [Suback(1, (ReasonCode.UNSPECIFIED_ERROR,))]


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize(("qos", "kind"), [(1, Pubrec), (1, Pubcomp), (2, Puback), (2, Pubcomp)])
def test_an_acknowledgement_of_the_wrong_kind_closes_the_connection(
    rig: Rig, version: int, qos: int, kind: type[Puback | Pubrec | Pubcomp]
) -> None:
    """What was sent is still to be acknowledged: the session gets it again."""
    clean = version == V5
    peer = rig.client("peer", version=version, clean=clean, expiry_s=600)
    peer.send(subscribing("a", qos=2))
    rig.settle()
    peer.take()
    rig.client("publisher").send(publishing("a", b"1", qos, 1))
    rig.settle()
    (copy,) = peer.taken(Publish)
    peer.send(kind(copy.packet_id))
    rig.settle()
    assert peer.is_closed
    told = [each.code for each in peer.taken(Disconnect)]
    assert told == [ReasonCode.PROTOCOL_ERROR] * (version == V5)
    (again,) = rig.client("peer", version=version, clean=False, expiry_s=600).taken(Publish)
    assert (again.payload, again.packet_id, again.dup) == (b"1", copy.packet_id, True)


@pytest.mark.parametrize("version", [V311, V5])
def test_a_puback_for_what_was_released_closes_the_connection(rig: Rig, version: int) -> None:
    """PUBREL is answered by PUBCOMP alone; the session is told again, and may still say so."""
    peer = rig.client("peer", version=version, clean=version == V5, expiry_s=600)
    peer.send(subscribing("a", qos=2))
    rig.settle()
    rig.client("publisher").send(publishing("a", b"1", 2, 1))
    rig.settle()
    (copy,) = peer.taken(Publish)
    peer.send(Pubrec(copy.packet_id))
    rig.settle()
    peer.take()
    peer.send(Puback(copy.packet_id))
    rig.settle()
    assert peer.is_closed
    assert [each.code for each in peer.taken(Disconnect)] == [ReasonCode.PROTOCOL_ERROR] * (version == V5)
    back = rig.client("peer", version=version, clean=False, expiry_s=600)
    assert [each.packet_id for each in back.taken(Pubrel)] == [copy.packet_id]


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("kind", [Puback, Pubrec, Pubcomp])
def test_an_acknowledgement_of_what_is_not_in_flight_closes_nothing(
    rig: Rig, version: int, kind: type[Puback | Pubrec | Pubcomp]
) -> None:
    """It may be late."""
    peer = rig.client("peer", version=version)
    peer.send(kind(7))
    assert not peer.is_closed


# -- disallowed characters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("character", DISALLOWED, ids=ascii)
def test_a_topic_with_a_disallowed_character_is_refused(rig: Rig, version: int, character: str) -> None:
    """A subscriber may close its connection for it, again and again (5.4.9)."""
    topic = f"a/b{character}c"
    watcher = rig.subscriber("watcher", "a/#", qos=1)
    peer = rig.client("peer", version=version)
    answers = peer.tell(*(publishing(topic, b"1", qos, qos, retain=True) for qos in (0, 1, 2)))
    rig.settle()
    assert watcher.payloads() == []
    assert not len(rig.state.retained)
    if version == V5:
        assert [each.code for each in answers if isinstance(each, Puback | Pubrec)] == [0x90, 0x90]
        reason = answers[0].properties.text(Property.REASON_STRING) or ""  # type: ignore[union-attr]
        assert f"U+{ord(character):04X}" in reason
        assert character not in reason
    (answer,) = peer.tell(subscribing(topic))
    assert isinstance(answer, Suback)
    assert answer.codes == ((INVALID,) if version == V5 else (0x80,))


@pytest.mark.parametrize("where", ["topic", "response topic"])
def test_a_will_with_a_disallowed_character_is_refused(rig: Rig, where: str) -> None:
    """In the topic, and in the one that others are to answer to."""
    topic, bad = ("w\x1b", "r") if where == "topic" else ("w", "r\x1b")
    will = Will(topic, b"1", properties=Properties({Property.RESPONSE_TOPIC: bad}))
    (answer,) = rig.connecting("peer", will=will).taken(Connack)
    assert answer.code == ReasonCode.TOPIC_NAME_INVALID


def test_a_response_topic_with_a_disallowed_character_is_refused(rig: Rig) -> None:
    """Whoever answers would publish to it."""
    watcher = rig.subscriber("watcher", "a")
    packet = Publish("a", b"1", 1, packet_id=1, properties=Properties({Property.RESPONSE_TOPIC: "r\x7f"}))
    (answer,) = rig.client("peer").tell(packet)
    assert isinstance(answer, Puback)
    assert answer.code == ReasonCode.TOPIC_NAME_INVALID
    assert watcher.payloads() == []


@pytest.mark.parametrize(
    "topic", ["a b", "é/ü", "日本", "\u2028", "\u00a0", "\u200b", "\U0001f426", "\ue000", "a\u00ad"]
)
def test_other_characters_are_allowed(rig: Rig, topic: str) -> None:
    """Also those that cannot be printed: spaces, joiners, private use."""
    peer = rig.subscriber("peer", topic)
    peer.send(publishing(topic, b"1"))
    assert peer.payloads() == [b"1"]
    assert disallowed_in(topic) is None


# -- what nothing answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "is_told"),
    [
        ("$whimbrel/#", True),
        ("$whimbrel/+/#", True),
        ("$whimbrel/session/#", True),
        ("$whimbrel/session/answer", True),
        ("$whimbrel/session/answer/#", True),
        ("$whimbrel/session/+", True),
        ("$whimbrel/session/ann/changes", True),
        ("$whimbrel/session/ann/subscriptions", True),
        ("$whimbrel/session/+/+", True),
        ("$whimbrel/+/ann/+", True),
        ("$whimbrel/report", False),
        ("$whimbrel/+", False),
        ("$whimbrel/", False),
        ("$whimbrel/quench/#", False),
        ("$whimbrel/session", False),
        ("$whimbrel/session/create", False),
        ("$whimbrel/session/ann/change", False),
        ("$whimbrel/session/ann/changes/more", False),
        ("$share/g/$whimbrel/session/#", False),
    ],
)
def test_a_subscription_that_nothing_answers_is_refused(rig: Rig, wanted: str, *, is_told: bool) -> None:
    """With a reason that says what there is, so that nobody waits for what never comes."""
    (answer,) = rig.client("peer").tell(subscribing(wanted))
    assert isinstance(answer, Suback)
    assert answer.codes == ((0,) if is_told else (INVALID,))
    reason = answer.properties.text(Property.REASON_STRING) or ""
    assert is_told or ("nothing is published" in reason and "$whimbrel/session/+/changes" in reason)
    (old,) = rig.client("old", version=V311).tell(subscribing(wanted))
    assert isinstance(old, Suback)
    assert old.codes == ((0,) if is_told else (0x80,))
