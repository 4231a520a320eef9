"""Codec of the messages of carriers: frames for radios that carry 88 bytes and for links that carry 1,280.

A frame has a format, a kind, the address of its sender, and fixed fields, big-endian. A message that does not fit one
frame takes several. A Hello and the topics of a node are sent in parts, whose entries count as they arrive. The sample
of an answer is sent in chunks, which ``carry.neighbours.assembly`` puts together.

Rule: any bytes are a frame or raise ``MalformedMessageError``. Every frame has one encoding, and no proper prefix of a
frame is a frame.
Rule: a frame fits its profile. Frames of both profiles have the same form, so nodes of both understand each other.
Rule: when the fields of any frame change, all frames get a new format; nodes refuse frames of other formats.
Rule: a signature covers the topic, id, expiry and body of a sample and its mark *unsynchronised*, but not the number of
copies, which changes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from whimbrel.carry.hello import (
    MAX_BODY_BYTES,
    NONCE_BYTES,
    SIGNATURE_BYTES,
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
from whimbrel.errors import InvalidInputError
from whimbrel.model.bounds import INT64_MAX, INT64_MIN

__all__ = [
    "LINK",
    "MAX_RECORD_BYTES",
    "RADIO",
    "AnswerChunk",
    "MalformedMessageError",
    "Part",
    "Profile",
    "decode",
    "encode",
    "read_record",
    "record_of",
    "signed_bytes",
]


class MalformedMessageError(InvalidInputError):
    """Bytes are not a frame of a carrier. Reaction: drop them; the neighbour says Hello again."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason, self.offset = reason, offset

    def __str__(self) -> str:
        return f"frame of a carrier, byte {self.offset}: {self.reason}"


class Profile(NamedTuple):
    """Largest frame on a kind of link."""

    name: str
    max_bytes: int


LINK = Profile("link", 1_280 - 40 - 8)
"""A packet of 1,280 bytes, which every IPv6 link carries, without the headers of IPv6 and UDP."""
RADIO = Profile("802.15.4", 88)
"""A payload that, with its headers, fits the 127 bytes of an 802.15.4 frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerChunk:
    """A part of an answer: bytes of the sample's record from *offset* on."""

    topic: int
    id: SampleId
    copies: int
    record_bytes: int
    offset: int
    chunk: bytes


Part = (
    Hello
    | Request
    | AnswerChunk
    | Refusal
    | TopicsQuestion
    | Subscriptions
    | TimeQuestion
    | TimeAnswer
    | Acknowledgement
)
"""Content of one frame."""

_FORMAT = 2
_HELLO, _REQUEST, _ANSWER, _REFUSAL, _TOPICS_QUESTION, _SUBSCRIPTIONS, _TIME_QUESTION, _TIME_ANSWER = range(1, 9)
_ACKNOWLEDGEMENT = 9
_HEAD = struct.Struct(">BBQ")
_NAME = struct.Struct(">HqQ")
_COUNTS = struct.Struct(">BB")
_REQUESTED = struct.Struct(">BHqQ")
_ANSWERED = struct.Struct(">HqQHHHH")
_KEPT = struct.Struct(">HqQH")
_ENTRY_BYTES = _NAME.size + 1
_IS_SUBSCRIBER, _WANTS_COPIES, _WANTS_PROOF = 1, 2, 4
_ALL_FLAGS = _IS_SUBSCRIBER | _WANTS_COPIES | _WANTS_PROOF
_SUBSCRIBED = struct.Struct(">BHB")
_TOLD_TIME = struct.Struct(f">{NONCE_BYTES}sq{SIGNATURE_BYTES}s")
_EXPIRES, _SIGNED, _UNSYNCHRONISED = 1, 2, 4
_ALL_RECORD_FLAGS = _EXPIRES | _SIGNED | _UNSYNCHRONISED
_TIME = struct.Struct(">q")
_MAX_COUNT = 0xFF
MAX_RECORD_BYTES = 1 + _TIME.size + SIGNATURE_BYTES + MAX_BODY_BYTES
assert (INT64_MIN, INT64_MAX) == (-(1 << 63), (1 << 63) - 1)  # the range of "q"


