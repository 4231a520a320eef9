"""A participant: clocks, requests without answers, control data and keys, and what a hostile neighbour may cost."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.campus_rig import CAMPUS, NOON, Campus, S, a_participant, delivered, notes_of, plan_of

from whimbrel.carry.control.clock import OWN_TOLERANCE_US, answer_time
from whimbrel.carry.control.keys import MAX_STATEMENTS, KeyRing, key_statement
from whimbrel.carry.control.segments import ControlData, segments_of
from whimbrel.carry.control.topics import TopicNames, hashed_topic
from whimbrel.carry.hello import (
    Acknowledgement,
    Answer,
    Entry,
    Hello,
    Refusal,
    Request,
    Sample,
    SampleId,
    Subscriptions,
    TimeQuestion,
    TopicsQuestion,
)
from whimbrel.carry.memory import Memory
from whimbrel.carry.node import Drop, Loss, Send, StoredCopy, StoreSample
from whimbrel.carry.outputs import Greet, NoteKind, Output, Tell
from whimbrel.carry.participant import NotSynchronisedError, Participant
from whimbrel.carry.signatures import SampleSigner
from whimbrel.carry.wire import AnswerChunk, Part, decode, encode
from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import INT64_MAX

STRANGER, NEXT = SampleSigner(b"s" * 32), SampleSigner(b"n" * 32)


def chunk_of(sample: Sample, copies: int = 0) -> AnswerChunk:
    """Return the frame that brings *sample*."""
    [frame] = encode(0, Answer(sample, copies))
    part = decode(frame)[1]
    assert isinstance(part, AnswerChunk)
    return part


def a_sample(topic: int, at: int, **rest: Any) -> Sample:
    """Return a sample of the node 2."""
    return replace(Sample(topic=topic, published_at=at, publisher=2, body=b"b"), **rest)


def hello_of(*samples: Sample, has_copies: bool = True) -> Hello:
    """Return the Hello of a node with *samples*."""
    return Hello(tuple(sorted(Entry(each.topic, each.id, has_copies) for each in samples)))


def requests_of(outputs: Iterable[Output]) -> list[Request]:
    """Return the requests among *outputs*."""
    return [each.message for each in outputs if isinstance(each, Send) and isinstance(each.message, Request)]


# -- clocks ---------------------------------------------------------------------------------


def test_two_nodes_without_a_way_server_exchange_a_marked_sample() -> None:
    """Two laptops and no gate: own clocks, ids from the hash of the name, L from the settings."""
    campus = Campus(a_participant(1), a_participant(2, subscriptions=["lunch"]))
    campus.air.meet(1, 2)
    sample = campus.publish(1, "lunch", b"pasta")
    assert sample.is_unsynchronised
    assert sample.topic == hashed_topic("lunch")
    campus.run(2)
    assert campus.taken[2] == [b"pasta"]
    assert [copy.copies for each in (1, 2) for copy in campus.daemons[each].participant.carrier.stored] == [4, 4]


def test_a_sample_from_the_future_is_refused_once_and_shown_with_the_difference() -> None:
    """One line of log for a neighbour whose clock is wrong, and its difference in the status."""
    node = a_participant(1, subscriptions=["lunch"])
    late = a_sample(hashed_topic("lunch"), NOON + OWN_TOLERANCE_US + 5 * S)
    later = a_sample(hashed_topic("lunch"), NOON + 2 * OWN_TOLERANCE_US)
    fine = a_sample(7, NOON + OWN_TOLERANCE_US)
    outputs = node.receive(2, hello_of(late, fine), own=NOON)
    [note] = notes_of(outputs)
    assert (note.kind, note.neighbour, note.difference_us) == (NoteKind.REFUSED, 2, OWN_TOLERANCE_US + 5 * S)
    assert [each.id for each in requests_of(outputs)] == [fine.id]
    assert not notes_of(node.receive(2, hello_of(late), own=NOON + S))
    assert node.refusals[2][0] == OWN_TOLERANCE_US + 4 * S
    assert len(notes_of(node.receive(2, hello_of(later), own=NOON + 600 * S))) == 1


def test_with_a_way_server_a_sample_may_be_a_minute_ahead() -> None:
    """Sixty seconds once the clock is set, a day before."""
    node = a_participant(1, subscriptions=["lunch"], keys=[CAMPUS.public])
    ahead = a_sample(hashed_topic("lunch"), NOON + 61 * S)
    assert node.clock.ahead_us(ahead.published_at, own=NOON) is None
    node.clock.set(NOON, own=NOON)
    assert node.clock.ahead_us(ahead.published_at, own=NOON) == 61 * S
    assert node.clock.ahead_us(NOON + 60 * S, own=NOON) is None


def test_a_node_of_a_campus_publishes_once_a_way_server_has_set_its_clock() -> None:
    """Its clock may be that of 1970; the way-server's answer sets it, and is answered with its topics."""
    node = a_participant(1, subscriptions=["lunch"], keys=[CAMPUS.public])
    with pytest.raises(NotSynchronisedError, match="once it has met a way-server"):
        node.publish("lunch", b"x", own=0)
    [asked] = node.receive(9, TopicsQuestion(), own=0)
    assert isinstance(asked, Tell)
    assert isinstance(asked.message, TimeQuestion)
    answer = answer_time(CAMPUS, 1, asked.message, now=NOON)
    _note, told = node.receive(9, answer, own=S)
    assert told == Tell(9, Subscriptions((hashed_topic("lunch"),), 10))
    assert node.clock.now(S) == NOON + S // 2, "half of the way there and back"
    [stored] = node.publish("lunch", b"x", own=S)
    assert isinstance(stored, StoreSample)
    assert not stored.sample.is_unsynchronised
    assert stored.sample.published_at == NOON + S // 2


