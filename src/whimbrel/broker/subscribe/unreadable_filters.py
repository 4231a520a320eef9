"""Remove, at the broker's start, subscriptions whose filters an older version accepted and this one cannot read.

Rule: they are removed by facts of the log, so that every fold of the log (a pipeline, the next start) has the same
result. Notifications held for them are dropped, as after UNSUBSCRIBE.
Rule: all are counted; the process log names the first 100 of them, and gives the number of the others.
"""

from __future__ import annotations

from whimbrel.broker.limits.operator_notices import Notice
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.subscribe.interests import SubscribeHandler
from whimbrel.hold.private import client_of

__all__ = ["end_unreadable"]

_MAX_NAMED = 100
"""Most subscriptions that the process log names one by one."""


def end_unreadable(state: BrokerState, interests: SubscribeHandler, now: int) -> list[Notice]:
    """Remove all subscriptions whose filter cannot be read; return notices about them for the operator."""
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
