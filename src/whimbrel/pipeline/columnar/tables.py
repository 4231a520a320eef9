"""Tables of the columnar hold: the columns of its state, of its events and of its output.

All are two-dimensional arrays of 64-bit integers; a constant here is the number of a column. The state is one table,
``State.rows``, with rows of different kinds, which the prefixes of the columns name. A row refers to another
one by its number, or to none by ``NONE``. Row 0 has counters. Free rows form a list: column 0 has the next one.

| prefix | a row is |
|---|---|
| S_, D_ | a session, a device |
| M_ | a membership: a session, and a device that ever joined it |
| V_ | a visit: an interval in which a device was present in a session |
| I_ | a subscription that a session ever had, with the queue of what is held for it |
| C_ | a copy: a stored notification; ``State.listed`` has the sessions that it matched |
| P_ | a pending notification: one in the queue of a session, which is in the order of seqs |
| H_ | an entry: a pending notification is held for a subscription |

``State.heap`` has the times at which entries lapse, as a binary heap with the earliest first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from whimbrel.model.facts import Outcome

Numbers = NDArray[np.int64]

NONE = -1
"""No row; also the device of an outcome for a session without a device."""
ABSENT = int(np.iinfo(np.int64).min)
"""Value of ``LAPSES_AT`` for null."""
BITS = 64
"""Largest number of subscriptions of a session: a set of them is the bits of one integer."""

WIDTH = 8
"""Columns of ``State.rows``."""
FREE, NOW, MATCHED, HEAP, STALE, FREE_COUNT = range(6)
"""Row 0: first free row; the time; rows of ``listed`` in use; rows of ``heap`` in use, and how many are obsolete;
number of free rows."""
SERIAL = WIDTH - 1
"""How often a row was freed: with another number, an element of the heap is obsolete. It outlives the row."""
S_MEMBERS, S_HEAD, S_TAIL, S_PRESENT, S_LAST_PRESENT, S_STAMP, S_FIRST, S_NAME = range(8)
"""First membership; ends of the queue; number of present devices, and the seq until which one was last present;
scratch: the last publication that matched, and its first match; number of the name."""
D_MEMBERS, D_RANK, D_NAME = range(3)
"""First membership; position of the name in alphabetical order; number of the name."""
M_SESSION, M_DEVICE, M_NEXT, M_NEXT_OF_DEVICE, M_IS_MEMBER, M_PRESENCE, M_ABSENT_SINCE, M_VISIT = range(8)
"""Next membership of the session, and of the device; 0 if the device left; presence; seq since which it is absent;
newest visit."""
AWAY, KEEPS, TAKES = range(3)
"""Values of ``M_PRESENCE``: absent, or present with a mode."""
V_BEGIN, V_END, V_NEXT = range(3)
"""Seqs at which it began and ended; the visit before."""
I_SESSION, I_BIT, I_TTL, I_MOST, I_HEAD, I_TAIL, I_COUNT = range(7)
"""Bit within the session; retention: time to live and largest number; ends of the queue, and its length."""
C_SEQ, C_NOTIFICATION, C_SESSIONS, C_FIRST, C_COUNT, C_IS_SEEN, C_SHIFT = range(7)
"""Seq; ``NOTIFICATION`` in the output; number of sessions whose queues have it; first row of ``listed``, and number of
rows; scratch for ``kernel.tidy``."""
P_COPY, P_SESSION, P_LISTED, P_LAPSES_AT, P_ENTRY, P_PREV, P_NEXT = range(7)
"""Row of ``listed``; first entry; neighbours in the session's queue."""
H_PENDING, H_INTEREST, H_LAPSE, H_PREV, H_NEXT, H_SIBLING = range(6)
"""Neighbours in the subscription's queue; next entry of the same pending notification."""
L_SESSION, L_END = range(2)
"""Columns of ``listed``: a session, and the seq at which the notification left its queue."""
HEAP_LAPSE, HEAP_ENTRY, HEAP_SERIAL = range(3)
"""Columns of ``heap``: a time, an entry that lapses then, and the ``SERIAL`` of the entry."""

FOREVER = np.iinfo(np.int64).max
"""Time or seq that is not yet known: after all others."""
DELIVERED, EXPIRED, DISPLACED, TAKEN, DROPPED = map(np.int64, range(5))
"""Values of ``OUTCOME``, indices of ``OUTCOMES``."""
NO_VIA, LIVE, HELD = map(np.int64, range(3))
"""Values of ``VIA``, indices of ``VIAS``."""
NO_DEVICE, NULL = np.int64(NONE), np.int64(ABSENT)
"""As numpy integers: numba compiles a function again for each combination of constants that are Python integers."""

PUBLISH, JOIN, DISCONNECT, LEAVE, PUT, REMOVE, DELETE, TICK = range(8)
"""Kinds of events, which refer to a row of: publications, members, devices, members, interests, interests, sessions,
nothing."""

NOTIFICATION, SESSION, DEVICE, IDENTITIES, OUTCOME, AT, LAPSES_AT, VIA = range(8)
"""Columns of the output; ``IDENTITIES`` has one bit for each of the session's subscriptions."""
COLUMNS = 8
OUTCOMES = (Outcome.DELIVERED, Outcome.EXPIRED, Outcome.DISPLACED, Outcome.TAKEN_ELSEWHERE, Outcome.DROPPED)
VIAS = (None, "live", "held")


class State(NamedTuple):
    """The tables of the state."""

    rows: Numbers
    listed: Numbers
    heap: Numbers


class Events(NamedTuple):
    """Events in order, and the publications among them."""

    kind: Numbers
    seq: Numbers
    at: Numbers
    """Time in microseconds."""
    row: Numbers
    """Row that the event refers to."""
    first: Numbers
    """PUT: time to live in microseconds; JOIN: 1 if the device takes."""
    second: Numbers
    """PUT: largest number of held notifications."""
    notification: Numbers
    """Publications: value of ``NOTIFICATION`` in the output."""
    expires_at: Numbers
    """Publications: expiry in microseconds; the largest integer if there is none."""
    starts: Numbers
    """Publications: first match, and at the end the number of matches."""
    matches: Numbers
    """Rows of ``interests`` that match, publication after publication."""
