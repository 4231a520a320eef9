"""Tables: the schemas of the log and of what the pipeline makes of it, as neutral constants.

Rule: every column has a description, from which the docs are made, and says whether it may be null.
Rule: times are microseconds UTC, stored as ``timestamp[us, tz=UTC]``; durations are microseconds in the name.
Rule: the only module of the model that imports pyarrow; Spark's schemas are made from these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from whimbrel.errors import InvalidValueError
from whimbrel.model.attributes import (
    DEFAULT_LIMITS,
    INT32_MAX,
    INT32_MIN,
    Attributes,
    AttributeType,
    Int64,
    Limits,
    Scalar,
    checked,
    type_of,
)
from whimbrel.model.bounds import whole

__all__ = [
    "ATTRIBUTES_TYPE",
    "KEYS_TYPE",
    "PLACE_TYPE",
    "SUBSCRIPTIONS_TYPE",
    "TABLES",
    "TIME_TYPE",
    "Table",
    "as_markdown",
    "attributes_from_column_value",
    "attributes_to_column_value",
]

Field: TypeAlias = Any
"""A ``pyarrow.Field``; pyarrow ships no types."""

TIME_TYPE = pa.timestamp("us", tz="UTC")
ATTRIBUTES_TYPE = pa.map_(
    pa.string(),
    pa.struct(
        [
            ("type", pa.int8()),
            ("int", pa.int64()),
            ("real", pa.float64()),
            ("text", pa.string()),
            ("opaque", pa.binary()),
        ]
    ),
)
PLACE_TYPE = pa.struct([("latitude", pa.float64()), ("longitude", pa.float64())])
AREA_TYPE = pa.struct([("latitude", pa.float64()), ("longitude", pa.float64()), ("radius_m", pa.float64())])
CORNERS_TYPE = pa.list_(PLACE_TYPE)
DISPLAY_TYPE = pa.struct([("width_px", pa.int32()), ("height_px", pa.int32())])
KEYS_TYPE = pa.list_(pa.struct([("scheme", pa.string()), ("digest", pa.binary())]))
SUBSCRIPTIONS_TYPE = pa.list_(pa.struct([("subject_filter", pa.string()), ("name", pa.string())]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: its name, what a row is in one sentence, and its columns."""

    name: str
    description: str
    schema: Any  # a pyarrow.Schema; pyarrow ships no types
    is_log: bool


def _column(name: str, kind: object, description: str, *, is_nullable: bool = False) -> Field:
    return pa.field(name, kind, nullable=is_nullable, metadata={"description": description})


def _maybe(name: str, kind: object, description: str) -> Field:
    """Return a column that may be null; the description says what null means."""
    return _column(name, kind, description, is_nullable=True)


_NODE = _column("node", pa.string(), "The node that accepted the fact.")
_SEQ = _column("seq", pa.int64(), "The node's sequence number of the fact; with the node its identity and order.")
_SESSION = _column("session", pa.string(), "The session concerned.")
_DEVICE = _column("device", pa.string(), "The device concerned; over MQTT its client id.")
_SUBJECT = _column("subject", pa.string(), "The subject that was published to; over MQTT the topic.")
_NOTIFICATION = (
    _column("notification_node", pa.string(), "The node of the notification."),
    _column("notification_seq", pa.int64(), "The sequence number of the notification."),
)
_SUBSCRIPTION = (
    _maybe("subject_filter", pa.string(), "The subjects asked for; over MQTT the topic filter; null if any or none."),
    _column("name", pa.string(), "The subscription's name, empty if it has none; identity with subject_filter."),
)
_WINDOW = (
    _column("window_start", TIME_TYPE, "The first instant of the window."),
    _column("window_end", TIME_TYPE, "The first instant after the window."),
)
_SUBSCRIPTIONS = _column("subscriptions", SUBSCRIPTIONS_TYPE, "The subscriptions of the session that matched.")
_OUTCOME = _column("outcome", pa.string(), "One of delivered, withheld, expired, displaced, taken elsewhere, dropped.")
_BODY_HASH = _maybe("body_hash", pa.binary(), "SHA-256 of the body as handed over; null if none was.")
_KEYS = _column("keys", KEYS_TYPE, "Hashes of the keys: scheme and SHA-1 or SHA-256 digest; never a private key.")
_PLACE = _maybe("place", PLACE_TYPE, "WGS84 degrees; null if not known.")
_BATTERY = _maybe("battery", pa.float64(), "The fraction of the charge that was left, 0 to 1; null if not known.")
_DISPLAY = _maybe("display", DISPLAY_TYPE, "The display's size in pixels; null if not known.")
_PAIR = (
    _column("device_low", pa.string(), "The device of the pair whose id sorts first."),
    _column("device_high", pa.string(), "The other device of the pair."),
)


