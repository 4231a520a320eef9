"""What Whimbrel's own tests use and a user's tests may use too."""

from __future__ import annotations

from whimbrel.testing.clock import ManualClock

__all__ = ["ManualClock"]
