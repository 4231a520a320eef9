"""Parameters of the controller, each with the reason for its value (Huang, 5.3 and 5.4).

Rule: durations are microseconds; a parameter that would break a promise of the controller cannot be built.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import INT32_MAX, INT64_MAX, flag, name, whole
from whimbrel.rendezvous.events import MAX_NUMBER

__all__ = ["MIN_TIMEOUT_US", "PAGE_TIMEOUT_US", "REASONS", "Parameters"]

MIN_TIMEOUT_US = 2_560_000
"""How long both devices page and listen at least after a match: the longest page (5.3, Table 2.1)."""

PAGE_TIMEOUT_US = 2 * MIN_TIMEOUT_US
"""How long a device pages or listens unless it is told otherwise, and for how long the controller publishes no device
again that it has just introduced. A parked publisher is woken at its next beacon, after the subscriber has begun to
page: with the minimum alone about half of the pages over the simulated radio came to nothing, because the first train
was over before the publisher listened."""

REASONS = {
    "name": "a device that inquires must know a controller when it finds one, so the name states the role (4)",
    "event_ttl_us": "10 minutes: sending an event again costs a device more than a missed match (5.3)",
    "pair_ttl_us": "2 minutes: above the time a resubmitted event waits to be processed (below a minute), below the "
    "return of a pair that did connect (several minutes) (5.3)",
    "removed_ttl_us": "33.28 s: the longest inquiry and page, so the longest way back to the controller (5.4.1)",
    "member_ttl_us": "10 minutes from the last look: a membership that is not asked for is forgotten (5.4.1)",
    "page_timeout_us": "5.12 s, at least 2.56 s: the time-out of a device's page after a match, at least the longest "
    "page; a device that was found and introduced is not published again for as long (5.3)",
    "answer_us": "2.56 s for an answer, beacon included, and for all groups of one pair: a device that is silent for "
    "longer is gone (4.1.3)",
    "connect_us": "20.48 s: four pages one after the other, as long as a lost connection goes unnoticed; then "
    "the publication of an indirectly matched device that has not connected is dropped",
    "ignore_us": "5.12 s, at least 2.56 s: how long the pages of a dumb device are ignored after its smart one was "
    "told to listen: the longest page, and as long again because a parked device is woken at its next beacon (5.4.4)",
    "poll_us": "10.24 s: how long a parked device waits at most before it may speak; the thesis gives none (4.1.1)",
    "idle_us": "60 s: longer than the removed cache remembers, then a device without an event loses its seat (4.2)",
    "max_active": "7: a piconet has three bits for its active slaves (2.1.3)",
    "max_parked": "255: eight bits for the parked ones (2.1.3)",
    "has_park": "on; off on real radios, which have no park since Bluetooth 5.0: a device with an open event is then "
    "released, which means disconnected, not discoverable and listening for pages",
    "max_released": "40 devices without park, connected or released: presence pages of 0.7 s each take half "
    "of the radio's time",
    "presence_us": "60 s between two presence pages of a released device; one that does not answer two pages of 2.56 s "
    "is gone, so that a device that walked away is listed for at most 65.12 s, and 5.12 s more for each device that "
    "has to be paged before it",
    "max_subscriptions": "7: 4.1.2 says six and argues with seven, the slaves a subscriber can be master of",
    "max_number": "32 bits, then from 1 again: no two events of 262 devices ever have the same number (4.1.4)",
    "messages_per_s": "10 a second from one device, four seconds' worth at once: a template takes one (4.2)",
    "work": "32 of each concern in a round: a storm of one kind cannot starve the others (5.4.2)",
    "remembered": "4,096 entries in each cache: twice the events that 261 devices can have open",
    "has_two_queues": "off: one queue shows its order; two change no outcome (5.4.2)",
}
"""Why each parameter has its value; the docs page and ``whimbrel rendezvous parameters`` print this table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters of a controller."""

    name: str = "whimbrel-controller"
    event_ttl_us: int = 600_000_000
    pair_ttl_us: int = 120_000_000
    removed_ttl_us: int = 33_280_000
    member_ttl_us: int = 600_000_000
    page_timeout_us: int = PAGE_TIMEOUT_US
    answer_us: int = 2_560_000
    connect_us: int = 20_480_000
    ignore_us: int = PAGE_TIMEOUT_US
    poll_us: int = 10_240_000
    idle_us: int = 60_000_000
    max_active: int = 7
    max_parked: int = 255
    has_park: bool = True
    max_released: int = 40
    presence_us: int = 60_000_000
    max_subscriptions: int = 7
    max_number: int = MAX_NUMBER
    messages_per_s: int = 10
    work: int = 32
    remembered: int = 4_096
    has_two_queues: bool = False

    def __post_init__(self) -> None:
        name("name", self.name, max_bytes=248)
        for field in fields(self):
            if field.name.endswith("_us"):
                whole(field.name, getattr(self, field.name), 1, INT64_MAX >> 16)
        whole("page_timeout_us", self.page_timeout_us, MIN_TIMEOUT_US, INT64_MAX >> 16)
        whole("ignore_us", self.ignore_us, MIN_TIMEOUT_US, INT64_MAX >> 16)
        # Five active slots are enough for two conversations about membership or an answer, and one new device.
        whole("max_active", self.max_active, 5, 7)
        whole("max_parked", self.max_parked, 0, 255)
        flag("has_park", self.has_park)
        whole("max_released", self.max_released, 7, 1_000)
        whole("max_subscriptions", self.max_subscriptions, 1, 7)
        whole("max_number", self.max_number, 1, MAX_NUMBER)
        whole("messages_per_s", self.messages_per_s, 1, 1_000)
        whole("work", self.work, 1, INT32_MAX)
        whole("remembered", self.remembered, 1, INT32_MAX)
        flag("has_two_queues", self.has_two_queues)
        if self.removed_ttl_us >= self.event_ttl_us:
            raise InvalidValueError("removed_ttl_us", self.removed_ttl_us, "less than event_ttl_us (5.4.1)")

    @property
    def max_members(self) -> int:
        """How many devices may be here: one active address stays free to wake a parked or released device with."""
        return self.max_active + self.max_parked - 1 if self.has_park else self.max_released

    @property
    def patience_us(self) -> int:
        """How long a released device waits for a presence page before it takes the controller for gone."""
        return 2 * self.presence_us + self.connect_us

    @property
    def stale_us(self) -> int:
        """How long released devices that walked away stay listed at most, if all of them go at the same moment.

        Each has two pages, and at most one other device is paged twice between the pages of two of them.
        """
        return self.presence_us + 4 * MIN_TIMEOUT_US * self.max_released

    def explain(self) -> Iterator[tuple[str, object, str]]:
        """Yield every parameter with its value and the reason for its default."""
        for field in fields(self):
            yield field.name, getattr(self, field.name), REASONS[field.name]
