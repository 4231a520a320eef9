"""Near routes: the index of the subscriptions that only publications with a place can match.

These are the subscriptions with ``near``: a circle, a polygon, or a distance from the device itself.
Rule: they are evaluated only for publications with a place, so a subscription with ``near`` costs nothing where no
place is published.
Rule: up to ``FEW`` subscriptions are matched by subject, content and keys, and then the hold decides whether the
session is near enough (rule 20). With more of them, a spatial grid (``place_grid``) finds the near ones first, as soon
as its compiled kernels are loaded. Both ways have the same results.
Rule: subscriptions move to the grid in chunks (``prepare``). The first way is used until the last one has moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from whimbrel.broker.state.places.place_grid import Entry, PlaceGrid, PlacesOfHold, by_session
from whimbrel.match.matcher import Interest, Matcher, PublishedAt, ReadInterest
from whimbrel.model.attributes import Attributes
from whimbrel.model.keys import Secured
from whimbrel.model.near import Anywhere
from whimbrel.model.place import Area
from whimbrel.model.subscription import Subscription
from whimbrel.node.places.placing import Placing

__all__ = ["FEW", "NO_SUBSCRIBERS", "NearFound", "NearRoutes", "needs_place"]

FEW = 64
"""Most subscriptions that are matched without the grid: one by one, they take a quarter of a millisecond."""
_PIECE = 100
"""Subscriptions that move to the grid in one step, which takes some milliseconds."""


def needs_place(subscription: Subscription) -> bool:
    """Return whether only publications with a place can match a subscription."""
    return subscription.near is not None and not isinstance(subscription.near, Anywhere)


class NearFound(NamedTuple):
    """Subscriptions that match a publication by subject, content and keys."""

    entries: Sequence[Entry]
    """The subscriptions, ordered by session."""
    is_decided: bool
    """Whether all of them are near enough; False: the hold has yet to leave out those that are not."""


NO_SUBSCRIBERS = NearFound((), is_decided=True)


class NearRoutes:
    """Index of the subscriptions with ``near``, each under a route number that the caller gives it.

    *make_matcher* creates the matcher when needed. *has_kernels* returns whether the compiled kernels of the grid are
    loaded, and starts loading them if they are not. The grid is used for more than *few* subscriptions.
    """

    def __init__(
        self,
        make_matcher: Callable[[], Matcher],
        has_kernels: Callable[[], bool] = lambda: False,
        few: int = FEW,
    ) -> None:
        self._make_matcher, self._has_kernels, self._few = make_matcher, has_kernels, few
        self._matcher: Matcher | None = None
        """Matches the subscriptions without their places until the grid is complete; None if it is not needed."""
        self._interests: dict[int, tuple[Entry, Interest]] = {}
        self._handles: dict[int, int] = {}
        """Handle of each subscription (its index in the matcher), by route number."""
        self._numbers: dict[int, int] = {}
        """Route number of each subscription, by its handle in the matcher."""
        self.grid_so_far: PlaceGrid | None = None
        """The grid, also while it is being filled; None if there is none."""
        self._waiting: list[int] = []
        """Route numbers of the subscriptions that have not moved to the grid yet."""
        self.places: PlacesOfHold | None = None
        """The places of the devices; set to those of the hold when a hold exists."""
        self.named_sessions: Callable[[], Iterable[str]] = tuple
        """Returns the sessions that are not private."""

    def __len__(self) -> int:
        return len(self._interests)

    def __contains__(self, number: int) -> bool:
        return number in self._interests

    @property
    def grid(self) -> PlaceGrid | None:
        """The spatial grid (see ``PlaceGrid``), or None while it lacks some subscriptions or places."""
        return self.grid_so_far if self._is_over else None

    @property
    def _is_over(self) -> bool:
        return self.grid_so_far is not None and not self._waiting and self.grid_so_far.is_whole

    def put(self, number: int, entry: Entry, interest: Interest, read: ReadInterest | None = None) -> None:
        """Add a subscription under the route number *number*; raise ``FilterError`` if its filter cannot be parsed.

        *read* is its content filter, if it was prepared for the index already.
        """
        if self.grid_so_far is not None and self._matcher is None and self._is_over:
            self.grid_so_far.put(number, entry, interest, None if read is None else read._replace(interest=interest))
        else:
            if self._matcher is None:
                self._matcher = self._make_matcher()
            plain = _without_place(interest)
            handle = self._matcher.add(str(number), plain, read)
            self._handles[number], self._numbers[handle] = handle, number
            if self.grid_so_far is not None:
                self._waiting.append(number)
        self._interests[number] = entry, replace(interest, parsed=None)  # for the grid; a parsed filter is large

    def remove(self, number: int) -> None:
        """Remove the subscription with the route number *number*; it must exist."""
        (session, _), _ = self._interests.pop(number)
        if self.grid_so_far is not None:
            self.grid_so_far.remove(number, session)
        if self._matcher is not None:
            self._matcher.remove(str(number))
            del self._numbers[self._handles.pop(number)]

    def members_changed(self, session: str, *, is_named: bool) -> None:
        """Update the spatial grid after a device joined or left a session, or the session ended."""
        if self.grid_so_far is not None:
            self.grid_so_far.members_changed(session, is_named=is_named)

    @property
    def unpacked(self) -> int:
        """Number of content filters that are evaluated one by one, because the packed index does not have them yet."""
        asked = self.grid_so_far if self._matcher is None else self._matcher.content
        return 0 if asked is None else asked.unpacked

    def settle(self) -> None:
        """Start packing new filters or merging segments, if needed, in matchers that got no filter since the last call.

        It is called periodically: see ``match.index.content``.
        """
        if self._matcher is not None:
            self._matcher.content.settle()
        if self.grid_so_far is not None:
            self.grid_so_far.settle()

    # -- the grid ----------------------------------------------------------------------------------------------------

    def prepare_for(self, seconds: float, stopwatch: Callable[[], float]) -> None:
        """Build the spatial grid, if it is worth its cost, for about *seconds*, measured with the clock *stopwatch*."""
        until = stopwatch() + seconds
        self.prepare()
        while self.grid_so_far is not None and not self._is_over and stopwatch() < until:
            self.prepare()

    def prepare(self, asked: int | None = None) -> None:
        """Do the next step of building the spatial grid, if there are enough subscriptions to make it worth its cost.

        *asked* is the number of subscriptions to count; the default is all with ``near``.
        """
        if self.grid_so_far is None:
            many = len(self._interests) if asked is None else asked
            if many <= self._few or self.places is None or not self._has_kernels():
                return
            self.grid_so_far = PlaceGrid(self._make_matcher(), self.places, self.named_sessions())
            self._waiting = list(self._interests)
        elif self._waiting:
            for _ in range(min(_PIECE, len(self._waiting))):
                number = self._waiting.pop()
                if number in self._interests:
                    self.grid_so_far.put(number, *self._interests[number])
        elif not self.grid_so_far.is_whole:
            self.grid_so_far.learn()
        elif self._matcher is not None:
            self._matcher = None
            self._handles, self._numbers = {}, {}

    def wanting(self, subject: str, attributes: Attributes, secured: Secured, placing: Placing, at: int) -> NearFound:
        """Return the subscriptions with ``near`` that match a publication by subject, content and keys.

        *at* is the time of the publication. If the spatial grid is complete, the result has only the subscriptions that
        are near enough (``NearFound.is_decided``); otherwise the hold still has to decide that.
        """
        if not self._interests:
            return NO_SUBSCRIBERS
        keys, is_free = secured
        if self._matcher is not None:
            self.prepare()
        if self._is_over and self.grid_so_far is not None:
            where = PublishedAt(placing.place, placing.radius_m, at)
            return NearFound(
                self.grid_so_far.hearing(subject, attributes, keys, where, deliver_insecure=is_free), is_decided=True
            )
        assert self._matcher is not None
        found = self._matcher.match_parts(subject, attributes, keys, deliver_insecure=is_free)
        entries = [self._interests[self._numbers[handle]][0] for handle in found]
        return NearFound(by_session(entries), is_decided=False)

    def sessions_within(self, area: Area, asked: int) -> set[str] | None:
        """Return the sessions that may be in *area*; None if the spatial grid is incomplete or not worth using.

        *asked* is the number of subscriptions to check; if they are few, the hold checks them as fast.
        """
        if asked <= self._few:
            return None
        if not self._is_over:
            self.prepare(asked)
        return self.grid_so_far.sessions_within(area) if self._is_over and self.grid_so_far is not None else None


def _without_place(interest: Interest) -> Interest:
    return replace(interest, near=None, stale_us=None, session=None)
