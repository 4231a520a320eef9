"""Frames as values: a beacon, a join, an event, a request.

Rule: no frame has a field for the place of a consumer. A join names the group and its member, nothing else of it.
Beacons and events carry the place of their producer: an area need not be centred on it, and what a consumer's filter
asks about (*the light I am driving towards*) is the light, not the middle of its area.
Rule: ``origin`` made the frame and gave it ``seq``; the two name it wherever it goes. ``sender`` transmitted this copy,
and only ``sender``, ``hops`` and the remaining time change on the way; a signature covers everything else.
Rule: times in frames are durations, so that no two clocks need to agree. There is one exception: a signed frame says
when it was issued, because a signature alone is as good in a year as today. A node whose clock is set refuses a signed
frame that is too old; a node whose clock is not set accepts it, and marks its events.
Rule: where a producer signs, the joins and requests of its group are signed, too. ``max_hops`` is the number of hops
that the origin allowed; it is signed, and a frame with more ``hops`` than that is no frame.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from whimbrel.model.attributes import Attributes
from whimbrel.model.notification import NotificationId
from whimbrel.model.place import Area, Place

__all__ = [
    "Asked",
    "Beacon",
    "Event",
    "Flooded",
    "Frame",
    "GroupId",
    "Join",
    "Objection",
    "Request",
    "Signable",
    "ViewDigest",
]


class GroupId(NamedTuple):
    """A proximity group: the functional side is the subject, the geographical one its producer's area (4.2)."""

    producer: str
    subject: str


class ViewDigest(NamedTuple):
    """A view in short: how many members, and the exclusive or of their hashes."""

    size: int
    mixed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Beacon:
    """A producer announces a subject and its area, again each period (4.3)."""

    origin: str
    seq: int
    sender: str
    hops: int
    """How many times it may still be repeated."""
    subject: str
    area: Area
    place: Place
    """Where its producer is."""
    moves: bool
    """Whether the area moves along with its producer."""
    epoch: int
    """The seq of the announcement: a later one of the same subject begins a new group."""
    lifetime_us: int
    """How long it is good without another beacon; 0: the announcement has ended."""
    max_hops: int
    """The hop bound of the announcement, for its beacons and its events."""
    max_remaining_us: int
    """The longest deadline of events; no event is asked for any longer."""
    latest: int
    """The number of the latest event, 0 if there was none."""
    latest_us: int
    """How long the latest event is still good; 0: it is not."""
    cell_m: int
    fingerprint: bytes
    """What the producer's vocabulary says of the subject."""
    view: ViewDigest
    members: tuple[int, ...] | None = None
    """The hashes of all members, while the view is new to some of them."""
    issued_at: int | None = None
    """The time of day at which it was signed, in microseconds UTC; 0 if the signer's clock was not set."""
    key: bytes | None = field(default=None, repr=False)
    signature: bytes | None = field(default=None, repr=False)

    @property
    def group(self) -> GroupId:
        """The group that is announced."""
        return GroupId(self.origin, self.subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A consumer inside the area is, or goes on to be, a member; its account of events goes with it."""

    origin: str
    seq: int
    sender: str
    hops: int
    max_hops: int
    subject: str
    area: Area
    """The area of the group as the consumer heard it: the frame must not leave it."""
    producer: str
    epoch: int
    accounted: int
    """Each event up to this number was received, or is counted below, or was before this member's time."""
    expired: int
    missed: int
    wants_view: bool = False
    """Whether this member's view differs from the digest that it heard."""
    is_leaving: bool = False
    issued_at: int | None = None
    """The time of day at which it was signed, in microseconds UTC; 0 if the signer's clock was not set."""
    key: bytes | None = field(default=None, repr=False)
    signature: bytes | None = field(default=None, repr=False)

    @property
    def group(self) -> GroupId:
        """The group that is joined."""
        return GroupId(self.producer, self.subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One notification of a group."""

    origin: str
    seq: int
    sender: str
    hops: int
    max_hops: int
    subject: str
    area: Area
    place: Place
    """Where its producer was when it published."""
    epoch: int
    number: int
    """Counts the events of this announcement from 1, without gaps."""
    deadline_us: int
    """From its publication on; the remaining time begins with it."""
    remaining_us: int
    attributes: Attributes
    issued_at: int | None = None
    """The time of day at which it was signed, in microseconds UTC; 0 if the signer's clock was not set."""
    key: bytes | None = field(default=None, repr=False)
    signature: bytes | None = field(default=None, repr=False)

    @property
    def group(self) -> GroupId:
        """The group that it is for."""
        return GroupId(self.origin, self.subject)

    @property
    def id(self) -> NotificationId:
        """The identity of the notification."""
        return NotificationId(self.origin, self.seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A member asks one neighbour for events that it misses; it is not repeated."""

    sender: str
    to: str
    area: Area
    """The area of the group as the member heard it."""
    producer: str
    subject: str
    epoch: int
    numbers: tuple[int, ...]
    issued_at: int | None = None
    """The time of day at which it was signed, in microseconds UTC; 0 if the signer's clock was not set."""
    key: bytes | None = field(default=None, repr=False)
    signature: bytes | None = field(default=None, repr=False)

    @property
    def group(self) -> GroupId:
        """The group whose events are asked for."""
        return GroupId(self.producer, self.subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """A consumer tells a producer why it does not take its beacons, for both logs; it is not repeated."""

    sender: str
    to: str
    """The producer."""
    area: Area
    subject: str
    clock_us: int
    """The time of day at the sender, where it refuses a frame by its age; else 0."""
    epoch: int
    """The later epoch that the sender knows, where it refuses an earlier one; else 0."""

    @property
    def group(self) -> GroupId:
        """The group that is objected to."""
        return GroupId(self.to, self.subject)


Flooded: TypeAlias = Beacon | Join | Event
"""What nodes inside the area repeat."""
Asked: TypeAlias = Request | Objection
"""What is for one node, and not repeated."""
Signable: TypeAlias = Flooded | Request
"""What a producer or a member signs."""
Frame: TypeAlias = Flooded | Asked
