"""The model: the values that travel between all packages.

Rule: nothing here loads pyarrow; the log's Arrow schemas are in ``whimbrel.model.tables``, imported by name.
"""

from __future__ import annotations

from whimbrel.model.attributes import (
    DEFAULT_LIMITS,
    NO_ATTRIBUTES,
    Attributes,
    AttributeType,
    Int64,
    Limits,
    Scalar,
    checked,
    type_of,
)
from whimbrel.model.clock import (
    Clock,
    SystemClock,
    format_time,
    is_alive,
    microseconds,
    parse_time,
    seconds,
)
from whimbrel.model.device import DeviceState, Display
from whimbrel.model.keys import NO_KEYS, KeyHash, KeyHashes, Scheme, fingerprint
from whimbrel.model.notification import Notification, NotificationId
from whimbrel.model.place import Area, Place, Plane, Point, distance_m
from whimbrel.model.subscription import InterestChange, Subscription, SubscriptionIdentity

__all__ = [
    "DEFAULT_LIMITS",
    "NO_ATTRIBUTES",
    "NO_KEYS",
    "Area",
    "AttributeType",
    "Attributes",
    "Clock",
    "DeviceState",
    "Display",
    "Int64",
    "InterestChange",
    "KeyHash",
    "KeyHashes",
    "Limits",
    "Notification",
    "NotificationId",
    "Place",
    "Plane",
    "Point",
    "Scalar",
    "Scheme",
    "Subscription",
    "SubscriptionIdentity",
    "SystemClock",
    "checked",
    "distance_m",
    "fingerprint",
    "format_time",
    "is_alive",
    "microseconds",
    "parse_time",
    "seconds",
    "type_of",
]