def test_the_time_counts_only_from_who_was_asked_and_signed_and_once() -> None:
    """A forged, a replayed and a late answer, one for another node and one of a neighbour change nothing."""
    node = a_participant(1, keys=[CAMPUS.public])
    [first] = node.receive(9, TopicsQuestion(), own=0)
    assert isinstance(first, Tell)
    question = first.message
    assert isinstance(question, TimeQuestion)
    wrong = [
        (9, answer_time(STRANGER, 1, question, now=NOON), S),
        (9, answer_time(CAMPUS, 3, question, now=NOON), S),
        (8, answer_time(CAMPUS, 1, question, now=NOON), S),
        (9, answer_time(CAMPUS, 1, TimeQuestion(b"replay"), now=NOON), S),
        (9, answer_time(CAMPUS, 1, question, now=NOON), 3 * S),
    ]
    assert [node.receive(sender, answer, own=own) for sender, answer, own in wrong] == [[]] * 5
    assert not node.clock.is_synchronised
    good = answer_time(CAMPUS, 1, question, now=NOON)
    assert node.receive(9, good, own=S)
    assert node.receive(9, good, own=2 * S) == []
    assert node.counts["forged times"] == 6


def test_few_wrong_answers_to_a_question_about_the_time_are_checked() -> None:
    """A check of a signature costs most of all; the next question is answered as ever."""
    node = a_participant(1, keys=[CAMPUS.public])
    for at, wrong, counts in ((0, 3, True), (20 * S, 4, False), (40 * S, 0, True)):
        [told] = node.receive(9, TopicsQuestion(), own=at)
        assert isinstance(told, Tell)
        question = told.message
        assert isinstance(question, TimeQuestion)
        for _ in range(wrong):
            assert node.receive(9, answer_time(STRANGER, 1, question, now=NOON), own=at + S) == []
        assert bool(node.receive(9, answer_time(CAMPUS, 1, question, now=NOON), own=at + S)) is counts


def test_a_node_without_keys_tells_nobody_its_topics() -> None:
    """Who asks is no way-server of any campus it knows."""
    node = a_participant(1, subscriptions=["lunch"])
    assert node.receive(9, TopicsQuestion(), own=NOON) == []


# -- requests and answers ---------------------------------------------------------------------------------


def test_a_neighbour_that_announces_and_never_gives_is_not_believed_for_long() -> None:
    """After three requests in vain its announcements do not count for that topic, and an honest one is asked."""
    node = a_participant(1, subscriptions=["lunch"])
    topic, own = hashed_topic("lunch"), NOON
    asked = 0
    for _ in range(20):
        own += S
        asked += len(requests_of(node.receive(66, hello_of(a_sample(topic, own)), own=own)))
        node.timer(own=own)
    assert asked == 5, "three, and those that were made before the third had failed"
    assert node.counts["unanswered"] == 5
    honest = a_sample(topic, NOON)
    assert [each.id for each in requests_of(node.receive(2, hello_of(honest), own=own))] == [honest.id]
    assert delivered(node.receive(2, chunk_of(honest), own=own)) == [honest]


