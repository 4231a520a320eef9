"""Listing: what clients are told of the named sessions that concern them."""

from __future__ import annotations

from functools import lru_cache

from whimbrel.broker.wire.clients import Client, Link
from whimbrel.broker.wire.notices import subscription_tree
from whimbrel.hold.access import AccessControlList, read_access
from whimbrel.hold.private import is_private
from whimbrel.hold.sessions import Hold
from whimbrel.model.facts import Mode

__all__ = ["listed", "shown"]

_MOST_LISTED = 1_000


def listed(hold: Hold, link: Link, client: Client) -> list[dict[str, object]]:
    """Return the sessions that a client is a device of, or that its user owns."""
    user = link.user
    found = [
        {
            "session": session,
            "joined": session in link.rights,
            "devices": len(hold.members(session)),
            "subscriptions": len(hold.subscriptions(session)),
            "held": hold.pending_count(session),
        }
        for session in hold.sessions()
        if not is_private(session)
        and (hold.is_member(session, client.id) or (user is not None and _owner(hold.access(session)) == user))
    ]
    return found[:_MOST_LISTED]


def shown(hold: Hold, session: str) -> dict[str, object]:
    """Return what a device that may join a session is told of it."""
    return {
        "session": session,
        "subscriptions": [subscription_tree(each) for each in hold.subscriptions(session)],
        "devices": [
            {"device": device, "present": is_present, "receipt": (Mode.TAKE if takes else Mode.KEEP).value}
            for device, (is_present, takes) in hold.members(session).items()
        ],
        "held": hold.pending_count(session),
    }


@lru_cache(maxsize=65_536)  # who lists sessions asks of all there are
def _owner(access: str | None) -> str | None:
    found = None if access is None else read_access(access)
    return found.owner if isinstance(found, AccessControlList) else None
