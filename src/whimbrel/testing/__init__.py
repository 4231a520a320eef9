"""Test helpers: used by Whimbrel's own tests, and available for your tests."""

from __future__ import annotations

from whimbrel.testing.clock import ManualClock

__all__ = ["ManualClock"]
