"""Wishes: a device's own record of what it publishes and seeks, and the identifiers it was given (Huang, 4.1.4).

Rule: a wish outlives a connection. With an identifier it is renewed, without one it is submitted.
Rule: the controller answers requests in their order, so the first that waits is the one that is answered.
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
    """Whether it is renewed when it expires or a page came to nothing."""
    id: EventId | None = None
    is_over: bool = False
    is_indirect: bool = False
    """Whether the controller published it by itself; the device's own publication takes its place."""


class Wishes:
    """What a device wants, and what it has asked for."""

    def __init__(self) -> None:
        self.all: list[Wish] = []
        self._asked: deque[tuple[str, Wish]] = deque()

    def add(self, wish: Wish) -> None:
        """Remember a new wish."""
        self.all.append(wish)

    def add_indirect(self, wish: Wish) -> None:
        """Remember what the controller published for the device, unless the device speaks for itself."""
        self.drop_indirect()
        if not any(isinstance(each.event, Publication) for each in self.all):
            self.all.append(wish)

    def drop_indirect(self) -> None:
        """Forget what the controller published for the device."""
        for wish in [each for each in self.all if each.is_indirect]:
            self.end(wish)

    def by_id(self, identifier: EventId) -> Wish | None:
        """Return the wish that the controller knows by *identifier*."""
        return next((wish for wish in self.all if wish.id == identifier), None)

    def end(self, wish: Wish) -> None:
        """Forget a wish that came true or was given up."""
        wish.is_over = True
        if wish in self.all:
            self.all.remove(wish)

    def ask(self, wish: Wish) -> m.FromDevice:
        """Return the request that makes the controller have *wish*: its identifier if there is one, or all of it."""
        if wish.id is not None:
            self._asked.append(("renew", wish))
            return m.Renew(wish.id)
        if isinstance(wish.event, Publication):
            self._asked.append(("publish", wish))
            return m.Publish(wish.event)
        self._asked.append(("subscribe", wish))
        return m.Subscribe(wish.event)

    def withdraw(self, wish: Wish) -> m.FromDevice | None:
        """Return the request that makes the controller forget *wish*; ``None`` if it has not got it."""
        self.end(wish)
        if wish.id is None:
            return None
        is_publication = isinstance(wish.event, Publication)
        self._asked.append(("unpublish" if is_publication else "unsubscribe", wish))
        return m.Unpublish(wish.id) if is_publication else m.Unsubscribe(wish.id)

    def pop_answered(self, *requests: str) -> Wish | None:
        """Return the wish whose request is answered now, if it is one of *requests*."""
        if self._asked and self._asked[0][0] in requests:
            return self._asked.popleft()[1]
        return None

    def repeat_questions(self) -> list[m.FromDevice]:
        """Return once more what the controller has not answered: the connection was closed before it heard it."""
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
        """What the device publishes, or the controller for it."""
        return next((wish for wish in self.all if isinstance(wish.event, Publication)), None)

    def forget_questions(self) -> None:
        """Expect no more answers: the connection is lost."""
        self._asked.clear()
