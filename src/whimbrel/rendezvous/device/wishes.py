"""A device's own record of its publication and subscriptions, with the controller's identifiers (Huang, 4.1.4).

Rule: an entry outlives a connection. With an identifier it is renewed, without one it is submitted.
Rule: the controller answers requests in their order, so an answer belongs to the oldest unanswered request.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.events import Event, EventId, Publication

__all__ = ["Wish", "Wishes"]


@dataclass(slots=True, eq=False)
class Wish:
    """One event that a device wants the controller to have."""

    event: Event
    is_lasting: bool = False
    """Whether it is renewed after it expires or its page failed."""
    id: EventId | None = None
    is_over: bool = False
    is_indirect: bool = False
    """Whether the controller published it on its own; the device's own publication replaces it."""


class Wishes:
    """The entries of a device, and its unanswered requests."""

    def __init__(self) -> None:
        self.all: list[Wish] = []
        self._asked: deque[tuple[str, Wish]] = deque()

    def add(self, wish: Wish) -> None:
        """Add an entry."""
        self.all.append(wish)

    def add_indirect(self, wish: Wish) -> None:
        """Add the controller's publication for the device, unless the device publishes itself."""
        self.drop_indirect()
        if not any(isinstance(each.event, Publication) for each in self.all):
            self.all.append(wish)

    def drop_indirect(self) -> None:
        """Remove the controller's publication for the device."""
        for wish in [each for each in self.all if each.is_indirect]:
            self.end(wish)

    def by_id(self, identifier: EventId) -> Wish | None:
        """Return the entry with the controller's *identifier*, or None."""
        return next((wish for wish in self.all if wish.id == identifier), None)

    def end(self, wish: Wish) -> None:
        """Remove an entry that was fulfilled or withdrawn."""
        wish.is_over = True
        if wish in self.all:
            self.all.remove(wish)

    def ask(self, wish: Wish) -> m.FromDevice:
        """Return the request that submits *wish* to the controller, or renews it if it has an identifier."""
        if wish.id is not None:
            self._asked.append(("renew", wish))
            return m.Renew(wish.id)
        if isinstance(wish.event, Publication):
            self._asked.append(("publish", wish))
            return m.Publish(wish.event)
        self._asked.append(("subscribe", wish))
        return m.Subscribe(wish.event)

    def withdraw(self, wish: Wish) -> m.FromDevice | None:
        """Return the request that removes *wish* at the controller; ``None`` if it has no identifier yet."""
        self.end(wish)
        if wish.id is None:
            return None
        is_publication = isinstance(wish.event, Publication)
        self._asked.append(("unpublish" if is_publication else "unsubscribe", wish))
        return m.Unpublish(wish.id) if is_publication else m.Unsubscribe(wish.id)

    def pop_answered(self, *requests: str) -> Wish | None:
        """Remove and return the entry of the oldest unanswered request, if its verb is one of *requests*."""
        if self._asked and self._asked[0][0] in requests:
            return self._asked.popleft()[1]
        return None

    def repeat_questions(self) -> list[m.FromDevice]:
        """Return the unanswered requests to send again: the connection was closed before they were received."""
        asked, again = list(self._asked), list[m.FromDevice]()
        self._asked.clear()
        for request, wish in asked:
            if request in {"unpublish", "unsubscribe"} and wish.id is not None:
                self._asked.append((request, wish))
                again.append(m.Unpublish(wish.id) if request == "unpublish" else m.Unsubscribe(wish.id))
            elif not wish.is_over:
                again.append(self.ask(wish))
        return again

    @property
    def publication(self) -> Wish | None:
        """The device's publication, its own or the controller's for it; None without one."""
        return next((wish for wish in self.all if isinstance(wish.event, Publication)), None)

    def forget_questions(self) -> None:
        """Drop the unanswered requests: the connection is lost."""
        self._asked.clear()
