"""Control data in segments: the newest complete version that the campus signed is in force, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whimbrel.carry.control.keys import KeyRing
from whimbrel.carry.control.segments import MAX_SEGMENTS, ControlData, ControlReceiver, TopicPlan, segments_of
from whimbrel.carry.hello import Answer, Sample
from whimbrel.carry.neighbours.assembly import AnswerAssembly
from whimbrel.carry.signatures import SampleSigner
from whimbrel.carry.wire import RADIO, AnswerChunk, decode, encode
from whimbrel.errors import InvalidValueError

CAMPUS, STRANGER = SampleSigner(b"c" * 32), SampleSigner(b"s" * 32)
names = st.text(st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=60)
topics = st.builds(
    TopicPlan,
    topic=st.integers(1, 0xFFFF),
    name=names,
    subscribers=st.integers(0, 2**32 - 1),
    copies=st.integers(1, 0xFFFF),
)
control_data = st.builds(
    lambda plans, **rest: ControlData(topics=tuple(sorted(plans, key=lambda each: each.topic)), **rest),
    st.lists(topics, max_size=30, unique_by=lambda each: each.topic),
    version=st.integers(-(2**63), 2**63 - 1),
    users=st.integers(0, 2**32 - 1),
    places=st.integers(0, 2**32 - 1),
)


def of_topics(count: int, *, version: int = 5, users: int = 3) -> ControlData:
    """Return control data with so many topics."""
    plans = [TopicPlan(topic=each, name=f"topic {each:05}", subscribers=each, copies=1) for each in range(1, count + 1)]
    return ControlData(version=version, users=users, places=10 * users, topics=tuple(plans))


@settings(max_examples=40)
@given(data=control_data, random=st.randoms())
def test_control_data_survives_its_segments_in_any_order(data: ControlData, random: Random) -> None:
    """Segments come from whoever carries them, and repeat."""
    samples = segments_of(data, CAMPUS)
    order = [*samples, *samples[:-1]]
    random.shuffle(order)
    receiver = ControlReceiver(KeyRing([CAMPUS.public]))
    found = [each for each in map(partial(receiver.receive, now=0), order) if each is not None]
    assert found == [data] == [receiver.in_force]
    assert receiver.kept == 0


def test_a_segment_crosses_a_radio_with_its_signature() -> None:
    """It travels as all samples do."""
    [sample] = segments_of(of_topics(20), CAMPUS)
    assembly = AnswerAssembly()
    parts = [decode(frame)[1] for frame in encode(1, Answer(sample, 1), profile=RADIO)]
    *_, answer = [assembly.add(1, part) for part in parts if isinstance(part, AnswerChunk)]
    assert answer is not None
    assert ControlReceiver(KeyRing([CAMPUS.public])).receive(answer.sample, now=0) == of_topics(20)


def test_an_incomplete_version_leaves_the_last_in_force() -> None:
    """A node never works with half of a plan."""
    receiver = ControlReceiver(KeyRing([CAMPUS.public]))
    old, new = of_topics(3, version=5), of_topics(200, version=6)
    [sample] = segments_of(old, CAMPUS)
    assert receiver.receive(sample, now=0) == old
    *before, last = segments_of(new, CAMPUS)
    assert len(before) >= 2
    assert not any(map(partial(receiver.receive, now=0), before))
    assert receiver.in_force == old
    assert receiver.receive(last, now=0) == new


def test_forged_and_older_control_data_is_ignored_and_counted() -> None:
    """No key, another key, a changed body, a replayed version: the plan stays."""
    receiver = ControlReceiver(KeyRing([CAMPUS.public, b"\xff" * 32]))
    [sample] = segments_of(of_topics(3, version=5), CAMPUS)
    [replayed] = segments_of(of_topics(2, version=4), CAMPUS)
    [forged] = segments_of(of_topics(4, version=6), STRANGER)
    receiver.receive(sample, now=0)
    for each in (forged, replace(forged, signature=None), replace(sample, published_at=6), replayed, sample):
        assert receiver.receive(each, now=0) is None
    assert receiver.in_force == of_topics(3, version=5)
    assert receiver.counts == {"forged": 3, "older": 2}


def test_the_key_of_a_campus_can_change() -> None:
    """A node that knows both takes what either signed."""
    receiver = ControlReceiver(KeyRing([CAMPUS.public, STRANGER.public]))
    for version, signer in ((1, CAMPUS), (2, STRANGER)):
        [sample] = segments_of(of_topics(1, version=version), signer)
        assert receiver.receive(sample, now=0) == of_topics(1, version=version)


@given(body=st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: bytes([1]) + bytes(8) + rest))
@settings(max_examples=60)
def test_any_signed_body_is_control_data_or_counted(body: bytes) -> None:
    """An administrative server of another version must not end a node."""
    receiver = ControlReceiver(KeyRing([CAMPUS.public]))
    found = receiver.receive(CAMPUS.sign(Sample(topic=0, published_at=1, publisher=0, body=body)), now=0)
    assert (found is not None) + receiver.counts["malformed"] + receiver.kept == 1


def test_segments_that_never_become_complete_have_a_bound() -> None:
    """A way-server that restarts between segments, again and again, fills no memory."""
    receiver = ControlReceiver(KeyRing([CAMPUS.public]))
    for version in range(50):
        receiver.receive(segments_of(of_topics(60, version=version), CAMPUS)[0], now=0)
    assert receiver.kept == 4


def test_more_topics_than_fit_are_refused() -> None:
    """The administrator hears it, and not the nodes."""
    with pytest.raises(InvalidValueError, match=f"at most {MAX_SEGMENTS}: have fewer topics"):
        segments_of(of_topics(4_000), CAMPUS)
