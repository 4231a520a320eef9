"""What carriers say to each other: Hello, Request, Answer, Refusal, and the bytes of each (Campus++, section 3.2.2).

A Hello lists the samples that a carrier stores and which of them it still has copies of to give. Nothing is pushed:
the carrier that hears it requests {topic id, sample id}, as a subscriber, for a share of the copies, or for both. The
answer brings the sample and grants the share, so that two carriers that ask never get the same half.

Rule: a sample's id is its time of publication; two publishers of one instant are told apart by their addresses.
Rule: any bytes are a message or a ``MalformedMessageError``, and every message has one encoding.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from whimbrel.errors import InvalidInputError
from whimbrel.model.bounds import INT64_MAX, INT64_MIN, flag, instant, whole

__all__ = [
    "MAX_BODY_BYTES",
    "MAX_COPIES",
    "MAX_ENTRIES",
    "MAX_PUBLISHER",
    "MAX_TOPIC",
    "Answer",
    "Entry",
    "Hello",
    "MalformedMessageError",
    "Message",
    "Refusal",
    "Request",
    "Sample",
    "SampleId",
    "decode",
    "encode",
]

MAX_TOPIC = 0xFFFF
"""Topic ids have 16 bits; the paper's example is 0x00F1."""
MAX_PUBLISHER = (1 << 64) - 1
"""Addresses are those of IEEE 802.15.4: 64 bits."""
MAX_COPIES = 0xFFFF
MAX_ENTRIES = 0xFFFF
MAX_BODY_BYTES = 1_024
"""The paper's samples have about 100 bytes; a larger one is refused rather than cut."""


class SampleId(NamedTuple):
    """When a sample was published, and by which address; the larger of two is the newer."""

    published_at: int
    publisher: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One notification on one topic, as it travels from carrier to carrier."""

    topic: int
    published_at: int
    publisher: int
    body: bytes = b""

    def __post_init__(self) -> None:
        whole("topic", self.topic, 0, MAX_TOPIC)
        instant("published_at", self.published_at)
        whole("publisher", self.publisher, 0, MAX_PUBLISHER)
        whole("bytes of a sample's body", len(self.body), 0, MAX_BODY_BYTES)

    @property
    def id(self) -> SampleId:
        """The id, which orders the samples of a topic."""
        return SampleId(self.published_at, self.publisher)


class Entry(NamedTuple):
    """One sample in a Hello; *has_copies*: its carrier gives a share of its copies to other carriers."""

    topic: int
    id: SampleId
    has_copies: bool


@dataclass(frozen=True, slots=True)
class Hello:
    """What a carrier stores, in the order of topic and id."""

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        whole("entries of a Hello", len(self.entries), 0, MAX_ENTRIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for a sample: to have it, to carry it for others, or as the proof that it exists."""

    topic: int
    id: SampleId
    is_subscriber: bool
    wants_copies: bool
    wants_proof: bool = False
    """Whether an older copy waits for this sample before it may be removed; any holder answers."""

    def __post_init__(self) -> None:
        flag("is_subscriber", self.is_subscriber)
        flag("wants_copies", self.wants_copies)
        flag("wants_proof", self.wants_proof)


@dataclass(frozen=True, slots=True)
class Answer:
    """Brings a sample, with the copies that now are the receiver's to carry; none if it only subscribes."""

    sample: Sample
    copies: int

    def __post_init__(self) -> None:
        whole("copies", self.copies, 0, MAX_COPIES)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Says that a requested sample is not there any more, or has no copies to give."""

    topic: int
    id: SampleId


Message = Hello | Request | Answer | Refusal


class MalformedMessageError(InvalidInputError):
    """Bytes are no message of a carrier. Reaction: drop them; the neighbour says Hello again."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason, self.offset = reason, offset

    def __str__(self) -> str:
        return f"message of a carrier, byte {self.offset}: {self.reason}"


# -- bytes: big-endian, a kind, then fixed fields --------------------------------------------------------------------

