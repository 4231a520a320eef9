"""The MQTT codec against bytes written by hand from the layout of the specifications, and every rule it enforces."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.mqtt.codec import Decoder, decode, encode, publish_parts
from whimbrel.mqtt.codes import PACKETS_OF, ReasonCode, connect_return_code, suback_return_code
from whimbrel.mqtt.decoding import _MAX_TOPICS, MAX_FILTERS, _topics
from whimbrel.mqtt.errors import MalformedPacketError, PacketTooLargeError, ProtocolError, UnsupportedVersionError
from whimbrel.mqtt.packets import (
    V5,
    V311,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from whimbrel.mqtt.properties import KINDS, MAX_USER_PROPERTIES, Properties, Property
from whimbrel.mqtt.topics import check_topic_filter, check_topic_name, split_share

REASON = Properties({Property.REASON_STRING: "no"})
FULL = Connect(
    "ab",
    clean_start=False,
    keep_alive_s=60,
    version=V5,
    username="u",
    password=b"\0\1",
    will=Will("w", b"bye", 2, retain=True, properties=Properties({Property.WILL_DELAY_INTERVAL: 5})),
    properties=Properties({Property.RECEIVE_MAXIMUM: 10}),
)
GRANTED = (ReasonCode.GRANTED_QOS_1, ReasonCode.NOT_AUTHORIZED)

VECTORS: list[tuple[int, str, Packet]] = [
    (V311, "10 0e 0004 4d515454 04 02 003c 0002 6162", Connect("ab", keep_alive_s=60, version=V311)),
    (V5, "10 0f 0004 4d515454 05 02 0000 00 0002 6162", Connect("ab")),
    (
        V5,
        "10 27 0004 4d515454 05 f4 003c 03 21000a 0002 6162 05 1800000005 0001 77 0003 627965 0001 75 0002 0001",
        FULL,
    ),
    (V311, "20 02 01 00", Connack(session_present=True)),
    (V311, "20 02 00 05", Connack(code=5)),
    (V5, "20 03 00 87 00", Connack(code=ReasonCode.NOT_AUTHORIZED)),
    (V5, "20 06 01 00 03 220010", Connack(True, ReasonCode.SUCCESS, Properties({Property.TOPIC_ALIAS_MAXIMUM: 16}))),
    (V311, "30 07 0003 612f62 6869", Publish("a/b", b"hi")),
    (V5, "30 08 0003 612f62 00 6869", Publish("a/b", b"hi")),
    (V311, "3d 07 0001 61 000a 6869", Publish("a", b"hi", 2, retain=True, dup=True, packet_id=10)),
    (
        V5,
        "32 12 0001 61 ffff 0c 0101 0b8001 2600016b000176",
        Publish(
            "a",
            qos=1,
            packet_id=65_535,
            properties=Properties({Property.PAYLOAD_FORMAT_INDICATOR: 1}, user=(("k", "v"),), identifiers=(128,)),
        ),
    ),
    (V5, "30 06 0000 03 230001", Publish("", properties=Properties({Property.TOPIC_ALIAS: 1}))),
    (V311, "40 02 0102", Puback(258)),
    (V5, "40 02 0102", Puback(258)),
    (V5, "40 03 0102 10", Puback(258, ReasonCode.NO_MATCHING_SUBSCRIBERS)),
    (V5, "50 09 0001 97 05 1f00026e6f", Pubrec(1, ReasonCode.QUOTA_EXCEEDED, REASON)),
    (V5, "62 03 0001 92", Pubrel(1, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)),
    (V311, "62 02 0001", Pubrel(1)),
    (V5, "70 02 0001", Pubcomp(1)),
    (V311, "82 08 0001 0003 612f23 01", Subscribe(1, (SubscriptionRequest("a/#", 1),))),
    (
        V5,
        "82 0b 0001 02 0b07 0003 612f2b 2e",
        Subscribe(1, (SubscriptionRequest("a/+", 2, True, True, 2),), Properties(identifiers=(7,))),
    ),
    (V311, "90 04 0001 01 80", Suback(1, (1, 0x80))),
    (V5, "90 05 0001 00 01 87", Suback(1, GRANTED)),
    (V311, "a2 07 0001 0003 612f62", Unsubscribe(1, ("a/b",))),
    (V5, "a2 08 0001 00 0003 612f62", Unsubscribe(1, ("a/b",))),
    (V311, "b0 02 0001", Unsuback(1)),
    (V5, "b0 04 0001 00 11", Unsuback(1, (ReasonCode.NO_SUBSCRIPTION_EXISTED,))),
    (V311, "c0 00", Pingreq()),
    (V5, "d0 00", Pingresp()),
    (V311, "e0 00", Disconnect()),
    (V5, "e0 01 04", Disconnect(ReasonCode.DISCONNECT_WITH_WILL)),
    (V5, "e0 07 8b 05 1f00026e6f", Disconnect(ReasonCode.SERVER_SHUTTING_DOWN, REASON)),
    (V5, "f0 00", Auth()),
    (
        V5,
        "f0 06 18 04 15000178",
        Auth(ReasonCode.CONTINUE_AUTHENTICATION, Properties({Property.AUTHENTICATION_METHOD: "x"})),
    ),
]


@pytest.mark.parametrize(("version", "wire", "packet"), VECTORS, ids=[wire for _, wire, _ in VECTORS])
def test_a_packet_has_the_bytes_the_specification_says(version: int, wire: str, packet: Packet) -> None:
    """Round trips alone would pass with both sides wrong in the same way."""
    decoder = Decoder(version=version)
    assert encode(packet, version).hex() == wire.replace(" ", "")
    assert [(type(found), found) for found in decoder.receive(bytes.fromhex(wire))] == [(type(packet), packet)]


@pytest.mark.parametrize("wire", ["40 04 0102 00 00", "40 03 0102 00", "e0 02 00 00", "e0 01 00"])
def test_what_may_be_left_out_may_also_be_there(wire: str) -> None:
    """We write the short form; peers may write the long one."""
    decoder = Decoder(version=V5)
    assert decoder.receive(bytes.fromhex(wire)) in ([Puback(258)], [Disconnect()])
    assert decoder.failure is None


MALFORMED, PROTOCOL = ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR
BAD_TOPIC, BAD_ALIAS = ReasonCode.TOPIC_NAME_INVALID, ReasonCode.TOPIC_ALIAS_INVALID
BROKEN: list[tuple[str, int, str, ReasonCode]] = [
    ("packet type 0", V5, "00 00", MALFORMED),
    ("AUTH in 3.1.1", V311, "f0 00", MALFORMED),
    ("flags of PUBACK", V5, "41 02 0001", MALFORMED),
    ("flags of PUBREL", V311, "60 02 0001", MALFORMED),
    ("flags of SUBSCRIBE", V5, "80 08 0001 00 0002 612f 00", MALFORMED),
    ("flags of PINGREQ", V311, "c1 00", MALFORMED),
    ("length of five bytes", V5, "30 ffffffff01", MALFORMED),
    ("length with a zero too many", V5, "c0 8000", MALFORMED),
    ("bytes after PINGREQ", V5, "c0 01 00", MALFORMED),
    ("bytes after PUBACK of 3.1.1", V311, "40 03 0001 00", MALFORMED),
    ("bytes after DISCONNECT of 3.1.1", V311, "e0 01 00", MALFORMED),
    ("bytes after UNSUBACK of 3.1.1", V311, "b0 03 0001 00", MALFORMED),
    ("bytes after properties", V5, "40 05 0001 00 00 00", MALFORMED),
    ("bytes after CONNACK", V5, "20 04 00 00 00 00", MALFORMED),
    ("QoS 3", V5, "36 06 0001 61 0001 00", MALFORMED),
    ("DUP at QoS 0", V311, "38 03 0001 61", MALFORMED),
    ("identifier 0 of PUBLISH", V311, "32 05 0001 61 0000", MALFORMED),
    ("identifier 0 of PUBACK", V5, "40 02 0000", MALFORMED),
    ("identifier 0 of SUBSCRIBE", V5, "82 07 0000 00 0001 61 00", MALFORMED),
    ("PUBLISH without identifier", V311, "32 03 0001 61", MALFORMED),
    ("PUBLISH without property length", V5, "30 03 0001 61", MALFORMED),
    ("PUBLISH of one byte", V5, "30 01 00", MALFORMED),
    ("topic past the end", V5, "30 04 0003 61 00", MALFORMED),
    ("properties past the end", V5, "30 04 0001 61 02", MALFORMED),
    ("property length past the end", V5, "30 04 0001 61 80 01", MALFORMED),
    ("topic with U+0000", V311, "30 03 0001 00", MALFORMED),
    ("topic with a surrogate", V311, "30 05 0003 eda080", MALFORMED),
    ("topic with an overlong form", V311, "30 04 0002 c0af", MALFORMED),
    ("topic with +", V311, "30 03 0001 2b", BAD_TOPIC),
    ("topic with #", V5, "30 06 0003 612f23 00", BAD_TOPIC),
    ("no topic in 3.1.1", V311, "30 02 0000", BAD_TOPIC),
    ("no topic and no alias", V5, "30 03 0000 00", PROTOCOL),
    ("topic alias 0", V5, "30 07 0001 61 03 230000", BAD_ALIAS),
    ("subscription identifier 0", V5, "82 09 0001 02 0b00 0001 61 00", PROTOCOL),
    ("two subscription identifiers in SUBSCRIBE", V5, "82 0b 0001 04 0b010b02 0001 61 00", PROTOCOL),
    ("property twice", V5, "30 08 0001 61 04 01000101", PROTOCOL),
    ("flag of 2", V5, "30 06 0001 61 02 0102", PROTOCOL),
    ("property in the wrong packet", V5, "30 07 0001 61 03 210001", MALFORMED),
    ("property that does not exist", V5, "30 05 0001 61 01 7f", MALFORMED),
    ("property identifier of two bytes", V5, "30 07 0001 61 03 810000", MALFORMED),
    ("property cut", V5, "30 06 0001 61 02 0200", MALFORMED),
    ("response topic with a wildcard", V5, "30 08 0001 61 04 0800012b", BAD_TOPIC),
    ("receive maximum 0", V5, "20 06 00 00 03 210000", PROTOCOL),
    ("maximum packet size 0", V5, "20 08 00 00 05 2700000000", PROTOCOL),
    ("code of another packet", V5, "40 03 0001 8e", PROTOCOL),
    ("code that does not exist", V5, "e0 01 ff", PROTOCOL),
    ("reserved flags of CONNACK", V311, "20 02 02 00", MALFORMED),
    ("return code 6", V311, "20 02 00 06", PROTOCOL),
    ("refused with a session", V311, "20 02 01 05", PROTOCOL),
    ("SUBSCRIBE without filter", V311, "82 02 0001", PROTOCOL),
    ("UNSUBSCRIBE without filter", V5, "a2 03 0001 00", PROTOCOL),
    ("filter without options", V311, "82 05 0001 0001 61", MALFORMED),
    ("reserved options", V5, "82 07 0001 00 0001 61 40", MALFORMED),
    ("options in 3.1.1", V311, "82 06 0001 0001 61 04", MALFORMED),
    ("SUBSCRIBE with QoS 3", V5, "82 07 0001 00 0001 61 03", PROTOCOL),
    ("retain handling 3", V5, "82 07 0001 00 0001 61 30", PROTOCOL),
    ("no local and shared", V5, "82 0f 0001 00 0009 2473686172652f672f 04", PROTOCOL),
    ("SUBACK without code", V5, "90 03 0001 00", MALFORMED),
    ("reserved return code of SUBACK", V311, "90 03 0001 87", PROTOCOL),
    ("AUTH of one byte", V5, "f0 01 00", MALFORMED),
    ("AUTH without method", V5, "f0 02 18 00", PROTOCOL),
]


@pytest.mark.parametrize(("version", "wire", "code"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_a_broken_rule_has_its_code(version: int, wire: str, code: ReasonCode) -> None:
    """The peer is told what it did; packets before the break still count."""
    decoder = Decoder(version=version)
    assert decoder.receive(b"\xc0\0" + bytes.fromhex(wire)) == [Pingreq()]
    assert decoder.failure is not None
    assert decoder.failure.code is code
    assert isinstance(decoder.failure, MalformedPacketError) is (code is MALFORMED)


CONNECTS: list[tuple[str, str, ReasonCode]] = [
    ("reserved flag", "0004 4d515454 04 03 0000 0000", MALFORMED),
    ("will of QoS 3", "0004 4d515454 04 1e 0000 0000 0001 61 0000", MALFORMED),
    ("QoS without a will", "0004 4d515454 04 0a 0000 0000", MALFORMED),
    ("retain without a will", "0004 4d515454 04 22 0000 0000", MALFORMED),
    ("password alone in 3.1.1", "0004 4d515454 04 42 0000 0000 0001 70", MALFORMED),
    ("user name cut", "0004 4d515454 04 82 0000 0000 0005 75", MALFORMED),
    ("bytes after the end", "0004 4d515454 04 02 0000 0000 00", MALFORMED),
    ("will topic with a wildcard", "0004 4d515454 04 06 0000 0000 0001 2b 0000", BAD_TOPIC),
    ("data without method", "0004 4d515454 05 02 0000 04 16000178 0000", PROTOCOL),
    ("level 3", "0006 4d5149736470 03 02 0000 0000", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION),
    ("level 6", "0004 4d515454 06 02 0000 0000", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION),
    ("another name", "0004 48545450 04 02 0000 0000", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION),
]


@pytest.mark.parametrize(("body", "code"), [case[1:] for case in CONNECTS], ids=[case[0] for case in CONNECTS])
def test_a_broken_connect_has_its_code(body: str, code: ReasonCode) -> None:
    """CONNACK carries these, so they must be right."""
    with pytest.raises(ProtocolError) as caught:
        decode(0x10, bytes.fromhex(body), V5)
    assert caught.value.code is code


def test_a_password_alone_is_allowed_in_5() -> None:
    """5.0 lifted the rule of 3.1.1; tokens are sent so."""
    packet = Connect("a", password=b"token")
    assert Decoder().receive(encode(packet, V5)) == [packet]


def test_the_first_packet_must_be_connect() -> None:
    """A server answers nobody who did not introduce himself; one byte is enough to know."""
    decoder = Decoder()
    assert decoder.receive(b"\xc0") == []
    assert decoder.failure is not None
    assert decoder.failure.code is ReasonCode.PROTOCOL_ERROR


def test_after_a_break_nothing_is_read() -> None:
    """Where one packet ends wrong, nobody knows where the next begins."""
    decoder = Decoder(version=V5)
    decoder.receive(b"\0\0")
    failure = decoder.failure
    assert decoder.receive(b"\xc0\0") == []
    assert decoder.failure is failure


def test_a_packet_of_the_allowed_size_passes_and_one_more_byte_does_not() -> None:
    """The limit counts the whole packet, as Maximum Packet Size does."""
    wire = encode(Publish("a", b"12345"), V311)
    assert len(Decoder(version=V311, max_packet_bytes=len(wire)).receive(wire)) == 1
    refusing = Decoder(version=V311, max_packet_bytes=len(wire) - 1)
    assert refusing.receive(wire[:2]) == []
    assert isinstance(refusing.failure, PacketTooLargeError)
    assert (refusing.failure.size_bytes, refusing.failure.max_bytes) == (len(wire), len(wire) - 1)


def test_a_large_packet_in_small_pieces_is_kept_once() -> None:
    """A slow sender must not cost a copy of everything per piece."""
    wire = encode(Publish("a", bytes(200_000)), V5)
    decoder = Decoder(version=V5)
    pieces = [wire[at : at + 100] for at in range(0, len(wire), 100)]
    held = decoder._held
    assert [len(decoder.receive(piece)) for piece in pieces] == [0] * (len(pieces) - 1) + [1]
    assert decoder._held is held
    assert not held


def test_remembered_topics_are_bounded_and_shared() -> None:
    """A peer that invents topics must not fill the memory, and one that repeats them gets the same string."""
    decoder = Decoder(version=V311)
    for number in range(_MAX_TOPICS + 10):
        decoder.receive(encode(Publish(f"t/{number}"), V311))
    assert len(_topics) <= _MAX_TOPICS
    first, second = decoder.receive(encode(Publish("same"), V311) * 2)
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert first.topic is second.topic


def test_a_topic_that_is_not_allowed_is_refused_every_time() -> None:
    """The memory holds checked topics only; the empty one depends on what else is in the packet."""
    for _ in range(2):
        for wire in ("30 04 0001 2b 00", "30 03 0000 00"):
            decoder = Decoder(version=V5)
            assert decoder.receive(bytes.fromhex(wire)) == []
            assert decoder.failure is not None


OURS: list[tuple[Packet, int]] = [
    (Publish("a", qos=3, packet_id=1), V5),
    (Publish("a", dup=True), V5),
    (Publish("a", qos=1), V5),
    (Publish("a", packet_id=1), V5),
    (Publish("a\0"), V311),
    (Publish("\ud800"), V311),
    (Publish("a" * 65_536), V311),
    (Publish("a", properties=Properties({Property.RECEIVE_MAXIMUM: 1})), V5),
    (Puback(0), V5),
    (Puback(65_536), V311),
    (Puback(1, ReasonCode.BANNED), V5),
    (Connect("a", version=3), V5),
    (Connect("a", version=V311, password=b""), V311),
    (Connect("a", keep_alive_s=65_536), V5),
    (Connect("a", password=bytes(65_536)), V5),
    (Connect("a", will=Will("w", qos=3)), V5),
    (Connack(session_present=True, code=ReasonCode.BANNED), V5),
    (Connack(code=6), V311),
    (Subscribe(1, ()), V5),
    (Subscribe(1, (SubscriptionRequest("a", 3),)), V5),
    (Subscribe(1, (SubscriptionRequest("a"),), Properties(identifiers=(1, 2))), V5),
    (Suback(1, ()), V5),
    (Suback(1, (0x8E,)), V5),
    (Unsubscribe(1, ()), V311),
    (Auth(), V311),
]


@pytest.mark.parametrize(("packet", "version"), OURS)
def test_what_may_not_be_sent_is_refused(packet: Packet, version: int) -> None:
    """A mistake of ours is not the peer's: it gets another error, before a byte is sent."""
    with pytest.raises(InvalidValueError):
        encode(packet, version)


