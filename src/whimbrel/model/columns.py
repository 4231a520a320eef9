"""Columns: one table that describes all columns of the log and of the pipeline's tables.

Rows (``rows``), Arrow schemas (``tables``), JSON lines (``log.lines``), the pre-check of foreign rows
(``pipeline.files.suspects``), the reference page and the strategies of the tests are all generated from it.
Rule: every column has a description, from which the docs are made, and says whether it may be null.
Rule: times are microseconds UTC; the names of durations say that they are in microseconds.
Rule: a log table begins with node, seq and the fact's own time. New columns are only added at its end. A column that
was added later may be null, whatever the fact's own default is, because older files lack it.
Rule: the bounds are those that the fact itself checks when it is built; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeAlias

from whimbrel.model.attributes import NO_ATTRIBUTES
from whimbrel.model.bounds import FIRST_TIME, INT32_MAX, INT64_MAX, INT64_MIN, LAST_TIME, MAX_NAME_BYTES
from whimbrel.model.facts import (
    MAX_ACCESS_BYTES,
    Decided,
    InterestChanged,
    Mode,
    Outcome,
    PolicyChange,
    PolicyChanged,
    PresenceChange,
    PresenceChanged,
    Receipt,
    Reported,
    SessionChange,
    SessionChanged,
    WillChange,
    WillChanged,
)
from whimbrel.model.notification import MAX_BODY_BYTES, MAX_PACKET_ID, MAX_QOS, MAX_SUBJECT_BYTES, Notification
from whimbrel.model.place import MAX_RADIUS_M
from whimbrel.model.policies import MAX_POLICY_BYTES, MAX_REASON_BYTES
from whimbrel.model.subscription import (
    MAX_FILTER_BYTES,
    MAX_IDENTIFIER,
    MAX_SUBSCRIPTION_NAME_BYTES,
    InterestChange,
)

__all__ = ["LOG_SPECS", "NEEDED", "SPECS", "Column", "Kind", "TableSpec"]


class Kind(Enum):
    """Type of a column's values, in all forms of a row."""

    TEXT = auto()
    NODE = auto()
    """Name of a node."""
    FLAG = auto()
    INT8 = auto()
    INT32 = auto()
    INT64 = auto()
    REAL = auto()
    TIME = auto()
    BYTES = auto()
    BODY = auto()
    """Bytes that are written as text in JSON, if they are valid text."""
    HASH = auto()
    """A SHA-256 hash."""
    PROPERTIES = auto()
    """MQTT 5 properties, encoded as in MQTT; no properties are written as null."""
    ATTRIBUTES = auto()
    """Values by name, each with its type."""
    KEYS = auto()
    PLACE = auto()
    AREA = auto()
    CORNERS = auto()
    DISPLAY = auto()
    SUBSCRIPTIONS = auto()
    """Identities of subscriptions."""
    TEXTS = auto()


Words: TypeAlias = type[Enum] | tuple[str | Enum, ...]
"""All values of a column that has only a few: texts, or members of an enum whose values are the texts."""

NEEDED: Any = object()
"""Marks a column without a default: every row must have it."""

_BOUNDS: dict[Kind, tuple[float, float]] = {
    Kind.TEXT: (1, MAX_NAME_BYTES),
    Kind.INT8: (0, 127),
    Kind.INT32: (0, INT32_MAX),
    Kind.INT64: (0, INT64_MAX),
    Kind.REAL: (0, INT64_MAX),
    Kind.TIME: (FIRST_TIME, LAST_TIME),
    Kind.BYTES: (0, MAX_BODY_BYTES),
    Kind.BODY: (0, MAX_BODY_BYTES),
    Kind.HASH: (32, 32),
    Kind.PROPERTIES: (0, MAX_BODY_BYTES),
}
"""Default bounds per kind: of the value; for text, of its bytes of UTF-8; for bytes, of their number."""
_EMPTY: dict[Kind, object] = {Kind.ATTRIBUTES: NO_ATTRIBUTES, Kind.KEYS: [], Kind.SUBSCRIPTIONS: [], Kind.TEXTS: []}
"""Default of a list or map that is never null, for a row without the column."""
_ANY_TIME = {"least": INT64_MIN, "most": INT64_MAX}
"""Bounds of a time that may lie outside the years 1 to 9999."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    kind: Kind
    description: str
    is_nullable: bool = False
    is_later: bool = False
    """Whether the column was added to its table after the first release; it is null in older rows."""
    default: Any = NEEDED
    """Value for a row without the column, and for null if the column may be null."""
    least: float | None = None
    most: float | None = None
    without: str = "\0"
    """Characters that the text must not contain."""
    words: Words = ()
    """The allowed values, if there are only a few."""

    def __post_init__(self) -> None:
        if self.default is NEEDED:
            object.__setattr__(self, "default", None if self.is_nullable else _EMPTY.get(self.kind, NEEDED))
        for end, bound in zip(("least", "most"), _BOUNDS.get(self.kind, (None, None)), strict=True):
            if getattr(self, end) is None:
                object.__setattr__(self, end, bound)

    @property
    def word_texts(self) -> tuple[str, ...]:
        """The allowed values as texts, if there are only a few."""
        return tuple(word if isinstance(word, str) else word.value for word in self.words)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table: its name, the meaning of a row in one sentence, and its columns."""

    name: str
    description: str
    columns: tuple[Column, ...]
    fact: type | None = None
    """Class of the table's facts; None unless the table is part of the log."""
    record: int = 0
    """Number of the table's full records in the log's segments; never reused for another table. ``log.records`` has
    compact records under other numbers (7, 8 and 12)."""


