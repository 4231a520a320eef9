"""Notifications: accepted publications, with their seq.

Rule: ``(node, seq)`` is the identity and the order of everything on a node; clocks never decide.
Rule: a notification is a row of the ``publications`` table and never changes; invalid ones cannot be built.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from whimbrel.errors import InvalidValueError, description_of
from whimbrel.model.attributes import NO_ATTRIBUTES, Attributes, FrozenAttributes, checked
from whimbrel.model.bounds import INT64_MAX, check_time, flag, instant, name, node_name, whole
from whimbrel.model.keys import NO_KEYS, KeyHashes
from whimbrel.model.place import Area, Place

__all__ = [
    "AT_LEAST_ONCE",
    "EXACTLY_ONCE",
    "MAX_BODY_BYTES",
    "MAX_PACKET_ID",
    "MAX_QOS",
    "MAX_SUBJECT_BYTES",
    "Notification",
    "NotificationId",
]

MAX_SUBJECT_BYTES = 65_535
MAX_BODY_BYTES = 268_435_455  # the largest MQTT packet
AT_LEAST_ONCE = 1
"""The quality of service with a confirmation (MQTT's QoS 1)."""
EXACTLY_ONCE = 2
"""The quality of service that never duplicates (MQTT's QoS 2)."""
MAX_QOS = EXACTLY_ONCE
MAX_PACKET_ID = 65_535

# A node's name is also a folder of the exported log (``node=…``); hence the restricted characters.
_SEQ = re.compile(r"0|[1-9][0-9]{0,18}")
_WILDCARD = re.compile(r"[+#]")


@dataclass(frozen=True, slots=True, order=True)
class NotificationId:
    """Node and seq of a notification; text form ``node:seq``. Ids of one node sort in the order of acceptance."""

    node: str
    seq: int

    def __post_init__(self) -> None:
        node_name(self.node)
        whole("seq", self.seq, 0, INT64_MAX)

    @classmethod
    def parse(cls, text: str) -> NotificationId:
        """Return the id with the text form ``node:seq``."""
        node, _, seq = text.partition(":")
        if not _SEQ.fullmatch(seq):
            raise InvalidValueError("notification id", text, "node:seq, seq a decimal number without leading zeros")
        return cls(node, int(seq))

    def __str__(self) -> str:
        return f"{self.node}:{self.seq}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One accepted publication."""

    node: str
    seq: int
    published_at: int
    subject: str | None = None
    publisher: str | None = None
    attributes: Attributes = NO_ATTRIBUTES
    body: bytes = field(default=b"", repr=False)
    qos: int = 0
    retain: bool = False
    place: Place | None = None
    radius_m: float | None = None
    expires_at: int | None = None
    deadline_at: int | None = None
    keys: KeyHashes = NO_KEYS
    deliver_insecure: bool = True
    properties: bytes = field(default=b"", repr=False)
    """The MQTT 5 properties that travel with the notification, encoded as in MQTT; empty if there are none."""
    packet_id: int | None = None
    """Packet id that the publisher gave a publication of QoS 2, until the publisher knows that it was accepted."""
    will_seq: int | None = None
    """Seq of the will (``WillChanged``) that was published as this notification; ``None`` for other notifications."""

    def __post_init__(self) -> None:
        NotificationId(self.node, self.seq)
        if self.subject is not None:
            name("subject", self.subject, max_bytes=MAX_SUBJECT_BYTES)
            if _WILDCARD.search(self.subject):
                raise InvalidValueError("subject", self.subject, "a subject without the wildcards + and #")
        if self.publisher is not None:
            name("publisher", self.publisher)
        if type(self.attributes) is not FrozenAttributes:
            object.__setattr__(self, "attributes", checked(self.attributes))
        if type(self.body) is not bytes or len(self.body) > MAX_BODY_BYTES:
            raise InvalidValueError("body", description_of(self.body), f"at most {MAX_BODY_BYTES} bytes")
        if type(self.properties) is not bytes or len(self.properties) > MAX_BODY_BYTES:
            raise InvalidValueError("properties", description_of(self.properties), f"at most {MAX_BODY_BYTES} bytes")
        whole("qos", self.qos, 0, MAX_QOS)
        if self.packet_id is not None:
            if self.qos != MAX_QOS:
                raise InvalidValueError("packet_id", self.packet_id, "none unless qos is 2")
            whole("packet_id", self.packet_id, 1, MAX_PACKET_ID)
        if self.will_seq is not None:
            whole("will_seq", self.will_seq, 0, INT64_MAX)
        flag("retain", self.retain)
        flag("deliver_insecure", self.deliver_insecure)
        check_time("published_at", self.published_at)
        for what, moment in (("expires_at", self.expires_at), ("deadline_at", self.deadline_at)):
            if moment is not None:
                instant(what, moment)
        self._check_radius()

    def _check_radius(self) -> None:
        if self.radius_m is not None:
            if self.place is None:
                raise InvalidValueError("radius_m", self.radius_m, "none without a place")
            object.__setattr__(self, "radius_m", Area(self.place, self.radius_m).radius_m)

    def __hash__(self) -> int:
        return hash((self.node, self.seq))

    @property
    def id(self) -> NotificationId:
        """The identity of this notification."""
        return NotificationId(self.node, self.seq)

    @property
    def area(self) -> Area | None:
        """The circle in which the notification is to be received; ``None`` if it is not restricted to one."""
        if self.place is None or self.radius_m is None:
            return None
        return Area(self.place, self.radius_m)
