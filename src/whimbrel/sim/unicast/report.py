"""The figures of one unicast simulation, with the names of the ONE's MessageStatsReport."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from whimbrel.sim.unicast.outcome import UnicastOutcome
from whimbrel.sim.unicast.scenario import Parcel

__all__ = ["message_stats"]


def message_stats(outcome: UnicastOutcome, parcels: Sequence[Parcel]) -> dict[str, float | int | None]:
    """Return the figures by name; a figure is None if nothing was delivered."""
    latency_s = outcome.delivered_s - np.array([parcel.created_s for parcel in parcels])
    latency_s = latency_s[~np.isnan(latency_s)]
    delivered = len(latency_s)
    return {
        "created": len(parcels),
        "started": outcome.started,
        "relayed": outcome.relayed,
        "aborted": outcome.aborted,
        "delivered": delivered,
        "delivery_prob": delivered / len(parcels) if parcels else None,
        "overhead_ratio": (outcome.relayed - delivered) / delivered if delivered else None,
        "latency_avg": float(latency_s.mean()) if delivered else None,
        "latency_med": float(np.median(latency_s)) if delivered else None,
    }
