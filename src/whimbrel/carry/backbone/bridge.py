"""The bridge between a campus and the broker, for chosen topics.

Samples of nodes are published as ``campus/<topic>``, and messages that are published there become samples.

Rule: a sample keeps its id in both directions, as the user property ``campus.sample``. A message without that property
comes from the broker's own users. The administrative server gives it an id, which is derived from the message's id.
Rule: only a sample that is newer than the newest known one of its topic crosses, in each direction: none circulates.
Rule: several way-servers may have the same sample. They send it to the administrative server, which publishes it once.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict

from whimbrel.carry.application import CampusSample
from whimbrel.carry.backbone.messages import DOWN, SAMPLE_PROPERTY, UP
from whimbrel.carry.daemon.journal import SUBJECT, address_name, sample_name
from whimbrel.carry.hello import Sample, SampleId
from whimbrel.client import Message
from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.clock import US_PER_S
from whimbrel.mqtt.properties import Property

__all__ = ["BothWays", "Bridge", "id_for_message", "read_id", "read_sample", "topic_of"]

_ID = re.compile(r"(-?[0-9]{1,19})\.([0-9a-f]{16})")
_MAX_KNOWN = 10_000


def topic_of(subject: str) -> str:
    """Return the name of the topic whose samples are published under *subject*."""
    for prefix in (f"{SUBJECT}/", f"{UP}/", f"{DOWN}/"):
        if subject.startswith(prefix):
            return subject.removeprefix(prefix)
    raise InvalidValueError("topic", subject, f"one below {SUBJECT}/")


def id_of(message: Message) -> SampleId | None:
    """Return the id of the sample in *message*, or None if the message has no such property."""
    said = next((value for name, value in message.user if name == SAMPLE_PROPERTY), None)
    if said is None:
        return None
    return read_id(said)


def read_id(said: str) -> SampleId:
    """Parse the id of a sample, ``<time of publication>.<16 hexadecimal digits>``."""
    found = _ID.fullmatch(said)
    if found is None or abs(int(found[1])) > INT64_MAX:
        raise InvalidValueError(SAMPLE_PROPERTY, said, "<time of publication>.<16 hexadecimal digits>")
    return SampleId(int(found[1]), int(found[2], 16))


def id_for_message(number: str, *, at: int) -> SampleId:
    """Return the id of the sample that is made *at* a time from the message with the id *number* (``node:seq``)."""
    digest = hashlib.blake2s(number.encode(), digest_size=8, person=b"bridge").digest()
    return SampleId(at, int.from_bytes(digest, "big"))


def read_sample(message: Message, sample_id: SampleId, topic: int, *, now: int) -> Sample:
    """Return *message* as a sample; raises an error of ours if it cannot be one, as when it is too long."""
    expiry_s = message.properties.integer(Property.MESSAGE_EXPIRY_INTERVAL)
    return Sample(
        topic=topic,
        published_at=sample_id.published_at,
        publisher=sample_id.publisher,
        body=message.payload,
        expires_at=None if expiry_s is None else now + expiry_s * US_PER_S,
    )


class Bridge:
    """Record of the newest sample of each topic that has crossed between broker and campus."""

    def __init__(self) -> None:
        self._newest: dict[str, SampleId] = {}

    def is_new(self, topic: str, sample_id: SampleId) -> bool:
        """Return whether a sample is newer than all that have crossed on its topic; if so, remember it."""
        known = self._newest.get(topic)
        if known is not None and sample_id <= known:
            return False
        self._newest[topic] = sample_id
        return True

    @property
    def newest(self) -> dict[str, SampleId]:
        """The newest sample of each topic that has crossed."""
        return dict(self._newest)


class BothWays:
    """Filter for an application that reads from both a node and a broker: it finds samples that came both ways."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._publishers: OrderedDict[str, None] = OrderedDict()
        """Publishers of samples; of those made from messages, it is a hash of the message's id."""
        self._numbers: OrderedDict[str, None] = OrderedDict()
        """Hashes of the ids of messages that are not samples yet."""

    def is_first(self, sample: CampusSample | Message) -> bool:
        """Return whether this sample comes for the first time; a message must be from a subscription with ``since``."""
        if isinstance(sample, CampusSample):
            return self._is_first_sample(sample.id, sample.publisher)
        sample_id = id_of(sample)
        if sample_id is not None:
            return self._is_first_sample(sample_name(sample_id), address_name(sample_id.publisher))
        if sample.id is None:
            return True  # subscribed without ``since``: the message has no id to compare
        number = address_name(id_for_message(sample.id, at=0).publisher)
        is_first = number not in self._publishers and number not in self._numbers
        _remember(self._numbers, number)
        return is_first

    def _is_first_sample(self, name: str, publisher: str) -> bool:
        is_first = name not in self._ids and publisher not in self._numbers
        _remember(self._ids, name)
        _remember(self._publishers, publisher)
        return is_first


def _remember(known: OrderedDict[str, None], name: str) -> None:
    known[name] = None
    known.move_to_end(name)
    if len(known) > _MAX_KNOWN:
        known.popitem(last=False)