@pytest.mark.parametrize(
    "values",
    [
        {Property.TOPIC_ALIAS: 0},
        {Property.TOPIC_ALIAS: 65_536},
        {Property.MAXIMUM_QOS: True},
        {Property.REASON_STRING: b""},
        {Property.CORRELATION_DATA: "text"},
        {Property.USER_PROPERTY: "given apart"},
        {Property.SUBSCRIPTION_IDENTIFIER: 1},
    ],
)
def test_properties_that_cannot_be_are_not_built(values: dict[Property, object]) -> None:
    """The table of bounds holds for what we make up as well."""
    with pytest.raises(InvalidValueError):
        Properties(values)


def test_halves_of_a_publish_join_around_the_identifier() -> None:
    """Encoded once, sent to many: only the two bytes between differ."""
    head, tail = publish_parts(
        b"a", b"hi", qos=1, retain=False, dup=False, version=V5, properties=bytes.fromhex("0101")
    )
    assert (head.hex(" "), tail.hex(" ")) == ("32 0a 00 01 61", "02 01 01 68 69")
    assert publish_parts(b"a", b"hi", qos=0, retain=True, dup=False, version=V311, properties=b"") == (
        bytes.fromhex("31 05 0001 61 6869"),
        b"",
    )


def test_3_1_1_gets_codes_of_its_own() -> None:
    """A client of 3.1.1 knows five refusals to connect, and one to subscribe."""
    wanted = {0x00: 0, 0x84: 1, 0x85: 2, 0x88: 3, 0x97: 3, 0x86: 4, 0x87: 5, 0x8A: 5}
    assert {code: connect_return_code(ReasonCode(code)) for code in wanted} == wanted
    assert [suback_return_code(code) for code in (0, 1, 2, 0x80, 0x9E)] == [0, 1, 2, 0x80, 0x80]
    assert encode(Connack(code=ReasonCode.NOT_AUTHORIZED), V311) == bytes.fromhex("20 02 00 05")
    assert encode(Suback(1, GRANTED), V311) == bytes.fromhex("90 04 0001 01 80")


