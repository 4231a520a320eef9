"""Memory of a node: estimated bytes of each kind of item that it stores, and their sum.

Rule: each change is counted when it is made; no total is ever recomputed.
Rule: items that clients can make grow count by their size, even if another limit bounds them
(``tests/unit/test_broker_memory_kinds.py`` fills each kind and compares with the memory that Python allocated).
Rule: the constants are estimates, measured on CPython 3.11 and rounded up.
"""

from __future__ import annotations

from typing import Any

from whimbrel.hold.private import is_private
from whimbrel.hold.sessions import Hold
from whimbrel.model.keys import NO_KEYS
from whimbrel.model.polygon import Polygon
from whimbrel.model.subscription import Subscription

__all__ = [
    "AREA_BYTES",
    "CLIENT_BYTES",
    "IDENTIFIER_BYTES",
    "KEY_BYTES",
    "LEVEL_BYTES",
    "LINK_BYTES",
    "MEMBER_BYTES",
    "NAMED_SESSION_BYTES",
    "PLACE_BYTES",
    "SEEN_BYTES",
    "MemoryCount",
    "session_bytes",
    "subscription_bytes",
]

AREA_BYTES = 2_000
"""The area of a retained message, and its places in the cells that it reaches."""
CLIENT_BYTES = 4_800
"""A client, connected or away, with its private session."""
IDENTIFIER_BYTES = 250
"""A packet identifier of QoS 2 that is not released, or not completed."""
KEY_BYTES = 200
"""The hash of a key, of a subscription or a connection."""
LEVEL_BYTES = 320
"""One level of the topic of a retained message."""
SEEN_BYTES = 150
"""A retained message with an area that has come to a session."""
LINK_BYTES = 300
"""The link quality of a device."""
MEMBER_BYTES = 600
"""A device of a named session."""
NAMED_SESSION_BYTES = 2_000
PLACE_BYTES = 700
"""The last place of a device, which is removed after a week without a report."""
_NEAR_BYTES, _CORNER_BYTES = 1_600, 220
"""The area (``near``) of a subscription, and each corner if it is a polygon."""
_PLAIN_BYTES, _TOPIC_BYTE_BYTES = 1_700, 2
_CONTENT_BYTES, _CHARACTER_BYTES = 3_600, 30


def subscription_bytes(subscription: Subscription) -> int:
    """Return the estimated memory of a subscription, in bytes."""
    near, text = subscription.near, subscription.filter_text
    size = _PLAIN_BYTES + _TOPIC_BYTE_BYTES * (len(subscription.subject_filter or "") + len(subscription.name))
    if subscription.keys != NO_KEYS:
        size += KEY_BYTES * len(subscription.keys.hashes)
    if near is not None:
        size += _NEAR_BYTES + (_CORNER_BYTES * len(near.corners) if isinstance(near, Polygon) else 0)
    return size if text is None else size + _CONTENT_BYTES + _CHARACTER_BYTES * len(text)


def session_bytes(hold: Hold[Any], session: str | None) -> int:
    """Return the estimated bytes of a named session without its subscriptions and queue; 0 if it does not exist."""
    if session is None or is_private(session) or not hold.has(session):
        return 0
    return NAMED_SESSION_BYTES + len(hold.access(session) or "") + MEMBER_BYTES * hold.member_count(session)


class MemoryCount:
    """Estimated bytes of a node's state."""

    __slots__ = ("counted",)

    def __init__(self) -> None:
        self.counted = 0
        """Sum of all items except the pending ones."""
