"""The frames of nearby groups: what is written is read again, and any bytes give a frame or our error."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from whimbrel.errors import InvalidValueError
from whimbrel.model.attributes import Int64, checked
from whimbrel.model.keys import KeyHashes, Scheme
from whimbrel.model.place import MAX_RADIUS_M, Area, Place
from whimbrel.nearby.frames.signatures import Signer, has_valid_signature, keys_proven
from whimbrel.nearby.frames.values import Beacon, Event, Flooded, Frame, Join, Objection, Request, ViewDigest
from whimbrel.nearby.frames.wire import FRAMES, MAX_DURATION_US, MalformedFrameError, decode, encode

nodes = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
subjects = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
numbers = st.integers(0, 2**63 - 1)
durations = st.integers(0, MAX_DURATION_US)
hashes = st.integers(0, 2**64 - 1)
places = st.builds(Place, st.floats(-90, 90), st.floats(-180, 180))
areas = st.builds(Area, places, st.floats(0, MAX_RADIUS_M))
scalars = st.one_of(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.binary(max_size=20),
)
attributes = st.dictionaries(subjects, scalars, max_size=5).map(checked)
flooded = {
    "origin": nodes,
    "seq": numbers,
    "sender": nodes,
    "hops": st.integers(0, 16),
    "max_hops": st.integers(16, 32),
    "subject": subjects,
    "area": areas,
    "epoch": numbers,
}
beacons = st.builds(
    Beacon,
    **flooded,
    place=places,
    moves=st.booleans(),
    lifetime_us=durations,
    max_remaining_us=durations,
    latest=numbers,
    latest_us=durations,
    cell_m=numbers,
    fingerprint=st.binary(min_size=8, max_size=8),
    view=st.builds(ViewDigest, numbers, hashes),
    members=st.none() | st.lists(hashes, max_size=5).map(tuple),
)
joins = st.builds(
    Join,
    **flooded,
    producer=nodes,
    accounted=numbers,
    expired=numbers,
    missed=numbers,
    wants_view=st.booleans(),
    is_leaving=st.booleans(),
)
events = st.builds(
    Event,
    **flooded,
    place=places,
    number=st.integers(1, 2**63 - 1),
    deadline_us=st.just(MAX_DURATION_US),
    remaining_us=durations,
    attributes=attributes,
)
requests = st.builds(
    Request,
    sender=nodes,
    to=nodes,
    area=areas,
    producer=nodes,
    subject=subjects,
    epoch=numbers,
    numbers=st.lists(numbers, max_size=5).map(tuple),
)
objections = st.builds(Objection, sender=nodes, to=nodes, area=areas, subject=subjects, clock_us=numbers, epoch=numbers)
frames = st.one_of(beacons, joins, events, requests, objections)
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=70),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=2), children, max_size=6),
    max_leaves=12,
)
SIGNER, STRANGER = Signer(b"a" * 32), Signer(b"b" * 32)


@given(frames)
def test_what_is_written_is_read_again(frame: Frame) -> None:
    """Types of attributes included: an int64 stays one."""
    again = decode(encode(frame))
    assert again == frame
    if isinstance(frame, Event) and isinstance(again, Event):
        assert [type(value) for value in again.attributes.values()] == [type(v) for v in frame.attributes.values()]


@given(st.binary(max_size=200))
@example(b"")
@example(cbor2.dumps({"": "event"}))
def test_any_bytes_give_a_frame_or_our_error(data: bytes) -> None:
    """The air is full of strangers."""
    with suppress(MalformedFrameError):
        decode(data)


@given(st.sampled_from(sorted(FRAMES)), st.dictionaries(st.text(max_size=1), trees, max_size=20))
def test_any_map_gives_a_frame_or_our_error(kind: str, tree: dict[str, object]) -> None:
    """Names of fields with anything in them."""
    with suppress(MalformedFrameError):
        decode(cbor2.dumps({**tree, "": kind}))


@given(frames, st.data())
def test_a_changed_field_gives_a_frame_or_our_error(frame: Frame, data: st.DataObject) -> None:
    """One wrong value in an otherwise good frame reaches each reader."""
    tree = cbor2.loads(encode(frame))
    tree[data.draw(st.sampled_from(sorted(tree)))] = data.draw(trees)
    with suppress(MalformedFrameError):
        decode(cbor2.dumps(tree))


@given(frames)
def test_a_frame_of_another_format_is_none_of_ours(frame: Frame) -> None:
    """Format 1 had no number: its nodes and ours do not half understand each other."""
    for version in ({}, {"#": 1}, {"#": 3}):
        tree = {name: value for name, value in cbor2.loads(encode(frame)).items() if name != "#"}
        with pytest.raises(MalformedFrameError, match="format of a frame"):
            decode(cbor2.dumps({**tree, **version}))


@given(joins | events | beacons)
def test_no_frame_has_more_hops_than_its_origin_allowed(frame: Flooded) -> None:
    """A relay that raises them is found out without a signature, too."""
    with pytest.raises(MalformedFrameError, match="hops of a frame"):
        decode(encode(replace(frame, hops=frame.max_hops, max_hops=frame.max_hops - 1)))


@given(joins)
def test_a_join_says_nothing_of_its_members_place(join: Join) -> None:
    """The one area in it is the group's, as the producer's beacon had it (T14; the decision on places)."""
    assert set(cbor2.loads(encode(join))) - {""} == set("#oqshtaegpnxyvl")


def test_a_frame_that_is_too_long_is_not_read() -> None:
    """Size comes first."""
    with pytest.raises(MalformedFrameError, match="allowed are 1200"):
        decode(b"\xa0" * 1_201, max_bytes=1_200)


@given(beacons | joins | events, st.integers(0, 16), nodes, durations, st.none() | numbers)
def test_a_signature_holds_on_the_way_and_nowhere_else(
    frame: Flooded, hops: int, sender: str, left_us: int, issued_at: int | None
) -> None:
    """Relays change hops, sender and the remaining time; whoever changes more is found out."""
    signed: Flooded = SIGNER.sign(frame, issued_at=issued_at)
    passed_on = replace(signed, hops=hops, sender=sender)
    if isinstance(passed_on, Event):
        passed_on = replace(passed_on, remaining_us=left_us)
    read = decode(encode(passed_on))
    assert not isinstance(read, Objection)
    assert has_valid_signature(read)
    moved = Area(Place(1.25, 1.25), 77.0)
    for changed in (
        replace(passed_on, area=moved),
        replace(passed_on, seq=frame.seq ^ 1),
        replace(passed_on, max_hops=frame.max_hops ^ 1),
        replace(passed_on, issued_at=(issued_at or 0) ^ 1),
        replace(passed_on, key=STRANGER.public),
        replace(passed_on, key=b"\0" * 32),
    ):
        assert not has_valid_signature(changed)
    assert not has_valid_signature(frame)


@given(events)
def test_the_key_of_a_signature_is_a_producers_key(event: Event) -> None:
    """So a subscription with keys of match/ decides whom it believes."""
    proven = keys_proven(SIGNER.sign(event, issued_at=None))
    assert proven == KeyHashes.of_private(Scheme.PRODUCER, SIGNER.public)
    assert not len(keys_proven(event))


def test_a_seed_has_its_size() -> None:
    """A short secret is a mistake."""
    with pytest.raises(InvalidValueError):
        Signer(b"short")