def _table(name: str, description: str, columns: Iterable[Field], *, is_log: bool) -> Table:
    schema = pa.schema(columns, metadata={"description": description})
    return Table(name=name, description=description, schema=schema, is_log=is_log)


_LOG = (
    _table(
        "publications",
        "One row per notification that was accepted.",
        [
            _NODE,
            _SEQ,
            _column("published_at", TIME_TYPE, "When the node accepted it."),
            _maybe("publisher", pa.string(), "The device that published it; null if not known."),
            _maybe("subject", pa.string(), "The subject it was published to; over MQTT the topic; null if none."),
            _column("attributes", ATTRIBUTES_TYPE, "What filters speak about; `type` says which field is set."),
            _column("body", pa.binary(), "The bytes as published."),
            _column("qos", pa.int8(), "The publisher's quality of service, 0 to 2."),
            _column("retain", pa.bool_(), "Whether it replaces the subject's retained notification."),
            _PLACE,
            _maybe("radius_m", pa.float64(), "How far from the place it is meant to be heard; null if anywhere."),
            _maybe("expires_at", TIME_TYPE, "From when on it is dead; null if it never expires by itself."),
            _maybe("deadline_at", TIME_TYPE, "By when it should be delivered; null if there is no deadline."),
            _KEYS,
            _column("deliver_insecure", pa.bool_(), "Whether a receiver without a matching key may have it."),
            _maybe("properties", pa.binary(), "MQTT 5 properties that travel with it, as encoded there; null if none."),
            _maybe("packet_id", pa.int32(), "The publisher's number of it, if qos is 2; null if there is none."),
            _maybe("will_seq", pa.int64(), "The number of the will that it is, in `wills`; null if it is none."),
        ],
        is_log=True,
    ),
    _table(
        "interests",
        "One row per subscription added, modified or removed.",
        [
            _NODE,
            _SEQ,
            _column("changed_at", TIME_TYPE, "When the node accepted the change."),
            _column("change", pa.string(), "One of added, modified, removed."),
            _maybe("device", pa.string(), "The device that changed it; null if none did."),
            _SESSION,
            *_SUBSCRIPTION,
            _maybe("filter_text", pa.string(), "The content filter; null if the subject filter decides alone."),
            _maybe("ttl_us", pa.int64(), "How long a notification is held; null for the deployment's default."),
            _maybe("max_held", pa.int32(), "How many are held, 0 for live only; null for the default."),
            _maybe("policy", pa.string(), "The policy that shapes what is handed over; null if none."),
            _maybe("near", AREA_TYPE, "The circle that notifications must come from; null if anywhere."),
            _KEYS,
            _column("accept_insecure", pa.bool_(), "Whether notifications without a matching key are welcome."),
            _maybe("qos", pa.int8(), "The quality of service granted, 0 to 2; null if not asked for over MQTT."),
            _maybe("no_local", pa.bool_(), "Whether a device's own notifications are kept from it; null as false."),
            _maybe("retain_as_published", pa.bool_(), "Whether the retain flag stays as published; null as false."),
            _maybe("identifier", pa.int32(), "The number that the subscriber gave it over MQTT; null if none."),
            _maybe("around_m", pa.float64(), "How far from the session notifications may come from; null if not said."),
            _maybe("corners", CORNERS_TYPE, "The polygon that notifications must come from; null if not said."),
            _maybe("hears_anywhere", pa.bool_(), "Whether areas are heard from outside; null as false."),
            _maybe("stale_us", pa.int64(), "How long a reported place counts; null for 120 s."),
        ],
        is_log=True,
    ),
    _table(
        "presence",
        "One row per device that connected, disconnected, joined or left a session, or finished a packet; "
        "or whose hand-overs of quality 0 have receipts from here on, or have none.",
        [
            _NODE,
            _SEQ,
            _column("changed_at", TIME_TYPE, "When the node noticed."),
            _DEVICE,
            _maybe("session", pa.string(), "The session joined or left; null for the connection itself."),
            _column(
                "change", pa.string(), "One of connected, disconnected, joined, left, released, completed, receipts."
            ),
            _maybe("receipt", pa.string(), "take or keep, as the device joined; null where it does not join."),
            _maybe("packet_id", pa.int32(), "The publication released or completed; null with other changes."),
            _maybe("session_expiry_us", pa.int64(), "How long its private session outlives it; null if not said."),
            _maybe(
                "sent_seq",
                pa.int64(),
                "The last notification sent to the leaving device, and not confirmed; null if unknown.",
            ),
            _maybe(
                "confirms",
                pa.bool_(),
                "Which hand-overs of quality 0 have receipts from here on: all, or false: what may expire; null: none.",
            ),
            _maybe("owner", pa.string(), "The verified user who owns the private session; null if none."),
        ],
        is_log=True,
    ),
    _table(
        "sessions",
        "One row per session created or deleted, or given other passwords or another access control list.",
        [
            _NODE,
            _SEQ,
            _column("changed_at", TIME_TYPE, "When the node accepted the change."),
            _column("change", pa.string(), "One of created, access, deleted."),
            _SESSION,
            _maybe("device", pa.string(), "The device that changed it; null if none did."),
            _maybe("access", pa.string(), "Who may do what, as JSON: scrypt hashes or a list; null if every user may."),
        ],
        is_log=True,
    ),
    _table(
        "reports",
        "One row per report of a device's state or position.",
        [
            _NODE,
            _SEQ,
            _column("reported_at", TIME_TYPE, "When the node received the report."),
            _DEVICE,
            _BATTERY,
            _DISPLAY,
            _maybe("received", pa.int64(), "Notifications the device got since its last report; null if not said."),
            _maybe("sent", pa.int64(), "Notifications the node counted as sent since then; null if not known."),
            _PLACE,
            _maybe("members", ATTRIBUTES_TYPE, "The other members of the report; null if none."),
        ],
        is_log=True,
    ),
    _table(
        "receipts",
        "One row per outcome of handing a notification over to a device.",
        [
            _NODE,
            _SEQ,
            _column("handed_at", TIME_TYPE, "When the outcome was known."),
            _SESSION,
            _DEVICE,
            *_NOTIFICATION,
            _SUBSCRIPTIONS,
            _OUTCOME,
            _BODY_HASH,
            _maybe("via", pa.string(), "How it came: live, held or retained; null if it was not handed over."),
            _BATTERY,
            _maybe("network_connection", pa.float64(), "received / sent that shaped it; null if not known."),
            _DISPLAY,
            _maybe(
                "published_at", TIME_TYPE, "When a retained notification was accepted; null if it was not retained."
            ),
            _maybe("subject", pa.string(), "The subject of a retained notification; null if it was not retained."),
        ],
        is_log=True,
    ),
    _table(
        "wills",
        "One row per will that a device left with the broker, or withdrew.",
        [
            _NODE,
            _SEQ,
            _column("changed_at", TIME_TYPE, "When the node accepted the change."),
            _DEVICE,
            _column("change", pa.string(), "One of left, withdrawn; nothing below is said of what was withdrawn."),
            _maybe("subject", pa.string(), "The subject that it will be published to; null if withdrawn."),
            _maybe("body", pa.binary(), "Its bytes; null if withdrawn."),
            _maybe("qos", pa.int8(), "Its quality of service, 0 to 2; null if withdrawn."),
            _maybe("retain", pa.bool_(), "Whether it will replace the subject's retained notification; null as false."),
            _maybe("delay_us", pa.int64(), "How long after the disconnection it is published; null as 0."),
            _maybe("expiry_us", pa.int64(), "How long it lives once it is published; null if for ever."),
            _column("keys", KEYS_TYPE, "Hashes of the keys it will be published with."),
            _column("deliver_insecure", pa.bool_(), "Whether a receiver without a matching key may have it."),
            _maybe("properties", pa.binary(), "MQTT 5 properties that travel with it, as encoded there; null if none."),
        ],
        is_log=True,
    ),
    _table(
        "policies",
        "One row per policy put or removed, or chosen by a device as its own.",
        [
            _NODE,
            _SEQ,
            _column("changed_at", TIME_TYPE, "When the node accepted the change."),
            _column("change", pa.string(), "One of put, removed, chosen."),
            _column("owner", pa.string(), "The verified user whose it is; the device if no user was verified."),
            _maybe("name", pa.string(), "The policy's name; null if a device chooses to have none."),
            _maybe("text", pa.string(), "The policy; null unless it is put. The seq is its version."),
            _maybe("device", pa.string(), "The device that put, removed or chose it; null if none did."),
        ],
        is_log=True,
    ),
    _table(
        "decisions",
        "One row per decision of a policy about handing a notification over to a device.",
        [
            _NODE,
            _SEQ,
            _column("decided_at", TIME_TYPE, "The moment that the policy was told it is."),
            _SESSION,
            _DEVICE,
            *_NOTIFICATION,
            _column("policy_seq", pa.int64(), "The version of the policy: its number in `policies`."),
            _column("policy", pa.string(), "The policy's name; manual variables are kept per device and name."),
            _column("outcome", pa.string(), "One of delivered, withheld."),
            _maybe("reason", pa.string(), "Why the policy failed, which withholds; null if it did not."),
            _maybe("body_hash", pa.binary(), "SHA-256 of the body to hand over; null if withheld."),
            _maybe("body_bytes", pa.int64(), "How long that body is; null if withheld."),
            _maybe("body", pa.binary(), "That body; null if it is the notification's own, or is never sent again."),
            _maybe("attributes", ATTRIBUTES_TYPE, "Those of what is handed over; null if they are its own."),
            _column("read", ATTRIBUTES_TYPE, "The variables that were read, with their values; none is missing."),
            _column("changed", ATTRIBUTES_TYPE, "The manual variables that were set, with their new values."),
            _column("removed", pa.list_(pa.string()), "The manual variables that were removed."),
            _column("steps", pa.int64(), "How many steps the policy took."),
            _column("bytes_read", pa.int64(), "How many bytes its transforms read."),
            _column("pixels_read", pa.int64(), "How many pixels its transforms read."),
            _maybe("publisher", pa.string(), "The device that published the notification; null if not known."),
        ],
        is_log=True,
    ),
)