def test_a_neighbour_that_failed_is_tried_again_once_in_a_while() -> None:
    """Its radio was in the way, and it is the only one that has the sample: it must not be shut out for ever."""
    node = a_participant(1, subscriptions=["lunch"])
    topic, own = hashed_topic("lunch"), NOON
    for _ in range(20):
        own += S
        node.receive(2, hello_of(a_sample(topic, NOON)), own=own)
        node.timer(own=own)
    assert not requests_of(node.receive(2, hello_of(a_sample(topic, NOON)), own=own))
    node.timer(own=own + 60 * S)
    honest = a_sample(topic, NOON)
    assert requests_of(node.receive(2, hello_of(honest), own=own + 60 * S))
    assert delivered(node.receive(2, chunk_of(honest), own=own + 60 * S)) == [honest]


def test_a_new_neighbour_is_greeted_before_it_is_asked_and_few_greetings_are_said() -> None:
    """It could not answer one that it does not know; and a crowd that meets must not shout."""
    node = a_participant(1, subscriptions=[f"t{each}" for each in range(9)])
    said = [node.receive(10 + each, hello_of(a_sample(hashed_topic(f"t{each}"), NOON)), own=NOON) for each in range(9)]
    assert [[type(output) for output in outputs] for outputs in said] == [[Greet, Send], [Greet, Send], *[[]] * 7]
    node.hello(own=NOON + 1)
    again = node.receive(18, hello_of(a_sample(hashed_topic("t8"), NOON)), own=NOON + 2)
    assert [type(output) for output in again] == [Send]


def test_an_answer_counts_only_from_who_was_asked() -> None:
    """Nothing can be pushed, and nobody can answer for another."""
    node = a_participant(1, subscriptions=["lunch"])
    sample = a_sample(hashed_topic("lunch"), NOON)
    assert node.receive(2, chunk_of(sample), own=NOON) == []
    node.receive(2, hello_of(sample), own=NOON)
    assert node.receive(3, chunk_of(sample), own=NOON) == []
    assert node.counts["not asked for"] == 2
    assert delivered(node.receive(2, chunk_of(sample), own=NOON)) == [sample]


def test_an_answer_brings_at_most_half_of_the_copies() -> None:
    """A neighbour that grants 65,535 copies would have its sample everywhere."""
    node = a_participant(1)
    sample = a_sample(7, NOON)
    node.receive(2, hello_of(sample), own=NOON)
    node.receive(2, chunk_of(sample, copies=65_535), own=NOON)
    assert [copy.copies for copy in node.carrier.stored] == [4]
    assert node.counts["too many copies"] == 1


def test_a_request_without_an_answer_is_made_again_elsewhere() -> None:
    """Frames are lost on a radio; the sample is not lost with them."""
    node = a_participant(1, subscriptions=["lunch"])
    sample = a_sample(hashed_topic("lunch"), NOON)
    assert requests_of(node.receive(2, hello_of(sample), own=NOON))
    assert not requests_of(node.receive(3, hello_of(sample), own=NOON + S))
    node.timer(own=NOON + 2 * S)
    assert requests_of(node.receive(3, hello_of(sample), own=NOON + 2 * S))


def test_a_neighbour_that_falls_silent_is_out_of_reach() -> None:
    """What it was asked for is asked of others at once."""
    node = a_participant(1, subscriptions=["lunch"])
    sample = a_sample(hashed_topic("lunch"), NOON)
    node.receive(2, hello_of(sample), own=NOON)
    node.timer(own=NOON + 3 * S)
    assert (node.neighbours, node.pending) == ([], 0)


def test_an_expired_sample_is_removed_and_not_asked_for_again() -> None:
    """Its carrier still announces it, with a clock that is behind."""
    node = a_participant(1, subscriptions=["lunch"])
    sample = a_sample(hashed_topic("lunch"), NOON, expires_at=NOON + S)
    node.receive(2, hello_of(sample), own=NOON)
    assert delivered(node.receive(2, chunk_of(sample, copies=4), own=NOON)) == [sample]
    node.timer(own=NOON + S)
    assert node.hello(own=NOON + S) == Hello(())
    assert node.receive(2, hello_of(sample), own=NOON + S) == []
    late = a_participant(3, subscriptions=["lunch"])
    late.receive(2, hello_of(sample), own=NOON + 2 * S)
    assert late.receive(2, chunk_of(sample, copies=4), own=NOON + 2 * S) == []
    assert late.receive(2, hello_of(sample), own=NOON + 3 * S) == []
    assert late.counts["expired"] == 1


