"""Messages: an accepted notification as the broker hands it out, encoded once for all clients that get the same bytes.

Rule: the packet identifier of a hand-over is a function of the notification's seq. So a redelivery after a crash
carries the identifier of the delivery before it, as the standard asks (4.4), and no record of it is needed.
"""

from __future__ import annotations

from typing import ClassVar

from whimbrel.broker.own_properties import NUMBER
from whimbrel.log.records import BODY, time_from
from whimbrel.model.attributes import Attributes
from whimbrel.model.codecs import attributes_of
from whimbrel.model.keys import OPEN, Secured
from whimbrel.model.notification import Notification
from whimbrel.mqtt.codec import publish_parts
from whimbrel.mqtt.codes import PacketType
from whimbrel.mqtt.mounts import unmount_properties
from whimbrel.mqtt.packets import V5
from whimbrel.mqtt.primitives import encode_text, encode_varint
from whimbrel.mqtt.properties import Property, decode_properties, passed_on
from whimbrel.node.placing import Placing

__all__ = ["LONG", "Message", "kept_bytes", "number_property", "packet_id_of", "placing_of", "secured_of"]

_IDENTIFIERS = 65_535
_EXPIRY, _ALIAS, _IDENTIFIER, _USER = b"\x02", b"\x23", b"\x0b", b"\x26"
_SECOND_US = 1_000_000
LONG = 1_024
"""A payload is kept only once where its record has more bytes than this."""
_OVERHEAD = 1_000
"""What a message that is kept takes beside its bytes, with its places in tables."""


def packet_id_of(seq: int) -> int:
    """Return the packet identifier that the notification with *seq* travels under, to every client."""
    return seq % _IDENTIFIERS + 1


def kept_bytes(record_bytes: int) -> int:
    """Return how much memory a message takes that is kept: a short payload is there as itself and encoded as well."""
    return record_bytes + _OVERHEAD if record_bytes > LONG else 3 * record_bytes + _OVERHEAD