_OUTPUT = (
    _table(
        "matches",
        "One row per notification and subscription in force that wants it.",
        [
            *_NOTIFICATION,
            _column("published_at", TIME_TYPE, "When the notification was accepted."),
            _SESSION,
            *_SUBSCRIPTION,
            _column("interest_seq", pa.int64(), "The sequence number of the interest that was in force."),
        ],
        is_log=False,
    ),
    _table(
        "deliveries",
        "One row per notification, session and device: what became of it; and one per retained copy with a receipt.",
        [
            *_NOTIFICATION,
            _column("published_at", TIME_TYPE, "When the notification was accepted."),
            _maybe("subject", pa.string(), "The subject it was published to; over MQTT the topic; null if none."),
            _maybe("deadline_at", TIME_TYPE, "By when it should be delivered; null if there is no deadline."),
            _SESSION,
            _maybe("device", pa.string(), "The device; null if it lapsed with no device to give it to."),
            _SUBSCRIPTIONS,
            _OUTCOME,
            _BODY_HASH,
            _column("decided_at", TIME_TYPE, "When the outcome was known."),
            _maybe("lapses_at", TIME_TYPE, "From when on it is not held any more; null if it was never held."),
            _maybe(
                "via",
                pa.string(),
                "How its receipt says that it came: live, held or retained; null if none did, as at quality 0.",
            ),
            _maybe(
                "difference",
                pa.string(),
                "What its policy decides otherwise than the log says, in words; null if nothing, or none decided.",
            ),
        ],
        is_log=False,
    ),
    _table(
        "popularity",
        "One row per subject and window: how many want it and how much there is.",
        [
            *_WINDOW,
            _SUBJECT,
            _column("subscribers", pa.int64(), "Sessions with a matching subscription at the window's end."),
            _column("publications", pa.int64(), "Notifications published in the window."),
            _column("rate_per_s", pa.float64(), "Notifications per second in the window."),
        ],
        is_log=False,
    ),
    _table(
        "replicas",
        "One row per subject: how many copies of a sample the way-servers should spread.",
        [
            _SUBJECT,
            _column("subscribers", pa.int64(), "Sessions that want the subject."),
            _column("share", pa.float64(), "The part of all memory for samples that the subject gets, 0 to 1."),
            _column("replicas", pa.int64(), "L_i: the copies of each sample, whole and at least one."),
            _column("memory_bytes", pa.int64(), "What these copies take in all devices together."),
        ],
        is_log=False,
    ),
    _table(
        "link_quality",
        "One row per report that follows another of the same node and device: the state of its link in between.",
        [
            _NODE,
            _SEQ,
            _DEVICE,
            _column("since_at", TIME_TYPE, "The report before."),
            _column("reported_at", TIME_TYPE, "The report."),
            _maybe("received", pa.int64(), "Notifications the device received in between; null if not said."),
            _maybe("sent", pa.int64(), "Notifications the node sent in between; null if not known."),
            _maybe("network_connection", pa.float64(), "received / sent, 0 to 1, else as before; null until known."),
        ],
        is_log=False,
    ),
    _table(
        "latency",
        "One row per subject and window of publication: how long notifications took to arrive.",
        [
            *_WINDOW,
            _SUBJECT,
            _column(
                "delivered",
                pa.int64(),
                "Hand-overs that were delivered, with a receipt or without; no retained copies.",
            ),
            _maybe(
                "p50_us",
                pa.int64(),
                "Half of those with a receipt arrived in this time, rounded up by at most 2 %; null if none.",
            ),
            _maybe("p90_us", pa.int64(), "Nine of ten did, rounded up likewise; null if none has a receipt."),
            _maybe("p99_us", pa.int64(), "99 of 100 did, rounded up likewise; null if none has a receipt."),
            _column("expired_unseen", pa.int64(), "Hand-overs that never were: expired before a device took them."),
            _column("deadlines_missed", pa.int64(), "Hand-overs, or expiries unseen, at the deadline or later."),
        ],
        is_log=False,
    ),
    _table(
        "contacts",
        "One row per time that two devices were within range of each other.",
        [
            *_PAIR,
            _column("began_at", TIME_TYPE, "The report that brought both within range."),
            _maybe(
                "ended_at",
                TIME_TYPE,
                "The report that took them apart, or when a place went stale; null if they were still together.",
            ),
            _column("closest_m", pa.float64(), "The least distance between them that was reported."),
        ],
        is_log=False,
    ),
    _table(
        "meetings",
        "One row per pair of devices, and one for all pairs: how often they meet, of contacts that have ended.",
        [
            _maybe("device_low", pa.string(), "The device whose id sorts first; null in the row for all pairs."),
            _maybe("device_high", pa.string(), "The other device; null in the row for all pairs."),
            _column("contacts", pa.int64(), "How often they met."),
            _column("mean_contact_us", pa.float64(), "How long a contact lasts in the mean."),
            _maybe("mean_apart_us", pa.float64(), "The mean from one contact to the next; null below two."),
            _maybe("meeting_time_us", pa.float64(), "E_mm: the mean wait from a random instant; null below two."),
        ],
        is_log=False,
    ),
    _table(
        "dead_letters",
        "One row per input that could not be read.",
        [
            _column("found_at", TIME_TYPE, "When it was refused."),
            _column("source", pa.string(), "Where it came from: a file, a topic, a table."),
            _maybe("position", pa.int64(), "The line, offset or sequence number there; null if not known."),
            _column("reason", pa.string(), "What was found, what is allowed, and where."),
            _maybe("content", pa.binary(), "The input, or its beginning; null if there is none to show."),
        ],
        is_log=False,
    ),
)

