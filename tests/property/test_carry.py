"""Carriers on random meetings: copies are conserved, memory is bounded; and messages survive their frames."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.carry.hello import (
    MAX_BODY_BYTES,
    MAX_COPIES,
    MAX_PLACES,
    MAX_PUBLISHER,
    MAX_TOPIC,
    NONCE_BYTES,
    Acknowledgement,
    Answer,
    Entry,
    Hello,
    Message,
    Refusal,
    Request,
    Sample,
    SampleId,
    Subscriptions,
    TimeAnswer,
    TimeQuestion,
    TopicsQuestion,
)
from whimbrel.carry.neighbours.assembly import MAX_BEGUN, AnswerAssembly
from whimbrel.carry.node import Carrier, Drop, Loss, Send
from whimbrel.carry.wire import (
    LINK,
    RADIO,
    AnswerChunk,
    MalformedMessageError,
    Part,
    Profile,
    decode,
    encode,
    signed_bytes,
)

addresses = st.integers(0, MAX_PUBLISHER)
profiles = st.sampled_from([LINK, RADIO])
topics = st.integers(0, MAX_TOPIC)
times = st.integers(-(2**63), 2**63 - 1)
ids = st.builds(SampleId, times, addresses)
samples = st.builds(
    lambda topic, name, **rest: Sample(topic=topic, published_at=name[0], publisher=name[1], **rest),
    topics,
    ids,
    body=st.one_of(st.binary(max_size=120), st.binary(min_size=MAX_BODY_BYTES, max_size=MAX_BODY_BYTES)),
    expires_at=st.none() | times,
    signature=st.none() | st.binary(min_size=64, max_size=64),
    is_unsynchronised=st.booleans(),
)
requests = st.builds(
    lambda topic, name, flags: Request(
        topic=topic,
        id=name,
        is_subscriber=bool(flags & 1),
        wants_copies=bool(flags & 2),
        wants_proof=bool(flags & 4),
    ),
    topics,
    ids,
    st.integers(1, 7),
)
hellos = st.builds(Hello, st.lists(st.builds(Entry, topics, ids, st.booleans()), max_size=12).map(tuple))
subscriptions = st.builds(
    Subscriptions, st.sets(topics, max_size=60).map(sorted).map(tuple), st.integers(0, MAX_PLACES)
)
time_answers = st.builds(
    TimeAnswer,
    st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(min_size=64, max_size=64),
)
answers = st.builds(Answer, samples, st.integers(0, MAX_COPIES))
messages: st.SearchStrategy[Message | Part] = st.one_of(
    hellos,
    requests,
    answers,
    st.builds(Refusal, topics, ids),
    st.builds(Acknowledgement, topics, ids, st.integers(1, MAX_COPIES)),
    st.just(TopicsQuestion()),
    subscriptions,
    time_answers,
    time_answers.map(lambda each: TimeQuestion(each.nonce)),
)


def heard(parts: list[Part]) -> Message | Part:
    """Return what a node has heard when all *parts* of one message are there."""
    match parts[0]:
        case Hello():
            hello_parts = [part for part in parts if isinstance(part, Hello)]
            assert [part.is_first for part in hello_parts] == [True, *([False] * (len(parts) - 1))]
            return Hello(tuple(entry for part in hello_parts for entry in part.entries))
        case Subscriptions():
            lists = [part for part in parts if isinstance(part, Subscriptions)]
            assert [part.is_first for part in lists] == [True, *([False] * (len(parts) - 1))]
            assert len({part.places for part in lists}) == 1
            return Subscriptions(tuple(topic for part in lists for topic in part.topics), lists[0].places)
        case AnswerChunk():
            assembly = AnswerAssembly()
            [*before, last] = [assembly.add(7, part) for part in parts if isinstance(part, AnswerChunk)]
            assert not any(before)
            assert last is not None
            assert not len(assembly)
            return last
        case part:
            return part


@given(sender=addresses, message=messages, profile=profiles, order=st.randoms())
def test_a_message_survives_its_frames(sender: int, message: Message | Part, profile: Profile, order: Random) -> None:
    """What one carrier says the other hears, whatever the link carries; chunks of an answer may come in any order."""
    frames = encode(sender, message, profile=profile)
    assert max(map(len, frames)) <= profile.max_bytes
    found = list(map(decode, frames))
    assert {address for address, _ in found} == {sender}
    if isinstance(message, Answer):
        order.shuffle(found)
    assert heard([part for _, part in found]) == message


@given(sender=addresses, message=messages, profile=profiles)
def test_no_proper_prefix_of_a_frame_is_one(sender: int, message: Message | Part, profile: Profile) -> None:
    """A frame that was cut says nothing, rather than less than was meant."""
    frame = encode(sender, message, profile=profile)[-1]
    for end in range(len(frame)):
        with pytest.raises(MalformedMessageError) as raised:
            decode(frame[:end])
        assert raised.value.offset <= end


@given(data=st.binary(max_size=120) | st.binary(max_size=80).map(lambda rest: bytes([2, 1 + len(rest) % 9]) + rest))
def test_any_bytes_are_a_frame_or_our_error(data: bytes) -> None:
    """A stranger's radio may send anything; and what is a frame has one encoding."""
    try:
        sender, part = decode(data)
    except MalformedMessageError:
        return
    assert encode(sender, part) == [data]