def test_the_tables_are_complete() -> None:
    """43 codes and 27 properties stand in the specification; each has its row."""
    assert set(PACKETS_OF) == set(ReasonCode)
    assert set(KINDS) == set(Property)
    assert (len(PACKETS_OF), len(KINDS)) == (43, 27)
    assert [code.is_error for code in (ReasonCode.RE_AUTHENTICATE, ReasonCode.UNSPECIFIED_ERROR)] == [False, True]


@pytest.mark.parametrize(
    "error",
    [
        ProtocolError(ReasonCode.QUOTA_EXCEEDED, "too many"),
        MalformedPacketError("odd"),
        PacketTooLargeError(10, 5),
        UnsupportedVersionError("MQIsdp", 3),
    ],
)
def test_errors_pickle_and_say_their_code(error: ProtocolError) -> None:
    """They cross processes, and a log line must name the code."""
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 # our own bytes
    assert (type(again), again.code, str(again)) == (type(error), error.code, str(error))
    assert f"0x{error.code:02X}" in str(error)


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0", "\ud800", "é" * 32_768])
def test_what_cannot_be_published_under_is_no_topic_name(topic: str) -> None:
    """Wildcards belong to filters, and the wire has 65,535 bytes for a topic."""
    with pytest.raises(ProtocolError) as caught:
        check_topic_name(topic)
    assert caught.value.code is ReasonCode.TOPIC_NAME_INVALID


