"""Means over seeds with their confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Estimate", "estimate"]

# Student's t for 95 %, by degrees of freedom, from 1.
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
_NORMAL = 1.96


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over *count* seeds; the true mean is within *margin* of it with 95 % confidence."""

    mean: float
    margin: float
    count: int

    def __str__(self) -> str:
        return f"{_short(self.mean)} ± {_short(self.margin)}"


def estimate(values: Iterable[float | None]) -> Estimate:
    """Return the mean of *values* with its margin; NaN if all values are None."""
    known = [value for value in values if value is not None]
    if not known:
        return Estimate(math.nan, math.nan, 0)
    if len(known) == 1:
        return Estimate(known[0], math.inf, 1)
    freedom = len(known) - 1
    factor = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL
    return Estimate(statistics.fmean(known), factor * statistics.stdev(known) / math.sqrt(len(known)), len(known))


def _short(value: float) -> str:
    if not math.isfinite(value):
        return "?"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