class Message:
    """One notification on its way to any number of clients."""

    __slots__ = (
        "_at",
        "_parts",
        "_payload",
        "_payload_bytes",
        "_variant",
        "body",
        "deadline_at",
        "expires_at",
        "packet_id",
        "placing",
        "properties",
        "publisher",
        "qos",
        "retain",
        "secured",
        "seq",
        "subject",
    )

    _encoded: ClassVar[Message | None] = None
    """Of the long messages that are kept, the one that has its encoding: all who get it now share that."""

    def __init__(
        self,
        seq: int,
        publisher: str | None,
        subject: str,
        payload: bytes,
        *,
        qos: int,
        body: bytes,
        retain: bool = False,
        expires_at: int | None = None,
        properties: bytes = b"",
        secured: Secured = OPEN,
        placing: Placing | None = None,
        deadline_at: int | None = None,
    ) -> None:
        self.seq, self.publisher, self.subject = seq, publisher, subject
        self._payload: bytes | None = payload
        """None once it is kept: then it is read from the record, which it stands in."""
        self.qos, self.retain, self.expires_at, self.properties = qos, retain, expires_at, properties
        self.body = body
        """The record of it in the log, which is also what a view keeps."""
        self.secured = secured
        self.placing, self.deadline_at = placing, deadline_at
        """Where it is heard, if places make a difference to it; and from when on a copy is late."""
        self.packet_id = packet_id_of(seq).to_bytes(2)
        self._variant: object = None
        self._parts: tuple[bytes, bytes] | None = None
        """As it was last encoded: nearly always there is one way only."""

    @classmethod
    def of(cls, notification: Notification, body: bytes) -> Message:
        """Return the message of a notification that was read from a log."""
        return cls(
            notification.seq,
            notification.publisher,
            notification.subject or "",
            notification.body,
            qos=notification.qos,
            retain=notification.retain,
            expires_at=notification.expires_at,
            properties=notification.properties,
            body=body,
            secured=secured_of(notification),
            placing=placing_of(notification),
            deadline_at=notification.deadline_at,
        )

    @classmethod
    def live(cls, subject: str, payload: bytes, *, retain: bool = False, properties: bytes = b"") -> Message:
        """Return what is only sent now, or said of the broker itself: its number is never needed."""
        return cls(0, None, subject, payload, qos=0, retain=retain, expires_at=None, properties=properties, body=b"")

    def shaped(self, payload: bytes, attributes: Attributes | None) -> Message:
        """Return what a policy made of it: another *payload*, and other *attributes* if they are not its own.

        User properties are attributes too: one whose value is not among them any more does not travel.
        """
        properties = self.properties
        if attributes is not None and properties:
            found = decode_properties(properties, PacketType.PUBLISH)
            kept = tuple((name, value) for name, value in found.user if attributes.get(name) == value)
            properties = passed_on(found.with_user(kept))
        return Message(
            self.seq,
            self.publisher,
            self.subject,
            payload,
            qos=self.qos,
            body=self.body,
            retain=self.retain,
            expires_at=self.expires_at,
            properties=properties,
            secured=self.secured,
            placing=self.placing,
            deadline_at=self.deadline_at,
        )

    def attributes(self) -> Attributes:
        """Return what content filters ask about."""
        if not self.properties:
            return attributes_of(self.payload)
        properties = decode_properties(self.properties, PacketType.PUBLISH)
        return attributes_of(self.payload, properties.user, content_type=properties.text(Property.CONTENT_TYPE))

    @property
    def published_at(self) -> int:
        """When it was accepted, as its record says."""
        _, number = BODY.unpack_from(self.body)
        return time_from(number, self.body[BODY.size :])

    @property
    def payload(self) -> bytes:
        """What was published."""
        payload = self._payload
        return self.body[self._at : self._at + self._payload_bytes] if payload is None else payload

    def keep(self) -> None:
        """Get ready to be kept for long: let a long payload, of which the record has all bytes, be there only once."""
        payload = self._payload
        if payload is None or len(self.body) <= LONG:
            return
        at = len(self.body) - len(payload) if self.body.endswith(payload) else self.body.find(payload)
        if at >= 0:
            self._payload, self._at, self._payload_bytes = None, at, len(payload)

    @property
    def size(self) -> int:
        """How many bytes it occupies while it is kept, about."""
        size = len(self.body) + len(self.properties)  # as ``kept_bytes`` says, which takes as long again
        return size + _OVERHEAD if size > LONG else 3 * size + _OVERHEAD

    def packet(
        self,
        version: int,
        qos: int,
        now: int,
        *,
        retain: bool = False,
        dup: bool = False,
        identifiers: tuple[int, ...] = (),
        alias: int = 0,
        is_alias_known: bool = False,
        own: bytes = b"",
        mount: str = "",
    ) -> bytes:
        """Return the PUBLISH for a client at *mount*, with its *own* properties before those of its publisher."""
        remaining = 0
        if version == V5 and self.expires_at is not None:
            remaining = max(1, -(-(self.expires_at - now) // _SECOND_US))
        variant = (version, qos, retain, dup, identifiers, alias, is_alias_known, remaining, own, mount)
        parts = self._parts
        if parts is None or self._variant != variant:
            properties = b""
            if version == V5:
                passed = unmount_properties(self.properties, mount) if mount else self.properties
                properties = _own_properties(remaining, alias, identifiers) + own + passed
            topic = b"" if is_alias_known else self.subject.removeprefix(mount).encode()
            parts = publish_parts(
                topic, self.payload, qos=qos, retain=retain, dup=dup, version=version, properties=properties
            )
            if not alias:  # the aliases of one client are of no use to another
                self._variant, self._parts = variant, parts
                if self._payload is None:
                    self._be_the_only_one_encoded()
        return parts[0] + self.packet_id + parts[1] if qos else parts[0]

    def _be_the_only_one_encoded(self) -> None:
        """Let go of how the last long message that is kept was encoded, or there would be two of each before long."""
        last, Message._encoded = Message._encoded, self
        if last is not None and last is not self:
            last.forget_encoding()

    def forget_encoding(self) -> None:
        """Let go of how it was last encoded."""
        self._variant = self._parts = None


def secured_of(notification: Notification) -> Secured:
    """Return the keys that a notification was published with."""
    if not notification.keys.hashes and notification.deliver_insecure:
        return OPEN
    return Secured(notification.keys, notification.deliver_insecure)


def placing_of(notification: Notification) -> Placing | None:
    """Return where a notification was published; None if it has no place."""
    return None if notification.place is None else Placing(notification.place, notification.radius_m)


def number_property(node: str, seq: int) -> bytes:
    """Return the user property that says which notification a copy is of; none for what has no number."""
    return _USER + encode_text(NUMBER) + encode_text(f"{node}:{seq}") if seq else b""


def _own_properties(remaining_s: int, alias: int, identifiers: tuple[int, ...]) -> bytes:
    found = b""
    if remaining_s:
        found += _EXPIRY + min(remaining_s, 0xFFFFFFFF).to_bytes(4)
    if alias:
        found += _ALIAS + alias.to_bytes(2)
    for identifier in identifiers:
        found += _IDENTIFIER + encode_varint(identifier)
    return found