def test_with_trusted_publishers_others_samples_are_not_taken() -> None:
    """A setting; the default takes everybody's, as the paper does (C19)."""
    node = a_participant(1, subscriptions=["lunch"], publishers=frozenset([CAMPUS.public]))
    topic = hashed_topic("lunch")
    samples = [a_sample(topic, NOON), STRANGER.sign(a_sample(topic, NOON + 1)), CAMPUS.sign(a_sample(topic, NOON + 2))]
    taken = []
    for each in samples:
        node.receive(2, hello_of(each), own=NOON)
        taken += delivered(node.receive(2, chunk_of(each), own=NOON))
    assert taken == samples[2:]
    signing = a_participant(2, signer=CAMPUS)
    [stored] = signing.publish("lunch", b"x", own=NOON + 3)
    assert isinstance(stored, StoreSample)
    assert delivered(
        node.receive(3, hello_of(stored.sample), own=NOON) and node.receive(3, chunk_of(stored.sample), own=NOON)
    )


# -- hostile neighbours ---------------------------------------------------------------------------------


def test_who_asks_for_everything_is_answered_at_a_bounded_rate() -> None:
    """A thousand requests in a second get the burst and twenty more; others are answered meanwhile."""
    node = a_participant(1, frames=(100_000, 100_000))
    [stored] = node.publish("lunch", b"x" * 1_000, own=NOON)
    assert isinstance(stored, StoreSample)
    request = Request(topic=stored.sample.topic, id=stored.sample.id, is_subscriber=True, wants_copies=False)
    assert node.receive(66, request, own=NOON) == [], "who has not said Hello is not answered, and takes no copies"
    node.receive(66, Hello(()), own=NOON)
    node.receive(2, Hello(()), own=NOON)
    answers = sum(len(node.receive(66, request, own=NOON + number * 1_000)) for number in range(1_000))
    assert 128 <= answers <= 150
    assert node.counts["answers held back"] == 1_000 - answers
    assert node.receive(2, request, own=NOON + S)
    crowd = 0
    for each in range(1_000, 11_000):
        node.receive(each, Hello(()), own=NOON + S)
        crowd += len(node.receive(each, request, own=NOON + S))
    assert crowd <= 1_280, "invented addresses share an allowance"


def test_invented_addresses_of_one_host_share_its_rate_of_answers() -> None:
    """They do not make a node send ten times as much; subscribers on other hosts are answered meanwhile."""
    node = a_participant(1, frames=(100_000, 100_000))
    [stored] = node.publish("lunch", b"x" * 1_000, own=NOON)
    assert isinstance(stored, StoreSample)
    request = Request(topic=stored.sample.topic, id=stored.sample.id, is_subscriber=True, wants_copies=False)
    answers = 0
    for number in range(1_000):
        own = NOON + number * 1_000
        node.receive(1_000 + number, Hello(()), own=own, host="fe80::66")
        answers += len(node.receive(1_000 + number, request, own=own, host="fe80::66"))
    assert 128 <= answers <= 150
    node.receive(2, Hello(()), own=NOON + S, host="fe80::2")
    assert node.receive(2, request, own=NOON + S, host="fe80::2")


def test_ten_thousand_invented_ids_and_addresses_take_bounded_memory_and_requests() -> None:
    """Every table has a bound, whoever fills it."""
    node = a_participant(1, subscriptions=["lunch"])
    topic, asked, lines = hashed_topic("lunch"), 0, 0
    for number in range(10_000):
        own = NOON + number * 100
        samples = [a_sample(topic, own + each, publisher=number) for each in range(3)]
        far = a_sample(topic, own + 2 * OWN_TOLERANCE_US)
        outputs = node.receive(1_000 + number, hello_of(*samples, far), own=own)
        asked += len(requests_of(outputs))
        lines += len(notes_of(outputs))
    assert len(node.neighbours) <= 1_024
    assert node.pending <= 512
    assert node.carrier.requests <= 256
    assert len(node.refusals) <= 64
    assert lines <= 11, "one second: the log is not theirs to fill"
    assert asked <= 1_280 + 200, "one second: what all neighbours together may be asked"
    node.timer(own=NOON + 10 * S)
    assert (node.pending, node.carrier.requests, node.neighbours) == (0, 0, [])


