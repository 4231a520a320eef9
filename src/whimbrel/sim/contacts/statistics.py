"""Statistics of the contacts of a world: how often, how long, and how long until two given nodes meet.

Rule: *inter-contact* is the time from the end of a contact to the start of the pair's next one. *Meeting time* (E_mm)
is the time from a random instant to the next contact, 0 during one. Long gaps count by their square, because more
instants fall into them.
Rule: only gaps between two contacts count; the time before the first contact and after the last one is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whimbrel.sim.contacts.table import Contacts

__all__ = ["ContactStatistics", "contact_statistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactStatistics:
    """Means over all pairs; None if there is nothing to average."""

    contacts: int
    contact_rate_s: float | None
    """Mean seconds per contact of a pair: pairs × seconds / contacts."""
    contact_mean_s: float | None
    intercontact_mean_s: float | None
    meeting_time_s: float | None


def contact_statistics(contacts: Contacts) -> ContactStatistics:
    """Return the statistics of *contacts*."""
    count = len(contacts)
    if not count:
        return ContactStatistics(
            contacts=0, contact_rate_s=None, contact_mean_s=None, intercontact_mean_s=None, meeting_time_s=None
        )
    pair = contacts.low.astype(np.int64) * contacts.nodes + contacts.high
    order = np.argsort(pair, kind="stable")
    pair, start, end = pair[order], contacts.start[order], contacts.end[order]
    is_gap = pair[1:] == pair[:-1]
    gaps = (start[1:] - end[:-1])[is_gap]
    lengths = (end - start)[:-1][is_gap]  # each gap together with the contact before it is one whole cycle
    pairs = contacts.nodes * (contacts.nodes - 1) / 2
    cycle_s = float(gaps.sum() + lengths.sum())
    return ContactStatistics(
        contacts=count,
        contact_rate_s=pairs * contacts.seconds / count,
        contact_mean_s=float((end - start).mean()),
        intercontact_mean_s=float(gaps.mean()) if len(gaps) else None,
        meeting_time_s=float((gaps * gaps).sum()) / 2 / cycle_s if cycle_s else None,
    )
