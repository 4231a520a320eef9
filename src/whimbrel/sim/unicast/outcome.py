"""Outcome of a unicast run, as the kernel and its reference in the tests return it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["UnicastOutcome"]


@dataclass(frozen=True, slots=True)
class UnicastOutcome:
    """Delivery time of each message (NaN: never); number of transfers started, completed and aborted."""

    delivered_s: NDArray[np.float64]
    started: int
    relayed: int
    aborted: int
