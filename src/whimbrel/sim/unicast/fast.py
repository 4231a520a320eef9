"""Unicast routing in the numba kernel: the same outcome as the reference, in less time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from whimbrel.errors import InvalidValueError
from whimbrel.sim.contacts.table import Contacts
from whimbrel.sim.kernels.links import link_room
from whimbrel.sim.kernels.unicast import route_all
from whimbrel.sim.unicast.outcome import UnicastOutcome
from whimbrel.sim.unicast.scenario import Parcel, Unicast

__all__ = ["fast_route"]

_MAX_CELLS = 250_000_000
"""Limit of messages × nodes, the size of the table of copies if nothing is ever delivered."""


def fast_route(contacts: Contacts, unicast: Unicast, parcels: Sequence[Parcel]) -> UnicastOutcome:
    """Route *parcels* over *contacts*, which nodes notice only every ``look_s`` seconds."""
    if len(parcels) * contacts.nodes > _MAX_CELLS:
        allowed = f"at most {_MAX_CELLS:,}: let messages come more seldom"
        raise InvalidValueError("messages × nodes", len(parcels) * contacts.nodes, allowed)
    seen = contacts.looked_at(unicast.look_s)
    order = seen.end_order()
    columns = (seen.start, seen.end, seen.low, seen.high, order)
    delivered_s, counts = route_all(
        *columns,
        float(seen.seconds),  # numba compiles again for each type
        seen.nodes,
        link_room(seen, order),
        np.array([parcel.created_s for parcel in parcels], np.float64),
        np.array([parcel.source for parcel in parcels], np.int64),
        np.array([parcel.destination for parcel in parcels], np.int64),
        unicast.copies,
        float(unicast.transfer_s),
    )
    return UnicastOutcome(delivered_s, *(int(count) for count in counts))
