"""Listing: answer requests that list a client's named sessions or show one, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from itertools import islice
from typing import Any

from whimbrel.broker.requests.answers import Answers, Asked
from whimbrel.broker.requests.pages import MAX_ROWS, Row, cost_of_rows, page_of
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.sorted_names import names_behind
from whimbrel.broker.waiting.driver import Procedure, SlicedWork
from whimbrel.broker.wire.clients import Link, LiveClient
from whimbrel.broker.wire.notices import subscription_tree
from whimbrel.errors import InvalidValueError
from whimbrel.hold.sessions import Hold
from whimbrel.model.facts import Mode

__all__ = ["Listing"]

_MAX_DIGITS = 9


class Listing:
    """Answers requests to list and to show sessions; *spend* counts the work, or raises ``ProtocolError``."""

    def __init__(self, state: BrokerState, answers: Answers, spend: Callable[[LiveClient, int, int], None]) -> None:
        self._state, self._answers, self._spend = state, answers, spend

    def list(self, asked: Asked, now: int) -> Procedure[None]:
        """Answer with a page of the sessions that the client has joined or its user owns, sorted by name."""
        most, named = asked.request.most or MAX_ROWS, self._state.named
        kinds = (named.of_device(asked.client.id), named.of_user(asked.link.user))
        names = names_behind(kinds, asked.request.after, most + 1)
        self._spend(asked.client, cost_of_rows(len(names)), now)
        page, count = yield SlicedWork(asked.link, page_of(names, most, partial(_row, self._state.hold, asked.link)))
        self._answers.answer(asked, {"sessions": page, "next": names[count - 1] if count < len(names) else None})

    def show(self, asked: Asked, now: int) -> Procedure[None]:
        """Answer with a session's devices, and a page of its subscriptions in the order in which they were made."""
        request, hold = asked.request, self._state.hold
        session, most, after = request.session, request.most or MAX_ROWS, request.after or "0"
        if not (after.isascii() and after.isdigit() and len(after) <= _MAX_DIGITS):
            raise InvalidValueError("after", after[:40], "the number that the page before says is next")
        begin = int(after)
        subscriptions = hold.subscriptions(session)[begin : begin + most + 1]
        devices = _devices(hold, session)
        self._spend(asked.client, cost_of_rows(len(subscriptions) + len(devices)), now)
        page, count = yield SlicedWork(asked.link, page_of(subscriptions, most, subscription_tree))
        following = begin + count if count < len(subscriptions) else None
        told = {"subscriptions": page, "next": following, "devices": devices, "held": hold.pending_count(session)}
        self._answers.answer(asked, {"session": session, **told})

    def spend_on(self, asked: Asked, now: int) -> None:
        """Count the work of answering a request to join; raise ``ProtocolError`` if it is too much."""
        count, _ = self._state.hold.sizes(asked.request.session)
        self._spend(asked.client, cost_of_rows(min(count, MAX_ROWS)), now)

    def first_page(self, session: str) -> Generator[None, None, Row]:
        """Return the first page of subscriptions of a session that a device has just joined."""
        subscriptions = self._state.hold.subscriptions(session)[: MAX_ROWS + 1]
        page, count = yield from page_of(subscriptions, MAX_ROWS, subscription_tree)
        following = count if count < len(subscriptions) else None
        return {"session": session, "subscriptions": page, "next": following}


def _row(hold: Hold[Any], link: Link, session: str) -> Row | None:
    if not hold.has(session):  # it was deleted meanwhile
        return None
    subscriptions, devices = hold.sizes(session)
    return {
        "session": session,
        "joined": session in link.rights,
        "devices": devices,
        "subscriptions": subscriptions,
        "held": hold.pending_count(session),
    }


def _devices(hold: Hold[Any], session: str) -> list[Row]:
    return [
        {"device": device, "present": is_present, "receipt": (Mode.TAKE if takes else Mode.KEEP).value}
        for device, (is_present, takes) in islice(hold.members(session).items(), MAX_ROWS)
    ]
