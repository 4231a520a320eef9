"""Carriers on random meetings: copies are conserved, memory is bounded; and messages survive their bytes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from whimbrel.carry.hello import (
    MAX_COPIES,
    MAX_PUBLISHER,
    MAX_TOPIC,
    Answer,
    Entry,
    Hello,
    MalformedMessageError,
    Message,
    Refusal,
    Request,
    Sample,
    SampleId,
    decode,
    encode,
)
from whimbrel.carry.node import Carrier, Drop, Loss, Send

topics = st.integers(0, MAX_TOPIC)
ids = st.builds(SampleId, st.integers(-(2**63), 2**63 - 1), st.integers(0, MAX_PUBLISHER))
samples = st.builds(
    lambda topic, name, body: Sample(topic=topic, published_at=name[0], publisher=name[1], body=body),
    topics,
    ids,
    st.binary(max_size=120),
)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Hello, st.lists(st.builds(Entry, topics, ids, st.booleans()), max_size=12).map(tuple)),
    st.builds(
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
    ),
    st.builds(Answer, samples, st.integers(0, MAX_COPIES)),
    st.builds(Refusal, topics, ids),
)


@given(message=messages)
def test_a_message_survives_its_bytes(message: Message) -> None:
    """What one carrier says the other hears; every proper prefix is no message."""
    data = encode(message)
    assert decode(data) == message
    for end in range(len(data)):
        try:
            decode(data[:end])
        except MalformedMessageError as error:
            assert error.offset <= end  # noqa: PT017 # any error of ours will do; none else may come
        else:
            raise AssertionError(end)


@given(data=st.binary(max_size=80))
def test_any_bytes_are_a_message_or_our_error(data: bytes) -> None:
    """A stranger's radio may send anything; and what is a message has one encoding."""
    try:
        message = decode(data)
    except MalformedMessageError:
        return
    assert encode(message) == data


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
