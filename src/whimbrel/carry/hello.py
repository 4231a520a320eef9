"""Messages of carriers: Hello, Request, Answer, Refusal, Acknowledgement, and those of way-servers (3.1, 3.2.2).

A Hello lists the samples that a carrier stores and which of them it still has copies of to give. Nothing is pushed:
the carrier that hears it requests {topic id, sample id}, as a subscriber, for a share of the copies, or for both. The
answer brings the sample and grants the share, so that two carriers that ask never get the same half; a carrier that has
stored the sample acknowledges the copies that it keeps.

Rule: a sample's id is its time of publication and its publisher's address, which orders samples of one instant.
Rule: a node tells its subscriptions to way-servers only, on request.
Rule: the answer to a question for the time repeats the nonce of the question and is signed. So an old answer cannot be
replayed, and only a way-server can give one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.model.bounds import flag, instant, whole

__all__ = [
    "MAX_BODY_BYTES",
    "MAX_COPIES",
    "MAX_ENTRIES",
    "MAX_PLACES",
    "MAX_PUBLISHER",
    "MAX_TOPIC",
    "NONCE_BYTES",
    "SIGNATURE_BYTES",
    "Acknowledgement",
    "Answer",
    "Entry",
    "Hello",
    "Message",
    "Refusal",
    "Request",
    "Sample",
    "SampleId",
    "Subscriptions",
    "TimeAnswer",
    "TimeQuestion",
    "TopicsQuestion",
]

MAX_TOPIC = 0xFFFF
"""Topic ids have 16 bits; the paper's example is 0x00F1."""
MAX_PUBLISHER = (1 << 64) - 1
"""Addresses are those of IEEE 802.15.4: 64 bits."""
MAX_COPIES = 0xFFFF
MAX_ENTRIES = 0xFFFF
MAX_PLACES = 0xFFFF
MAX_BODY_BYTES = 1_024
"""Most bytes of a sample's body; a longer one is refused, not cut. The paper's samples have about 100."""

SIGNATURE_BYTES = 64
"""Length of an Ed25519 signature."""
NONCE_BYTES = 6
"""Length of a nonce; with 6 bytes an answer with the time fits a frame of 802.15.4."""


class SampleId(NamedTuple):
    """Time of publication and address of the publisher; the larger of two ids is the newer."""

    published_at: int
    publisher: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One notification on one topic, as it travels from carrier to carrier."""

    topic: int
    published_at: int
    publisher: int
    body: bytes = b""
    expires_at: int | None = None
    """Time from which on the sample is removed, in microseconds UTC; None: it stays until a newer one comes."""
    signature: bytes | None = None
    """Signature over all other fields by the private key of the publisher; None: the sample is not signed."""
    is_unsynchronised: bool = False
    """Whether no way-server had set the publisher's clock, because the deployment has none."""

    def __post_init__(self) -> None:
        whole("topic", self.topic, 0, MAX_TOPIC)
        instant("published_at", self.published_at)
        whole("publisher", self.publisher, 0, MAX_PUBLISHER)
        whole("bytes of a sample's body", len(self.body), 0, MAX_BODY_BYTES)
        flag("is_unsynchronised", self.is_unsynchronised)
        if self.expires_at is not None:
            instant("expires_at", self.expires_at)
        if self.signature is not None and len(self.signature) != SIGNATURE_BYTES:
            raise InvalidValueError("signature", Phrase(f"{len(self.signature)} bytes"), f"{SIGNATURE_BYTES} bytes")

    @property
    def id(self) -> SampleId:
        """The id, which orders the samples of a topic."""
        return SampleId(self.published_at, self.publisher)


class Entry(NamedTuple):
    """A sample that a Hello lists; *has_copies*: the sender gives a share of its copies to other carriers."""

    topic: int
    id: SampleId
    has_copies: bool


@dataclass(frozen=True, slots=True)
class Hello:
    """List of the samples that a carrier stores, by topic and id; or a part of it: each entry counts by itself."""

    entries: tuple[Entry, ...]
    is_first: bool = True
    """Whether a Hello begins here; later parts of a Hello of several frames have False."""

    def __post_init__(self) -> None:
        whole("entries of a Hello", len(self.entries), 0, MAX_ENTRIES)
        flag("is_first", self.is_first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for a sample: for the own application, to carry it for others, or as the proof that it exists."""

    topic: int
    id: SampleId
    is_subscriber: bool
    wants_copies: bool
    wants_proof: bool = False
    """Whether the sender removes an older copy only when it has this sample; any holder answers."""

    def __post_init__(self) -> None:
        flag("is_subscriber", self.is_subscriber)
        flag("wants_copies", self.wants_copies)
        flag("wants_proof", self.wants_proof)


@dataclass(frozen=True, slots=True)
class Answer:
    """Brings a sample, and the number of copies that the receiver carries from now on; 0 if it only subscribes."""

    sample: Sample
    copies: int

    def __post_init__(self) -> None:
        whole("copies", self.copies, 0, MAX_COPIES)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Says that the requested sample is no longer stored or has no copies to give, or that copies are not taken."""

    topic: int
    id: SampleId


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Confirms that a sample is stored, with *copies* of those that its answer granted; the rest goes back."""

    topic: int
    id: SampleId
    copies: int

    def __post_init__(self) -> None:
        whole("copies", self.copies, 1, MAX_COPIES)


@dataclass(frozen=True, slots=True)
class TopicsQuestion:
    """A way-server's question to which topics a node subscribes."""


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """A node's answer to a way-server: its topics, in ascending order, or a part of them, and its places."""

    topics: tuple[int, ...]
    places: int = 0
    is_first: bool = True
    """Whether the list begins here; later parts of a list of several frames add to it."""

    def __post_init__(self) -> None:
        for topic in self.topics:
            whole("topic", topic, 0, MAX_TOPIC)
        if any(one >= other for one, other in pairwise(self.topics)):
            raise InvalidValueError("topics of a node", self.topics[:10], "each once, in ascending order")
        whole("places", self.places, 0, MAX_PLACES)
        flag("is_first", self.is_first)


@dataclass(frozen=True, slots=True)
class TimeQuestion:
    """A node's question for the time; *nonce* is a number that is used once."""

    nonce: bytes

    def __post_init__(self) -> None:
        if len(self.nonce) != NONCE_BYTES:
            raise InvalidValueError("nonce", Phrase(f"{len(self.nonce)} bytes"), f"{NONCE_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class TimeAnswer:
    """A way-server's answer: the time *at*, for the question with *nonce*; signed by the campus."""

    nonce: bytes
    at: int
    signature: bytes

    def __post_init__(self) -> None:
        instant("at", self.at)
        if (len(self.nonce), len(self.signature)) != (NONCE_BYTES, SIGNATURE_BYTES):
            found = Phrase(f"{len(self.nonce)} and {len(self.signature)} bytes")
            raise InvalidValueError("nonce and signature", found, f"{NONCE_BYTES} and {SIGNATURE_BYTES} bytes")


Message = Hello | Request | Answer | Refusal
"""Message of one carrier to another."""
