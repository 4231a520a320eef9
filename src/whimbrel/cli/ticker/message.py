"""Ticker messages: their form on the wire, with Tickertape's attributes, and the reader of received ones.

Rule: any body gives a message. A body in another form is shown as text, so that every MQTT client can write to a group,
and nothing that arrives is lost silently.
Rule: texts are clean from here on. The group is the topic's, which the broker's rights protect; ``USER`` is unverified.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from whimbrel.cli.ticker.text import clean
from whimbrel.errors import InvalidInputError, InvalidValueError
from whimbrel.model.json_body import read_json

__all__ = [
    "FIRST_GROUP",
    "MAX_MINUTES",
    "TOPICS",
    "TickerMessage",
    "check_group",
    "group_of",
    "is_group",
    "read_line",
    "read_message",
    "topic_of",
]

TOPICS = "tickertape/"
FIRST_GROUP = "chat"
"""Group of a user who names none."""
MAX_MINUTES = 1_440
_MINUTES = 5
_MAX_CHARACTERS = 500
_MAX_GROUP_CHARACTERS = 64
_NO_USER = "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class TickerMessage:
    """One message for a group; it is shown for some minutes."""

    group: str
    user: str
    text: str
    timeout_minutes: int = _MINUTES
    message_id: str = ""
    """Distinguishes a repeated message from another one with the same text; empty: unknown."""
    life_s: float | None = None
    """Remaining life as given by the broker, in seconds; None: all of it."""

    def attributes(self) -> dict[str, object]:
        """Return the body, which filters can use; the names are those of Tickertape."""
        return {
            "TICKERTAPE": self.group,
            "USER": self.user,
            "TICKERTEXT": self.text,
            "TIMEOUT": self.timeout_minutes,
            "Message-Id": self.message_id,
        }

    def remaining_s(self) -> float:
        """Return the time for which the message is shown, in seconds from its arrival."""
        whole = self.timeout_minutes * 60.0
        return whole if self.life_s is None else min(whole, self.life_s)

    def __str__(self) -> str:
        return f"{self.group}: {self.user}: {self.text}"


def topic_of(group: str) -> str:
    """Return the MQTT topic of the tickertape's *group*."""
    return TOPICS + group


def group_of(topic: str) -> str:
    """Return the tickertape's group of one of our topics or topic filters."""
    return topic.removeprefix(TOPICS)


def is_group(text: str) -> bool:
    """Return whether *text* is a valid group: one level of a topic, without a colon, which ends the group in input."""
    return 0 < len(text) <= _MAX_GROUP_CHARACTERS and clean(text) == text and not set(text) & set("/+#:")


def check_group(group: str) -> str:
    """Return *group* if it is valid, else raise ``InvalidValueError``."""
    if not is_group(group):
        allowed = f"1 to {_MAX_GROUP_CHARACTERS} characters without / + # : and without control characters"
        raise InvalidValueError("group", group, allowed)
    return group


def read_line(line: str) -> tuple[str, str]:
    """Return group and text of an input line ``group: text``."""
    group, colon, text = line.partition(":")
    text = clean(text)
    if not colon or not text:
        raise InvalidValueError("line", line, "GROUP: TEXT")
    return check_group(clean(group)), text


def read_message(topic: str, body: bytes, *, life_s: float | None = None) -> TickerMessage:
    """Return the message received on *topic*; *life_s* is its remaining life as given by the broker."""
    try:
        found: dict[str, object] = read_json(body)
    except InvalidInputError:
        found = {}
    text, user, identity = found.get("TICKERTEXT"), found.get("USER"), found.get("Message-Id")
    return TickerMessage(
        group=_clean(group_of(topic)),
        user=(_clean(user) if isinstance(user, str) else "") or _NO_USER,
        text=_clean(text if isinstance(text, str) else body.decode(errors="replace")),
        timeout_minutes=_minutes(found.get("TIMEOUT")),
        message_id=_clean(identity) if isinstance(identity, str) else "",
        life_s=life_s,
    )


def _clean(text: str) -> str:
    """Return *text* made safe for a terminal (``clean``), cut with an ellipsis if it is too long for the line."""
    whole = clean(text)
    return whole if len(whole) <= _MAX_CHARACTERS else whole[: _MAX_CHARACTERS - 1] + "…"


def _minutes(found: object) -> int:
    """Return *found* rounded up to whole minutes, or the default if it is not a positive number."""
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found) or found <= 0:
        return _MINUTES
    return min(MAX_MINUTES, math.ceil(found))
