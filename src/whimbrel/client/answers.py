"""Answers: what a broker says of named sessions, as values (docs/reference/sessions.md).

Rule: a member that is missing or of another kind is a ``MalformedAnswerError``; one that is not known is left alone, so
that a newer broker can say more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from whimbrel.client.errors import MalformedAnswerError

__all__ = [
    "Device",
    "Members",
    "SessionChange",
    "SessionDetails",
    "SessionSubscription",
    "SessionSummary",
    "change_of",
    "details_of",
    "members_of",
    "next_of",
    "subscription_of",
    "subscriptions_of",
    "summaries_of",
]

Members: TypeAlias = Mapping[str, object]
"""An object of JSON."""

_T = TypeVar("_T")
_Cursor = TypeVar("_Cursor", int, str)
_CHANGES = ("added", "modified", "removed", "left", "deleted")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSubscription:
    """A subscription of a named session; it is known by its topic filter and name.

    Of one that was removed there may be nothing else.
    """

    topic_filter: str
    name: str = ""
    filter: str | None = None
    ttl_s: float | None = None
    max: int | None = None
    qos: int | None = 1
    keys: tuple[str, ...] = ()
    """Hashes of keys, as ``scheme:hex``."""
    insecure: bool = True
    """Whether notifications are accepted whose keys do not match."""
    near: str | None = None
    stale_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A member of a session."""

    device: str
    is_present: bool
    receipt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """One line of a list of sessions."""

    session: str
    is_joined: bool
    """Whether this device is present."""
    devices: int
    subscriptions: int
    held: int
    """Notifications that are held for a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDetails:
    """What a session has."""

    session: str
    subscriptions: tuple[SessionSubscription, ...]
    devices: tuple[Device, ...]
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChange:
    """Something that another device did to a session.

    *change* is ``added``, ``modified`` or ``removed``, of *subscription*; or ``left``: this device was put out; or
    ``deleted``: the session is gone.
    """

    session: str
    change: str
    subscription: SessionSubscription | None
    device: str
    """The device that did it; empty if unknown."""


def members_of(payload: bytes) -> Members:
    """Return the object of JSON that *payload* spells."""
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise MalformedAnswerError("answer", "an object of JSON")
    return found


def subscription_of(found: object) -> SessionSubscription:
    """Return the subscription that an answer speaks of."""
    members = _object("subscription", found)
    filter_text, ttl_s, most, qos = (members.get(name) for name in ("filter", "ttl", "max", "qos"))
    return SessionSubscription(
        topic_filter=_text(members, "topic"),
        name=_text(members, "name", otherwise=""),
        filter=None if filter_text is None else _text(members, "filter"),
        ttl_s=None if ttl_s is None else _number(members, "ttl"),
        max=None if most is None else _whole(members, "max"),
        qos=None if qos is None else _whole(members, "qos"),
        keys=_array(members, "keys", lambda key: _text({"keys": key}, "keys")),
        insecure=_flag(members, "insecure"),
        near=None if members.get("near") is None else _text(members, "near"),
        stale_s=None if members.get("stale") is None else _number(members, "stale"),
    )


def subscriptions_of(members: Members) -> tuple[SessionSubscription, ...]:
    """Return the subscriptions that an answer lists."""
    return _array(members, "subscriptions", subscription_of)


def summaries_of(members: Members) -> tuple[SessionSummary, ...]:
    """Return the answer to ``list``."""
    return _array(members, "sessions", _summary_of)


def next_of(members: Members, kind: type[_Cursor], after: _Cursor) -> _Cursor | None:
    """Return where the next page begins, which is behind *after*; None if this is the last."""
    found = members.get("next")
    if found is None:
        return None
    if type(found) is not kind or not found > after:
        raise MalformedAnswerError("next", "a place behind the last")
    return found


def details_of(members: Members) -> SessionDetails:
    """Return the answer to ``show``."""
    return SessionDetails(
        session=_text(members, "session"),
        subscriptions=subscriptions_of(members),
        devices=_array(members, "devices", _device_of),
        held=_whole(members, "held"),
    )


def change_of(members: Members) -> SessionChange:
    """Return what a device is told about a session."""
    change = _text(members, "change")
    if change not in _CHANGES:
        raise MalformedAnswerError("change", ", ".join(_CHANGES))
    subscription, device = members.get("subscription"), members.get("device")
    return SessionChange(
        session=_text(members, "session"),
        change=change,
        subscription=None if subscription is None else subscription_of(subscription),
        device="" if device is None else _text(members, "device"),
    )


def _summary_of(found: object) -> SessionSummary:
    members = _object("session", found)
    return SessionSummary(
        session=_text(members, "session"),
        is_joined=_flag(members, "joined"),
        devices=_whole(members, "devices"),
        subscriptions=_whole(members, "subscriptions"),
        held=_whole(members, "held"),
    )


def _device_of(found: object) -> Device:
    members = _object("device", found)
    return Device(
        device=_text(members, "device"), is_present=_flag(members, "present"), receipt=_text(members, "receipt")
    )


def _object(what: str, found: object) -> Members:
    if not isinstance(found, dict):
        raise MalformedAnswerError(what, "an object")
    return found


def _text(members: Members, name: str, *, otherwise: str | None = None) -> str:
    found = members.get(name, otherwise)
    if not isinstance(found, str):
        raise MalformedAnswerError(name, "a text")
    return found


def _whole(members: Members, name: str) -> int:
    found = members.get(name)
    if not isinstance(found, int) or isinstance(found, bool):
        raise MalformedAnswerError(name, "a whole number")
    return found


def _number(members: Members, name: str) -> float:
    found = members.get(name)
    if not isinstance(found, int | float) or isinstance(found, bool):
        raise MalformedAnswerError(name, "a number")
    return found


def _flag(members: Members, name: str) -> bool:
    found = members.get(name)
    if not isinstance(found, bool):
        raise MalformedAnswerError(name, "true or false")
    return found


def _array(members: Members, name: str, read: Callable[[object], _T]) -> tuple[_T, ...]:
    found = members.get(name)
    if not isinstance(found, list):
        raise MalformedAnswerError(name, "an array")
    return tuple(map(read, found))
