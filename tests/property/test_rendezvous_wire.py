"""The messages of the rendezvous: what is written is read again, and any bytes give a message or our error."""

from __future__ import annotations

import re

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.rendezvous_rig import address

from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.device import commands as d
from whimbrel.rendezvous.events import (
    MAX_CLASS,
    MAX_CLOCK_OFFSET,
    MAX_NUMBER,
    Address,
    EventId,
    GroupKey,
    Publication,
    Subscription,
    address_from,
)
from whimbrel.rendezvous.refusals import Refusal
from whimbrel.rendezvous.tokens import DeviceKeys
from whimbrel.rendezvous.wire import MAX_MESSAGE_BYTES, MESSAGES, MalformedMessageError, decode, encode

ids = st.builds(lambda kind, number: EventId(f"{kind}{number}"), st.sampled_from("PS"), st.integers(1, MAX_NUMBER))
addresses: st.SearchStrategy[Address] = st.binary(min_size=6, max_size=6).map(address_from)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
classes, offsets = st.integers(0, MAX_CLASS), st.integers(0, MAX_CLOCK_OFFSET)
groups = st.binary(min_size=32, max_size=32).map(GroupKey)
keys = st.lists(groups, max_size=3, unique=True).map(tuple)
signatures, tokens = st.binary(min_size=64, max_size=64), st.binary(max_size=512)
publications = st.builds(
    Publication, address=addresses, clock_offset=offsets, name=names, device_class=classes, keys=keys
)
subscriptions = st.builds(
    Subscription,
    address=st.none() | addresses,
    name=st.none() | names,
    device_class=st.none() | classes,
    keys=keys,
)
listed = st.builds(m.Listed, address=addresses, name=names, device_class=classes)
anything = st.one_of(
    st.builds(m.Publish, publications),
    st.builds(m.Subscribe, subscriptions),
    *(
        st.builds(made, ids)
        for made in (m.Unpublish, m.Unsubscribe, m.Renew, m.Noted, m.Removed, m.WakeUp, m.Expired, m.Answered)
    ),
    st.builds(m.Proof, group=groups, challenge=groups, device_key=groups, answer=signatures, token=st.none() | tokens),
    st.builds(m.Join, token=tokens, device_key=groups),
    st.builds(m.Accepted, ids, st.booleans()),
    st.builds(m.Refused, request=st.just("publish"), code=st.integers(0, 65_535), reason=names),
    st.builds(m.Matched, id=ids, address=addresses, clock_offset=offsets),
    st.builds(m.Matches, id=ids, publications=st.lists(listed, max_size=4).map(tuple), is_complete=st.booleans()),
    st.just(m.Sleep()),
    st.builds(m.Data, st.binary(max_size=200)),
    st.builds(m.Released, st.integers(1, 10**12)),
    st.builds(m.Ask, group=groups, challenge=groups, wants_token=st.booleans()),
    st.builds(m.GroupTokenIssued, tokens),
)
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.binary(max_size=70) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)
field_names = st.sampled_from(sorted({field.name for _, fields in MESSAGES.values() for field in fields}))


@given(anything)
def test_what_is_written_is_read_again(message: m.Message) -> None:
    """Both ends must mean the same value."""
    assert decode(encode(message)) == message


@given(st.binary(max_size=200))
@example(b"")
@example(b"\xbf" * 100_000)
@example(b"\x9b" + b"\xff" * 8)
def test_any_bytes_are_a_message_or_our_error(data: bytes) -> None:
    """What a stranger sends may never end the controller."""
    try:
        decode(data)
    except MalformedMessageError as error:
        assert error.refusal.code  # noqa: PT017 # most bytes raise it, a few are messages


@given(name=st.sampled_from(sorted(MESSAGES)), fields=st.dictionaries(field_names, trees, max_size=6))
def test_a_message_with_any_fields_is_a_message_or_our_error(name: str, fields: dict[str, object]) -> None:
    """Well-formed CBOR with wrong values is the likelier attack."""
    try:
        message = decode(cbor2.dumps({"message": name, **fields}))
    except MalformedMessageError:
        return
    assert decode(encode(message)) == message


@given(anything, st.data())
def test_a_cut_message_is_refused(message: m.Message, data: st.DataObject) -> None:
    """Half a message must not be taken for a whole one."""
    whole = encode(message)
    with pytest.raises(MalformedMessageError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_a_message_that_is_too_long_is_refused_before_it_is_parsed() -> None:
    """A parser that is fed gigabytes is an attack on memory."""
    with pytest.raises(MalformedMessageError, match=str(MAX_MESSAGE_BYTES)):
        decode(b"\x00" * (MAX_MESSAGE_BYTES + 1))


def test_a_publication_that_is_restricted_and_is_not_is_refused_with_its_code() -> None:
    """NULL beside keys could be read either way, and one of them would tell strangers."""
    fields = {"address": bytes(6), "clock_offset": 0, "name": "", "class": 0, "keys": [None, bytes(32)]}
    with pytest.raises(MalformedMessageError) as caught:
        decode(cbor2.dumps({"message": "publish", **fields}))
    assert caught.value.refusal is Refusal.MIXED_KEYS


def test_null_among_the_keys_of_a_subscription_says_nothing_new() -> None:
    """Table 4.2 appends NULL to every subscription's list anyway."""
    with_null = decode(cbor2.dumps({"message": "subscribe", "keys": [None, bytes(32)], "clock_offset": 7}))
    assert with_null == m.Subscribe(Subscription(keys=(GroupKey(bytes(32)),)))


@given(anything)
def test_no_message_shows_a_secret(message: m.Message) -> None:
    """Logs and errors print messages; keys, tokens, challenges and answers must not be among what they print."""
    for field in ("group", "device_key", "token", "answer", "challenge", "keys"):
        assert not re.search(rf"[(, ]{field}=", repr(message))


@given(st.lists(st.one_of(anything, st.sampled_from(["parked", "woken", "lost", "joined", "late"])), max_size=30))
def test_a_device_survives_any_messages_in_any_order(happened: list[m.Message | str]) -> None:
    """A device trusts no controller with its life: words out of place change nothing for the worse."""
    device = Device(address=Address("00:00:00:00:00:0B"), name="Bob", keys=DeviceKeys(b"k" * 32))
    device.publish(is_lasting=True)
    device.subscribe(Subscription(name="Alice"))
    inputs: dict[str, d.DeviceInput] = {
        "parked": d.WasParked(),
        "woken": d.WasWoken(),
        "lost": d.LostController(),
        "late": d.PageEnded(Address("00:00:00:00:00:0A"), is_connected=False),
    }
    for now, each in enumerate(happened):
        if each == "joined":
            device.receive(d.JoinedController(address(now % 2 + 1), is_caller=now % 3 == 0), now=now)
        else:
            device.receive(inputs[each] if isinstance(each, str) else d.Heard(encode(each)), now=now)
        device.timer(now=now + 10_000_000)
        assert len(device.wishes.all) <= 3  # its own two, and what was published for it
