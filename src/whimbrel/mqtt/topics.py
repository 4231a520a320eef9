"""Syntax checks of topic names and topic filters (MQTT 5.0, 4.7 and 4.8.2; 4.7 of 3.1.1).

Rule: only the syntax of a text is checked here; matching topics against filters is not.
"""

from __future__ import annotations

import re

from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError

__all__ = ["SHARE_PREFIX", "check_topic_filter", "check_topic_name", "disallowed_in", "split_share"]

SHARE_PREFIX = "$share/"
_MAX_BYTES = 65_535
_DISALLOWED = re.compile(
    "[\x01-\x1f\x7f-\x9f\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)
"""Control characters and non-characters (MQTT 5.0, 1.5.4)."""


def check_topic_name(topic: str) -> None:
    """Raise ``ProtocolError`` (0x90) if nothing can be published under *topic*."""
    _check_text(topic, "topic name", ReasonCode.TOPIC_NAME_INVALID)
    if "+" in topic or "#" in topic:
        raise ProtocolError(
            ReasonCode.TOPIC_NAME_INVALID, f"{topic[:80]!r} is not a topic name: + and # are for topic filters"
        )


def check_topic_filter(topic_filter: str) -> None:
    """Raise ``ProtocolError`` (0x8F) if *topic_filter* is not a valid topic filter.

    A shared subscription (``$share/…``) is checked as one text; ``split_share`` checks its parts.
    """
    _check_text(topic_filter, "topic filter", ReasonCode.TOPIC_FILTER_INVALID)
    if "+" not in topic_filter and "#" not in topic_filter:
        return
    *before, last = topic_filter.split("/")
    if "#" in before:
        raise _bad_filter(topic_filter, "# may only be the last level")
    for level in (*before, last):
        if len(level) > 1 and ("+" in level or "#" in level):
            raise _bad_filter(topic_filter, f"+ and # must be whole levels, and {level[:40]!r} is more than that")


def disallowed_in(text: str) -> str | None:
    """Return the first code point of *text* that 1.5.4 disallows, as ``U+001B``; None if there is none.

    Such a code point need not end the connection. But a subscriber may close its connection for each topic with one,
    so topics that are forwarded to others should not have any (5.4.9).
    """
    found = None if text.isprintable() else _DISALLOWED.search(text)  # printable text has none
    return None if found is None else f"U+{ord(found[0]):04X}"


def split_share(topic_filter: str) -> tuple[str | None, str]:
    """Return the share name (None if the subscription is not shared) and the filter that topics must match."""
    if not topic_filter.startswith(SHARE_PREFIX):
        return None, topic_filter
    share, _, rest = topic_filter[len(SHARE_PREFIX) :].partition("/")
    if not share or not rest:
        raise _bad_filter(topic_filter, "a shared one is $share/{name}/{filter}")
    if "+" in share or "#" in share:
        raise _bad_filter(topic_filter, "a share name has no wildcards")
    return share, rest


def _check_text(text: str, what: str, code: ReasonCode) -> None:
    if not text:
        raise ProtocolError(code, f"a {what} needs at least one character")
    if "\0" in text:
        raise ProtocolError(code, f"{what} {text[:80]!r} has U+0000")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ProtocolError(code, f"{what} {text[:80]!r} has a lone surrogate") from None
    if size > _MAX_BYTES:
        raise ProtocolError(code, f"{what} of {size} bytes; at most {_MAX_BYTES} are allowed")


def _bad_filter(topic_filter: str, why: str) -> ProtocolError:
    return ProtocolError(ReasonCode.TOPIC_FILTER_INVALID, f"{topic_filter[:80]!r} is no topic filter: {why}")
