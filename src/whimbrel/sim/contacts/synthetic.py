"""Random contacts without a world: every pair meets for an instant, independently of its earlier meetings.

The theory of spray and wait assumes such contacts (Campus++, section 3.3, after Spyropoulos and others, 2008), so a
simulator can be compared with an exact Markov chain.
"""

from __future__ import annotations

import random

import numpy as np

from whimbrel.model.bounds import real, whole
from whimbrel.sim.contacts.table import Contacts

__all__ = ["exponential_contacts"]


def exponential_contacts(*, nodes: int, meeting_s: float, seconds: float, seed: int) -> Contacts:
    """Return contacts of zero length; the gaps of each pair are exponential with the mean *meeting_s*."""
    whole("nodes", nodes, 2, 10_000)
    real("meeting_s", meeting_s, 1e-3, 1e9)
    real("seconds", seconds, 1e-3, 1e9)
    generator = np.random.Generator(np.random.PCG64(random.Random(f"{seed}/exponential").getrandbits(64)))
    pairs = nodes * (nodes - 1) // 2
    # All pairs together are one Poisson process; each event belongs to a random pair.
    count = int(generator.poisson(pairs * seconds / meeting_s))
    time = np.sort(generator.random(count) * seconds)
    low = generator.integers(0, nodes, count)
    high = (low + 1 + generator.integers(0, nodes - 1, count)) % nodes
    low, high = np.minimum(low, high), np.maximum(low, high)
    return Contacts(
        nodes=nodes, seconds=seconds, start=time, end=time.copy(), low=low.astype(np.int32), high=high.astype(np.int32)
    )