@given(
    chunks=st.lists(
        st.tuples(
            st.integers(1, 40), st.integers(1, 12), st.integers(0, 11), st.binary(min_size=1, max_size=12), topics
        ),
        max_size=60,
    )
)
def test_chunks_that_a_stranger_makes_up_are_answers_or_our_error(
    chunks: list[tuple[int, int, int, bytes, int]],
) -> None:
    """They may overlap, contradict each other and be no sample; what is kept of them has a bound."""
    assembly = AnswerAssembly()
    for sender, size, offset, chunk, topic in chunks:
        part = AnswerChunk(
            topic=topic % 2,
            id=SampleId(1, 1),
            copies=1,
            record_bytes=size,
            offset=min(offset, size - 1),
            chunk=chunk[: size - min(offset, size - 1)],
        )
        try:
            found = assembly.add(sender, part)
        except MalformedMessageError:
            continue
        assert found is None or found.sample.topic == topic % 2
        assert len(assembly) <= MAX_BEGUN


@given(sample=samples, other=samples)
def test_a_signature_covers_all_of_a_sample_but_itself(sample: Sample, other: Sample) -> None:
    """Else a sample could be changed on its way; a signature over two samples would sign both."""
    assert signed_bytes(sample) == signed_bytes(replace(sample, signature=None))
    one, two = replace(sample, signature=None), replace(other, signature=None)
    assert (signed_bytes(one) == signed_bytes(two)) == (one == two)


def test_the_paper_s_memory_fits_a_radio() -> None:
    """Ten samples are three frames of at most 88 bytes, and a sample of 100 bytes is two; on a link each is one."""
    hello = Hello(tuple(Entry(topic, SampleId(45353, 9), has_copies=True) for topic in range(10)))
    answer = Answer(Sample(topic=0x00F1, published_at=45353, publisher=9, body=bytes(100)), 4)
    assert [len(frame) for frame in encode(1, hello, profile=RADIO)] == [88, 88, 50]
    assert [len(frame) for frame in encode(1, answer, profile=RADIO)] == [88, 85]
    assert [len(frame) for each in (hello, answer) for frame in encode(1, each)] == [202, 137]


NODES, TOPICS, PLACES = 6, 4, 2
publications = st.tuples(st.just("publish"), st.integers(0, NODES - 1), st.integers(0, TOPICS - 1))
meetings = st.tuples(st.just("meet"), st.integers(0, NODES - 1), st.integers(0, NODES - 1))
losses = st.tuples(st.just("lose"), st.integers(0, NODES - 1), st.integers(0, NODES - 1))


@given(
    events=st.lists(st.one_of(publications, meetings, losses), max_size=60),
    copies=st.integers(1, 9),
    shows=st.booleans(),
)
def test_copies_and_memory_keep_their_bounds(events: list[tuple[str, int, int]], copies: int, *, shows: bool) -> None:
    """Copies never exceed L, memory never its places, and a newer sample never gives way to an older of its topic."""
    carriers = [
        Carrier(number, places=PLACES, subscriptions=[number % TOPICS], shows_retrieved=shows)
        for number in range(NODES)
    ]
    lost: Counter[tuple[int, SampleId]] = Counter()
    published: list[Sample] = []
    for now, (kind, one, other) in enumerate(events):
        steps = []
        newest = {topic: max((s.id for s in published if s.topic == topic), default=None) for topic in range(TOPICS)}
        if kind == "publish":
            sample = Sample(topic=other, published_at=now, publisher=one)
            published.append(sample)
            steps = carriers[one].publish(sample, copies=copies)
        elif one != other:
            for request in carriers[other].receive(one, carriers[one].hello()):
                assert isinstance(request, Send)
                [answer] = carriers[one].receive(other, request.message)
                assert isinstance(answer, Send)
                if kind == "lose":
                    assert isinstance(request.message, Request)
                    carriers[other].forget(request.message.topic, request.message.id)
                    if isinstance(answer.message, Answer):
                        lost[answer.message.sample.topic, answer.message.sample.id] += answer.message.copies
                else:
                    steps += carriers[other].receive(one, answer.message)
        for step in steps:
            if isinstance(step, Drop):
                lost[step.sample.topic, step.sample.id] += step.copies
                if step.loss is Loss.REPLACED and kind == "meet":
                    assert step.sample.id != newest[step.sample.topic]
        alive = lost.copy()
        for carrier in carriers:
            assert len(carrier.stored) <= PLACES
            held = [copy for copy in carrier.stored if not copy.is_removable]
            assert len({copy.sample.topic for copy in held}) == len(held)  # one live sample of a topic
            for copy in carrier.stored:
                alive[copy.sample.topic, copy.sample.id] += copy.copies
        assert all(alive[sample.topic, sample.id] == copies for sample in published)
