"""Stores: they keep the view (saved state) of the hold, so that a restart need not replay the whole log."""