FLOODS: dict[str, Callable[[int], tuple[int, Part]]] = {
    "a Hello of eight invented ids": lambda number: (
        66, Hello(tuple(Entry(each + 1, SampleId(NOON + 8 * number + each, 66), True) for each in range(8))),
    ),
    "a Hello of an invented address": lambda number: (
        1_000 + number, Hello((Entry(1, SampleId(NOON + number, number), True),))
    ),
    "a request for copies of an invented address": lambda number: (
        1_000 + number // 2,
        Request(topic=1, id=SampleId(NOON, 1), is_subscriber=False, wants_copies=True) if number % 2 else Hello(()),
    ),
    "a request for copies of an invented host": lambda number: (
        1_000 + number // 3 % 700,
        (
            Hello(()),
            Request(topic=1, id=SampleId(NOON, 1), is_subscriber=False, wants_copies=True),
            Acknowledgement(1, SampleId(NOON, 1), 1),
        )[number % 3],
    ),
    "a chunk of an answer that never ends": lambda number: (
        66,
        AnswerChunk(
            topic=1, id=SampleId(NOON + number, 66), copies=1, record_bytes=1_000, offset=0, chunk=bytes(500)
        ),
    ),
    "an acknowledgement of nothing": lambda number: (66 + number, Acknowledgement(1, SampleId(number, 1), 1)),
    "a question for the time": lambda number: (1_000 + number, TopicsQuestion()),
}  # fmt: skip


@pytest.mark.parametrize("flood", FLOODS)
def test_what_a_flood_leaves_in_memory_is_bounded(flood: str) -> None:
    """After 3,300 frames a node has hardly more in memory than after 2,200, and less than a megabyte more in all."""
    node = a_participant(1, subscriptions=[f"t{each}" for each in range(8)], keys=[CAMPUS.public])
    node.carrier.publish(Sample(topic=1, published_at=NOON, publisher=1, body=bytes(1_000)), copies=60_000)
    sizes = []
    tracemalloc.start()
    for number in range(3_300):
        own = NOON + number * 10_000
        sender, part = FLOODS[flood](number)
        node.receive(sender, part, own=own, host=f"fe80::{sender if 'host' in flood else 66:x}")
        if number % 200 == 0:
            node.timer(own=own)
            node.hello(own=own)
        if number in {2_199, 3_299}:
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[1] < 1_000_000
    assert sizes[1] - sizes[0] < 100_000


def test_frames_beyond_a_rate_are_not_looked_at() -> None:
    """A neighbour that shouts costs what its allowance costs."""
    node = a_participant(1)
    for _ in range(1_000):
        node.receive(66, Refusal(1, SampleId(1, 1)), own=NOON)
    assert node.counts["too many frames"] == 600


# -- control data and keys ---------------------------------------------------------------------------------


def test_control_data_spreads_from_node_to_node_and_takes_no_place() -> None:
    """The last of the line never met a way-server, and has the plan of copies."""
    line = [a_participant(each, keys=[CAMPUS.public], places=1) for each in (1, 2, 3)]
    data = plan_of("lunch", *(f"a long name of a topic {each:03}" for each in range(60)), copies=6)
    segments = segments_of(data, CAMPUS)
    assert len(segments) == 3
    for each in segments:
        line[0].control.receive(each, now=NOON)
    line[0].follow(data, 1)
    campus = Campus(*line)
    campus.air.meet(1, 2)
    campus.run(3)
    campus.air.part(1, 2)
    campus.air.meet(2, 3)
    campus.run(3)
    assert line[2].control.in_force == data
    assert line[2].copies_of(line[2].topics.id_of("lunch")) == 6
    assert line[2].carrier.stored == []


