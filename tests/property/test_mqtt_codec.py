"""The MQTT codec, whatever the packets and whatever the bytes.

Packets of different classes can be equal (they are tuples), so packets are compared together with their class.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.mqtt.codec import Decoder, decode, encode, publish_parts
from whimbrel.mqtt.codes import CODES_IN, PacketType, ReasonCode
from whimbrel.mqtt.errors import PacketTooLargeError, ProtocolError
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
    PubackRun,
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
from whimbrel.mqtt.primitives import encode_varint, partial_varint_at
from whimbrel.mqtt.properties import (
    KINDS,
    NO_PROPERTIES,
    WILL,
    Properties,
    Property,
    Wire,
    decode_properties,
    encode_properties,
    passed_on,
)

VERSIONS = (V311, V5)
ONCE = [which for which, kind in KINDS.items() if not kind.repeats_in]

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
topics = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=6)
binaries = st.binary(max_size=6)
packet_ids = st.integers(1, 65_535)
qualities = st.integers(0, 2)
users = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)


def values_of(which: Property) -> st.SearchStrategy[object]:
    """Values that the table allows for *which*."""
    kind = KINDS[which]
    if which is Property.RESPONSE_TOPIC:
        return topics
    if kind.wire is Wire.TEXT:
        return texts
    if kind.wire is Wire.BINARY:
        return binaries
    return st.integers(kind.low, kind.high)


@st.composite
def some_properties(draw: st.DrawFn, place: int, version: int) -> Properties:
    """Properties that may stand in *place*; 3.1.1 has none."""
    if version == V311:
        return NO_PROPERTIES
    chosen = draw(st.lists(st.sampled_from(ONCE), max_size=4, unique=True))
    values = {which: draw(values_of(which)) for which in chosen if place in KINDS[which].places}
    kind = KINDS[Property.SUBSCRIPTION_IDENTIFIER]
    most = 0 if place not in kind.places else 3 if place in kind.repeats_in else 1
    numbers = draw(st.lists(st.integers(kind.low, kind.high), max_size=most))
    return Properties(values, user=draw(users), identifiers=tuple(numbers))


def codes(place: PacketType, version: int) -> st.SearchStrategy[ReasonCode]:
    """Codes that may stand in *place*; where 3.1.1 has codes, the test says which."""
    known = [code for code in CODES_IN[place] if code is not None]
    return st.sampled_from(known) if version == V5 else st.just(ReasonCode.SUCCESS)


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    """Any CONNECT."""
    properties = draw(some_properties(PacketType.CONNECT, version))
    if properties.text(Property.AUTHENTICATION_METHOD) is None:
        kept: dict[Property, object] = dict(properties.once())
        kept.pop(Property.AUTHENTICATION_DATA, None)
        properties = Properties(kept, user=properties.user)
    username = draw(st.none() | texts)
    has_password = version == V5 or username is not None
    wills = st.builds(Will, topics, binaries, qualities, st.booleans(), some_properties(WILL, version))
    return Connect(
        draw(texts),
        draw(st.booleans()),
        draw(st.integers(0, 65_535)),
        version,
        username,
        draw(st.none() | binaries) if has_password else None,
        draw(st.none() | wills),
        properties,
    )


@st.composite
def connacks(draw: st.DrawFn, version: int) -> Connack:
    """Any CONNACK; read from 3.1.1 the code is a return code."""
    code = draw(codes(PacketType.CONNACK, V5) if version == V5 else st.integers(0, 5))
    return Connack(not code and draw(st.booleans()), code, draw(some_properties(PacketType.CONNACK, version)))


@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    """Any PUBLISH."""
    qos = draw(qualities)
    properties = draw(some_properties(PacketType.PUBLISH, version))
    has_alias = properties.integer(Property.TOPIC_ALIAS) is not None
    topic = draw(topics | st.just("") if has_alias else topics)
    dup, packet_id = (draw(st.booleans()), draw(packet_ids)) if qos else (False, 0)
    return Publish(topic, draw(st.binary(max_size=300)), qos, draw(st.booleans()), dup, packet_id, properties)


@st.composite
def requests(draw: st.DrawFn, version: int) -> SubscriptionRequest:
    """Any line of a SUBSCRIBE."""
    topic_filter, qos = draw(texts), draw(qualities)
    if version == V311:
        return SubscriptionRequest(topic_filter, qos)
    return SubscriptionRequest(topic_filter, qos, draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 2)))


@st.composite
def auths(draw: st.DrawFn) -> Auth:
    """Any AUTH: one that says anything names its method."""
    properties = draw(some_properties(PacketType.AUTH, V5))
    values = {**dict(properties.once()), Property.AUTHENTICATION_METHOD: draw(texts)}
    code = draw(codes(PacketType.AUTH, V5))
    return draw(st.sampled_from([Auth(), Auth(code, Properties(values, user=properties.user))]))


def packets(version: int) -> st.SearchStrategy[Packet]:
    """Every packet of *version*."""
    acknowledgements = [
        st.builds(packet, packet_ids, codes(place, version), some_properties(place, version))
        for packet, place in (
            (Puback, PacketType.PUBACK),
            (Pubrec, PacketType.PUBREC),
            (Pubrel, PacketType.PUBREL),
            (Pubcomp, PacketType.PUBCOMP),
        )
    ]
    granted = codes(PacketType.SUBACK, V5) if version == V5 else st.sampled_from([0, 1, 2, 0x80])
    removed = st.lists(codes(PacketType.UNSUBACK, V5), min_size=1, max_size=3).map(tuple)
    return st.one_of(
        publishes(version),
        *acknowledgements,
        connects(version),
        connacks(version),
        st.builds(
            Subscribe,
            packet_ids,
            st.lists(requests(version), min_size=1, max_size=3).map(tuple),
            some_properties(PacketType.SUBSCRIBE, version),
        ),
        st.builds(
            Suback,
            packet_ids,
            st.lists(granted, min_size=1, max_size=3).map(tuple),
            some_properties(PacketType.SUBACK, version),
        ),
        st.builds(
            Unsubscribe,
            packet_ids,
            st.lists(texts, min_size=1, max_size=3).map(tuple),
            some_properties(PacketType.UNSUBSCRIBE, version),
        ),
        st.builds(
            Unsuback,
            packet_ids,
            removed if version == V5 else st.just(()),
            some_properties(PacketType.UNSUBACK, version),
        ),
        st.sampled_from([Pingreq(), Pingresp()]),
        st.builds(Disconnect, codes(PacketType.DISCONNECT, version), some_properties(PacketType.DISCONNECT, version)),
        *([auths()] if version == V5 else []),
    )


any_version = st.sampled_from(VERSIONS)
versioned = any_version.flatmap(lambda version: st.tuples(st.just(version), packets(version)))
streams = any_version.flatmap(
    lambda version: st.tuples(st.just(version), st.lists(packets(version), max_size=5)),
)


def told(found: Iterable[Packet]) -> list[tuple[type, Packet]]:
    """Packets with their classes, to be compared."""
    return [(type(packet), packet) for packet in found]


def failed(decoder: Decoder) -> tuple[type, int] | None:
    """Return class and code of the break, if there was one."""
    return None if decoder.failure is None else (type(decoder.failure), decoder.failure.code)


@given(case=versioned)
def test_every_packet_comes_back_as_it_was(case: tuple[int, Packet]) -> None:
    """Reading is the inverse of writing, for both versions and both sides."""
    version, packet = case
    decoder = Decoder(version=version)
    assert told(decoder.receive(encode(packet, version))) == told([packet])
    assert decoder.failure is None


@given(case=versioned)
def test_every_proper_prefix_needs_more(case: tuple[int, Packet]) -> None:
    """Half a packet is neither a packet nor an error."""
    version, packet = case
    wire = encode(packet, version)
    for cut in range(len(wire)):
        decoder = Decoder(version=version)
        assert decoder.receive(wire[:cut]) == []
        assert decoder.failure is None


@given(case=streams, step=st.integers(1, 40))
def test_chunking_never_changes_the_packets(case: tuple[int, list[Packet]], step: int) -> None:
    """However the network cuts the stream, the same packets come out."""
    version, sent = case
    wire = b"".join(encode(packet, version) for packet in sent)
    decoder = Decoder(version=version)
    received = [p for at in range(0, len(wire), step) for p in decoder.receive(wire[at : at + step])]
    assert told(received) == told(sent)
    assert decoder.failure is None


@given(
    pieces=st.lists(
        st.one_of(
            st.lists(st.integers(0, 65_535), min_size=1, max_size=9).map(
                lambda ids: b"".join(b"\x40\x02" + each.to_bytes(2) for each in ids)
            ),
            st.sampled_from([b"\xc0\0", b"\x40\x03\0\1\x10", b"\x40\x02", b"\x30\x03\0\1a"]),
        ),
        max_size=6,
    ),
    step=st.integers(1, 40),
    piece_bytes=st.sampled_from([96, 250, 1_000_000]),
)
def test_joined_pubacks_are_the_pubacks(pieces: list[bytes], step: int, piece_bytes: int) -> None:
    """A run of PUBACKs is read at once, and says what they say one by one: also where it ends with nonsense."""
    wire = b"".join(pieces)
    joining = Decoder(version=V5, joins_pubacks=True, piece_bytes=piece_bytes)
    plain = Decoder(version=V5)
    joined: list[Packet] = []
    one_by_one: list[Packet] = []
    for at in range(0, len(wire), step):
        joined += joining.receive(wire[at : at + step])
        while joining.has_more and joining.failure is None:
            joined += joining.receive(b"")
        one_by_one += plain.receive(wire[at : at + step])
    told = [
        each
        for packet in joined
        for each in (map(Puback, packet.packet_ids) if isinstance(packet, PubackRun) else (packet,))
    ]
    assert told == one_by_one
    assert str(joining.failure) == str(plain.failure)


@given(case=streams, garbage=st.binary(max_size=30), version=st.sampled_from([None, V311, V5]), step=st.integers(1, 40))
def test_chunking_never_changes_the_break(
    case: tuple[int, list[Packet]], garbage: bytes, version: int | None, step: int
) -> None:
    """A broken stream breaks at the same packet, for the same cause, however it is cut."""
    wire = b"".join(encode(packet, case[0]) for packet in case[1]) + garbage
    whole, cut = Decoder(version=version), Decoder(version=version)
    received = [p for at in range(0, len(wire), step) for p in cut.receive(wire[at : at + step])]
    assert told(received) == told(whole.receive(wire))
    assert (failed(cut), cut.version) == (failed(whole), whole.version)


@given(first=st.integers(0, 255), body=st.binary(max_size=60), version=any_version)
def test_any_bytes_are_a_packet_or_a_protocol_error(first: int, body: bytes, version: int) -> None:
    """Whatever a peer sends, nothing but a protocol error is raised, and what was read can be written."""
    try:
        packet = decode(first, body, version)
    except ProtocolError:
        return
    again = encode(packet, version)
    found = Decoder(version=version).receive(again)
    assert told(found) == told([packet])


@given(case=versioned, data=st.data())
def test_a_changed_byte_gives_packets_or_a_protocol_error(case: tuple[int, Packet], data: st.DataObject) -> None:
    """Near misses reach deeper than noise: still no other exception, from either state."""
    version, packet = case
    wire = bytearray(encode(packet, version))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    for state in (None, version):
        decoder = Decoder(version=state)
        decoder.receive(bytes(wire))
        assert decoder.failure is None or isinstance(decoder.failure, ProtocolError)


@given(packet=any_version.flatmap(connects), rest=st.binary(max_size=30))
def test_the_first_packet_says_the_version(packet: Connect, rest: bytes) -> None:
    """A server learns from CONNECT how to read what follows, also in the same chunk."""
    decoder, follower = Decoder(), Decoder(version=packet.version)
    received = decoder.receive(encode(packet, packet.version) + rest)
    assert told(received) == told([packet, *follower.receive(rest)])
    assert (decoder.version, failed(decoder)) == (packet.version, failed(follower))


@given(data=st.binary(min_size=1, max_size=40))
def test_a_server_reads_nothing_before_connect(data: bytes) -> None:
    """From the state before CONNECT any bytes give a CONNECT first, a break, or a wait."""
    decoder = Decoder()
    received = decoder.receive(data)
    assert all(isinstance(packet, Connect) for packet in received[:1])
    assert data[0] >> 4 == PacketType.CONNECT or failed(decoder) == (ProtocolError, ReasonCode.PROTOCOL_ERROR)


@given(size=st.integers(2, 268_435_455), most=st.integers(2, 300_000_000), first=st.sampled_from([0x30, 0x10, 0x40]))
def test_a_packet_that_is_too_large_is_refused_by_its_length(size: int, most: int, first: int) -> None:
    """Nothing of it is kept: the length alone decides, and counts the whole packet."""
    head = bytes((first,)) + encode_varint(size)
    decoder = Decoder(max_packet_bytes=most, version=V5)
    assert decoder.receive(head) == []
    is_refused = len(head) + size > most
    assert failed(decoder) == ((PacketTooLargeError, ReasonCode.PACKET_TOO_LARGE) if is_refused else None)


@given(packet=any_version.flatmap(publishes), version=any_version)
def test_the_halves_of_a_publish_are_the_publish(packet: Publish, version: int) -> None:
    """A broker that encodes once and joins sends what it would have sent otherwise."""
    if not packet.topic:
        return
    head, tail = publish_parts(
        packet.topic.encode(),
        packet.payload,
        qos=packet.qos,
        retain=packet.retain,
        dup=packet.dup,
        version=version,
        properties=encode_properties(packet.properties),
    )
    between = packet.packet_id.to_bytes(2, "big") if packet.qos else b""
    assert head + between + tail == encode(packet, version)
    assert packet.qos or not tail


@given(properties=some_properties(PacketType.PUBLISH, V5))
def test_what_is_passed_on_is_what_concerns_the_receivers(properties: Properties) -> None:
    """Payload format, content type, response topic, correlation data and user properties arrive as they were sent."""
    between_peers = {Property.TOPIC_ALIAS, Property.MESSAGE_EXPIRY_INTERVAL}
    kept = {which: value for which, value in properties.once() if which not in between_peers}
    assert decode_properties(passed_on(properties), PacketType.PUBLISH) == Properties(kept, user=properties.user)


@given(properties=some_properties(PacketType.CONNACK, V5))
def test_properties_are_values(properties: Properties) -> None:
    """The order in which they were given does not matter; they hash, compare and pickle."""
    values = dict(reversed(properties.once()))
    again = Properties(values, user=properties.user, identifiers=properties.identifiers)
    assert (again, hash(again), bool(again)) == (properties, hash(properties), properties != NO_PROPERTIES)
    assert pickle.loads(pickle.dumps(properties)) == properties  # noqa: S301 # our own bytes


@given(value=st.integers(0, 268_435_455))
def test_variable_byte_integers_have_one_form(value: int) -> None:
    """Minimal when written, and nothing longer is read."""
    encoded = encode_varint(value)
    assert partial_varint_at(encoded, 0) == (value, len(encoded))
    longer = encoded[:-1] + bytes((encoded[-1] | 0x80, 0))
    with pytest.raises(ProtocolError):
        partial_varint_at(longer, 0)
