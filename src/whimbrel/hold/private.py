"""Private sessions and shared subscriptions: how plain MQTT fits into names of sessions and subject filters.

A client of plain MQTT has a session of its own, the *private session*. The client is its only device, in mode take: a
notification that it receives is no longer held. A *share* is a shared subscription of MQTT 5.0 (§4.8.2):
``$share/<group>/<filter>`` is matched as ``<filter>``, and only one of the sessions with this share is given each
notification.
Rule: only the prefix of its name makes a session private, and only that of its filter makes a subscription shared.
"""

from __future__ import annotations

__all__ = ["PRIVATE", "SHARE", "asked_for", "client_of", "is_private", "is_shared", "private_session"]

PRIVATE = "$mqtt/"
"""Prefix of the name of a private session; the rest is the client id."""

SHARE = "$share/"


def private_session(client_id: str) -> str:
    """Return the name of the private session of a client."""
    return PRIVATE + client_id


def is_private(session: str) -> bool:
    """Return whether a session is the private session of a client."""
    return session.startswith(PRIVATE)


def client_of(session: str) -> str | None:
    """Return the client id of a private session; None if the session is not private."""
    return session[len(PRIVATE) :] if session.startswith(PRIVATE) else None


def is_shared(subject_filter: str | None) -> bool:
    """Return whether a subject filter is a share, with a group and a filter after it."""
    if subject_filter is None or not subject_filter.startswith(SHARE):
        return False
    group, _, wanted = subject_filter[len(SHARE) :].partition("/")
    return bool(group and wanted)


def asked_for(subject_filter: str | None) -> str | None:
    """Return the filter to match subjects with: the part of a share after its group, else the whole filter."""
    if subject_filter is None or not is_shared(subject_filter):
        return subject_filter
    return subject_filter[len(SHARE) :].partition("/")[2]
