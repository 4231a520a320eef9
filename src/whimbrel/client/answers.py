"""Answers of a broker to requests about named sessions, as values (docs/reference/sessions.md).

Rule: a member that is missing or of another type is a ``MalformedAnswerError``; unknown members are ignored, so that a
newer broker can add some.
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
"""A JSON object."""

_T = TypeVar("_T")
_Cursor = TypeVar("_Cursor", int, str)
_CHANGES = ("added", "modified", "removed", "left", "deleted")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSubscription:
    """A subscription of a named session, identified by its topic filter and name.

    If it was removed, all other fields may have their defaults.
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
    """Whether notifications without matching keys are accepted."""
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
    """One entry of a list of sessions."""

    session: str
    is_joined: bool
    """Whether this device is present."""
    devices: int
    subscriptions: int
    held: int
    """Number of notifications held for its devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDetails:
    """Details of a named session: subscriptions, devices and the number of held notifications."""

    session: str
    subscriptions: tuple[SessionSubscription, ...]
    devices: tuple[Device, ...]
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChange:
    """A change that another device made to a session.

    *change* is ``added``, ``modified`` or ``removed`` for *subscription*; or ``left`` if this device was put out; or
    ``deleted`` if the session was.
    """

    session: str
    change: str
    subscription: SessionSubscription | None
    device: str
    """The device that made the change; empty if unknown."""


def members_of(payload: bytes) -> Members:
    """Return the JSON object in *payload*."""
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise MalformedAnswerError("answer", "an object of JSON")
    return found


def subscription_of(found: object) -> SessionSubscription:
    """Return the subscription in an answer."""
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
    """Return the list of subscriptions in an answer."""
    return _array(members, "subscriptions", subscription_of)


def summaries_of(members: Members) -> tuple[SessionSummary, ...]:
    """Return the answer to ``list``."""
    return _array(members, "sessions", _summary_of)


def next_of(members: Members, kind: type[_Cursor], after: _Cursor) -> _Cursor | None:
    """Return the cursor of the next page, which must be above *after*; None if this is the last page."""
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
    """Return the change of a session that a broker reports to a device."""
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
