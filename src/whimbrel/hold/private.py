"""Private sessions and shares: plain MQTT, expressed in names of sessions and in subject filters.

A client of plain MQTT knows nothing of our sessions: it has one of its own, the *private session*, whose only device it
is, and which takes. A *share* is MQTT's way of dividing work (5.0 §4.8.2): ``$share/<group>/<filter>`` is matched as
``<filter>``, and of all sessions with the same text only one is given each notification.
Rule: these names say it all; nothing else marks a session as private or a subscription as shared.
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
    """Return whether a session is a client's own."""
    return session.startswith(PRIVATE)


def client_of(session: str) -> str | None:
    """Return the client whose private session this is; None if it is not private."""
    return session[len(PRIVATE) :] if session.startswith(PRIVATE) else None


def is_shared(subject_filter: str | None) -> bool:
    """Return whether a subject filter is a share: with a group, and a filter after it."""
    if subject_filter is None or not subject_filter.startswith(SHARE):
        return False
    group, _, wanted = subject_filter[len(SHARE) :].partition("/")
    return bool(group and wanted)


def asked_for(subject_filter: str | None) -> str | None:
    """Return the filter that subjects are matched with: that of a share, or the whole."""
    if subject_filter is None or not is_shared(subject_filter):
        return subject_filter
    return subject_filter[len(SHARE) :].partition("/")[2]
