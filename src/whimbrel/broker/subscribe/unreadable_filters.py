"""Filters that an older version accepted and this one cannot read at all: they are ended when the broker starts.

Rule: they are ended by facts of the log, so that each fold of it (a pipeline, the next start) comes to the same. What
was held for them is dropped, as if they had been unsubscribed from.
Rule: each is named once, in the log of the process, and counted.
"""

from __future__ import annotations

from whimbrel.broker.limits.operator_notices import Notice
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.subscribe.interests import Interests
from whimbrel.hold.private import client_of

__all__ = ["end_unreadable"]

_MAX_NAMED = 100
"""Subscriptions that the log of the process names one by one."""


def end_unreadable(state: BrokerState, interests: Interests, now: int) -> list[Notice]:
    """End all subscriptions whose filter cannot be read; return what an operator should know of it."""
    notices: list[Notice] = []
    unreadable = sorted(state.routes.unreadable.items(), key=lambda item: (item[0][0], item[0][1][0] or "", item[0][1]))
    for (session, (subject_filter, name)), reason in unreadable:
        interests.remove(None, session, (subject_filter, name), now)
        client = state.clients.get(client_of(session) or "")
        text = (
            f"the subscription to {subject_filter!r} (name {name!r}) of session {session!r} is ended: an older version "
            f"accepted its filter, and this one cannot read it ({reason}); subscribe again with another filter"
        )
        notices.append(Notice(text, client_of(session) or session, None if client is None else client.owner))
    state.volatile.counters.filters_ended += len(notices)
    if len(notices) > _MAX_NAMED:
        more = f"{len(notices) - _MAX_NAMED} more subscriptions are ended whose filter cannot be read"
        notices[_MAX_NAMED:] = [Notice(more, "", None)]
    return notices
