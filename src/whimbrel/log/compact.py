"""Compact records: a short encoding of the most frequent facts, which Python packs in few steps.

A *publication* is its time (int64), flags (uint8), and the lengths of publisher and subject (uint16 each). Then, if
their flags are set, follow ``expires_at`` (int64), ``packet_id`` (uint16) and the length of the properties (uint32).
Then follow publisher, subject, properties and body; the body ends where the record ends.
A *delivery* (a receipt) is its time and the notification's seq (int64 each) and its via (uint8): whether the device got
the notification when it was published (1, live), from its session's queue (2, held) or as a retained message (3,
retained); 0 stands for null. Then follow session, device and subscriptions as one CBOR list. The list is the same in
all receipts of a device for the same subscriptions, so the broker caches it in its encoded form (``receipt_prefix``).
A *move* (a report that has only a position) is its time (int64), latitude and longitude (float64 each), then the device
as UTF-8. All numbers are big-endian.

Rule: the flag 0x40 means that a body that is not an object was matched as the attribute ``value``. A record without the
flag is from an older Whimbrel, which had no such attribute.
Rule: a compact record decodes to the same row as a full record.
Rule: attributes are not written; the reader derives them from the body (``model.codecs.attributes_of``). So a
publication may be compact only if

- all its attributes come from its body;
- it has no place, no deadline and no keys, and receivers without a matching key may have it (``deliver_insecure``);
- it is not a published will.

A receipt may be compact only if

- the notification was published on the same node, and the device got it with an unchanged body;
- the receipt has no battery, network connection or display of the device;
- the receipt does not repeat the time and the subject of a retained message.

Rule: callers of the functions that encode have checked the values, when the packet was read or the subscriber
connected. So these functions check little.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import cbor2

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.model.bounds import name
from whimbrel.model.codecs import attributes_of
from whimbrel.model.facts import Outcome
from whimbrel.model.subscription import SubscriptionIdentity

__all__ = [
    "DELIVERY",
    "MOVE",
    "PUBLICATION",
    "PublicationColumns",
    "ReceiptColumns",
    "move_body",
    "move_values",
    "publication_bodies",
    "publication_body",
    "publication_columns",
    "publication_values",
    "receipt_bodies",
    "receipt_body",
    "receipt_columns",
    "receipt_prefix",
    "receipt_rest",
    "receipt_values",
    "subscriber_values",
    "time_of",
]

PUBLICATION = 7
DELIVERY = 8
MOVE = 12

_RETAIN, _QOS_SHIFT, _EXPIRES, _PACKET, _PROPERTIES, _VALUE = 0x01, 1, 0x08, 0x10, 0x20, 0x40
_KNOWN_FLAGS = 0x7F
_OPTIONAL = _EXPIRES | _PACKET | _PROPERTIES
_QOS_BITS = 3

_TIME = struct.Struct(">q")
_PUBLICATION_START = struct.Struct(">qBqBHH")  # begins with seq and table number, as every record does
_PUBLICATION = struct.Struct(">qBHH")
_EXPIRES_AT = struct.Struct(">q")
_PACKET_ID = struct.Struct(">H")
_PROPERTIES_LENGTH = struct.Struct(">I")
_DELIVERY_START = struct.Struct(">qBqqB")
_DELIVERY = struct.Struct(">qqB")
_MOVE_START = struct.Struct(">qBqdd")
_MOVE = struct.Struct(">qdd")

_VIAS = (None, "live", "held", "retained")
_VIA_NUMBERS = {via: number for number, via in enumerate(_VIAS)}

_pack_publication, _pack_delivery, _pack_move = _PUBLICATION_START.pack, _DELIVERY_START.pack, _MOVE_START.pack


def publication_body(
    seq: int,
    published_at: int,
    publisher: bytes,
    subject: bytes,
    body: bytes,
    *,
    qos: int = 0,
    retain: bool = False,
    expires_at: int | None = None,
    packet_id: int | None = None,
    properties: bytes = b"",
) -> bytes:
    """Return the body of a publication record in the short form; *publisher* and *subject* are UTF-8, or empty."""
    flags = qos << _QOS_SHIFT | retain | _VALUE
    if expires_at is None and packet_id is None and not properties:  # the usual case
        start = _pack_publication(seq, PUBLICATION, published_at, flags, len(publisher), len(subject))
        return b"".join((start, publisher, subject, body))
    optional = b""
    if expires_at is not None:
        flags, optional = flags | _EXPIRES, _EXPIRES_AT.pack(expires_at)
    if packet_id is not None:
        flags, optional = flags | _PACKET, optional + _PACKET_ID.pack(packet_id)
    if properties:
        flags, optional = flags | _PROPERTIES, optional + _PROPERTIES_LENGTH.pack(len(properties))
    start = _pack_publication(seq, PUBLICATION, published_at, flags, len(publisher), len(subject))
    return b"".join((start, optional, publisher, subject, properties, body))


def publication_bodies(
    first: int, published_at: int, names: tuple[bytes, bytes], bodies: Sequence[bytes], *, qos: int
) -> list[bytes]:
    """Return the bodies of the records of several publications, whose seqs are *first* and those that follow it.

    They have the same *names*, of publisher and subject, and neither an expiry nor properties.
    """
    flags, lengths, joined = qos << _QOS_SHIFT | _VALUE, tuple(map(len, names)), b"".join(names)
    return [
        b"".join((_pack_publication(seq, PUBLICATION, published_at, flags, *lengths), joined, body))
        for seq, body in enumerate(bodies, start=first)
    ]


def receipt_prefix(session: str, device: str, subscriptions: Sequence[SubscriptionIdentity] = ()) -> bytes:
    """Encode session, device and subscriptions: the end of each receipt of a subscriber, which the broker reuses."""
    flat = [text for each in subscriptions for text in (each.subject_filter, each.name)]
    return cbor2.dumps([name("session", session), name("device", device), flat])


def receipt_body(seq: int, handed_at: int, prefix: bytes, notification_seq: int, via: str | None = "live") -> bytes:
    """Return the body of a delivery record in the short form; *prefix* is the result of ``receipt_prefix``."""
    return _pack_delivery(seq, DELIVERY, handed_at, notification_seq, _VIA_NUMBERS[via]) + prefix


def receipt_bodies(first: int, handed_at: int, receipts: Sequence[tuple[bytes, int, str | None]]) -> list[bytes]:
    """Return the bodies of several delivery records, whose seqs are *first* and those that follow it.

    Each of *receipts* has the last three arguments of ``receipt_body``.
    """
    return [
        _pack_delivery(seq, DELIVERY, handed_at, notification_seq, _VIA_NUMBERS[via]) + prefix
        for seq, (prefix, notification_seq, via) in enumerate(receipts, start=first)
    ]


def move_body(seq: int, reported_at: int, latitude: float, longitude: float, device: bytes) -> bytes:
    """Return the body of a move record (a report of a position only) in the short form; *device* is UTF-8."""
    return _pack_move(seq, MOVE, reported_at, latitude, longitude) + device


# -- reading -----------------------------------------------------------------------------------------------------------


def time_of(payload: bytes) -> int:
    """Return the time of a record in the short (compact) form."""
    try:
        moment: int = _TIME.unpack_from(payload)[0]
    except struct.error:
        raise InvalidValueError("time of a record", payload, "eight bytes") from None
    return moment


_PLAIN: tuple[int | None, int | None, int, int] = (None, None, 0, _PUBLICATION.size)


def _optional(payload: bytes, flags: int) -> tuple[int | None, int | None, int, int]:
    """Return expiry, packet identifier and properties length of a publication, and the offset of its publisher."""
    expires_at, packet_id, properties_length, at = _PLAIN
    if flags & _EXPIRES:
        (expires_at,), at = _EXPIRES_AT.unpack_from(payload, at), at + _EXPIRES_AT.size
    if flags & _PACKET:
        (packet_id,), at = _PACKET_ID.unpack_from(payload, at), at + _PACKET_ID.size
    if flags & _PROPERTIES:
        (properties_length,), at = _PROPERTIES_LENGTH.unpack_from(payload, at), at + _PROPERTIES_LENGTH.size
    return expires_at, packet_id, properties_length, at


def publication_values(payload: bytes) -> list[object]:
    """Decode the short form of a publication: the values of all columns from ``published_at`` on, in order."""
    try:
        published_at, flags, publisher_length, subject_length = _PUBLICATION.unpack_from(payload)
        if flags & ~_KNOWN_FLAGS:
            raise InvalidValueError("flags", flags, f"at most {_KNOWN_FLAGS}; more are from a newer Whimbrel")
        expires_at, packet_id, properties_length, at = _optional(payload, flags)
    except struct.error as error:
        raise InvalidValueError("payload", Phrase(str(error)), "a publication as it came") from None
    subject_at = at + publisher_length
    properties_at = subject_at + subject_length
    body_at = properties_at + properties_length
    if body_at > len(payload):
        raise InvalidValueError(
            "payload", Phrase(f"{len(payload)} bytes"), f"at least the {body_at} that its lengths say"
        )
    body = payload[body_at:]
    return [
        published_at,
        _text("publisher", payload[at:subject_at]),
        _text("subject", payload[subject_at:properties_at]),
        attributes_of(body, has_value=bool(flags & _VALUE)),
        body,
        flags >> _QOS_SHIFT & _QOS_BITS,
        bool(flags & _RETAIN),
        None,  # place
        None,  # radius_m
        expires_at,
        None,  # deadline_at
        [],  # keys
        True,  # deliver_insecure
        payload[properties_at:body_at] or None,
        packet_id,
        None,  # will_seq
    ]


class PublicationColumns(NamedTuple):
    """Columns that the short form of a publication stores; the others are constant (see ``publication_values``)."""

    published_at: Sequence[int]
    publisher: list[str | None]
    subject: list[str | None]
    has_value: list[bool]
    """Whether a body that is not an object is the attribute ``value``."""
    body: list[bytes]
    qos: list[int]
    retain: list[bool]
    expires_at: list[int | None]
    properties: list[bytes | None]
    packet_id: list[int | None]


def publication_columns(payloads: Sequence[bytes]) -> PublicationColumns:
    """Decode publications in the short form into columns.

    A bad record raises ``InvalidValueError`` or a Python exception.
    """
    published_at, flags, publisher_lengths, subject_lengths = zip(*map(_PUBLICATION.unpack_from, payloads), strict=True)
    texts = _Texts()
    publishers: list[str | None] = []
    subjects: list[str | None] = []
    bodies: list[bytes] = []
    expires: list[int | None] = []
    properties: list[bytes | None] = []
    packet_ids: list[int | None] = []
    for payload, flag, publisher_length, subject_length in zip(
        payloads, flags, publisher_lengths, subject_lengths, strict=True
    ):
        expires_at, packet_id, properties_length, at = _optional(payload, flag) if flag & _OPTIONAL else _PLAIN
        subject_at = at + publisher_length
        properties_at = subject_at + subject_length
        body_at = properties_at + properties_length
        if body_at > len(payload) or flag > _KNOWN_FLAGS:
            raise InvalidValueError("payload", payload, "a publication as it came")
        publishers.append(texts[payload[at:subject_at]])
        subjects.append(texts[payload[subject_at:properties_at]])
        properties.append(payload[properties_at:body_at] if properties_length else None)
        bodies.append(payload[body_at:])
        expires.append(expires_at)
        packet_ids.append(packet_id)
    return PublicationColumns(
        published_at,
        publishers,
        subjects,
        [bool(flag & _VALUE) for flag in flags],
        bodies,
        [flag >> _QOS_SHIFT & _QOS_BITS for flag in flags],
        [bool(flag & _RETAIN) for flag in flags],
        expires,
        properties,
        packet_ids,
    )


class _Texts(dict[bytes, str | None]):
    """Cache of decoded texts by their bytes, because the same names repeat."""

    def __missing__(self, data: bytes) -> str | None:
        found = self[data] = data.decode() if data else None
        return found


class ReceiptColumns(NamedTuple):
    """Columns that are stored in the short form of a delivery; the others are constant (see ``receipt_values``)."""

    handed_at: Sequence[int]
    notification_seq: Sequence[int]
    via: list[str | None]
    subscriber: list[int]
    """Index in ``subscribers`` of each delivery."""
    subscribers: list[bytes]
    """Distinct results of ``receipt_prefix``."""


def receipt_columns(payloads: Sequence[bytes]) -> ReceiptColumns:
    """Decode deliveries in the short form into columns.

    A bad record raises a Python exception (see ``receipt_values``).
    """
    handed_at, notification_seq, vias = zip(*map(_DELIVERY.unpack_from, payloads), strict=True)
    known: dict[bytes, int] = {}
    subscriber = [known.setdefault(payload[_DELIVERY.size :], len(known)) for payload in payloads]
    return ReceiptColumns(handed_at, notification_seq, [_VIAS[via] for via in vias], subscriber, list(known))


def subscriber_values(rest: list[object]) -> tuple[str, str, list[dict[str, object]]]:
    """Return session, device and subscriptions from *rest*, the decoded CBOR list that ends a delivery record."""
    match rest:
        case [str() as session, str() as device, [*flat]] if len(flat) % 2 == 0:
            pairs = zip(flat[::2], flat[1::2], strict=True)
            return session, device, [{"subject_filter": subject_filter, "name": each} for subject_filter, each in pairs]
        case _:
            raise InvalidValueError("payload", rest, "a list of session, device and subscriptions")


def move_values(payload: bytes) -> list[object]:
    """Decode the short form of a move: the values of the columns of ``reports`` from ``reported_at`` on, in order."""
    try:
        reported_at, latitude, longitude = _MOVE.unpack_from(payload)
    except struct.error as error:
        raise InvalidValueError("payload", Phrase(str(error)), "a report that only moves a device") from None
    device = _text("device", payload[_MOVE.size :])
    place = {"latitude": latitude, "longitude": longitude}
    return [reported_at, device, None, None, None, None, place, None]


def receipt_values(node: str, payload: bytes, rest: list[object]) -> list[object]:
    """Decode the short form of a delivery: the values of the columns of ``receipts`` from ``handed_at`` on, in order.

    *rest* is the decoded CBOR list at the end of *payload*.
    """
    handed_at, notification_seq, via = _DELIVERY.unpack_from(payload)
    if via >= len(_VIAS):
        raise InvalidValueError("via", via, f"at most {len(_VIAS) - 1}; more are from a newer Whimbrel")
    session, device, subscriptions = subscriber_values(rest)
    return [
        handed_at,
        session,
        device,
        node,
        notification_seq,
        subscriptions,
        Outcome.DELIVERED.value,
        None,  # body_hash
        _VIAS[via],
        None,  # battery
        None,  # network_connection
        None,  # display
        None,  # published_at
        None,  # subject
    ]


def receipt_rest(payload: bytes) -> bytes:
    """Return the end of a delivery's *payload*: session, device and subscriptions (``receipt_prefix``), encoded."""
    if len(payload) < _DELIVERY.size:
        raise InvalidValueError("payload", Phrase(f"{len(payload)} bytes"), f"at least {_DELIVERY.size}")
    return payload[_DELIVERY.size :]


def _text(what: str, data: bytes) -> str | None:
    try:
        return data.decode() if data else None
    except UnicodeDecodeError as error:
        raise InvalidValueError(what, data, f"UTF-8: {error.reason}") from None
