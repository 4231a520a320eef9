"""Kept notifications: the form of an accepted notification while it is held, retained or being delivered.

Rule: the packet identifier of a delivery is a function of the notification's seq. So a redelivery after a crash has the
same identifier as the first delivery, as MQTT requires (4.4), and the identifier need not be stored.
"""

from __future__ import annotations

from typing import Any

from whimbrel.errors import InvalidValueError, description_of
from whimbrel.log.records import BODY, row_from, values_from
from whimbrel.model.attributes import Attributes
from whimbrel.model.codecs import attributes_of
from whimbrel.model.keys import OPEN, Secured
from whimbrel.model.notification import Notification
from whimbrel.model.rows import COLUMNS, fact_of
from whimbrel.node.places.placing import Placing

__all__ = ["LONG", "KeptNotification", "kept_bytes", "packet_id_of", "secured_of"]

_ATTRIBUTES = COLUMNS["publications"].index("attributes")
_IDENTIFIERS = 65_535
LONG = 1_024
"""Size of a record, in bytes, above which the payload is stored only in the record."""
_OVERHEAD = 1_000
"""Estimated memory of a kept notification without its record and properties, in bytes."""


def packet_id_of(seq: int) -> int:
    """Return the packet identifier of the notification with *seq*, the same for every client."""
    return seq % _IDENTIFIERS + 1


def kept_bytes(record_bytes: int) -> int:
    """Return the estimated memory of a kept notification; a short payload is also stored on its own, and encoded."""
    return record_bytes + _OVERHEAD if record_bytes > LONG else 3 * record_bytes + _OVERHEAD


class KeptNotification:
    """An accepted notification and its record in the log; ``encoded`` is the broker's cache of its last PUBLISH packet.

    Its values are not checked again, because they come from a decoded packet or a validated record.
    """

    __slots__ = (
        "_at",
        "_payload",
        "_payload_bytes",
        "deadline_at",
        "encoded",
        "expires_at",
        "is_written",
        "packet_id",
        "placing",
        "properties",
        "published_at",
        "publisher",
        "qos",
        "record",
        "retain",
        "secured",
        "seq",
        "subject",
    )

    def __init__(
        self,
        seq: int,
        publisher: str | None,
        subject: str,
        payload: bytes,
        *,
        qos: int,
        record: bytes,
        published_at: int = 0,
        retain: bool = False,
        expires_at: int | None = None,
        properties: bytes = b"",
        secured: Secured = OPEN,
        placing: Placing | None = None,
        deadline_at: int | None = None,
    ) -> None:
        self.seq, self.publisher, self.subject = seq, publisher, subject
        self._payload: bytes | None = payload
        """The payload; None once it is stored only in the record (see ``keep``)."""
        self.qos, self.retain, self.expires_at, self.properties = qos, retain, expires_at, properties
        self.record, self.published_at = record, published_at
        """The body of its record in the log, which is also its row."""
        self.secured = secured
        self.placing, self.deadline_at = placing, deadline_at
        """Place and area of the publication (None: without a place), and the time from which on a copy is late."""
        self.packet_id = packet_id_of(seq).to_bytes(2)
        self.encoded: tuple[object, tuple[bytes, bytes]] | None = None
        self.is_written = False
        """Whether the store may have a row of the notification as a held one."""

    @classmethod
    def of(cls, notification: Notification, record: bytes) -> KeptNotification:
        """Return the kept form of a notification that was read from a log."""
        return cls(
            notification.seq,
            notification.publisher,
            notification.subject or "",
            notification.body,
            qos=notification.qos,
            retain=notification.retain,
            expires_at=notification.expires_at,
            properties=notification.properties,
            record=record,
            published_at=notification.published_at,
            secured=secured_of(notification),
            placing=_placing_of(notification),
            deadline_at=notification.deadline_at,
        )

    @classmethod
    def restored(cls, node: str, record: bytes) -> KeptNotification:
        """Return the kept form of the notification in *record*, a record of the log of *node*."""
        seq, number = BODY.unpack_from(record)
        fact = fact_of(*row_from(node, seq, number, record[BODY.size :]))
        if not isinstance(fact, Notification):
            raise InvalidValueError("row of a view", description_of(fact), "a notification")
        return cls.of(fact, record)

    @classmethod
    def live(cls, subject: str, payload: bytes, *, retain: bool = False, properties: bytes = b"") -> KeptNotification:
        """Return a message without a seq and a record: a live QoS 0 copy, or one of the broker itself."""
        return cls(0, None, subject, payload, qos=0, retain=retain, expires_at=None, properties=properties, record=b"")

    def with_payload(self, payload: bytes, properties: bytes) -> KeptNotification:
        """Return the same notification with the payload and properties that a policy decided."""
        return KeptNotification(
            self.seq,
            self.publisher,
            self.subject,
            payload,
            qos=self.qos,
            record=self.record,
            published_at=self.published_at,
            retain=self.retain,
            expires_at=self.expires_at,
            properties=properties,
            secured=self.secured,
            placing=self.placing,
            deadline_at=self.deadline_at,
        )

    def attributes(self) -> Attributes:
        """Return the attributes that content filters read."""
        if not self.properties or not self.record:
            return attributes_of(self.payload)
        return self.recorded_attributes()

    def recorded_attributes(self) -> Attributes:
        """Return the attributes in its record."""
        seq, number = BODY.unpack_from(self.record)
        _, values = values_from("", seq, number, self.record[BODY.size :])
        attributes: Any = values[_ATTRIBUTES]
        return attributes  # type: ignore[no-any-return]  # a value of a column of any type

    @property
    def payload(self) -> bytes:
        """The body as it was published."""
        payload = self._payload
        return self.record[self._at : self._at + self._payload_bytes] if payload is None else payload

    @property
    def has_own_payload(self) -> bool:
        """Whether the payload is stored on its own, not only in the record."""
        return self._payload is not None

    def keep(self) -> None:
        """Store a long payload only in the record, which has all its bytes; call this if it will be kept for long."""
        payload = self._payload
        if payload is None or len(self.record) <= LONG:
            return
        at = len(self.record) - len(payload) if self.record.endswith(payload) else self.record.find(payload)
        if at >= 0:
            self._payload, self._at, self._payload_bytes = None, at, len(payload)

    @property
    def size(self) -> int:
        """Estimated memory of the kept notification, in bytes."""
        size = len(self.record) + len(self.properties)  # same as ``kept_bytes``, without the cost of a call
        return size + _OVERHEAD if size > LONG else 3 * size + _OVERHEAD


def secured_of(notification: Notification) -> Secured:
    """Return the keys that a notification was published with."""
    if not notification.keys.hashes and notification.deliver_insecure:
        return OPEN
    return Secured(notification.keys, notification.deliver_insecure)


def _placing_of(notification: Notification) -> Placing | None:
    return None if notification.place is None else Placing(notification.place, notification.radius_m)