TABLES: dict[str, Table] = {table.name: table for table in (*_LOG, *_OUTPUT)}
"""All tables by name: the log's first, then the pipeline's."""

_FIELDS = {
    AttributeType.INT32: "int",
    AttributeType.INT64: "int",
    AttributeType.REAL64: "real",
    AttributeType.STRING: "text",
    AttributeType.OPAQUE: "opaque",
}


def attributes_to_column_value(attributes: Attributes) -> list[tuple[str, dict[str, object]]]:
    """Return *attributes* as pyarrow wants a value of ``ATTRIBUTES_TYPE``."""
    return [(name, _entry(type_of(value), value)) for name, value in attributes.items()]


def attributes_from_column_value(
    entries: Mapping[str, Mapping[str, Any]] | Iterable[tuple[str, Mapping[str, Any]]],
    *,
    limits: Limits = DEFAULT_LIMITS,
) -> Attributes:
    """Return the attributes of a value of ``ATTRIBUTES_TYPE``, as pyarrow (pairs) or Spark (a dict) gives it."""
    values: dict[str, Scalar] = {}
    for name, entry in entries.items() if isinstance(entries, Mapping) else entries:
        if name in values:
            raise InvalidValueError("attribute name", name, "each name once")
        values[name] = _scalar(name, entry)
    return checked(values, limits=limits)