def test_forged_and_replayed_control_data_is_ignored_and_its_giver_not_believed() -> None:
    """It costs a few requests, however often it is announced."""
    node = a_participant(1, keys=[CAMPUS.public])
    [old] = segments_of(plan_of("old", version=5), CAMPUS)
    [new] = segments_of(plan_of("new", version=9), CAMPUS)
    node.receive(2, hello_of(new, has_copies=False), own=NOON)
    assert notes_of(node.receive(2, chunk_of(new), own=NOON))[0].version == 9
    assert node.receive(2, hello_of(old), own=NOON) == []
    asked = 0
    for version in range(10, 40):
        [forged] = segments_of(plan_of("evil", version=version), STRANGER)
        asked += len(requests_of(node.receive(66, hello_of(forged), own=NOON)))
        node.receive(66, chunk_of(forged), own=NOON)
    assert asked == 3
    assert node.control.ignored == {"forged": 3, "older": 1}, "the announcement of an old version counts, too"
    assert node.control.in_force is not None
    assert node.control.in_force.version == 9


def test_a_topic_that_leaves_the_plan_makes_room_and_a_new_id_is_followed() -> None:
    """Copies become removable when the identifier disappears from the built-in topic."""
    node = a_participant(1, keys=[CAMPUS.public], subscriptions=["lunch"])
    node.clock.set(NOON, own=NOON)
    node.follow(plan_of("lunch", "gone", first=5), 9)
    node.publish("gone", b"x", own=NOON)
    assert node.carrier.subscriptions == {5}
    node.follow(plan_of("first", "lunch", version=NOON + 1, first=20), 9)
    assert [copy.is_removable for copy in node.carrier.stored] == [True]
    assert node.carrier.subscriptions == {21}


def the_ring(*statements: Sample) -> KeyRing:
    """Return the ring of a node that was given the campus's first key."""
    ring = KeyRing([CAMPUS.public])
    for each in statements:
        assert ring.receive(each)
    return ring


def test_the_key_of_a_campus_changes_without_meeting_every_node_at_once() -> None:
    """The old key names the new one, and carriers carry the statement; a node that was away follows the chain."""
    statement = key_statement(CAMPUS, NEXT.public, at=NOON, retires_at=NOON + 100 * S)
    first, second = (a_participant(each, keys=[CAMPUS.public]) for each in (1, 2))
    first.control.receive(statement, now=NOON)
    [sample] = segments_of(plan_of("lunch", version=NOON + 200 * S), NEXT)
    assert first.control.receive(sample, now=NOON + 200 * S) is not None
    campus = Campus(first, second)
    campus.now = NOON + 200 * S
    campus.air.meet(1, 2)
    campus.run(4)
    assert second.control.in_force == first.control.in_force
    assert second.control.ring.keys(now=campus.now) == (NEXT.public,)


def test_a_retired_key_signs_nothing_more_and_names_nobody() -> None:
    """Who finds an old key can neither send control data nor take over the campus."""
    statement = key_statement(CAMPUS, NEXT.public, at=NOON, retires_at=NOON + S)
    ring = the_ring(statement)
    assert set(ring.keys(now=NOON)) == {CAMPUS.public, NEXT.public}
    assert ring.keys(now=NOON + S) == (NEXT.public,)
    assert not ring.receive(key_statement(CAMPUS, STRANGER.public, at=NOON + S, retires_at=NOON + 9 * S))
    assert not ring.receive(key_statement(STRANGER, STRANGER.public, at=NOON, retires_at=NOON + 9 * S))


def test_so_many_key_statements_are_kept() -> None:
    """A campus that changes its key every day must not fill its nodes."""
    signers = [CAMPUS, *(SampleSigner(bytes([each]) * 32) for each in range(20))]
    ring = the_ring(
        *(
            key_statement(old, new.public, at=NOON + each, retires_at=NOON + 100 * S)
            for each, (old, new) in enumerate(itertools.pairwise(signers))
        )
    )
    assert len(ring.statements) == MAX_STATEMENTS
    assert signers[-1].public in ring.keys(now=NOON)


# -- topics and restarts ---------------------------------------------------------------------------------


def test_topic_ids_come_from_control_data_else_a_file_else_a_hash() -> None:
    """In this order; a name whose id is taken is refused."""
    names = TopicNames({"lunch": 0x00F1})
    assert names.id_of("lunch") == 0x00F1
    assert names.id_of("other") == hashed_topic("other")
    names.set_control(ControlData(version=1, users=0, places=0, topics=plan_of("lunch", first=7).topics))
    assert (names.id_of("lunch"), names.name_of(7)) == (7, "lunch")
    names.set_control(plan_of("thief", first=hashed_topic("other")))
    with pytest.raises(InvalidValueError, match=r"its id .* is that of 'thief'"):
        names.id_of("other")