def _null(name: str, kind: Kind, description: str, **others: Any) -> Column:  # noqa: ANN401 # fields of a column
    """Return a column that may be null; its description says what null means."""
    return Column(name, kind, description, is_nullable=True, **others)


def _later(name: str, kind: Kind, description: str, **others: Any) -> Column:  # noqa: ANN401 # fields of a column
    """Return a column that was added to its table later; it is null in older rows."""
    return Column(name, kind, description, is_nullable=True, is_later=True, **others)


_NODE = Column("node", Kind.NODE, "The node that accepted the fact.")
_SEQ = Column("seq", Kind.INT64, "The node's sequence number of the fact; with the node its identity and order.")
_SESSION = Column("session", Kind.TEXT, "The session concerned.")
_DEVICE = Column("device", Kind.TEXT, "The device concerned; over MQTT its client id.")
_SUBJECT = Column("subject", Kind.TEXT, "The subject that was published to; over MQTT the topic.")
_NOTIFICATION = (
    Column("notification_node", Kind.NODE, "The node of the notification."),
    Column("notification_seq", Kind.INT64, "The sequence number of the notification."),
)
_SUBSCRIPTION = (
    _null(
        "subject_filter",
        Kind.TEXT,
        "The subjects asked for; over MQTT the topic filter; null if any or none.",
        most=MAX_SUBJECT_BYTES,
    ),
    Column(
        "name",
        Kind.TEXT,
        "The subscription's name, empty if it has none; identity with subject_filter.",
        least=0,
        most=MAX_SUBSCRIPTION_NAME_BYTES,
        default="",
    ),
)
_WINDOW = (
    Column("window_start", Kind.TIME, "The first instant of the window."),
    Column("window_end", Kind.TIME, "The first instant after the window."),
)
_SUBSCRIPTIONS = Column("subscriptions", Kind.SUBSCRIPTIONS, "The subscriptions of the session that matched.")
_OUTCOME = Column(
    "outcome",
    Kind.TEXT,
    "One of delivered, withheld, expired, displaced, taken elsewhere, dropped.",
    words=Outcome,
    default=Outcome.DELIVERED.value,
)
_BODY_HASH = _null("body_hash", Kind.HASH, "SHA-256 of the body as handed over; null if none was.")
_KEYS = Column("keys", Kind.KEYS, "Hashes of the keys: scheme and SHA-1 or SHA-256 digest; never a private key.")
_PLACE = _null("place", Kind.PLACE, "WGS84 degrees; null if not known.")
_BATTERY = _null("battery", Kind.REAL, "The fraction of the charge that was left, 0 to 1; null if not known.", most=1)
_DISPLAY = _null("display", Kind.DISPLAY, "The display's size in pixels; null if not known.")
_PAIR = (
    Column("device_low", Kind.TEXT, "The device of the pair whose id sorts first."),
    Column("device_high", Kind.TEXT, "The other device of the pair."),
)