# -- to bytes ---------------------------------------------------------------------------------------------------------


def encode(sender: int, message: Message | Part, *, profile: Profile = LINK) -> list[bytes]:
    """Return the frames of *message*, from the node with the address *sender*."""
    return [_frame(sender, part) for part in _parts(message, profile)]


def _parts(message: Message | Part, profile: Profile) -> Iterator[Part]:
    room = profile.max_bytes - _HEAD.size
    match message:
        case Hello(entries, is_first):
            most = min((room - _COUNTS.size) // _ENTRY_BYTES, _MAX_COUNT)
            for first in range(0, len(entries) or 1, most):
                yield Hello(entries[first : first + most], is_first and first == 0)
        case Subscriptions(topics, places, is_first):
            most = min((room - _SUBSCRIBED.size) // 2, _MAX_COUNT)
            for first in range(0, len(topics) or 1, most):
                yield Subscriptions(topics[first : first + most], places, is_first and first == 0)
        case Answer(sample, copies):
            record = record_of(sample)
            most = room - _ANSWERED.size
            for offset in range(0, len(record), most):
                yield AnswerChunk(
                    topic=sample.topic,
                    id=sample.id,
                    copies=copies,
                    record_bytes=len(record),
                    offset=offset,
                    chunk=record[offset : offset + most],
                )
        case part:
            yield part


def _frame(sender: int, part: Part) -> bytes:
    match part:
        case Hello(entries, is_first):
            body = [_COUNTS.pack(is_first, len(entries))]
            body += [_NAME.pack(each.topic, *each.id) + bytes([each.has_copies]) for each in entries]
            return _head(_HELLO, sender) + b"".join(body)
        case Request():
            flags = _IS_SUBSCRIBER * part.is_subscriber | _WANTS_COPIES * part.wants_copies
            flags |= _WANTS_PROOF * part.wants_proof
            return _head(_REQUEST, sender) + _REQUESTED.pack(flags, part.topic, *part.id)
        case AnswerChunk():
            fields = part.topic, *part.id, part.copies, part.record_bytes, part.offset, len(part.chunk)
            return _head(_ANSWER, sender) + _ANSWERED.pack(*fields) + part.chunk
        case Refusal(topic, sample_id):
            return _head(_REFUSAL, sender) + _NAME.pack(topic, *sample_id)
        case Acknowledgement(topic, sample_id, copies):
            return _head(_ACKNOWLEDGEMENT, sender) + _KEPT.pack(topic, *sample_id, copies)
        case TopicsQuestion():
            return _head(_TOPICS_QUESTION, sender)
        case Subscriptions(topics, places, is_first):
            counts = _SUBSCRIBED.pack(is_first, places, len(topics))
            return _head(_SUBSCRIPTIONS, sender) + counts + struct.pack(f">{len(topics)}H", *topics)
        case TimeQuestion(nonce):
            return _head(_TIME_QUESTION, sender) + nonce
        case TimeAnswer(nonce, at, signature):
            return _head(_TIME_ANSWER, sender) + _TOLD_TIME.pack(nonce, at, signature)


def _head(kind: int, sender: int) -> bytes:
    return _HEAD.pack(_FORMAT, kind, sender)


def record_of(sample: Sample) -> bytes:
    """Encode the fields of a sample that are not in its name: flags, expiry, signature and body."""
    flags = _EXPIRES * (sample.expires_at is not None) | _SIGNED * (sample.signature is not None)
    flags |= _UNSYNCHRONISED * sample.is_unsynchronised
    time = b"" if sample.expires_at is None else _TIME.pack(sample.expires_at)
    return bytes([flags]) + time + (sample.signature or b"") + sample.body


def signed_bytes(sample: Sample) -> bytes:
    """Return the bytes that the signature of *sample* covers."""
    bare = Sample(
        topic=sample.topic,
        published_at=sample.published_at,
        publisher=sample.publisher,
        body=sample.body,
        expires_at=sample.expires_at,
        is_unsynchronised=sample.is_unsynchronised,
    )
    return b"whimbrel carry: sample 1\0" + _NAME.pack(sample.topic, *sample.id) + record_of(bare)


# -- from bytes -------------------------------------------------------------------------------------------------------


def read_head(data: bytes) -> tuple[int, int]:
    """Return the kind of the frame *data* and its sender's address, without its content, which costs most to read."""
    if len(data) < _HEAD.size:
        raise MalformedMessageError(f"found {len(data)} bytes, a frame has at least {_HEAD.size}", len(data))
    format_, kind, sender = _HEAD.unpack_from(data)
    if format_ != _FORMAT:
        raise MalformedMessageError(f"found format {format_}, allowed is {_FORMAT}", 0)
    if len(data) > LINK.max_bytes:
        raise MalformedMessageError(f"found {len(data)} bytes, allowed are {LINK.max_bytes}", LINK.max_bytes)
    if kind not in _READERS:
        raise MalformedMessageError(f"found kind {kind}, allowed are {_HELLO} to {_ACKNOWLEDGEMENT}", 1)
    return kind, sender


def decode(data: bytes) -> tuple[int, Part]:
    """Return the sender's address and the content of the frame *data*."""
    kind, sender = read_head(data)
    return sender, _READERS[kind](data)


def _read_hello(data: bytes) -> Hello:
    _check_at_least(data, _COUNTS.size)
    is_first, count = _COUNTS.unpack_from(data, _HEAD.size)
    if is_first > 1:
        raise MalformedMessageError(f"found {is_first}, allowed is 0 or 1", _HEAD.size)
    _check_size(data, _COUNTS.size + count * _ENTRY_BYTES)
    entries = []
    for offset in range(_HEAD.size + _COUNTS.size, len(data), _ENTRY_BYTES):
        topic, *sample_id = _NAME.unpack_from(data, offset)
        has_copies = data[offset + _NAME.size]
        if has_copies > 1:
            raise MalformedMessageError(f"found {has_copies}, allowed is 0 or 1", offset + _NAME.size)
        entries.append(Entry(topic, SampleId(*sample_id), bool(has_copies)))
    return Hello(tuple(entries), is_first=bool(is_first))


def _read_request(data: bytes) -> Request:
    _check_size(data, _REQUESTED.size)
    flags, topic, *sample_id = _REQUESTED.unpack_from(data, _HEAD.size)
    if not 0 < flags <= _ALL_FLAGS:
        raise MalformedMessageError(f"found flags {flags}, allowed are 1 to {_ALL_FLAGS}", _HEAD.size)
    return Request(
        topic=topic,
        id=SampleId(*sample_id),
        is_subscriber=bool(flags & _IS_SUBSCRIBER),
        wants_copies=bool(flags & _WANTS_COPIES),
        wants_proof=bool(flags & _WANTS_PROOF),
    )


def _read_answer(data: bytes) -> AnswerChunk:
    _check_at_least(data, _ANSWERED.size)
    topic, published_at, publisher, copies, size, offset, count = _ANSWERED.unpack_from(data, _HEAD.size)
    _check_size(data, _ANSWERED.size + count)
    if not (0 < size <= MAX_RECORD_BYTES and 0 < count <= size - offset):
        sentence = (
            f"found {count} bytes at {offset} of a record of {size}, allowed are 1 to {MAX_RECORD_BYTES} inside it"
        )
        raise MalformedMessageError(sentence, _HEAD.size + _NAME.size + 2)
    return AnswerChunk(
        topic=topic,
        id=SampleId(published_at, publisher),
        copies=copies,
        record_bytes=size,
        offset=offset,
        chunk=data[_HEAD.size + _ANSWERED.size :],
    )


def _read_refusal(data: bytes) -> Refusal:
    _check_size(data, _NAME.size)
    topic, *sample_id = _NAME.unpack_from(data, _HEAD.size)
    return Refusal(topic, SampleId(*sample_id))


def _read_acknowledgement(data: bytes) -> Acknowledgement:
    _check_size(data, _KEPT.size)
    topic, published_at, publisher, copies = _KEPT.unpack_from(data, _HEAD.size)
    if not copies:
        raise MalformedMessageError("found 0 copies, allowed is 1 or more", _HEAD.size + _NAME.size)
    return Acknowledgement(topic, SampleId(published_at, publisher), copies)


def _read_topics_question(data: bytes) -> TopicsQuestion:
    _check_size(data, 0)
    return TopicsQuestion()


def _read_subscriptions(data: bytes) -> Subscriptions:
    _check_at_least(data, _SUBSCRIBED.size)
    is_first, places, count = _SUBSCRIBED.unpack_from(data, _HEAD.size)
    if is_first > 1:
        raise MalformedMessageError(f"found {is_first}, allowed is 0 or 1", _HEAD.size)
    _check_size(data, _SUBSCRIBED.size + 2 * count)
    topics = struct.unpack_from(f">{count}H", data, _HEAD.size + _SUBSCRIBED.size)
    if any(one >= other for one, other in pairwise(topics)):
        raise MalformedMessageError("topics are not in ascending order", _HEAD.size + _SUBSCRIBED.size)
    return Subscriptions(topics, places, bool(is_first))


def _read_time_question(data: bytes) -> TimeQuestion:
    _check_size(data, NONCE_BYTES)
    return TimeQuestion(data[_HEAD.size :])


def _read_time_answer(data: bytes) -> TimeAnswer:
    _check_size(data, _TOLD_TIME.size)
    return TimeAnswer(*_TOLD_TIME.unpack_from(data, _HEAD.size))


_READERS: dict[int, Callable[[bytes], Part]] = {
    _HELLO: _read_hello,
    _REQUEST: _read_request,
    _ANSWER: _read_answer,
    _REFUSAL: _read_refusal,
    _TOPICS_QUESTION: _read_topics_question,
    _SUBSCRIPTIONS: _read_subscriptions,
    _TIME_QUESTION: _read_time_question,
    _TIME_ANSWER: _read_time_answer,
    _ACKNOWLEDGEMENT: _read_acknowledgement,
}


def read_record(record: bytes, *, topic: int, sample_id: SampleId) -> Sample:
    """Return the sample with this topic and id whose other fields are in *record*."""
    flags = record[0] if record else _ALL_RECORD_FLAGS
    sizes = _TIME.size * bool(flags & _EXPIRES), SIGNATURE_BYTES * bool(flags & _SIGNED)
    begin = 1 + sum(sizes)
    if flags > _ALL_RECORD_FLAGS or not begin <= len(record) <= begin + MAX_BODY_BYTES:
        raise MalformedMessageError(f"found flags {flags} of a record of {len(record)} bytes", 0)
    return Sample(
        topic=topic,
        published_at=sample_id.published_at,
        publisher=sample_id.publisher,
        body=record[begin:],
        expires_at=_TIME.unpack_from(record, 1)[0] if flags & _EXPIRES else None,
        signature=record[1 + sizes[0] : begin] if flags & _SIGNED else None,
        is_unsynchronised=bool(flags & _UNSYNCHRONISED),
    )


def _check_at_least(data: bytes, size: int) -> None:
    if len(data) < _HEAD.size + size:
        raise MalformedMessageError(f"found {len(data)} bytes, it has at least {_HEAD.size + size}", len(data))


def _check_size(data: bytes, size: int) -> None:
    if len(data) != _HEAD.size + size:
        offset = min(len(data), _HEAD.size + size)
        raise MalformedMessageError(f"found {len(data)} bytes, this frame has {_HEAD.size + size}", offset)
