"""Control data: the topics of the campus with subscribers and L, as samples of the built-in topic (3.1).

Rule: the built-in topic has the id 0. Control data may take several samples, its *segments*. In the id of a segment the
time of publication is the version, and the publisher is the number of the segment, from 0.
Rule: the newest complete version is in force. A segment that the campus did not sign, or whose version is not newer, is
ignored and counted.
Rule: a signature counts if its key is one of ``carry.control.keys`` at that time of the campus.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from whimbrel.carry.control.keys import KeyRing
from whimbrel.carry.hello import MAX_BODY_BYTES, MAX_COPIES, MAX_TOPIC, Sample, SampleId
from whimbrel.carry.signatures import SampleSigner, is_signed_by
from whimbrel.errors import InvalidInputError, InvalidValueError, WhimbrelError
from whimbrel.model.bounds import instant, name, whole

__all__ = [
    "BUILT_IN_TOPIC",
    "MAX_SEGMENTS",
    "MAX_TOPIC_NAME_BYTES",
    "REASONS",
    "ControlData",
    "ControlReceiver",
    "MalformedControlDataError",
    "TopicPlan",
    "segment_count",
    "segments_of",
    "topic_name",
]

BUILT_IN_TOPIC = 0
REASONS = "forged", "malformed", "older"
"""Reasons for which a segment is ignored."""
MAX_SEGMENTS = 64
MAX_TOPIC_NAME_BYTES = 0xFF
_MAX_VERSIONS = 4
"""Incomplete versions of which segments are kept, the newest ones."""
_UINT32_MAX = 0xFFFF_FFFF
_SEGMENTS = struct.Struct(">BII")
_ENTRY = struct.Struct(">HHIB")


class MalformedControlDataError(InvalidInputError):
    """The body of a segment is not valid. Reaction: ignore it, although the campus signed it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"control data: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic of the campus: id, name, number of subscribers, and L, the copies of each of its samples."""

    topic: int
    name: str
    subscribers: int
    copies: int

    def __post_init__(self) -> None:
        whole("topic", self.topic, BUILT_IN_TOPIC + 1, MAX_TOPIC)
        topic_name("name of a topic", self.name)
        whole("subscribers", self.subscribers, 0, _UINT32_MAX)
        whole("copies", self.copies, 1, MAX_COPIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlData:
    """Data of the administrative server for all nodes; *places* counts the places of all of them together."""

    version: int
    users: int
    places: int
    topics: tuple[TopicPlan, ...] = ()

    def __post_init__(self) -> None:
        instant("version", self.version)
        whole("users", self.users, 0, _UINT32_MAX)
        whole("places", self.places, 0, _UINT32_MAX)
        if any(one.topic >= other.topic for one, other in pairwise(self.topics)):
            raise InvalidValueError(
                "topics", [each.topic for each in self.topics][:10], "each once, in ascending order"
            )


def topic_name(what: str, value: object) -> str:
    """Return *value* if it can name a topic: it is also a subject on the broker and in logs, so it has no wildcards."""
    found = name(what, value, max_bytes=MAX_TOPIC_NAME_BYTES)
    if "+" in found or "#" in found:
        raise InvalidValueError(what, found, "text without + and #")
    return found


def segment_count(data: ControlData) -> int:
    """Return the number of segments of *data*; it is usable with at most ``MAX_SEGMENTS``."""
    return len(_bodies(data))


def _bodies(data: ControlData) -> list[bytes]:
    bodies = [b""]
    for each in data.topics:
        text = each.name.encode()
        entry = _ENTRY.pack(each.topic, each.copies, each.subscribers, len(text)) + text
        if _SEGMENTS.size + len(bodies[-1]) + len(entry) > MAX_BODY_BYTES:
            bodies.append(b"")
        bodies[-1] += entry
    return bodies


def segments_of(data: ControlData, signer: SampleSigner) -> list[Sample]:
    """Return the signed segments of *data*."""
    bodies = _bodies(data)
    if len(bodies) > MAX_SEGMENTS:
        raise InvalidValueError("segments of control data", len(bodies), f"at most {MAX_SEGMENTS}: have fewer topics")
    head = _SEGMENTS.pack(len(bodies), data.users, data.places)
    samples = (
        Sample(topic=BUILT_IN_TOPIC, published_at=data.version, publisher=number, body=head + body)
        for number, body in enumerate(bodies)
    )
    return [signer.sign(each) for each in samples]


class ControlReceiver:
    """The control data of a node: the version in force, and segments of newer ones."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self.in_force: ControlData | None = None
        self.samples: tuple[Sample, ...] = ()
        """The segments of the version in force, which this node offers to others."""
        self.signed_by: bytes | None = None
        """The key that signed the version in force."""
        self.counts: Counter[str] = Counter()
        """Number of segments that were ignored, by reason; announcements of older ones count, too."""
        self._segments: dict[int, dict[int, Sample]] = {}

    @property
    def kept(self) -> int:
        """Number of segments that wait for others of their version."""
        return sum(map(len, self._segments.values()))

    def wants(self, sample_id: SampleId, *, now: int) -> bool:
        """Return whether the segment with this id belongs to a newer version and is not stored here."""
        version, number = sample_id
        if self._ring.is_empty or number >= MAX_SEGMENTS or self._is_old(version, now):
            return False
        return number not in self._segments.get(version, {})

    def hear(self, sample_id: SampleId) -> None:
        """Count the announcement of a segment if its version is older than the one in force."""
        if self.in_force is not None and sample_id.published_at < self.in_force.version:
            self.counts["older"] += 1

    def is_valid(self, *, now: int) -> bool:
        """Return whether the key that signed the version in force still counts, so that others can check it."""
        return self.signed_by in self._ring.keys(now=now)

    def _is_old(self, version: int, now: int) -> bool:
        """Return whether *version* is not newer; the version in force may come again, signed with another key."""
        if self.in_force is None or version > self.in_force.version:
            return False
        return version < self.in_force.version or self.is_valid(now=now)

    def receive(self, sample: Sample, *, now: int) -> ControlData | None:
        """Store a segment at *now*; return the control data that it brings into force, or None."""
        if self._is_old(sample.published_at, now):
            self.counts["older"] += 1
            return None
        key = next((each for each in self._ring.keys(now=now) if is_signed_by(sample, [each])), None)
        if sample.topic != BUILT_IN_TOPIC or key is None:
            self.counts["forged"] += 1
            return None
        try:
            return self._take(sample, key)
        except WhimbrelError:
            self.counts["malformed"] += 1
            self._segments.pop(sample.published_at, None)
            return None

    def _take(self, sample: Sample, key: bytes) -> ControlData | None:
        version = sample.published_at
        count, users, places = _head(sample)
        segments = self._segments.setdefault(version, {})
        segments[sample.publisher] = sample
        if {_SEGMENTS.unpack_from(each.body) for each in segments.values()} != {(count, users, places)}:
            raise MalformedControlDataError(f"segments of version {version} contradict each other")
        if len(segments) < count:
            for old in sorted(self._segments)[:-_MAX_VERSIONS]:
                del self._segments[old]
            return None
        topics = tuple(plan for number in range(count) for plan in _topics(segments[number].body))
        self.in_force = ControlData(version=version, users=users, places=places, topics=topics)
        self.signed_by = key
        self.samples = tuple(segments[number] for number in range(count))
        for old in [each for each in self._segments if each <= version]:
            del self._segments[old]
        return self.in_force


def _head(sample: Sample) -> tuple[int, int, int]:
    if len(sample.body) < _SEGMENTS.size:
        raise MalformedControlDataError(f"a segment of {len(sample.body)} bytes")
    count, users, places = _SEGMENTS.unpack_from(sample.body)
    if not sample.publisher < count <= MAX_SEGMENTS:
        raise MalformedControlDataError(f"segment {sample.publisher} of {count}, allowed are {MAX_SEGMENTS}")
    return count, users, places


def _topics(body: bytes) -> list[TopicPlan]:
    found: list[TopicPlan] = []
    at = _SEGMENTS.size
    while at < len(body):
        if at + _ENTRY.size > len(body):
            raise MalformedControlDataError("a segment ends inside a topic")
        topic, copies, subscribers, size = _ENTRY.unpack_from(body, at)
        at += _ENTRY.size
        if at + size > len(body):
            raise MalformedControlDataError("a segment ends inside a name")
        try:
            text = body[at : at + size].decode()
        except UnicodeDecodeError:
            raise MalformedControlDataError("the name of a topic is not UTF-8") from None
        found.append(TopicPlan(topic=topic, name=text, subscribers=subscribers, copies=copies))
        at += size
    return found
