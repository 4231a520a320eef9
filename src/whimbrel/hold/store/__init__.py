"""Stores: where the view of the hold is kept. The log is the truth; a store only saves replaying all of it."""