_HELLO, _REQUEST, _ANSWER, _REFUSAL = 1, 2, 3, 4
_NAME = struct.Struct(">HqQ")
_COUNT = struct.Struct(">BH")
_REQUESTED = struct.Struct(">BBHqQ")
_ANSWERED = struct.Struct(">BHHHqQ")
_REFUSED = struct.Struct(">BHqQ")
_ENTRY_BYTES = _NAME.size + 1
_IS_SUBSCRIBER, _WANTS_COPIES, _WANTS_PROOF = 1, 2, 4
_ALL_FLAGS = _IS_SUBSCRIBER | _WANTS_COPIES | _WANTS_PROOF
assert (INT64_MIN, INT64_MAX) == (-(1 << 63), (1 << 63) - 1)  # what "q" holds


def encode(message: Message) -> bytes:
    """Return the bytes of *message*."""
    match message:
        case Hello(entries):
            parts = [_COUNT.pack(_HELLO, len(entries))]
            parts += [_NAME.pack(each.topic, *each.id) + bytes([each.has_copies]) for each in entries]
            return b"".join(parts)
        case Request():
            flags = _IS_SUBSCRIBER * message.is_subscriber | _WANTS_COPIES * message.wants_copies
            flags |= _WANTS_PROOF * message.wants_proof
            return _REQUESTED.pack(_REQUEST, flags, message.topic, *message.id)
        case Answer(sample, copies):
            return _ANSWERED.pack(_ANSWER, copies, len(sample.body), sample.topic, *sample.id) + sample.body
        case Refusal(topic, sample_id):
            return _REFUSED.pack(_REFUSAL, topic, *sample_id)


def decode(data: bytes) -> Message:
    """Return the message that *data* is, all of it."""
    kind = data[0] if data else 0
    if kind == _HELLO:
        return _hello(data)
    if kind == _REQUEST:
        _check_size(data, _REQUESTED.size)
        _, flags, topic, *sample_id = _REQUESTED.unpack(data)
        if not 0 < flags <= _ALL_FLAGS:
            raise MalformedMessageError(f"found flags {flags}, allowed are 1 to {_ALL_FLAGS}", 1)
        return Request(
            topic=topic,
            id=SampleId(*sample_id),
            is_subscriber=bool(flags & _IS_SUBSCRIBER),
            wants_copies=bool(flags & _WANTS_COPIES),
            wants_proof=bool(flags & _WANTS_PROOF),
        )
    if kind == _ANSWER:
        return _answer(data)
    if kind == _REFUSAL:
        _check_size(data, _REFUSED.size)
        _, topic, *sample_id = _REFUSED.unpack(data)
        return Refusal(topic, SampleId(*sample_id))
    raise MalformedMessageError(f"found kind {kind}, allowed are 1 to 4" if data else "nothing is there", 0)


def _hello(data: bytes) -> Hello:
    if len(data) < _COUNT.size:
        raise MalformedMessageError("the number of entries is missing", len(data))
    _, count = _COUNT.unpack_from(data)
    _check_size(data, _COUNT.size + count * _ENTRY_BYTES)
    entries = []
    for offset in range(_COUNT.size, len(data), _ENTRY_BYTES):
        topic, *sample_id = _NAME.unpack_from(data, offset)
        has_copies = data[offset + _NAME.size]
        if has_copies > 1:
            raise MalformedMessageError(f"found {has_copies}, allowed is 0 or 1", offset + _NAME.size)
        entries.append(Entry(topic, SampleId(*sample_id), bool(has_copies)))
    return Hello(tuple(entries))


def _answer(data: bytes) -> Answer:
    if len(data) < _ANSWERED.size:
        raise MalformedMessageError(f"found {len(data)} bytes, an answer has at least {_ANSWERED.size}", len(data))
    _, copies, size, topic, published_at, publisher = _ANSWERED.unpack_from(data)
    if size > MAX_BODY_BYTES:
        raise MalformedMessageError(f"found a body of {size} bytes, allowed are {MAX_BODY_BYTES}", 3)
    _check_size(data, _ANSWERED.size + size)
    body = data[_ANSWERED.size :]
    return Answer(Sample(topic=topic, published_at=published_at, publisher=publisher, body=body), copies)


def _check_size(data: bytes, size: int) -> None:
    if len(data) != size:
        raise MalformedMessageError(f"found {len(data)} bytes, this message has {size}", min(len(data), size))