_LOG = (
    TableSpec(
        "publications",
        "One row per notification that was accepted.",
        (
            _NODE,
            _SEQ,
            Column("published_at", Kind.TIME, "When the node accepted it."),
            _null("publisher", Kind.TEXT, "The device that published it; null if not known."),
            _null(
                "subject",
                Kind.TEXT,
                "The subject it was published to; over MQTT the topic; null if none.",
                most=MAX_SUBJECT_BYTES,
                without="\0+#",
            ),
            Column("attributes", Kind.ATTRIBUTES, "What filters speak about; `type` says which field is set."),
            Column("body", Kind.BODY, "The bytes as published.", default=b""),
            Column("qos", Kind.INT8, "The publisher's quality of service, 0 to 2.", most=MAX_QOS, default=0),
            Column("retain", Kind.FLAG, "Whether it replaces the subject's retained notification.", default=False),
            _PLACE,
            _null(
                "radius_m",
                Kind.REAL,
                "How far from the place it is meant to be heard; null if anywhere.",
                most=MAX_RADIUS_M,
            ),
            _null("expires_at", Kind.TIME, "From when on it is dead; null if it never expires by itself.", **_ANY_TIME),
            _null(
                "deadline_at", Kind.TIME, "By when it should be delivered; null if there is no deadline.", **_ANY_TIME
            ),
            _KEYS,
            Column(
                "deliver_insecure", Kind.FLAG, "Whether a receiver without a matching key may have it.", default=True
            ),
            _later(
                "properties",
                Kind.PROPERTIES,
                "MQTT 5 properties that travel with it, as encoded there; null if none.",
                default=b"",
            ),
            _later(
                "packet_id",
                Kind.INT32,
                "The publisher's number of it, if qos is 2; null if there is none.",
                least=1,
                most=MAX_PACKET_ID,
            ),
            _later("will_seq", Kind.INT64, "The number of the will that it is, in `wills`; null if it is none."),
        ),
        fact=Notification,
        record=1,
    ),
    TableSpec(
        "interests",
        "One row per subscription added, modified or removed.",
        (
            _NODE,
            _SEQ,
            Column("changed_at", Kind.TIME, "When the node accepted the change."),
            Column("change", Kind.TEXT, "One of added, modified, removed.", words=InterestChange),
            _null("device", Kind.TEXT, "The device that changed it; null if none did."),
            _SESSION,
            *_SUBSCRIPTION,
            _null(
                "filter_text",
                Kind.TEXT,
                "The content filter; null if the subject filter decides alone.",
                least=0,
                most=MAX_FILTER_BYTES,
            ),
            _null("ttl_us", Kind.INT64, "How long a notification is held; null for the deployment's default."),
            _null("max_held", Kind.INT32, "How many are held, 0 for live only; null for the default."),
            _null("policy", Kind.TEXT, "The policy that shapes what is handed over; null if none."),
            _null("near", Kind.AREA, "The circle that notifications must come from; null if anywhere."),
            _KEYS,
            Column(
                "accept_insecure", Kind.FLAG, "Whether notifications without a matching key are welcome.", default=True
            ),
            _later(
                "qos",
                Kind.INT8,
                "The quality of service granted, 0 to 2; null if not asked for over MQTT.",
                most=MAX_QOS,
            ),
            _later(
                "no_local",
                Kind.FLAG,
                "Whether a device's own notifications are kept from it; null as false.",
                default=False,
            ),
            _later(
                "retain_as_published",
                Kind.FLAG,
                "Whether the retain flag stays as published; null as false.",
                default=False,
            ),
            _later(
                "identifier",
                Kind.INT32,
                "The number that the subscriber gave it over MQTT; null if none.",
                least=1,
                most=MAX_IDENTIFIER,
            ),
            _later(
                "around_m",
                Kind.REAL,
                "How far from the session notifications may come from; null if not said.",
                most=MAX_RADIUS_M,
            ),
            _later("corners", Kind.CORNERS, "The polygon that notifications must come from; null if not said."),
            _later("hears_anywhere", Kind.FLAG, "Whether areas are heard from outside; null as false."),
            _later("stale_us", Kind.INT64, "How long a reported place counts; null for 120 s."),
        ),
        fact=InterestChanged,
        record=2,
    ),
    TableSpec(
        "presence",
        "One row per device that connected, disconnected, joined or left a session, or finished a packet; "
        "or whose hand-overs of quality 0 have receipts from here on, or have none.",
        (
            _NODE,
            _SEQ,
            Column("changed_at", Kind.TIME, "When the node noticed."),
            _DEVICE,
            _null("session", Kind.TEXT, "The session joined or left; null for the connection itself."),
            Column(
                "change",
                Kind.TEXT,
                "One of connected, disconnected, joined, left, released, completed, receipts.",
                words=PresenceChange,
            ),
            _null("receipt", Kind.TEXT, "take or keep, as the device joined; null where it does not join.", words=Mode),
            _later(
                "packet_id",
                Kind.INT32,
                "The publication released or completed; null with other changes.",
                least=1,
                most=MAX_PACKET_ID,
            ),
            _later("session_expiry_us", Kind.INT64, "How long its private session outlives it; null if not said."),
            _later(
                "sent_seq",
                Kind.INT64,
                "The last notification sent to the leaving device, and not confirmed; null if unknown.",
            ),
            _later(
                "confirms",
                Kind.FLAG,
                "Which hand-overs of quality 0 have receipts from here on: all, or false: what may expire; null: none.",
            ),
            _later("owner", Kind.TEXT, "The verified user who owns the private session; null if none."),
        ),
        fact=PresenceChanged,
        record=3,
    ),
    TableSpec(
        "sessions",
        "One row per session created or deleted, or given other passwords or another access control list.",
        (
            _NODE,
            _SEQ,
            Column("changed_at", Kind.TIME, "When the node accepted the change."),
            Column("change", Kind.TEXT, "One of created, access, deleted.", words=SessionChange),
            _SESSION,
            _null("device", Kind.TEXT, "The device that changed it; null if none did."),
            _null(
                "access",
                Kind.TEXT,
                "Who may do what, as JSON: scrypt hashes or a list; null if every user may.",
                least=0,
                most=MAX_ACCESS_BYTES,
            ),
        ),
        fact=SessionChanged,
        record=4,
    ),
    TableSpec(
        "reports",
        "One row per report of a device's state or position.",
        (
            _NODE,
            _SEQ,
            Column("reported_at", Kind.TIME, "When the node received the report."),
            _DEVICE,
            _BATTERY,
            _DISPLAY,
            _null("received", Kind.INT64, "Notifications the device got since its last report; null if not said."),
            _null("sent", Kind.INT64, "Notifications the node counted as sent since then; null if not known."),
            _PLACE,
            _later("members", Kind.ATTRIBUTES, "The other members of the report; null if none.", default=NO_ATTRIBUTES),
        ),
        fact=Reported,
        record=5,
    ),
    TableSpec(
        "receipts",
        "One row per outcome of handing a notification over to a device.",
        (
            _NODE,
            _SEQ,
            Column("handed_at", Kind.TIME, "When the outcome was known."),
            _SESSION,
            _DEVICE,
            *_NOTIFICATION,
            _SUBSCRIPTIONS,
            _OUTCOME,
            _BODY_HASH,
            _null(
                "via",
                Kind.TEXT,
                "How it came: live, held or retained; null if it was not handed over.",
                words=("live", "held", "retained"),
            ),
            _BATTERY,
            _null("network_connection", Kind.REAL, "received / sent that shaped it; null if not known.", most=1),
            _DISPLAY,
            _later(
                "published_at", Kind.TIME, "When a retained notification was accepted; null if it was not retained."
            ),
            _later(
                "subject",
                Kind.TEXT,
                "The subject of a retained notification; null if it was not retained.",
                most=MAX_SUBJECT_BYTES,
            ),
        ),
        fact=Receipt,
        record=6,
    ),
    TableSpec(
        "wills",
        "One row per will that a device left with the broker, or withdrew.",
        (
            _NODE,
            _SEQ,
            Column("changed_at", Kind.TIME, "When the node accepted the change."),
            _DEVICE,
            Column(
                "change",
                Kind.TEXT,
                "One of left, withdrawn; nothing below is said of what was withdrawn.",
                words=WillChange,
            ),
            _null(
                "subject",
                Kind.TEXT,
                "The subject that it will be published to; null if withdrawn.",
                most=MAX_SUBJECT_BYTES,
            ),
            _null("body", Kind.BODY, "Its bytes; null if withdrawn.", default=b""),
            _null("qos", Kind.INT8, "Its quality of service, 0 to 2; null if withdrawn.", most=MAX_QOS, default=0),
            _null(
                "retain",
                Kind.FLAG,
                "Whether it will replace the subject's retained notification; null as false.",
                default=False,
            ),
            _null("delay_us", Kind.INT64, "How long after the disconnection it is published; null as 0.", default=0),
            _null("expiry_us", Kind.INT64, "How long it lives once it is published; null if for ever."),
            Column("keys", Kind.KEYS, "Hashes of the keys it will be published with."),
            Column(
                "deliver_insecure", Kind.FLAG, "Whether a receiver without a matching key may have it.", default=True
            ),
            _null(
                "properties",
                Kind.PROPERTIES,
                "MQTT 5 properties that travel with it, as encoded there; null if none.",
                default=b"",
            ),
        ),
        fact=WillChanged,
        record=9,
    ),
    TableSpec(
        "policies",
        "One row per policy put or removed, or chosen by a device as its own.",
        (
            _NODE,
            _SEQ,
            Column("changed_at", Kind.TIME, "When the node accepted the change."),
            Column("change", Kind.TEXT, "One of put, removed, chosen.", words=PolicyChange),
            Column("owner", Kind.TEXT, "The verified user whose it is; the device if no user was verified."),
            _null("name", Kind.TEXT, "The policy's name; null if a device chooses to have none."),
            _null(
                "text",
                Kind.TEXT,
                "The policy; null unless it is put. The seq is its version.",
                least=0,
                most=MAX_POLICY_BYTES,
            ),
            _null("device", Kind.TEXT, "The device that put, removed or chose it; null if none did."),
        ),
        fact=PolicyChanged,
        record=10,
    ),
    TableSpec(
        "decisions",
        "One row per decision of a policy about handing a notification over to a device.",
        (
            _NODE,
            _SEQ,
            Column("decided_at", Kind.TIME, "The moment that the policy was told it is."),
            _SESSION,
            _DEVICE,
            *_NOTIFICATION,
            Column("policy_seq", Kind.INT64, "The version of the policy: its number in `policies`."),
            Column("policy", Kind.TEXT, "The policy's name; manual variables are kept per device and name."),
            Column("outcome", Kind.TEXT, "One of delivered, withheld.", words=(Outcome.DELIVERED, Outcome.WITHHELD)),
            _null(
                "reason",
                Kind.TEXT,
                "Why the policy failed, which withholds; null if it did not.",
                least=0,
                most=MAX_REASON_BYTES,
            ),
            _null("body_hash", Kind.HASH, "SHA-256 of the body to hand over; null if withheld."),
            _null("body_bytes", Kind.INT64, "How long that body is; null if withheld.", most=MAX_BODY_BYTES),
            _null("body", Kind.BODY, "That body; null if it is the notification's own, or is never sent again."),
            _null("attributes", Kind.ATTRIBUTES, "Those of what is handed over; null if they are its own."),
            Column("read", Kind.ATTRIBUTES, "The variables that were read, with their values; none is missing."),
            Column("changed", Kind.ATTRIBUTES, "The manual variables that were set, with their new values."),
            Column("removed", Kind.TEXTS, "The manual variables that were removed."),
            Column("steps", Kind.INT64, "How many steps the policy took.", default=0),
            Column("bytes_read", Kind.INT64, "How many bytes its transforms read.", default=0),
            Column("pixels_read", Kind.INT64, "How many pixels its transforms read.", default=0),
            _later("publisher", Kind.TEXT, "The device that published the notification; null if not known."),
        ),
        fact=Decided,
        record=11,
    ),
)

