"""Frames as values: beacon, join, event, request and objection.

Rule: no frame has a field for the place of a consumer. A join names the group and its member, nothing else about it.
Beacons and events have the place of their producer: an area need not be centred on it, and a consumer's filter (*the
light I am driving towards*) is about the light, not the middle of its area.
Rule: ``origin`` made the frame and gave it ``seq``; the two name it wherever it goes. ``sender`` transmitted this copy,
and only ``sender``, ``hops`` and the remaining time change on the way; a signature covers everything else.
Rule: times in frames are durations, so that no two clocks need to agree. There is one exception: a signed frame has its
time of issue, because a signature alone never gets old (replay). A node whose clock is set refuses a signed frame that
is too old; a node whose clock is not set accepts it, and marks its events.
Rule: where a producer signs, the joins and requests of its group are signed, too. ``max_hops`` is the number of hops
that the origin allowed; it is signed, and a frame with more ``hops`` than that is malformed.
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
    """Digest of a view: the number of members, and the exclusive or of their hashes."""

    size: int
    mixed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Beacon:
    """A producer's announcement of a subject and its area, repeated each period (4.3)."""

    origin: str
    seq: int
    sender: str
    hops: int
    """Number of repetitions left."""
    subject: str
    area: Area
    place: Place
    """Place of the producer."""
    moves: bool
    """Whether the area moves with its producer."""
    epoch: int
    """The seq of the announcement: a later one of the same subject begins a new group."""
    lifetime_us: int
    """Time for which it is valid without another beacon; 0: the announcement has ended."""
    max_hops: int
    """The hop bound of the announcement, for its beacons and its events."""
    max_remaining_us: int
    """The longest deadline of events, after which none is requested any more."""
    latest: int
    """The number of the latest event, 0 if there was none."""
    latest_us: int
    """Remaining time of the latest event; 0: it has expired."""
    cell_m: int
    fingerprint: bytes
    """Fingerprint of the subject's event type in the producer's vocabulary."""
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
    """A consumer inside the area becomes or stays a member; with its account of received and missed events."""

    origin: str
    seq: int
    sender: str
    hops: int
    max_hops: int
    subject: str
    area: Area
    """The area of the group that the consumer heard last: the frame must not leave it."""
    producer: str
    epoch: int
    accounted: int
    """Number up to which every event was received, is counted below, or was published before this member joined."""
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
    """Place of the producer when it published."""
    epoch: int
    number: int
    """Number of the event in its announcement, from 1, without gaps."""
    deadline_us: int
    """Deadline as a duration from publication; the initial remaining time."""
    remaining_us: int
    attributes: Attributes
    issued_at: int | None = None
    """The time of day at which it was signed, in microseconds UTC; 0 if the signer's clock was not set."""
    key: bytes | None = field(default=None, repr=False)
    signature: bytes | None = field(default=None, repr=False)

    @property
    def group(self) -> GroupId:
        """The group of the event."""
        return GroupId(self.origin, self.subject)

    @property
    def id(self) -> NotificationId:
        """The identity of the notification."""
        return NotificationId(self.origin, self.seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A member's request to one neighbour for missing events; it is not repeated."""

    sender: str
    to: str
    area: Area
    """The area of the group that the member heard last."""
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
        """The group of the requested events."""
        return GroupId(self.producer, self.subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """A consumer's reason for not accepting a producer's beacons, for both logs; it is not repeated."""

    sender: str
    to: str
    """The producer."""
    area: Area
    subject: str
    clock_us: int
    """Time of day at the sender, if it refuses a frame by its age; else 0."""
    epoch: int
    """The later epoch that the sender knows, if it refuses an earlier one; else 0."""

    @property
    def group(self) -> GroupId:
        """The group of the refused beacons."""
        return GroupId(self.to, self.subject)


Flooded: TypeAlias = Beacon | Join | Event
"""Frames that nodes inside the area repeat."""
Asked: TypeAlias = Request | Objection
"""Frames for one node, which are not repeated."""
Signable: TypeAlias = Flooded | Request
"""Frames that a producer or a member signs."""
Frame: TypeAlias = Flooded | Asked