def test_a_name_that_was_used_before_the_control_data_came_has_one_id() -> None:
    """A node that subscribed early lists the topic once, with the id and the subscribers of the plan."""
    names = TopicNames({"dinner": 3})
    early = names.id_of("lunch")
    plan = ControlData(version=1, users=0, places=0, topics=plan_of("dinner", "lunch", first=0x00F1).topics)
    names.set_control(plan)
    assert early != names.id_of("lunch")
    assert sorted(names.all) == [(each.topic, each.name) for each in plan.topics]
    names.set_control(ControlData(version=2, users=0, places=0, topics=()))
    assert sorted(names.all) == sorted([(3, "dinner"), (early, "lunch")])


def test_a_subscription_without_an_id_pauses_and_keeps_no_node_from_starting() -> None:
    """Control data gave the id to another name, as `follow` allows; the subscription is not forgotten."""
    before = a_participant(1, keys=[CAMPUS.public], subscriptions=["lunch"])
    memory = replace(before.memory(), control=tuple(segments_of(plan_of("thief", first=hashed_topic("lunch")), CAMPUS)))
    after = a_participant(1, keys=[CAMPUS.public])
    after.restore(memory, own=NOON)
    assert (after.subscriptions, after.carrier.subscriptions) == (["lunch"], frozenset())
    after.follow(plan_of("thief", "lunch", version=NOON + 1, first=hashed_topic("lunch")), 9)
    assert after.carrier.subscriptions == {hashed_topic("lunch") + 1}


def test_a_restarted_participant_knows_subscriptions_clock_and_control_data() -> None:
    """It need not meet a way-server again to go on."""
    before = a_participant(1, keys=[CAMPUS.public], subscriptions=["lunch"])
    before.clock.set(NOON, own=S)
    [segment] = segments_of(plan_of("lunch"), CAMPUS)
    before.control.receive(segment, now=NOON)
    before.follow(plan_of("lunch"), 9)
    before.publish("lunch", b"x", own=2 * S)
    after: Participant = a_participant(1, keys=[CAMPUS.public])
    after.restore(before.memory(), own=3 * S)
    assert after.memory() == before.memory()
    assert after.hello(own=3 * S) == before.hello(own=3 * S)
    assert (after.clock.now(2 * S), after.subscriptions) == (NOON + S, ["lunch"])


# -- samples of the future that are here already ---------------------------------------------------------------


def test_a_sample_of_the_last_instant_keeps_nobody_from_publishing() -> None:
    """It came with the memory of a node whose clock was wrong; what is published after it is not refused."""
    last = a_sample(hashed_topic("lunch"), INT64_MAX)
    node = a_participant(1, subscriptions=["lunch"])
    node.restore(Memory(address=1, stored=(StoredCopy(last, 2),), retrieved=(last,)), own=NOON)
    for number in range(2):
        [*_, stored] = node.publish("lunch", b"x", own=NOON)
        assert isinstance(stored, StoreSample)
        assert stored.sample.published_at == NOON + number


def test_what_was_taken_while_the_clock_was_ahead_is_removed_when_a_way_server_sets_it() -> None:
    """Others refuse it, and all that would be published after it."""
    node = a_participant(1, subscriptions=["lunch"], keys=[CAMPUS.public])
    ahead, fine = a_sample(hashed_topic("lunch"), NOON + 3_600 * S), a_sample(7, NOON)
    node.restore(Memory(address=1, stored=(StoredCopy(ahead, 2), StoredCopy(fine, 2)), retrieved=(ahead,)), own=NOON)
    [asked] = node.receive(9, TopicsQuestion(), own=NOON)
    assert isinstance(asked, Tell)
    assert isinstance(asked.message, TimeQuestion)
    outputs = node.receive(9, answer_time(CAMPUS, 1, asked.message, now=NOON), own=NOON)
    assert outputs[-1] == Drop(ahead, 2, Loss.FUTURE)
    assert [copy.sample for copy in node.carrier.stored] == [fine]
    [stored] = node.publish("lunch", b"x", own=NOON + S)
    assert isinstance(stored, StoreSample)
    assert stored.sample.published_at == NOON + S