_OUTPUT = (
    TableSpec(
        "matches",
        "One row per notification and subscription in force that wants it.",
        (
            *_NOTIFICATION,
            Column("published_at", Kind.TIME, "When the notification was accepted."),
            _SESSION,
            *_SUBSCRIPTION,
            Column("interest_seq", Kind.INT64, "The sequence number of the interest that was in force."),
        ),
    ),
    TableSpec(
        "deliveries",
        "One row per notification, session and device: what became of it; and one per retained copy with a receipt.",
        (
            *_NOTIFICATION,
            Column("published_at", Kind.TIME, "When the notification was accepted."),
            _null("subject", Kind.TEXT, "The subject it was published to; over MQTT the topic; null if none."),
            _null("deadline_at", Kind.TIME, "By when it should be delivered; null if there is no deadline."),
            _SESSION,
            _null("device", Kind.TEXT, "The device; null if it lapsed with no device to give it to."),
            _SUBSCRIPTIONS,
            _OUTCOME,
            _BODY_HASH,
            Column("decided_at", Kind.TIME, "When the outcome was known."),
            _null("lapses_at", Kind.TIME, "From when on it is not held any more; null if it was never held."),
            _null(
                "via",
                Kind.TEXT,
                "How its receipt says that it came: live, held or retained; null if none did, as at quality 0.",
            ),
            _null(
                "difference",
                Kind.TEXT,
                "What its policy decides otherwise than the log says, in words; null if nothing, or none decided.",
            ),
        ),
    ),
    TableSpec(
        "popularity",
        "One row per subject and window: how many want it and how much there is.",
        (
            *_WINDOW,
            _SUBJECT,
            Column("subscribers", Kind.INT64, "Sessions with a matching subscription at the window's end."),
            Column("publications", Kind.INT64, "Notifications published in the window."),
            Column("rate_per_s", Kind.REAL, "Notifications per second in the window."),
        ),
    ),
    TableSpec(
        "replicas",
        "One row per subject: how many copies of a sample the way-servers should spread.",
        (
            _SUBJECT,
            Column("subscribers", Kind.INT64, "Sessions that want the subject."),
            Column("share", Kind.REAL, "The part of all memory for samples that the subject gets, 0 to 1."),
            Column("replicas", Kind.INT64, "L_i: the copies of each sample, whole and at least one."),
            Column("memory_bytes", Kind.INT64, "What these copies take in all devices together."),
        ),
    ),
    TableSpec(
        "link_quality",
        "One row per report that follows another of the same node and device: the state of its link in between.",
        (
            _NODE,
            _SEQ,
            _DEVICE,
            Column("since_at", Kind.TIME, "The report before."),
            Column("reported_at", Kind.TIME, "The report."),
            _null("received", Kind.INT64, "Notifications the device received in between; null if not said."),
            _null("sent", Kind.INT64, "Notifications the node sent in between; null if not known."),
            _null("network_connection", Kind.REAL, "received / sent, 0 to 1, else as before; null until known."),
        ),
    ),
    TableSpec(
        "latency",
        "One row per subject and window of publication: how long notifications took to arrive.",
        (
            *_WINDOW,
            _SUBJECT,
            Column(
                "delivered",
                Kind.INT64,
                "Hand-overs that were delivered, with a receipt or without; no retained copies.",
            ),
            _null(
                "p50_us",
                Kind.INT64,
                "Half of those with a receipt arrived in this time, rounded up by at most 2 %; null if none.",
            ),
            _null("p90_us", Kind.INT64, "Nine of ten did, rounded up likewise; null if none has a receipt."),
            _null("p99_us", Kind.INT64, "99 of 100 did, rounded up likewise; null if none has a receipt."),
            Column("expired_unseen", Kind.INT64, "Hand-overs that never were: expired before a device took them."),
            Column("deadlines_missed", Kind.INT64, "Hand-overs, or expiries unseen, at the deadline or later."),
        ),
    ),
    TableSpec(
        "contacts",
        "One row per time that two devices were within range of each other.",
        (
            *_PAIR,
            Column("began_at", Kind.TIME, "The report that brought both within range."),
            _null(
                "ended_at",
                Kind.TIME,
                "The report that took them apart, or when a place went stale; null if they were still together.",
            ),
            Column("closest_m", Kind.REAL, "The least distance between them that was reported."),
        ),
    ),
    TableSpec(
        "meetings",
        "One row per pair of devices, and one for all pairs: how often they meet, of contacts that have ended.",
        (
            _null("device_low", Kind.TEXT, "The device whose id sorts first; null in the row for all pairs."),
            _null("device_high", Kind.TEXT, "The other device; null in the row for all pairs."),
            Column("contacts", Kind.INT64, "How often they met."),
            Column("mean_contact_us", Kind.REAL, "How long a contact lasts in the mean."),
            _null("mean_apart_us", Kind.REAL, "The mean from one contact to the next; null below two."),
            _null("meeting_time_us", Kind.REAL, "E_mm: the mean wait from a random instant; null below two."),
        ),
    ),
    TableSpec(
        "dead_letters",
        "One row per input that could not be read.",
        (
            Column("found_at", Kind.TIME, "When it was refused."),
            Column("source", Kind.TEXT, "Where it came from: a file, a topic, a table."),
            _null("position", Kind.INT64, "The line, offset or sequence number there; null if not known."),
            Column("reason", Kind.TEXT, "What was found, what is allowed, and where."),
            _null("content", Kind.BYTES, "The input, or its beginning; null if there is none to show."),
        ),
    ),
)

LOG_SPECS: dict[str, TableSpec] = {spec.name: spec for spec in _LOG}
"""The tables of the log, by name."""
SPECS: dict[str, TableSpec] = LOG_SPECS | {spec.name: spec for spec in _OUTPUT}
"""All tables by name: first the log's, then the pipeline's."""
