"""Near routes: the subscriptions that hear only publications with a place (``near`` of a circle, polygon or radius).

Rule: they are asked about publications with a place and about no others, so that one subscription with ``near`` costs
nothing where no place is published.
Rule: few of them are asked for subject, content and keys alone, and whether the session is near enough is the hold's to
say (rule 20). From ``FEW`` on, places are asked first, of a grid (``place_grid``), as soon as its kernels are loaded;
the answers are the same.
Rule: subscriptions go over to the grid in pieces (``prepare``), and are asked in the old way until the last has gone.
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
"""So many are asked one by one in a quarter of a millisecond; for fewer, no kernel is loaded."""
_PIECE = 100
"""So many go over to the grid at once: some milliseconds."""


def needs_place(subscription: Subscription) -> bool:
    """Tell whether a subscription hears only what has a place."""
    return subscription.near is not None and not isinstance(subscription.near, Anywhere)


class NearFound(NamedTuple):
    """Subscriptions that want a publication; whether they hear it where it is was decided, or is to be asked."""

    entries: Sequence[Entry]
    """By session."""
    is_decided: bool


NO_SUBSCRIBERS = NearFound((), is_decided=True)


class NearRoutes:
    """Subscriptions by number; *make_matcher* gives their index when there is one.

    *has_kernels* tells whether the kernels of places are loaded, and has them loaded otherwise.
    """

    def __init__(
        self,
        make_matcher: Callable[[], Matcher],
        has_kernels: Callable[[], bool] = lambda: False,
        few: int = FEW,
    ) -> None:
        self._make_matcher, self._has_kernels, self._few = make_matcher, has_kernels, few
        self._matcher: Matcher | None = None
        """Of all, without their places, until the grid has them."""
        self._interests: dict[int, tuple[Entry, Interest]] = {}
        self._handles: dict[int, int] = {}
        """The matcher's, by number; and the numbers by handle."""
        self._numbers: dict[int, int] = {}
        self.grid_so_far: PlaceGrid | None = None
        """The grid, also while it is filled; None where there is none."""
        self._waiting: list[int] = []
        """The numbers that the grid does not have yet."""
        self.places: PlacesOfHold | None = None
        """Where the devices are: the hold knows, once there is one."""
        self.named_sessions: Callable[[], Iterable[str]] = tuple
        """Who knows the sessions that are not private."""

    def __len__(self) -> int:
        return len(self._interests)

    def __contains__(self, number: int) -> bool:
        return number in self._interests

    @property
    def grid(self) -> PlaceGrid | None:
        """The grid, once it may be asked."""
        return self.grid_so_far if self._is_over else None

    @property
    def _is_over(self) -> bool:
        return self.grid_so_far is not None and not self._waiting and self.grid_so_far.is_whole

    def put(self, number: int, entry: Entry, interest: Interest, read: ReadInterest | None = None) -> None:
        """Add a subscription; a filter that cannot be read raises ``FilterError``."""
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
        self._interests[number] = entry, replace(interest, parsed=None)  # to go over to the grid; trees are large

    def remove(self, number: int) -> None:
        """Remove a subscription that is there."""
        (session, _), _ = self._interests.pop(number)
        if self.grid_so_far is not None:
            self.grid_so_far.remove(number, session)
        if self._matcher is not None:
            self._matcher.remove(str(number))
            del self._numbers[self._handles.pop(number)]

    def members_changed(self, session: str, *, is_named: bool) -> None:
        """Take in that a device joined a session or left it, or that the session is no more."""
        if self.grid_so_far is not None:
            self.grid_so_far.members_changed(session, is_named=is_named)

    @property
    def unpacked(self) -> int:
        """How many content filters are asked one by one."""
        asked = self.grid_so_far if self._matcher is None else self._matcher.content
        return 0 if asked is None else asked.unpacked

    def settle(self) -> None:
        """Let the matchers make themselves at home with what did not change since the last call."""
        if self._matcher is not None:
            self._matcher.content.settle()
        if self.grid_so_far is not None:
            self.grid_so_far.settle()

    # -- the grid ----------------------------------------------------------------------------------------------------

    def prepare_for(self, seconds: float, stopwatch: Callable[[], float]) -> None:
        """Prepare what is to be prepared, for about so many seconds."""
        until = stopwatch() + seconds
        self.prepare()
        while self.grid_so_far is not None and not self._is_over and stopwatch() < until:
            self.prepare()

    def prepare(self, asked: int | None = None) -> None:
        """Do a piece of what it takes to ask the grid, if *asked* subscriptions (all of these) are worth it."""
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
        """Return who wants a publication of the time *at* for its subject and content, and may have it."""
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
        """Return the sessions that may be in an area, of *asked* subscriptions; None if the hold is to be asked."""
        if asked <= self._few:
            return None
        if not self._is_over:
            self.prepare(asked)
        return self.grid_so_far.sessions_within(area) if self._is_over and self.grid_so_far is not None else None


def _without_place(interest: Interest) -> Interest:
    return replace(interest, near=None, stale_us=None, session=None)