@pytest.mark.parametrize("topic_filter", ["", "a+", "+a/b", "a/#/b", "a#", "##", "++", "a\0", "#/"])
def test_a_wildcard_is_a_whole_level(topic_filter: str) -> None:
    """4.7.1: # only as the last level, + anywhere, both alone."""
    with pytest.raises(ProtocolError) as caught:
        check_topic_filter(topic_filter)
    assert caught.value.code is ReasonCode.TOPIC_FILTER_INVALID


@pytest.mark.parametrize("topic_filter", ["#", "+", "/", "+/+/#", "/+", "a//b", "$SYS/#", "a b/ü", "+/"])
def test_what_is_allowed_passes(topic_filter: str) -> None:
    """Empty levels and spaces are levels too."""
    check_topic_filter(topic_filter)
    check_topic_name("$x// /ü")


def test_a_shared_subscription_has_a_name_and_a_filter() -> None:
    """4.8.2: $share, a name without wildcards, and a filter of at least one character."""
    assert split_share("$share/g/a/#") == ("g", "a/#")
    assert split_share("$share/g//") == ("g", "/")
    assert split_share("a/$share/b") == (None, "a/$share/b")
    assert split_share("$share") == (None, "$share")
    for broken in ("$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a", "$share/g#/a"):
        with pytest.raises(ProtocolError) as caught:
            split_share(broken)
        assert caught.value.code is ReasonCode.TOPIC_FILTER_INVALID


@pytest.mark.parametrize(
    ("most", "packet"),
    [
        (MAX_FILTERS, lambda count: Subscribe(1, (SubscriptionRequest("a"),) * count)),
        (MAX_FILTERS, lambda count: Unsubscribe(1, ("a",) * count)),
        (MAX_USER_PROPERTIES, lambda count: Publish("a", properties=Properties(user=(("n", ""),) * count))),
    ],
    ids=["SUBSCRIBE", "UNSUBSCRIBE", "user properties"],
)
def test_one_packet_has_no_more_items_than_a_moment_reads(most: int, packet: Callable[[int], Packet]) -> None:
    """A megabyte of the shortest would take most of a second to read, with everybody else waiting."""
    decoder = Decoder(version=V5)
    assert len(decoder.receive(encode(packet(most), V5))) == 1
    assert decoder.receive(encode(packet(most + 1), V5)) == []
    assert isinstance(decoder.failure, ProtocolError)
    assert decoder.failure.code is ReasonCode.QUOTA_EXCEEDED