def _entry(kind: AttributeType, value: Scalar) -> dict[str, object]:
    entry: dict[str, object] = dict.fromkeys(("type", "int", "real", "text", "opaque"))
    plain = int(value) if isinstance(value, int) else value
    return entry | {"type": int(kind), _FIELDS[kind]: plain}


def _scalar(name: str, entry: Mapping[str, Any] | None) -> Scalar:
    """Return the value of *entry*; the log may have been written by others, so it is looked at."""
    if entry is None:
        raise InvalidValueError(f"attribute {name}", entry, "a type and a value")
    kind = entry["type"]
    if kind not in _FIELDS:
        raise InvalidValueError(f"type of attribute {name}", kind, "1 to 5")
    value: Scalar | None = entry[_FIELDS[kind]]
    if value is None:
        raise InvalidValueError(f"attribute {name}", value, f"a value in the field {_FIELDS[kind]}")
    if kind == AttributeType.INT32:
        return whole(f"attribute {name}", value, INT32_MIN, INT32_MAX)
    return Int64(value) if kind == AttributeType.INT64 else value


def as_markdown() -> str:
    """Return the reference page of all tables."""
    parts = ["# Tables", "", "Times are microseconds UTC. A column that may be null says what null means.", ""]
    for table in TABLES.values():
        parts += [f"## `{table.name}`", "", f"{'In' if table.is_log else 'Out'}: {table.description}", ""]
        parts += ["| column | type | null | what |", "|---|---|---|---|"]
        parts += [_row(column) for column in table.schema]
        parts.append("")
    return "\n".join(parts)


def _row(column: Field) -> str:
    description = column.metadata[b"description"].decode()
    null = "yes" if column.nullable else "no"
    return f"| `{column.name}` | `{_spelled(column.type)}` | {null} | {description} |"


def _spelled(kind: Any) -> str:  # noqa: ANN401 # a pyarrow.DataType; pyarrow ships no types
    """Return the type in the words of SQL, as the architecture page has them."""
    if pa.types.is_map(kind):
        return f"map<{_spelled(kind.key_type)}, {_spelled(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{_spelled(kind.value_type)}>"
    if pa.types.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        return f"struct<{', '.join(f'{each.name} {_spelled(each.type)}' for each in fields)}>"
    return _SPELLINGS[kind]


_SPELLINGS = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    TIME_TYPE: "timestamp",
}
